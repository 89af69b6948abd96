package flowserver_test

import (
	"context"
	"io"
	"net/netip"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flows"
)

// stockField is a field of a message that existing clients know, by its number.
type stockField struct {
	name   string
	number int32
	kind   descriptorpb.FieldDescriptorProto_Type
	of     string // the message's name
	many   bool
}

// stockMessages are the messages that existing clients exchange, as far as this test reads them:
// written from the numbers that these clients have, not from our definitions. Enumerations are read
// as the numbers that they are.
var stockMessages = map[string][]stockField{
	"GetFlowsRequest": {
		{name: "number", number: 1, kind: descriptorpb.FieldDescriptorProto_TYPE_UINT64}, {name: "first", number: 9, kind: descriptorpb.FieldDescriptorProto_TYPE_BOOL},
		{name: "whitelist", number: 6, of: "FlowFilter", many: true},
	},
	"FlowFilter": {
		{name: "source_pod", number: 2, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING, many: true},
		{name: "verdict", number: 5, kind: descriptorpb.FieldDescriptorProto_TYPE_INT32, many: true},
		{name: "destination_port", number: 14, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING, many: true},
		{name: "drop_reason_desc", number: 33, kind: descriptorpb.FieldDescriptorProto_TYPE_INT32, many: true},
		{name: "interface", number: 35, of: "Interface", many: true},
		{name: "source_cluster_name", number: 37, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING, many: true},
		{name: "destination_cluster_name", number: 38, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING, many: true},
	},
	"Interface": {
		{name: "index", number: 1, kind: descriptorpb.FieldDescriptorProto_TYPE_UINT32}, {name: "name", number: 2, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING},
	},
	"GetFlowsResponse": {
		{name: "flow", number: 1, of: "Flow"}, {name: "node_name", number: 1000, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING}, {name: "time", number: 1001, of: "Timestamp"},
	},
	"Timestamp": {{name: "seconds", number: 1, kind: descriptorpb.FieldDescriptorProto_TYPE_INT64}},
	"Flow": {
		{name: "time", number: 1, of: "Timestamp"}, {name: "verdict", number: 2, kind: descriptorpb.FieldDescriptorProto_TYPE_INT32},
		{name: "drop_reason", number: 3, kind: descriptorpb.FieldDescriptorProto_TYPE_UINT32}, {name: "ip", number: 5, of: "IP"}, {name: "l4", number: 6, of: "Layer4"},
		{name: "source", number: 8, of: "Endpoint"}, {name: "destination", number: 9, of: "Endpoint"}, {name: "type", number: 10, kind: descriptorpb.FieldDescriptorProto_TYPE_INT32},
		{name: "event_type", number: 19, of: "EventType"}, {name: "traffic_direction", number: 22, kind: descriptorpb.FieldDescriptorProto_TYPE_INT32},
		{name: "drop_reason_desc", number: 25, kind: descriptorpb.FieldDescriptorProto_TYPE_INT32}, {name: "uuid", number: 34, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING},
		{name: "interface", number: 28, of: "Interface"}, {name: "denied_by", number: 21005, of: "Policy", many: true},
		{name: "summary", number: 100000, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING},
	},
	"IP": {
		{name: "source", number: 1, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING}, {name: "destination", number: 2, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING},
		{name: "version", number: 3, kind: descriptorpb.FieldDescriptorProto_TYPE_INT32},
	},
	"Layer4": {{name: "tcp", number: 1, of: "TCP"}},
	"TCP": {
		{name: "source_port", number: 1, kind: descriptorpb.FieldDescriptorProto_TYPE_UINT32},
		{name: "destination_port", number: 2, kind: descriptorpb.FieldDescriptorProto_TYPE_UINT32}, {name: "flags", number: 3, of: "Flags"},
	},
	"Flags": {{name: "syn", number: 2, kind: descriptorpb.FieldDescriptorProto_TYPE_BOOL}, {name: "ack", number: 5, kind: descriptorpb.FieldDescriptorProto_TYPE_BOOL}},
	"Endpoint": {
		{name: "id", number: 1, kind: descriptorpb.FieldDescriptorProto_TYPE_UINT32}, {name: "identity", number: 2, kind: descriptorpb.FieldDescriptorProto_TYPE_UINT32},
		{name: "namespace", number: 3, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING},
		{name: "labels", number: 4, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING, many: true}, {name: "pod", number: 5, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING},
		{name: "cluster_name", number: 7, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING},
	},
	"EventType": {{name: "type", number: 1, kind: descriptorpb.FieldDescriptorProto_TYPE_INT32}, {name: "sub_type", number: 2, kind: descriptorpb.FieldDescriptorProto_TYPE_INT32}},
	"Policy": {
		{name: "name", number: 1, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING}, {name: "namespace", number: 2, kind: descriptorpb.FieldDescriptorProto_TYPE_STRING},
	},
}

