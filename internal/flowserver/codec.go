package flowserver

import (
	"fmt"

	"google.golang.org/grpc/encoding"
	grpcproto "google.golang.org/grpc/encoding/proto"
	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// maxElements is how many elements a request has at most: more than its filters may have values.
const maxElements = 4096

// BoundedCodec returns the codec of protobuf, which refuses messages with more elements than most:
// messages in them, and texts in their lists. An empty one takes two bytes on the way, and up to a
// thousand in memory, so that the size of a message alone does not bound what it takes.
func BoundedCodec(most int) encoding.CodecV2 {
	return boundedCodec{encoding.GetCodecV2(grpcproto.Name), most}
}

type boundedCodec struct {
	encoding.CodecV2
	most int
}

// request is where a server decodes a request to, and why that failed: gRPC would make an internal
// error of it, and answer with that by itself.
type request struct {
	into any
	err  error
}

// Unmarshal implements [encoding.CodecV2].
func (c boundedCodec) Unmarshal(data mem.BufferSlice, v any) error {
	if r, ok := v.(*request); ok {
		r.err = c.Unmarshal(data, r.into)
		return nil
	}
	m, ok := v.(proto.Message)
	if !ok || data.Len() <= 2*c.most { // as few bytes have no more elements
		return c.CodecV2.Unmarshal(data, v)
	}
	buf := data.MaterializeToBuffer(mem.DefaultBufferPool())
	defer buf.Free()
	if elements(m.ProtoReflect().Descriptor(), buf.ReadOnlyData(), c.most) > c.most {
		return fmt.Errorf("the message has more than %d elements", c.most)
	}
	return proto.Unmarshal(buf.ReadOnlyData(), m)
}

// elements counts the elements of an encoded message, and itself, until there are more than most.
// What follows bytes that cannot be read is not counted: it is not decoded.
func elements(d protoreflect.MessageDescriptor, data []byte, most int) int {
	n := 1
	for len(data) > 0 && n <= most {
		number, kind, size := protowire.ConsumeTag(data)
		if size < 0 {
			break
		}
		data = data[size:]
		if size = protowire.ConsumeFieldValue(number, kind, data); size < 0 {
			break
		}
		value := data[:size]
		data = data[size:]
		fd := d.Fields().ByNumber(number)
		if fd == nil || kind != protowire.BytesType {
			continue
		}
		switch content, _ := protowire.ConsumeBytes(value); {
		case fd.Message() != nil:
			n += elements(fd.Message(), content, most-n)
		case fd.IsList():
			n++
		}
	}
	return n
}
