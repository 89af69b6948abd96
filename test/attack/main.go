// Command attack plays adversaries against a sandbox and says what became of each attack:
//
//	go run ./test/attack                                all attacks in all modes
//	go run ./test/attack -run 'pod: vxlan' -modes tunnel
//	go run ./test/attack -list
//
// A row is who does what, in which family and mode, what is wanted and what it got. Around each
// attack controls are sent that must arrive: a broken probe proves nothing. The exit code
// is 0 only if every row is as wanted.
//
// It needs root, and hawser-agent and hawser-cni beside it or in the directory that -bin names.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// First arguments by which this program runs itself: as the sandbox's own processes, and as an
// unprivileged process.
const (
	helperSandbox = "sandbox"
	helperUser    = "as-user"
)

func main() { os.Exit(run()) }

type options struct {
	name, bin, run, modes string
	json, keep            bool
}

func run() int {
	if len(os.Args) > 2 && os.Args[1] == helperUser {
		return asUser(os.Args[2:])
	}
	if len(os.Args) > 1 && os.Args[1] == helperSandbox {
		cmd := sandbox.NewCommand()
		cmd.SetArgs(os.Args[2:])
		if err := cmd.ExecuteContext(context.Background()); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return 0
	}
	exe, err := os.Executable()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 2
	}
	var o options
	var list bool
	flag.StringVar(&o.name, "name", "attack", "name of the sandbox; one of that name that is there is removed")
	flag.StringVar(&o.bin, "bin", filepath.Dir(exe), "directory of hawser-agent and hawser-cni")
	flag.StringVar(&o.run, "run", "", "regular expression of the rows to play, as -list prints them; all if empty")
	flag.StringVar(&o.modes, "modes", "", "modes to play in, separated by commas; all if empty: "+modeNames())
	flag.BoolVar(&o.json, "json", false, "print the results as JSON, and progress to stderr")
	flag.BoolVar(&o.keep, "keep", false, "leave the last sandbox running")
	flag.BoolVar(&list, "list", false, "list the rows")
	flag.Parse()
	if list {
		for _, r := range rows() {
			fmt.Println(r.name())
		}
		return 0
	}
	return lab.Main("attack", o.all)
}

func modeNames() string {
	var out []string
	for _, m := range modes() {
		out = append(out, m.String())
	}
	return strings.Join(out, ", ")
}

// chooseModes reads a list of modes; empty means all.
func chooseModes(list string) ([]mode, error) {
	if list == "" {
		return modes(), nil
	}
	var out []mode
	for name := range strings.SplitSeq(list, ",") {
		i := slices.IndexFunc(modes(), func(m mode) bool { return m.String() == name })
		if i < 0 {
			return nil, fmt.Errorf("-modes: no mode %q: there are %s", name, modeNames())
		}
		out = append(out, modes()[i])
	}
	return out, nil
}

// rows are all attacks. Those that change the stage for good come last.
func rows() []row {
	return slices.Concat(podRows(), formRows(), hostNetworkRows(), underlayRows(), nodeRows(), socketRows(), tenantRows(), floodRows(), reuseRows(), storeRows(), accidentRows())
}

// all plays the chosen rows in the chosen modes and prints what came out.
func (o *options) all(ctx context.Context) (ok bool, err error) {
	in, err := chooseModes(o.modes)
	if err != nil {
		return false, err
	}
	pattern, err := regexp.Compile(o.run)
	if err != nil {
		return false, fmt.Errorf("-run: %w", err)
	}
	chosen := slices.DeleteFunc(rows(), func(r row) bool { return !pattern.MatchString(r.name()) })
	if len(chosen) == 0 {
		return false, fmt.Errorf("no row matches %q", o.run)
	}
	progress := io.Writer(os.Stdout)
	if o.json {
		progress = os.Stderr
	}
	var results []result
	for i, m := range in {
		got, err := o.inMode(ctx, m, chosen, progress, o.keep && i == len(in)-1)
		if err != nil {
			return false, fmt.Errorf("%s: %w", m, err)
		}
		results = append(results, got...)
	}
	if o.json {
		err = encode(os.Stdout, results)
		progress = io.Discard
	}
	return table(progress, results) == 0, err
}

// inMode plays rows on a stage of their own.
func (o *options) inMode(ctx context.Context, m mode, chosen []row, progress io.Writer, keep bool) (results []result, err error) {
	start := time.Now()
	st, err := newStage(ctx, m, o.name, o.bin, io.Discard)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(progress, "%s: the stage stands after %.1f s\n", m, time.Since(start).Seconds())
	defer func() {
		if !keep {
			ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Minute)
			defer cancel()
			if e := st.close(ctx); e != nil && err == nil {
				err = e
			}
		}
	}()
	for _, r := range chosen {
		if r.when != nil && !r.when(m) {
			continue
		}
		for _, family := range r.families() {
			res := r.play(&scene{stage: st, ctx: ctx, v6: family == "v6"}, family)
			if ctx.Err() != nil {
				return nil, ctx.Err()
			}
			results = append(results, res)
			if v := res.verdict(); v != "ok" {
				fmt.Fprintf(progress, "%s: %s %s %s: wanted %s, got %s\n", m, v, r.name(), family, res.Wanted, res.Got)
			}
		}
	}
	fmt.Fprintf(progress, "%s: %d attacks in %.1f s\n", m, len(results), time.Since(start).Seconds())
	return results, nil
}
