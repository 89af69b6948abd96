// Package report is what a run of the benchmark of large clusters found, for programs and people.
package report

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/kube/parts"
)

// Report is what a run found on a machine.
type Report struct {
	Machine   Machine    `json:"machine"`
	Scenarios []Scenario `json:"scenarios"`
}

// Machine is what was measured on. Figures of different machines do not belong beside each other.
type Machine struct {
	Kernel     string `json:"kernel"`
	CPUs       int    `json:"cpus"`
	Kubernetes string `json:"kubernetes"`
}

// Scenario is one question with its answers.
type Scenario struct {
	Name  string    `json:"name"`
	Title string    `json:"title"`
	Taken time.Time `json:"taken"`
	// Load is the machine's load average of the minute before.
	Load float64 `json:"load"`
	// Text says what is done, Shared what the stub agents share and what is left out.
	Text     string    `json:"text"`
	Shared   string    `json:"shared"`
	Variants []Variant `json:"variants"`
	Plots    []Plot    `json:"plots,omitempty"`
	// Limits says what keeps each variant from being faster or larger.
	Limits  []string `json:"limits,omitempty"`
	Seconds float64  `json:"seconds"`
	Error   string   `json:"error,omitempty"`
}

// Variant is one way of doing it.
type Variant struct {
	Name    string   `json:"name"`
	Figures []Figure `json:"figures"`
	Checks  []Check  `json:"checks"`
	// Calls are the requests for custom resources that the API server answered.
	Calls []Call `json:"calls,omitempty"`
	// Processors is how many processors each kind of process used on average while it was measured.
	Processors map[string]float64 `json:"processors,omitempty"`
	// Texts is what else was found.
	Texts []string `json:"texts,omitempty"`
	Error string   `json:"error,omitempty"`
}

// Figure is one number.
type Figure struct {
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit,omitempty"`
	// Note says what else must be known to read it.
	Note string `json:"note,omitempty"`
}

// Check is an invariant.
type Check struct {
	Name  string `json:"name"`
	Holds bool   `json:"holds"`
	// Comparison says that it is not expected of this variant.
	Comparison bool `json:"comparison,omitempty"`
	// Count is how many times it does not hold, Wrong the first of them.
	Count int      `json:"count,omitempty"`
	Wrong []string `json:"wrong,omitempty"`
}

// Call is how often something was asked of the API server, and how often it refused.
type Call struct {
	Verb     string  `json:"verb"`
	Resource string  `json:"resource"`
	Count    float64 `json:"count"`
	Refused  float64 `json:"refused,omitempty"`
}

// New returns an empty report of this machine.
func New() *Report {
	r := &Report{Machine: Machine{CPUs: runtime.NumCPU(), Kubernetes: parts.Version}}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		r.Machine.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return r
}

// NewScenario returns one that begins now, without answers.
func NewScenario(name, title string) *Scenario {
	out := &Scenario{Name: name, Title: title, Taken: time.Now().UTC().Truncate(time.Second)}
	if data, err := os.ReadFile("/proc/loadavg"); err == nil {
		_, _ = fmt.Sscan(string(data), &out.Load) // 0 says that it is unknown
	}
	return out
}

