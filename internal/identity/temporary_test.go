package identity

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/quick"

	"github.com/hawser-net/hawser/internal/labels"
)

// FuzzRanges is the table of ranges in the section "Temporary ID" of CFP-27752, as a property of
// every ID: it is in one range and no other, and its text is read as itself.
func FuzzRanges(f *testing.F) {
	for _, id := range []ID{0, 1, 255, 256, 65535, 65536, 0xffffff, 0x1000000, 0x100ffff, 0x1010000, 0x10103ff, 0x1010400, 0x2000000, 0x3000001, 0xffffffff} {
		f.Add(uint32(id))
	}
	f.Fuzz(func(t *testing.T, n uint32) {
		id := ID(n)
		temporary := n >= 1<<24+1<<16 && n <= 1<<24+1<<16+1<<10-1
		if id.IsTemporary() != temporary {
			t.Errorf("%#x: temporary %v", n, id.IsTemporary())
		}
		if temporary && (id.Scope() != LocalScope || !id.IsLocal() || id.IsGlobal() || id.IsReserved() || id.IsBlock() || id.ClusterID(255) != 0) {
			t.Errorf("%#x is temporary, and of scope %#x", n, uint32(id.Scope()))
		}
		if id.IsGlobal() == id.IsLocal() || id.IsGlobal() != (n < 1<<24) || id.IsReserved() != (n < 256) {
			t.Errorf("%#x: global %v, local %v, reserved %v", n, id.IsGlobal(), id.IsLocal(), id.IsReserved())
		}
		text := id.String()
		if strings.HasPrefix(text, temporaryPrefix) != temporary {
			t.Errorf("%#x is written %q", n, text)
		}
		for _, s := range []string{text, strconv.FormatUint(uint64(n), 10)} {
			if got, err := Parse(s); err != nil || got != id {
				t.Errorf("%q is read as %s, %v", s, got, err)
			}
		}
		if got, err := Parse(temporaryPrefix + strconv.FormatUint(uint64(n), 10)); (err == nil) != temporary || (err == nil && got != id) {
			t.Errorf("%#x with the prefix is read as %s, %v", n, got, err)
		}
		// No cluster can allocate it.
		for _, clusters := range []uint32{255, 511} {
			if first, last, err := Range(id.ClusterID(clusters), clusters); err == nil && temporary && id >= first && id <= last {
				t.Errorf("%#x is in the range of a cluster", n)
			}
		}
	})
}

func appLabels(n int) labels.Set { return labels.NewSet(labels.New("k8s", "app", fmt.Sprint(n))) }

// TestTemporariesExhausted is the last sentence of "Temporary ID" in CFP-27752: there are 1024, and
// no more.
func TestTemporariesExhausted(t *testing.T) {
	t.Parallel()
	tm := NewTemporaries()
	seen := map[ID]bool{}
	for n := range 1024 {
		id, err := tm.Acquire(appLabels(n))
		if err != nil || !id.IsTemporary() || seen[id] {
			t.Fatalf("ID %d is %s, %v", n, id, err)
		}
		seen[id] = true
	}
	if id, err := tm.Acquire(appLabels(1024)); !errors.Is(err, ErrExhausted) || !strings.Contains(err.Error(), "1024") {
		t.Errorf("one too many: %s, %v", id, err)
	}
	again, err := tm.Acquire(appLabels(7))
	if err != nil || !seen[again] {
		t.Errorf("labels that have one: %s, %v", again, err)
	}
	if tm.Release(again) || !tm.Release(again) || tm.Release(again) || tm.Release(MaxTemporary+1) {
		t.Error("two references make one ID free, once")
	}
	if id, err := tm.Acquire(appLabels(1024)); err != nil || id != again {
		t.Errorf("the ID that is free: %s, %v, want %s", id, err, again)
	}
}

// TestTemporariesRestore takes IDs from before a restart, and refuses what cannot be.
func TestTemporariesRestore(t *testing.T) {
	t.Parallel()
	tm := NewTemporaries()
	for range 2 {
		if err := tm.Restore(MinTemporary+5, appLabels(1)); err != nil {
			t.Error(err)
		}
	}
	for what, err := range map[string]error{
		"other labels": tm.Restore(MinTemporary+5, appLabels(2)), "another ID": tm.Restore(MinTemporary+6, appLabels(1)),
		"no temporary one": tm.Restore(300, appLabels(3)), "no labels": tm.Restore(MinTemporary+7, nil),
	} {
		if err == nil {
			t.Errorf("%s: taken", what)
		}
	}
	if id, err := tm.Acquire(appLabels(1)); err != nil || id != MinTemporary+5 {
		t.Errorf("the same labels: %s, %v", id, err)
	}
	if _, err := tm.Acquire(nil); err == nil {
		t.Error("no labels have an ID")
	}
	for n := range 4 {
		if gone := tm.Release(MinTemporary + 5); gone != (n == 2) {
			t.Errorf("release %d: free %v", n, gone)
		}
	}
}

// TestTemporariesModel does random things beside a simple model.
func TestTemporariesModel(t *testing.T) {
	t.Parallel()
	if err := quick.Check(func(seed uint64) bool {
		rnd := rand.New(rand.NewPCG(seed, 1))
		tm := NewTemporaries()
		refs, owner := map[ID]int{}, map[ID]int{}
		for range 300 {
			if rnd.IntN(2) == 0 {
				n := rnd.IntN(20)
				id, err := tm.Acquire(appLabels(n))
				if err != nil || (refs[id] > 0 && owner[id] != n) {
					return false
				}
				for other, o := range owner {
					if o == n && refs[other] > 0 && other != id {
						return false
					}
				}
				refs[id]++
				owner[id] = n
				continue
			}
			for id, n := range refs {
				if gone := tm.Release(id); gone != (n == 1) {
					return false
				}
				if refs[id]--; n == 1 {
					delete(refs, id)
				}
				break
			}
		}
		return tm.Len() == len(refs)
	}, &quick.Config{MaxCount: 200}); err != nil {
		t.Error(err)
	}
}
