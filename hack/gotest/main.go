// Command gotest runs `go test` and says at the end, in one line, how many tests passed, failed and
// were skipped. It exists for one rule that `go test` lacks: where everything can run (as root,
// with CI=true) a skipped test is a failure, unless hack/skips.txt names it and says why. A test
// suite that skips what it can't do reports success for what it did not look at.
//
//	gotest -- ARGS...            runs `go test -json ARGS...`
//	gotest -again -- ARGS        looks a second time at a few failed tests; see report.runAgain
//	gotest -servers CMD -- ARGS  tests what needs no server, while CMD runs; then the rest
//	gotest -fuzztime 3s -- ARGS  runs every fuzz target for that long after the tests
//	gotest -fuzztime 3s          runs the fuzz targets only; with -within 5m none begins later
//
// Modules below this one that its go.mod replaces by their folders are part of the same product:
// ./... means their packages, too, and ./DIR a package of the module that the folder is in.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() { os.Exit(run()) }

func run() int {
	fuzz := flag.Duration("fuzztime", 0, "run the fuzz targets, each for this long, instead of the tests")
	within := flag.Duration("within", 0, "start no fuzz target later than this after the first, and name those that are left out; 0 runs all")
	servers := flag.String("servers", "", "command that builds the servers that some tests run; packages that need none are tested meanwhile")
	skips := flag.String("skips", "hack/skips.txt", "file of the tests that may be skipped")
	again := flag.Bool("again", false, "run up to three failed tests again, each alone; one that passes twice is reported as flaky, and is no failure")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()

	allowed, err := readSkips(*skips)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		return 1
	}
	modules, err := modules(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "gotest:", err)
		return 1
	}
	r := newReport(os.Stdout, allowed, os.Getenv("CI") == "true" && os.Geteuid() == 0)
	var runErr error
	if flag.NArg() > 0 {
		runErr = testModules(ctx, r, modules, flag.Args(), *servers)
		if *again && runErr == nil && ctx.Err() == nil {
			runErr = r.stage("failed tests, each alone", func() error { return r.runAgain(ctx, modules, flag.Args()) })
		}
	}
	if *fuzz > 0 && ctx.Err() == nil {
		runErr = errors.Join(runErr, runFuzz(ctx, r, modules, *fuzz, *within))
	}
	ok := r.close()
	if runErr != nil {
		fmt.Fprintln(os.Stderr, "gotest:", runErr)
	}
	if runErr != nil || !ok || ctx.Err() != nil {
		return 1
	}
	return 0
}

// modules returns the folders of the modules that are tested together, "." first.
func modules(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", "mod", "edit", "-json").Output()
	if err != nil {
		return nil, fmt.Errorf("go mod edit: %w", err)
	}
	var mod struct {
		Replace []struct{ New struct{ Path string } }
	}
	if err := json.Unmarshal(out, &mod); err != nil {
		return nil, fmt.Errorf("go mod edit: %w", err)
	}
	dirs := []string{"."}
	for _, r := range mod.Replace {
		if strings.HasPrefix(r.New.Path, "./") {
			dirs = append(dirs, path.Clean(r.New.Path))
		}
	}
	return dirs, nil
}

// argsFor returns the arguments of `go test` in a module: the flags, and the patterns that mean
// packages of the module, as they are called there. ok is false if patterns are given, and none
// does.
func argsFor(module string, modules, args []string) (own []string, ok bool) {
	patterns := 0
	for _, a := range args {
		if !isPattern(a) {
			own = append(own, a)
			continue
		}
		patterns++
		dir, all := strings.CutSuffix(a, "/...")
		switch {
		case moduleOf(path.Clean(dir), modules) == module:
			rel, err := filepath.Rel(module, dir)
			if err != nil {
				rel = dir // for `go test` to refuse
			}
			a = "./" + rel
			if all {
				a += "/..."
			}
			own, ok = append(own, strings.ReplaceAll(a, "/./", "/")), true
		case all && below(module, path.Clean(dir)):
			own, ok = append(own, "./..."), true
		}
	}
	return own, ok || patterns == 0 && module == "."
}

// moduleOf returns the module that a folder is in.
func moduleOf(folder string, modules []string) string {
	module := "."
	for _, m := range modules {
		if below(folder, m) && below(m, module) {
			module = m
		}
	}
	return module
}

