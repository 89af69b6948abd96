package ui

import (
	"cmp"
	"fmt"
	"math"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/flows"
)

const (
	// BucketLength is the unit of time of the sums.
	BucketLength = 10 * time.Second
	// buckets is how many of them are kept: a quarter of an hour.
	buckets = 90
	// Window is how far back the sums reach.
	Window = buckets * BucketLength
)

// Limits bound what a Graph holds. What does not fit is counted, see Snapshot.NotShown.
type Limits struct {
	Workloads int // at the ends of edges
	Edges     int
	Ports     int // of one pair of workloads; further ones are one edge without a port
	Details   int // names of each kind (pods, addresses, policies) of a workload or an edge
	Flows     int // the latest, as they came
}

// DefaultLimits let a Graph take some tens of megabytes when all are reached.
func DefaultLimits() Limits {
	return Limits{Workloads: 5000, Edges: 20000, Ports: 32, Details: 32, Flows: 20000}
}

// Kinds of workloads.
const (
	KindWorkload = "workload" // pods that a Deployment or the like has made
	KindPod      = "pod"      // a pod of its own
	KindEntity   = "entity"   // a reserved identity: the world, a node, the API server
)

// LinkLocal is the ID of the entity for all addresses that mean nothing beyond a link: multicast,
// neighbour discovery. The page leaves it out unless it is asked for.
const LinkLocal = ":link-local"

// Workload is one end of edges: what runs pods, or an entity outside of them.
type Workload struct {
	// ID is "namespace/name" of a workload, ":name" of an entity, and "cluster/namespace/name" of a
	// workload of another cluster, which has "name of cluster" as its name.
	ID        string `json:"id"`
	Kind      string `json:"kind"`
	Namespace string `json:"namespace,omitempty"`
	Name      string `json:"name"`
	Type      string `json:"type,omitempty"` // Deployment and so on
	// What was seen of it in the time that was asked for, sorted.
	Identities []string   `json:"identities,omitempty"`
	Labels     []string   `json:"labels,omitempty"`
	Endpoints  []Endpoint `json:"endpoints,omitempty"`
	// Addresses are those of what is no pod.
	Addresses []string `json:"addresses,omitempty"`
	Services  []string `json:"services,omitempty"`
	Names     []string `json:"names,omitempty"` // in the DNS
	Policies  []string `json:"policies,omitempty"`
}

// Endpoint is a pod of a workload.
type Endpoint struct {
	Pod       string   `json:"pod"`
	Addresses []string `json:"addresses,omitempty"`
	Identity  uint32   `json:"identity,omitempty"`
	// Node is where it runs, if that node has reported it.
	Node string `json:"node,omitempty"`
}

// Edge is traffic of one kind between two workloads, from the client to the server.
type Edge struct {
	ID          string `json:"id"`
	Source      string `json:"source"`
	Destination string `json:"destination"`
	Protocol    string `json:"protocol"`
	// Port is that of the destination, 0 where there is none or where it is one of too many.
	Port uint32 `json:"port,omitempty"`
	// Connections let in, packets refused, and those that an audit would have refused, in the time
	// that was asked for.
	Forwarded uint64 `json:"forwarded"`
	Dropped   uint64 `json:"dropped"`
	Audited   uint64 `json:"audited"`
	// Seen is when there was something last.
	Seen time.Time `json:"seen"`
	// Reasons are those for which packets were dropped; AllowedBy and DeniedBy the policies that
	// decided, as "namespace/name".
	Reasons   []string `json:"reasons,omitempty"`
	AllowedBy []string `json:"allowedBy,omitempty"`
	DeniedBy  []string `json:"deniedBy,omitempty"`
}

// What Flow.Type and Flow.Direction are of verdicts about what comes in.
const (
	typeVerdict      = "policy-verdict"
	directionIngress = "ingress"
)