// stock returns an empty message of a name.
func stock(t testing.TB) func(name string) *dynamicpb.Message {
	t.Helper()
	file := &descriptorpb.FileDescriptorProto{Name: proto.String("stock.proto"), Package: proto.String("stock"), Syntax: proto.String("proto3")}
	for name, fields := range stockMessages {
		m := &descriptorpb.DescriptorProto{Name: proto.String(name)}
		for _, f := range fields {
			d := &descriptorpb.FieldDescriptorProto{
				Name: proto.String(f.name), Number: proto.Int32(f.number), Type: f.kind.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(),
			}
			if f.many {
				d.Label = descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
			}
			if f.of != "" {
				d.Type, d.TypeName = descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), proto.String(".stock."+f.of)
			}
			m.Field = append(m.Field, d)
		}
		file.MessageType = append(file.MessageType, m)
	}
	fd, err := protodesc.NewFile(file, &protoregistry.Files{})
	if err != nil {
		t.Fatal(err)
	}
	return func(name string) *dynamicpb.Message {
		return dynamicpb.NewMessage(fd.Messages().ByName(protoreflect.Name(name)))
	}
}

// field reads a field, or one of a message in it.
func field(m protoreflect.Message, path ...string) protoreflect.Value {
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(path[0]))
	if len(path) == 1 {
		return m.Get(fd)
	}
	return field(m.Get(fd).Message(), path[1:]...)
}

func set(m protoreflect.Message, name string, v any) {
	fd := m.Descriptor().Fields().ByName(protoreflect.Name(name))
	if fd.IsList() {
		m.Mutable(fd).List().Append(protoreflect.ValueOf(v))
		return
	}
	m.Set(fd, protoreflect.ValueOf(v))
}

// names is a directory for two pods.
type names struct{}

func (names) Endpoint(uint16) flows.Party { return flows.Party{} }
func (names) Party(a netip.Addr) flows.Party {
	identity := map[string]uint32{"10.1.0.10": 16384, "10.1.0.11": 16385}[a.String()]
	return flows.Party{Endpoint: 7, Identity: identity, Namespace: "shop", Pod: "pod-" + a.String()}
}
func (names) Labels(uint32) ([]string, string, string) {
	return []string{"k8s:app=front"}, "shop", "prod"
}
func (names) Interface(index int) string                      { return map[int]string{9: "lxc1"}[index] }
func (names) Service(netip.Addr, uint16, uint8) *flow.Service { return nil }
func (names) Policies(datapath.Event) []*flow.Policy {
	return []*flow.Policy{{Name: "guard", Namespace: "shop"}}
}

