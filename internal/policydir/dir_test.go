package policydir

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

const header = "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\n"

// cnp returns a policy that lets app=from reach app=web.
func cnp(name, from string) string {
	return fmt.Sprintf(`%smetadata: {name: %s}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: %s}}]
`, header, name, from)
}

func write(t *testing.T, dir, name, content string) {
	t.Helper()
	// Written beside and moved, so that no test depends on what a half-written file does.
	tmp := filepath.Join(dir, "."+name+".tmp")
	if err := os.WriteFile(tmp, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
		t.Fatal(err)
	}
}

// follow runs a Dir and returns the channel of what it applies.
func follow(t *testing.T, cfg Config) (*Dir, <-chan []policy.Change, logged) {
	t.Helper()
	log := make(logged, 1000)
	d, err := New(cfg, slog.New(log))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ch := make(chan []policy.Change, 100)
	done := make(chan error, 1)
	go func() { done <- d.Run(ctx, func(c []policy.Change) { ch <- c }) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return d, ch, log
}

func owners(changes []policy.Change) []string {
	out := []string{}
	for _, c := range changes {
		s := string(c.Owner)
		if c.Rules == nil {
			s = "-" + s
		}
		out = append(out, s)
	}
	return out
}

func expect(t *testing.T, ch <-chan []policy.Change, want ...string) {
	t.Helper()
	select {
	case c := <-ch:
		if got := owners(c); !slices.Equal(got, want) {
			t.Fatalf("applied %q, want %q", got, want)
		}
	case <-time.After(20 * time.Second):
		t.Fatalf("nothing was applied, want %q", want)
	}
}

// logged is a log handler that signals every record. A record is written while the Dir's state is
// locked, so that Status then shows what the record was about.
type logged chan string

func (l logged) Enabled(context.Context, slog.Level) bool { return true }
func (l logged) WithAttrs([]slog.Attr) slog.Handler       { return l }
func (l logged) WithGroup(string) slog.Handler            { return l }
func (l logged) Handle(_ context.Context, r slog.Record) error {
	l <- r.Message
	return nil
}

// await waits for a record that starts with the text, and returns the state after it.
func (l logged) await(t *testing.T, d *Dir, text string) ([]FileStatus, error) {
	t.Helper()
	timeout := time.After(20 * time.Second)
	for {
		select {
		case msg := <-l:
			if strings.HasPrefix(msg, text) {
				return d.Status()
			}
		case <-timeout:
			t.Fatalf("%q is never logged", text)
		}
	}
}

// find returns the state of one file.
func find(t *testing.T, list []FileStatus, name string) FileStatus {
	t.Helper()
	i := slices.IndexFunc(list, func(f FileStatus) bool { return f.File == name })
	if i < 0 {
		t.Fatalf("%s has no status: %+v", name, list)
	}
	return list[i]
}

func TestFollow(t *testing.T) {
	t.Parallel()
	for _, mode := range []string{"notified", "polled"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			write(t, dir, "a.yaml", cnp("one", "x")+"---\n"+cnp("two", "x"))
			write(t, dir, "b.yaml", "kind: [broken")
			write(t, dir, "notes.txt", "not a policy")
			cfg := Config{Path: dir, Poll: time.Hour, Settle: time.Millisecond}
			if mode == "polled" {
				cfg.Poll, cfg.Settle, cfg.Gather = 5*time.Millisecond, time.Hour, time.Hour
			}
			d, ch, log := follow(t, cfg)
			expect(t, ch, "a.yaml/default/one", "a.yaml/default/two")
			list, _ := log.await(t, d, "Policy file is faulty")
			if st := find(t, list, "b.yaml"); st.Err == nil || st.Policies != nil {
				t.Errorf("the broken file is reported as %+v", st)
			}

			write(t, dir, "b.yaml", cnp("three", "x"))
			expect(t, ch, "b.yaml/default/three")

			// A policy that leaves a file is removed; one that stays is applied as it is now.
			write(t, dir, "a.yaml", cnp("two", "w"))
			expect(t, ch, "-a.yaml/default/one", "a.yaml/default/two")

			// A fault changes nothing, and is reported with what stays in force.
			write(t, dir, "a.yaml", strings.Replace(cnp("two", "z"), "ingress", "ingres", 1))
			list, _ = log.await(t, d, "Policy file is faulty")
			st := find(t, list, "a.yaml")
			if !slices.Equal(st.Policies, []policy.Owner{"a.yaml/default/two"}) || st.Failed.IsZero() || st.Loaded.IsZero() {
				t.Errorf("status of the faulty file: %+v", st)
			}
			if !strings.Contains(st.Err.Error(), "spec.ingres: is not a field") {
				t.Errorf("the fault is not named: %v", st.Err)
			}
			// So is a file that is empty for a moment.
			write(t, dir, "b.yaml", "")
			list, _ = log.await(t, d, "Policy file is faulty")
			if st := find(t, list, "b.yaml"); st.Err == nil || len(st.Policies) != 1 {
				t.Errorf("status of the empty file: %+v", st)
			}

			if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
				t.Fatal(err)
			}
			expect(t, ch, "-b.yaml/default/three")
			write(t, dir, "a.yaml", cnp("two", "z"))
			expect(t, ch, "a.yaml/default/two")
			if list, err := d.Status(); err != nil || len(list) != 1 || len(list[0].Policies) != 1 {
				t.Errorf("in force are %+v (%v), want one policy", list, err)
			}
		})
	}
}

