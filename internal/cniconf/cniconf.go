// Package cniconf puts the CNI configuration that makes the container runtime call Hawser's plugin
// into the runtime's directory, keeps it there while the agent runs, and takes it away again.
//
// The runtime takes the first file of the directory in lexical order. With Config.Exclusive the
// files of other plugins are therefore renamed, so that no pod slips to them; Remove gives them
// their names back.
//
// A Manager is safe for concurrent use. It starts no goroutine; Run watches the directory in the
// caller's.
package cniconf

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/validate"
)

// backupSuffix is put behind the names of others' files; it is the one Cilium uses, so that either
// restores what the other renamed.
const backupSuffix = ".cilium_bak"

// maxConfBytes bounds a configuration that is read.
const maxConfBytes = 1 << 20

// Config is what to write and where.
type Config struct {
	// ReadPath is a file whose content is used instead of the generated configuration.
	ReadPath string
	// WritePath is where the configuration goes once the agent is ready, such as
	// /etc/cni/net.d/05-cilium.conflist; empty writes nothing.
	WritePath string
	// Exclusive renames the configurations of other plugins in the directory of WritePath.
	Exclusive bool
	// ChainingMode must be "none".
	ChainingMode string
	// LogFile is where the plugin logs; Debug makes it log more.
	LogFile string
	Debug   bool
	// SocketPath is the agent's socket if it is not the default one.
	SocketPath string
	// Plugin is the file name of the plugin.
	Plugin string
}

// Defaults fills in the fields that are empty.
func (c *Config) Defaults() {
	c.ChainingMode = cmp.Or(c.ChainingMode, "none")
	c.LogFile = cmp.Or(c.LogFile, "/var/run/cilium/cilium-cni.log")
	c.Plugin = cmp.Or(c.Plugin, "hawser-cni")
}

// Flags registers the flags that the agent gives its users. Call Defaults first.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.ReadPath, "read-cni-conf", c.ReadPath, "CNI configuration to use instead of the generated one")
	fs.StringVar(&c.WritePath, "write-cni-conf-when-ready", c.WritePath, "where to write the CNI configuration once pods can be attached")
	fs.BoolVar(&c.Exclusive, "cni-exclusive", c.Exclusive, "move the CNI configurations of other plugins aside")
	fs.StringVar(&c.ChainingMode, "cni-chaining-mode", c.ChainingMode, "chaining with other CNI plugins: none")
	fs.StringVar(&c.LogFile, "cni-log-file", c.LogFile, "log file of the CNI plugin")
}

// Validate reports all faults of c.
func (c Config) Validate() error {
	var errs validate.Errors
	errs.If(c.ChainingMode != "none", "cni-chaining-mode %q is not supported: only none is", c.ChainingMode)
	if c.WritePath != "" {
		errs.If(!filepath.IsAbs(c.WritePath), "write-cni-conf-when-ready %q is not an absolute path", c.WritePath)
		errs.If(!isConf(c.WritePath), "write-cni-conf-when-ready %q: the runtime reads only .conflist, .conf and .json", c.WritePath)
	}
	errs.If(c.WritePath != "" && c.WritePath == c.ReadPath, "read-cni-conf and write-cni-conf-when-ready are the same file %s", c.ReadPath)
	return errs.Err()
}

func isConf(name string) bool {
	return slices.Contains([]string{".conflist", ".conf", ".json"}, filepath.Ext(name))
}

type plugin struct {
	Type   string `json:"type"`
	Debug  bool   `json:"enable-debug"`
	Log    string `json:"log-file,omitempty"`
	Socket string `json:"socket-path,omitempty"`
}

type conflist struct {
	CNIVersion  string   `json:"cniVersion"`
	CNIVersions []string `json:"cniVersions"`
	Name        string   `json:"name"`
	Plugins     []plugin `json:"plugins"`
}

// single is the configuration of one plugin, which is what runtimes read from every file that is no
// .conflist.
type single struct {
	CNIVersion string `json:"cniVersion"`
	Name       string `json:"name"`
	plugin
}

