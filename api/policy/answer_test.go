package policy

import (
	"io"
	"strings"
	"testing"

	"google.golang.org/grpc"
)

// pieces is an answer of so many pieces that are alike.
type pieces[T any] struct {
	grpc.ClientStream
	piece *T
	n     int
}

func (p *pieces[T]) Recv() (*T, error) {
	if p.n--; p.n < 0 {
		return nil, io.EOF
	}
	return p.piece, nil
}

// TestEmptyElementsCost: what is next to nothing on the way takes memory, too, and is bounded by
// it.
func TestEmptyElementsCost(t *testing.T) {
	t.Parallel()
	const each, most = 1000, 1 << 20
	parties, connections, texts := &MatrixResponse{}, &PreviewResponse{}, &PreviewResponse{}
	for range each {
		parties.Parties = append(parties.Parties, &Party{})
		connections.Connections = append(connections.Connections, &Connection{Source: &Party{}, Destination: &Party{}})
		texts.Warnings = append(texts.Warnings, "")
	}
	for name, row := range map[string]struct {
		read func(n int) (int, error)
		cost int
	}{
		"parties": {func(n int) (int, error) {
			res, err := Read(&pieces[MatrixResponse]{piece: parties, n: n}, most)
			return len(res.GetParties()), err
		}, elementCost + 2},
		"connections": {func(n int) (int, error) {
			res, err := Read(&pieces[PreviewResponse]{piece: connections, n: n}, most)
			return len(res.GetConnections()), err
		}, 3*elementCost + 6},
		"texts": {func(n int) (int, error) {
			res, err := Read(&pieces[PreviewResponse]{piece: texts, n: n}, most)
			return len(res.GetWarnings()), err
		}, elementCost + 2},
	} {
		fit := most / (each*row.cost + elementCost)
		if n, err := row.read(fit); err != nil || n != fit*each {
			t.Errorf("%s: of %d there are %d: %v", name, fit*each, n, err)
		}
		if _, err := row.read(fit + 1); err == nil || !strings.Contains(err.Error(), "larger than 1 MiB") {
			t.Errorf("%s: %d take more than there is room for: %v", name, (fit+1)*each, err)
		}
	}
}
