package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const stream = `{"Action":"output","Package":"m/a","Test":"TestOK","Output":"noise\n"}
{"Action":"pass","Package":"m/a","Test":"TestOK"}
{"Action":"pass","Package":"m/a","Test":"TestMany/one"}
{"Action":"pass","Package":"m/a","Test":"TestMany/two"}
{"Action":"pass","Package":"m/a","Test":"TestMany"}
{"Action":"output","Package":"m/a","Test":"TestRoot","Output":"    a_test.go:9: needs root\n"}
{"Action":"output","Package":"m/a","Test":"TestRoot","Output":"--- SKIP: TestRoot (0.00s)\n"}
{"Action":"skip","Package":"m/a","Test":"TestRoot"}
{"Action":"pass","Package":"m/a","Elapsed":0.1}
`

func TestReport(t *testing.T) {
	bad := stream + `{"Action":"output","Package":"m/b","Test":"TestBad","Output":"got 1, want 2\n"}
{"Action":"fail","Package":"m/b","Test":"TestBad"}
{"Action":"fail","Package":"m/b","Elapsed":0.1}
`
	broken := stream + `{"ImportPath":"m/c","Action":"build-output","Output":"undefined: x\n"}
{"ImportPath":"m/c","Action":"build-fail"}
{"Action":"fail","Package":"m/c","Elapsed":0}
`
	// A race counts as output of a test that passes, and fails those that run meanwhile.
	race := stream + `{"Action":"output","Package":"m/b","Test":"TestGood","Output":"==================\n"}
{"Action":"output","Package":"m/b","Test":"TestGood","Output":"WARNING: DATA RACE\n"}
{"Action":"output","Package":"m/b","Test":"TestGood","Output":"Write at 0x00c000012345 by goroutine 7:\n"}
{"Action":"output","Package":"m/a","Test":"TestOther","Output":"noise\n"}
{"Action":"output","Package":"m/b","Test":"TestBad","Output":"==================\n"}
{"Action":"output","Package":"m/b","Test":"TestGood","Output":"noise\n"}
{"Action":"pass","Package":"m/b","Test":"TestGood"}
{"Action":"fail","Package":"m/b","Test":"TestBad"}
{"Action":"fail","Package":"m/b","Elapsed":0.1}
`
	tests := []struct {
		name, in string
		strict   bool
		allowed  map[string]bool
		ok       bool
		want     []string
		last     string
	}{
		{"a skip is fine for people", stream, false, nil, true, []string{"skipped: m/a TestRoot: a_test.go:9: needs root"}, "3 passed, 0 failed, 1 skipped"},
		{"a skip is a failure where all can run", stream, true, nil, false, []string{"skipped where it must run: m/a TestRoot"}, "3 passed, 0 failed, 1 skipped"},
		{"unless it is allowed", stream, true, map[string]bool{"m/a TestRoot": true}, true, nil, "3 passed, 0 failed, 1 skipped"},
		{"the output of a failure is shown", bad, false, nil, false, []string{"got 1, want 2", "failed: m/b TestBad"}, "3 passed, 1 failed, 1 skipped"},
		{"a race is shown whole", race, false, nil, false, []string{"m/b: WARNING: DATA RACE\nWrite at 0x00c000012345 by goroutine 7:\n\n"}, "4 passed, 1 failed, 1 skipped"},
		{"a package that does not build fails", broken, false, nil, false, []string{"undefined: x", "did not run to its end: m/c"}, "3 passed, 1 failed, 1 skipped"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			r := newReport(&out, tt.allowed, tt.strict)
			r.read(strings.NewReader(tt.in))
			if ok := r.close(); ok != tt.ok {
				t.Errorf("ok = %v, want %v", ok, tt.ok)
			}
			for _, w := range append(tt.want, tt.last) {
				if !strings.Contains(out.String(), w) {
					t.Errorf("output lacks %q:\n%s", w, &out)
				}
			}
			if strings.Contains(out.String(), "noise") {
				t.Errorf("the output of a passing test is shown:\n%s", &out)
			}
		})
	}
}

// stuck is a terminal that no one reads.
type stuck struct{ read chan struct{} }

func (s stuck) Write(text []byte) (int, error) {
	<-s.read
	return len(text), nil
}