// Flow is one flow for people.
type Flow struct {
	Time        time.Time `json:"time"`
	Node        string    `json:"node"`
	Edge        string    `json:"edge,omitempty"` // none of a packet that belongs to no connection
	Source      string    `json:"source"`         // pod or address, and port
	Destination string    `json:"destination"`    // likewise
	Protocol    string    `json:"protocol"`
	Type        string    `json:"type"`
	Direction   string    `json:"direction,omitempty"`
	Verdict     string    `json:"verdict"`
	Reason      string    `json:"reason,omitempty"`
	Reply       bool      `json:"reply,omitempty"`
	// AllowedBy and DeniedBy are the policies that decided.
	AllowedBy []string `json:"allowedBy,omitempty"`
	DeniedBy  []string `json:"deniedBy,omitempty"`

	ends [2]string // the workloads of the edge
}

// Of reports whether a workload is at one of the flow's ends.
func (f *Flow) Of(workload string) bool { return f.ends[0] == workload || f.ends[1] == workload }

// Sum is what happened within one bucket of time, all edges together.
type Sum struct {
	Start     time.Time `json:"start"`
	Forwarded uint64    `json:"forwarded"`
	Dropped   uint64    `json:"dropped"`
	Audited   uint64    `json:"audited"`
}

// Snapshot is what a Graph knows of a span of time.
type Snapshot struct {
	Now       time.Time  `json:"now"`
	From      time.Time  `json:"from"`
	To        time.Time  `json:"to"`
	Workloads []Workload `json:"workloads"`
	Edges     []Edge     `json:"edges"`
	Timeline  []Sum      `json:"timeline"` // the whole window, oldest first
	Marks     []Mark     `json:"marks"`    // changes of policies within the window, oldest first
	// MarksLost is how many events of agents were lost within the window, some of which may have
	// been changes of policies.
	MarksLost uint64 `json:"marksLost,omitempty"`
	Lost      uint64 `json:"lost"`     // events that were lost, since the start
	NotShown  uint64 `json:"notShown"` // flows for which there was no room, since the start
}

// count is what one edge saw in one bucket. A connection between two pods is let in twice, by the
// policy of its sender and by that of its receiver, of which the latter may refuse what the former
// has let pass; a packet that policy denies is reported as the verdict and as the drop. The larger
// of both is what happened.
type count struct {
	egress, ingress, denied, dropped, audited uint32
	turnedAway                                uint32 // of those denied: by the receiver
}

func (c count) forwarded() uint64 {
	return uint64(max(c.egress-min(c.egress, c.turnedAway), c.ingress))
}

// add adds what another bucket saw: sender and receiver of one connection may report in two.
func (c *count) add(d count) {
	c.egress, c.ingress, c.denied = c.egress+d.egress, c.ingress+d.ingress, c.denied+d.denied
	c.dropped, c.audited, c.turnedAway = c.dropped+d.dropped, c.audited+d.audited, c.turnedAway+d.turnedAway
}

// addFlow adds a flow; for a verdict of policy, at the end of the connection that it is of.
func (c *count) addFlow(verdict string, policy, ingress bool) {
	switch verdict {
	case flow.Verdict_FORWARDED.String(), flow.Verdict_REDIRECTED.String():
		switch {
		case !policy:
		case ingress:
			c.ingress++
		default:
			c.egress++
		}
	case flow.Verdict_DROPPED.String(), flow.Verdict_ERROR.String():
		switch {
		case !policy:
			c.dropped++
		case ingress:
			c.denied++
			c.turnedAway++
		default:
			c.denied++
		}
	case flow.Verdict_AUDIT.String():
		c.audited++
	}
}

func (c count) refused() uint64 { return uint64(max(c.denied, c.dropped)) }

type edge struct {
	Edge
	pair                     [2]string
	counts                   [buckets]count
	numbers                  [buckets]int64 // of the bucket that is in counts
	reasons, allowed, denied names
	refused                  *flow.Flow // by policy, the last one
}

type workload struct {
	Workload
	edges                                                  int
	pods                                                   pods
	identities, labels, addresses, services, dns, policies names
}

// owner is the workload of a pod.
type owner struct {
	name, kind string
	seen       time.Time
}

