package cniconf

import (
	"context"
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
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
		"cniVersion": "1.0.0", "name": "cilium",
		"plugins": []any{map[string]any{
			"type": "hawser-cni", "enable-debug": true,
			"log-file": "/var/run/cilium/cilium-cni.log", "socket-path": "/run/x.sock",
		}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
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

func TestReadPath(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	source, target := filepath.Join(dir, "source"), filepath.Join(dir, "net.d", "05.conflist")
	m := newManager(t, Config{ReadPath: source, WritePath: target})
	for content, want := range map[string]string{
		"{":                                 "unexpected end",
		`{}`:                                "names no network",
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
	if got := files(t, filepath.Dir(target))["05.conflist"]; got != `{"name":"mine","type":"x"}` {
		t.Errorf("wrote %q", got)
	}
	os.Remove(source)
	if err := m.Install(); err == nil {
		t.Error("no error without the source")
	}
}

func TestRunKeepsTheFile(t *testing.T) {
	defer goleak.VerifyNone(t)
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
