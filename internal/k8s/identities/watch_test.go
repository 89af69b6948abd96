package identities

import (
	"fmt"
	"testing"

	"github.com/hawser-net/hawser/pkg/allocator"
)

// TestFullIsCounted: whether any ID is free is known without a look at each.
func TestFullIsCounted(t *testing.T) {
	t.Parallel()
	const first, last = allocator.ID(256), allocator.ID(65535)
	const all = int(last-first) + 1
	x := newIndex()
	want := func(full bool, when string) {
		t.Helper()
		if got := x.full("k8s:app=waits;", all); got != full {
			t.Errorf("%s: full is %v", when, got)
		}
	}
	taken := func(id allocator.ID) entry { return entry{text: fmt.Sprintf("k8s:app=%d;", id)} }
	for id := first; id <= last; id++ {
		want(false, "some are free")
		x.set(id, taken(id))
	}
	want(true, "all are taken")
	if x.full("k8s:app=256;", all) {
		t.Error("labels that have an ID get the error that there is none")
	}
	quarantined := taken(300)
	quarantined.quarantined = true
	x.set(300, quarantined)
	want(false, "one is in quarantine")
	x.set(300, quarantined)
	x.set(300, taken(300))
	want(true, "it was taken again")
	x.set(300, quarantined)
	x.remove(300)
	want(false, "it is free")
	x.set(300, entry{})
	want(true, "unreadable")
}