// Graph sums flows up. Its methods may be called concurrently.
type Graph struct {
	limits Limits
	now    func() time.Time

	mu        sync.Mutex
	workloads map[string]*workload
	edges     map[string]*edge
	pairs     map[[2]string]int   // edges with a port of their own
	owners    map[[3]string]owner // of pods, by cluster, namespace and name, as nodes report their own
	flows     []Flow              // a ring
	next      int
	lost      uint64
	notShown  uint64
	marks     []*Mark // by time
	marked    int     // since the start
	marksLost uint64
	lostMarks time.Time // when the last of them were lost
	swept     time.Time
}

// NewGraph returns one that knows nothing yet.
func NewGraph(limits Limits) *Graph {
	return &Graph{
		limits: limits, now: time.Now,
		workloads: make(map[string]*workload), edges: make(map[string]*edge), pairs: make(map[[2]string]int),
		owners: make(map[[3]string]owner),
	}
}

// Lost counts events that were lost.
func (g *Graph) Lost(n uint64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lost += min(n, math.MaxUint64-g.lost) // a node may claim any number
}

// side is one end of a flow.
type side struct {
	endpoint *flow.Endpoint
	address  string
	port     uint32
	service  *flow.Service
	names    []string
	cluster  string // if it is another than that of the node that reports the flow
}

// otherCluster is the cluster of an end, if it is another than that of the node that reports it.
func otherCluster(e *flow.Endpoint, node string) string {
	if own, _, known := strings.Cut(node, "/"); !known || e.GetClusterName() == own {
		return ""
	}
	return cut(e.GetClusterName())
}

// Add counts a flow that a node has seen.
func (g *Graph) Add(f *flow.Flow) {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.sweep(now)
	at := f.GetTime().AsTime()
	if at.After(now) { // a node's clock that is ahead
		at = now
	}
	if now.Sub(at) >= Window-BucketLength {
		return
	}
	protocol, node := protocolName(f.GetL4()), f.GetNodeName()
	sport, dport, _ := flows.Ports(f.GetL4())
	src := side{f.GetSource(), f.GetIP().GetSource(), sport, f.GetSourceService(), f.GetSourceNames(), otherCluster(f.GetSource(), node)}
	dst := side{f.GetDestination(), f.GetIP().GetDestination(), dport, f.GetDestinationService(), f.GetDestinationNames(), otherCluster(f.GetDestination(), node)}
	line := newFlow(f, at, protocol, src, dst)
	if f.GetIsReply().GetValue() {
		src, dst = dst, src
	}
	e := g.edge(src, dst, protocol, now, opens(f))
	switch {
	case e != nil:
		line.Edge, line.ends = e.ID, e.pair
	case opens(f):
		g.notShown++
		return
	}
	g.keep(line)
	if e == nil {
		return
	}
	bucket := at.UnixNano() / int64(BucketLength)
	g.count(e, f, bucket)
	if at.After(e.Seen) {
		e.Seen = at
	}
	for i, s := range []side{src, dst} {
		g.describe(g.workloads[e.pair[i]], s, node, bucket)
	}
	for _, p := range slices.Concat(f.GetEgressAllowedBy(), f.GetEgressDeniedBy()) {
		g.workloads[e.pair[0]].policies.add(g.limits.Details, policyName(p), bucket)
	}
	for _, p := range slices.Concat(f.GetIngressAllowedBy(), f.GetIngressDeniedBy()) {
		g.workloads[e.pair[1]].policies.add(g.limits.Details, policyName(p), bucket)
	}
}

// opens reports whether a flow identifies a connection, existing or attempted. A trace of a reply
// may come from a service's address, and one of unknown direction identifies none.
func opens(f *flow.Flow) bool {
	return f.GetEventType().GetType() != eventTrace || f.GetIsReply() != nil && !f.GetIsReply().GetValue()
}