// TestStockClientReadsFlows: a client that has nothing of ours but the wire asks for flows, with
// filters, and reads them.
func TestStockClientReadsFlows(t *testing.T) {
	s := newStand(t, 16, nil)
	maker := flows.Maker{Node: "prod/n1.example", Directory: names{}}
	syn := datapath.Packet{
		L3: "ipv4", Src: netip.MustParseAddr("10.1.0.10"), Dst: netip.MustParseAddr("10.1.0.11"), Proto: 6, L4: "tcp", SrcPort: 40000, DstPort: 80, TCPFlags: "SYN",
	}
	for _, reason := range []datapath.DropReason{datapath.ReasonForwarded, datapath.ReasonPolicyDeny} {
		f := maker.Flow(datapath.Event{
			Time: base, Type: datapath.EventVerdict, Direction: datapath.Ingress, Reason: reason, CTState: datapath.CTNew, SrcIdentity: 16384, DstIdentity: 16385, IfIndex: 9, Packet: syn,
		})
		s.record.Add(f, syn.Src, syn.Dst, time.Now())
	}
	message := stock(t)
	req, filter := message("GetFlowsRequest"), message("FlowFilter")
	set(filter, "source_pod", "shop/pod-10.1")
	set(filter, "verdict", int32(2)) // dropped
	set(filter, "destination_port", "80")
	set(filter, "drop_reason_desc", int32(181))
	set(filter, "source_cluster_name", "prod")
	set(filter, "destination_cluster_name", "prod")
	device := message("Interface")
	set(device, "name", "lxc1")
	set(filter, "interface", device.ProtoReflect())
	set(req, "whitelist", filter.ProtoReflect())
	set(req, "number", uint64(10))

	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	stream, err := s.dial().NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, "/observer.Observer/GetFlows")
	if err != nil {
		t.Fatal(err)
	}
	if err := stream.SendMsg(req); err != nil {
		t.Fatal(err)
	}
	if err := stream.CloseSend(); err != nil {
		t.Fatal(err)
	}
	res := message("GetFlowsResponse")
	if err := stream.RecvMsg(res); err != nil {
		t.Fatal(err)
	}
	for _, row := range []struct {
		want any
		path []string
	}{
		{"prod/n1.example", []string{"node_name"}},
		{base.Unix(), []string{"time", "seconds"}},
		{base.Unix(), []string{"flow", "time", "seconds"}},
		{int32(2), []string{"flow", "verdict"}},
		{uint32(181), []string{"flow", "drop_reason"}},
		{int32(181), []string{"flow", "drop_reason_desc"}},
		{"10.1.0.10", []string{"flow", "ip", "source"}},
		{"10.1.0.11", []string{"flow", "ip", "destination"}},
		{int32(1), []string{"flow", "ip", "version"}},
		{uint32(40000), []string{"flow", "l4", "tcp", "source_port"}},
		{uint32(80), []string{"flow", "l4", "tcp", "destination_port"}},
		{true, []string{"flow", "l4", "tcp", "flags", "syn"}},
		{false, []string{"flow", "l4", "tcp", "flags", "ack"}},
		{uint32(7), []string{"flow", "source", "id"}},
		{uint32(16384), []string{"flow", "source", "identity"}},
		{uint32(16385), []string{"flow", "destination", "identity"}},
		{"shop", []string{"flow", "source", "namespace"}},
		{"pod-10.1.0.11", []string{"flow", "destination", "pod"}},
		{"prod", []string{"flow", "destination", "cluster_name"}},
		{uint32(9), []string{"flow", "interface", "index"}},
		{"lxc1", []string{"flow", "interface", "name"}},
		{int32(1), []string{"flow", "type"}},
		{int32(5), []string{"flow", "event_type", "type"}},
		{int32(1), []string{"flow", "traffic_direction"}},
		{"TCP Flags: SYN", []string{"flow", "summary"}},
	} {
		if got := field(res, row.path...).Interface(); got != row.want {
			t.Errorf("%v is %v, want %v", row.path, got, row.want)
		}
	}
	if labels := field(res, "flow", "source", "labels").List(); labels.Len() != 1 || labels.Get(0).String() != "k8s:app=front" {
		t.Errorf("labels: %v", labels)
	}
	if by := field(res, "flow", "denied_by").List(); by.Len() != 1 || field(by.Get(0).Message(), "name").String() != "guard" {
		t.Errorf("denied by %v", by)
	}
	if len(field(res, "flow", "uuid").String()) != 36 {
		t.Errorf("UUID %q", field(res, "flow", "uuid"))
	}
	if err := stream.RecvMsg(message("GetFlowsResponse")); err != io.EOF {
		t.Errorf("after the one flow: %v", err)
	}
}
