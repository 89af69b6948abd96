package bpf_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flows"
)

// podsOf is a directory of the pods of a test's node, a and b.
type podsOf struct{}

func (podsOf) Endpoint(number uint16) flows.Party {
	switch number {
	case 1:
		return flows.Party{Endpoint: 1, Identity: idA, Namespace: "shop", Pod: "a"}
	case 2:
		return flows.Party{Endpoint: 2, Identity: idB, Namespace: "shop", Pod: "b"}
	}
	return flows.Party{}
}

func (d podsOf) Party(addr netip.Addr) flows.Party {
	switch addr {
	case a4, a6:
		return d.Endpoint(1)
	case b4, b6:
		return d.Endpoint(2)
	}
	return flows.Party{Identity: 2}
}

func (podsOf) Labels(uint32) ([]string, string, string)        { return nil, "", "" }
func (podsOf) Interface(int) string                            { return "" }
func (podsOf) Service(netip.Addr, uint16, uint8) *flow.Service { return nil }
func (podsOf) Policies(datapath.Event) []*flow.Policy          { return nil }

// flowsOfKernel has the node report everything and returns a function that returns the next flow
// of a kind of event.
func (n *node) flowsOfKernel() func(kind datapath.EventType) *flow.Flow {
	n.t.Helper()
	n.must(n.maps.SetMonitor(datapath.MonitorDrops | datapath.MonitorVerdicts | datapath.MonitorFlowUpdates))
	ctx, cancel := context.WithCancel(context.Background())
	events, done := map[datapath.EventType]chan datapath.Event{}, make(chan error, 1)
	for _, kind := range []datapath.EventType{datapath.EventDrop, datapath.EventVerdict, datapath.EventTrace} {
		events[kind] = make(chan datapath.Event, 100)
	}
	go func() { done <- n.maps.Events(ctx, func(e datapath.Event) { events[e.Type] <- e }) }()
	n.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			n.t.Error(err)
		}
	})
	maker := flows.Maker{Node: "default/n1", Directory: podsOf{}}
	return func(kind datapath.EventType) *flow.Flow {
		n.t.Helper()
		select {
		case e := <-events[kind]:
			return maker.Flow(e)
		case <-time.After(time.Minute):
			n.t.Fatalf("no event of kind %s", kind)
			return nil
		}
	}
}

// TestFlowOfSpoofer: what a pod sends under another's address is reported under its own name, to
// whomever it is addressed; nothing of it is reported of the pod whose address it claims.
func TestFlowOfSpoofer(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		n.allowAll()
		next := n.flowsOfKernel()
		for _, dst := range []netip.Addr{w, r, b} {
			n.fromA(frame{src: b, dst: dst, proto: tcp, sport: 1000, dport: 80, tcpFlags: syn})
			f := next(datapath.EventDrop)
			if f.GetSource().GetPodName() != "a" || f.GetSource().GetIdentity() != idA || f.GetIP().GetSource() != b.String() || f.GetDestination().GetPodName() == "a" ||
				f.GetDropReasonDesc() != flow.DropReason_INVALID_SOURCE_IP || f.GetVerdict() != flow.Verdict_DROPPED || f.GetTrafficDirection() != flow.TrafficDirection_EGRESS {
				t.Errorf("to %s: %v", dst, f)
			}
		}
	})
}