// begins reports whether a verdict is about a connection that begins: others are evaluated again
// when policy changes. Only for TCP is that known.
func begins(f *flow.Flow) bool {
	flags := f.GetL4().GetTCP().GetFlags()
	return flags == nil || flags.GetSYN() && !flags.GetACK()
}

// count adds a flow to the sums of its edge.
func (g *Graph) count(e *edge, f *flow.Flow, number int64) {
	i := number % buckets
	if e.numbers[i] > number {
		return
	}
	if e.numbers[i] != number {
		e.numbers[i], e.counts[i] = number, count{}
	}
	passed := f.GetVerdict() == flow.Verdict_FORWARDED || f.GetVerdict() == flow.Verdict_REDIRECTED
	if !passed || begins(f) { // others were counted when their connection began
		e.counts[i].addFlow(f.GetVerdict().String(), isVerdict(f), f.GetTrafficDirection() == flow.TrafficDirection_INGRESS)
	}
	if f.GetVerdict() == flow.Verdict_DROPPED && flows.RefusedByPolicy(f) {
		e.refused = question(f)
	}
	if f.GetVerdict() == flow.Verdict_DROPPED || f.GetVerdict() == flow.Verdict_ERROR {
		e.reasons.add(g.limits.Details, flows.ReasonText(f), number)
	}
	for _, p := range slices.Concat(f.GetEgressAllowedBy(), f.GetIngressAllowedBy()) {
		e.allowed.add(g.limits.Details, policyName(p), number)
	}
	for _, p := range slices.Concat(f.GetEgressDeniedBy(), f.GetIngressDeniedBy()) {
		e.denied.add(g.limits.Details, policyName(p), number)
	}
}

// edge returns that of two sides, a new one if that may be and there is room for it.
func (g *Graph) edge(src, dst side, protocol string, now time.Time, create bool) *edge {
	a, b := g.identify(src, now), g.identify(dst, now)
	pair := [2]string{a.ID, b.ID}
	port := dst.port
	id := edgeID(pair, protocol, port)
	if e := g.edges[id]; e != nil {
		return e
	}
	if g.pairs[pair] >= g.limits.Ports {
		port = 0
		id = edgeID(pair, protocol, port)
		if e := g.edges[id]; e != nil {
			return e
		}
	}
	if !create {
		return nil
	}
	missing := 0
	for id := range map[string]bool{a.ID: true, b.ID: true} {
		if g.workloads[id] == nil {
			missing++
		}
	}
	if len(g.edges) >= g.limits.Edges || len(g.workloads)+missing > g.limits.Workloads {
		return nil
	}
	e := &edge{Edge: Edge{ID: id, Source: a.ID, Destination: b.ID, Protocol: protocol, Port: port}, pair: pair}
	g.edges[id] = e
	g.pairs[pair]++
	for _, w := range []Workload{a, b} {
		have := g.workloads[w.ID]
		if have == nil {
			have = &workload{Workload: w}
			g.workloads[w.ID] = have
		}
		have.edges++
	}
	return e
}

func edgeID(pair [2]string, protocol string, port uint32) string {
	return fmt.Sprintf("%s>%s>%s/%d", pair[0], pair[1], protocol, port)
}

// describe adds the data of a workload in a node's flow.
func (g *Graph) describe(w *workload, s side, node string, bucket int64) {
	limit := g.limits.Details
	if id := s.endpoint.GetIdentity(); id != 0 {
		w.identities.add(limit, fmt.Sprint(id), bucket)
	}
	if w.Kind == KindEntity {
		w.addresses.add(limit, s.address, bucket)
	} else {
		for _, l := range s.endpoint.GetLabels() {
			w.labels.add(limit, l, bucket)
		}
		w.pods.add(limit, s, node, bucket)
	}
	if s.service.GetName() != "" {
		w.services.add(limit, s.service.GetNamespace()+"/"+s.service.GetName(), bucket)
	}
	for _, n := range s.names {
		w.dns.add(limit, n, bucket)
	}
}

