package relay

import (
	"strings"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/internal/flowserver"
)

// maxReceived is the size of a message that is received at all, in bytes: one that is larger ends
// its stream, one of more than maxMessage is not decoded. A flow of two pods with as many labels as
// they may have is in between.
const maxReceived = 4 * maxMessage

// maxElements bounds what one answer of a node takes in memory before it is counted: a flow of pods
// with as many labels as they may have has a few thousand elements, an event of a service one for
// each of its backends.
const maxElements = 1 << 14

// lenientCodec leaves a message empty that is too large or cannot be decoded, so that its stream
// goes on: a node has it still when it is asked again, and would never get beyond it. It is for the
// goroutine that receives from one stream.
type lenientCodec struct {
	encoding.CodecV2
	refused bool // the last message was left empty
}

func newLenientCodec() *lenientCodec {
	return &lenientCodec{CodecV2: flowserver.BoundedCodec(maxElements)}
}

// options are those of the call whose messages it decodes.
func (c *lenientCodec) options() []grpc.CallOption {
	return []grpc.CallOption{grpc.ForceCodecV2(c), grpc.MaxCallRecvMsgSize(maxReceived)}
}

// Unmarshal implements [encoding.CodecV2].
func (c *lenientCodec) Unmarshal(data mem.BufferSlice, v any) error {
	c.refused = data.Len() > maxMessage || c.CodecV2.Unmarshal(data, v) != nil
	if m, ok := v.(proto.Message); ok && c.refused {
		proto.Reset(m)
	}
	return nil
}

// tooLarge reports whether a stream ended because a message was larger than maxReceived. A server
// that refuses a request may have the same code.
func tooLarge(err error) bool {
	return status.Code(err) == codes.ResourceExhausted && strings.Contains(text(err), "received message larger than max")
}
