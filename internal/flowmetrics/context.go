package flowmetrics

import (
	"slices"
	"strings"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/flows"
)

// Pod names a pod.
type Pod struct{ Namespace, Name string }

// party is one side of a flow.
type party struct {
	*flow.Endpoint
	ip    string   // empty if the packet may only have claimed it
	names []string // of its address
	// foreign means that the address is not that of the pod.
	foreign bool
}

func source(f *flow.Flow, foreign Foreign) party {
	return newParty(f, f.GetSource(), f.GetIP().GetSource(), f.GetSourceNames(), foreign.Source)
}

func destination(f *flow.Flow, foreign Foreign) party {
	return newParty(f, f.GetDestination(), f.GetIP().GetDestination(), f.GetDestinationNames(), foreign.Destination)
}

func newParty(f *flow.Flow, e *flow.Endpoint, ip string, names []string, foreign bool) party {
	if foreign && f.GetVerdict() == flow.Verdict_DROPPED {
		ip, names = "", nil
	}
	return party{e, ip, names, foreign}
}

func podOf(e *flow.Endpoint) Pod { return Pod{e.GetNamespace(), e.GetPodName()} }

func (p party) workload() *flow.Workload {
	if list := p.GetWorkloads(); len(list) > 0 {
		return list[0]
	}
	return nil
}

// appLabels are the labels with a pod's application, the best one first.
var appLabels = []string{"k8s:app.kubernetes.io/name=", "k8s:k8s-app=", "k8s:app="}

func (p party) app() string {
	for _, prefix := range appLabels {
		for _, l := range p.GetLabels() {
			if value, ok := strings.CutPrefix(l, prefix); ok && value != "" {
				return value
			}
		}
	}
	return ""
}

func (p party) reserved() (out string) {
	const kubeAPIServer = "reserved:kube-apiserver"
	if slices.Contains(p.GetLabels(), kubeAPIServer) {
		return kubeAPIServer
	}
	if at := slices.IndexFunc(p.GetLabels(), func(l string) bool { return strings.HasPrefix(l, "reserved:") }); at >= 0 {
		return p.GetLabels()[at]
	}
	return ""
}

// inNamespace is a name with its namespace, empty if there is no name.
func inNamespace(namespace, name string) string {
	if namespace == "" || name == "" {
		return name
	}
	return namespace + "/" + name
}

// view is how the label of one side names it.
type view struct {
	name string
	of   func(party) string
	// ofPod reports whether the name is of one pod of the cluster, if the side is a pod.
	ofPod func(party) bool
}

func always(party) bool      { return true }
func never(party) bool       { return false }
func byAddress(p party) bool { return !p.foreign }

var views = []view{
	{"identity", func(p party) string { return strings.Join(p.GetLabels(), ",") }, never},
	{"namespace", func(p party) string { return p.GetNamespace() }, never},
	{"pod", func(p party) string { return inNamespace(p.GetNamespace(), p.GetPodName()) }, always},
	{"pod-name", func(p party) string { return p.GetPodName() }, never},
	{"dns", func(p party) string { return strings.Join(p.names, ",") }, never},
	{"ip", func(p party) string { return p.ip }, byAddress},
	{"reserved-identity", party.reserved, never},
	{"workload", func(p party) string { return inNamespace(p.GetNamespace(), p.workload().GetName()) }, never},
	{"workload-name", func(p party) string { return p.workload().GetName() }, never},
	{"app", party.app, never},
}

// sideViews are how one side is named: by the first view that has a name for it, of those of the
// flow's direction, else of those for both.
type sideViews struct{ any, ingress, egress []view }

func (s *sideViews) used() bool { return s.any != nil || s.ingress != nil || s.egress != nil }

func (s *sideViews) name(p party, d flow.TrafficDirection) (name string, ofPod bool) {
	list := s.any
	switch {
	case d == flow.TrafficDirection_INGRESS && s.ingress != nil:
		list = s.ingress
	case d == flow.TrafficDirection_EGRESS && s.egress != nil:
		list = s.egress
	}
	for _, v := range list {
		if name := v.of(p); name != "" {
			return name, v.ofPod(p)
		}
	}
	return "", false
}

