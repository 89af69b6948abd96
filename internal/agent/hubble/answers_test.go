package hubble

import (
	"net/netip"
	"testing"

	flowpb "github.com/hawser-net/hawser/api/flow"
)

// TestFlowAnswers: policy is asked once for what does not depend on an address, whatever the
// addresses; for each address where a rule is by address; and by no one so often that others
// cannot ask.
func TestFlowAnswers(t *testing.T) {
	remembered := newAnswers()
	asked := 0
	byAddress, busy := false, false
	ask := func(q question) (answer, bool) {
		asked++
		if byAddress && !q.peerAddr.IsValid() {
			return answer{byAddress: true}, !busy
		}
		return answer{policies: []*flowpb.Policy{{Name: "guard " + q.peerAddr.String()}}}, !busy
	}
	addr := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, byte(i >> 8), byte(i)}) }
	get := func(q question, i int, revision uint64) string {
		for _, p := range remembered.get(q, addr(i), revision, ask) {
			return p.GetName()
		}
		return ""
	}
	q := question{endpoint: 1, peer: 2, port: 80}
	for i := range 1000 {
		if got := get(q, i, 1); got != "guard "+(netip.Addr{}).String() {
			t.Fatalf("%d: %q", i, got)
		}
	}
	if asked != 1 {
		t.Errorf("%d questions about one identity", asked)
	}
	// A new revision, with a rule by address.
	byAddress, asked = true, 0
	for range 2 {
		for i := range 10 {
			if got := get(q, i, 2); got != "guard "+addr(i).String() {
				t.Fatalf("%d: %q", i, got)
			}
		}
	}
	if asked != 11 {
		t.Errorf("%d questions about 10 addresses", asked)
	}
	// Who asks for ever more does not keep others from asking.
	for port := range uint16(2000) {
		q.port = port
		get(q, 1, 3)
	}
	if get(question{endpoint: 2, port: 80}, 1, 3) == "" {
		t.Error("another endpoint's question is not asked")
	}
	// What is not answered is not remembered.
	busy = true
	q = question{endpoint: 3, port: 80}
	if got := get(q, 1, 3); got != "" {
		t.Errorf("while policy is busy: %q", got)
	}
	busy = false
	if got := get(q, 1, 3); got != "guard "+addr(1).String() {
		t.Errorf("when it is not any more: %q", got)
	}
}
