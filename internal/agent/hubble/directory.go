package hubble

import (
	"net/netip"
	"slices"
	"time"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/table"
)

// directory is what the agent's tables know of the ends of flows. It is for one goroutine.
type directory struct {
	node Node
	// texts has the labels of identities as flows show them, so that flows share them.
	texts   map[identity.ID]labelTexts
	answers answers
	hosts   hosts
	links   links
}

// maxTexts bounds of how many identities the labels are remembered.
const maxTexts = 65536

type labelTexts struct {
	set       labels.Set
	texts     []string
	namespace string
	cluster   string
}

var _ flows.Directory = (*directory)(nil)

func newDirectory(n Node) *directory {
	return &directory{node: n, texts: map[identity.ID]labelTexts{}, answers: newAnswers(), hosts: hosts{self: n.Self.String()}, links: links{list: n.Links}}
}

// Endpoint implements [flows.Directory].
func (d *directory) Endpoint(number uint16) flows.Party {
	row, ok := d.node.Endpoints.Get(number)
	if !ok {
		return flows.Party{}
	}
	return d.local(row)
}

// local is an endpoint of this node.
func (d *directory) local(row endpoint.Endpoint) flows.Party {
	p := flows.Party{Endpoint: row.ID, Identity: uint32(row.Seen()), Namespace: row.Namespace, Pod: row.PodName, Node: d.hosts.self}
	if d.node.Workload != nil && row.PodName != "" {
		if w := d.node.Workload(row.Namespace, row.PodName); w != nil {
			p.Workloads = []*flowpb.Workload{w}
		}
	}
	return p
}

// Party implements [flows.Directory].
func (d *directory) Party(addr netip.Addr) flows.Party {
	if row, ok := d.node.Endpoints.ByAddr(addr); ok {
		return d.local(row)
	}
	_, e, ok := d.node.Addresses.Lookup(addr)
	if !ok {
		return flows.Party{}
	}
	p := flows.Party{Identity: uint32(e.Identity), Node: d.nodeOf(addr, e)}
	p.Namespace, p.Pod = e.Pod()
	if d.node.RemoteWorkload != nil && p.Pod != "" && e.Source == ipcache.KVStore {
		if w := d.node.RemoteWorkload(addr, p.Namespace, p.Pod); w != nil {
			p.Workloads = []*flowpb.Workload{w}
		}
	}
	return p
}

// nodeOf is the node that an address of the cluster is on: the node that hosts it, or the one whose
// own address it is.
func (d *directory) nodeOf(addr netip.Addr, e ipcache.Entry) string {
	switch {
	case e.Identity == identity.Host:
		return d.hosts.self
	case e.Host().IsValid():
		addr = e.Host()
	case e.Identity.IsOutside():
		return ""
	}
	return d.hosts.at(addr, d.node.Nodes, time.Now())
}

// hosts knows nodes by their addresses.
type hosts struct {
	self     string
	names    map[netip.Addr]string // empty for an address of several nodes
	revision uint64
	read     time.Time
}

// hostsAge is how long nodes that changed are not read again: there may be thousands.
const hostsAge = time.Second

// at returns the node that has an address; empty if none is known, or more than one.
func (h *hosts) at(addr netip.Addr, nodes *table.Table[node.Key, node.Node], now time.Time) string {
	if rev := nodes.Revision(); h.names == nil || rev != h.revision && now.Sub(h.read) >= hostsAge {
		h.names, h.revision, h.read = map[netip.Addr]string{}, rev, now
		for key, n := range nodes.All() {
			for _, a := range n.Addresses {
				if before, ok := h.names[a.IP]; ok && before != key.String() {
					h.names[a.IP] = ""
					continue
				}
				h.names[a.IP] = key.String()
			}
		}
	}
	return h.names[addr]
}

// Labels implements [flows.Directory].
func (d *directory) Labels(number uint32) (texts []string, namespace, cluster string) {
	id := identity.ID(number)
	set, ok := d.node.Labels(id)
	if !ok {
		if set, ok = identity.ReservedLabels(id); !ok {
			return nil, "", ""
		}
	}
	known, ok := d.texts[id]
	if !ok || !known.set.Equal(set) {
		known = labelTexts{set, set.Strings(), set.Value(labels.SourceK8s, labels.KeyNamespace), set.Value(labels.SourceK8s, labels.KeyCluster)}
		if len(d.texts) >= maxTexts {
			clear(d.texts)
		}
		d.texts[id] = known
	}
	return known.texts, known.namespace, known.cluster
}

// Interface implements [flows.Directory].
func (d *directory) Interface(index int) string { return d.links.name(index, time.Now()) }

// links knows the node's interfaces by their indexes.
type links struct {
	list  func() (map[int]string, error) // nil if they are not known
	names map[int]string
	read  time.Time
}

