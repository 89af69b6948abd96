package flows

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/hawser-net/hawser/api/flow"
)

// Bounds of what a client may ask for. The work for a flow is at most that of comparing it with
// every value.
const (
	MaxFilters     = 64  // in each list
	MaxValues      = 512 // in all filters of a request together, those of selectors among them
	MaxValueLength = 512 // bytes of one value
)

// FilterError is a field of a filter that cannot be answered, and why.
type FilterError struct {
	// List is "whitelist" or "blacklist", Field the name of the field in it.
	List, Field string
	Err         error
}

// Error names the field.
func (e *FilterError) Error() string {
	if e.Field == "" {
		return fmt.Sprintf("%s: %v", e.List, e.Err)
	}
	return fmt.Sprintf("%s: %s: %v", e.List, e.Field, e.Err)
}

// Unwrap returns what is wrong with the field.
func (e *FilterError) Unwrap() error { return e.Err }

// Filter selects flows. The zero value selects all. It is safe for concurrent use.
type Filter struct {
	white, black []conjunction
}

// conjunction is a FlowFilter: all tests must succeed.
type conjunction []test

// test compares a flow with the values of one field.
type test func(*Entry) bool

func (c conjunction) match(e *Entry) bool {
	for _, t := range c {
		if !t(e) {
			return false
		}
	}
	return true
}

// Match reports whether a flow is selected: one of the whitelist matches or there is none, and none
// of the blacklist. Every client gets the number of lost events.
func (f *Filter) Match(e *Entry) bool {
	if e.Flow == nil {
		return true
	}
	matches := func(c conjunction) bool { return c.match(e) }
	return (len(f.white) == 0 || slices.ContainsFunc(f.white, matches)) && !slices.ContainsFunc(f.black, matches)
}

// Compile makes a filter of the lists of a request. It fails with a [FilterError] if a field is
// unknown, has a value that is invalid, or asks about something that is not known of flows
// here.
func Compile(whitelist, blacklist []*flow.FlowFilter) (*Filter, error) {
	out := &Filter{}
	values := 0
	for _, list := range []struct {
		name string
		in   []*flow.FlowFilter
		out  *[]conjunction
	}{{"whitelist", whitelist, &out.white}, {"blacklist", blacklist, &out.black}} {
		if len(list.in) > MaxFilters {
			return nil, &FilterError{list.name, "", fmt.Errorf("%d filters are more than %d", len(list.in), MaxFilters)}
		}
		for _, in := range list.in {
			c, err := compile(in, &values)
			if err != nil {
				err.List = list.name
				return nil, err
			}
			*list.out = append(*list.out, c)
		}
	}
	return out, nil
}

// compile makes the tests of one filter and counts its values.
func compile(in *flow.FlowFilter, values *int) (c conjunction, failed *FilterError) {
	msg := in.ProtoReflect()
	if unknown := msg.GetUnknown(); len(unknown) > 0 {
		return nil, &FilterError{Field: fieldNumbers(unknown), Err: fmt.Errorf("is not a field that is known here")}
	}
	msg.Range(func(fd protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := string(fd.Name())
		build, ok := tests[name]
		var err error
		switch {
		case !ok:
			err = fmt.Errorf("is not known of flows here")
		default:
			if err = bounded(fd, v, values); err == nil {
				var t test
				t, err = build(in)
				c = append(c, t)
			}
		}
		if err != nil {
			failed = &FilterError{Field: name, Err: err}
		}
		return err == nil
	})
	return c, failed
}

// bounded checks how much a field, which is a list as all of them are, asks for.
func bounded(fd protoreflect.FieldDescriptor, v protoreflect.Value, values *int) error {
	if *values += v.List().Len(); *values > MaxValues {
		return fmt.Errorf("with this there are more than %d values", MaxValues)
	}
	if fd.Kind() == protoreflect.MessageKind {
		for i := range v.List().Len() {
			if unknown := v.List().Get(i).Message().GetUnknown(); len(unknown) > 0 {
				return fmt.Errorf("%s of a value is not known here", fieldNumbers(unknown))
			}
		}
	}
	if fd.Kind() != protoreflect.StringKind {
		return nil
	}
	for i := range v.List().Len() {
		text := v.List().Get(i).String()
		if n := len(text); n > MaxValueLength {
			return fmt.Errorf("a value of %d bytes is longer than %d", n, MaxValueLength)
		}
		// Commas separate the requirements of a selector, and the values of one.
		if *values += strings.Count(text, ","); *values > MaxValues {
			return fmt.Errorf("with this there are more than %d values, those of selectors among them", MaxValues)
		}
	}
	return nil
}

// fieldNumbers names fields that have no name here.
func fieldNumbers(raw protoreflect.RawFields) string {
	number, _, n := protowire.ConsumeField(raw)
	if n < 0 || number <= 0 {
		return "an unreadable field"
	}
	return "field " + strconv.Itoa(int(number))
}