// TestWhole: nothing is read while a file is being written, and everything as soon as its writer is
// done.
func TestWhole(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	_, ch, _ := follow(t, Config{Path: dir, Poll: time.Hour, Settle: time.Hour, Gather: time.Millisecond})
	expect(t, ch)
	f, err := os.Create(filepath.Join(dir, "a.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	// The first policy of the file is whole, the second is not there yet.
	if _, err := f.WriteString(cnp("one", "x") + "---\n"); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "b.tmp", cnp("other", "x"))
	if err := os.Rename(filepath.Join(dir, "b.tmp"), filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteString(cnp("two", "x")); err != nil {
		t.Fatal(err)
	}
	if err := f.Close(); err != nil {
		t.Fatal(err)
	}
	expect(t, ch, "a.yaml/default/one", "a.yaml/default/two", "b.yaml/default/other")
	write(t, dir, "c.yaml", cnp("three", "x"))
	expect(t, ch, "c.yaml/default/three")
	if err := os.Remove(filepath.Join(dir, "b.yaml")); err != nil {
		t.Fatal(err)
	}
	expect(t, ch, "-b.yaml/default/other")
}

func TestMissingDirectory(t *testing.T) {
	t.Parallel()
	d, err := New(Config{Path: filepath.Join(t.TempDir(), "nothing"), Poll: time.Hour}, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Run(t.Context(), func([]policy.Change) { t.Error("something was applied") }); err == nil {
		t.Fatal("a missing directory is no error at the start")
	}
}

func TestDirectoryVanishes(t *testing.T) {
	t.Parallel()
	dir := filepath.Join(t.TempDir(), "d")
	if err := os.Mkdir(dir, 0o700); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "a.yaml", cnp("one", "x"))
	d, ch, log := follow(t, Config{Path: dir, Poll: 5 * time.Millisecond})
	expect(t, ch, "a.yaml/default/one")
	if err := os.Rename(dir, dir+".away"); err != nil {
		t.Fatal(err)
	}
	files, err := log.await(t, d, "Policy directory cannot be read")
	if err == nil || len(files) != 1 || len(files[0].Policies) != 1 {
		t.Errorf("policies are lost with the directory: %+v, %v", files, err)
	}
	if err := os.Rename(dir+".away", dir); err != nil {
		t.Fatal(err)
	}
	write(t, dir, "c.yaml", cnp("three", "x"))
	expect(t, ch, "c.yaml/default/three")
}

func TestConfigMapMount(t *testing.T) {
	t.Parallel()
	// A mounted ConfigMap: files are links through a link to a directory, which is swapped.
	dir := t.TempDir()
	for _, v := range []string{"v1", "v2"} {
		if err := os.Mkdir(filepath.Join(dir, ".."+v), 0o700); err != nil {
			t.Fatal(err)
		}
		write(t, filepath.Join(dir, ".."+v), "a.yaml", cnp(v, "x"))
	}
	link := func(target, name string) {
		tmp := filepath.Join(dir, ".tmp")
		if err := os.Symlink(target, tmp); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(tmp, filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	link("..v1", "..data")
	link("..data/a.yaml", "a.yaml")
	_, ch, _ := follow(t, Config{Path: dir, Poll: time.Hour, Settle: time.Millisecond})
	expect(t, ch, "a.yaml/default/v1")
	link("..v2", "..data")
	expect(t, ch, "-a.yaml/default/v1", "a.yaml/default/v2")
}

// TestNeverGood: of a file that was never good what can be enforced is in force; once it was good,
// its last good version.
func TestNeverGood(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	l7 := header + `metadata: {name: one}
spec: {endpointSelector: {matchLabels: {app: web}}, ingress: [{toPorts: [{ports: [{port: "80"}], rules: {http: [{path: /}]}}]}]}
`
	write(t, dir, "a.yaml", l7+"---\n"+cnp("two", "x")+"---\n"+strings.Replace(cnp("three", "x"), "fromEndpoints", "fromEndpoint", 1))
	d, ch, log := follow(t, Config{Path: dir, Poll: time.Hour, Settle: time.Millisecond})
	select {
	case changes := <-ch:
		if got := owners(changes); !slices.Equal(got, []string{"a.yaml/default/one", "a.yaml/default/three", "a.yaml/default/two"}) {
			t.Fatalf("applied %q", got)
		}
		for i, faults := range []int{1, 1, 0} {
			r := changes[i].Rules[0]
			if len(r.Faults) != faults || !r.DefaultDeny[datapath.Ingress] {
				t.Errorf("%s: %+v", changes[i].Owner, r)
			}
			if c := r.Clauses[0]; faults > 0 && len(c.Ports) > 0 && (c.AllPeers || len(c.Peers) > 0) {
				t.Errorf("%s grants %+v", changes[i].Owner, c)
			}
		}
	case <-time.After(20 * time.Second):
		t.Fatal("nothing was applied")
	}
	list, _ := log.await(t, d, "Policy file is faulty")
	if st := find(t, list, "a.yaml"); st.Err == nil || len(st.Policies) != 3 || !st.Loaded.IsZero() || st.Failed.IsZero() {
		t.Errorf("status %+v", st)
	}
	write(t, dir, "a.yaml", cnp("two", "x"))
	expect(t, ch, "-a.yaml/default/one", "-a.yaml/default/three", "a.yaml/default/two")
	write(t, dir, "a.yaml", l7)
	list, _ = log.await(t, d, "Policy file is faulty")
	if st := find(t, list, "a.yaml"); !slices.Equal(st.Policies, []policy.Owner{"a.yaml/default/two"}) || st.Loaded.IsZero() {
		t.Errorf("status %+v", st)
	}
}

// TestManyFaults: of a file with thousands of faults or warnings the log has the first.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write(t, dir, "a.yaml", header+"metadata: {name: faults}\nspec: {endpointSelector: {}, ingress: [{fromCIDR: ["+strings.Repeat("nonsense, ", 5000)+"]}]}\n")
	write(t, dir, "b.yaml", header+"metadata: {name: warnings}\nspec: {endpointSelector: {}, ingress: [{fromCIDR: [], fromEntities: [all]}"+strings.Repeat(", {fromCIDR: [], fromEntities: [all]}", 5000)+"]}\n")
	var log bytes.Buffer
	d, err := New(Config{Path: dir, Poll: time.Hour}, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := d.scan(); err != nil {
		t.Fatal(err)
	}
	for _, what := range []string{"nonsense", "is empty, so the entry"} {
		if n := strings.Count(log.String(), what); n == 0 || n > 20 {
			t.Errorf("the log has %q %d times", what, n)
		}
	}
	for _, more := range []string{"and 4990 more", "and 4991 more"} {
		if !strings.Contains(log.String(), more) {
			t.Errorf("the log has no %q", more)
		}
	}
}
