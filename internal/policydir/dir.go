package policydir

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"maps"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/diskcache"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/validate"
)

// Config defines which directory to follow.
type Config struct {
	// Path is the directory; empty means there is none.
	Path string
	// Keep is a directory for copies of the files' last good versions, so that these stay in force
	// across a restart with a faulty file. Empty keeps none.
	Keep string
	// Unkept, if not nil, is called with why files cannot be kept there, nil if all are, whenever
	// that changes; it must not block.
	Unkept func(error)
	// Poll is how often the directory is read even if nothing was notified.
	Poll time.Duration
	// Settle is how long reading the directory waits for a file that is being written. Once its
	// writer closes it, or if it is renamed into place, only Gather is waited for, to batch
	// changes.
	Settle time.Duration
	Gather time.Duration
}

// Defaults returns a configuration without a directory.
func Defaults() Config {
	return Config{Poll: 10 * time.Second, Settle: 20 * time.Millisecond, Gather: time.Millisecond}
}

// Validate reports all faults.
func (c Config) Validate() error {
	var errs validate.Errors
	errs.If(c.Poll <= 0, "policydir: poll interval %v must be positive", c.Poll)
	errs.If(c.Settle < 0 || c.Gather < 0, "policydir: settle time %v and gather time %v must not be negative", c.Settle, c.Gather)
	return errs.Err()
}

// FileStatus is what became of a file.
type FileStatus struct {
	// File is the name within the directory.
	File string
	// Err is the fault of the file's present content, nil if it is in force.
	Err error
	// Policies are the owners in force, of the present content or of the last good one, sorted.
	Policies []policy.Owner
	// Loaded is when what is in force was read; zero if it is not what was written: nothing, or
	// what can be enforced of a file that was never good.
	Loaded time.Time
	// Failed is since when the file is faulty; zero if it is not.
	Failed time.Time
}

// Dir follows one directory. Make it with New, then Run it.
type Dir struct {
	cfg Config
	log *slog.Logger

	mu     sync.Mutex // guards all below
	files  map[string]*file
	dirErr error
	// copies hold the last good version of each file, for an agent that starts while a file is
	// faulty: the version that was in force must then still be. kept are the former ones, until the
	// directory has been read once.
	copies *diskcache.Cache
	kept   map[string]diskcache.Copy
	// unkept are the files whose good version could not be stored, reported is what Unkept was
	// called with last.
	unkept   map[string]error
	reported string
}

type file struct {
	content []byte // as last read
	read    bool   // content is what was read last, not an unreadable file
	objects []Object
	good    bool // objects are those of a good version
	status  FileStatus
}

// New returns a Dir for cfg. It does not touch the directory.
func New(cfg Config, log *slog.Logger) (*Dir, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	return &Dir{cfg: cfg, log: log, files: map[string]*file{}, copies: diskcache.New(cfg.Keep), unkept: map[string]error{}}, nil
}

// Run reads the directory and calls apply with everything in it, then with what changes, until ctx
// ends; then it returns nil. The first call happens even if there is nothing to apply. Calls do not
// overlap, and changes are sorted by owner. A directory that cannot be read at the start is an
// error, since running without policies would let everything pass; later it is only reported. With
// no directory configured Run calls apply once and waits for ctx.
func (d *Dir) Run(ctx context.Context, apply func([]policy.Change)) error {
	if d.cfg.Path == "" {
		apply(nil)
		<-ctx.Done()
		return nil
	}
	d.mu.Lock()
	d.kept = diskcache.Load(d.copies, d.log, func(c diskcache.Copy) (string, diskcache.Copy, error) {
		name, err := url.PathUnescape(c.Label)
		return name, c, err
	})
	d.mu.Unlock()
	// Watch first, so that no change between reading and watching is missed.
	events, closeWatch := d.watch()
	defer closeWatch()

	changes, err := d.scan()
	if err != nil {
		return fmt.Errorf("static-cnp-path: %w", err)
	}
	apply(changes)

	poll := time.NewTicker(d.cfg.Poll)
	defer poll.Stop()
	var due <-chan time.Time // when to read, nil if nothing changed
	var first time.Time      // since when there is something to read
	unfinished := map[string]bool{}
	for {
		select {
		case <-ctx.Done():
			return nil
		case n, ok := <-events:
			if !ok {
				events = nil // the poll goes on
				continue
			}
			now := time.Now()
			if due == nil {
				first = now
			}
			if n.whole {
				delete(unfinished, n.name)
			} else {
				unfinished[n.name] = true
			}
			// A file that is written without end does not keep the others from being read.
			wait := first.Add(d.cfg.Settle).Sub(now)
			if len(unfinished) == 0 {
				wait = min(wait, d.cfg.Gather)
			}
			due = time.After(wait)
			continue
		case <-due:
		case <-poll.C:
		}
		due = nil
		clear(unfinished)
		changes, err := d.scan()
		if err != nil {
			continue // noted and logged by scan
		}
		if len(changes) > 0 {
			apply(changes)
		}
	}
}