// tests makes the test of each field that can be answered.
var tests = map[string]func(*flow.FlowFilter) (test, error){
	"uuid": func(in *flow.FlowFilter) (test, error) {
		return oneOf(in.GetUuid(), func(e *Entry) string { return e.Flow.GetUuid() }), nil
	},
	"source_ip":           func(in *flow.FlowFilter) (test, error) { return addresses(in.GetSourceIp(), source) },
	"destination_ip":      func(in *flow.FlowFilter) (test, error) { return addresses(in.GetDestinationIp(), destination) },
	"source_pod":          func(in *flow.FlowFilter) (test, error) { return names(in.GetSourcePod(), source.pod) },
	"destination_pod":     func(in *flow.FlowFilter) (test, error) { return names(in.GetDestinationPod(), destination.pod) },
	"source_service":      func(in *flow.FlowFilter) (test, error) { return names(in.GetSourceService(), source.service) },
	"destination_service": func(in *flow.FlowFilter) (test, error) { return names(in.GetDestinationService(), destination.service) },
	"source_label":        func(in *flow.FlowFilter) (test, error) { return selectors(in.GetSourceLabel(), source) },
	"destination_label":   func(in *flow.FlowFilter) (test, error) { return selectors(in.GetDestinationLabel(), destination) },
	"source_workload":     func(in *flow.FlowFilter) (test, error) { return workloads(in.GetSourceWorkload(), source), nil },
	"destination_workload": func(in *flow.FlowFilter) (test, error) {
		return workloads(in.GetDestinationWorkload(), destination), nil
	},
	"source_identity": func(in *flow.FlowFilter) (test, error) {
		return oneOf(in.GetSourceIdentity(), func(e *Entry) uint32 { return e.Flow.GetSource().GetIdentity() }), nil
	},
	"destination_identity": func(in *flow.FlowFilter) (test, error) {
		return oneOf(in.GetDestinationIdentity(), func(e *Entry) uint32 { return e.Flow.GetDestination().GetIdentity() }), nil
	},
	"source_port":      func(in *flow.FlowFilter) (test, error) { return ports(in.GetSourcePort(), source.port) },
	"destination_port": func(in *flow.FlowFilter) (test, error) { return ports(in.GetDestinationPort(), destination.port) },
	"traffic_direction": func(in *flow.FlowFilter) (test, error) {
		return oneOf(in.GetTrafficDirection(), func(e *Entry) flow.TrafficDirection { return e.Flow.GetTrafficDirection() }), nil
	},
	"verdict": func(in *flow.FlowFilter) (test, error) {
		return oneOf(in.GetVerdict(), func(e *Entry) flow.Verdict { return e.Flow.GetVerdict() }), nil
	},
	"ip_version": func(in *flow.FlowFilter) (test, error) {
		return oneOf(in.GetIpVersion(), func(e *Entry) flow.IPVersion { return e.Flow.GetIP().GetIpVersion() }), nil
	},
	"event_type": func(in *flow.FlowFilter) (test, error) { return eventTypes(in.GetEventType()), nil },
	"reply":      func(in *flow.FlowFilter) (test, error) { return replies(in.GetReply()), nil },
	"protocol":   func(in *flow.FlowFilter) (test, error) { return protocols(in.GetProtocol()) },
	"tcp_flags":  func(in *flow.FlowFilter) (test, error) { return flags(in.GetTcpFlags()) },
	"node_name":  func(in *flow.FlowFilter) (test, error) { return nodes(in.GetNodeName()) },
	"drop_reason_desc": func(in *flow.FlowFilter) (test, error) {
		return oneOf(in.GetDropReasonDesc(), func(e *Entry) flow.DropReason { return e.Flow.GetDropReasonDesc() }), nil
	},
	"interface": func(in *flow.FlowFilter) (test, error) { return interfaces(in.GetInterface()) },
	"source_cluster_name": func(in *flow.FlowFilter) (test, error) {
		return oneOf(in.GetSourceClusterName(), func(e *Entry) string { return e.Flow.GetSource().GetClusterName() }), nil
	},
	"destination_cluster_name": func(in *flow.FlowFilter) (test, error) {
		return oneOf(in.GetDestinationClusterName(), func(e *Entry) string { return e.Flow.GetDestination().GetClusterName() }), nil
	},
}

// oneOf tests whether what a flow has is one of some values.
func oneOf[T comparable](values []T, of func(*Entry) T) test {
	return func(e *Entry) bool { return slices.Contains(values, of(e)) }
}

// side is one end of a flow.
type side bool

const (
	source      side = false
	destination side = true
)

func (s side) address(e *Entry) netip.Addr {
	if s == destination {
		return e.Destination
	}
	return e.Source
}