// isPattern reports whether an argument of `go test` names packages, by their folders.
func isPattern(arg string) bool { return arg == "." || strings.HasPrefix(arg, "./") }

// below reports whether a folder is dir or below it. Both are relative and clean.
func below(folder, dir string) bool {
	return dir == "." || folder == dir || strings.HasPrefix(folder, dir+"/")
}

// testModules runs the tests of all modules. If there is a command that builds servers, and it has
// something to build, it runs beside the tests that need none, and gives way to them: the first
// results are there long before the servers are, and no processor waits for a test.
func testModules(ctx context.Context, r *report, modules, args []string, servers string) error {
	whole, first, late := make(map[string][]string), make(map[string][]string), make(map[string][]string)
	var waiting []string // the packages of late
	for _, m := range modules {
		own, ok := argsFor(m, modules, args)
		if !ok {
			continue
		}
		if servers == "" {
			first[m] = own
			continue
		}
		all, early, rest, err := split(ctx, m, own)
		if err != nil {
			return err
		}
		whole[m] = all
		if early != nil {
			first[m] = early
		}
		if rest != nil {
			late[m] = rest
			for _, a := range rest {
				if !slices.Contains(own, a) { // no flag
					waiting = append(waiting, short(a))
				}
			}
		}
	}
	if len(late) == 0 {
		return r.stage("tests", func() error { return testEach(ctx, r, modules, first) })
	}
	built := make(chan error, 1)
	go func() { built <- r.stage("the servers", func() error { return build(ctx, r.w, servers) }) }()
	var early error
	select {
	case err := <-built:
		if err == nil {
			// All that is divided waits for the longest of each part.
			return r.stage("tests", func() error { return testEach(ctx, r, modules, whole) })
		}
		built <- err
	case <-time.After(serverTimeout):
	}
	early = r.stage("tests that need no server", func() error { return testEach(ctx, r, modules, first) })
	if err := <-built; err != nil {
		r.unrun = waiting
		return errors.Join(early, err)
	}
	return errors.Join(early, r.stage("tests that need one", func() error { return testEach(ctx, r, modules, late) }))
}

// serverTimeout is how long servers may take that need not be built, but looked at.
const serverTimeout = 30 * time.Second

// testEach runs the tests of modules, each with its arguments. Those of the first module and those
// of the others run side by side: of the others one package at a time, so that they fill the time
// in which the first waits for its last packages.
func testEach(ctx context.Context, r *report, modules []string, args map[string][]string) error {
	var wg sync.WaitGroup
	var first, others error
	wg.Go(func() {
		if m := modules[0]; args[m] != nil {
			first = runTests(ctx, r, m, args[m])
		}
	})
	for _, m := range modules[1:] {
		if args[m] != nil && ctx.Err() == nil {
			own := args[m]
			if args[modules[0]] != nil {
				own = append(slices.Clone(own), "-p", "1")
			}
			others = errors.Join(others, runTests(ctx, r, m, own))
		}
	}
	wg.Wait()
	return errors.Join(first, others)
}

// build runs the command that builds servers, at a low priority.
func build(ctx context.Context, w io.Writer, servers string) error {
	cmd := exec.CommandContext(ctx, "nice", "-n", "10", "sh", "-c", servers)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stdout, cmd.Stderr = w, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", servers, err)
	}
	return nil
}

// slow are packages that start servers, or take minutes to compile: a test that depends on one
// comes late.
func slow() []string {
	const product = "github.com/hawser-net/hawser/"
	return []string{product + "internal/testenv/kubeapi", product + "pkg/kvstore/kvstoretest", "k8s.io/client-go/kubernetes"}
}

// longest are the packages whose tests take longest, in that order. They start first, so that none
// of them runs alone at the end.
func longest() []string {
	const product = "github.com/hawser-net/hawser/"
	return []string{
		product + "internal/agent", product + "internal/datapath/loader", product + "internal/operator/identities", product + "bpf",
		product + "internal/operator", product + "internal/bench/scale", product + "internal/sandbox", product + "internal/k8s/identities",
		product + "internal/operator/endpointslices", product + "internal/k8s/endpoints", product + "internal/service", product + "internal/doublewrite",
		product + "internal/operator/nodemanager/aws", product + "internal/operator/nodemanager/alibaba", product + "internal/operator/nodemanager/azure",
		product + "internal/ui", product + "internal/policypreview", product + "internal/relay", product + "internal/operator/mesh",
		product + "internal/operator/policies", product + "internal/archtest",
		product + "pkg/allocator", product + "pkg/kvstore/etcd",
	}
}

