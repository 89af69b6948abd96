package flows_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/flows"
)

// sample is a flow of which every test asks something.
func sample() *flows.Entry {
	f := &flow.Flow{
		Uuid: "u-1", Verdict: flow.Verdict_DROPPED, NodeName: "prod/node-7",
		IP: &flow.IP{Source: "10.1.0.10", Destination: "fd00::1", IpVersion: flow.IPVersion_IPv4},
		L4: &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: 40000, DestinationPort: 80, Flags: &flow.TCPFlags{SYN: true, ACK: true}}}},
		Source: &flow.Endpoint{
			ID: 7, Identity: 16384, ClusterName: "prod", Namespace: "shop", PodName: "front-1", Labels: []string{"k8s:app=front", "k8s:tier=web", "reserved:init"},
			Workloads: []*flow.Workload{{Name: "front", Kind: "Deployment"}},
		},
		Destination:        &flow.Endpoint{Identity: 2, Namespace: "default", PodName: "db-0", Labels: []string{"reserved:world"}},
		DestinationService: &flow.Service{Namespace: "shop", Name: "db"},
		DropReasonDesc:     flow.DropReason_POLICY_DENIED, Interface: &flow.NetworkInterface{Index: 9, Name: "lxc9"},
		EventType: &flow.CiliumEventType{Type: 1, SubType: 133}, TrafficDirection: flow.TrafficDirection_EGRESS, IsReply: wrapperspb.Bool(false),
	}
	return &flows.Entry{Time: time.Now(), Flow: f, Source: netip.MustParseAddr("10.1.0.10"), Destination: netip.MustParseAddr("fd00::1")}
}

// TestPorts: TCP, UDP and SCTP have ports, other protocols none.
func TestPorts(t *testing.T) {
	for want, l4 := range map[[3]any]*flow.Layer4{
		{uint32(1), uint32(2), true}:  {Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: 1, DestinationPort: 2}}},
		{uint32(3), uint32(4), true}:  {Protocol: &flow.Layer4_UDP{UDP: &flow.UDP{SourcePort: 3, DestinationPort: 4}}},
		{uint32(5), uint32(6), true}:  {Protocol: &flow.Layer4_SCTP{SCTP: &flow.SCTP{SourcePort: 5, DestinationPort: 6}}},
		{uint32(0), uint32(0), false}: {Protocol: &flow.Layer4_ICMPv4{ICMPv4: &flow.ICMPv4{Type: 8}}},
	} {
		if source, destination, ok := flows.Ports(l4); [3]any{source, destination, ok} != want {
			t.Errorf("%v: %d, %d, %v", l4, source, destination, ok)
		}
	}
	if _, _, ok := flows.Ports(nil); ok {
		t.Error("a flow without a transport has ports")
	}
}

func parse(t testing.TB, text string) *flow.FlowFilter {
	t.Helper()
	var f flow.FlowFilter
	if err := protojson.Unmarshal([]byte(text), &f); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return &f
}