// watch asks for notifications. Without them, for want of kernel resources, the poll must do.
func (d *Dir) watch() (<-chan notice, func()) {
	notices, stop, err := notifications(d.cfg.Path, func(err error) {
		// The poll finds these changes.
		d.log.Warn("Policy directory: notifications were lost", "path", d.cfg.Path, "error", err)
	})
	if err != nil {
		d.log.Warn("Policy directory is polled: it cannot be watched", "path", d.cfg.Path, "error", err)
		return nil, func() {}
	}
	return notices, stop
}

// RuleLine returns in which file the policy of an owner is, and at which line what a path names
// begins, as of the version in force; no file if it is in none, 0 if the line is not known.
func (d *Dir) RuleLine(o policy.Owner, path string) (name string, line int) {
	d.mu.Lock()
	defer d.mu.Unlock()
	name, _, _ = strings.Cut(string(o), "/")
	f := d.files[name]
	if f == nil {
		return "", 0
	}
	for _, obj := range f.objects {
		if obj.Owner == o {
			return name, obj.Lines[path]
		}
	}
	return "", 0
}

// scan reads the directory and returns what must be applied.
func (d *Dir) scan() ([]policy.Change, error) {
	names, err := list(d.cfg.Path)
	d.mu.Lock()
	defer d.mu.Unlock()
	if err != nil {
		if d.dirErr == nil || d.dirErr.Error() != err.Error() {
			d.log.Error("Policy directory cannot be read; the policies read before stay in force", "path", d.cfg.Path, "error", err)
		}
		d.dirErr = err
		return nil, err
	}
	d.dirErr = nil
	var changes []policy.Change
	present := map[string]bool{}
	for _, name := range names {
		present[name] = true
		changes = append(changes, d.load(name)...)
	}
	for name, f := range d.files {
		if !present[name] {
			for _, o := range f.objects {
				changes = append(changes, policy.Change{Owner: o.Owner})
			}
			delete(d.files, name)
			d.dropCopy(name)
			d.log.Info("Policy file removed", "file", name, "policies", len(f.objects))
		}
	}
	for name := range d.kept {
		if !present[name] {
			d.dropCopy(name)
		}
	}
	d.kept = nil
	d.reportUnkept()
	slices.SortFunc(changes, func(a, b policy.Change) int { return strings.Compare(string(a.Owner), string(b.Owner)) })
	return changes, nil
}

func (d *Dir) dropCopy(name string) {
	delete(d.unkept, name)
	if err := d.copies.Drop(name); err != nil {
		d.log.Warn("The copy of a removed policy file cannot be removed", "file", name, "error", err)
	}
}

// list returns the names of the policy files, sorted.
func list(dir string) ([]string, error) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		name := e.Name()
		switch filepath.Ext(name) {
		case ".yaml", ".yml", ".json":
		default:
			continue
		}
		if strings.HasPrefix(name, ".") || e.IsDir() {
			continue
		}
		names = append(names, name)
	}
	return names, nil
}