// Render returns the generated configuration, in the form that runtimes expect in WritePath. The
// network keeps the name "cilium" under which runtimes know the pods of nodes that ran Cilium.
//
// A list names version 1.1.0 besides, from which on runtimes call STATUS and GC. Those on libcni
// 1.2 and newer go by the latest of the versions that they know; older ones do not read the key,
// and would not understand the result of an ADD by 1.1.0. One plugin has no such key.
func (c Config) Render() []byte {
	const cniVersion, name = "1.0.0", "cilium"
	p := plugin{Type: c.Plugin, Debug: c.Debug, Log: c.LogFile, Socket: c.SocketPath}
	var conf any = conflist{CNIVersion: cniVersion, CNIVersions: []string{cniVersion, "1.1.0"}, Name: name, Plugins: []plugin{p}}
	if !isList(c.WritePath) {
		conf = single{CNIVersion: cniVersion, Name: name, plugin: p}
	}
	b, err := json.MarshalIndent(conf, "", "  ")
	if err != nil {
		panic(err) // strings and booleans only
	}
	return append(b, '\n')
}

// isList reports whether runtimes expect a list of plugins in the file: by its name. One that is
// written nowhere is a list, too.
func isList(path string) bool { return path == "" || filepath.Ext(path) == ".conflist" }

// formed returns a configuration in the form that runtimes expect in the file at path: a list of
// plugins, or one plugin.
func formed(content []byte, path string) ([]byte, error) {
	var conf map[string]json.RawMessage
	if err := json.Unmarshal(content, &conf); err != nil {
		return nil, err
	}
	var name, kind string
	var plugins []map[string]json.RawMessage
	for key, into := range map[string]any{"name": &name, "type": &kind, "plugins": &plugins} {
		if raw, ok := conf[key]; ok {
			if err := json.Unmarshal(raw, into); err != nil {
				return nil, fmt.Errorf("%s: %w", key, err)
			}
		}
	}
	switch {
	case name == "":
		return nil, errors.New("it names no network")
	case len(plugins) == 0 && kind == "":
		return nil, errors.New("it names no plugin")
	case isList(path) == (len(plugins) > 0):
		return content, nil
	case len(plugins) > 1:
		return nil, fmt.Errorf("it names %d plugins, and runtimes read one from %s: write it to a .conflist", len(plugins), filepath.Base(path))
	case !isList(path) && conf["cniVersion"] == nil && conf["cniVersions"] != nil:
		return nil, fmt.Errorf("it has cniVersions only, which runtimes do not read from %s: add cniVersion, or write it to a .conflist", filepath.Base(path))
	}
	out := map[string]any{}
	for _, key := range []string{"name", "cniVersion", "cniVersions"} { // of the network, in either form
		if v, ok := conf[key]; ok {
			out[key] = v
			delete(conf, key)
		}
	}
	if isList(path) {
		out["plugins"] = []map[string]json.RawMessage{conf}
	} else {
		for key, v := range plugins[0] {
			out[key] = v
		}
	}
	b, err := json.MarshalIndent(out, "", "  ")
	return append(b, '\n'), err
}

// Manager keeps one configuration file in place.
type Manager struct {
	cfg Config
	log *slog.Logger
	// look is how often the directory is read although nothing was notified.
	look time.Duration

	mu     sync.Mutex
	active bool  // Install was called, Remove was not
	err    error // of the last attempt
}

// ErrMissing means that there is no configuration at all: the runtime does not know of the plugin.
var ErrMissing = errors.New("no CNI configuration is in place, so that no pod can start")

// New validates cfg.
func New(cfg Config, log *slog.Logger) (*Manager, error) {
	cfg.Defaults()
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("CNI configuration: %w", err)
	}
	return &Manager{cfg: cfg, log: log, look: lookInterval}, nil
}

// content is what WritePath should hold.
func (m *Manager) content() ([]byte, error) {
	if m.cfg.ReadPath == "" {
		return m.cfg.Render(), nil
	}
	f, err := os.Open(m.cfg.ReadPath)
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration: %w", err)
	}
	defer f.Close()
	b, err := io.ReadAll(io.LimitReader(f, maxConfBytes+1))
	if err != nil {
		return nil, fmt.Errorf("read CNI configuration %s: %w", m.cfg.ReadPath, err)
	}
	if len(b) > maxConfBytes {
		return nil, fmt.Errorf("CNI configuration %s is longer than %d bytes", m.cfg.ReadPath, maxConfBytes)
	}
	if b, err = formed(b, m.cfg.WritePath); err != nil {
		return nil, fmt.Errorf("CNI configuration %s: %w", m.cfg.ReadPath, err)
	}
	return b, nil
}

