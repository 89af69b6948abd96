package relay

import (
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/relay"
)

// TestProblemsOfAnyBytes: whatever bytes a node says went wrong, clients get it, of not too
// much.
func TestProblemsOfAnyBytes(t *testing.T) {
	for said, want := range map[string]string{
		strings.Repeat("x", maxProblem-1) + "é": strings.Repeat("x", maxProblem-1),
		"it \xff\xfe\x00 is":                    "it \x00 is",
		strings.Repeat("\xff", 2*maxProblem):    "",
		"größer":                                "größer",
	} {
		n := newStateChanges(0)
		n.add("prod/n1", relay.NodeState_NODE_ERROR, text(status.Error(codes.Unknown, said)))
		for _, res := range n.take(time.Now()) {
			if got := res.GetNodeStatus().GetMessage(); got != want {
				t.Errorf("%q became %q", said, got)
			}
			if _, err := proto.Marshal(res); err != nil {
				t.Errorf("%q: %v", said, err)
			}
		}
	}
}
