package agent

import (
	"strings"
	"testing"

	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/agent/podevents"
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

// TestPendingEvents: a pod whose identity is not made shows that in Kubernetes, and that it is
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
	c.eventually("the other one shows that it has none", func() bool { e = c.podEvent("alone", podevents.ReasonPending); return e != nil })
	if e.Type != "Warning" || e.Regarding.UID != o.UID || e.ReportingInstance != "n1" || !strings.Contains(e.Note, "init") || !strings.Contains(e.Note, "operator") {
		t.Errorf("the Event is %+v", e)
	}
	c.assign(alone, 4002, true)
	c.eventually("it shows that this is over", func() bool { e = c.podEvent("alone", podevents.ReasonKnown); return e != nil })
	if e.Type != "Normal" || !strings.Contains(e.Note, "4002") {
		t.Errorf("the Event is %+v", e)
	}
	for _, reason := range []string{podevents.ReasonPending, podevents.ReasonKnown} {
		if e := c.podEvent("known", reason); e != nil {
			t.Errorf("a pod that did not wait shows %+v", e)
		}
	}
	n.stop()
}
