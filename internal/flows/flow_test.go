package flows_test

import (
	"encoding/hex"
	"net/netip"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flows"
)

// directory is one of a pod, a service and the world.
type directory struct{}

func (directory) Endpoint(n uint16) flows.Party {
	switch n {
	case 7:
		return directory{}.Party(netip.MustParseAddr("10.1.0.10"))
	case 8:
		return flows.Party{Endpoint: 8, Identity: 16384, Namespace: "shop", Pod: "front-2"}
	}
	return flows.Party{}
}

func (directory) Party(a netip.Addr) flows.Party {
	switch a.String() {
	case "10.1.0.10":
		return flows.Party{Endpoint: 7, Identity: 16384, Namespace: "shop", Pod: "front-1", Workloads: []*flow.Workload{{Name: "front", Kind: "Deployment"}}}
	case "10.1.0.11":
		return flows.Party{Identity: 16385}
	case "10.1.0.1":
		return flows.Party{Identity: 1, Node: "default/n1"}
	}
	return flows.Party{}
}

func (directory) Labels(id uint32) (labels []string, namespace, cluster string) {
	switch id {
	case 1:
		return []string{"reserved:host"}, "", ""
	case 16384:
		return []string{"k8s:app=front", "k8s:io.kubernetes.pod.namespace=shop"}, "shop", "default"
	case 16385:
		return []string{"k8s:app=db", "k8s:tier=store"}, "store", "other"
	case 2:
		return []string{"reserved:world"}, "", ""
	}
	return nil, "", ""
}

func (directory) Interface(index int) string {
	if index == 9 {
		return "lxc9"
	}
	return ""
}

func (directory) Service(a netip.Addr, port uint16, proto uint8) *flow.Service {
	if a.String() == "10.1.0.11" && port == 80 && proto == 6 {
		return &flow.Service{Namespace: "shop", Name: "db"}
	}
	return nil
}

func (directory) Policies(datapath.Event) []*flow.Policy {
	return []*flow.Policy{{Namespace: "shop", Name: "guard"}}
}

func frame(t testing.TB, text string) []byte {
	t.Helper()
	b, err := hex.DecodeString(strings.ReplaceAll(text, " ", ""))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

const (
	ether4   = "0a000000000b 0a000000000a 0800"
	syn      = ether4 + "4500002c 00000000 40060000 0a01000a 0a01000b" + "9c40 0050 00000000 00000000 6002 0000 00000000 020405b4"
	pinged   = ether4 + "4500001c 00000000 40010000 0a01000b 0a01000a" + "0000 0000 0001 0001"
	answered = ether4 + "4500002c 00000000 40060000 0a01000b 0a01000a" + "0050 9c40 00000000 00000000 6012 0000 00000000 020405b4"
	asked    = "ffffffffffff 0a000000000a 0806 0001 0800 06 04 0001 0a000000000a 0a01000a 000000000000 0a010001"
)

func event(t testing.TB, kind datapath.EventType, text string) datapath.Event {
	data := frame(t, text)
	return datapath.Event{
		Time: time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC), Type: kind, Program: datapath.ProgramFromPod, Direction: datapath.Egress,
		CTState: datapath.CTNew, Endpoint: 7, SrcIdentity: 16384, DstIdentity: 16385, IfIndex: 9, Length: len(data),
		Packet: datapath.ParsePacket(data), Data: data,
	}
}

var maker = flows.Maker{Node: "default/n1", Directory: directory{}}

