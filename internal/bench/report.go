package bench

import (
	"encoding/json"
	"fmt"
	"io"
	"math"
	"strings"
	"time"
)

// Report is what a run found.
type Report struct {
	Taken   time.Time `json:"taken"`
	Kernel  string    `json:"kernel"`
	CPUs    int       `json:"cpus"`
	Quick   bool      `json:"quick"`
	Seconds float64   `json:"seconds"`
	// Load is the machine's load average of the minute before the run.
	Load float64 `json:"load"`
	// StolenPercent is the share of the processors' time that the machine's host gave to others.
	StolenPercent float64   `json:"stolenPercent"`
	Figures       []Figure  `json:"figures"`
	Failed        []Failure `json:"failed,omitempty"`
}

// Failure is a group of rows that could not be measured.
type Failure struct {
	Row   string `json:"row"`
	Error string `json:"error"`
}

// Figure is one row.
type Figure struct {
	// Row is the group, Name what was measured.
	Row  string `json:"row"`
	Name string `json:"name"`
	// Value is in Unit, as are Baseline and the goals, unless GoalOfRatio.
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Baseline is what BaselineName took in the same run, 0 if there is none.
	Baseline     float64 `json:"baseline,omitempty"`
	BaselineName string  `json:"baselineName,omitempty"`
	// Ratio is Value to Baseline, the median over rounds where there are rounds.
	Ratio float64 `json:"ratio,omitempty"`
	// First and Far are the goals, 0 if there is none.
	First       float64 `json:"firstGoal,omitempty"`
	Far         float64 `json:"farGoal,omitempty"`
	GoalOfRatio bool    `json:"goalOfRatio,omitempty"`
	// Higher says that more is better.
	Higher bool `json:"higherIsBetter,omitempty"`
	// Samples is how many single measurements are behind the value.
	Samples int `json:"samples"`
	// Reached is "far", "first", "no", or empty without goals.
	Reached string `json:"reached,omitempty"`
	// Note says what else must be known to read the value.
	Note string `json:"note,omitempty"`
}

func newReport(quick bool) *Report {
	r := &Report{Taken: time.Now().UTC().Truncate(time.Second), Quick: quick}
	r.Kernel, r.CPUs = thisMachine()
	return r
}

// add completes a figure and puts it in the report.
func (b *bencher) add(f Figure) {
	if f.Ratio == 0 && f.Baseline != 0 {
		f.Ratio = f.Value / f.Baseline
	}
	if v := f.Value; f.First != 0 {
		if f.GoalOfRatio {
			v = f.Ratio
		}
		within := func(goal float64) bool {
			if f.Higher {
				return v >= goal
			}
			return v <= goal
		}
		switch {
		case f.Far != 0 && within(f.Far):
			f.Reached = "far"
		case within(f.First):
			f.Reached = "first"
		default:
			f.Reached = "no"
		}
	}
	b.report.Figures = append(b.report.Figures, f)
	s := fmt.Sprintf("  %s: %s %s", f.Name, number(f.Value), f.Unit)
	if f.Baseline != 0 {
		s += fmt.Sprintf(", %s x of %s", number(f.Ratio), number(f.Baseline))
	}
	b.say("%s", s)
}

// number prints three significant digits.
func number(v float64) string {
	switch a := math.Abs(v); {
	case a == 0:
		return "0"
	case a >= 1e6:
		return fmt.Sprintf("%.2fM", v/1e6)
	case a >= 1e4:
		return fmt.Sprintf("%.1fk", v/1e3)
	case a >= 100:
		return fmt.Sprintf("%.0f", v)
	case a >= 10:
		return fmt.Sprintf("%.1f", v)
	case a >= 0.1:
		return fmt.Sprintf("%.2f", v)
	}
	return fmt.Sprintf("%.4f", v)
}

// JSON writes the report for programs.
func (r *Report) JSON(w io.Writer) error {
	enc := json.NewEncoder(w)
	enc.SetIndent("", "  ")
	return enc.Encode(r)
}

// Table writes the report for people.
func (r *Report) Table(w io.Writer) error {
	head := []string{"ROW", "WHAT", "VALUE", "BASELINE", "RATIO", "GOALS", "REACHED"}
	rows := [][]string{head}
	for _, f := range r.Figures {
		row := []string{f.Row, f.Name, number(f.Value) + " " + f.Unit, "-", "-", "-", f.Reached}
		if f.Baseline != 0 {
			row[3], row[4] = number(f.Baseline), number(f.Ratio)
		}
		if f.First != 0 {
			row[5] = number(f.First)
			if f.Far != 0 {
				row[5] += " / " + number(f.Far)
			}
			if f.GoalOfRatio {
				row[5] += " x"
			}
		}
		rows = append(rows, row)
	}
	width := make([]int, len(head))
	for _, row := range rows {
		for i, c := range row {
			width[i] = max(width[i], len(c))
		}
	}
	var s strings.Builder
	for _, row := range rows {
		line := ""
		for i, c := range row {
			if i >= 2 && i <= 4 {
				line += fmt.Sprintf("%*s  ", width[i], c)
			} else {
				line += fmt.Sprintf("%-*s  ", width[i], c)
			}
		}
		s.WriteString(strings.TrimRight(line, " ") + "\n")
	}
	s.WriteString("\nBaselines, measured in the same run:\n")
	seen := map[string]bool{}
	for _, f := range r.Figures {
		if line := fmt.Sprintf("  %s: %s\n", f.Row, f.BaselineName); f.BaselineName != "" && !seen[line] {
			seen[line] = true
			s.WriteString(line)
		}
	}
	for _, f := range r.Figures {
		if f.Note != "" {
			fmt.Fprintf(&s, "  %s, %s: %s\n", f.Row, f.Name, f.Note)
		}
	}
	for _, f := range r.Failed {
		fmt.Fprintf(&s, "FAILED %s: %s\n", f.Row, f.Error)
	}
	fmt.Fprintf(&s, "Linux %s, %d processors, %.0f %% of their time stolen, load average %.1f before, %.0f s\n", r.Kernel, r.CPUs, r.StolenPercent, r.Load, r.Seconds)
	_, err := io.WriteString(w, s.String())
	return err
}