// TestSlowReader: whoever reads the output stops for a while. Tests do not wait for that: what they
// write is taken from them, also from those of other packages.
func TestSlowReader(t *testing.T) {
	t.Parallel()
	s := stuck{make(chan struct{})}
	r := newReport(s, nil, false)
	const failing = `{"Action":"output","Package":"m/%[1]s","Test":"TestBad","Output":"%[1]s\n"}
{"Action":"fail","Package":"m/%[1]s","Test":"TestBad"}
{"Action":"fail","Package":"m/%[1]s","Elapsed":0.1}
`
	taken := make(chan struct{})
	for _, name := range []string{"a", "b"} {
		go func() {
			r.read(strings.NewReader(fmt.Sprintf(failing, name)))
			taken <- struct{}{}
		}()
	}
	late := time.After(30 * time.Second)
	for range 2 {
		select {
		case <-taken:
		case <-late:
			t.Error("tests wait for whoever reads the output")
			close(s.read)
			return
		}
	}
	close(s.read)
	if r.close() {
		t.Error("all is said to be well")
	}
}

// TestRunAgain runs `go test` on tests that fail once, always, every other time, and by a race.
func TestRunAgain(t *testing.T) {
	const head = "package a\nimport (\"os\"; \"testing\")\n"
	const once = `func TestOnce(t *testing.T) {
	t.Run("part", func(t *testing.T) {
		f, err := os.OpenFile("ran", os.O_CREATE|os.O_EXCL, 0o600)
		if err == nil {
			f.Close()
			t.Error("the first time")
		}
	})
}
`
	const everyOther = `func TestEveryOther(t *testing.T) {
	if os.Remove("flag") != nil {
		return
	}
	t.Error("the flag was there")
}
`
	const always = "func TestAlways(t *testing.T) { t.Error(\"always\") }\n"
	const raced = "func TestRaced(t *testing.T) { if os.Remove(\"flag\") == nil { t.Error(\"WARNING: DATA RACE\") } }\n"
	const panics = "func TestPanics(t *testing.T) { if os.Remove(\"flag\") == nil { panic(\"once\") } }\n"
	many := ""
	for _, name := range []string{"A", "B", "C", "D"} {
		many += "func Test" + name + "(t *testing.T) { if os.Remove(\"" + name + "\") == nil { t.Error(\"once\") } }\n"
	}
	for _, tt := range []struct {
		name, src string
		files     []string // that are there for the first run
		later     string   // one that is there for the second
		ok        bool
		want      string
	}{
		{"a test that failed once is flaky", once, nil, "", true, "flaky: m/a TestOnce"},
		{"a test that fails again has failed", once + always, nil, "", false, "failed: m/a TestAlways"},
		{"both runs alone count", everyOther, []string{"flag"}, "flag", false, "failed: m/a TestEveryOther"},
		{"a race is not looked at again", raced, []string{"flag"}, "", false, "failed: m/a TestRaced"},
		{"nor is a panic", panics, []string{"flag"}, "", false, "failed: m/a TestPanics"},
		{"nor are many failures", many, []string{"A", "B", "C", "D"}, "", false, "failed: m/a TestA"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			root := t.TempDir()
			t.Chdir(root)
			write := func(name, text string) {
				if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
					t.Fatal(err)
				}
				if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
			}
			write("go.mod", "module m\n\ngo 1.24\n")
			write("a/a_test.go", head+tt.src)
			for _, f := range tt.files {
				write("a/"+f, "")
			}
			var out bytes.Buffer
			r := newReport(&out, nil, true)
			args := []string{"-count=1", "./..."}
			if err := runTests(t.Context(), r, ".", args); err != nil {
				t.Fatal(err)
			}
			if tt.later != "" {
				write("a/"+tt.later, "")
			}
			if err := r.runAgain(t.Context(), []string{"."}, args); err != nil {
				t.Fatal(err)
			}
			if ok := r.close(); ok != tt.ok {
				t.Errorf("ok = %v, want %v", ok, tt.ok)
			}
			if !strings.Contains(out.String(), tt.want) {
				t.Errorf("output lacks %q", tt.want)
			}
			if t.Failed() {
				t.Logf("output:\n%s", &out)
			}
		})
	}
}

