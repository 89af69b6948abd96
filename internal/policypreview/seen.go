package policypreview

import (
	"context"
	"net/netip"
	"time"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// connection is what verdicts about connections depend on.
type connection struct {
	src, dst end
	proto    uint8
	port     uint16
}

// seen is what was recorded of connections that are evaluated alike.
type seen struct {
	connection
	// verdicts and drops have how many times one was opened, by direction: by the verdicts of
	// policy, and by the drops. A refusal is reported as both.
	verdicts, drops [2]uint64
	first, last     time.Time
	// passes has by direction whether it passes, before and after.
	passes [2][2]bool
	// sources and destinations are some pods or addresses.
	sources, destinations []string
}

// record is what was recorded of connections.
type record struct {
	byKey     map[connection]*seen
	workloads names
	// flows were evaluated, others cannot be.
	flows, others uint64
	oldest        time.Time
	// lost counts events that were lost meanwhile, and flows that were overwritten.
	lost uint64
}

// samples is how many pods or addresses of each end are remembered.
const samples = 3

// readBatch is how many flows are copied out of the ring at once.
const readBatch = 1024

// workloadsOf returns the workloads that flows name.
func workloadsOf(ctx context.Context, ring *flows.Ring[flows.Entry]) (names, error) {
	out := names{}
	_, err := eachEntry(ctx, ring, func(e *flows.Entry) {
		if e.Flow == nil {
			return
		}
		out.note(e.Flow.GetSource())
		out.note(e.Flow.GetDestination())
	})
	return out, err
}

// eachEntry calls f for what a ring has now, and returns how many entries were overwritten before.
func eachEntry(ctx context.Context, ring *flows.Ring[flows.Entry], f func(*flows.Entry)) (overwritten uint64, err error) {
	at, end := ring.Bounds()
	buf := make([]flows.Entry, readBatch)
	for at < end {
		if err := ctx.Err(); err != nil {
			return overwritten, err
		}
		n, missed, _ := ring.Read(at, buf[:min(uint64(len(buf)), end-at)])
		at += uint64(n) + missed
		overwritten += missed
		for i := range buf[:n] {
			f(&buf[i])
		}
	}
	return overwritten, nil
}

// read collects the connections in the ring since a time.
func (j *evaluator) read(ctx context.Context, agent Agent, ring *flows.Ring[flows.Entry], since time.Time) (*record, error) {
	r := &record{byKey: map[connection]*seen{}, workloads: names{}}
	overwritten, err := eachEntry(ctx, ring, func(e *flows.Entry) {
		if e.Time.Before(since) {
			return
		}
		if e.Flow == nil {
			r.lost += min(e.Lost.GetNumEventsLost(), 1<<48) // it cannot overflow
			return
		}
		r.workloads.note(e.Flow.GetSource())
		r.workloads.note(e.Flow.GetDestination())
		if r.oldest.IsZero() || e.Time.Before(r.oldest) {
			r.oldest = e.Time
		}
		switch ok, about := j.add(agent, r, e); {
		case !about:
		case ok:
			r.flows++
		default:
			r.others++
		}
	})
	r.lost += overwritten
	return r, err
}

// add adds a flow. about is false of what no policy can change.
func (j *evaluator) add(agent Agent, r *record, e *flows.Entry) (ok, about bool) {
	f := e.Flow
	kind := f.GetEventType().GetType()
	if f.GetIP() == nil || kind == flows.EventDrop && !flows.RefusedByPolicy(f) {
		return false, false
	}
	if f.GetIsReply() == nil {
		return false, true
	}
	src, dst, from, to := f.GetSource(), f.GetDestination(), e.Source, e.Destination
	reply := f.GetIsReply().GetValue()
	if reply && kind == flows.EventTrace {
		// Such a packet is seen as it leaves for the client, from the address and the port of a
		// Service perhaps: policies evaluate what is behind it, and the verdict names that.
		return false, false
	}
	if reply {
		src, dst, from, to = dst, src, to, from
	}
	var key connection
	var opens bool
	if key.proto, key.port, opens, ok = opened(f, reply); !ok {
		return false, true
	}
	if key.src, ok = j.end(agent, src, from); !ok {
		return false, true
	}
	if key.dst, ok = j.end(agent, dst, to); !ok {
		return false, true
	}
	s := r.byKey[key]
	if s == nil {
		s = &seen{connection: key, first: e.Time, last: e.Time, passes: [2][2]bool{{true, true}, {true, true}}}
		r.byKey[key] = s
	}
	if e.Time.Before(s.first) {
		s.first = e.Time
	}
	if e.Time.After(s.last) {
		s.last = e.Time
	}
	dir := datapath.Ingress
	if f.GetTrafficDirection() == flowpb.TrafficDirection_EGRESS {
		dir = datapath.Egress
	}
	switch {
	case reply || !opens:
	case kind == flows.EventVerdict:
		s.verdicts[dir]++
	case kind == flows.EventDrop:
		s.drops[dir]++
	}
	s.sources = sample(s.sources, src, from)
	s.destinations = sample(s.destinations, dst, to)
	return true, true
}

// opened returns what a connection is opened with, and whether the packet may be the one that does:
// only of TCP can that be distinguished.
func opened(f *flowpb.Flow, reply bool) (proto uint8, port uint16, opens, ok bool) {
	l4 := f.GetL4()
	if src, dst, ok := flows.Ports(l4); ok {
		port = uint16(dst)
		if reply {
			port = uint16(src)
		}
		switch {
		case l4.GetTCP() != nil:
			flags := l4.GetTCP().GetFlags()
			return datapath.ProtoTCP, port, flags.GetSYN() && !flags.GetACK(), true
		case l4.GetUDP() != nil:
			return datapath.ProtoUDP, port, true, true
		}
		return datapath.ProtoSCTP, port, true, true
	}
	switch {
	case reply:
		return 0, 0, false, false // a reply does not show its request
	case l4.GetICMPv4() != nil:
		return datapath.ProtoICMP, uint16(l4.GetICMPv4().GetType()), true, true
	case l4.GetICMPv6() != nil:
		return datapath.ProtoICMPv6, uint16(l4.GetICMPv6().GetType()), true, true
	}
	return 0, 0, false, false
}

// end is the party at one end of a flow, as known now, otherwise as recorded in the flow.
func (j *evaluator) end(agent Agent, e *flowpb.Endpoint, addr netip.Addr) (end, bool) {
	id := identity.ID(e.GetIdentity())
	if id == identity.Unknown || !addr.IsValid() {
		return end{}, false
	}
	if id.IsOutside() {
		return end{id: j.outsideAt(addr), addr: j.addressed(addr)}, true
	}
	out := end{id: id, addr: j.addressed(addr)}
	set := j.labelsOf(id)
	if len(set) == 0 {
		var err error
		if set, err = labels.ParseSet(e.GetLabels()); err != nil || len(set) == 0 {
			return end{}, false
		}
		j.engine.SetIdentity(id, set)
	}
	if s, seen, ok := agent.Endpoint(uint16(e.GetID())); ok && e.GetID() != 0 && (s.Identity == id || seen == id) {
		out.subject = s // it is of this cluster, whatever is known of its number
		return out, true
	}
	out.subject = j.enforced(policy.Subject{Identity: id, NamedPorts: j.snap.NamedPorts[id]}, set)
	return out, true
}

// sample adds the name of an end, if there is room.
func sample(list []string, e *flowpb.Endpoint, addr netip.Addr) []string {
	name := addr.String()
	if e.GetPodName() != "" {
		name = e.GetNamespace() + "/" + e.GetPodName()
	}
	return MergeSamples(list, []string{name})
}

// MergeSamples adds names to a list as far as there is room.
func MergeSamples(list, more []string) []string {
next:
	for _, name := range more {
		for _, have := range list {
			if have == name {
				continue next
			}
		}
		if len(list) == samples {
			break
		}
		list = append(list, name)
	}
	return list
}

// evaluate notes for all connections whether they pass by the rules of now.
func (r *record) evaluate(ctx context.Context, j *evaluator, moment int) error {
	type side struct {
		s   *seen
		dir datapath.Direction
	}
	of := map[policy.Subject][]side{}
	var subjects []policy.Subject
	add := func(subject policy.Subject, s side) {
		if subject == (policy.Subject{}) {
			return
		}
		if len(of[subject]) == 0 {
			subjects = append(subjects, subject)
		}
		of[subject] = append(of[subject], s)
	}
	for _, s := range r.byKey {
		add(s.src.subject, side{s, datapath.Egress})
		add(s.dst.subject, side{s, datapath.Ingress})
	}
	return j.each(ctx, subjects, func(subject policy.Subject, rs datapath.RuleSetID) error {
		for _, x := range of[subject] {
			peer := x.s.src
			if x.dir == datapath.Egress {
				peer = x.s.dst
			}
			x.s.passes[moment][x.dir] = j.engine.Lookup(rs, x.dir, peer.id, peer.addr, x.s.proto, x.s.port).Pass()
		}
		return nil
	})
}

// passed reports whether both sides let the connection pass.
func (s *seen) passed(moment int) bool {
	return s.passes[moment][datapath.Egress] && s.passes[moment][datapath.Ingress]
}
