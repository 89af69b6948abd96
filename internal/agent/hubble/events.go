package hubble

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"golang.org/x/time/rate"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/ipcache"
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
	update := func(kind flowpb.AgentEventType) {
		h.event(kind, &flowpb.AgentEvent{Notification: &flowpb.AgentEvent_EndpointUpdate{EndpointUpdate: &flowpb.EndpointUpdateNotification{
			Id: uint64(row.ID), Labels: row.Labels.Strings(), Error: failed, PodName: row.PodName, Namespace: row.Namespace,
		}}})
	}
	regenerated := func(kind flowpb.AgentEventType) {
		h.event(kind, &flowpb.AgentEvent{Notification: &flowpb.AgentEvent_EndpointRegenerate{EndpointRegenerate: &flowpb.EndpointRegenNotification{
			Id: uint64(row.ID), Labels: row.Labels.Strings(), Error: failed,
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

// follow calls add with each change of a table that follows what it has now, until ctx ends. Beyond
// the rate limit changes are omitted, and an event reports their number.
func follow[K comparable, V any](ctx context.Context, h *Hubble, what string, t *table.Table[K, V], add func(table.Change[K, V])) error {
	watch := t.Watch()
	defer watch.Close()
	for {
		changes, err := watch.Poll()
		if err != nil {
			return err
		}
		if len(changes) == 0 {
			break // what was there before
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
					if !limit.Allow() {
						leftOut++
						continue
					}
					add(ch)
				}
			}
		}
	}
}

// followAddresses reports to readers of the agent's events whose addresses are, until ctx ends.
func (h *Hubble) followAddresses(ctx context.Context) error {
	return follow(ctx, h, "ipcache", h.node.Addresses.Table(), func(ch table.Change[netip.Prefix, ipcache.Entry]) {
		n := &flowpb.IPCacheNotification{
			Cidr: ch.Key.String(), Identity: uint32(ch.Value.Identity), EncryptKey: uint32(ch.Value.EncryptKey),
		}
		n.Namespace, n.PodName = ch.Value.Pod()
		if host := ch.Value.Host(); host.IsValid() {
			n.HostIp = host.String()
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
	return follow(ctx, h, "service", h.node.Frontends, func(ch table.Change[datapath.ServiceFrontend, service.Frontend]) {
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
		for _, b := range row.Backends[:min(len(row.Backends), maxBackends)] {
			n.BackendAddresses = append(n.BackendAddresses, address(b))
		}
		h.event(flowpb.AgentEventType_SERVICE_UPSERTED, &flowpb.AgentEvent{Notification: &flowpb.AgentEvent_ServiceUpsert{ServiceUpsert: n}})
	})
}
