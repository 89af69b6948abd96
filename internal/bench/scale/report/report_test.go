package report

import (
	"bytes"
	"encoding/json"
	"encoding/xml"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestPlot writes charts of all sorts of lines: each must be well-formed, and show what it is
// given.
func TestPlot(t *testing.T) {
	t.Parallel()
	for _, p := range []Plot{
		{Title: "nothing", X: "x", Y: "y"},
		{Title: "a <b> & c", X: "x", Y: "y", Lines: []Line{{Name: "one", Points: []Point{{0, 0}}}}},
		{Title: "two", X: "x", Y: "y", Lines: []Line{{Name: "one", Points: Shares([]float64{1, 2, 3}, 4)}, {Name: "two", Points: []Point{{0, 12345}, {1e6, 3}}}}},
	} {
		var b bytes.Buffer
		if err := p.SVG(&b); err != nil {
			t.Fatal(err)
		}
		text := b.String()
		for d := xml.NewDecoder(&b); ; {
			_, err := d.Token()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				t.Fatalf("%s: %v:\n%s", p.Title, err, text)
			}
		}
		if strings.Contains(text, "NaN") || strings.Contains(text, "Inf") {
			t.Errorf("%s: not a number in\n%s", p.Title, text)
		}
		if got := strings.Count(text, `fill="none"`); got != len(p.Lines) {
			t.Errorf("%s: %d lines, want %d", p.Title, got, len(p.Lines))
		}
	}
	if diff := cmp.Diff([]Point{{0, 0}, {1, 25}, {2, 50}, {3, 75}}, Shares([]float64{1, 2, 3}, 4)); diff != "" {
		t.Errorf("shares (-want +got):\n%s", diff)
	}
}

// TestThin has a line with more points than a picture shows: it keeps its ends, and its order.
func TestThin(t *testing.T) {
	long := Line{Points: make([]Point, 5534)}
	for i := range long.Points {
		long.Points[i] = Point{float64(i), float64(i * i)}
	}
	whole := slices.Clone(long.Points)
	long.thin()
	if len(long.Points) != mostPoints || long.Points[0] != whole[0] || long.Points[mostPoints-1] != whole[len(whole)-1] {
		t.Errorf("%d points, from %v to %v", len(long.Points), long.Points[0], long.Points[len(long.Points)-1])
	}
	if !slices.IsSortedFunc(long.Points, func(a, b Point) int { return int(a.X - b.X) }) {
		t.Error("the points are out of order")
	}
	short := Line{Points: whole[:3]}
	if short.thin(); len(short.Points) != 3 {
		t.Errorf("%d points of 3", len(short.Points))
	}
}

func TestReport(t *testing.T) {
	t.Parallel()
	r := Report{Scenarios: []Scenario{{
		Name: "s", Title: "A question", Text: "What is done.", Shared: "Something is shared.", Limits: []string{"nothing"},
		Variants: []Variant{
			{Name: "a", Calls: []Call{{"GET", "x", 3, 1}}, Processors: map[string]float64{"etcd": 0.5, "harness": 1}},
			{Name: "b"},
		},
		Plots: []Plot{{File: "s.svg", Title: "plot"}},
	}}}
	a, b := &r.Scenarios[0].Variants[0], &r.Scenarios[0].Variants[1]
	a.Figure("time", 1.234, "s", "a note")
	b.Figure("time", 250000, "s", "a note")
	b.Figure("other", 0.00123, "", "")
	a.Check("all is well", false, []string{"1", "2", "3", "4"})
	b.Check("all is well", true, []string{"1"})
	if errs := a.Broken("s"); len(errs) != 1 || !strings.Contains(errs[0].Error(), "4 times: 1; 2; 3") {
		t.Errorf("broken: %v", errs)
	}
	if errs := b.Broken("s"); len(errs) != 0 {
		t.Errorf("what is for comparison counts: %v", errs)
	}
	var md, js bytes.Buffer
	if err := errors.Join(r.Markdown(&md), r.JSON(&js)); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"## A question (`s`)", "|       |      a |        b |", "| time  | 1.23 s | 250000 s |", "| other |        |  0.00123 |", "- time: a note\n",
		"- **does not hold**: a: all is well, 4 times: 1; 2; 3", "- does not hold, as expected: b: all is well, 1 times: 1",
		"| GET x     | 3 (1 refused) |", "![plot](s.svg)", "- nothing\n- a: the processors", "harness 1.00, etcd 0.50", "How it is measured: Something is shared.",
	} {
		if !strings.Contains(md.String(), want) {
			t.Errorf("no %q in\n%s", want, md.String())
		}
	}
	var back Report
	if err := json.Unmarshal(js.Bytes(), &back); err != nil || len(back.Scenarios[0].Variants) != 2 {
		t.Errorf("JSON: %v, %+v", err, back)
	}
}

// TestReportKeeps writes reports one after the other into a directory: each replaces its own
// scenarios, unless they are another machine's.
func TestReportKeeps(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	here := Machine{Kernel: "6.18", CPUs: 2, Kubernetes: "v1"}
	write := func(m Machine, scenarios ...Scenario) string {
		t.Helper()
		r := Report{Machine: m, Scenarios: scenarios}
		if err := r.Write(dir, []string{"relabel", "memory", "stream"}); err != nil {
			t.Fatal(err)
		}
		var out []string
		for _, s := range r.Scenarios {
			out = append(out, s.Name+"="+s.Text)
		}
		return strings.Join(out, " ")
	}
	for _, step := range []struct{ got, want string }{
		{write(here, Scenario{Name: "stream", Text: "1"}), "stream=1"},
		{write(here, Scenario{Name: "relabel", Text: "2"}), "relabel=2 stream=1"},
		{write(here, Scenario{Name: "stream", Text: "3"}), "relabel=2 stream=3"},
		{write(Machine{Kernel: "6.6"}, Scenario{Name: "memory", Text: "4"}), "memory=4"},
	} {
		if step.got != step.want {
			t.Errorf("the report has %q, want %q", step.got, step.want)
		}
	}
	if err := os.WriteFile(filepath.Join(dir, reportFile), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := Report{Machine: here}
	if err := r.Write(dir, []string{"relabel", "memory", "stream"}); err == nil || !strings.Contains(err.Error(), reportFile) {
		t.Errorf("over a report that cannot be read: %v", err)
	}
}