func TestReadSkipsDemandsReason(t *testing.T) {
	file := filepath.Join(t.TempDir(), "skips")
	write := func(s string) {
		if err := os.WriteFile(file, []byte(s), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("# why\n\ninternal/x TestY no such device here\n")
	got, err := readSkips(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]bool{"internal/x TestY": true}, got); diff != "" {
		t.Error(diff)
	}
	write("internal/x TestY\n")
	if _, err := readSkips(file); err == nil {
		t.Error("a skip without a reason was accepted")
	}
}

func TestFuzzTargets(t *testing.T) {
	root := t.TempDir()
	for name, src := range map[string]string{
		"a/a_test.go":          "package a\nfunc FuzzOne(f *testing.F) {}\n// func FuzzTwo(f *testing.F)\n",
		"a/testdata/b_test.go": "func FuzzNo(f *testing.F) {}\n",
		"nested/go.mod":        "module nested\n",
		"nested/c_test.go":     "func FuzzNo(f *testing.F) {}\n",
	} {
		path := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	got, err := fuzzTargets(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != 1 || got[0] != (target{root, "a", "FuzzOne"}) {
		t.Errorf("got %v", got)
	}
}

func TestArgsFor(t *testing.T) {
	modules := []string{".", "pkg", "pkg/deep"}
	for _, tt := range []struct {
		args string
		want map[string]string // by module; none if it has nothing to do
	}{
		{"-race ./...", map[string]string{".": "-race ./...", "pkg": "-race ./...", "pkg/deep": "-race ./..."}},
		{"-run X -v", map[string]string{".": "-run X -v"}},
		{"-v ./pkg/kvstore", map[string]string{"pkg": "-v ./kvstore"}},
		{"./pkg/kvstore/...", map[string]string{"pkg": "./kvstore/..."}},
		{"./pkg/...", map[string]string{"pkg": "./...", "pkg/deep": "./..."}},
		{"./pkg", map[string]string{"pkg": "./."}},
		{"./pkg/deep/a ./internal/...", map[string]string{".": "./internal/...", "pkg/deep": "./a"}},
		{"./pkgother", map[string]string{".": "./pkgother"}},
		{".", map[string]string{".": "./."}},
	} {
		got := map[string]string{}
		for _, m := range modules {
			if args, ok := argsFor(m, modules, strings.Fields(tt.args)); ok {
				got[m] = strings.Join(args, " ")
			}
		}
		if diff := cmp.Diff(tt.want, got); diff != "" {
			t.Errorf("%q (-want +got):\n%s", tt.args, diff)
		}
	}
}

func TestOutOfTime(t *testing.T) {
	for text, want := range map[string]bool{
		"--- FAIL: FuzzX (3.09s)\n    context deadline exceeded\nFAIL\n":                                              true,
		"--- FAIL: FuzzX (0.02s)\n    x_test.go:9: wrong\n    Failing input written to testdata/fuzz/FuzzX/1\nFAIL\n": false,
		"    x_test.go:9: context deadline exceeded\n    Failing input written to testdata/fuzz/FuzzX/1\nFAIL\n":      false,
	} {
		if got := outOfTime([]byte(text)); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}

// TestSplit: what needs no server is tested before the servers are built, nothing is left out, and
// nothing twice.
func TestSplit(t *testing.T) {
	t.Parallel()
	const product = "github.com/hawser-net/hawser/"
	flags := []string{"-race", "-p", "3"}
	patterns := []string{"./internal/labels", "./internal/operator/nodes", "./hack/gotest", "./internal/datapath/loader"}
	whole, early, late, err := split(t.Context(), "../..", append(slices.Clone(flags), patterns...))
	if err != nil {
		t.Fatal(err)
	}
	if want := append(slices.Clone(early), late[len(flags):]...); !sameWords(whole, want) {
		t.Errorf("all %q, want %q", whole, want)
	}
	if want := append(slices.Clone(flags), product+"internal/labels", product+"hack/gotest", product+"internal/datapath/loader"); !sameWords(early, want) {
		t.Errorf("first %q, want %q", early, want)
	}
	if want := append(slices.Clone(flags), product+"internal/operator/nodes"); !sameWords(late, want) {
		t.Errorf("then %q, want %q", late, want)
	}
	_, early, late, err = split(t.Context(), "../..", []string{"-race", "./internal/labels"})
	if err != nil || late != nil || len(early) != 2 {
		t.Errorf("%q, %q, %v: want one package that comes first", early, late, err)
	}
}

func sameWords(a, b []string) bool {
	return cmp.Equal(slices.Sorted(slices.Values(a)), slices.Sorted(slices.Values(b)))
}

// inProduct goes to a module with a package that needs a server, late, and one that needs none,
// early, whose test fails; and with a module of its own in pkg.
func inProduct(t *testing.T) {
	t.Helper()
	t.Chdir(t.TempDir())
	t.Setenv("GOFLAGS", "-mod=mod")
	for name, src := range map[string]string{
		"go.mod":                          "module github.com/hawser-net/hawser\n\ngo 1.24\n",
		"early/a_test.go":                 "package early\nimport \"testing\"\nfunc TestEarly(t *testing.T) { t.Fatal(\"wrong\") }\n",
		"late/a_test.go":                  "package late\nimport (\n_ \"github.com/hawser-net/hawser/internal/testenv/kubeapi\"\n\"testing\"\n)\nfunc TestLate(t *testing.T) {}\n",
		"internal/testenv/kubeapi/api.go": "package kubeapi\n",
		"pkg/go.mod":                      "module github.com/hawser-net/hawser/pkg\n\ngo 1.24\n",
		"pkg/a/a_test.go":                 "package a\nimport \"testing\"\nfunc TestLibrary(t *testing.T) {}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(name, []byte(src), 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// TestServersAreThere: where nothing is to be built, all tests run together, those of the other
// modules beside.
func TestServersAreThere(t *testing.T) {
	inProduct(t)
	file, err := os.Create("out")
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := newReport(file, nil, false)
	if err := testModules(t.Context(), r, []string{".", "pkg"}, []string{"-vet=off", "-p", "2", "./..."}, "true"); err != nil {
		t.Error(err)
	}
	if r.close() {
		t.Error("all is said to be well")
	}
	out, err := os.ReadFile("out")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"failed: early TestEarly", "ok    late", "ok    pkg/a", "\ntests: ", "2 passed, 1 failed, 0 skipped\n"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
	if strings.Contains(string(out), "tests that need") {
		t.Errorf("divided for nothing:\n%s", out)
	}
}

// TestServersNotBuilt: an early test fails, and the servers cannot be built. The report names the
// failing test and the packages that were not tested, and the reason is returned.
func TestServersNotBuilt(t *testing.T) {
	inProduct(t)
	file, err := os.Create("out") // several write to it at the same time, as to the standard output
	if err != nil {
		t.Fatal(err)
	}
	defer file.Close()
	r := newReport(file, nil, false)
	err = testModules(t.Context(), r, []string{"."}, []string{"-vet=off", "./early", "./late"}, "false")
	if err == nil || !strings.Contains(err.Error(), "false: exit status 1") || strings.Contains(err.Error(), "go test") {
		t.Errorf("%v, want that the servers could not be built, and nothing of tests", err)
	}
	if r.close() {
		t.Error("all is said to be well")
	}
	out, err := os.ReadFile("out")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"failed: early TestEarly", "were not built: late", "0 passed, 1 failed, 0 skipped, 1 packages not tested"} {
		if !strings.Contains(string(out), want) {
			t.Errorf("output lacks %q:\n%s", want, out)
		}
	}
}

// TestLongestFirst: what takes longest starts first, the rest keeps its order, and every package
// that is named is there.
func TestLongestFirst(t *testing.T) {
	t.Parallel()
	const product = "github.com/hawser-net/hawser/"
	got := []string{product + "api/v2", product + "internal/operator", product + "cmd/hawser", product + "internal/agent"}
	longestFirst(got)
	if diff := cmp.Diff([]string{product + "internal/agent", product + "internal/operator", product + "api/v2", product + "cmd/hawser"}, got); diff != "" {
		t.Error(diff)
	}
	for _, name := range longest() {
		if _, err := os.Stat(filepath.Join("../..", strings.TrimPrefix(name, product))); err != nil {
			t.Error(err)
		}
	}
}
