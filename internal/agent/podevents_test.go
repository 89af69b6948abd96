package agent

import (
	"strings"
	"testing"
	"time"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
)

// podEvent returns the Event with a reason at a pod, nil if there is none.
func (c *kubeCluster) podEvent(pod, reason string) *eventsv1.Event {
	c.t.Helper()
	list, err := c.client.Kube.EventsV1().Events("default").List(c.t.Context(), metav1.ListOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for i, e := range list.Items {
		if e.Reason == reason && e.Regarding.Kind == "Pod" && e.Regarding.Name == pod {
			return &list.Items[i]
		}
	}
	return nil
}

// TestPendingEvents: a pod whose identity nobody makes shows that in Kubernetes, and that it is
// over; others show nothing. The agent has the rights of the chart.
func TestPendingEvents(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.readOnlyIdentities()
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes", "--operator-manage-cid")
	n.start()
	o := c.object(n, "alone", map[string]string{"app": "alone"})
	known := c.pod(n, "known", map[string]string{"app": "known"})
	c.assign(known, 4001, true)
	c.eventually("one pod has its identity", known.has(4001))
	alone := n.attached("alone", nil)
	var e *eventsv1.Event
	c.eventually("the other one shows that it has none", func() bool { e = c.podEvent("alone", eventPending); return e != nil })
	if e.Type != "Warning" || e.Regarding.UID != o.UID || e.ReportingInstance != "n1" || !strings.Contains(e.Note, "init") || !strings.Contains(e.Note, "operator") {
		t.Errorf("the Event is %+v", e)
	}
	c.assign(alone, 4002, true)
	c.eventually("it shows that this is over", func() bool { e = c.podEvent("alone", eventKnown); return e != nil })
	if e.Type != "Normal" || !strings.Contains(e.Note, "4002") {
		t.Errorf("the Event is %+v", e)
	}
	for _, reason := range []string{eventPending, eventKnown} {
		if e := c.podEvent("known", reason); e != nil {
			t.Errorf("a pod that did not wait shows %+v", e)
		}
	}
	n.stop()
}

// TestPendingReports: an endpoint is reported once for each wait, many are reported slowly, and
// what is gone is forgotten.
func TestPendingReports(t *testing.T) {
	t.Parallel()
	temporary := identity.MinTemporary
	now := time.Now()
	row := func(id uint16, number identity.ID) endpoint.Endpoint {
		return endpoint.Endpoint{ID: id, Identity: number, Attachment: endpoint.Attachment{Namespace: "default", PodName: "p"}}
	}
	p := newPendingPods()
	count := func(what string, rows []endpoint.Endpoint, after time.Duration, want int) {
		t.Helper()
		now = now.Add(after)
		if due := p.look(rows, now); len(due) != want {
			t.Errorf("%s: %d Events, want %d", what, len(due), want)
		}
	}
	waiting := []endpoint.Endpoint{row(1, temporary), row(2, 300), {ID: 3, Identity: temporary}}
	count("at first", waiting, 0, 0)
	count("too soon", waiting, pendingAfter-time.Millisecond, 0)
	count("late", waiting, time.Millisecond, 1)
	count("reported already", waiting, time.Hour, 0)
	count("it is over", []endpoint.Endpoint{row(1, 301)}, time.Second, 1)
	count("said once", []endpoint.Endpoint{row(1, 301)}, time.Second, 0)
	count("another wait", waiting, 0, 0)
	count("over before it was reported", []endpoint.Endpoint{row(1, 302)}, time.Second, 0)
	count("another wait", waiting, 0, 0)
	count("gone", nil, pendingAfter, 0)
	count("its ID is another's", waiting, 0, 0)
	if len(p.since) != 1 || len(p.sent) != 0 {
		t.Errorf("it remembers %v, %v", p.since, p.sent)
	}
	var many []endpoint.Endpoint
	for i := range uint16(200) {
		many = append(many, row(i+1, temporary))
	}
	count("many", many, 0, 0)
	count("many, late", many, pendingAfter, eventBurst)
	count("a minute later", many, 10*time.Second, 10)
}