// Sections returns the sections of the plugin's own configuration in the file that c reads: those
// of an IPAM, and of clouds, are the agent's to go by. Without a file there are none.
func (c Config) Sections() (map[string]json.RawMessage, error) {
	if c.ReadPath == "" {
		return nil, nil
	}
	c.Defaults()
	c.WritePath = "" // a list
	content, err := (&Manager{cfg: c}).content()
	if err != nil {
		return nil, err
	}
	var list struct {
		Plugins []map[string]json.RawMessage `json:"plugins"`
	}
	if err := json.Unmarshal(content, &list); err != nil {
		return nil, fmt.Errorf("CNI configuration %s: %w", c.ReadPath, err)
	}
	for _, p := range list.Plugins {
		var kind string
		if json.Unmarshal(p["type"], &kind) == nil && (kind == c.Plugin || kind == fieldPlugin) {
			return p, nil
		}
	}
	return nil, fmt.Errorf("CNI configuration %s: it names no plugin %s", c.ReadPath, c.Plugin)
}

// fieldPlugin is the name of the plugin in Cilium's configurations.
const fieldPlugin = "cilium-cni"

// Install writes the configuration if it is not there already and renames others' if asked to.
// Call it when the agent is ready to serve the plugin. An error is [ErrMissing] if there is none
// afterwards; else the one of before is there still.
func (m *Manager) Install() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active = true
	return m.keep()
}

// keep is called with mu held.
func (m *Manager) keep() error {
	if m.cfg.WritePath == "" {
		return nil
	}
	m.err = m.install()
	if _, err := os.Stat(m.cfg.WritePath); err != nil && m.err != nil {
		m.err = fmt.Errorf("%w: %w", ErrMissing, m.err)
	}
	return m.err
}

func (m *Manager) install() error {
	content, err := m.content()
	if err != nil {
		return err
	}
	have, err := os.ReadFile(m.cfg.WritePath)
	if err != nil || !bytes.Equal(have, content) {
		if err := writeAtomically(m.cfg.WritePath, content); err != nil {
			return fmt.Errorf("write CNI configuration: %w", err)
		}
		m.log.Info("Wrote the CNI configuration", "path", m.cfg.WritePath)
	}
	if !m.cfg.Exclusive {
		return nil
	}
	// Only now, so that there never is a moment without any configuration.
	others, err := m.others()
	errs := []error{err}
	for _, path := range others {
		if err := os.Rename(path, path+backupSuffix); err != nil && !errors.Is(err, os.ErrNotExist) {
			errs = append(errs, fmt.Errorf("move another plugin's CNI configuration aside: %w", err))
			continue
		}
		m.log.Info("Moved another plugin's CNI configuration aside", "path", path, "to", path+backupSuffix)
	}
	return errors.Join(errs...)
}

// others lists the configurations in the directory that are not ours.
func (m *Manager) others() ([]string, error) {
	dir := filepath.Dir(m.cfg.WritePath)
	entries, err := os.ReadDir(dir)
	if err != nil {
		return nil, fmt.Errorf("list CNI configurations: %w", err)
	}
	var out []string
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if e.IsDir() || !isConf(e.Name()) || path == filepath.Clean(m.cfg.WritePath) || path == filepath.Clean(m.cfg.ReadPath) {
			continue
		}
		out = append(out, path)
	}
	return out, nil
}

// ErrForeign means that the configuration is another plugin's.
var ErrForeign = errors.New("another plugin's")

// Remove takes the configuration away and gives others' their names back, those first. It is for
// uninstalling, not for an agent's restart. Nothing being there is not an error. If another plugin
// has written the file since, nothing is changed, and the error is [ErrForeign]: files that are
// renamed may have been renamed by that plugin.
func (m *Manager) Remove() error {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.active, m.err = false, nil
	if m.cfg.WritePath == "" {
		return nil
	}
	if err := m.checkOwn(); err != nil {
		return err
	}
	var errs []error
	dir := filepath.Dir(m.cfg.WritePath)
	entries, err := os.ReadDir(dir)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("list CNI configurations: %w", err))
	}
	for _, e := range entries {
		name, isBackup := strings.CutSuffix(e.Name(), backupSuffix)
		if !isBackup || filepath.Join(dir, name) == filepath.Clean(m.cfg.WritePath) {
			continue
		}
		// Another program may have created the file since; that one is newer.
		if _, err := os.Lstat(filepath.Join(dir, name)); err == nil {
			continue
		}
		if err := os.Rename(filepath.Join(dir, e.Name()), filepath.Join(dir, name)); err != nil {
			errs = append(errs, fmt.Errorf("restore another plugin's CNI configuration: %w", err))
		}
	}
	if err := os.Remove(m.cfg.WritePath); err != nil && !errors.Is(err, os.ErrNotExist) {
		errs = append(errs, fmt.Errorf("remove the CNI configuration: %w", err))
	}
	return errors.Join(errs...)
}

