package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/validate"
)

// Config says what to measure.
type Config struct {
	// Rows are the names of the groups to measure, in the order of Groups; all if empty.
	Rows []string
	// Quick takes fewer samples: a minute or two in all, and p99 figures that mean little.
	Quick bool
	// BinDir has the programs to measure, all that `make build` makes.
	BinDir string
	// Self is this program, started again to serve etcd (see ServeEtcd).
	Self []string
	// Progress receives a line a step; nil is silence.
	Progress io.Writer
	// Keep leaves the directory with the agents' logs behind.
	Keep bool
}

// Validate checks the configuration and joins all faults.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.If(os.Geteuid() != 0, "needs root: it makes network namespaces, links and kernel maps")
	for _, r := range c.Rows {
		if !slices.ContainsFunc(groups(), func(g group) bool { return g.name == r }) {
			errs.Add("there is no row %q: choose of %s", r, strings.Join(Groups(), ", "))
		}
	}
	errs.If(len(c.Self) == 0, "no program to serve etcd with")
	for _, name := range []string{"hawser", "hawser-agent", "hawser-cni", "hawser-operator"} {
		if _, err := os.Stat(filepath.Join(c.BinDir, name)); err != nil {
			errs.Add("%w: run `make build` first", err)
		}
	}
	return errs.Err()
}

// group is a set of rows that are measured on the same set-up.
type group struct {
	name, what string
	run        func(*bencher, context.Context) error
}

func groups() []group {
	return []group{
		{"add", "CNI ADD and DEL, one after the other", onTestbed(1, (*bencher).addSequential)},
		{"burst", "CNI ADD and DEL, many at once", onTestbed(1, (*bencher).addBurst)},
		{"rr", "round trips and connections between pods of a node", onTestbed(1, (*bencher).sameNode)},
		{"vxlan", "round trips and connections between nodes", onTestbed(2, (*bencher).twoNodes)},
		{"bigtcp", "packets beyond 64 KiB between nodes", (*bencher).bigTCP},
		{"lb", "clients of a node without pods that balances services", onTestbed(1, (*bencher).balancer)},
		{"bpf", "programs, a packet at a time", (*bencher).programs},
		{"observe", "flows: what they cost a packet, and the agent", (*bencher).observe},
		{"identity", "new and cached identities", (*bencher).identities},
		{"change", "policy change to the first packet that meets it", onTestbed(1, (*bencher).policyChange)},
		{"compute", "policy computation of a large cluster", (*bencher).policyCompute},
		{"start", "start of the agent with endpoints to restore", onTestbed(1, (*bencher).agentStart)},
		{"memory", "memory of the agent", onTestbed(1, (*bencher).agentMemory)},
		{"pod-ready", "pods of a real cluster, created until Ready", (*bencher).podReady},
		{"pod-managed", "the same where the operator makes identities", (*bencher).podManaged},
		{"ipam", "CNI ADD where a cloud gives the addresses", (*bencher).cloudAddresses},
	}
}

// Groups lists the names that Config.Rows may have.
func Groups() []string {
	var out []string
	for _, g := range groups() {
		out = append(out, g.name)
	}
	return out
}

// bencher is one run.
type bencher struct {
	cfg     Config
	dir     string
	started time.Time
	report  *Report
}

// Run measures the rows and returns what was found. A row that fails is in the report with its
// error, and in the error returned; the others are measured all the same.
func Run(ctx context.Context, cfg Config) (*Report, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if cfg.Progress == nil {
		cfg.Progress = io.Discard
	}
	dir, err := os.MkdirTemp("", "hawser-bench-")
	if err != nil {
		return nil, err
	}
	b := &bencher{cfg: cfg, dir: dir, started: time.Now(), report: newReport(cfg.Quick)}
	if b.report.Load = loadAverage(); b.report.Load > 0.5 {
		b.say("others keep the machine busy (load average %.1f): trust the ratios only", b.report.Load)
	}
	total, stolen := processorTime()
	var errs []error
	for _, g := range groups() {
		if len(cfg.Rows) > 0 && !slices.Contains(cfg.Rows, g.name) {
			continue
		}
		if ctx.Err() != nil {
			break
		}
		b.say("%s: %s", g.name, g.what)
		if err := g.run(b, ctx); err != nil {
			b.say("%s failed: %v", g.name, err)
			b.report.Failed = append(b.report.Failed, Failure{Row: g.name, Error: err.Error()})
			errs = append(errs, fmt.Errorf("%s: %w", g.name, err))
		}
	}
	b.report.Seconds = time.Since(b.started).Seconds()
	if t, st := processorTime(); t > total {
		b.report.StolenPercent = 100 * (st - stolen) / (t - total)
	}
	errs = append(errs, ctx.Err(), ReleaseMounts(dir))
	if !cfg.Keep {
		errs = append(errs, os.RemoveAll(dir))
	} else {
		b.say("logs are in %s", dir)
	}
	return b.report, errors.Join(errs...)
}

func (b *bencher) say(format string, args ...any) {
	fmt.Fprintf(b.cfg.Progress, "%6.1fs  %s\n", time.Since(b.started).Seconds(), fmt.Sprintf(format, args...))
}

// pick returns full or, in a quick run, quick.
func pick[T any](b *bencher, full, quick T) T {
	if b.cfg.Quick {
		return quick
	}
	return full
}

// thisMachine describes where the figures were taken.
func thisMachine() (kernel string, cpus int) {
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		kernel = unix.ByteSliceToString(u.Release[:])
	}
	return kernel, runtime.NumCPU()
}

// loadAverage returns the machine's load of the last minute, 0 if it is unknown.
func loadAverage() (load float64) {
	data, err := os.ReadFile("/proc/loadavg")
	if err == nil {
		_, err = fmt.Sscan(string(data), &load)
	}
	if err != nil {
		return 0
	}
	return load
}

// processorTime returns the machine's time in all states and that stolen from it by its host, in
// ticks since boot (see proc(5), /proc/stat).
func processorTime() (total, stolen float64) {
	data, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, 0
	}
	line, _, _ := strings.Cut(string(data), "\n")
	for i, f := range strings.Fields(line) {
		var v float64
		if i == 0 || i > 8 { // its name; the rest is counted above already
			continue
		}
		if _, err := fmt.Sscan(f, &v); err != nil {
			return 0, 0
		}
		total += v
		if i == 8 {
			stolen = v
		}
	}
	return total, stolen
}
