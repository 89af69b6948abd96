package ui

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/flow"
)

// policyLabels name a policy as agents do.
func policyLabels(kind, namespace, name string) *flow.PolicyUpdateNotification {
	const prefix = "k8s:io.cilium.k8s.policy."
	return &flow.PolicyUpdateNotification{Labels: []string{prefix + "derived-from=" + kind, prefix + "name=" + name, prefix + "namespace=" + namespace}}
}

// TestMarks: what is applied at once is one change, however many nodes tell of it, and what a node
// tells again is another one.
func TestMarks(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	*now = now.Add(10 * time.Minute)
	db, other := policyLabels("CiliumNetworkPolicy", "shop", "db"), policyLabels("NetworkPolicy", "shop", "other")
	for i, node := range []string{"n1", "n2", "n3"} {
		g.Changed(node, testTime.Add(time.Duration(i)*time.Second), db, false)
		g.Changed(node, testTime.Add(time.Duration(i)*time.Second), other, true)
	}
	g.Changed("n1", testTime.Add(3*time.Second), db, false)
	g.Changed("n1", testTime.Add(time.Hour), db, false) // its clock is ahead
	marks := g.Snapshot(time.Time{}, time.Time{}).Marks
	var got []string
	for _, m := range marks {
		got = append(got, fmt.Sprintf("%v %v %d", m.Time.Sub(testTime), m.Policies, m.Nodes))
	}
	want := []string{
		"0s [{CiliumNetworkPolicy shop/db false} {NetworkPolicy shop/other true}] 3",
		"3s [{CiliumNetworkPolicy shop/db false}] 1", "10m0s [{CiliumNetworkPolicy shop/db false}] 1",
	}
	if strings.Join(got, "; ") != strings.Join(want, "; ") {
		t.Errorf("marks are\n%q, want\n%q", got, want)
	}
	*now = testTime.Add(Window + 5*time.Second)
	if marks := g.Snapshot(time.Time{}, time.Time{}).Marks; len(marks) != 1 {
		t.Errorf("after the window there are %d marks, want 1", len(marks))
	}
}

// TestMarksBounded: neither many changes, nor many policies, nor long names take more room.
func TestMarksBounded(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	*now = now.Add(14 * time.Minute)
	long := strings.Repeat("x", 10000)
	for i := range 5000 {
		g.Changed("n1", testTime.Add(time.Duration(i)*100*time.Millisecond), policyLabels("K", "shop", fmt.Sprint(long, i%7)), false)
		g.Changed("n1", testTime, policyLabels("K", "shop", fmt.Sprint(i)), false)
	}
	marks := g.Snapshot(time.Time{}, time.Time{}).Marks
	if len(marks) > maxMarks {
		t.Errorf("%d marks", len(marks))
	}
	for _, m := range marks {
		if len(m.Policies) > maxMarked {
			t.Errorf("a mark has %d policies", len(m.Policies))
		}
		for _, p := range m.Policies {
			if len(p.Policy) > maxName+10 {
				t.Errorf("a name has %d bytes", len(p.Policy))
			}
		}
	}
}

// TestEffect: a change of policies shows which connections were judged otherwise after it than
// before, also within the ten seconds in which it came, and not what another change did.
func TestEffect(t *testing.T) {
	g, now := testGraph(DefaultLimits())
	at := testTime.Add(3 * time.Minute) // in the middle of ten seconds
	*now = at.Add(5 * time.Minute)
	front, db, cache := pod("shop", "front", "front-0", 1), pod("shop", "db", "db-0", 2), pod("shop", "cache", "cache-0", 3)
	add := func(by time.Duration, src, dst *flow.Endpoint, v flow.Verdict, d flow.TrafficDirection) {
		g.Add(verdict(at.Add(by), src, dst, 5432, v, d))
	}
	for _, before := range []time.Duration{-2 * time.Minute, -2 * time.Second} {
		add(before, front, db, ok, out)
		add(before, front, db, ok, in)
		add(before, front, cache, ok, in)
		add(before, world, front, no, in)
		add(before, db, world, ok, out)
	}
	add(-10*time.Second, cache, db, ok, in) // and never again
	// Let out, and turned away by the receiver, within the same ten seconds.
	add(2*time.Second, front, db, ok, out)
	add(2*time.Second, front, db, no, in)
	add(2*time.Second, db, world, no, out)
	add(time.Minute, front, cache, ok, in)
	add(time.Minute, world, front, no, in)
	// What the next change does is its own.
	add(2*time.Minute, front, cache, no, in)
	g.Changed("n1", at, policyLabels("NetworkPolicy", "shop", "strict"), false)
	g.Changed("n2", at.Add(500*time.Millisecond), policyLabels("NetworkPolicy", "shop", "strict"), false)
	g.Changed("n1", at.Add(90*time.Second), policyLabels("NetworkPolicy", "shop", "strict"), false)
	marks := g.Snapshot(time.Time{}, time.Time{}).Marks
	if len(marks) != 2 {
		t.Fatalf("marks: %+v", marks)
	}
	for i, want := range []string{
		"4: shop/db>:world>TCP/5432 let in ⇒ refused; shop/front>shop/db>TCP/5432 let in ⇒ refused",
		"1: shop/front>shop/cache>TCP/5432 let in ⇒ refused",
	} {
		e, ok := g.Effect(marks[i].ID)
		got := fmt.Sprint(e.Compared, ":")
		for _, edge := range e.Edges {
			got += fmt.Sprintf(" %s %s ⇒ %s;", edge.ID, edge.Before, edge.After)
		}
		if !ok || strings.TrimSuffix(got, ";") != want {
			t.Errorf("change %d: %q, want %q", i, got, want)
		}
	}
	if _, ok := g.Effect("7"); ok {
		t.Error("a change that never was has an effect")
	}
}

// TestLongNames: a name of ten kilobytes takes no more room than one that Kubernetes allows.
func TestLongNames(t *testing.T) {
	g, _ := testGraph(DefaultLimits())
	long := strings.Repeat("ü", 5000)
	src := pod(long, long, long, 1)
	src.Labels = []string{"k8s:" + long}
	f := verdict(testTime, src, pod("shop", "db", "db-0", 2), 80, no, in)
	f.NodeName, f.IngressDeniedBy = long, []*flow.Policy{{Name: long, Namespace: long}}
	g.Add(f)
	s := g.Snapshot(time.Time{}, time.Time{})
	if len(s.Edges) != 1 || len(s.Workloads) != 2 {
		t.Fatalf("%d edges of %d workloads", len(s.Edges), len(s.Workloads))
	}
	if text := fmt.Sprintf("%v %v %v", s.Edges, s.Workloads, g.Flows(1, func(*Flow) bool { return true })); len(text) > 30*maxName {
		t.Errorf("one flow takes %d bytes", len(text))
	}
}