// TestFlowsOfConnection: a connection's flows from its beginning to its end, with what the rule has
// matched; and of one that is evaluated again while it goes on, and let pass or refused, whichever
// way the packet goes that finds that out.
func TestFlowsOfConnection(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		cfg := testConfig()
		cfg.Aggregation.TCPFlags = fin | syn | rst
		n := newNode(t, cfg)
		n.rules(setA, allow(out, idB, 0, 0))
		n.rules(setB, allow(in, 0, tcp, 80))
		next := n.flowsOfKernel()
		f := frame{src: a, dst: b, proto: tcp, sport: 1000, dport: 80}
		send := func(flags uint8) { f := f; f.tcpFlags = flags; n.fromA(f) }
		answer := func(flags uint8) { f := f.reply(); f.tcpFlags = flags; n.fromB(f) }
		want := func(what string, kind datapath.EventType, from string, reply bool, direction flow.TrafficDirection, verdict flow.Verdict, match datapath.PolicyMatch) *flow.Flow {
			t.Helper()
			to := map[string]string{"a": "b", "b": "a"}[from]
			f := next(kind)
			if f.GetSource().GetPodName() != from || f.GetDestination().GetPodName() != to || f.GetIsReply() == nil || f.GetIsReply().GetValue() != reply ||
				f.GetTrafficDirection() != direction || f.GetVerdict() != verdict || f.GetPolicyMatchType() != uint32(match) {
				t.Errorf("%s: %v", what, f)
			}
			return f
		}
		const ingress, egress = flow.TrafficDirection_INGRESS, flow.TrafficDirection_EGRESS
		const forwarded, refused = flow.Verdict_FORWARDED, flow.Verdict_DROPPED
		send(syn)
		want("leaves", datapath.EventVerdict, "a", false, egress, forwarded, datapath.MatchL3Only)
		want("arrives", datapath.EventVerdict, "a", false, ingress, forwarded, datapath.MatchL4Only)
		want("passes", datapath.EventTrace, "a", false, ingress, forwarded, datapath.MatchNone)
		answer(syn | ack)
		want("is answered", datapath.EventTrace, "b", true, egress, forwarded, datapath.MatchNone)
		send(fin | ack)
		if f := want("ends", datapath.EventTrace, "a", false, ingress, forwarded, datapath.MatchNone); !f.GetL4().GetTCP().GetFlags().GetFIN() {
			t.Errorf("the end is %v", f)
		}
		answer(fin | ack)
		if f := want("ends at the other side", datapath.EventTrace, "b", true, egress, forwarded, datapath.MatchNone); !f.GetL4().GetTCP().GetFlags().GetFIN() {
			t.Errorf("the end at the other side is %v", f)
		}

		// Policies change and let it pass: what comes after the verdicts knows the packet's way.
		again := func(ep *datapath.Endpoint) { ep.PolicyGeneration++; n.upsert(*ep) }
		f.sport = 1001
		send(syn)
		for range 2 {
			next(datapath.EventVerdict)
		}
		next(datapath.EventTrace)
		again(&n.b)
		answer(syn | ack)
		want("an answer let pass again", datapath.EventVerdict, "b", true, ingress, forwarded, datapath.MatchL4Only)
		want("an answer passes", datapath.EventTrace, "b", true, egress, forwarded, datapath.MatchNone)
		again(&n.a)
		send(fin | ack)
		want("a packet let pass again", datapath.EventVerdict, "a", false, egress, forwarded, datapath.MatchL3Only)
		want("a packet passes", datapath.EventTrace, "a", false, ingress, forwarded, datapath.MatchNone)
		// b's rules refuse it now, and its answer finds that out.
		n.rules(setB, deny(in, idA, tcp, 80))
		again(&n.b)
		answer(ack)
		want("a reply checked again", datapath.EventVerdict, "b", true, ingress, refused, datapath.MatchL3L4)
		want("an answer dropped", datapath.EventDrop, "b", true, ingress, refused, datapath.MatchNone)
		send(ack)
		want("a packet checked again", datapath.EventVerdict, "a", false, ingress, refused, datapath.MatchL3L4)
		want("a packet dropped", datapath.EventDrop, "a", false, ingress, refused, datapath.MatchNone)
		// What nothing matches is refused by no rule.
		n.rules(setA)
		send(ack)
		next(datapath.EventVerdict)
		f.sport = 1002
		send(syn)
		want("refused for want of a rule", datapath.EventVerdict, "a", false, egress, refused, datapath.MatchNone)
	})
}
