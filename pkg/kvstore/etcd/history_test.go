package etcd

import "testing"

// TestSeenInDoubt: what a client sees after it has lost its connection, and before it knows whether
// the store is still the same, is asked for as well. Otherwise the store may go back by just that.
func TestSeenInDoubt(t *testing.T) {
	t.Parallel()
	asked := func(h *history) change {
		t.Helper()
		newest, _, ok := h.doubted()
		if !ok {
			t.Fatal("the store is trusted")
		}
		return newest
	}
	before, during := change{key: "before", revision: 5}, change{key: "during", revision: 6}
	var h history
	h.remember(before)
	h.doubt()
	h.remember(during)
	h.remember(change{key: "older", revision: 4})
	if got := asked(&h); got != before {
		t.Errorf("asks for %v at first, want %v", got, before)
	}
	// The connection breaks again, and the store that answers now is a copy from before the change.
	h.doubt()
	_, doubts, _ := h.doubted()
	h.resolve(doubts, true)
	if got := asked(&h); got != during {
		t.Errorf("asks for %v then, want %v", got, during)
	}
	h.resolve(doubts, false)
	if _, _, ok := h.doubted(); ok || h.age() != 1 {
		t.Errorf("in doubt %t, broken %d times; want a break that is over", ok, h.age())
	}
	// What was seen before the break says nothing about the store that is there now.
	h.doubt()
	if got := asked(&h); got != (change{}) {
		t.Errorf("asks for %v after the break", got)
	}
}
