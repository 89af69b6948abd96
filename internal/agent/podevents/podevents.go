// Package podevents writes Kubernetes Events at pods of this node that wait for their identity, so
// that `kubectl describe pod` shows why others do not reach them.
package podevents

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"golang.org/x/time/rate"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
)

// The reasons of the Events.
const (
	ReasonPending = "IdentityPending"
	ReasonKnown   = "IdentityKnown"
)

const (
	// pendingAfter is how long a pod waits for its identity before an Event reports it. Usually it
	// waits for milliseconds.
	pendingAfter = 10 * time.Second
	// eventPause is how long Events are apart when there are many, and eventBurst how many may come
	// at once.
	eventPause = time.Second
	eventBurst = 25

	// eventReporter is the reporter of these Events.
	eventReporter = "hawser-agent"
)

// pendingPods remembers which endpoints wait for an identity, and which pods show it. It is for one
// goroutine.
type pendingPods struct {
	since map[uint16]time.Time
	sent  map[uint16]bool
	limit *rate.Limiter
}

func newPendingPods() *pendingPods {
	return &pendingPods{since: map[uint16]time.Time{}, sent: map[uint16]bool{}, limit: rate.NewLimiter(rate.Every(eventPause), eventBurst)}
}

// pending is an Event that is due.
type pending struct {
	row    endpoint.Endpoint
	waited time.Duration
	known  bool // the wait is over
}

// look compares what there is with what it remembers, and returns what pods are to show.
func (p *pendingPods) look(rows []endpoint.Endpoint, now time.Time) (due []pending) {
	here := map[uint16]bool{}
	for _, row := range rows {
		if row.PodName == "" {
			continue
		}
		here[row.ID] = true
		since, waits := p.since[row.ID]
		switch {
		case row.Identity.IsTemporary() && !waits:
			p.since[row.ID] = now
		case row.Identity.IsTemporary() && !p.sent[row.ID] && now.Sub(since) >= pendingAfter && p.limit.AllowN(now, 1):
			p.sent[row.ID] = true
			due = append(due, pending{row, now.Sub(since), false})
		case !row.Identity.IsTemporary() && waits:
			if p.sent[row.ID] {
				due = append(due, pending{row, now.Sub(since), true})
			}
			delete(p.since, row.ID)
			delete(p.sent, row.ID)
		}
	}
	for id := range p.since {
		if !here[id] {
			delete(p.since, id)
			delete(p.sent, id)
		}
	}
	return due
}

// Writer writes Events at pods that wait for their identity. Nil does nothing, as outside of
// Kubernetes.
type Writer struct {
	node    string
	mode    identity.Management
	log     *slog.Logger
	client  *k8s.Client
	pending *pendingPods
	due     chan pending
}

// New returns a writer for the pods of a node, where mode says who makes identities.
func New(node string, mode identity.Management, client *k8s.Client, log *slog.Logger) *Writer {
	return &Writer{node: node, mode: mode, log: log, client: client, pending: newPendingPods(), due: make(chan pending, eventBurst)}
}

// Look has the Events written that are due. What exceeds the limit is dropped: Events are for
// people, and the status shows the same. It is for one goroutine.
func (p *Writer) Look(rows []endpoint.Endpoint) {
	if p == nil {
		return
	}
	for _, d := range p.pending.look(rows, time.Now()) {
		select {
		case p.due <- d:
		default:
			p.log.Debug("too many Events at pods wait to be written", "pod", d.row.Pod())
		}
	}
}

// Run writes Events until ctx ends, in a goroutine of its own: a slow API server must not delay the
// identities of pods. Failures are only logged.
func (p *Writer) Run(ctx context.Context) {
	if p == nil {
		return
	}
	for {
		select {
		case <-ctx.Done():
			return
		case d := <-p.due:
			p.write(ctx, d)
		}
	}
}

func (p *Writer) write(ctx context.Context, d pending) {
	e := pendingEvent(d, p.node, p.mode)
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	if _, err := p.client.Kube.EventsV1().Events(e.Namespace).Create(ctx, e, metav1.CreateOptions{}); err != nil {
		p.log.Debug("an Event at a pod could not be written", "pod", d.row.Pod(), "reason", e.Reason, "error", err)
	}
}

// pendingEvent is the Event of one pod.
func pendingEvent(d pending, node string, mode identity.Management) *eventsv1.Event {
	now := metav1.NowMicro()
	waited := d.waited.Round(time.Second)
	e := &eventsv1.Event{
		ObjectMeta: metav1.ObjectMeta{Namespace: d.row.Namespace, Name: fmt.Sprintf("%s.%x", d.row.PodName, now.UnixNano())},
		EventTime:  now, ReportingController: eventReporter, ReportingInstance: node, Action: "AcquireIdentity",
		Regarding: corev1.ObjectReference{APIVersion: "v1", Kind: "Pod", Namespace: d.row.Namespace, Name: d.row.PodName},
	}
	if uid := d.row.PodUID; uid != "" {
		e.Regarding.UID = types.UID(uid)
	}
	if d.known {
		e.Type, e.Reason = corev1.EventTypeNormal, ReasonKnown
		e.Note = fmt.Sprintf("the pod has security identity %s, after %s with a temporary one", d.row.Identity, waited)
		return e
	}
	who := "this node's agent, which makes identities, gets no answer from where they are kept"
	if !mode.Agent() {
		who = "the operator makes identities: see whether one leads"
	}
	e.Type, e.Reason = corev1.EventTypeWarning, ReasonPending
	e.Note = fmt.Sprintf("no security identity is known for the labels of this pod for %s: its own policies are enforced, and others see it as %s; %s", waited, d.row.Seen(), who)
	return e
}