// label is one of labelsContext.
type label struct {
	name string
	of   func(f *flow.Flow, source, destination party) string
}

var labels = []label{
	{"source_ip", func(_ *flow.Flow, s, _ party) string { return s.ip }},
	{"source_pod", func(_ *flow.Flow, s, _ party) string { return s.GetPodName() }},
	{"source_namespace", func(_ *flow.Flow, s, _ party) string { return s.GetNamespace() }},
	{"source_workload", func(_ *flow.Flow, s, _ party) string { return s.workload().GetName() }},
	{"source_workload_kind", func(_ *flow.Flow, s, _ party) string { return s.workload().GetKind() }},
	{"source_app", func(_ *flow.Flow, s, _ party) string { return s.app() }},
	{"destination_ip", func(_ *flow.Flow, _, d party) string { return d.ip }},
	{"destination_pod", func(_ *flow.Flow, _, d party) string { return d.GetPodName() }},
	{"destination_namespace", func(_ *flow.Flow, _, d party) string { return d.GetNamespace() }},
	{"destination_workload", func(_ *flow.Flow, _, d party) string { return d.workload().GetName() }},
	{"destination_workload_kind", func(_ *flow.Flow, _, d party) string { return d.workload().GetKind() }},
	{"destination_app", func(_ *flow.Flow, _, d party) string { return d.app() }},
	{"traffic_direction", func(f *flow.Flow, _, _ party) string { return direction(f) }},
}

// contexts are the labels that were asked for, besides those that a metric has of its own.
type contexts struct {
	labels              []int // places in the list of labels
	source, destination sideViews
}

// names returns the names of the labels, in the order in which values has their values.
func (c *contexts) names() (out []string) {
	for _, at := range c.labels {
		out = append(out, labels[at].name)
	}
	if c.source.used() {
		out = append(out, "source")
	}
	if c.destination.used() {
		out = append(out, "destination")
	}
	return out
}

// values adds the values of the labels, and returns which sides they name as one pod: a pod's
// address does, any other does not.
func (c *contexts) values(out []string, f *flow.Flow, foreign Foreign) (_ []string, ofSource, ofDestination bool) {
	from, to := source(f, foreign), destination(f, foreign)
	for _, at := range c.labels {
		out = append(out, labels[at].of(f, from, to))
	}
	d := f.GetTrafficDirection()
	if c.source.used() {
		var name string
		name, ofSource = c.source.name(from, d)
		out = append(out, name)
	}
	if c.destination.used() {
		var name string
		name, ofDestination = c.destination.name(to, d)
		out = append(out, name)
	}
	ofSource = ofSource || c.has("source_ip") && byAddress(from) || c.has("source_pod") && c.has("source_namespace")
	ofDestination = ofDestination || c.has("destination_ip") && byAddress(to) || c.has("destination_pod") && c.has("destination_namespace")
	return out, ofSource, ofDestination
}

func (c *contexts) has(name string) bool {
	return slices.ContainsFunc(c.labels, func(at int) bool { return labels[at].name == name })
}

func direction(f *flow.Flow) string {
	if d := f.GetTrafficDirection(); d != flow.TrafficDirection_TRAFFIC_DIRECTION_UNKNOWN {
		return strings.ToLower(d.String())
	}
	return "unknown"
}

// protocol names the protocol of a flow as the field's metrics do.
func protocol(f *flow.Flow) string {
	switch f.GetL4().GetProtocol().(type) {
	case *flow.Layer4_TCP:
		return "TCP"
	case *flow.Layer4_UDP:
		return "UDP"
	case *flow.Layer4_SCTP:
		return "SCTP"
	case *flow.Layer4_ICMPv4:
		return "ICMPv4"
	case *flow.Layer4_ICMPv6:
		return "ICMPv6"
	}
	return "Unknown L4"
}

// reason names why a flow was dropped.
func reason(f *flow.Flow) string {
	if text := flows.ReasonText(f); text != "" {
		return text
	}
	return flow.DropReason_DROP_REASON_UNKNOWN.String()
}