// keep stores a flow among the latest.
func (g *Graph) keep(f Flow) {
	if len(g.flows) < g.limits.Flows {
		g.flows = append(g.flows, f)
		return
	}
	g.flows[g.next] = f
	g.next = (g.next + 1) % len(g.flows)
}

// sweep periodically drops what has not been seen for the whole window.
func (g *Graph) sweep(now time.Time) {
	if now.Sub(g.swept) < BucketLength {
		return
	}
	g.swept = now
	g.dropMarks(now)
	for pod, o := range g.owners {
		if now.Sub(o.seen) >= Window {
			delete(g.owners, pod)
		}
	}
	for id, e := range g.edges {
		if now.Sub(e.Seen) < Window {
			continue
		}
		delete(g.edges, id)
		if g.pairs[e.pair]--; g.pairs[e.pair] == 0 {
			delete(g.pairs, e.pair)
		}
		for _, end := range e.pair {
			if w := g.workloads[end]; w != nil {
				if w.edges--; w.edges == 0 {
					delete(g.workloads, end)
				}
			}
		}
	}
}

// Snapshot returns what happened from one time to another, both within the window; a zero to means
// now, a zero from the beginning of the window. Edges without traffic in that time are left out,
// and so are workloads without edges. Everything is sorted.
func (g *Graph) Snapshot(from, to time.Time) Snapshot {
	g.mu.Lock()
	defer g.mu.Unlock()
	now := g.now()
	g.sweep(now)
	last := now.UnixNano() / int64(BucketLength)
	first := last - buckets + 1
	clamp := func(t time.Time, otherwise int64) int64 {
		if t.IsZero() {
			return otherwise
		}
		return min(max(t.UnixNano()/int64(BucketLength), first), last)
	}
	lo, hi := clamp(from, first), clamp(to, last)
	s := Snapshot{
		Now: now, From: bucketStart(lo), To: bucketStart(hi + 1), Timeline: make([]Sum, buckets),
		Workloads: []Workload{}, Edges: []Edge{}, Marks: g.copyMarks(), MarksLost: g.marksLost, Lost: g.lost, NotShown: g.notShown,
	}
	for i := range s.Timeline {
		s.Timeline[i].Start = bucketStart(first + int64(i))
	}
	ends := make(map[string]bool)
	for _, e := range g.edges {
		out, any := e.Edge, false
		var all count
		for i, number := range e.numbers {
			if number < first || number > last {
				continue
			}
			c := e.counts[i]
			sum := &s.Timeline[number-first]
			sum.Forwarded += c.forwarded()
			sum.Dropped += c.refused()
			sum.Audited += uint64(c.audited)
			if number < lo || number > hi {
				continue
			}
			any = true
			all.add(c)
		}
		if !any {
			continue
		}
		out.Forwarded, out.Dropped, out.Audited = all.forwarded(), all.refused(), uint64(all.audited)
		out.Reasons, out.AllowedBy, out.DeniedBy = e.reasons.within(lo, hi), e.allowed.within(lo, hi), e.denied.within(lo, hi)
		s.Edges = append(s.Edges, out)
		ends[e.Source], ends[e.Destination] = true, true
	}
	for id := range ends {
		w := g.workloads[id]
		out := w.Workload
		out.Identities, out.Labels, out.Endpoints = w.identities.within(lo, hi), w.labels.within(lo, hi), w.pods.within(lo, hi)
		out.Addresses, out.Services = w.addresses.within(lo, hi), w.services.within(lo, hi)
		out.Names, out.Policies = w.dns.within(lo, hi), w.policies.within(lo, hi)
		s.Workloads = append(s.Workloads, out)
	}
	slices.SortFunc(s.Edges, func(a, b Edge) int { return strings.Compare(a.ID, b.ID) })
	slices.SortFunc(s.Workloads, func(a, b Workload) int { return strings.Compare(a.ID, b.ID) })
	return s
}

