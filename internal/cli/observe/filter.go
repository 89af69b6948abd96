package observe

import (
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/identity"
)

// sideFilter is what is asked of one side of a flow.
type sideFilter struct {
	pods, namespaces, labels, ips, ports, services, workloads []string
	identities, clusters                                      []string
}

func (s *sideFilter) flags(c *cobra.Command, prefix, whose string) {
	fs := c.Flags()
	short := func(letter string) string {
		if prefix != "" {
			return ""
		}
		return letter
	}
	fs.StringSliceVar(&s.pods, prefix+"pod", nil, whose+" these `pods`: [namespace/]beginning of the name")
	fs.StringSliceVarP(&s.namespaces, prefix+"namespace", short("n"), nil, whose+" pods of these `namespaces`; also where a pod is given without one")
	// A selector has commas of its own.
	fs.StringArrayVarP(&s.labels, prefix+"label", short("l"), nil, whose+" who has labels that this `selector` selects, such as app=web,tier!=db")
	fs.StringSliceVar(&s.ips, prefix+"ip", nil, whose+" these `addresses` or ranges")
	fs.StringSliceVar(&s.ports, prefix+"port", nil, whose+" these `ports`, or ranges such as 8000-8080")
	fs.StringSliceVar(&s.identities, prefix+"identity", nil, whose+" these `identities`: numbers, or names such as world")
	fs.StringSliceVar(&s.services, prefix+"service", nil, whose+" these `services`: [namespace/]beginning of the name")
	fs.StringSliceVar(&s.workloads, prefix+"workload", nil, whose+" pods of these `workloads`: [kind/]name")
	fs.StringSliceVar(&s.clusters, prefix+"cluster", nil, whose+" pods and nodes of these `clusters`")
}

// empty reports whether nothing is asked.
func (s *sideFilter) empty() bool {
	return len(s.pods)+len(s.namespaces)+len(s.labels)+len(s.ips)+len(s.ports)+len(s.services)+len(s.workloads)+len(s.identities)+len(s.clusters) == 0
}

// clash names what is asked by two filters of one side: the values would be taken for alternatives.
func (s *sideFilter) clash(o *sideFilter) string {
	for _, what := range []struct {
		name         string
		mine, theirs []string
	}{
		{"pod", slices.Concat(s.pods, s.namespaces), slices.Concat(o.pods, o.namespaces)},
		{"service", s.services, o.services}, {"label", s.labels, o.labels}, {"ip", s.ips, o.ips}, {"port", s.ports, o.ports},
		{"identity", s.identities, o.identities}, {"workload", s.workloads, o.workloads}, {"cluster", s.clusters, o.clusters},
	} {
		if len(what.mine) > 0 && len(what.theirs) > 0 {
			return what.name
		}
	}
	return ""
}

// names joins names with namespaces as the server wants them. It fails for one with a namespace
// that is none of those asked for.
func (s *sideFilter) names(list []string) ([]string, error) {
	var out []string
	for _, name := range list {
		own, _, found := strings.Cut(name, "/")
		switch {
		case len(s.namespaces) == 0, found && slices.Contains(s.namespaces, own):
			out = append(out, name)
			continue
		case found:
			return nil, exitcode.Usagef("%q is in none of the namespaces %s: leave out one of the two", name, strings.Join(s.namespaces, ", "))
		}
		for _, ns := range s.namespaces {
			out = append(out, ns+"/"+name)
		}
	}
	return out, nil
}

// sideWords is what a sideFilter asks, in the server's words.
type sideWords struct {
	pods, services []string
	workloads      []*flow.Workload
	identities     []uint32
}

func (s *sideFilter) words() (sideWords, error) {
	var out sideWords
	var err error
	if out.pods, err = s.names(s.pods); err != nil {
		return out, err
	}
	if out.services, err = s.names(s.services); err != nil {
		return out, err
	}
	if len(s.pods)+len(s.services) == 0 {
		for _, ns := range s.namespaces {
			out.pods = append(out.pods, ns+"/")
		}
	}
	for _, text := range s.workloads {
		kind, name, found := strings.Cut(text, "/")
		if !found {
			kind, name = "", text
		}
		out.workloads = append(out.workloads, &flow.Workload{Kind: kind, Name: name})
	}
	for _, text := range s.identities {
		id, err := identity.Parse(text)
		if err != nil {
			return out, exitcode.With(exitcode.Usage, err)
		}
		out.identities = append(out.identities, uint32(id))
		if text == identity.World.String() { // with both families it has a number for each
			out.identities = append(out.identities, uint32(identity.WorldIPv4), uint32(identity.WorldIPv6))
		}
	}
	return out, nil
}

