package flowmetrics_test

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/flowmetrics"
	"github.com/hawser-net/hawser/internal/flows"
)

var start = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func parse(t testing.TB, list string) *flowmetrics.Metrics {
	t.Helper()
	asked, err := flowmetrics.Parse(list)
	if err != nil {
		t.Fatal(err)
	}
	return flowmetrics.New(asked)
}

// gather returns what a scrape reads: a line such as name{a="1",b="2"} for each series.
func gather(t testing.TB, m *flowmetrics.Metrics) map[string]float64 {
	t.Helper()
	registry := prometheus.NewRegistry()
	registry.MustRegister(m)
	families, err := registry.Gather()
	if err != nil {
		t.Fatalf("a scrape fails: %v", err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, s := range f.GetMetric() {
			var pairs []string
			for _, l := range s.GetLabel() {
				pairs = append(pairs, fmt.Sprintf("%s=%q", l.GetName(), l.GetValue()))
			}
			if f.GetType() != dto.MetricType_COUNTER {
				t.Errorf("%s is no counter", f.GetName())
			}
			out[f.GetName()+"{"+strings.Join(pairs, ",")+"}"] = s.GetCounter().GetValue()
		}
	}
	return out
}

func has(t *testing.T, got map[string]float64, want map[string]float64) {
	t.Helper()
	for name, n := range want {
		if got[name] != n {
			t.Errorf("%s is %v, want %v; there are\n%s", name, got[name], n, strings.Join(slices.Sorted(maps.Keys(got)), "\n"))
		}
	}
}

// opening is the verdict about the first packet of a TCP connection from front to db.
func opening() *flow.Flow {
	return &flow.Flow{
		Verdict: flow.Verdict_FORWARDED, PolicyMatchType: 2, EventType: &flow.CiliumEventType{Type: flows.EventVerdict}, TrafficDirection: flow.TrafficDirection_INGRESS,
		IP: &flow.IP{Source: "10.0.1.1", Destination: "10.0.2.1", IpVersion: flow.IPVersion_IPv4}, IsReply: wrapperspb.Bool(false),
		L4: &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: 40000, DestinationPort: 5432, Flags: &flow.TCPFlags{SYN: true}}}},
		Source: &flow.Endpoint{Identity: 1000, Namespace: "shop", PodName: "front-1", Labels: []string{"k8s:app=front", "k8s:tier=edge"},
			Workloads: []*flow.Workload{{Name: "front", Kind: "Deployment"}}},
		Destination: &flow.Endpoint{ID: 7, Identity: 1001, Namespace: "data", PodName: "db-0", Labels: []string{"k8s:app=old", "k8s:app.kubernetes.io/name=db"}},
	}
}

func refused(kind int32) *flow.Flow {
	f := opening()
	f.PolicyMatchType = 0
	f.Verdict, f.DropReasonDesc, f.DropReason = flow.Verdict_DROPPED, flow.DropReason_POLICY_DENIED, 133
	f.EventType = &flow.CiliumEventType{Type: kind}
	return f
}

func icmp(six bool, kind, code uint32) *flow.Flow {
	f := opening()
	f.L4 = &flow.Layer4{Protocol: &flow.Layer4_ICMPv4{ICMPv4: &flow.ICMPv4{Type: kind, Code: code}}}
	if six {
		f.IP.IpVersion = flow.IPVersion_IPv6
		f.L4 = &flow.Layer4{Protocol: &flow.Layer4_ICMPv6{ICMPv6: &flow.ICMPv6{Type: kind, Code: code}}}
	}
	return f
}

