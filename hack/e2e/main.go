// Command e2e runs the upstream end-to-end tests of Kubernetes on a cluster of namespaces and
// prints what came out as a table:
//
//	go run ./hack/e2e                       all specs of NetworkPolicy
//	go run ./hack/e2e -suite smoke          a few of them
//	go run ./hack/e2e -suite conformance    what a network must do, with Services and DNS
//	go run ./hack/e2e -suite smoke -- --cloud aws   where pods have addresses of a cloud
//	go run ./hack/e2e -focus 'Granular Checks' -keep
//
// The cluster is brought up for it, and removed afterwards unless it was there before. Specs that
// the machine can't run are listed with the reason. The exit code is 0 only if every other spec
// passed.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	"golang.org/x/term"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
)

// policies selects every spec of NetworkPolicy.
const policies = `\[sig-network\].*(Netpol|NetworkPolicy)`

// smoke selects some of them that together touch each feature: both directions, selectors, ports,
// protocols, blocks of addresses, the API.
const smoke = `\[sig-network\] Netpol (API|.*(allow-all policy|default-deny-all|Multiple PodSelectors and NamespaceSelectors|access on one named port|` +
	`CIDR block|using UDP should support a 'default-deny-ingress'|stop enforcing policies after))`

// maxReason is how many lines of a failure are printed; the log has all.
const maxReason = 20

// conformance selects the specs of a network that every Kubernetes must pass.
const conformance = `\[sig-network\].*\[Conformance\]`

// suites are named selections.
func suites() map[string]string {
	return map[string]string{"policies": policies, "smoke": smoke, "conformance": conformance}
}

type options struct {
	name, focus, skip, bin, out string
	nodes, procs                int
	timeout                     time.Duration
	keep                        bool
	up                          []string // further arguments of `sandbox up`
}

func main() { os.Exit(run()) }

func run() int {
	var o options
	suite := flag.String("suite", "policies", "which specs to run: policies, smoke (a few of these, some minutes) or conformance")
	flag.StringVar(&o.name, "name", "e2e", "name of the cluster")
	flag.StringVar(&o.focus, "focus", "", "regular expression of the specs to run, instead of a suite")
	flag.StringVar(&o.skip, "skip", "", "regular expression of specs to leave out")
	flag.StringVar(&o.bin, "bin", "bin/hawser", "the program hawser")
	flag.StringVar(&o.out, "out", "bin/e2e", "directory of the results")
	flag.IntVar(&o.nodes, "nodes", 2, "nodes of the cluster")
	flag.IntVar(&o.procs, "procs", 3, "specs at the same time")
	flag.DurationVar(&o.timeout, "timeout", 25*time.Minute, "how long the whole may take")
	flag.BoolVar(&o.keep, "keep", false, "leave the cluster running")
	flag.Parse()
	o.up = flag.Args()
	if os.Geteuid() != 0 {
		fmt.Fprintln(os.Stderr, "e2e: needs root: it makes a cluster of namespaces")
		return 2
	}
	if o.focus == "" {
		if o.focus = suites()[*suite]; o.focus == "" {
			fmt.Fprintf(os.Stderr, "e2e: -suite %q: want one of %s\n", *suite, strings.Join(slices.Sorted(maps.Keys(suites())), ", "))
			return 2
		}
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	ok, err := o.run(ctx)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 2
	}
	if !ok {
		return 1
	}
	return 0
}

func (o *options) run(ctx context.Context) (ok bool, err error) {
	builder, err := parts.Here(os.Stdout, term.IsTerminal(int(os.Stdout.Fd())))
	if err != nil {
		return false, err
	}
	if err := builder.Build(ctx, parts.Suite()...); err != nil {
		return false, err
	}
	if o.out, err = filepath.Abs(o.out); err != nil {
		return false, err
	}
	if err := os.MkdirAll(o.out, 0o755); err != nil {
		return false, err
	}
	there := kube.Exists(kube.Defaults().Root, o.name)
	up := append([]string{"sandbox", "up", "--kubernetes", "--yes", "--name", o.name, "--nodes", fmt.Sprint(o.nodes)}, o.up...)
	if err := o.hawser(ctx, os.Stdout, up...); err != nil {
		return false, fmt.Errorf("start the cluster: %w", err)
	}
	if !there && !o.keep {
		defer func() {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			err = errors.Join(err, o.hawser(ctx, os.Stdout, "sandbox", "down", "--name", o.name))
		}()
	}
	cannot := unable()
	report := filepath.Join(o.out, "report.json")
	_ = os.Remove(report)
	log, err := os.Create(filepath.Join(o.out, "log.txt"))
	if err != nil {
		return false, err
	}
	defer log.Close()
	fmt.Printf("\nrunning the specs, %d at a time; the log is %s\n", o.procs, log.Name())
	began := time.Now()
	runErr := o.suite(ctx, builder.Dir, report, cannot, io.Writer(log))
	if ctx.Err() != nil {
		return false, ctx.Err()
	}
	specs, err := read(report)
	if err != nil {
		return false, errors.Join(runErr, err)
	}
	return o.table(os.Stdout, specs, cannot, time.Since(began))
}

