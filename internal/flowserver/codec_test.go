package flowserver_test

import (
	"bytes"
	"context"
	"runtime"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/flowserver"
)

// rawCodec sends bytes as they are, and reads nothing.
type rawCodec struct{}

func (rawCodec) Marshal(v any) (mem.BufferSlice, error) {
	return mem.BufferSlice{mem.SliceBuffer(v.([]byte))}, nil
}
func (rawCodec) Unmarshal(mem.BufferSlice, any) error { return nil }
func (rawCodec) Name() string                         { return "proto" }

// TestRequestsOfManyElements: half a megabyte of empty filters, of two bytes each, would be a
// quarter of a gigabyte when decoded. It is refused before.
func TestRequestsOfManyElements(t *testing.T) {
	s := newStand(t, 8, nil)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	conn := s.dial()
	for name, req := range map[string][]byte{
		"filters":   bytes.Repeat([]byte{6<<3 | 2, 0}, 250_000),
		"workloads": protowire.AppendBytes([]byte{6<<3 | 2}, bytes.Repeat([]byte{26<<3&0x7f | 0x80 | 2, 26 >> 4, 0}, 160_000)),
		"pods":      protowire.AppendBytes([]byte{6<<3 | 2}, bytes.Repeat([]byte{2<<3 | 2, 0}, 250_000)),
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		stream, err := conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, observer.Observer_GetFlows_FullMethodName, grpc.ForceCodecV2(rawCodec{}))
		if err != nil {
			t.Fatal(err)
		}
		if err := stream.SendMsg(req); err != nil {
			t.Fatal(err)
		}
		if err := stream.CloseSend(); err != nil {
			t.Fatal(err)
		}
		err = stream.RecvMsg(nil)
		runtime.ReadMemStats(&after)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), "more than 4096 elements") {
			t.Errorf("%s: %v", name, err)
		}
		if took := after.TotalAlloc - before.TotalAlloc; took > 16<<20 {
			t.Errorf("%s: a request of %d KiB has taken %d MiB", name, len(req)>>10, took>>20)
		}
	}
}

// TestUnreadableRequests: a request that cannot be decoded is the fault of its client.
func TestUnreadableRequests(t *testing.T) {
	s := newStand(t, 8, nil)
	for name, method := range map[string]string{"call": observer.Observer_ServerStatus_FullMethodName, "stream": observer.Observer_GetFlows_FullMethodName} {
		err := s.dial().Invoke(t.Context(), method, []byte{0xff}, nil, grpc.ForceCodecV2(rawCodec{}))
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// TestBoundedCodec: messages of as many elements as may be are read, whatever is unknown or
// unreadable in them is as with the codec of gRPC.
func TestBoundedCodec(t *testing.T) {
	c := flowserver.BoundedCodec(8)
	filter := func(pods int) *observer.GetFlowsRequest {
		f := &flow.FlowFilter{HttpUrl: []string{strings.Repeat("x", 100)}}
		for range pods {
			f.SourcePod = append(f.SourcePod, "shop/")
		}
		return &observer.GetFlowsRequest{Whitelist: []*flow.FlowFilter{f}}
	}
	encode := func(m proto.Message) []byte {
		b, err := proto.Marshal(m)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	for name, row := range map[string]struct {
		wire []byte
		want string
	}{
		"as many as may be": {encode(filter(5)), ""},
		"one more":          {encode(filter(6)), "more than 8 elements"},
		"an unknown field":  {append(encode(filter(5)), protowire.AppendBytes(protowire.AppendTag(nil, 777, protowire.BytesType), bytes.Repeat([]byte{10, 0}, 50))...), ""},
		"cut off":           {encode(filter(5))[:60], "proto"},
	} {
		var got observer.GetFlowsRequest
		err := c.Unmarshal(mem.BufferSlice{mem.SliceBuffer(row.wire[:20]), mem.SliceBuffer(row.wire[20:])}, &got)
		if (err == nil) != (row.want == "") || err != nil && !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
		if err == nil && len(got.GetWhitelist()[0].GetSourcePod()) != 5 {
			t.Errorf("%s: read %v", name, &got)
		}
	}
}