// longestFirst sorts packages so that those of longest come first.
func longestFirst(packages []string) {
	rank := func(name string) int {
		if i := slices.Index(longest(), name); i >= 0 {
			return i
		}
		return len(longest())
	}
	slices.SortStableFunc(packages, func(a, b string) int { return cmp.Compare(rank(a), rank(b)) })
}

// split divides the packages that args name in a module into those whose tests depend on nothing
// slow and the others. Both come back as arguments of `go test`, nil if there is no such package;
// whole are those of all, the longest first.
func split(ctx context.Context, module string, args []string) (whole, early, late []string, err error) {
	var flags, patterns []string
	for _, a := range args {
		if isPattern(a) {
			patterns = append(patterns, a)
		} else {
			flags = append(flags, a)
		}
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"list", "-e", "-test", "-json=ImportPath,Deps"}, patterns...)...)
	cmd.Dir, cmd.Stderr = module, os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return nil, nil, nil, fmt.Errorf("go list in %s: %w", module, err)
	}
	early, late = slices.Clone(flags), slices.Clone(flags)
	isLate := make(map[string]bool)
	var all []string
	for dec := json.NewDecoder(bytes.NewReader(out)); ; {
		var pkg struct {
			ImportPath string
			Deps       []string
		}
		if err := dec.Decode(&pkg); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			return nil, nil, nil, fmt.Errorf("go list in %s: %w", module, err)
		}
		// A package is listed by itself; as "p.test", its tests' program; and as "q [p.test]",
		// compiled for that.
		name, isTest := strings.CutSuffix(pkg.ImportPath, ".test")
		switch {
		case strings.Contains(name, " "):
		case !isTest:
			all = append(all, name)
		case slices.ContainsFunc(pkg.Deps, func(dep string) bool {
			dep, _, _ = strings.Cut(dep, " ")
			return slices.Contains(slow(), dep)
		}):
			isLate[name] = true
		}
	}
	longestFirst(all)
	whole = append(slices.Clone(flags), all...)
	for _, name := range all {
		if isLate[name] {
			late = append(late, name)
		} else {
			early = append(early, name)
		}
	}
	if len(early) == len(flags) {
		early = nil
	}
	if len(late) == len(flags) {
		late = nil
	}
	return whole, early, late, nil
}

// runTests feeds r with the events of `go test` in a module. It returns an error if something went
// wrong that r does not know of.
func runTests(ctx context.Context, r *report, module string, args []string) error {
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-json"}, args...)...)
	cmd.Dir = module
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	failed := r.read(out)
	if err := cmd.Wait(); err != nil {
		if cmd.ProcessState.ExitCode() == 1 && failed {
			return nil
		}
		return fmt.Errorf("go test in %s: %w", module, err)
	}
	return nil
}

// event is a line of `go test -json`; see `go doc test2json`.
type event struct {
	Action     string
	Package    string
	ImportPath string
	Test       string
	Elapsed    float64
	Output     string
}

// report collects events and prints a line a package, the output of what failed, and the totals.
type report struct {
	w       *spool
	mu      sync.Mutex      // guards output, parents, results and broken while tests run
	allowed map[string]bool // "package Test" that may be skipped
	strict  bool            // other skips are failures
	output  map[string][]string
	parents map[string]bool
	results map[string]string  // "package Test" -> pass, fail, skip
	took    map[string]float64 // "package Test" -> seconds, without subtests
	broken  []string           // packages that failed without a failing test: build, panic, time-out
	severe  bool               // something raced or panicked
	racing  map[string]int     // package -> the report in races that its output is part of
	races   []string           // reports of the race detector, each with its package
	flaky   []string           // tests that failed beside the others, and passed alone
	unrun   []string           // packages that were not tested, because the servers were not built
	start   time.Time
}

// stage runs a part of the work. It says how long it took, and how busy that kept the processors:
// the rest of the time tests have waited, and more of them at once would be done sooner.
func (r *report) stage(what string, run func() error) error {
	began, before := time.Now(), childrenTime()
	err := run()
	took := time.Since(began)
	busy := 100 * (childrenTime() - before).Seconds() / took.Seconds() / float64(runtime.NumCPU())
	fmt.Fprintf(r.w, "%s: %s, processors %.0f %% busy with it\n", what, took.Round(time.Second), busy)
	return err
}

