package network

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
)

func TestRouteFaults(t *testing.T) {
	t.Parallel()
	var f faults
	log := slog.New(slog.DiscardHandler)
	if err := f.note(nil, nil, log); err != nil || f.err() != nil || len(f.nodes()) != 0 {
		t.Errorf("nothing is wrong, and %v, %v", err, f.err())
	}
	boom := errors.New("no device")
	bad := func(node string) *datapath.RouteError {
		return &datapath.RouteError{Peer: node, Err: fmt.Errorf("node %s is odd", node)}
	}
	err := f.note(errors.Join(bad("a"), errors.Join(bad("b"), boom)), []*datapath.RouteError{bad("c"), bad("a")}, log)
	if err == nil || err.Error() != "no device" {
		t.Errorf("the rest is %v", err)
	}
	if got := f.nodes(); !slices.Equal(got, []string{"a", "b", "c"}) {
		t.Errorf("faulty are %v", got)
	}
	var many []*datapath.RouteError
	for i := range 5000 {
		many = append(many, bad(fmt.Sprintf("n%04d", i)))
	}
	f.note(nil, many, log)
	if text := f.err().Error(); len(text) > 500 || !strings.Contains(text, "node n0000") || !strings.Contains(text, "4995 more") {
		t.Errorf("5000 faults are reported as %s", text)
	}
	f.note(nil, nil, log)
	if f.err() != nil {
		t.Errorf("still wrong: %v", f.err())
	}
}