func (s side) endpoint(e *Entry) *flow.Endpoint {
	if s == destination {
		return e.Flow.GetDestination()
	}
	return e.Flow.GetSource()
}

func (s side) pod(e *Entry) (namespace, name string) {
	ep := s.endpoint(e)
	return ep.GetNamespace(), ep.GetPodName()
}

func (s side) service(e *Entry) (namespace, name string) {
	svc := e.Flow.GetSourceService()
	if s == destination {
		svc = e.Flow.GetDestinationService()
	}
	return svc.GetNamespace(), svc.GetName()
}

func addresses(values []string, s side) (test, error) {
	var list []netip.Prefix
	for _, v := range values {
		if addr, err := netip.ParseAddr(v); err == nil {
			list = append(list, netip.PrefixFrom(addr.Unmap().WithZone(""), addr.Unmap().BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(v)
		if err != nil {
			return nil, fmt.Errorf("%q is neither an address nor a range such as 10.0.0.0/8", v)
		}
		list = append(list, p.Masked())
	}
	return func(e *Entry) bool {
		at := s.address(e)
		return slices.ContainsFunc(list, func(p netip.Prefix) bool { return p.Contains(at) })
	}, nil
}

// names tests names of the form [namespace/]beginning. Without a namespace it is "default"; with an
// empty one it is any.
func names(values []string, of func(*Entry) (namespace, name string)) (test, error) {
	type prefix struct{ namespace, name string }
	var list []prefix
	for _, v := range values {
		namespace, name, found := strings.Cut(v, "/")
		if !found {
			namespace, name = "default", v
		}
		if v == "" || v == "/" || strings.Contains(name, "/") {
			return nil, fmt.Errorf("%q is not of the form namespace/name, namespace/ or name", v)
		}
		list = append(list, prefix{namespace, name})
	}
	return func(e *Entry) bool {
		namespace, name := of(e)
		return slices.ContainsFunc(list, func(p prefix) bool {
			return (p.namespace == "" || p.namespace == namespace) && (p.name == "" || strings.HasPrefix(name, p.name))
		})
	}, nil
}

func selectors(values []string, s side) (test, error) {
	var list []selector
	for _, v := range values {
		sel, err := parseSelector(v)
		if err != nil {
			return nil, err
		}
		list = append(list, sel)
	}
	return func(e *Entry) bool {
		labels := s.endpoint(e).GetLabels()
		return slices.ContainsFunc(list, func(sel selector) bool { return sel.match(labels) })
	}, nil
}

func workloads(values []*flow.Workload, s side) test {
	return func(e *Entry) bool {
		for _, have := range s.endpoint(e).GetWorkloads() {
			for _, want := range values {
				if (want.GetName() == "" || want.GetName() == have.GetName()) && (want.GetKind() == "" || want.GetKind() == have.GetKind()) {
					return true
				}
			}
		}
		return false
	}
}

// Ports returns the ports of a flow of TCP, UDP or SCTP, and whether it is one.
func Ports(l4 *flow.Layer4) (source, destination uint32, ok bool) {
	switch {
	case l4.GetTCP() != nil:
		return l4.GetTCP().GetSourcePort(), l4.GetTCP().GetDestinationPort(), true
	case l4.GetUDP() != nil:
		return l4.GetUDP().GetSourcePort(), l4.GetUDP().GetDestinationPort(), true
	case l4.GetSCTP() != nil:
		return l4.GetSCTP().GetSourcePort(), l4.GetSCTP().GetDestinationPort(), true
	}
	return 0, 0, false
}

func (s side) port(e *Entry) (uint32, bool) {
	from, to, ok := Ports(e.Flow.GetL4())
	if s == destination {
		return to, ok
	}
	return from, ok
}

func ports(values []string, of func(*Entry) (uint32, bool)) (test, error) {
	var list [][2]uint32
	for _, v := range values {
		first, last, found := strings.Cut(v, "-")
		if !found {
			last = first
		}
		a, err := strconv.ParseUint(first, 10, 16)
		b, err2 := strconv.ParseUint(last, 10, 16)
		if err != nil || err2 != nil || a > b {
			return nil, fmt.Errorf("%q is neither a port nor a range such as 8000-8080", v)
		}
		list = append(list, [2]uint32{uint32(a), uint32(b)})
	}
	return func(e *Entry) bool {
		port, ok := of(e)
		return ok && slices.ContainsFunc(list, func(r [2]uint32) bool { return port >= r[0] && port <= r[1] })
	}, nil
}

func eventTypes(values []*flow.EventTypeFilter) test {
	return func(e *Entry) bool {
		have := e.Flow.GetEventType()
		return slices.ContainsFunc(values, func(want *flow.EventTypeFilter) bool {
			return want.GetType() == have.GetType() && (!want.GetMatchSubType() || want.GetSubType() == have.GetSubType())
		})
	}
}

// replies tests only flows of which it is known whether they are any, and drops: those come early,
// when it is not known yet, and clients expect them among what is no answer.
func replies(values []bool) test {
	return func(e *Entry) bool {
		is := e.Flow.GetIsReply()
		known := is != nil || e.Flow.GetVerdict() == flow.Verdict_DROPPED
		return known && slices.Contains(values, is.GetValue())
	}
}

func protocols(values []string) (test, error) {
	known := map[string]func(*flow.Layer4) bool{
		"tcp":    func(l *flow.Layer4) bool { return l.GetTCP() != nil },
		"udp":    func(l *flow.Layer4) bool { return l.GetUDP() != nil },
		"sctp":   func(l *flow.Layer4) bool { return l.GetSCTP() != nil },
		"icmp":   func(l *flow.Layer4) bool { return l.GetICMPv4() != nil || l.GetICMPv6() != nil },
		"icmpv4": func(l *flow.Layer4) bool { return l.GetICMPv4() != nil },
		"icmpv6": func(l *flow.Layer4) bool { return l.GetICMPv6() != nil },
	}
	var list []func(*flow.Layer4) bool
	for _, v := range values {
		is, ok := known[strings.ToLower(v)]
		if !ok {
			return nil, fmt.Errorf("%q is not one of tcp, udp, sctp, icmp, icmpv4, icmpv6", v)
		}
		list = append(list, is)
	}
	return func(e *Entry) bool {
		l4 := e.Flow.GetL4()
		return slices.ContainsFunc(list, func(is func(*flow.Layer4) bool) bool { return is(l4) })
	}, nil
}

// flags tests whether a flow has all flags of one of the values.
func flags(values []*flow.TCPFlags) (test, error) {
	bits := func(f *flow.TCPFlags) (out uint16) {
		for i, set := range []bool{f.GetFIN(), f.GetSYN(), f.GetRST(), f.GetPSH(), f.GetACK(), f.GetURG(), f.GetECE(), f.GetCWR()} {
			if set {
				out |= 1 << i
			}
		}
		return out
	}
	var list []uint16
	for _, v := range values {
		if v.GetNS() {
			return nil, fmt.Errorf("NS is not known of flows here")
		}
		list = append(list, bits(v))
	}
	return func(e *Entry) bool {
		tcp := e.Flow.GetL4().GetTCP()
		have := bits(tcp.GetFlags())
		return tcp != nil && slices.ContainsFunc(list, func(want uint16) bool { return have&want == want })
	}, nil
}

// interfaces tests where the packet was seen.
func interfaces(values []*flow.NetworkInterface) (test, error) {
	for _, v := range values {
		if v.GetIndex() == 0 && v.GetName() == "" {
			return nil, errors.New("an interface has an index or a name")
		}
	}
	return func(e *Entry) bool {
		have := e.Flow.GetInterface()
		return slices.ContainsFunc(values, func(want *flow.NetworkInterface) bool {
			return (want.GetIndex() == 0 || want.GetIndex() == have.GetIndex()) && (want.GetName() == "" || want.GetName() == have.GetName())
		})
	}, nil
}

// nodes tests names of the form [cluster/]node, in which * stands for any text.
func nodes(values []string) (test, error) {
	type pattern struct{ cluster, node []string }
	var list []pattern
	for _, v := range values {
		cluster, node, found := strings.Cut(v, "/")
		if !found {
			cluster, node = "*", v
		}
		if cluster == "" {
			cluster = "*"
		}
		if node == "" {
			node = "*"
		}
		if v == "" || strings.ContainsFunc(cluster+node, func(r rune) bool { return !nodeRune(r) }) {
			return nil, fmt.Errorf("%q is not of the form cluster/node or node, with * for any text", v)
		}
		list = append(list, pattern{strings.Split(cluster, "*"), strings.Split(node, "*")})
	}
	return func(e *Entry) bool {
		cluster, node, found := strings.Cut(e.Flow.GetNodeName(), "/")
		if !found {
			cluster, node = "", e.Flow.GetNodeName()
		}
		return slices.ContainsFunc(list, func(p pattern) bool { return glob(p.cluster, cluster) && glob(p.node, node) })
	}, nil
}

func nodeRune(r rune) bool {
	return r == '*' || r == '-' || r == '.' || r == '_' || r >= '0' && r <= '9' || r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z'
}

// glob reports whether a text consists of the parts in their order with anything between them. It
// looks for each part once, from left to right, which takes no longer than text and parts are long.
func glob(parts []string, text string) bool {
	rest, ok := strings.CutPrefix(text, parts[0])
	if !ok || len(parts) == 1 {
		return ok && rest == ""
	}
	last := parts[len(parts)-1]
	for _, part := range parts[1 : len(parts)-1] {
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, last)
}