// childrenTime returns the processor time of all children that ended, and of theirs.
func childrenTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_CHILDREN, &u); err != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// newReport returns a report that is written to w in the background until it is closed.
func newReport(w io.Writer, allowed map[string]bool, strict bool) *report {
	out, ok := w.(*spool) // of another report
	if !ok {
		out = newSpool(w)
	}
	return &report{
		w: out, allowed: allowed, strict: strict, start: time.Now(),
		output: map[string][]string{}, parents: map[string]bool{}, results: map[string]string{}, took: map[string]float64{},
		racing: map[string]int{},
	}
}

// read takes the events of one `go test`, and reports whether something failed. Several may be read
// at once.
func (r *report) read(in io.Reader) (failed bool) {
	s := bufio.NewScanner(in)
	s.Buffer(nil, 16<<20)
	for s.Scan() {
		var e event
		if err := json.Unmarshal(s.Bytes(), &e); err != nil {
			fmt.Fprintln(r.w, s.Text()) // not an event: let it be seen
			continue
		}
		failed = failed || e.Action == "fail" || e.Action == "build-fail"
		r.mu.Lock()
		r.add(e)
		r.mu.Unlock()
	}
	return failed
}

func (r *report) add(e event) {
	if e.Package == "" {
		e.Package = e.ImportPath
	}
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output", "build-output":
		r.output[key] = append(r.output[key], e.Output)
		r.addRace(e)
		r.severe = r.severe || strings.Contains(e.Output, "WARNING: DATA RACE") || strings.HasPrefix(e.Output, "panic: ")
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.closePackage(e)
			return
		}
		r.results[key] = e.Action
		if !strings.Contains(e.Test, "/") {
			r.took[key] = e.Elapsed
		}
		for i, c := range e.Test {
			if c == '/' {
				r.parents[e.Package+" "+e.Test[:i]] = true
			}
		}
		if e.Action == "fail" {
			for _, line := range r.output[key] {
				fmt.Fprint(r.w, line)
			}
		}
		if e.Action != "skip" {
			delete(r.output, key)
		}
	case "build-fail":
		for _, line := range r.output[key] {
			fmt.Fprint(r.w, line)
		}
	}
}

// addRace keeps what the race detector writes, to the end of its report. It cannot be left with the
// output of tests: a report counts as output of the test that wrote a line before it, which may
// pass, while each test fails that ran meanwhile.
func (r *report) addRace(e event) {
	const border = "==================\n"
	switch i, within := r.racing[e.Package]; {
	case strings.Contains(e.Output, "WARNING: DATA RACE"):
		r.racing[e.Package] = len(r.races)
		r.races = append(r.races, short(e.Package)+": "+e.Output)
	case within && strings.HasSuffix(e.Output, border):
		delete(r.racing, e.Package)
	case within:
		r.races[i] += e.Output
	}
}

// maxRaces bounds the reports of the race detector that are printed: one fault has many.
const maxRaces = 3

func (r *report) closePackage(e event) {
	name := short(e.Package)
	switch e.Action {
	case "pass":
		fmt.Fprintf(r.w, "ok    %-40s %6.1f s\n", name, e.Elapsed)
	case "fail":
		fmt.Fprintf(r.w, "FAIL  %-40s %6.1f s\n", name, e.Elapsed)
		failing := false
		for key, result := range r.results {
			failing = failing || (result == "fail" && strings.HasPrefix(key, e.Package+" "))
		}
		if !failing {
			r.broken = append(r.broken, name)
		}
		// A panic or a time-out shows in the output of the package or of the test that was running.
		for key, lines := range r.output {
			if _, done := r.results[key]; strings.HasPrefix(key, e.Package+" ") && !done {
				for _, line := range lines {
					fmt.Fprint(r.w, line)
				}
			}
		}
	}
}

// maxAgain bounds the tests that are run again: many failures are no accident.
const maxAgain = 3

