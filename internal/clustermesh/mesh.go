package clustermesh

import (
	"cmp"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"

	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Mesh follows other clusters. Make it with [New]; it serves one Run. Its methods may be called
// from any goroutine.
type Mesh struct {
	p Params

	mu      sync.Mutex
	freed   chan struct{}     // closed and replaced when an ID has no owner any more
	owners  map[uint32]string // of IDs
	mine    *prefixes
	readers map[chan struct{}]bool // of changes of mine
	remotes map[string]*remote
	fault   string        // of reading the directory
	scanned chan struct{} // closed when the directory could be read for the first time
	moved   chan struct{} // closed and replaced when a status may have changed
}

// New checks the settings. It reads nothing yet; the caller must call Run.
func New(p Params) (*Mesh, error) {
	p.defaults()
	if err := p.Config.Validate(p.ID); err != nil {
		return nil, fmt.Errorf("clustermesh: %w", err)
	}
	if p.Dir == "" || p.Open == nil || p.Sinks.Identities == nil || p.Sinks.Nodes == nil || p.Sinks.Addresses == nil {
		return nil, errors.New("clustermesh: a directory, a way to open stores and the tables to fill are needed")
	}
	if p.Sinks.Services == nil {
		p.Sinks.Services = noServices{}
	}
	return &Mesh{
		p: p, freed: make(chan struct{}), owners: map[uint32]string{}, readers: map[chan struct{}]bool{}, remotes: map[string]*remote{},
		scanned: make(chan struct{}), moved: make(chan struct{}),
	}, nil
}

type noServices struct{}

func (noServices) SetShared(service.Shared)          {}
func (noServices) DeleteShared(string, service.Name) {}

// SetMine sets which addresses and ranges are this cluster's nodes' and pods': no other cluster
// is accepted about those.
func (m *Mesh) SetMine(list []netip.Prefix) {
	mine := newPrefixes(list)
	m.mu.Lock()
	defer m.mu.Unlock()
	if mine.equal(m.mine) {
		return
	}
	m.mine = mine
	for ch := range m.readers {
		retry.Notify(ch)
	}
}

func (m *Mesh) mineNow() *prefixes {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.mine
}

// followMine returns a channel that signals changes of this cluster's addresses.
func (m *Mesh) followMine() (changed <-chan struct{}, forget func()) {
	ch := make(chan struct{}, 1)
	m.mu.Lock()
	defer m.mu.Unlock()
	m.readers[ch] = true
	return ch, func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.readers, ch)
	}
}

// claim records an ID for a cluster, if no other one has it.
func (m *Mesh) claim(id uint32, name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if other, taken := m.owners[id]; taken && other != name {
		return fmt.Errorf("the cluster has the ID %d, which cluster %s has: one of the two needs another --cluster-id", id, other)
	}
	m.owners[id] = name
	return nil
}

func (m *Mesh) release(id uint32, name string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.owners[id] == name {
		delete(m.owners, id)
		close(m.freed)
		m.freed = make(chan struct{})
	}
}

// whenFreed returns a channel that is closed when an ID has no owner any more.
func (m *Mesh) whenFreed() <-chan struct{} {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.freed
}

// follower is a cluster that is being followed.
type follower struct {
	*remote
	sum    [sha256.Size]byte // of its file
	cancel context.CancelFunc
	done   chan struct{}
	// missing counts the readings of the directory that did not find the file.
	missing int
}

func (f *follower) end() {
	f.cancel()
	<-f.done
}

// Run follows the clusters that the directory names until ctx ends, and returns nil then. Their
// state stays in the tables.
func (m *Mesh) Run(ctx context.Context) error {
	running := map[string]*follower{}
	defer func() {
		for _, f := range running {
			f.end()
		}
	}()
	for scanned := false; ; {
		if m.scan(ctx, running) && !scanned {
			scanned = true
			close(m.scanned)
		}
		if !retry.Sleep(ctx, m.p.Poll) {
			return nil
		}
	}
}