// linksAge is how long interfaces are not listed again for one that is not known, and linksRenamed
// for those that are: a pod that comes has a new index, while hardly anybody renames interfaces.
const (
	linksAge     = time.Second
	linksRenamed = time.Minute
)

// name returns the name of an interface; empty if it is not known. One that has gone is known until
// the next listing.
func (l *links) name(index int, now time.Time) string {
	if l.list == nil {
		return ""
	}
	name, known := l.names[index]
	if age := now.Sub(l.read); l.read.IsZero() || age >= linksRenamed || !known && age >= linksAge {
		l.read = now
		if names, err := l.list(); err == nil {
			l.names = names
			name = names[index]
		}
	}
	return name
}

// Service implements [flows.Directory].
func (d *directory) Service(addr netip.Addr, port uint16, proto uint8) *flowpb.Service {
	if d.node.Frontends == nil || port == 0 {
		return nil
	}
	row, ok := d.node.Frontends.Get(datapath.ServiceFrontend{Addr: netip.AddrPortFrom(addr, port), Proto: proto})
	if !ok {
		return nil
	}
	return &flowpb.Service{Namespace: row.Owner.Namespace, Name: row.Owner.Name}
}

// Policies implements [flows.Directory]. It evaluates the current rules, which may differ from
// those by which the packet was evaluated: if the verdict differs, or if there are too many
// lookups, no policy is named.
func (d *directory) Policies(ev datapath.Event) []*flowpb.Policy {
	if ev.Reason == datapath.ReasonPolicyDenied {
		return nil // for want of a rule that allows
	}
	row, ok := d.node.Endpoints.Get(ev.Endpoint)
	if !ok || ev.Packet.Fragment || !ev.Packet.Src.IsValid() {
		return nil
	}
	q := question{
		direction: ev.Direction, endpoint: row.ID, subject: row.Identity, proto: ev.Packet.Proto,
		passed: ev.Reason == datapath.ReasonForwarded, denied: ev.Reason == datapath.ReasonPolicyDeny,
	}
	// An answer is evaluated again in the direction in which its connection was opened.
	own := ev.Packet.Src
	if ev.Direction == datapath.Ingress {
		own = ev.Packet.Dst
	}
	opening := slices.Contains(row.Addresses(), own)
	var peerAddr netip.Addr
	if opening == (ev.Direction == datapath.Egress) {
		q.peer, peerAddr = identity.ID(ev.DstIdentity), ev.Packet.Dst
	} else {
		q.peer, peerAddr = identity.ID(ev.SrcIdentity), ev.Packet.Src
	}
	if _, local := d.node.Endpoints.ByAddr(peerAddr); local {
		q.peerAddr = peerAddr // its row has more than its identity
	}
	switch {
	case ev.Packet.ICMPType != nil && opening:
		q.port = uint16(*ev.Packet.ICMPType)
	case ev.Packet.ICMPType != nil:
		return nil // of which request is not known
	case opening:
		q.port = ev.Packet.DstPort
	default:
		q.port = ev.Packet.SrcPort
	}
	return d.answers.get(q, peerAddr, d.node.Policy.Revision(), func(q question) (answer, bool) { return d.ask(row, q) })
}

// ask returns the policies whose rules decide a question. It is not answered while policy is busy,
// for which flows do not wait, nor while a party is not known.
func (d *directory) ask(row endpoint.Endpoint, q question) (answer, bool) {
	subject := policyParty(row)
	peer := policy.Party{Identity: q.peer, Addr: q.peerAddr}
	if other, ok := d.node.Endpoints.ByAddr(q.peerAddr); ok {
		peer = policyParty(other)
		peer.Addr = q.peerAddr
	}
	from, to := subject, peer
	if q.direction == datapath.Ingress {
		from, to = peer, subject
	}
	var res policy.TraceResult
	var err error
	if !d.node.Policy.TryView(func(e *policy.Engine) { res, err = e.Trace(from, to, q.proto, q.port) }) {
		return answer{}, false
	}
	if err != nil {
		return answer{}, false // such as of an identity that is not known yet: the next flow asks again
	}
	side := res.Egress
	if q.direction == datapath.Ingress {
		side = res.Ingress
	}
	switch {
	case slices.ContainsFunc(side.Steps, func(s policy.TraceStep) bool { return s.ByAddress }):
		return answer{byAddress: true}, true
	case side.Verdict.Pass() != q.passed || (side.Verdict == policy.Denied) != q.denied:
		return answer{}, true
	}
	return answer{policies: policiesOf(side, d.answers.named)}, true
}

// policyParty is an endpoint of this node as one side of a trace.
func policyParty(row endpoint.Endpoint) policy.Party {
	return policy.Party{Identity: row.Identity, Labels: row.IdentityLabels, SeenAs: row.Seen(), NamedPorts: policy.FormatNamedPorts(row.NamedPorts)}
}