// load reads one file and returns what changes because of it.
func (d *Dir) load(name string) []policy.Change {
	f := d.files[name]
	if f == nil {
		f = &file{status: FileStatus{File: name}}
		d.files[name] = f
	}
	data, err := readFile(filepath.Join(d.cfg.Path, name))
	if _, gone := os.Lstat(filepath.Join(d.cfg.Path, name)); err != nil && errors.Is(gone, fs.ErrNotExist) {
		return nil // removed since the directory was listed; the next scan sees to it
	}
	if err == nil && f.read && bytes.Equal(data, f.content) {
		if d.unkept[name] != nil && f.status.Err == nil {
			d.store(name, data)
		}
		return nil
	}
	f.content, f.read = data, err == nil
	var objects []Object
	if err == nil {
		objects, err = decode(name, data)
	}
	if err != nil {
		if f.status.Err == nil || f.status.Err.Error() != err.Error() {
			d.log.Error("Policy file is faulty; its last good version stays in force, or what can be enforced if there is none",
				"file", name, "lastGoodVersion", f.good, "policiesInForce", len(f.objects), "error", validate.Brief(err, validate.MaxLogged))
			f.status.Failed = time.Now()
		}
		f.status.Err = err
		if kept, ok := d.kept[name]; ok {
			if objects, kerr := Decode(name, kept.Content); kerr == nil {
				if kept.Outdated {
					d.log.Error("Of the policy file's version from before the restart only an earlier one could be stored: what it selects is isolated, and only what it denies is in force",
						"file", name, "policies", len(objects))
					isolate(objects)
					err = fmt.Errorf("%w; of its version before the restart only an earlier one could be stored: what that selects is isolated", err)
				} else {
					d.log.Info("The policy file's version from before the restart is in force", "file", name, "policies", len(objects))
				}
				changes := f.put(objects)
				f.status.Err, f.status.Failed = err, time.Now()
				f.good = true
				return changes
			}
		}
		if f.good || !f.read {
			return nil
		}
		failed := f.status.Failed
		changes := f.put(objects)
		f.status.Err, f.status.Failed, f.status.Loaded = err, failed, time.Time{}
		return changes
	}
	f.good = true
	d.store(name, data)
	changes := f.put(objects)
	d.log.Info("Policy file loaded", "file", name, "policies", len(objects))
	for _, o := range objects {
		for _, w := range validate.Few(policy.Warnings(o.Rules)) {
			d.log.Warn("Policy may mean something else than it seems", "file", name, "policy", o.Owner, "warning", w)
		}
	}
	return changes
}

// isolate takes from objects what they allow: a later version may not have allowed it. What they
// select stays isolated, and what they deny is.
func isolate(objects []Object) {
	for i, o := range objects {
		objects[i].Rules = slices.Clone(o.Rules)
		for k, rule := range o.Rules {
			r := *rule
			r.Clauses = slices.Clone(r.Clauses)
			for c := range r.Clauses {
				if !r.Clauses[c].Deny {
					r.Clauses[c].Ports = nil
				}
			}
			r.Faults = append(slices.Clone(r.Faults), "this is an earlier version, as the last good one could not be stored")
			objects[i].Rules[k] = &r
		}
	}
}

// store keeps a file's good version for a restart.
func (d *Dir) store(name string, data []byte) {
	err := d.copies.Put(name, url.PathEscape(name), data)
	if err == nil {
		delete(d.unkept, name)
		return
	}
	if d.unkept[name] == nil {
		d.log.Warn("A policy file's good version cannot be kept for a restart", "file", name, "error", err)
	}
	d.unkept[name] = err
}

// reportUnkept reports the files that could not be kept for a restart.
func (d *Dir) reportUnkept() {
	if d.cfg.Unkept == nil {
		return
	}
	var err error
	if len(d.unkept) > 0 {
		first := slices.Min(slices.Collect(maps.Keys(d.unkept)))
		err = fmt.Errorf("%d policy files cannot be kept for a restart, as %s: %w", len(d.unkept), first, d.unkept[first])
	}
	if text := fmt.Sprint(err); text != d.reported {
		d.reported = text
		d.cfg.Unkept(err)
	}
}

// put makes objects the file's policies in force and returns what changes because of it.
func (f *file) put(objects []Object) []policy.Change {
	next := map[policy.Owner]bool{}
	var changes []policy.Change
	for _, o := range objects {
		next[o.Owner] = true
		changes = append(changes, policy.Change{Owner: o.Owner, Rules: o.Rules})
	}
	for _, o := range f.objects {
		if !next[o.Owner] {
			changes = append(changes, policy.Change{Owner: o.Owner})
		}
	}
	f.objects = objects
	f.status = FileStatus{File: f.status.File, Policies: slices.Sorted(maps.Keys(next)), Loaded: time.Now()}
	return changes
}

// readFile reads a regular file, up to a little more than what Decode accepts.
func readFile(path string) ([]byte, error) {
	st, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	if !st.Mode().IsRegular() {
		return nil, errors.New("is not a regular file") // a pipe would block
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	data, err := io.ReadAll(io.LimitReader(f, MaxFileSize+1))
	return data, errors.Join(err, f.Close())
}

// Status returns the state of every file, sorted by name, and the directory's own fault, if any.
func (d *Dir) Status() ([]FileStatus, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make([]FileStatus, 0, len(d.files))
	for _, name := range slices.Sorted(maps.Keys(d.files)) {
		out = append(out, d.files[name].status)
	}
	return out, d.dirErr
}
