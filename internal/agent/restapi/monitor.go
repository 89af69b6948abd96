package restapi

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
)

var monitorTypes = map[string]datapath.MonitorFlags{
	string(rest.MonitorEventTypeDrop):          datapath.MonitorDrops,
	string(rest.MonitorEventTypePolicyVerdict): datapath.MonitorVerdicts,
	string(rest.MonitorEventTypeTrace):         datapath.MonitorTraces,
}

// monitorBatch bounds how many events are sent in one write.
const monitorBatch = 256

// Monitor is GET /monitor: a stream of events until the client goes.
func (a *API) Monitor(ctx context.Context, req server.MonitorRequestObject) (server.MonitorResponseObject, error) {
	var flags datapath.MonitorFlags
	for _, name := range strings.Split(req.Params.Type, ",") {
		name = strings.TrimSpace(name)
		if name == "" {
			continue
		}
		f, ok := monitorTypes[name]
		if !ok {
			return nil, server.Errorf(http.StatusBadRequest, "type: %q is not one of drop, policy-verdict, trace", name)
		}
		flags |= f
	}
	if flags == 0 {
		flags = datapath.MonitorDrops | datapath.MonitorVerdicts | datapath.MonitorTraces
	}
	return server.MonitorStream(func(emit func(...rest.MonitorEvent) error) error {
		sub, stop := a.Events.Subscribe(flags)
		defer stop()
		// A stream without events still has to notice that its client is gone.
		tick := time.NewTicker(15 * time.Second)
		defer tick.Stop()
		for {
			select {
			case <-ctx.Done():
				return ctx.Err()
			case <-a.Stopping:
				return nil
			case <-tick.C:
			case <-sub.Ready():
			}
			events, kernel, queue := sub.Take()
			for list := range slices.Chunk(events, monitorBatch) {
				batch := make([]rest.MonitorEvent, len(list))
				for i, ev := range list {
					batch[i] = a.monitorEvent(ev)
				}
				if err := emit(batch...); err != nil {
					return err
				}
			}
			if kernel+queue > 0 {
				if err := emit(rest.MonitorEvent{Type: rest.MonitorEventTypeLost, Time: time.Now(), Lost: kernel + queue}); err != nil {
					return err
				}
			}
		}
	}), nil
}

// monitorEvent is the API's form of an event, with the labels of the identities as they are known
// now.
func (a *API) monitorEvent(ev datapath.Event) rest.MonitorEvent {
	out := rest.MonitorEvent{
		Time: ev.Time, Direction: ev.Direction.String(), Endpoint: int(ev.Endpoint), InterfaceIndex: ev.IfIndex, Length: ev.Length,
		Point: ev.Program.String(), SourceIdentity: int(ev.SrcIdentity), DestinationIdentity: int(ev.DstIdentity),
		Proto: ev.Packet.L4, SourcePort: int(ev.Packet.SrcPort), DestinationPort: int(ev.Packet.DstPort),
	}
	if out.Proto == "" {
		out.Proto = ev.Packet.L3
	}
	if ev.Packet.Src.IsValid() {
		out.Source, out.Destination = ev.Packet.Src.String(), ev.Packet.Dst.String()
	}
	if set, ok := a.Identities.Labels(identity.ID(ev.SrcIdentity)); ok {
		out.SourceLabels = set.Strings()
	}
	if set, ok := a.Identities.Labels(identity.ID(ev.DstIdentity)); ok {
		out.DestinationLabels = set.Strings()
	}
	switch ev.Type {
	case datapath.EventDrop:
		out.Type, out.Verdict, out.Reason = rest.MonitorEventTypeDrop, rest.PolicyVerdictDenied, ev.Reason.String()
	case datapath.EventVerdict:
		out.Type, out.Verdict = rest.MonitorEventTypePolicyVerdict, verdictName(ev.Reason == datapath.ReasonForwarded)
		if ev.Reason != datapath.ReasonForwarded {
			out.Reason = ev.Reason.String()
		}
		if ev.Outcome == datapath.OutcomeAudited {
			out.Verdict = rest.PolicyVerdictAudit
		}
	default:
		out.Type, out.Reason = rest.MonitorEventTypeTrace, "to "+ev.Outcome.String()
	}
	return out
}