// TestNames: metrics have the names and labels by which dashboards of the field ask for them, and
// count what these mean.
func TestNames(t *testing.T) {
	m := parse(t, "drop,flow tcp port-distribution\nicmp policy")
	reset := opening()
	reset.L4.GetTCP().Flags = &flow.TCPFlags{RST: true, ACK: true}
	reset.IsReply = wrapperspb.Bool(true)
	own := refused(flows.EventDrop)
	own.DropReasonDesc, own.DropReason, own.HawserDropReason, own.L4 = 0, 0, "reason-250", nil
	fromHost := opening()
	fromHost.Source = &flow.Endpoint{Identity: 1}
	trace := opening()
	trace.EventType = &flow.CiliumEventType{Type: flows.EventTrace, SubType: 4}
	for _, f := range []*flow.Flow{
		opening(), opening(), refused(flows.EventVerdict), refused(flows.EventDrop), reset, own, fromHost, trace,
		icmp(false, 8, 0), icmp(false, 3, 3), icmp(true, 128, 0), icmp(true, 1, 9), icmp(false, 77, 6),
	} {
		m.Add(f, flowmetrics.Foreign{}, start)
	}
	m.Lose(flow.LostEventSource_PERF_EVENT_RING_BUFFER, 5)
	has(t, gather(t, m), map[string]float64{
		`hubble_drop_total{protocol="TCP",reason="POLICY_DENIED"}`:                                           1,
		`hubble_flows_processed_total{protocol="TCP",subtype="",type="PolicyVerdict",verdict="FORWARDED"}`:   4,
		`hubble_flows_processed_total{protocol="TCP",subtype="",type="PolicyVerdict",verdict="DROPPED"}`:     1,
		`hubble_flows_processed_total{protocol="TCP",subtype="",type="Drop",verdict="DROPPED"}`:              1,
		`hubble_flows_processed_total{protocol="Unknown L4",subtype="",type="Drop",verdict="DROPPED"}`:       1,
		`hubble_flows_processed_total{protocol="TCP",subtype="to-overlay",type="Trace",verdict="FORWARDED"}`: 1,
		`hubble_tcp_flags_total{family="IPv4",flag="SYN"}`:                                                   4,
		`hubble_tcp_flags_total{family="IPv4",flag="RST"}`:                                                   1,
		`hubble_port_distribution_total{port="5432",protocol="TCP"}`:                                         4,
		`hubble_port_distribution_total{port="0",protocol="ICMPv4"}`:                                         3,
		`hubble_icmp_total{family="IPv4",type="EchoRequest"}`:                                                1,
		`hubble_icmp_total{family="IPv4",type="DestinationUnreachable(Port)"}`:                               1,
		`hubble_icmp_total{family="IPv6",type="EchoRequest"}`:                                                1,
		`hubble_icmp_total{family="IPv6",type="DestinationUnreachable(Code: 9)"}`:                            1,
		`hubble_icmp_total{family="IPv4",type="77(6)"}`:                                                      1,
		`hubble_policy_verdicts_total{action="forwarded",direction="ingress",match="l3-l4"}`:                 8,
		`hubble_policy_verdicts_total{action="dropped",direction="ingress",match="none"}`:                    1,
		`hubble_lost_events_total{source="perf_event_ring_buffer"}`:                                          5,
		`hubble_metrics_folded_total{metric="port-distribution"}`:                                            0,
	})
}

// TestContexts: labels say who the sides are, in the ways that can be asked for.
func TestContexts(t *testing.T) {
	for options, want := range map[string]string{
		"sourceContext=pod;destinationContext=pod":                  `destination="data/db-0",%s,source="shop/front-1"`,
		"sourceContext=identity":                                    `%s,source="k8s:app=front,k8s:tier=edge"`,
		"sourceContext=dns|reserved-identity|ip":                    `%s,source="10.0.1.1"`,
		"sourceContext=workload;destinationContext=workload|app":    `destination="db",%s,source="shop/front"`,
		"SourceContext=workload-name;destinationContext=namespace":  `destination="data",%s,source="front"`,
		"sourceContext=pod;sourceIngressContext=pod-name":           `%s,source="front-1"`,
		"sourceContext=pod;sourceEgressContext=pod-name":            `%s,source="shop/front-1"`,
		"destinationEgressContext=ip;sourceContext=app":             `destination="",%s,source="front"`,
		"labelsContext=source_app,traffic_direction,destination_ip": `destination_ip="10.0.2.1",%s,source_app="front",traffic_direction="ingress"`,
		"labelsContext=source_workload_kind,destination_workload":   `destination_workload="",%s,source_workload_kind="Deployment"`,
	} {
		m := parse(t, "port-distribution:"+options)
		m.Add(opening(), flowmetrics.Foreign{}, start)
		has(t, gather(t, m), map[string]float64{"hubble_port_distribution_total{" + fmt.Sprintf(want, `port="5432",protocol="TCP"`) + "}": 1})
	}
	m := parse(t, "flow:sourceContext=reserved-identity")
	f := opening()
	f.Source.Labels = []string{"reserved:host", "reserved:kube-apiserver"}
	m.Add(f, flowmetrics.Foreign{}, start)
	has(t, gather(t, m), map[string]float64{`hubble_flows_processed_total{protocol="TCP",source="reserved:kube-apiserver",subtype="",type="PolicyVerdict",verdict="FORWARDED"}`: 1})
}

