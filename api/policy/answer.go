package policy

import (
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
)

// MaxAnswer is how much of an answer is held, in bytes as [Read] counts them: the rows of a matrix
// of as many parties as there may be take about a third.
const MaxAnswer = 32 << 20

// elementCost is the memory that a message within an answer, or an element of a list of strings,
// takes in addition to its bytes on the wire.
const elementCost = 128

// errPlaces is of an answer that refers to parties or accesses which it does not contain.
var errPlaces = errors.New("the server's answer refers to entries that it does not contain")

// Cost is about how much memory a message takes, in bytes: its bytes on the way, and the cost of
// all that is in it.
func Cost(m proto.Message) int {
	return proto.Size(m) + elementCost*elements(m.ProtoReflect())
}

// elements counts messages, m itself with those that are in it, and texts in lists. Numbers in
// lists take a few times their bytes at most, so that these bound them.
func elements(m protoreflect.Message) int {
	n := 1
	m.Range(func(field protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		message := field.Message() != nil
		switch {
		case field.IsList() && message:
			for i := range v.List().Len() {
				n += elements(v.List().Get(i).Message())
			}
		case field.IsList() && (field.Kind() == protoreflect.StringKind || field.Kind() == protoreflect.BytesKind):
			n += v.List().Len()
		case message && !field.IsMap():
			n += elements(v.Message())
		}
		return true
	})
	return n
}

// Read reads an answer that comes in pieces, of most bytes at most, where every message in it costs
// some more than its own. References between parts of the answer are resolved.
func Read[T any, M interface {
	*T
	proto.Message
}](stream grpc.ServerStreamingClient[T], most int) (M, error) {
	out := M(new(T))
	for size := 0; ; {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return nil, err
		}
		if size += Cost(M(piece)); size > most {
			return nil, fmt.Errorf("the server's answer is larger than %d MiB; ask for less of it", most>>20)
		}
		proto.Merge(out, M(piece))
	}
	switch res := any(out).(type) {
	case *MatrixResponse:
		return out, new(MatrixPlaces).Add(res)
	case *PreviewResponse:
		for _, p := range res.GetPairs() {
			if most := uint64(len(res.GetParties())); uint64(p.GetSource()) >= most || uint64(p.GetDestination()) >= most {
				return nil, errPlaces
			}
		}
	}
	return out, nil
}

// MatrixPlaces is how much of a matrix was received, which its rows may refer to.
type MatrixPlaces struct{ parties, accesses int }

// Add fails for a piece that refers to what was not received.
func (m *MatrixPlaces) Add(res *MatrixResponse) error {
	m.parties += len(res.GetParties())
	m.accesses += len(res.GetAccesses())
	for _, row := range res.GetRows() {
		if uint64(row.GetSource()) >= uint64(m.parties) || len(row.GetAccesses()) > m.parties {
			return errPlaces
		}
		for _, n := range row.GetAccesses() {
			if uint64(n) >= uint64(m.accesses) {
				return errPlaces
			}
		}
	}
	return nil
}