// keep takes over what an earlier report in a directory says of scenarios that this one has not
// run. Without one, or with one of another machine, it does nothing.
func (r *Report) keep(dir string, order []string) error {
	data, err := os.ReadFile(filepath.Join(dir, reportFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var old Report
	if err := json.Unmarshal(data, &old); err != nil {
		return fmt.Errorf("the report of before, %s: %w; remove it, or give another --out", filepath.Join(dir, reportFile), err)
	}
	if old.Machine != r.Machine {
		return nil
	}
	have := map[string]Scenario{}
	for _, s := range append(old.Scenarios, r.Scenarios...) {
		have[s.Name] = s
	}
	r.Scenarios = nil
	for _, name := range order {
		if s, ok := have[name]; ok {
			r.Scenarios = append(r.Scenarios, s)
		}
	}
	return nil
}

// reportFile is the report for programs.
const reportFile = "report.json"

// Figure adds a number.
func (v *Variant) Figure(name string, value float64, unit, note string) {
	v.Figures = append(v.Figures, Figure{Name: name, Value: value, Unit: unit, Note: note})
}

// Value returns a figure, 0 if there is none.
func (v *Variant) Value(name string) float64 {
	for _, f := range v.Figures {
		if f.Name == name {
			return f.Value
		}
	}
	return 0
}

// shownWrong is how many of the things that are wrong a report names.
const shownWrong = 3

// Check adds an invariant with what does not hold of it.
func (v *Variant) Check(name string, comparison bool, wrong []string) {
	v.Checks = append(v.Checks, Check{
		Name: name, Holds: len(wrong) == 0, Comparison: comparison, Count: len(wrong), Wrong: slices.Clone(wrong[:min(shownWrong, len(wrong))]),
	})
}

// Broken returns the invariants that should hold and do not.
func (v *Variant) Broken(scenario string) []error {
	var errs []error
	for _, c := range v.Checks {
		if !c.Holds && !c.Comparison {
			errs = append(errs, fmt.Errorf("%s, %s: not true that %s, %d times: %s", scenario, v.Name, c.Name, c.Count, strings.Join(c.Wrong, "; ")))
		}
	}
	return errs
}

// Number prints three significant digits, and whole numbers as they are.
func Number(v float64) string {
	switch a := math.Abs(v); {
	case v == math.Trunc(v) && a < 1e6:
		return strconv.FormatFloat(v, 'f', 0, 64)
	case a >= 1e6:
		return fmt.Sprintf("%.3g M", v/1e6)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

// Write writes report.json, report.md and the plots into a directory, which is made if there is
// none. What an earlier run on this machine left there of other scenarios becomes part of the
// report; order are the names of all scenarios.
func (r *Report) Write(dir string, order []string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := r.keep(dir, order); err != nil {
		return err
	}
	for _, s := range r.Scenarios {
		for _, p := range s.Plots {
			for i := range p.Lines {
				p.Lines[i].thin()
			}
		}
	}
	write := func(name string, f func(io.Writer) error) error {
		file, err := os.Create(filepath.Join(dir, name))
		if err != nil {
			return err
		}
		return errors.Join(f(file), file.Close())
	}
	errs := []error{write(reportFile, r.JSON), write("report.md", r.Markdown)}
	for _, s := range r.Scenarios {
		for _, p := range s.Plots {
			errs = append(errs, write(p.File, p.SVG))
		}
	}
	return errors.Join(errs...)
}

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Markdown writes the report for people. The plots that it shows are files beside it.
func (r *Report) Markdown(w io.Writer) error {
	var b strings.Builder
	fmt.Fprintf(&b, "# What a large cluster costs\n\nTaken with Kubernetes %s on Linux %s with %d processors.\n", r.Machine.Kubernetes, r.Machine.Kernel, r.Machine.CPUs)
	for i := range r.Scenarios {
		r.Scenarios[i].markdown(&b)
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func (s *Scenario) markdown(b *strings.Builder) {
	fmt.Fprintf(b, "\n## %s (`%s`)\n\n%s\n\nTaken %s, in %s, at a load average of %.1f before.\n", s.Title, s.Name, s.Text,
		s.Taken.Format("2006-01-02 15:04 MST"), time.Duration(s.Seconds*float64(time.Second)).Round(time.Second), s.Load)
	if s.Error != "" {
		fmt.Fprintf(b, "\n**It failed**: %s\n", s.Error)
	}
	if len(s.Variants) > 0 {
		head := []string{""}
		for _, v := range s.Variants {
			head = append(head, v.Name)
		}
		rows := s.rows()
		var notes []string
		for _, v := range s.Variants {
			for _, f := range v.Figures {
				if line := f.Name + ": " + f.Note; f.Note != "" && !slices.Contains(notes, line) {
					notes = append(notes, line)
				}
			}
		}
		b.WriteString("\n")
		markdownTable(b, head, rows)
		for _, v := range s.Variants {
			notes = append(notes, v.Texts...)
		}
		list(b, "", notes)
		s.checks(b)
		s.calls(b, head)
	}
	for _, p := range s.Plots {
		fmt.Fprintf(b, "\n![%s](%s)\n", p.Title, p.File)
	}
	list(b, "What limits it:", s.limits())
	if s.Shared != "" {
		fmt.Fprintf(b, "\nHow it is measured: %s\n", s.Shared)
	}
}

// rows returns a line for each figure, with a column for each variant.
func (s *Scenario) rows() [][]string {
	var names []string
	for _, v := range s.Variants {
		for _, f := range v.Figures {
			if !slices.Contains(names, f.Name) {
				names = append(names, f.Name)
			}
		}
	}
	var rows [][]string
	for _, name := range names {
		row := []string{name}
		for _, v := range s.Variants {
			cell := ""
			if i := slices.IndexFunc(v.Figures, func(f Figure) bool { return f.Name == name }); i >= 0 {
				cell = strings.TrimSpace(Number(v.Figures[i].Value) + " " + v.Figures[i].Unit)
			}
			row = append(row, cell)
		}
		rows = append(rows, row)
	}
	return rows
}

// checks lists the invariants.
func (s *Scenario) checks(b *strings.Builder) {
	var lines []string
	for _, v := range s.Variants {
		if v.Error != "" {
			lines = append(lines, fmt.Sprintf("**%s did not end well**: %s", v.Name, v.Error))
		}
		for _, c := range v.Checks {
			line := v.Name + ": " + c.Name
			switch {
			case c.Holds:
				line = "holds: " + line
			case c.Comparison:
				line = fmt.Sprintf("does not hold, as expected: %s, %d times: %s", line, c.Count, strings.Join(c.Wrong, "; "))
			default:
				line = fmt.Sprintf("**does not hold**: %s, %d times: %s", line, c.Count, strings.Join(c.Wrong, "; "))
			}
			lines = append(lines, line)
		}
	}
	list(b, "Invariants:", lines)
}

// calls shows the requests of all variants side by side.
func (s *Scenario) calls(b *strings.Builder, head []string) {
	counts := map[string][]string{}
	for i, v := range s.Variants {
		for _, c := range v.Calls {
			what := c.Verb + " " + c.Resource
			if counts[what] == nil {
				counts[what] = make([]string, len(s.Variants))
			}
			cell := Number(c.Count)
			if c.Refused > 0 {
				cell += fmt.Sprintf(" (%s refused)", Number(c.Refused))
			}
			counts[what][i] = cell
		}
	}
	if len(counts) == 0 {
		return
	}
	var rows [][]string
	for _, what := range slices.Sorted(maps.Keys(counts)) {
		rows = append(rows, append([]string{what}, counts[what]...))
	}
	b.WriteString("\n")
	markdownTable(b, append([]string{"API calls"}, head[1:]...), rows)
}

// fullMachine is the share of all processors' time above which a run is limited by them: the rest
// is others'.
const fullMachine = 0.8

// limits returns what is said of limits, and how busy the machine was.
func (s *Scenario) limits() []string {
	out := slices.Clone(s.Limits)
	for _, v := range s.Variants {
		if len(v.Processors) == 0 {
			continue
		}
		sum := 0.0
		var each []string
		for _, name := range slices.SortedFunc(maps.Keys(v.Processors), func(a, b string) int {
			if v.Processors[a] > v.Processors[b] {
				return -1
			}
			return 1
		}) {
			sum += v.Processors[name]
			each = append(each, fmt.Sprintf("%s %.2f", name, v.Processors[name]))
		}
		what := "the processors were not what it waited for"
		if sum > fullMachine*float64(runtime.NumCPU()) {
			what = "the processors, which were all busy"
		}
		out = append(out, fmt.Sprintf("%s: %s: %.1f of %d were used: %s", v.Name, what, sum, runtime.NumCPU(), strings.Join(each, ", ")))
	}
	return out
}

func list(b *strings.Builder, head string, lines []string) {
	if len(lines) == 0 {
		return
	}
	b.WriteString("\n")
	if head != "" {
		b.WriteString(head + "\n\n")
	}
	for _, l := range lines {
		b.WriteString("- " + l + "\n")
	}
}

// markdownTable writes a table whose columns line up in the source too.
func markdownTable(b *strings.Builder, head []string, rows [][]string) {
	width := make([]int, len(head))
	for _, row := range append([][]string{head}, rows...) {
		for i, c := range row {
			width[i] = max(width[i], len(c), 3)
		}
	}
	line := func(row []string) {
		for i, c := range row {
			if i == 0 {
				fmt.Fprintf(b, "| %-*s ", width[i], c)
			} else {
				fmt.Fprintf(b, "| %*s ", width[i], c)
			}
		}
		b.WriteString("|\n")
	}
	line(head)
	for i, w := range width {
		if i == 0 {
			b.WriteString("|" + strings.Repeat("-", w+2))
		} else {
			b.WriteString("|" + strings.Repeat("-", w+1) + ":")
		}
	}
	b.WriteString("|\n")
	for _, row := range rows {
		line(row)
	}
}
