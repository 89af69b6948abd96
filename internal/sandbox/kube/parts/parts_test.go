package parts

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const root = "../../../.."

func TestModulesPinWhatIsBuilt(t *testing.T) {
	for _, p := range All() {
		version, err := required(filepath.Join(root, p.module, "go.mod"), p.from)
		if err != nil {
			t.Errorf("%s: %v", p.Name, err)
		}
		if p.from == "k8s.io/kubernetes" && version != Version {
			t.Errorf("%s is built from %s %s, but the cache is named after %s", p.Name, p.from, version, Version)
		}
	}
}

func TestGroupsNameParts(t *testing.T) {
	for _, group := range [][]string{ControlPlane(), Node(), Suite()} {
		got, err := find(group)
		if err != nil || len(got) != len(group) {
			t.Errorf("find(%v) = %d parts, %v", group, len(got), err)
		}
	}
	if _, err := find([]string{"kubelet", "nonesuch"}); err == nil || !strings.Contains(err.Error(), `no program "nonesuch"`) {
		t.Errorf("find of an unknown name: %v", err)
	}
}

func TestKubeVersion(t *testing.T) {
	for _, want := range []string{"-X k8s.io/client-go/version.gitMajor=1", "-X k8s.io/component-base/version.gitMinor=36"} {
		if !strings.Contains(kubeVersion(), want) {
			t.Errorf("linker flags lack %q: %s", want, kubeVersion())
		}
	}
}

func TestRequired(t *testing.T) {
	file := filepath.Join(t.TempDir(), "go.mod")
	text := "module m\n\nrequire a.b/one v1.0.0\n\nrequire (\n\ta.b/two v2.0.0 // indirect\n)\n\nreplace a.b/three => a.b/other v9.0.0\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got := map[string]string{}
	for _, m := range []string{"a.b/one", "a.b/two", "a.b/three", "a.b/on"} {
		v, err := required(file, m)
		if err != nil {
			v = "none"
		}
		got[m] = v
	}
	if diff := cmp.Diff(map[string]string{"a.b/one": "v1.0.0", "a.b/two": "v2.0.0", "a.b/three": "none", "a.b/on": "none"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestSource(t *testing.T) {
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	want, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := Source("/", here); err != nil || got != want {
		t.Errorf("Source from inside = %q, %v; want %q", got, err, want)
	}
	if got, err := Source("/", t.TempDir(), "relative"); err == nil {
		t.Errorf("Source outside of a checkout = %q, want an error", got)
	}
}

func TestBuildSaysWhatIsMissingWithoutACheckout(t *testing.T) {
	dir := t.TempDir()
	var out bytes.Buffer
	b := &Builder{Dir: dir, Out: &out}
	err := b.Build(context.Background(), "kubelet", "ctr")
	if err == nil || !strings.Contains(err.Error(), "kubelet is missing, ctr is missing in "+dir) || !strings.Contains(err.Error(), "checkout") {
		t.Errorf("error %v", err)
	}
	// Without a checkout there is nothing to compare versions with: what is there is used.
	for _, name := range []string{"kubelet", "ctr"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := b.Build(context.Background(), "kubelet", "ctr"); err != nil || out.Len() > 0 {
		t.Errorf("error %v, said %q; want silence", err, &out)
	}
}

// A small module with a program stands for Kubernetes'.
func TestBuild(t *testing.T) {
	source := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		path := filepath.Join(source, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("test/kube/go.mod", "module example.org/m\n\ngo 1.24\n")
	write("test/kube/main.go", "package main\n\nfunc main() { println(\"hello\") }\n")
	var out bytes.Buffer
	b := &Builder{Dir: filepath.Join(t.TempDir(), "cache"), Source: source, Out: &out}
	p := Part{Name: "hello", module: "test/kube", pkg: ".", from: "example.org/m"}
	if err := os.MkdirAll(b.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := b.build(t.Context(), p, "1/1", 0); err != nil {
		t.Fatal(err)
	}
	if path, err := b.Program("hello"); err != nil || path != filepath.Join(b.Dir, "hello") {
		t.Errorf("Program = %q, %v", path, err)
	}
	if !strings.Contains(out.String(), "hello built in") {
		t.Errorf("said %q", &out)
	}

	write("test/kube/main.go", "package main\n\nfunc main() { wrong }\n")
	if err := b.build(t.Context(), p, "1/1", 0); err == nil || !strings.Contains(err.Error(), "undefined: wrong") {
		t.Errorf("a broken program: %v, want the compiler's words", err)
	}
	names, err := filepath.Glob(filepath.Join(b.Dir, "*"))
	if err != nil || len(names) != 1 {
		t.Errorf("the cache holds %v (%v), want only what was built whole", names, err)
	}
	hidden, err := filepath.Glob(filepath.Join(b.Dir, ".hello*"))
	if err != nil || len(hidden) != 0 {
		t.Errorf("a failed build left %v (%v)", hidden, err)
	}
}

func TestMeter(t *testing.T) {
	for _, tc := range []struct {
		name               string
		packages, compiled int
		elapsed, want      time.Duration
	}{
		{"nothing known", 0, 0, 10 * time.Second, 50 * time.Second},
		{"longer than ever", 0, 0, 2 * time.Minute, 3 * time.Second},
		{"too early to tell", 1000, 10, 10 * time.Second, 50 * time.Second},
		{"by its own speed", 1000, 250, 10 * time.Second, 33 * time.Second},
		{"linking", 1000, 1000, 40 * time.Second, 3 * time.Second},
	} {
		m := &meter{typical: time.Minute, packages: tc.packages}
		if got := m.left(tc.elapsed, tc.compiled); got != tc.want {
			t.Errorf("%s: %v left, want %v", tc.name, got, tc.want)
		}
	}
}