// checkOwn reports that the file names other plugins, and not the one of this product.
func (m *Manager) checkOwn() error {
	content, err := os.ReadFile(m.cfg.WritePath)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the CNI configuration: %w", err)
	}
	type named struct {
		Type string `json:"type"`
	}
	var conf struct {
		named
		Plugins []named `json:"plugins"`
	}
	if err := json.Unmarshal(content, &conf); err != nil {
		return fmt.Errorf("%s is no CNI configuration and is left as it is: %w", m.cfg.WritePath, err)
	}
	names := []string{conf.Type}
	for _, p := range conf.Plugins {
		names = append(names, p.Type)
	}
	if slices.Contains(names, m.cfg.Plugin) {
		return nil
	}
	return fmt.Errorf("%s is %w (%s) and is left as it is", m.cfg.WritePath, ErrForeign, strings.TrimLeft(strings.Join(names, " "), " "))
}

// Status returns the path that is kept and the outcome of the last attempt; an empty path means
// that no configuration is wanted or Install was not called yet.
func (m *Manager) Status() (path string, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.active {
		return "", nil
	}
	return m.cfg.WritePath, m.err
}

// quietTime is how long the directory must be unchanged before it is read.
const quietTime = 50 * time.Millisecond

// lookInterval is how often the directory is read although nothing was notified: after a failure,
// where it cannot be watched, and where it is another one than the one that is watched.
const lookInterval = 10 * time.Second

// Run keeps the configuration in place after Install until ctx ends, and returns nil then: a file
// that is removed or changed is written again, one that another plugin adds is moved aside.
func (m *Manager) Run(ctx context.Context) error {
	if m.cfg.WritePath == "" {
		<-ctx.Done()
		return nil
	}
	var events <-chan fsnotify.Event
	var faults <-chan error
	if w, err := m.watch(); err != nil {
		m.log.Warn("The directory of CNI configurations cannot be watched and is polled instead", "interval", m.look, "error", err)
	} else {
		defer w.Close()
		events, faults = w.Events, w.Errors
	}
	timer := time.NewTimer(quietTime) // whatever changed before the watch
	defer timer.Stop()
	for {
		select {
		case <-ctx.Done():
			return nil
		case err, ok := <-faults:
			if !ok {
				return nil
			}
			m.log.Warn("Lost track of CNI configurations, looking again", "error", err)
			timer.Reset(quietTime)
		case ev, ok := <-events:
			if !ok {
				return nil
			}
			if !m.isTemporary(ev.Name) {
				timer.Reset(quietTime)
			}
		case <-timer.C:
			m.mu.Lock()
			if m.active {
				before := m.err
				if err := m.keep(); err != nil && (before == nil || before.Error() != err.Error()) {
					m.log.Error("Could not keep the CNI configuration in place; trying again", "error", err)
				}
			}
			m.mu.Unlock()
			timer.Reset(m.look)
		}
	}
}

// isTemporary reports whether a file is one that this process makes on the way to the
// configuration. On a full disk it comes and goes with each attempt, which must not be the cause of
// the next.
func (m *Manager) isTemporary(path string) bool {
	name := filepath.Base(path)
	return strings.HasPrefix(name, "."+filepath.Base(m.cfg.WritePath)+".") && strings.HasSuffix(name, ".tmp")
}

// watch follows the directories of both files. It must be closed.
func (m *Manager) watch() (*fsnotify.Watcher, error) {
	w, err := fsnotify.NewWatcher()
	if err != nil {
		return nil, err
	}
	dir := filepath.Dir(m.cfg.WritePath)
	err = os.MkdirAll(dir, 0o755)
	if err == nil {
		err = w.Add(dir)
	}
	if err == nil && m.cfg.ReadPath != "" {
		err = w.Add(filepath.Dir(m.cfg.ReadPath))
	}
	if err != nil {
		w.Close()
		return nil, err
	}
	return w, nil
}

// writeAtomically replaces path by a file that is whole from the first moment.
func writeAtomically(path string, content []byte) error {
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return atomicfile.Write(path, content, 0o644, atomicfile.PowerLoss)
}