// source adds what is asked of the source of a flow.
func (s *sideFilter) source(f *flow.FlowFilter) error {
	w, err := s.words()
	f.SourcePod, f.SourceService, f.SourceWorkload = append(f.SourcePod, w.pods...), append(f.SourceService, w.services...), append(f.SourceWorkload, w.workloads...)
	f.SourceLabel, f.SourceIp, f.SourcePort = append(f.SourceLabel, s.labels...), append(f.SourceIp, s.ips...), append(f.SourcePort, s.ports...)
	f.SourceIdentity, f.SourceClusterName = append(f.SourceIdentity, w.identities...), append(f.SourceClusterName, s.clusters...)
	return err
}

// destination adds what is asked of the destination of a flow.
func (s *sideFilter) destination(f *flow.FlowFilter) error {
	w, err := s.words()
	f.DestinationPod, f.DestinationService = append(f.DestinationPod, w.pods...), append(f.DestinationService, w.services...)
	f.DestinationWorkload = append(f.DestinationWorkload, w.workloads...)
	f.DestinationLabel, f.DestinationIp, f.DestinationPort = append(f.DestinationLabel, s.labels...), append(f.DestinationIp, s.ips...), append(f.DestinationPort, s.ports...)
	f.DestinationIdentity, f.DestinationClusterName = append(f.DestinationIdentity, w.identities...), append(f.DestinationClusterName, s.clusters...)
	return err
}

// flowFilter is what flags ask of flows.
type flowFilter struct {
	from, to, either               sideFilter
	verdicts, kinds, protocols     []string
	directions, tcpFlags, nodes    []string
	uuids, reasons, interfaces     []string
	ipv4, ipv6, replies, noReplies bool
}

func (f *flowFilter) flags(c *cobra.Command) {
	f.from.flags(c, "from-", "only flows from")
	f.to.flags(c, "to-", "only flows to")
	f.either.flags(c, "", "only flows from or to")
	fs := c.Flags()
	fs.StringSliceVar(&f.verdicts, "verdict", nil, "only these `verdicts`: FORWARDED, DROPPED, AUDIT")
	fs.StringSliceVarP(&f.kinds, "type", "t", nil, "only these `kinds`: drop, policy-verdict, trace")
	fs.StringSliceVar(&f.protocols, "protocol", nil, "only these `protocols`: tcp, udp, sctp, icmp, icmpv4, icmpv6")
	fs.StringSliceVar(&f.directions, "traffic-direction", nil, "only connections of these `directions`: ingress, egress")
	fs.StringArrayVar(&f.tcpFlags, "tcp-flags", nil, "only TCP with all of these `flags`, such as SYN,ACK")
	fs.StringSliceVar(&f.nodes, "node-name", nil, "only of these `nodes`: [cluster/]name, with * for any text")
	fs.StringSliceVar(&f.reasons, "drop-reason-desc", nil, "only what was dropped for these `reasons`, by the names of Hubble, such as POLICY_DENIED")
	fs.StringSliceVar(&f.interfaces, "interface", nil, "only packets on these `interfaces` of the nodes, by their names")
	fs.StringSliceVar(&f.uuids, "uuid", nil, "only the flows of these `UUIDs`")
	fs.BoolVarP(&f.ipv4, "ipv4", "4", false, "only IPv4")
	fs.BoolVarP(&f.ipv6, "ipv6", "6", false, "only IPv6")
	fs.BoolVar(&f.replies, "reply", false, "only answers")
	fs.BoolVar(&f.noReplies, "no-reply", false, "only flows known not to be replies, and drops of unknown direction")
	c.MarkFlagsMutuallyExclusive("ipv4", "ipv6")
	c.MarkFlagsMutuallyExclusive("reply", "no-reply")
	for name, values := range map[string][]cobra.Completion{
		"verdict": {"FORWARDED", "DROPPED", "AUDIT"}, "type": {"drop", "policy-verdict", "trace"},
		"protocol": {"tcp", "udp", "sctp", "icmp", "icmpv4", "icmpv6"}, "traffic-direction": {"ingress", "egress"},
		"drop-reason-desc": slices.Sorted(maps.Keys(flow.DropReason_value)),
	} {
		_ = c.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
	}
}