// byIdentity returns the workloads that had identities lately.
func (g *Graph) byIdentity() map[uint32][]Workload {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make(map[uint32][]Workload, len(g.workloads))
	for _, w := range g.workloads {
		for id := range w.identities {
			if n, err := strconv.ParseUint(id, 10, 32); err == nil && w.Kind != KindEntity {
				out[uint32(n)] = append(out[uint32(n)], Workload{ID: w.ID, Namespace: w.Namespace, Name: w.Name})
			}
		}
	}
	return out
}

func bucketStart(number int64) time.Time { return time.Unix(0, number*int64(BucketLength)).UTC() }

// Flows returns the latest n for which want returns true, latest first.
func (g *Graph) Flows(n int, want func(*Flow) bool) []Flow {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := []Flow{}
	for i := range g.flows {
		f := &g.flows[(g.next-1-i+2*len(g.flows))%len(g.flows)]
		if len(out) == n {
			break
		}
		if want(f) {
			out = append(out, *f)
		}
	}
	slices.SortStableFunc(out, func(a, b Flow) int { return b.Time.Compare(a.Time) })
	return out
}

// identify returns the workload of a side. A node knows the workloads of its own pods only, and the
// names of others: a workload that one node has reported counts for all, and until then it is
// derived from the name, so that both nodes of a connection agree.
func (g *Graph) identify(s side, now time.Time) Workload {
	ep := s.endpoint
	if ns := cut(ep.GetNamespace()); ns != "" {
		w := Workload{Kind: KindPod, Namespace: ns, Name: cut(ep.GetPodName())}
		pod := [3]string{s.cluster, ns, w.Name}
		if len(ep.GetWorkloads()) > 0 {
			o := owner{cut(ep.GetWorkloads()[0].GetName()), cut(ep.GetWorkloads()[0].GetKind()), now}
			w.Kind, w.Name, w.Type = KindWorkload, o.name, o.kind
			if _, ok := g.owners[pod]; ok || len(g.owners) < g.limits.Workloads*10 {
				g.owners[pod] = o
			}
		} else if o, ok := g.owners[pod]; ok {
			w.Kind, w.Name, w.Type = KindWorkload, o.name, o.kind
		} else if name := workloadOf(w.Name); name != w.Name {
			w.Kind, w.Name = KindWorkload, name
		}
		if w.Name == "" {
			// A pod of another node whose name this node does not know.
			w.Name = cmp.Or(cut(nameByLabels(ep.GetLabels())), fmt.Sprintf("identity %d", ep.GetIdentity()))
		}
		w.ID = ns + "/" + w.Name
		return w.of(s.cluster)
	}
	w := Workload{Kind: KindEntity, Name: "unknown"}
	if a, err := netip.ParseAddr(s.address); err == nil && ep.GetIdentity() == 0 && (a.IsMulticast() || a.IsLinkLocalUnicast() || a.IsUnspecified()) {
		w.ID, w.Name = LinkLocal, "link-local"
		return w
	}
	for _, l := range ep.GetLabels() {
		if name, ok := strings.CutPrefix(l, "reserved:"); ok {
			w.Name = cut(name)
			break
		}
	}
	if w.Name == "unknown" && ep.GetPodName() != "" {
		w.Kind, w.Name = KindPod, cut(ep.GetPodName())
		w.ID = ":" + w.Name
		return w.of(s.cluster)
	}
	w.ID = ":" + w.Name
	return w
}

// of returns the workload as one of another cluster, apart from the one of this cluster by the same
// name; without a cluster it is of this one.
func (w Workload) of(cluster string) Workload {
	if cluster != "" {
		w.ID, w.Name = cluster+"/"+w.ID, w.Name+" of "+cluster
	}
	return w
}

// generated are the ends of pods' names that controllers make: a hash of the template and letters
// by lot (Deployment), letters by lot (DaemonSet, Job), a number (StatefulSet). The letters are
// those of k8s.io/apimachinery/pkg/util/rand, which spell no words.
var generated = regexp.MustCompile(`(-[bcdfghjklmnpqrstvwxz2456789]{6,10})?-[bcdfghjklmnpqrstvwxz2456789]{5}$|-[0-9]{1,5}$`)