// rows are filters that match the sample and such that do not, by the field that they are about.
var rows = map[string]struct{ yes, no []string }{
	"uuid":                 {[]string{`{"uuid":["x","u-1"]}`}, []string{`{"uuid":["x"]}`}},
	"source_ip":            {[]string{`{"source_ip":["10.1.0.10"]}`, `{"source_ip":["10.1.0.77/24"]}`, `{"source_ip":["::ffff:10.1.0.10"]}`}, []string{`{"source_ip":["10.1.0.11"]}`, `{"source_ip":["::/0"]}`}},
	"destination_ip":       {[]string{`{"destination_ip":["fd00::/8"]}`}, []string{`{"destination_ip":["0.0.0.0/0"]}`}},
	"source_pod":           {[]string{`{"source_pod":["shop/front"]}`, `{"source_pod":["shop/"]}`, `{"source_pod":["/fro"]}`, `{"source_pod":["x","shop/front-1"]}`}, []string{`{"source_pod":["front"]}`, `{"source_pod":["sho/"]}`, `{"source_pod":["shop/front-12"]}`}},
	"destination_pod":      {[]string{`{"destination_pod":["db"]}`, `{"destination_pod":["default/db-0"]}`}, []string{`{"destination_pod":["shop/db-0"]}`}},
	"source_service":       {nil, []string{`{"source_service":["shop/db"]}`}},
	"destination_service":  {[]string{`{"destination_service":["shop/d"]}`}, []string{`{"destination_service":["db"]}`}},
	"source_label":         {[]string{`{"source_label":["app=front"]}`, `{"source_label":["k8s:app=front,tier!=db"]}`, `{"source_label":["app in (back, front),tier"]}`, `{"source_label":["!old"]}`, `{"source_label":["reserved:init"]}`, `{"source_label":["any:app==front"]}`, `{"source_label":["tier notin (db)"]}`}, []string{`{"source_label":["app=back"]}`, `{"source_label":["app=front,old"]}`, `{"source_label":["cni:app=front"]}`, `{"source_label":["!app"]}`, `{"source_label":["app notin (front)"]}`, `{"source_label":["app!=front"]}`}},
	"destination_label":    {[]string{`{"destination_label":["reserved:world"]}`}, []string{`{"destination_label":["app"]}`}},
	"source_workload":      {[]string{`{"source_workload":[{"name":"front"}]}`, `{"source_workload":[{"kind":"Deployment"}]}`}, []string{`{"source_workload":[{"name":"front","kind":"DaemonSet"}]}`}},
	"destination_workload": {nil, []string{`{"destination_workload":[{"name":"front"}]}`}},
	"traffic_direction":    {[]string{`{"traffic_direction":["EGRESS"]}`}, []string{`{"traffic_direction":["INGRESS"]}`}},
	"verdict":              {[]string{`{"verdict":["FORWARDED","DROPPED"]}`}, []string{`{"verdict":["FORWARDED"]}`}},
	"event_type":           {[]string{`{"event_type":[{"type":1}]}`, `{"event_type":[{"type":1,"match_sub_type":true,"sub_type":133}]}`}, []string{`{"event_type":[{"type":4}]}`, `{"event_type":[{"type":1,"match_sub_type":true}]}`}},
	"protocol":             {[]string{`{"protocol":["TCP"]}`, `{"protocol":["udp","tcp"]}`}, []string{`{"protocol":["icmp"]}`}},
	"source_port":          {[]string{`{"source_port":["40000"]}`, `{"source_port":["30000-50000"]}`}, []string{`{"source_port":["80"]}`}},
	"destination_port":     {[]string{`{"destination_port":["80"]}`}, []string{`{"destination_port":["81-90"]}`}},
	"reply":                {[]string{`{"reply":[false]}`}, []string{`{"reply":[true]}`}},
	"source_identity":      {[]string{`{"source_identity":[1,16384]}`}, []string{`{"source_identity":[2]}`}},
	"destination_identity": {[]string{`{"destination_identity":[2]}`}, []string{`{"destination_identity":[16384]}`}},
	"tcp_flags":            {[]string{`{"tcp_flags":[{"SYN":true}]}`, `{"tcp_flags":[{"FIN":true},{"SYN":true,"ACK":true}]}`}, []string{`{"tcp_flags":[{"SYN":true,"FIN":true}]}`}},
	"node_name":            {[]string{`{"node_name":["node-7"]}`, `{"node_name":["prod/*"]}`, `{"node_name":["*/n*-*"]}`, `{"node_name":["prod/"]}`}, []string{`{"node_name":["node"]}`, `{"node_name":["dev/*"]}`, `{"node_name":["*7*7"]}`}},
	"drop_reason_desc":     {[]string{`{"drop_reason_desc":["AUTH_REQUIRED","POLICY_DENIED"]}`}, []string{`{"drop_reason_desc":["POLICY_DENY"]}`}},
	"interface": {[]string{`{"interface":[{"name":"eth0"},{"name":"lxc9"}]}`, `{"interface":[{"index":9}]}`, `{"interface":[{"index":9,"name":"lxc9"}]}`},
		[]string{`{"interface":[{"name":"lxc"}]}`, `{"interface":[{"index":9,"name":"eth0"}]}`}},
	"source_cluster_name":      {[]string{`{"source_cluster_name":["dev","prod"]}`}, []string{`{"source_cluster_name":["pro"]}`}},
	"destination_cluster_name": {nil, []string{`{"destination_cluster_name":["prod"]}`}},
	"ip_version":               {[]string{`{"ip_version":["IPv4"]}`}, []string{`{"ip_version":["IPv6"]}`}},
}

