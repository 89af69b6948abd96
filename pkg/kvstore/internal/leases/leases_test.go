package leases_test

import (
	"fmt"
	"testing"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/leases"
)

// TestPlaceOfAWriteUnderWay has two transactions write one key: that the first was not sent must
// not free the place of the second, or the lease would take one key too many.
func TestPlaceOfAWriteUnderWay(t *testing.T) {
	var table leases.Table[int]
	table.Add(1, func() {})
	keys := make([]string, kvstore.MaxKeysPerLease)
	for i := range keys {
		keys[i] = fmt.Sprintf("k%04d", i)
	}
	if _, ok := table.Reserve(keys[1:]); !ok {
		t.Fatal("no room on an empty lease")
	}
	first, _ := table.Reserve(keys[:1])
	second, _ := table.Reserve(keys[:1])
	table.Finish(first, nil, leases.NotSent)
	if _, ok := table.Reserve([]string{"more"}); ok {
		t.Error("the place of a write under way was given away")
	}
	table.Finish(second, nil, leases.NotSent)
	if _, ok := table.Reserve([]string{"more"}); !ok {
		t.Error("the place of a key that was never written stays taken")
	}
}

// TestUnknownOnALostLease has a lease lost while a write is under way whose outcome is unknown:
// its key counts as lost.
func TestUnknownOnALostLease(t *testing.T) {
	var table leases.Table[int]
	l := table.Add(1, func() {})
	held, _ := table.Reserve([]string{"a"})
	if keys, ok := table.Remove(l); !ok || len(keys) != 0 {
		t.Errorf("removed with %q, %v, want no key", keys, ok)
	}
	if stray := table.Finish(held, nil, leases.Unknown); len(stray) != 1 || stray[0] != "a" {
		t.Errorf("stray keys %q, want a", stray)
	}
}
