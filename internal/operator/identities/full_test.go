package identities

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// TestFullRange has thousands of sets of labels wait for an ID where all 65,280 are taken: each
// try must not look at each ID, under the lock that everything else waits for.
func TestFullRange(t *testing.T) {
	const sets = 5000
	rules := testRules(t, 256, 65535)
	c := &Controller{index: newIndex(rules, 0), notified: map[string]bool{}}
	entry := func(id identity.ID, quarantined bool) *idEntry {
		text := fmt.Sprintf("k8s:app=%d;", id)
		return &idEntry{id: id, uid: types.UID(text), text: text, nowText: text, quarantined: quarantined}
	}
	for id := rules.First; id <= rules.Last; id++ {
		c.index.setID(entry(id, false))
	}
	h := newObjectStore(objects{}, rules, c, slog.New(slog.DiscardHandler))
	looked := 0
	h.prober.Known = func(id allocator.ID) (k8sids.Entry, bool) {
		looked++
		return c.known(id)
	}
	began := time.Now()
	for i := range sets {
		if _, err := h.prober.Probe(t.Context(), fmt.Sprint("k8s:waits=", i, ";"), nil); !errors.Is(err, allocator.ErrExhausted) {
			t.Fatal(err)
		}
	}
	t.Logf("%d sets that wait cost %s", sets, time.Since(began))
	if looked > 0 {
		t.Errorf("%d IDs were looked at for %d sets", looked, sets)
	}
	full := func(want bool, when string) {
		t.Helper()
		if got := c.full("k8s:waits=0;"); got != want {
			t.Errorf("%s: full is %v", when, got)
		}
	}
	full(true, "all are taken")
	if c.full("k8s:app=256;") {
		t.Error("labels that have an ID get the error that there is none")
	}
	c.index.setID(entry(300, true))
	full(false, "one is in quarantine")
	c.index.setID(entry(300, true))
	c.index.setID(entry(300, false))
	full(true, "it was taken again")
	c.index.setID(entry(300, true))
	c.index.dropID(300)
	full(false, "it is free")
	c.index.setID(entry(300, false))
	full(true, "it was taken once more")
}