func TestFlowOfVerdict(t *testing.T) {
	ev := event(t, datapath.EventVerdict, syn)
	f := maker.Flow(ev)
	want := `{"time":"2026-03-01T12:00:00Z","verdict":"FORWARDED","ethernet":{"source":"0a:00:00:00:00:0a","destination":"0a:00:00:00:00:0b"},
		"IP":{"source":"10.1.0.10","destination":"10.1.0.11","ipVersion":"IPv4"},
		"l4":{"TCP":{"source_port":40000,"destination_port":80,"flags":{"SYN":true}}},
		"source":{"ID":7,"identity":16384,"cluster_name":"default","namespace":"shop","labels":["k8s:app=front","k8s:io.kubernetes.pod.namespace=shop"],"pod_name":"front-1","workloads":[{"name":"front","kind":"Deployment"}]},
		"destination":{"identity":16385,"cluster_name":"other","namespace":"store","labels":["k8s:app=db","k8s:tier=store"]},
		"Type":"L3_L4","node_name":"default/n1","event_type":{"type":5},"destination_service":{"name":"db","namespace":"shop"},
		"traffic_direction":"EGRESS","is_reply":false,"interface":{"index":9,"name":"lxc9"},"egress_allowed_by":[{"name":"guard","namespace":"shop"}],"Summary":"TCP Flags: SYN"}`
	var expect flow.Flow
	if err := protojson.Unmarshal([]byte(want), &expect); err != nil {
		t.Fatal(err)
	}
	if !regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`).MatchString(f.GetUuid()) {
		t.Errorf("%q is no UUID", f.GetUuid())
	}
	f.Uuid = ""
	if !proto.Equal(f, &expect) {
		t.Errorf("got  %v\nwant %v", f, &expect)
	}

	congested := event(t, datapath.EventVerdict, strings.Replace(syn, "6002 0000", "60c2 0000", 1))
	if flags := maker.Flow(congested).GetL4().GetTCP().GetFlags(); !flags.GetSYN() || !flags.GetECE() || !flags.GetCWR() {
		t.Errorf("the flags of an opening that asks for ECN are %v", flags)
	}

	ev.Reason, ev.Direction = datapath.ReasonPolicyDeny, datapath.Ingress
	f = maker.Flow(ev)
	if f.GetVerdict() != flow.Verdict_DROPPED || f.GetDropReasonDesc() != flow.DropReason_POLICY_DENY || len(f.GetIngressDeniedBy()) != 1 ||
		len(f.GetIngressAllowedBy()) != 0 || f.GetEventType().GetSubType() != 0 || f.GetTrafficDirection() != flow.TrafficDirection_INGRESS {
		t.Errorf("a refused one is %v", f)
	}
}

func TestFlowOfDrop(t *testing.T) {
	ev := event(t, datapath.EventDrop, syn)
	ev.Reason, ev.CTState, ev.DstIdentity = datapath.ReasonPolicyDenied, datapath.CTNone, 0
	f := maker.Flow(ev)
	if f.GetVerdict() != flow.Verdict_DROPPED || f.GetEventType().GetType() != flows.EventDrop || f.GetEventType().GetSubType() != 133 || f.GetDropReason() != 133 ||
		f.GetIsReply() != nil || len(f.GetEgressDeniedBy()) != 0 {
		t.Errorf("a drop is %v", f)
	}
	if f.GetDestination().GetIdentity() != 16385 || len(f.GetDestination().GetLabels()) != 2 {
		t.Errorf("an identity that the kernel did not know was not looked up: %v", f.GetDestination())
	}
	ev.Reason = datapath.ReasonMulticast // the field has none like it
	f = maker.Flow(ev)
	if f.GetDropReasonDesc() != flow.DropReason_UNKNOWN_L3_TARGET_ADDRESS || f.GetHawserDropReason() != "multicast" || flows.ReasonText(f) != "multicast" {
		t.Errorf("a drop for a reason of our own is %v (%s)", f, flows.ReasonText(f))
	}
	data := frame(t, "0180c200000e 0a000000000a 88cc 0207")
	if f := maker.Flow(datapath.Event{Type: datapath.EventDrop, Reason: datapath.ReasonUnknownL3, Packet: datapath.ParsePacket(data), Data: data}); f.GetIP() != nil ||
		f.GetEthernet().GetSource() != "0a:00:00:00:00:0a" || flows.ReasonText(f) != "UNSUPPORTED_L3_PROTOCOL" {
		t.Errorf("a frame that is no IP is %v", f)
	}
}

func TestFlowOfTrace(t *testing.T) {
	ev := event(t, datapath.EventTrace, pinged)
	ev.CTState, ev.Direction, ev.Outcome = datapath.CTReply, datapath.Ingress, datapath.OutcomeEndpoint
	f := maker.Flow(ev)
	if f.GetVerdict() != flow.Verdict_FORWARDED || f.GetTraceObservationPoint() != flow.TraceObservationPoint_TO_ENDPOINT || !f.GetIsReply().GetValue() ||
		f.GetL4().GetICMPv4() == nil || f.GetTrafficDirection() != flow.TrafficDirection_EGRESS {
		t.Errorf("an answer is %v", f)
	}
	ev.Outcome = datapath.OutcomeOverlay
	if f := maker.Flow(ev); f.GetTraceObservationPoint() != flow.TraceObservationPoint_TO_OVERLAY || f.GetEventType().GetSubType() != 4 {
		t.Errorf("one to another node is %v", f)
	}
	if f := maker.Flow(event(t, datapath.EventTrace, asked)); f != nil {
		t.Errorf("a question for a hardware address is %v", f)
	}
}

// TestServiceOfReplies: the service is named whose address a packet has, if who sends it may send
// from there: a client behind a node port gets its answer from the service. A packet that was
// dropped for its address only claims one.
func TestServiceOfReplies(t *testing.T) {
	toClient := event(t, datapath.EventTrace, answered)
	toClient.CTState, toClient.Direction, toClient.SrcIdentity, toClient.DstIdentity = datapath.CTReply, datapath.Ingress, 16385, 16384
	toOutside := toClient
	toOutside.Direction, toOutside.Outcome, toOutside.Endpoint, toOutside.DstIdentity = datapath.Egress, datapath.OutcomeDevice, 8, 2
	forged := toOutside
	forged.Type, forged.Reason, forged.CTState = datapath.EventDrop, datapath.ReasonInvalidSourceIP, datapath.CTNone
	for name, row := range map[string]struct {
		ev   datapath.Event
		want string
	}{"to a pod": {toClient, "db"}, "to a client outside": {toOutside, "db"}, "forged": {forged, ""}} {
		if f := maker.Flow(row.ev); f.GetSourceService().GetName() != row.want || f.GetDestinationService() != nil {
			t.Errorf("%s: from the service %v to %v, want from %q", name, f.GetSourceService(), f.GetDestinationService(), row.want)
		}
	}
}

// TestClustersOfBothEnds: an end belongs to the cluster of its labels, a node to that of its name,
// and the world to none.
func TestClustersOfBothEnds(t *testing.T) {
	ev := event(t, datapath.EventTrace, strings.Replace(syn, "0a01000b", "0a010001", 1))
	ev.DstIdentity = 1
	if f := maker.Flow(ev); f.GetSource().GetClusterName() != "default" || f.GetDestination().GetClusterName() != "default" {
		t.Errorf("from %v to %v", f.GetSource(), f.GetDestination())
	}
	ev.DstIdentity = 2
	if f := maker.Flow(ev); f.GetDestination().GetClusterName() != "" {
		t.Errorf("the world is in the cluster %q", f.GetDestination().GetClusterName())
	}
}

// TestFlowNamesSender: a pod that sends from another's address appears as itself, be it of the
// same identity, and whoever has an address now is not named for what its owner before has done.
func TestFlowNamesSender(t *testing.T) {
	spoofed := event(t, datapath.EventDrop, syn)
	spoofed.Reason, spoofed.CTState, spoofed.Endpoint, spoofed.DstIdentity = datapath.ReasonInvalidSourceIP, datapath.CTNone, 8, 0
	gone := spoofed
	gone.Endpoint = 9 // an endpoint that is not there any more
	reused := event(t, datapath.EventVerdict, syn)
	reused.Direction, reused.Endpoint, reused.SrcIdentity = datapath.Ingress, 0, 16385
	unknown := reused
	unknown.SrcIdentity = 0
	known := reused
	known.SrcIdentity = 16384
	for name, row := range map[string]struct {
		ev   datapath.Event
		id   uint32
		pod  string
		kind string
	}{
		"from another's address":      {spoofed, 8, "front-2", ""},
		"an endpoint that is gone":    {gone, 0, "", ""},
		"an address with a new owner": {reused, 0, "", ""},
		"an address without a proof":  {unknown, 0, "", ""},
		"an address of the identity":  {known, 7, "front-1", "Deployment"},
	} {
		src := maker.Flow(row.ev).GetSource()
		var kind string
		for _, w := range src.GetWorkloads() {
			kind = w.GetKind()
		}
		if src.GetID() != row.id || src.GetPodName() != row.pod || kind != row.kind || src.GetIdentity() != row.ev.SrcIdentity {
			t.Errorf("%s: the source is %v", name, src)
		}
	}
	// Nor is whoever has the address now that a packet was for.
	if dst := maker.Flow(event(t, datapath.EventDrop, pinged)).GetDestination(); dst.GetPodName() != "" {
		t.Errorf("a packet for another identity was for %v", dst)
	}
}

// TestForeign: an address is the endpoint's only if the node knows it as such.
func TestForeign(t *testing.T) {
	own := event(t, datapath.EventVerdict, syn) // from endpoint 7
	spoofed := event(t, datapath.EventDrop, syn)
	spoofed.Reason, spoofed.CTState, spoofed.Endpoint = datapath.ReasonInvalidSourceIP, datapath.CTNone, 8
	gone := spoofed
	gone.Endpoint = 9
	arrived := event(t, datapath.EventVerdict, answered) // at endpoint 7
	arrived.Direction = datapath.Ingress
	group := arrived
	group.Type, group.Reason, group.Endpoint = datapath.EventDrop, datapath.ReasonMulticast, 8
	outside := spoofed
	outside.Endpoint = 0
	again := event(t, datapath.EventVerdict, answered)
	again.CTState, again.SrcIdentity, again.DstIdentity = datapath.CTRechecked, 16385, 16384
	for name, row := range map[string]struct {
		ev   datapath.Event
		want [2]bool
	}{
		"its own":                {own, [2]bool{}},
		"another's":              {spoofed, [2]bool{true, false}},
		"of who is gone":         {gone, [2]bool{true, false}},
		"where it arrives":       {arrived, [2]bool{}},
		"what is for others":     {group, [2]bool{false, true}},
		"of no endpoint here":    {outside, [2]bool{}},
		"an answer judged again": {again, [2]bool{}},
	} {
		if src, dst := maker.Foreign(row.ev); [2]bool{src, dst} != row.want {
			t.Errorf("%s: source %v, destination %v, want %v", name, src, dst, row.want)
		}
	}
}

// TestFlowOfAnAnswerRechecked: it is checked in the direction of the connection's opening, and is
// an answer nevertheless, from the one who answers.
func TestFlowOfAnAnswerRechecked(t *testing.T) {
	ev := event(t, datapath.EventVerdict, answered) // from 10.1.0.11 to endpoint 7, which has asked
	ev.CTState, ev.SrcIdentity, ev.DstIdentity = datapath.CTRechecked, 16385, 16384
	f := maker.Flow(ev)
	if !f.GetIsReply().GetValue() || f.GetTrafficDirection() != flow.TrafficDirection_EGRESS || f.GetSource().GetPodName() != "" ||
		f.GetSource().GetID() != 0 || f.GetDestination().GetPodName() != "front-1" || f.GetDestination().GetID() != 7 || len(f.GetEgressAllowedBy()) != 1 {
		t.Errorf("an answer that is judged again is %v", f)
	}
	ev = event(t, datapath.EventVerdict, syn)
	ev.CTState = datapath.CTRechecked
	if f := maker.Flow(ev); f.GetIsReply() == nil || f.GetIsReply().GetValue() || f.GetTrafficDirection() != flow.TrafficDirection_EGRESS || f.GetSource().GetID() != 7 {
		t.Errorf("a question that is judged again is %v", f)
	}
	ev.Type, ev.Reason = datapath.EventDrop, datapath.ReasonNoTunnel
	if f := maker.Flow(ev); f.GetIsReply() != nil {
		t.Errorf("of a drop after that it is not known whether it is an answer: %v", f)
	}
}

// TestReasonsOnTheWire: every reason for which packets are dropped has a name for people, and a
// number by which an existing client says something that is true: it knows the reason by any of
// three fields, of one of which it reads a byte only.
func TestReasonsOnTheWire(t *testing.T) {
	for r := datapath.DropReason(1); !strings.HasPrefix(r.String(), "reason-"); r++ {
		if r == datapath.ReasonPolicyAudited {
			continue // it is counted, and no packet is dropped for it
		}
		ev := event(t, datapath.EventDrop, syn)
		ev.Reason = r
		f := maker.Flow(ev)
		number, sub := f.GetDropReason(), f.GetEventType().GetSubType()
		if _, known := flow.DropReason_name[int32(number)]; !known || number == 0 || int32(number) != int32(f.GetDropReasonDesc()) || int32(number) != sub || sub != int32(uint8(sub)) {
			t.Errorf("%s: drop_reason %d, drop_reason_desc %s, sub_type %d", r, number, f.GetDropReasonDesc(), sub)
		}
		if text := flows.ReasonText(f); text != f.GetDropReasonDesc().String() && text != r.String() {
			t.Errorf("%s is shown as %q", r, text)
		}
	}
	// Of a reason that is not known a client must show nothing that it knows.
	ev := event(t, datapath.EventDrop, syn)
	ev.Reason = 200
	f := maker.Flow(ev)
	if sub := f.GetEventType().GetSubType(); f.GetDropReason() != 0 || f.GetDropReasonDesc() != 0 || flow.DropReason_name[sub] != "" || sub < 20 || flows.ReasonText(f) != "reason-200" {
		t.Errorf("an unknown reason is %v", f)
	}
}

// TestReasonTextOfOthers: whoever sends a flow cannot have its reason be anything but a short name.
func TestReasonTextOfOthers(t *testing.T) {
	for own, want := range map[string]string{
		"not-for-pods": "not-for-pods", "": "POLICY_DENIED", "\x1b[31m": "POLICY_DENIED", "<b>": "POLICY_DENIED", strings.Repeat("a", 65): "POLICY_DENIED",
	} {
		if got := flows.ReasonText(&flow.Flow{DropReasonDesc: flow.DropReason_POLICY_DENIED, HawserDropReason: own}); got != want {
			t.Errorf("%q is shown as %q", own, got)
		}
	}
}

// FuzzFlow makes flows of any bytes: whatever a packet holds, there is a flow that can be sent and
// is read back the same.
func FuzzFlow(f *testing.F) {
	for _, seed := range []string{"", syn, pinged, asked} {
		f.Add(frame(f, seed), uint8(1), uint8(1), uint8(1), uint8(1))
	}
	f.Fuzz(func(t *testing.T, data []byte, kind, reason, state, outcome uint8) {
		ev := datapath.Event{
			Type: datapath.EventType(kind), Reason: datapath.DropReason(reason), CTState: datapath.CTState(state), Outcome: datapath.Outcome(outcome),
			Packet: datapath.ParsePacket(data), Data: data,
		}
		made := maker.Flow(ev)
		if made == nil {
			return
		}
		wire, err := proto.Marshal(made)
		if err != nil {
			t.Fatal(err)
		}
		var back flow.Flow
		if err := proto.Unmarshal(wire, &back); err != nil || !proto.Equal(made, &back) {
			t.Fatalf("%v came back as %v, %v", made, &back, err)
		}
		flows.ReasonText(made)
	})
}