// scan reads the directory and follows the clusters that it names. It reports whether it could be
// read, but for single files perhaps.
func (m *Mesh) scan(ctx context.Context, running map[string]*follower) bool {
	files, fault := m.files()
	m.complain(fault)
	if files == nil {
		return false // what was configured stays so
	}
	for name, found := range files {
		f := running[name]
		// A file that cannot be read any more changes nothing.
		if f != nil && (f.sum == found.sum || found.fault != nil) {
			f.missing = 0
			continue
		}
		r := newRemote(m, name)
		if f != nil {
			m.p.Log.Info("the configuration of another cluster has changed; connecting again", "cluster", name)
			f.end()
			r = f.remote
		}
		sub, cancel := context.WithCancel(ctx)
		f = &follower{remote: r, sum: found.sum, cancel: cancel, done: make(chan struct{})}
		running[name] = f
		m.mu.Lock()
		m.remotes[name] = r
		m.mu.Unlock()
		go func() {
			defer close(f.done)
			r.connect(ctx, sub, filepath.Join(m.p.Dir, name), found.fault)
		}()
	}
	for name, f := range running {
		if _, still := files[name]; still {
			continue
		}
		// A file that is being replaced may be missing for a moment.
		if f.missing++; f.missing < 2 {
			continue
		}
		m.p.Log.Info("another cluster is no longer configured", "cluster", name)
		f.end()
		f.drain(ctx)
		delete(running, name)
		m.mu.Lock()
		delete(m.remotes, name)
		m.notify()
		m.mu.Unlock()
	}
	return true
}

// complain logs what is wrong with the directory or its files, once.
func (m *Mesh) complain(err error) {
	text := ""
	if err != nil {
		text = err.Error()
	}
	m.mu.Lock()
	again := m.fault == text
	m.fault = text
	m.mu.Unlock()
	if err != nil && !again {
		m.p.Log.Warn("cannot read which other clusters there are; those that are known stay", "error", err)
	}
}

// maxFile bounds a configuration file.
const maxFile = 1 << 20

// file is what was found of a cluster's configuration.
type file struct {
	sum   [sha256.Size]byte
	fault error // of reading it; there is no sum then
}

// files returns the clusters that the directory names, nil if it cannot be read, and all that is
// wrong. Other files, such as certificates, are ignored; so is this cluster's own, as one directory
// may serve all clusters. One that cannot be read may be a cluster's.
func (m *Mesh) files() (map[string]file, error) {
	out := map[string]file{}
	entries, err := os.ReadDir(m.p.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return out, nil // none yet: an optional Secret
	}
	if err != nil {
		return nil, err
	}
	var faults []string
	for _, e := range entries {
		name := e.Name()
		if len(name) > maxName || !nameForm.MatchString(name) || name == m.p.Name {
			continue
		}
		data, err := read(filepath.Join(m.p.Dir, name))
		switch {
		case errors.Is(err, fs.ErrNotExist):
		case err != nil:
			out[name] = file{fault: err}
			faults = append(faults, err.Error())
		case strings.Contains(string(data), "endpoints:"):
			out[name] = file{sum: sha256.Sum256(data)}
		}
	}
	if len(faults) > 0 {
		return out, errors.New(strings.Join(faults, "; "))
	}
	return out, nil
}

// read returns the content of a file, nothing if it is a directory or the like.
func read(path string) ([]byte, error) {
	info, err := os.Stat(path) // a link, in a mounted Secret
	if err != nil || !info.Mode().IsRegular() {
		return nil, err
	}
	if info.Size() > maxFile {
		return nil, fmt.Errorf("%s has %d bytes: more than %d are no configuration", path, info.Size(), maxFile)
	}
	return os.ReadFile(path)
}

// WaitSynced waits until every cluster that was configured when the directory could first be read
// was observed in full.
func (m *Mesh) WaitSynced(ctx context.Context) error {
	select {
	case <-m.scanned:
	case <-ctx.Done():
		m.mu.Lock()
		defer m.mu.Unlock()
		return fmt.Errorf("waiting for the list of other clusters (%s): %w", cmp.Or(m.fault, m.p.Dir), context.Cause(ctx))
	}
	for {
		m.mu.Lock()
		moved := m.moved
		var waiting []string
		for name, r := range m.remotes {
			if !r.snapshot().Ready {
				waiting = append(waiting, name)
			}
		}
		m.mu.Unlock()
		if len(waiting) == 0 {
			return nil
		}
		select {
		case <-moved:
		case <-ctx.Done():
			slices.Sort(waiting)
			return fmt.Errorf("waiting for clusters %s: %w", strings.Join(waiting, ", "), context.Cause(ctx))
		}
	}
}

// notify wakes who waits for a status. The caller holds mu.
func (m *Mesh) notify() {
	close(m.moved)
	m.moved = make(chan struct{})
}