// runAgain runs each failed test twice more, without others beside it. Thousands of tests with real
// servers on a few processors fail now and then because one of them waited too long: who reads the
// report must see that apart from what fails every time. A test that passes now is reported as
// flaky, with its first output above: that is a fault to be mended, in the test or in the product.
// Nothing is run again after a race, a panic, a package that did not run to its end, or more than a
// few failures. args are those of the first run.
func (r *report) runAgain(ctx context.Context, modules, args []string) error {
	failed := make(map[string]bool)
	for key, result := range r.results {
		if result == "fail" {
			failed[topLevel(key)] = true
		}
	}
	if len(failed) == 0 || len(failed) > maxAgain || len(r.broken) > 0 || r.severe {
		return nil
	}
	flags := slices.DeleteFunc(slices.Clone(args), isPattern)
	for _, key := range slices.Sorted(maps.Keys(failed)) {
		pkg, test, _ := strings.Cut(key, " ")
		alone := newReport(r.w, r.allowed, r.strict)
		if err := runTests(ctx, alone, moduleOf(short(pkg), modules), append(slices.Clone(flags), "-count=2", "-run=^"+test+"$", pkg)); err != nil {
			return err
		}
		if alone.results[key] != "pass" || len(alone.broken) > 0 || slices.Contains(slices.Collect(maps.Values(alone.results)), "fail") {
			continue
		}
		maps.DeleteFunc(r.results, func(k, result string) bool { return topLevel(k) == key && result == "fail" })
		maps.Copy(r.results, alone.results)
		r.flaky = append(r.flaky, short(key))
	}
	return nil
}

// close prints the totals and reports whether all is well. Only leaves are counted: a test with
// subtests is as good as they are.
func (r *report) close() bool {
	var passed, failed, skipped int
	var bad []string
	keys := make([]string, 0, len(r.results))
	for key := range r.results {
		keys = append(keys, key)
	}
	sort.Strings(keys)
	for _, key := range keys {
		name := short(key)
		if r.results[key] == "fail" {
			bad = append(bad, "failed: "+name)
		}
		if r.parents[key] && r.results[key] != "skip" {
			if r.results[key] == "fail" {
				failed++
			}
			continue
		}
		switch r.results[key] {
		case "pass":
			passed++
		case "fail":
			failed++
		case "skip":
			skipped++
			why := reason(r.output[key])
			fmt.Fprintf(r.w, "skipped: %s: %s\n", name, why)
			if r.strict && !r.allowed[name] && !r.allowed[topLevel(name)] {
				bad = append(bad, "skipped where it must run: "+name+" (or name it in hack/skips.txt, with the reason)")
			}
		}
	}
	slowest := slices.SortedFunc(maps.Keys(r.took), func(a, b string) int { return cmp.Compare(r.took[b], r.took[a]) })
	for _, key := range slowest[:min(len(slowest), 12)] {
		if r.took[key] > 10 {
			fmt.Fprintf(r.w, "long: %5.0f s  %s\n", r.took[key], short(key))
		}
	}
	for _, p := range r.broken {
		bad = append(bad, "did not run to its end: "+p)
	}
	for _, p := range r.unrun {
		bad = append(bad, "not tested, as the servers it needs were not built: "+p)
	}
	for _, name := range r.flaky {
		fmt.Fprintln(r.w, "flaky: "+name+": failed beside the other tests, as shown above, and passed twice alone")
	}
	for _, race := range r.races[:min(len(r.races), maxRaces)] {
		fmt.Fprintln(r.w, race)
	}
	for _, line := range bad {
		fmt.Fprintln(r.w, line)
	}
	failed += len(r.broken)
	fmt.Fprintf(r.w, "took %s\n%d passed, %d failed, %d skipped", time.Since(r.start).Round(time.Second), passed, failed, skipped)
	if len(r.flaky) > 0 {
		fmt.Fprintf(r.w, ", %d flaky", len(r.flaky))
	}
	if len(r.unrun) > 0 {
		fmt.Fprintf(r.w, ", %d packages not tested", len(r.unrun))
	}
	fmt.Fprintln(r.w)
	r.w.flush()
	return len(bad) == 0
}

// reason is the text that a test gave to Skip: the last line that is not the runner's own.
func reason(lines []string) string {
	why := "no reason given"
	for _, l := range lines {
		l = strings.TrimSpace(l)
		if l == "" || strings.HasPrefix(l, "===") || strings.HasPrefix(l, "---") {
			continue
		}
		why = l
	}
	return why
}

// short cuts the product's name off a package path.
func short(name string) string {
	return strings.TrimPrefix(name, "github.com/hawser-net/hawser/")
}

// topLevel is "package Test" of "package Test/sub".
func topLevel(name string) string {
	pkg, test, _ := strings.Cut(name, " ")
	test, _, _ = strings.Cut(test, "/")
	return pkg + " " + test
}

