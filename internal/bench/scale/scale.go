package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/bench/scale/report"
	"github.com/hawser-net/hawser/internal/labels"
)

// scenario is one question.
type scenario struct {
	name, title string
	run         func(*runner, context.Context, *report.Scenario) error
	// typical is how long it takes at the default sizes on two processors.
	typical time.Duration
}

func scenarios() []scenario {
	return []scenario{
		{"relabel", "A namespace gets another label", (*runner).relabel, 4 * time.Minute},
		{"identities", "All identities are taken", (*runner).fill, 4 * time.Minute},
		{"collect", "Many identities end at once", (*runner).collect, 3 * time.Minute},
		{"stream", "Pods come at a steady rate", (*runner).stream, 3 * time.Minute},
		{"memory", "What operator and agent need", (*runner).memory, 3 * time.Minute},
		{"ipam", "Nodes get addresses from a cloud", (*runner).ipam, 4 * time.Minute},
		{"mesh", "Another cluster learns of pods", (*runner).mesh, 2 * time.Minute},
	}
}

// Scenarios lists the names that Config.Scenarios may have.
func Scenarios() []string {
	var out []string
	for _, s := range scenarios() {
		out = append(out, s.name)
	}
	return out
}

// runner is one run.
type runner struct {
	cfg     Config
	dir     string
	filter  *labels.Filter
	log     *slog.Logger
	started time.Time
	said    time.Time
}

// Run runs the scenarios and returns what was found, also when some failed or an invariant did not
// hold; then there is an error too.
func Run(ctx context.Context, cfg Config) (*report.Report, error) {
	cfg.complete()
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "hawser-scale-")
	if err != nil {
		return nil, err
	}
	log, err := os.Create(filepath.Join(dir, "agents.log"))
	if err != nil {
		return nil, errors.Join(err, os.RemoveAll(dir))
	}
	defer log.Close()
	r := &runner{
		cfg: cfg, dir: dir, filter: labels.DefaultFilter(), started: time.Now(),
		log: slog.New(slog.NewTextHandler(log, &slog.HandlerOptions{Level: slog.LevelWarn})),
	}
	found := report.New()
	var errs []error
	all := slices.DeleteFunc(scenarios(), func(s scenario) bool { return len(cfg.Scenarios) > 0 && !slices.Contains(cfg.Scenarios, s.name) })
	for i, s := range all {
		if ctx.Err() != nil {
			break
		}
		var left time.Duration
		for _, later := range all[i:] {
			left += later.typical
		}
		r.say("%d/%d %s: %s (about %s left at the default sizes)", i+1, len(all), s.name, s.title, left)
		result := report.NewScenario(s.name, s.title)
		began := time.Now()
		err := s.run(r, ctx, result)
		result.Seconds = time.Since(began).Seconds()
		if err != nil {
			result.Error = err.Error()
			r.say("%s failed: %v", s.name, err)
			errs = append(errs, fmt.Errorf("%s: %w", s.name, err))
		}
		for _, v := range result.Variants {
			errs = append(errs, v.Broken(s.name)...)
		}
		if ctx.Err() == nil { // what was cut short says nothing, and must not take the place of what an earlier run found
			found.Scenarios = append(found.Scenarios, *result)
		}
	}
	errs = append(errs, ctx.Err())
	if cfg.Keep {
		r.say("logs are in %s", dir)
	} else {
		errs = append(errs, os.RemoveAll(dir))
	}
	return found, errors.Join(errs...)
}

func (r *runner) say(format string, args ...any) {
	r.said = time.Now()
	fmt.Fprintf(r.cfg.Progress, "%6.1fs  %s\n", time.Since(r.started).Seconds(), fmt.Sprintf(format, args...))
}

// progress says how far something is, now and then.
func (r *runner) progress(n, of int, what string) {
	if n == of || time.Since(r.said) > 5*time.Second {
		r.say("  %d of %d %s", n, of, what)
	}
}

// selfPID is this process.
func selfPID() int { return os.Getpid() }

// inModes measures each mode, as a variant of a scenario with a line of the plot.
func inModes(ctx context.Context, s *report.Scenario, plot report.Plot, modes []string, measure func(context.Context, string, *report.Variant) (report.Line, error)) error {
	var errs []error
	for _, mode := range modes {
		v := report.Variant{Name: mode}
		line, err := measure(ctx, mode, &v)
		if err != nil {
			v.Error = err.Error()
			errs = append(errs, fmt.Errorf("%s: %w", mode, err))
		}
		s.Variants = append(s.Variants, v)
		plot.Lines = append(plot.Lines, line)
	}
	s.Plots = append(s.Plots, plot)
	return errors.Join(errs...)
}
