package bench

import (
	"bytes"
	"encoding/json"
	"io"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestQuantile(t *testing.T) {
	for _, row := range []struct {
		values []int
		q      float64
		want   int
	}{
		{nil, 0.5, 0},
		{[]int{7}, 0.99, 7},
		{[]int{3, 1, 2}, 0.5, 2},
		{[]int{3, 1, 2}, 0.99, 3},
		{[]int{3, 1, 2}, 1, 3},
	} {
		if got := quantile(row.values, row.q); got != row.want {
			t.Errorf("quantile %v of %v is %d, want %d", row.q, row.values, got, row.want)
		}
	}
}

// TestRatio: a round that a neighbour disturbed as a whole does not move the ratio.
func TestRatio(t *testing.T) {
	var p pairs
	p.add(11, 10)
	p.add(1100, 1000)
	p.add(33, 30)
	p.add(40, 10)
	p.add(11, 0) // no baseline, no ratio
	if got := p.ratio(); got < 1.09 || got > 1.11 {
		t.Errorf("ratio %v, want 1.1", got)
	}
}

func TestReached(t *testing.T) {
	b := &bencher{cfg: Config{Progress: io.Discard}, report: newReport(true), started: time.Now()}
	for _, row := range []struct {
		name string
		f    Figure
		want string
	}{
		{"no goal", Figure{Value: 1}, ""},
		{"below both", Figure{Value: 4, First: 25, Far: 5}, "far"},
		{"between", Figure{Value: 20, First: 25, Far: 5}, "first"},
		{"above both", Figure{Value: 30, First: 25, Far: 5}, "no"},
		{"more is better", Figure{Value: 160, First: 30, Far: 150, Higher: true}, "far"},
		{"ratio", Figure{Value: 10.8, Baseline: 10, First: 1.05, Far: 0.95, GoalOfRatio: true}, "no"},
		{"no far goal", Figure{Value: 1, First: 2}, "first"},
	} {
		row.f.Name = row.name
		b.add(row.f)
		if got := b.report.Figures[len(b.report.Figures)-1].Reached; got != row.want {
			t.Errorf("%s: reached %q, want %q", row.name, got, row.want)
		}
	}
	var table, text bytes.Buffer
	if err := b.report.Table(&table); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(table.String(), "1.05 / 0.95 x") {
		t.Errorf("no goals in the table:\n%s", &table)
	}
	if err := b.report.JSON(&text); err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(text.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*b.report, back); diff != "" {
		t.Errorf("the report does not survive JSON:\n%s", diff)
	}
}

func TestValidate(t *testing.T) {
	err := (&Config{Rows: []string{"rr", "quick"}, BinDir: t.TempDir()}).Validate()
	for _, want := range []string{`no row "quick"`, "hawser-agent", "hawser-cni", "no program to serve etcd"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v does not mention %s", err, want)
		}
	}
}

// TestFlows measures the baseline's path for a moment, by all three ways.
func TestFlows(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root: makes network namespaces")
	}
	b := &bencher{dir: t.TempDir()}
	for _, routers := range []int{1, 2} {
		p, remove, err := b.plainPath(strings.Repeat("x", routers), routers)
		if err != nil {
			t.Fatal(err)
		}
		for _, w := range placements() {
			rr, err := p.roundTrips(20*time.Millisecond, w)
			if err != nil || len(rr) == 0 {
				t.Errorf("%d routers, %s: %d round trips, %v", routers, w.name, len(rr), err)
			}
			crr, err := p.connections(20*time.Millisecond, w)
			if err != nil || len(crr) == 0 {
				t.Errorf("%d routers, %s: %d connections, %v", routers, w.name, len(crr), err)
			}
			rate, err := p.stream(20*time.Millisecond, w)
			if err != nil || rate <= 0 {
				t.Errorf("%d routers, %s: %v Gbit/s, %v", routers, w.name, rate, err)
			}
		}
		if err := p.refuses(flowPort + 1); err == nil {
			t.Error("a port that answers with a reset counts as closed by policy")
		}
		if err := remove(); err != nil {
			t.Error(err)
		}
	}
}

// TestReadSandboxes: a kubelet has a histogram for each handler of its runtime.
func TestReadSandboxes(t *testing.T) {
	got, err := readSandboxes([]byte(`# TYPE kubelet_run_podsandbox_duration_seconds histogram
kubelet_run_podsandbox_duration_seconds_bucket{runtime_handler="",le="0.005"} 0
kubelet_run_podsandbox_duration_seconds_sum{runtime_handler=""} 1.5
kubelet_run_podsandbox_duration_seconds_count{runtime_handler=""} 10
kubelet_run_podsandbox_duration_seconds_sum{runtime_handler="other"} 0.5
kubelet_run_podsandbox_duration_seconds_count{runtime_handler="other"} 10
kubelet_run_podsandbox_errors_total{runtime_handler=""} 7
`))
	if want := (sandboxTime{2, 20}); err != nil || got != want || got.mean() != 100 {
		t.Errorf("%+v, mean %v ms, %v; want %+v, 100 ms", got, got.mean(), err, want)
	}
	if m := (sandboxTime{}).mean(); m != 0 {
		t.Errorf("the mean of none is %v", m)
	}
	if _, err := readSandboxes([]byte("kubelet_run_podsandbox_duration_seconds_sum{} many\n")); err == nil {
		t.Error("a metric that is no number is taken")
	}
}

func TestLines(t *testing.T) {
	var got []string
	l := &lines{say: func(s string) { got = append(got, s) }}
	for _, part := range []string{"one\ntw", "o\n\n", "three"} {
		if n, err := l.Write([]byte(part)); n != len(part) || err != nil {
			t.Errorf("%d bytes of %q, %v", n, part, err)
		}
	}
	if diff := cmp.Diff([]string{"one", "two"}, got); diff != "" {
		t.Error(diff)
	}
}

// TestNeeded: what the cloud is asked for in advance, after the pod has its address, is not time
// that the pod waited for.
func TestNeeded(t *testing.T) {
	before := map[string]int{"AssignPrivateIpAddresses": 3, "CreateNetworkInterface": 1, "AttachNetworkInterface": 1}
	for name, row := range map[string]struct {
		after   map[string]int
		answers int
		made    bool
	}{
		"nothing":      {map[string]int{"AssignPrivateIpAddresses": 3, "CreateNetworkInterface": 1, "AttachNetworkInterface": 1, "DescribeSubnets": 9}, 0, false},
		"assigned":     {map[string]int{"AssignPrivateIpAddresses": 4, "CreateNetworkInterface": 1, "AttachNetworkInterface": 1}, 1, false},
		"two assigned": {map[string]int{"AssignPrivateIpAddresses": 5, "CreateNetworkInterface": 1, "AttachNetworkInterface": 1}, 1, false},
		"interface":    {map[string]int{"AssignPrivateIpAddresses": 4, "CreateNetworkInterface": 2, "AttachNetworkInterface": 2}, 2, true},
	} {
		if answers, made := needed(before, row.after); answers != row.answers || made != row.made {
			t.Errorf("%s: %d answers, interface made %v; want %d, %v", name, answers, made, row.answers, row.made)
		}
	}
}
