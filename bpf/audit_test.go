package bpf_test

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
)

// TestAuditMode: what the policy of an endpoint in audit mode refuses passes, is counted and
// reported of, until the mode ends. It lets nothing pass that the other side's policy refuses, and
// nothing that is dropped for another reason.
func TestAuditMode(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n := newNode(t, testConfig())
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		events := make(chan datapath.Event, 1000)
		done := make(chan error)
		go func() { done <- n.maps.Events(ctx, func(e datapath.Event) { events <- e }) }()
		defer func() { cancel(); <-done }()
		set := func(ep *datapath.Endpoint, on bool) {
			t.Helper()
			ep.Audit = on
			ep.PolicyGeneration++
			n.upsert(*ep)
		}
		open := func() frame {
			f := frame{src: a, dst: b, proto: tcp, sport: uint16(10000 + n.a.PolicyGeneration), dport: 80, tcpFlags: syn}
			return f
		}
		n.rules(setA)
		n.rules(setB)
		n.expect("before", dropped(datapath.ReasonPolicyDenied, out), func() result { return n.fromA(open()) })

		// The source only: the destination's policy is asked as ever.
		set(&n.a, true)
		n.expect("the other side refuses", dropped(datapath.ReasonPolicyDenied, in), func() result { return n.fromA(open()) })
		n.rules(setB, allow(in, idA, tcp, 80))
		before := n.count(datapath.ReasonPolicyAudited, datapath.Egress)
		n.must(n.maps.SetMonitor(datapath.MonitorVerdicts))
		f := open()
		n.expect("passes", delivered(), func() result { return n.fromA(f) })
		n.expect("is answered", delivered(), func() result { return n.fromB(f.reply()) })
		if got := n.count(datapath.ReasonPolicyAudited, datapath.Egress) - before; got != 1 {
			t.Errorf("%d packets were counted", got)
		}
		for _, want := range []datapath.Event{
			{Direction: datapath.Egress, Endpoint: 1, Reason: datapath.ReasonPolicyDenied, Outcome: datapath.OutcomeAudited},
			{Direction: datapath.Ingress, Endpoint: 2},
		} {
			select {
			case e := <-events:
				if e.Type != datapath.EventVerdict || e.Direction != want.Direction || e.Endpoint != want.Endpoint || e.Reason != want.Reason || e.Outcome != want.Outcome {
					t.Errorf("reported %s, want %+v", e, want)
				}
			case <-ctx.Done():
				t.Fatal("no event")
			}
		}
		n.must(n.maps.SetMonitor(0))
		n.rules(setA, deny(out, idB, 0, 0))
		set(&n.a, true)
		n.expect("a rule that denies", delivered(), func() result { return n.fromA(open()) })

		// It is for the policy only.
		forged := open()
		forged.src = w
		n.expect("a forged source", dropped(datapath.ReasonInvalidSourceIP, out), func() result { return n.fromA(forged) })
		locked := n.a
		locked.Locked = true
		n.upsert(locked)
		n.expect("locked", dropped(datapath.ReasonEndpointLocked, out), func() result { return n.fromA(open()) })
		without := n.a
		without.RuleSet = 99
		without.PolicyGeneration++
		n.upsert(without)
		f.sport++
		n.expect("no rules", dropped(datapath.ReasonNoRuleSet, out), func() result { return n.fromA(f) })
		f.sport--
		n.upsert(n.a)
		proto, unreachable := uint8(icmp), uint8(3)
		if v6 {
			proto, unreachable = icmp6, 1
		}
		strange := frame{src: a, dst: b, proto: proto, icmpType: unreachable, payload: inner(frame{src: b, dst: a, proto: udp, sport: 7, dport: 8})}
		n.expect("an error about nothing", dropped(datapath.ReasonUnknownRelated, out), func() result { return n.fromA(strange) })

		// When it ends, what it let pass is refused.
		mid := f
		mid.tcpFlags = ack
		n.expect("goes on", delivered(), func() result { return n.fromA(mid) })
		set(&n.a, false)
		n.expect("afterwards", dropped(datapath.ReasonPolicyDeny, out), func() result { return n.fromA(mid) })
		n.expect("its answers", dropped(datapath.ReasonPolicyDeny, out), func() result { return n.fromB(f.reply()) })
		n.expect("a new one", dropped(datapath.ReasonPolicyDeny, out), func() result { return n.fromA(open()) })

		// The destination only.
		n.rules(setB)
		set(&n.b, true)
		n.expect("the source refuses", dropped(datapath.ReasonPolicyDeny, out), func() result { return n.fromA(open()) })
		n.rules(setA, allow(out, idB, tcp, 80))
		set(&n.a, false)
		n.expect("passes at the destination", delivered(), func() result { return n.fromA(open()) })
	})
}