// workloadOf derives a workload from a pod's name.
func workloadOf(pod string) string {
	at := generated.FindStringIndex(pod)
	if at == nil || at[0] == 0 {
		return pod
	}
	return pod[:at[0]]
}

// nameByLabels is what the labels of pods usually name their workload by.
func nameByLabels(labels []string) string {
	for _, key := range []string{"k8s:app.kubernetes.io/name=", "k8s:k8s-app=", "k8s:app="} {
		for _, l := range labels {
			if name, ok := strings.CutPrefix(l, key); ok {
				return name
			}
		}
	}
	return ""
}

func protocolName(l4 *flow.Layer4) string {
	switch {
	case l4.GetTCP() != nil:
		return "TCP"
	case l4.GetUDP() != nil:
		return "UDP"
	case l4.GetSCTP() != nil:
		return "SCTP"
	case l4.GetICMPv4() != nil:
		return "ICMPv4"
	case l4.GetICMPv6() != nil:
		return "ICMPv6"
	}
	return "IP"
}

func isVerdict(f *flow.Flow) bool { return f.GetEventType().GetType() == eventPolicyVerdict }

// The numbers of kinds of events, see flow.EventTypeFilter.
const (
	eventDrop          = 1
	eventTrace         = 4
	eventPolicyVerdict = 5
)

func policyName(p *flow.Policy) string {
	if p.GetNamespace() == "" {
		return cut(p.GetName())
	}
	return cut(p.GetNamespace() + "/" + p.GetName())
}

// maxName is how much of a name is kept: a sender of flows can make it of any length; names of
// Kubernetes are not longer.
const maxName = 600

func cut(s string) string {
	if len(s) <= maxName {
		return s
	}
	return strings.ToValidUTF8(s[:maxName], "") + "…"
}

func newFlow(f *flow.Flow, at time.Time, protocol string, src, dst side) Flow {
	out := Flow{
		Time: at, Node: cut(f.GetNodeName()), Source: sideName(src), Destination: sideName(dst), Protocol: protocol,
		Verdict: f.GetVerdict().String(), Reply: f.GetIsReply().GetValue(),
	}
	switch f.GetEventType().GetType() {
	case eventDrop:
		out.Type = "drop"
	case eventTrace:
		out.Type = "trace"
	case eventPolicyVerdict:
		out.Type = typeVerdict
	}
	switch f.GetTrafficDirection() {
	case flow.TrafficDirection_INGRESS:
		out.Direction = directionIngress
	case flow.TrafficDirection_EGRESS:
		out.Direction = "egress"
	}
	if out.Verdict == flow.Verdict_DROPPED.String() {
		out.Reason = flows.ReasonText(f)
	}
	out.AllowedBy = policyNames(f.GetEgressAllowedBy(), f.GetIngressAllowedBy())
	out.DeniedBy = policyNames(f.GetEgressDeniedBy(), f.GetIngressDeniedBy())
	return out
}

// maxDeciders is how many policies of a flow are kept of each end: a sender of flows can name any
// number.
const maxDeciders = 16

func policyNames(ends ...[]*flow.Policy) (out []string) {
	for _, list := range ends {
		for _, p := range list[:min(len(list), maxDeciders)] {
			out = append(out, policyName(p))
		}
	}
	return out
}

// sideName is a pod or an address, with its port if there is one, and a pod's cluster if it is
// another.
func sideName(s side) string {
	name, of := cut(s.address), ""
	if pod := cut(s.endpoint.GetPodName()); pod != "" {
		name = pod
		if s.cluster != "" {
			of = " of " + s.cluster
		}
		if ns := cut(s.endpoint.GetNamespace()); ns != "" {
			name = ns + "/" + pod
		}
	} else if a, err := netip.ParseAddr(name); err == nil && a.Is6() && s.port != 0 {
		name = "[" + name + "]"
	}
	if s.port == 0 {
		return name + of
	}
	return fmt.Sprintf("%s:%d%s", name, s.port, of)
}