func TestFilterFields(t *testing.T) {
	e := sample()
	match := func(text string) bool {
		t.Helper()
		white, err := flows.Compile([]*flow.FlowFilter{parse(t, text)}, nil)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		black, err := flows.Compile(nil, []*flow.FlowFilter{parse(t, text)})
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		if white.Match(e) == black.Match(e) {
			t.Errorf("%s: the same in both lists", text)
		}
		return white.Match(e)
	}
	answered := map[string]bool{}
	for field, row := range rows {
		answered[field] = true
		for _, text := range row.yes {
			if !match(text) {
				t.Errorf("%s does not match", text)
			}
		}
		for _, text := range row.no {
			if match(text) {
				t.Errorf("%s matches", text)
			}
		}
	}
	// What is not answered is refused by name, not ignored.
	fields := (&flow.FlowFilter{}).ProtoReflect().Descriptor().Fields()
	for i := range fields.Len() {
		fd := fields.Get(i)
		if !fd.IsList() {
			t.Errorf("%s has one value, not a list: whoever bounds what a filter asks for counts only lists", fd.Name())
			continue
		}
		if answered[string(fd.Name())] {
			continue
		}
		f := &flow.FlowFilter{}
		list := f.ProtoReflect().Mutable(fd).List()
		if fd.Kind() == protoreflect.StringKind {
			list.Append(protoreflect.ValueOfString("x"))
		} else {
			list.Append(list.NewElement())
		}
		_, err := flows.Compile(nil, []*flow.FlowFilter{f})
		var failed *flows.FilterError
		if !errors.As(err, &failed) || failed.Field != string(fd.Name()) || failed.List != "blacklist" {
			t.Errorf("%s: %v", fd.Name(), err)
		}
	}
	unknown := &flow.FlowFilter{}
	unknown.ProtoReflect().SetUnknown(protowire.AppendString(protowire.AppendTag(nil, 777, protowire.BytesType), "x"))
	if _, err := flows.Compile([]*flow.FlowFilter{unknown}, nil); err == nil || !strings.Contains(err.Error(), "777") {
		t.Errorf("a field that is not known: %v", err)
	}
}

// TestFilterOfDropsBeforeConntrack: what was dropped before it was known whether it is an answer is
// taken for none, as existing clients expect.
func TestFilterOfDropsBeforeConntrack(t *testing.T) {
	e := sample()
	e.Flow.IsReply = nil
	for text, want := range map[string]bool{`{"reply":[false]}`: true, `{"reply":[true]}`: false, `{"reply":[true,false]}`: true} {
		f, err := flows.Compile([]*flow.FlowFilter{parse(t, text)}, nil)
		if err != nil {
			t.Fatal(err)
		}
		e.Flow.Verdict = flow.Verdict_DROPPED
		if f.Match(e) != want {
			t.Errorf("%s: a drop is selected: %v", text, !want)
		}
		e.Flow.Verdict = flow.Verdict_FORWARDED
		if f.Match(e) {
			t.Errorf("%s selects a flow of which it is not known", text)
		}
	}
}

func TestFilterLists(t *testing.T) {
	e := sample()
	yes, no := parse(t, `{"verdict":["DROPPED"],"source_identity":[16384]}`), parse(t, `{"verdict":["DROPPED"],"source_identity":[1]}`)
	for _, row := range []struct {
		white, black []*flow.FlowFilter
		want         bool
	}{
		{nil, nil, true}, {[]*flow.FlowFilter{no, yes}, nil, true}, {[]*flow.FlowFilter{no}, nil, false}, {[]*flow.FlowFilter{{}}, nil, true},
		{nil, []*flow.FlowFilter{no}, true}, {nil, []*flow.FlowFilter{no, yes}, false}, {[]*flow.FlowFilter{yes}, []*flow.FlowFilter{yes}, false},
	} {
		f, err := flows.Compile(row.white, row.black)
		if err != nil {
			t.Fatal(err)
		}
		if f.Match(e) != row.want {
			t.Errorf("%v, %v: %v", row.white, row.black, !row.want)
		}
		if !f.Match(&flows.Entry{Lost: flows.Lost(flow.LostEventSource_HUBBLE_RING_BUFFER, 1)}) {
			t.Error("what was lost is not reported")
		}
	}
}