// lists returns the filters of a request: one, or where something is asked of either side one for
// each.
func (f *flowFilter) lists() ([]*flow.FlowFilter, error) {
	base, err := f.both()
	if err != nil {
		return nil, err
	}
	if err := f.from.source(base); err != nil {
		return nil, err
	}
	if err := f.to.destination(base); err != nil {
		return nil, err
	}
	if f.either.empty() {
		if proto.Size(base) == 0 {
			return nil, nil
		}
		return []*flow.FlowFilter{base}, nil
	}
	for prefix, side := range map[string]*sideFilter{"from-": &f.from, "to-": &f.to} {
		if what := f.either.clash(side); what != "" {
			return nil, exitcode.Usagef("--%s and --%s%s: give one of them", what, prefix, what)
		}
	}
	source, destination := base, proto.CloneOf(base)
	if err := f.either.source(source); err != nil {
		return nil, err
	}
	if err := f.either.destination(destination); err != nil {
		return nil, err
	}
	return []*flow.FlowFilter{source, destination}, nil
}

// both is what is asked of a flow as a whole.
func (f *flowFilter) both() (*flow.FlowFilter, error) {
	out := &flow.FlowFilter{Protocol: f.protocols, NodeName: f.nodes, Uuid: f.uuids}
	for _, v := range f.verdicts {
		n, ok := flow.Verdict_value[strings.ToUpper(v)]
		if !ok {
			return nil, exitcode.Usagef("--verdict: %q is not one of FORWARDED, DROPPED, AUDIT", v)
		}
		out.Verdict = append(out.Verdict, flow.Verdict(n))
	}
	for _, r := range f.reasons {
		n, ok := flow.DropReason_value[strings.ReplaceAll(strings.ToUpper(r), "-", "_")]
		if !ok {
			return nil, exitcode.Usagef("--drop-reason-desc: %q is no reason of Hubble's such as POLICY_DENIED", r)
		}
		out.DropReasonDesc = append(out.DropReasonDesc, flow.DropReason(n))
	}
	for _, name := range f.interfaces {
		out.Interface = append(out.Interface, &flow.NetworkInterface{Name: name})
	}
	for _, k := range f.kinds {
		n, ok := map[string]int32{"drop": flows.EventDrop, "policy-verdict": flows.EventVerdict, "trace": flows.EventTrace}[k]
		if !ok {
			return nil, exitcode.Usagef("--type: %q is not one of drop, policy-verdict, trace", k)
		}
		out.EventType = append(out.EventType, &flow.EventTypeFilter{Type: n})
	}
	for _, d := range f.directions {
		n, ok := flow.TrafficDirection_value[strings.ToUpper(d)]
		if !ok || n == 0 {
			return nil, exitcode.Usagef("--traffic-direction: %q is neither ingress nor egress", d)
		}
		out.TrafficDirection = append(out.TrafficDirection, flow.TrafficDirection(n))
	}
	for _, list := range f.tcpFlags {
		set := &flow.TCPFlags{}
		fields := set.ProtoReflect().Descriptor().Fields()
		for name := range strings.SplitSeq(list, ",") {
			fd := fields.ByName(protoreflect.Name(strings.ToUpper(strings.TrimSpace(name))))
			if fd == nil {
				return nil, exitcode.Usagef("--tcp-flags: %q is no flag of TCP such as SYN", name)
			}
			set.ProtoReflect().Set(fd, protoreflect.ValueOfBool(true))
		}
		out.TcpFlags = append(out.TcpFlags, set)
	}
	switch {
	case f.ipv4:
		out.IpVersion = []flow.IPVersion{flow.IPVersion_IPv4}
	case f.ipv6:
		out.IpVersion = []flow.IPVersion{flow.IPVersion_IPv6}
	}
	switch {
	case f.replies:
		out.Reply = []bool{true}
	case f.noReplies:
		out.Reply = []bool{false}
	}
	return out, nil
}