// TestEveryLabelOfEveryMetric: no label that can be asked for has the name of one that a metric has
// of its own, which would make every scrape fail.
func TestEveryLabelOfEveryMetric(t *testing.T) {
	const all = "source_ip,source_pod,source_namespace,source_workload,source_workload_kind,source_app," +
		"destination_ip,destination_pod,destination_namespace,destination_workload,destination_workload_kind,destination_app,traffic_direction"
	if _, err := flowmetrics.Parse("drop:labelsContext=none"); err == nil || !strings.Contains(err.Error(), strings.ReplaceAll(all, ",", ", ")) {
		t.Fatalf("the labels are others than this test tries: %v", err)
	}
	for _, metric := range []string{"drop", "flow", "icmp", "policy", "port-distribution", "tcp"} {
		m := parse(t, metric+":sourceContext=pod;destinationContext=pod;labelsContext="+all)
		for _, f := range []*flow.Flow{opening(), refused(flows.EventVerdict), refused(flows.EventDrop), icmp(false, 8, 0)} {
			m.Add(f, flowmetrics.Foreign{}, start)
		}
		if got := gather(t, m); !slices.ContainsFunc(slices.Collect(maps.Keys(got)), func(s string) bool { return strings.Contains(s, "traffic_direction=") }) {
			t.Errorf("%s: nothing was counted: %v", metric, got)
		}
	}
}

// TestParseRefuses: what is not known is an error that names it and what there is.
func TestParseRefuses(t *testing.T) {
	for list, want := range map[string]string{
		"drops":                                  `metric "drops" is none of drop, flow`,
		"drop http":                              `metric "http" counts layer 7`,
		"drop drop":                              `"drop" is listed twice`,
		"drop,,flow":                             `metric "" is none of`,
		"drop:context=pod":                       `metric "drop": option "context" is none of sourceContext`,
		"drop:sourceContext=pods":                `sourceContext: "pods" is none of identity`,
		"drop:sourceContext=pod|":                `sourceContext: "" is none of`,
		"drop:sourceContext=ip;sourcecontext=ip": `is listed twice`,
		"drop:labelsContext=source":              `labelsContext: "source" is none of source_ip`,
		"drop:labelsContext=source_ip,source_ip": `"source_ip" is listed twice`,
	} {
		if _, err := flowmetrics.Parse(list); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", list, err, want)
		}
	}
	if asked, err := flowmetrics.Parse(" \n"); err != nil || len(asked) != 0 {
		t.Errorf("nothing: %v, %v", asked, err)
	}
}

func FuzzParse(f *testing.F) {
	f.Add("drop:sourceContext=pod|ip;labelsContext=source_ip flow,tcp")
	f.Fuzz(func(t *testing.T, list string) {
		asked, err := flowmetrics.Parse(list)
		if err != nil {
			return
		}
		m := flowmetrics.New(asked)
		m.Add(opening(), flowmetrics.Foreign{}, start)
		gather(t, m)
	})
}