func (o *options) hawser(ctx context.Context, out io.Writer, args ...string) error {
	cmd := exec.CommandContext(ctx, o.bin, args...)
	cmd.Stdout, cmd.Stderr = out, os.Stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	return cmd.Run()
}

// suite runs the tests from the control plane's network, where the API server, nodes and pods are
// reached by their own addresses.
func (o *options) suite(ctx context.Context, programs, report string, cannot map[string]string, log io.Writer) error {
	skips := []string{}
	if o.skip != "" {
		skips = append(skips, o.skip)
	}
	for pattern := range cannot {
		skips = append(skips, pattern)
	}
	args := []string{
		"sandbox", "exec", "--name", o.name, "cp", "--", filepath.Join(programs, "ginkgo"),
		fmt.Sprintf("--procs=%d", o.procs), "--no-color", "-v", "--silence-skips", "--focus=" + o.focus, "--timeout=" + o.timeout.String(),
		"--output-dir=" + o.out, "--json-report=" + filepath.Base(report),
	}
	if len(skips) > 0 {
		args = append(args, "--skip="+strings.Join(skips, "|"))
	}
	args = append(args, filepath.Join(programs, "e2e.test"), "--", "--provider=skeleton", "--disable-log-dump",
		"--kubeconfig="+filepath.Join(kube.Defaults().Root, o.name, "pki", "admin.kubeconfig"))
	return o.hawser(ctx, log, args...)
}

// unable maps patterns of specs that this machine can't run to the reason.
func unable() map[string]string {
	out := map[string]string{}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err != nil {
		out[`\[Feature:SCTPConnectivity\]`] = fmt.Sprintf("they open SCTP connections, and this kernel has no SCTP (%v)", err)
	} else {
		_ = unix.Close(fd)
	}
	return out
}

// spec is what the table says of one.
type spec struct {
	name   string
	state  string
	took   time.Duration
	reason string // of a failure
}

// read returns the specs of a report, those that did not run as well.
func read(file string) ([]spec, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("the tests left no report: %w", err)
	}
	var suites []struct {
		SpecReports []struct {
			ContainerHierarchyTexts    []string
			LeafNodeText, LeafNodeType string
			State                      string
			RunTime                    time.Duration
			Failure                    struct{ Message string }
		}
	}
	if err := json.Unmarshal(data, &suites); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	var out []spec
	for _, suite := range suites {
		for _, r := range suite.SpecReports {
			// What is not a spec is of interest only if it spoilt the run.
			if r.LeafNodeType != "It" && r.State == "passed" {
				continue
			}
			name := strings.Join(append(r.ContainerHierarchyTexts, r.LeafNodeText), " ")
			if r.LeafNodeType != "It" {
				name = r.LeafNodeType
			}
			out = append(out, spec{name: strings.TrimSpace(name), state: r.State, took: r.RunTime, reason: r.Failure.Message})
		}
	}
	return out, nil
}

// table prints the specs that were asked for. It reports whether all that could run passed, and
// whether any did.
func (o *options) table(w io.Writer, specs []spec, cannot map[string]string, took time.Duration) (bool, error) {
	focus, err := regexp.Compile(o.focus)
	if err != nil {
		return false, err
	}
	slices.SortFunc(specs, func(a, b spec) int { return strings.Compare(a.name, b.name) })
	var passed, failed, unrun int
	fmt.Fprintf(w, "\n%-8s %7s  %s\n", "RESULT", "TIME", "SPEC")
	for _, s := range specs {
		switch s.state {
		case "passed":
			passed++
			fmt.Fprintf(w, "%-8s %6.1fs  %s\n", "ok", s.took.Seconds(), s.name)
		case "skipped", "pending":
			why := reasonOf(s, cannot)
			if why == "" || !focus.MatchString(s.name) {
				continue // not asked for
			}
			unrun++
			fmt.Fprintf(w, "%-8s %7s  %s\n", "cannot", "-", s.name)
		default:
			failed++
			fmt.Fprintf(w, "%-8s %6.1fs  %s\n", strings.ToUpper(s.state), s.took.Seconds(), s.name)
			lines := strings.Split(strings.TrimSpace(s.reason), "\n")
			for _, line := range lines[:min(len(lines), maxReason)] { // in CI there is nothing but this to read
				fmt.Fprintf(w, "%18s%s\n", "", line)
			}
		}
	}
	fmt.Fprintf(w, "\n%d of %d passed in %s", passed, passed+failed, took.Round(time.Second))
	if unrun > 0 {
		fmt.Fprintf(w, "; %d can't run on this machine", unrun)
		for _, why := range cannot {
			fmt.Fprintf(w, ": %s", why)
		}
	}
	fmt.Fprintln(w)
	if passed+failed == 0 {
		return false, fmt.Errorf("no spec matches %q", o.focus)
	}
	return failed == 0, nil
}

func reasonOf(s spec, cannot map[string]string) string {
	for pattern, why := range cannot {
		if regexp.MustCompile(pattern).MatchString(s.name) {
			return why
		}
	}
	return ""
}
