package cniconf

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/testenv"
)

func newManager(t *testing.T, cfg Config) *Manager {
	t.Helper()
	m, err := New(cfg, slog.New(slog.NewTextHandler(t.Output(), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return m
}

func write(t *testing.T, path, content string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
}

// files maps the names in dir to their content.
func files(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		b, err := os.ReadFile(filepath.Join(dir, e.Name()))
		if err != nil {
			t.Fatal(err)
		}
		out[e.Name()] = string(b)
	}
	return out
}

func TestRender(t *testing.T) {
	t.Parallel()
	cfg := Config{SocketPath: "/run/x.sock", Debug: true}
	cfg.Defaults()
	var got any
	if err := json.Unmarshal(cfg.Render(), &got); err != nil {
		t.Fatal(err)
	}
	want := map[string]any{
		"cniVersion": "1.0.0", "cniVersions": []any{"1.0.0", "1.1.0"}, "name": "cilium",
		"plugins": []any{map[string]any{
			"type": "hawser-cni", "enable-debug": true,
			"log-file": "/var/run/cilium/cilium-cni.log", "socket-path": "/run/x.sock",
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

// TestVersionOfFile: what is generated for a list is of version 1.1.0, with which runtimes call
// STATUS and GC, and what a user has written is of the versions named there. Runtimes that do not
// know cniVersions read cniVersion, of a version that they know.
func TestVersionOfFile(t *testing.T) {
	t.Parallel()
	const plugin = `"name":"n","type":"hawser-cni"`
	list := func(versions string) string { return `{` + versions + `"name":"n","plugins":[{"type":"hawser-cni"}]}` }
	for _, tt := range []struct{ file, source, version, old, fault string }{
		{"05.conflist", "", "1.1.0", "1.0.0", ""},
		{"05.conf", "", "1.0.0", "1.0.0", ""},
		{"05.conflist", list(`"cniVersion":"1.0.0",`), "1.0.0", "1.0.0", ""},
		{"05.conflist", list(`"cniVersion":"1.1.0",`), "1.1.0", "1.1.0", ""},
		{"05.conflist", list(`"cniVersions":["0.4.0","1.1.0"],`), "1.1.0", "", ""},
		{"05.conflist", list(``), "", "", ""},
		{"05.conf", list(`"cniVersion":"0.4.0","cniVersions":["0.4.0","1.1.0"],`), "0.4.0", "0.4.0", ""},
		{"05.conf", list(`"cniVersions":["0.4.0","1.1.0"],`), "", "", "add cniVersion"},
		{"05.conflist", `{"cniVersion":"1.1.0",` + plugin + `}`, "1.1.0", "1.1.0", ""},
		{"05.conflist", `{"cniVersion":"0.4.0","cniVersions":["1.1.0"],` + plugin + `}`, "1.1.0", "0.4.0", ""},
		{"05.conf", `{"cniVersion":"1.1.0",` + plugin + `}`, "1.1.0", "1.1.0", ""},
	} {
		dir := t.TempDir()
		cfg := Config{WritePath: filepath.Join(dir, "net.d", tt.file)}
		if tt.source != "" {
			cfg.ReadPath = filepath.Join(dir, "source")
			write(t, cfg.ReadPath, tt.source)
		}
		err := newManager(t, cfg).Install()
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%s of %s: error %v, want one saying %q", tt.file, tt.source, err, tt.fault)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s of %s: %v", tt.file, tt.source, err)
			continue
		}
		var old struct{ CNIVersion string }
		if err := json.Unmarshal([]byte(files(t, filepath.Dir(cfg.WritePath))[tt.file]), &old); err != nil || old.CNIVersion != tt.old {
			t.Errorf("%s of %s: older runtimes read version %q, want %q; %v", tt.file, tt.source, old.CNIVersion, tt.old, err)
		}
		if got, err := readVersion(cfg.WritePath); err != nil || got != tt.version {
			t.Errorf("%s of %s: runtimes read version %q, want %q; %v", tt.file, tt.source, got, tt.version, err)
		}
	}
}

// readVersion reads the version of a configuration as runtimes do.
func readVersion(path string) (string, error) {
	if strings.HasSuffix(path, ".conflist") {
		l, err := libcni.ConfListFromFile(path)
		if err != nil {
			return "", err
		}
		return l.CNIVersion, nil
	}
	//lint:ignore SA1019 older runtimes read such files, and by this
	c, err := libcni.ConfFromFile(path)
	if err != nil {
		return "", err
	}
	//lint:ignore SA1019 as above
	l, err := libcni.ConfListFromConf(c)
	if err != nil {
		return "", err
	}
	return l.CNIVersion, nil
}

func TestInstallAndRemove(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "net.d")
	cfg := Config{WritePath: filepath.Join(dir, "05-cilium.conflist"), Exclusive: true}
	m := newManager(t, cfg)
	if path, err := m.Status(); path != "" || err != nil {
		t.Errorf("status before: %q, %v", path, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	others := map[string]string{"10-flannel.conflist": "f", "00-old.conf": "o", "x.json": "j", "README": "r"}
	for name, content := range others {
		write(t, filepath.Join(dir, name), content)
	}
	for range 2 { // a restart changes nothing
		if err := m.Install(); err != nil {
			t.Fatal(err)
		}
		full := cfg
		full.Defaults()
		want := map[string]string{
			"05-cilium.conflist": string(full.Render()), "10-flannel.conflist.cilium_bak": "f",
			"00-old.conf.cilium_bak": "o", "x.json.cilium_bak": "j", "README": "r",
		}
		if diff := cmp.Diff(want, files(t, dir)); diff != "" {
			t.Fatalf("installed (-want +got):\n%s", diff)
		}
	}
	if path, err := m.Status(); path != cfg.WritePath || err != nil {
		t.Errorf("status: %q, %v", path, err)
	}
	for range 2 {
		if err := m.Remove(); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(others, files(t, dir)); diff != "" {
			t.Fatalf("removed (-want +got):\n%s", diff)
		}
	}
}

// TestRemoveOfAnother: what another plugin has written by now, perhaps to a file of the same name,
// stays, and so do the files that it has renamed.
func TestRemoveOfAnother(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		content string
		stays   bool
	}{
		"a list of another":   {`{"cniVersion": "0.3.1", "name": "cilium", "plugins": [{"type": "cilium-cni"}, {"type": "portmap"}]}`, true},
		"one plugin, another": {`{"cniVersion": "0.3.1", "name": "cilium", "type": "cilium-cni"}`, true},
		"nonsense":            {`{"plugins"`, true},
		"a list of ours":      {`{"name": "cilium", "plugins": [{"type": "portmap"}, {"type": "hawser-cni", "x": {}}]}`, false},
		"one plugin, ours":    {`{"name": "cilium", "type": "hawser-cni"}`, false},
	} {
		dir := t.TempDir()
		before := map[string]string{"05-cilium.conflist": c.content, "10-other.conflist.cilium_bak": "o"}
		for file, content := range before {
			write(t, filepath.Join(dir, file), content)
		}
		err := newManager(t, Config{WritePath: filepath.Join(dir, "05-cilium.conflist")}).Remove()
		if !c.stays {
			before = map[string]string{"10-other.conflist": "o"}
		}
		if diff := cmp.Diff(before, files(t, dir)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if (err != nil) != c.stays || err != nil && !strings.Contains(err.Error(), filepath.Join(dir, "05-cilium.conflist")) {
			t.Errorf("%s: %v", name, err)
		}
		if foreign := errors.Is(err, ErrForeign); foreign != (c.stays && name != "nonsense") {
			t.Errorf("%s: it is another plugin's: %t, %v", name, foreign, err)
		}
	}
}

func TestReadPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "net.d", "05.conflist")
	m := newManager(t, Config{ReadPath: source, WritePath: target})
	for content, want := range map[string]string{
		"{":                                 "unexpected end",
		`{}`:                                "names no network",
		`{"name":"mine"}`:                   "names no plugin",
		`{"name":7,"type":"x"}`:             "name",
		strings.Repeat("x", maxConfBytes+1): "longer than",
	} {
		write(t, source, content)
		if err := m.Install(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one saying %q", err, want)
		}
		if _, err := m.Status(); err == nil {
			t.Error("the status hides the failure")
		}
	}
	write(t, source, `{"name":"mine","type":"x"}`)
	if err := m.Install(); err != nil {
		t.Fatal(err)
	}
	if l, err := libcni.ConfListFromFile(target); err != nil || l.Name != "mine" || len(l.Plugins) != 1 || l.Plugins[0].Network.Type != "x" {
		t.Errorf("wrote %q: %+v, %v", files(t, filepath.Dir(target))["05.conflist"], l, err)
	}
	os.Remove(source)
	if err := m.Install(); err == nil {
		t.Error("no error without the source")
	}
}

// TestFormOfFile reads what was written as runtimes do: a list from a .conflist, one plugin from
// any other file.
func TestFormOfFile(t *testing.T) {
	t.Parallel()
	const (
		one  = `{"cniVersion":"0.3.1","name":"n","type":"first","log-file":"/l","args":{"x":[1]}}`
		list = `{"cniVersion":"0.3.1","name":"n","plugins":[{"type":"first","log-file":"/l","args":{"x":[1]}}]}`
		two  = `{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"first"},{"type":"second"}]}`
	)
	for _, tt := range []struct{ file, source, plugin, fault string }{
		{"05.conflist", "", "hawser-cni", ""},
		{"05.conf", "", "hawser-cni", ""},
		{"05.json", "", "hawser-cni", ""},
		{"05.conflist", one, "first", ""},
		{"05.conflist", list, "first", ""},
		{"05.conflist", two, "first", ""},
		{"05.conf", one, "first", ""},
		{"05.conf", list, "first", ""},
		{"05.conf", two, "", "write it to a .conflist"},
	} {
		dir := t.TempDir()
		cfg := Config{WritePath: filepath.Join(dir, "net.d", tt.file)}
		if tt.source != "" {
			cfg.ReadPath = filepath.Join(dir, "source")
			write(t, cfg.ReadPath, tt.source)
		}
		err := newManager(t, cfg).Install()
		if tt.fault != "" {
			if err == nil || !strings.Contains(err.Error(), tt.fault) {
				t.Errorf("%s of %s: error %v, want one saying %q", tt.file, tt.source, err, tt.fault)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s of %s: %v", tt.file, tt.source, err)
			continue
		}
		var name, kind string
		var bytes []byte
		if strings.HasSuffix(tt.file, ".conflist") {
			var l *libcni.NetworkConfigList
			if l, err = libcni.ConfListFromFile(cfg.WritePath); err == nil {
				name, kind, bytes = l.Name, l.Plugins[0].Network.Type, l.Plugins[0].Bytes
			}
		} else {
			var c *libcni.PluginConfig
			//lint:ignore SA1019 older runtimes read such files, and by this
			if c, err = libcni.ConfFromFile(cfg.WritePath); err == nil {
				name, kind, bytes = c.Network.Name, c.Network.Type, c.Bytes
			}
		}
		if err != nil || kind != tt.plugin || name == "" || !strings.Contains(string(bytes), "log-file") && tt.source != two {
			t.Errorf("%s of %s: network %q, plugin %q (%s), %v", tt.file, tt.source, name, kind, bytes, err)
		}
	}
}

func TestRunKeepsTheFile(t *testing.T) {
	defer testenv.VerifyNone(t)
	dir := t.TempDir()
	target := filepath.Join(dir, "05.conflist")
	m := newManager(t, Config{WritePath: target, Exclusive: true})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	if err := m.Install(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, err := os.Stat(target); return err == nil })
	os.Remove(target)
	eventually(t, func() bool { _, err := os.Stat(target); return err == nil })
	other := filepath.Join(dir, "01-other.conf")
	write(t, other, "x")
	eventually(t, func() bool { _, err := os.Stat(other + backupSuffix); return err == nil })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// TestRunWithoutInotify: on a node that has no inotify instance left the configuration is kept in
// place all the same. The limit is that of a user namespace.
func TestRunWithoutInotify(t *testing.T) {
	const child = "HAWSER_TEST_NO_INOTIFY"
	if os.Getenv(child) == "" {
		if os.Geteuid() != 0 {
			t.Skip("needs root: a user namespace")
		}
		cmd := exec.CommandContext(t.Context(), "/proc/self/exe", "-test.run=^TestRunWithoutInotify$", "-test.v")
		cmd.Env = append(os.Environ(), child+"=1")
		all := []syscall.SysProcIDMap{{Size: 1}} // root is root there
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWUSER, UidMappings: all, GidMappings: all}
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "PASS: TestRunWithoutInotify") {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	if err := os.WriteFile("/proc/sys/user/max_inotify_instances", []byte("0"), 0); err != nil {
		t.Fatal(err)
	}
	target := filepath.Join(t.TempDir(), "05.conflist")
	m := newManager(t, Config{WritePath: target, Exclusive: true})
	m.look = 20 * time.Millisecond
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	if err := m.Install(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(target); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, err := os.Stat(target); return err == nil })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// lines counts what is logged.
type lines struct{ n atomic.Int64 }

func (l *lines) Write(b []byte) (int, error) {
	l.n.Add(1)
	return len(b), nil
}

// TestFullDisk: on a full disk the configuration of before stays, or the status says that there is
// none; attempts are made now and then, and one succeeds when there is room.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: a small filesystem")
	}
	dir := t.TempDir()
	if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=8k"); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(dir, 0); err != nil {
			t.Error(err)
		}
	})
	fill := filepath.Join(dir, "fill")
	if err := os.WriteFile(fill, make([]byte, 8<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	var log lines
	target := filepath.Join(dir, "05.conflist")
	m, err := New(Config{WritePath: target}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	m.look = 300 * time.Millisecond
	if err := m.Install(); !errors.Is(err, ErrMissing) || !errors.Is(err, unix.ENOSPC) {
		t.Fatalf("on a full disk: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- m.Run(ctx) }()
	time.Sleep(time.Second)
	if n := log.n.Load(); n > 6 {
		t.Errorf("%d lines of log in a second", n)
	}
	if _, err := m.Status(); !errors.Is(err, ErrMissing) {
		t.Errorf("the status: %v", err)
	}
	if err := os.Remove(fill); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { _, err := m.Status(); return err == nil })
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}

	// With one in place a failure is another thing.
	if err := os.WriteFile(target, []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(fill, make([]byte, 4<<10), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := m.Install(); err == nil || errors.Is(err, ErrMissing) {
		t.Errorf("with a configuration of before: %v", err)
	}
}

func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !ok() {
		if time.Now().After(deadline) {
			t.Fatal("did not happen within 10s")
		}
		time.Sleep(5 * time.Millisecond)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for want, cfg := range map[string]Config{
		"chaining-mode":        {ChainingMode: "aws-cni"},
		"not an absolute path": {WritePath: "x.conflist"},
		"reads only":           {WritePath: "/x.yaml"},
		"the same file":        {WritePath: "/x.conf", ReadPath: "/x.conf"},
	} {
		if _, err := New(cfg, slog.Default()); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want one saying %q", err, want)
		}
	}
}

// TestSections: of what is read the agent goes by the part of its own plugin.
func TestSections(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "in.json")
	for text, want := range map[string]string{
		`{"name": "n", "type": "hawser-cni", "ipam": {"pre-allocate": 4}}`:                                                       `{"pre-allocate": 4}`,
		`{"name": "n", "plugins": [{"type": "portmap", "ipam": {"a": 1}}, {"type": "cilium-cni", "ipam": {"min-allocate": 2}}]}`: `{"min-allocate": 2}`,
		`{"name": "n", "type": "hawser-cni"}`:                                                                                    "",
		`{"name": "n", "plugins": [{"type": "bridge"}]}`:                                                                         "error",
		`{"name": "n", "plugins": [{"type": ["hawser-cni"]}]}`:                                                                   "error",
		`{"plugins": [{"type": "hawser-cni"}]}`:                                                                                  "error",
		`{`:                                                                                                                      "error",
	} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		got, err := Config{ReadPath: path, WritePath: "/etc/cni/net.d/05-cilium.conf"}.Sections()
		if have := strings.Join(strings.Fields(string(got["ipam"])), " "); (err != nil) != (want == "error") || err == nil && strings.NewReplacer("{ ", "{", " }", "}").Replace(have) != want {
			t.Errorf("%s: %s, %v", text, got["ipam"], err)
		}
	}
	if got, err := (Config{}).Sections(); got != nil || err != nil {
		t.Errorf("without a file: %v, %v", got, err)
	}
	if _, err := (Config{ReadPath: filepath.Join(t.TempDir(), "gone")}).Sections(); err == nil {
		t.Error("a file that is not there")
	}
}
