package hubble

import (
	"context"
	"fmt"
	"net/netip"
	"strconv"
	"time"

	"golang.org/x/time/rate"
	"google.golang.org/protobuf/types/known/wrapperspb"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/table"
)

// Bounds of how many changes of addresses, and of services, become events, so that a large
// cluster's do not push everything else out of the ring: so many a second, and so many at once.
const (
	changesASecond = 20
	changesAtOnce  = 512
)

// Bounds of the labels of an endpoint that an event has: a pod's own may be hundreds of KiB.
const (
	maxLabels     = 64
	maxLabelBytes = 4 << 10
)

// labelsShown are labels as events show them: as many as there is room for, and a last one that has
// the number of those that are left out.
func labelsShown(set labels.Set) []string {
	var out []string
	bytes := 0
	for i, l := range set {
		text := l.String()
		if bytes += len(text); i == maxLabels || bytes > maxLabelBytes {
			return append(out, labels.New("hawser", "labels-left-out", strconv.Itoa(len(set)-i)).String())
		}
		out = append(out, text)
	}
	return out
}

// event adds an event of a kind, of which ev has the notification.
func (h *Hubble) event(kind flowpb.AgentEventType, ev *flowpb.AgentEvent) {
	ev.Type = kind
	h.recorder.record.AddEvent(flows.Event{Time: time.Now(), Event: ev})
}

// PolicyChanged notifies readers of the agent's events of policies that changed. What the agent
// observes when it starts is no change: it was in force before.
func (h *Hubble) PolicyChanged(changes []policy.Change) {
	if h == nil || !h.node.InForce() {
		return
	}
	for _, ch := range changes {
		kind := flowpb.AgentEventType_POLICY_UPDATED
		if len(ch.Rules) == 0 {
			kind = flowpb.AgentEventType_POLICY_DELETED
		}
		h.event(kind, &flowpb.AgentEvent{Notification: &flowpb.AgentEvent_PolicyUpdate{PolicyUpdate: &flowpb.PolicyUpdateNotification{
			Labels: policyNamed(ch.Owner).GetLabels(), Revision: h.node.Policy.Revision(), RuleCount: int64(len(ch.Rules)),
		}}})
	}
}

// EndpointChanged notifies readers of the agent's events of an endpoint that was in another state
// before, which is empty for one that is new.
func (h *Hubble) EndpointChanged(before endpoint.State, row endpoint.Endpoint, message string) {
	if h == nil {
		return
	}
	failed := ""
	switch row.State {
	case endpoint.StateNotReady, endpoint.StateInvalid:
		failed = message
	}
	shown := labelsShown(row.Labels)
	update := func(kind flowpb.AgentEventType) {
		h.event(kind, &flowpb.AgentEvent{Notification: &flowpb.AgentEvent_EndpointUpdate{EndpointUpdate: &flowpb.EndpointUpdateNotification{
			Id: uint64(row.ID), Labels: shown, Error: failed, PodName: row.PodName, Namespace: row.Namespace,
		}}})
	}
	regenerated := func(kind flowpb.AgentEventType) {
		h.event(kind, &flowpb.AgentEvent{Notification: &flowpb.AgentEvent_EndpointRegenerate{EndpointRegenerate: &flowpb.EndpointRegenNotification{
			Id: uint64(row.ID), Labels: shown, Error: failed,
		}}})
	}
	switch {
	case before == "":
		update(flowpb.AgentEventType_ENDPOINT_CREATED)
	case row.State == endpoint.StateReady:
		regenerated(flowpb.AgentEventType_ENDPOINT_REGENERATE_SUCCESS)
	case row.State == endpoint.StateNotReady:
		regenerated(flowpb.AgentEventType_ENDPOINT_REGENERATE_FAILURE)
	case row.State == endpoint.StateInvalid, row.State == endpoint.StateDisconnected:
		update(flowpb.AgentEventType_ENDPOINT_DELETED)
	}
}