// readSkips reads "package Test reason" lines; the reason must be there.
func readSkips(file string) (map[string]bool, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	out := map[string]bool{}
	for n, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSpace(line)
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		f := strings.Fields(line)
		if len(f) < 3 {
			return nil, fmt.Errorf("%s:%d: want \"package Test reason\"", file, n+1)
		}
		out[f[0]+" "+f[1]] = true
	}
	return out, nil
}

// target is a fuzz function, its module, and the directory of its package, relative to that.
type target struct{ module, dir, name string }

// fuzzTargets finds the fuzz functions of a module by their declaration, which takes no compiler.
func fuzzTargets(root string) ([]target, error) {
	decl := regexp.MustCompile(`(?m)^func (Fuzz[A-Z0-9_]\w*)\(\w+ \*testing\.F\)`)
	var out []target
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != root && (strings.HasPrefix(d.Name(), ".") || d.Name() == "testdata") {
			return filepath.SkipDir
		}
		if d.IsDir() && path != root {
			if _, err := os.Stat(filepath.Join(path, "go.mod")); err == nil {
				return filepath.SkipDir // a module of its own
			}
		}
		if !strings.HasSuffix(path, "_test.go") {
			return nil
		}
		src, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, m := range decl.FindAllSubmatch(src, -1) {
			out = append(out, target{module: root, dir: rel, name: string(m[1])})
		}
		return nil
	})
	return out, err
}

// runFuzz runs as many targets at once as there are processors; each counts as a test of its
// package. They are in a new order each time, so a short time within which they begin leaves out
// others each time. What is left out fails nothing: the tests ran its known inputs.
func runFuzz(ctx context.Context, r *report, modules []string, d, within time.Duration) error {
	var targets []target
	for _, m := range modules {
		found, err := fuzzTargets(m)
		if err != nil {
			return err
		}
		targets = append(targets, found...)
	}
	rand.Shuffle(len(targets), func(i, j int) { targets[i], targets[j] = targets[j], targets[i] })
	start := time.Now()
	var mu sync.Mutex // guards r and leftOut
	var leftOut []string
	var wg errgroup.Group
	wg.SetLimit(runtime.NumCPU())
	for _, t := range targets {
		wg.Go(func() error {
			began := time.Now()
			if within != 0 && began.Sub(start) > within {
				mu.Lock()
				defer mu.Unlock()
				leftOut = append(leftOut, path.Join(t.module, t.dir)+" "+t.name)
				return nil
			}
			out, err := fuzzOne(ctx, t, d)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			mu.Lock()
			defer mu.Unlock()
			verdict, result := "ok  ", "pass"
			if err != nil {
				verdict, result = "FAIL", "fail"
			}
			pkg := path.Join(t.module, t.dir)
			fmt.Fprintf(r.w, "%s  %-40s %6.1f s\n", verdict, "fuzz "+pkg+" "+t.name, time.Since(began).Seconds())
			if err != nil {
				fmt.Fprintf(r.w, "%s\n", out)
			}
			r.results[pkg+" fuzzing "+t.name] = result
			return nil
		})
	}
	err := wg.Wait()
	if len(leftOut) > 0 {
		slices.Sort(leftOut)
		fmt.Fprintf(r.w, "%d of %d fuzz targets are left out, %s are over:\n  %s\n", len(leftOut), len(targets), within, strings.Join(leftOut, "\n  "))
	}
	return err
}

// fuzzOne runs a target with one worker: another processor runs another target. It does not vet:
// that would check every dependency again, as it is compiled for the fuzzer.
func fuzzOne(ctx context.Context, t target, d time.Duration) (out []byte, err error) {
	for range 3 {
		cmd := exec.CommandContext(ctx, "go", "test", "-vet=off", "-run", "^$", "-fuzz", "^"+t.name+"$", "-parallel", "1",
			"-fuzztime", d.String(), "-fuzzminimizetime", "10x", "./"+t.dir)
		cmd.Dir = t.module
		if out, err = cmd.CombinedOutput(); err == nil || !outOfTime(out) {
			break
		}
	}
	return out, err
}

// outOfTime says that the fuzzer failed for nothing but its own end: it reports so when its time is
// up while a worker is busy (go.dev/issue/75804). An input that fails is reported with its file.
func outOfTime(out []byte) bool {
	return bytes.Contains(out, []byte("context deadline exceeded")) && !bytes.Contains(out, []byte("Failing input written"))
}
