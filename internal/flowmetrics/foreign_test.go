package flowmetrics_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/flowmetrics"
	"github.com/hawser-net/hawser/internal/flows"
)

// TestClaimedAddresses: a pod that sends from others' addresses, and is dropped, neither counts for
// them nor resets what they have, and makes no series for what it claims.
func TestClaimedAddresses(t *testing.T) {
	m := parse(t, "flow:sourceContext=ip drop:labelsContext=source_ip policy:sourceContext=ip|pod tcp:labelsContext=source_ip,source_pod,source_namespace")
	dropped := func() *flow.Flow {
		f := refused(flows.EventDrop)
		f.DropReason, f.DropReasonDesc = 132, flow.DropReason_INVALID_SOURCE_IP
		return f
	}
	spoof := func(claims string) *flow.Flow {
		f := dropped()
		f.Source = &flow.Endpoint{ID: 9, Identity: 2000, Namespace: "evil", PodName: "evil-1"}
		f.IP.Source = claims
		return f
	}
	for range 5 {
		m.Add(opening(), flowmetrics.Foreign{}, start)
		m.Add(refused(flows.EventDrop), flowmetrics.Foreign{}, start)
		m.Add(dropped(), flowmetrics.Foreign{}, start)
	}
	before := gather(t, m)
	const many = 300
	for i := range many {
		m.Add(spoof("10.0.1.1"), flowmetrics.Foreign{Source: true}, start)
		m.Add(spoof(fmt.Sprintf("10.9.%d.%d", i>>8, i&255)), flowmetrics.Foreign{Source: true}, start)
	}
	after := gather(t, m)
	for name, n := range before {
		if strings.Contains(name, "10.0.1.1") && after[name] != n {
			t.Errorf("%s was %v and is %v", name, n, after[name])
		}
	}
	if len(after) > len(before)+4 {
		t.Errorf("%d series became %d", len(before), len(after))
	}
	has(t, after, map[string]float64{
		`hubble_drop_total{protocol="TCP",reason="INVALID_SOURCE_IP",source_ip=""}`:                       2 * many,
		`hubble_flows_processed_total{protocol="TCP",source="",subtype="",type="Drop",verdict="DROPPED"}`: 2 * many,
		`hubble_metrics_folded_total{metric="drop"}`:                                                      0,
		`hubble_drop_total{protocol="TCP",reason="INVALID_SOURCE_IP",source_ip="10.0.1.1"}`:               5,
	})
}

// TestAddressOfService: what the pods behind a service send with its address is one series, which
// does not begin anew with each of them.
func TestAddressOfService(t *testing.T) {
	m := parse(t, "flow:sourceContext=ip")
	for i := range 10 {
		f := opening()
		f.IP.Source, f.Source.PodName = "10.96.0.1", fmt.Sprintf("front-%d", i%2)
		m.Add(f, flowmetrics.Foreign{Source: true}, start)
	}
	has(t, gather(t, m), map[string]float64{
		`hubble_flows_processed_total{protocol="TCP",source="10.96.0.1",subtype="",type="PolicyVerdict",verdict="FORWARDED"}`: 10,
	})
	if m.OfPods() {
		t.Error("a pod is named by the address of a service")
	}
}