// follow calls each with the rows of a table and with each of its changes, until ctx ends. report
// says of which an event is to be made: not of what was there before, nor of what is too much, and
// an event says how much of what that was.
func follow[K comparable, V any](ctx context.Context, h *Hubble, what string, t *table.Table[K, V], each func(ch table.Change[K, V], report bool)) error {
	watch := t.Watch()
	defer watch.Close()
	for {
		changes, err := watch.Poll()
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			break
		}
		for _, ch := range changes { // what was there before
			each(ch, false)
		}
	}
	limit, leftOut := rate.NewLimiter(changesASecond, changesAtOnce), 0
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	notify := func() {
		if leftOut > 0 && limit.Allow() {
			h.event(flowpb.AgentEventType_AGENT_EVENT_UNKNOWN, &flowpb.AgentEvent{Notification: &flowpb.AgentEvent_Unknown{Unknown: &flowpb.AgentEventUnknown{
				Type: what, Notification: fmt.Sprintf("%d changes are left out", leftOut),
			}}})
			leftOut = 0
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
			notify()
		case <-watch.Changed():
			for {
				changes, err := watch.Poll()
				if err != nil {
					return err
				}
				if len(changes) == 0 {
					break
				}
				for _, ch := range changes {
					report := limit.Allow()
					if !report {
						leftOut++
					}
					each(ch, report)
				}
			}
		}
	}
}

// followAddresses reports to readers of the agent's events whose addresses are, until ctx ends.
func (h *Hubble) followAddresses(ctx context.Context) error {
	before := map[netip.Prefix]ipcache.Entry{}
	return follow(ctx, h, "ipcache", h.node.Addresses.Table(), func(ch table.Change[netip.Prefix, ipcache.Entry], report bool) {
		old, had := before[ch.Key]
		if ch.Deleted {
			delete(before, ch.Key)
		} else {
			before[ch.Key] = ch.Value
		}
		if !report {
			return
		}
		n := &flowpb.IPCacheNotification{
			Cidr: ch.Key.String(), Identity: uint32(ch.Value.Identity), EncryptKey: uint32(ch.Value.EncryptKey),
		}
		n.Namespace, n.PodName = ch.Value.Pod()
		if host := ch.Value.Host(); host.IsValid() {
			n.HostIp = host.String()
		}
		if had && !ch.Deleted {
			n.OldIdentity = wrapperspb.UInt32(uint32(old.Identity))
			if host := old.Host(); host.IsValid() {
				n.OldHostIp = host.String()
			}
		}
		kind := flowpb.AgentEventType_IPCACHE_UPSERTED
		if ch.Deleted {
			kind = flowpb.AgentEventType_IPCACHE_DELETED
		}
		h.event(kind, &flowpb.AgentEvent{Notification: &flowpb.AgentEvent_IpcacheUpdate{IpcacheUpdate: n}})
	})
}

// maxBackends is how many backends of a service an event names.
const maxBackends = 256

// followServices notifies readers of the agent's events of services, until ctx ends: of each
// address and port by itself.
func (h *Hubble) followServices(ctx context.Context) error {
	return follow(ctx, h, "service", h.node.Frontends, func(ch table.Change[datapath.ServiceFrontend, service.Frontend], report bool) {
		if !report {
			return
		}
		row := ch.Value
		if ch.Deleted {
			h.event(flowpb.AgentEventType_SERVICE_DELETED, &flowpb.AgentEvent{
				Notification: &flowpb.AgentEvent_ServiceDelete{ServiceDelete: &flowpb.ServiceDeleteNotification{Id: row.ID}},
			})
			return
		}
		address := func(a netip.AddrPort) *flowpb.ServiceUpsertNotificationAddr {
			return &flowpb.ServiceUpsertNotificationAddr{Ip: a.Addr().String(), Port: uint32(a.Port())}
		}
		n := &flowpb.ServiceUpsertNotification{
			Id: row.ID, FrontendAddress: address(row.Addr), Type: row.Kind.String(), Namespace: row.Owner.Namespace, Name: row.Owner.Name,
		}
		n.ExtTrafficPolicy, n.IntTrafficPolicy = trafficPolicies(row)
		for _, b := range row.Backends[:min(len(row.Backends), maxBackends)] {
			n.BackendAddresses = append(n.BackendAddresses, address(b))
		}
		h.event(flowpb.AgentEventType_SERVICE_UPSERTED, &flowpb.AgentEvent{Notification: &flowpb.AgentEvent_ServiceUpsert{ServiceUpsert: n}})
	})
}

// trafficPolicies are what a frontend shows of those of its service: it is for clients either
// outside or inside.
func trafficPolicies(row service.Frontend) (external, internal string) {
	policy := "Cluster"
	if row.Local {
		policy = "Local"
	}
	switch {
	case row.Kind == service.ClusterIP:
		return "", policy
	case row.Kind != service.HostPortKind && row.Scope == datapath.ServiceExternal:
		return policy, ""
	}
	return "", ""
}