// TestSweepOfPortsIsFolded: a sender that scans every port, with every type of ICMP and from every
// address makes no more series than its share, is counted all the same, and leaves room to others.
// However much it sends, memory stays where it was.
func TestSweepOfPortsIsFolded(t *testing.T) {
	m := parse(t, "port-distribution:sourceContext=ip icmp drop:labelsContext=source_ip")
	sweep := func(identity uint32, from, n int) {
		for i := from; i < from+n; i++ {
			f := opening()
			f.Source = &flow.Endpoint{Identity: identity}
			f.IP.Source = fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255)
			f.L4.GetTCP().DestinationPort = uint32(i & 0xffff)
			m.Add(f, flowmetrics.Foreign{}, start)
			d := refused(flows.EventDrop)
			d.Source, d.IP = f.Source, f.IP
			m.Add(d, flowmetrics.Foreign{}, start)
			m.Add(icmp(i&1 == 0, uint32(i>>1&255), uint32(i>>9&255)), flowmetrics.Foreign{}, start)
		}
	}
	const many = 70000
	sweep(2, 0, many)
	heap := func() uint64 {
		runtime.GC()
		var st runtime.MemStats
		runtime.ReadMemStats(&st)
		return st.HeapAlloc
	}
	before := heap()
	sweep(2, many, many)
	if after := heap(); after > before+1<<20 {
		t.Errorf("%d flows more made the heap grow from %d to %d bytes", many, before, after)
	}
	got := gather(t, m)
	sum, series := map[string]float64{}, map[string]int{}
	for name, n := range got {
		name, _, _ = strings.Cut(name, "{")
		sum[name] += n
		series[name]++
	}
	for _, name := range []string{"hubble_port_distribution_total", "hubble_drop_total", "hubble_icmp_total"} {
		if series[name] > flowmetrics.MaxSeriesOfSender+10 {
			t.Errorf("%d series of %s", series[name], name)
		}
	}
	if sum["hubble_drop_total"] != 2*many || sum["hubble_icmp_total"] != 2*many {
		t.Errorf("of %d packets of a kind were counted %v", 2*many, sum)
	}
	has(t, got, map[string]float64{
		`hubble_drop_total{protocol="TCP",reason="POLICY_DENIED",source_ip="other"}`: 2*many - flowmetrics.MaxSeriesOfSender,
		`hubble_metrics_folded_total{metric="drop"}`:                                 2*many - flowmetrics.MaxSeriesOfSender,
	})
	// Another sender has its own series.
	m.Add(opening(), flowmetrics.Foreign{}, start)
	has(t, gather(t, m), map[string]float64{`hubble_port_distribution_total{port="5432",protocol="TCP",source="10.0.1.1"}`: 1})
	// Many senders together have no more than there is room for.
	for identity := range uint32(2 * flowmetrics.MaxSeries / 100) {
		sweep(100000+identity, 2*many+100*int(identity), 100)
	}
	n := 0
	for name := range gather(t, m) {
		if strings.HasPrefix(name, "hubble_drop_total{") {
			n++
		}
	}
	if n > flowmetrics.MaxSeries+1 {
		t.Errorf("%d series", n)
	}
	// What is not counted any more makes room.
	m.Sweep(start.Add(2*time.Hour), nil)
	if got := gather(t, m); len(got) > 100 {
		t.Errorf("after hours of silence there are %d series", len(got))
	}
}

// TestHostileNames: whatever pods are called, and whatever their labels are, others' numbers are
// not theirs and a scrape does not fail.
func TestHostileNames(t *testing.T) {
	m := parse(t, "flow:sourceContext=app;labelsContext=source_pod")
	named := func(identity uint32, app, pod string) *flow.Flow {
		f := opening()
		f.Source = &flow.Endpoint{Identity: identity, PodName: pod, Labels: []string{"k8s:app=" + app}}
		return f
	}
	long := strings.Repeat("ä", 5000)
	for range 2 {
		for i := range flowmetrics.MaxSeriesOfSender + 10 {
			m.Add(named(5, fmt.Sprint(i), "p"), flowmetrics.Foreign{}, start)
		}
		for _, f := range []*flow.Flow{
			named(6, "other", "other"), named(6, "a\xff", "b"), named(6, "a", "b"), named(6, "a\xff", "\xffb"), named(6, long, "b"), named(6, "x"+long, "b"),
			named(6, "x"+long+"y", "b"),
		} {
			m.Add(f, flowmetrics.Foreign{}, start)
		}
	}
	for name := range gather(t, m) {
		if len(name) > 2000 {
			t.Errorf("a series has %d bytes of name", len(name))
		}
	}
}

