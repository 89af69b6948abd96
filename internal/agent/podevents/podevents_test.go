package podevents

import (
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
)

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