func TestFilterIsBounded(t *testing.T) {
	long := strings.Repeat("x", flows.MaxValueLength+1)
	many := func(n int) (out []string) {
		for i := range n {
			out = append(out, fmt.Sprint(i))
		}
		return out
	}
	for name, f := range map[string]*flow.FlowFilter{
		"node_name":       {NodeName: []string{long}},
		"source_pod":      {SourcePod: []string{strings.Repeat("/", 3)}},
		"source_port":     {SourcePort: many(flows.MaxValues + 1)},
		"destination_ip":  {DestinationIp: []string{"10.0.0.0/99"}},
		"source_label":    {SourceLabel: []string{"app in (a"}},
		"protocol":        {Protocol: []string{"http"}},
		"tcp_flags":       {TcpFlags: []*flow.TCPFlags{{NS: true}}},
		"destination_pod": {DestinationPod: []string{""}},
		"interface":       {Interface: []*flow.NetworkInterface{{}}},
	} {
		var failed *flows.FilterError
		if _, err := flows.Compile([]*flow.FlowFilter{f}, nil); !errors.As(err, &failed) || failed.Field != name {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := flows.Compile(slices.Repeat([]*flow.FlowFilter{{}}, flows.MaxFilters+1), nil); err == nil {
		t.Error("more filters than MaxFilters are compiled")
	}
	// The values of all filters count together.
	half := &flow.FlowFilter{SourcePort: many(flows.MaxValues/2 + 1)}
	if _, err := flows.Compile([]*flow.FlowFilter{half}, []*flow.FlowFilter{half}); err == nil {
		t.Error("the bound of values is one of each list")
	}
	// Each requirement of a selector is one, and each of its values.
	for _, text := range []string{strings.Repeat("a=b,", 100) + "c", "a in (" + strings.Repeat("b,", 100) + "c)"} {
		f := &flow.FlowFilter{SourceLabel: slices.Repeat([]string{text}, flows.MaxValues/101)}
		if _, err := flows.Compile([]*flow.FlowFilter{f}, nil); err != nil {
			t.Errorf("as many requirements as may be: %v", err)
		}
		f.SourceLabel = append(f.SourceLabel, text)
		var failed *flows.FilterError
		if _, err := flows.Compile([]*flow.FlowFilter{f}, nil); !errors.As(err, &failed) || failed.Field != "source_label" {
			t.Errorf("more requirements than the limit: %v", err)
		}
	}
	// Patterns that make matchers by trial and error slow.
	evil := &flow.FlowFilter{NodeName: []string{strings.Repeat("*a", flows.MaxValueLength/2)}}
	f, err := flows.Compile([]*flow.FlowFilter{evil}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e := sample()
	e.Flow.NodeName = "c/" + strings.Repeat("a", 250) + "b"
	began := time.Now()
	for range 1000 {
		f.Match(e)
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Errorf("a pattern took %v for a thousand flows", took)
	}
}

// FuzzFilter compiles what any client may send, and asks it: it is refused by the name of a field
// or it selects.
func FuzzFilter(f *testing.F) {
	for _, row := range rows {
		for _, text := range append(row.yes, row.no...) {
			wire, err := proto.Marshal(parse(f, text))
			if err != nil {
				f.Fatal(err)
			}
			f.Add(wire)
		}
	}
	e := sample()
	f.Fuzz(func(t *testing.T, wire []byte) {
		var in flow.FlowFilter
		if proto.Unmarshal(wire, &in) != nil {
			return
		}
		filter, err := flows.Compile([]*flow.FlowFilter{&in}, nil)
		var failed *flows.FilterError
		switch {
		case err == nil:
			filter.Match(e)
		case !errors.As(err, &failed) || failed.Field == "":
			t.Errorf("%v", err)
		}
	})
}

// TestFilterOfNewerClients: what a newer client asks for within a value is refused, as a field of
// the filter is: to ignore it would be to show flows that the client did not ask for.
func TestFilterOfNewerClients(t *testing.T) {
	newer := protowire.AppendVarint(protowire.AppendTag(nil, 99, protowire.VarintType), 1)
	workload, kind := &flow.Workload{Name: "web"}, &flow.EventTypeFilter{Type: 1}
	workload.ProtoReflect().SetUnknown(newer)
	kind.ProtoReflect().SetUnknown(newer)
	for name, f := range map[string]*flow.FlowFilter{"source_workload": {SourceWorkload: []*flow.Workload{workload}}, "event_type": {EventType: []*flow.EventTypeFilter{kind}}} {
		if _, err := flows.Compile(nil, []*flow.FlowFilter{f}); err == nil || !strings.Contains(err.Error(), name) || !strings.Contains(err.Error(), "field 99") {
			t.Errorf("%s: %v", name, err)
		}
	}
}