// TestPodsThatAreGone: series that name a pod go when it is gone for two sweeps, and not those that
// name its workload or its address of no pod.
func TestPodsThatAreGone(t *testing.T) {
	m := parse(t, "flow:sourceContext=workload|pod;destinationContext=pod drop:labelsContext=source_pod,source_namespace tcp:sourceContext=ip policy:sourceContext=workload")
	for _, kind := range []int32{flows.EventVerdict, flows.EventDrop} {
		m.Add(opening(), flowmetrics.Foreign{}, start)
		m.Add(refused(kind), flowmetrics.Foreign{}, start)
	}
	front, db := flowmetrics.Pod{Namespace: "shop", Name: "front-1"}, flowmetrics.Pod{Namespace: "data", Name: "db-0"}
	count := func() map[string]int {
		out := map[string]int{}
		for name := range gather(t, m) {
			name, _, _ = strings.Cut(name, "{")
			out[name]++
		}
		return out
	}
	if !m.OfPods() {
		t.Error("no series names a pod")
	}
	all := map[flowmetrics.Pod]bool{front: true, db: true}
	before := count()
	m.Sweep(start, all)
	m.Sweep(start, map[flowmetrics.Pod]bool{db: true}) // the caches have a gap
	m.Sweep(start, all)
	m.Sweep(start, map[flowmetrics.Pod]bool{db: true})
	if after := count(); !maps.Equal(before, after) {
		t.Errorf("%v became %v while the pods were there", before, after)
	}
	m.Sweep(start, map[flowmetrics.Pod]bool{db: true})
	after := count()
	if after["hubble_drop_total"] != 0 || after["hubble_tcp_flags_total"] != 0 {
		t.Errorf("series of a pod that is gone are there: %v", after)
	}
	if n := "hubble_flows_processed_total"; after[n] != before[n] || after["hubble_policy_verdicts_total"] != 2 {
		t.Errorf("series that do not name the pod are gone: %v, before %v", after, before)
	}
	m.Sweep(start, nil)
	m.Sweep(start, nil)
	if n := count()["hubble_flows_processed_total"]; n != 0 || m.OfPods() {
		t.Errorf("%d series name a pod that is gone", n)
	}
}

// TestAddressesThatAreReused: a series by address begins anew when another pod has the address, and
// stays while that is there; what names no pod for a moment changes nothing.
func TestAddressesThatAreReused(t *testing.T) {
	t.Parallel()
	m := parse(t, "flow:sourceContext=ip tcp:labelsContext=source_ip drop:labelsContext=destination_ip")
	old, next := opening(), opening()
	old.Source.PodName, next.Source.PodName = "front-1", "front-2"
	nameless := opening()
	nameless.Source = &flow.Endpoint{Identity: old.GetSource().GetIdentity()}
	counts := func() (n []float64) {
		for name, v := range gather(t, m) {
			if strings.HasPrefix(name, "hubble_flows_processed_total{") || strings.HasPrefix(name, "hubble_tcp_flags_total{") {
				n = append(n, v)
			}
		}
		return n
	}
	for range 5 {
		m.Add(old, flowmetrics.Foreign{}, start)
		m.Add(nameless, flowmetrics.Foreign{}, start)
	}
	if n := counts(); !slices.Equal(n, []float64{10, 10}) {
		t.Fatalf("of one pod were counted %v", n)
	}
	known := map[flowmetrics.Pod]bool{{Namespace: "shop", Name: "front-2"}: true}
	m.Sweep(start, known) // the old one is gone
	for range 3 {
		m.Add(next, flowmetrics.Foreign{}, start)
	}
	if n := counts(); !slices.Equal(n, []float64{3, 3}) {
		t.Errorf("of the pod that has the address now were counted %v", n)
	}
	m.Sweep(start, known)
	m.Sweep(start, known)
	if n := counts(); len(n) != 2 {
		t.Errorf("series of a pod that is there are gone: %v", n)
	}
}

func BenchmarkAdd(b *testing.B) {
	m := parse(b, "drop flow tcp port-distribution:sourceContext=workload|ip;destinationContext=workload icmp policy")
	f := opening()
	b.ReportAllocs()
	for b.Loop() {
		m.Add(f, flowmetrics.Foreign{}, start)
	}
}
