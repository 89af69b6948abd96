package kvstore_test

import (
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

func TestHeartbeat(t *testing.T) {
	t.Parallel()
	var h kvstore.Heartbeat
	now := time.Unix(1000, 0)
	expect := func(want time.Duration, beats bool) {
		t.Helper()
		if age, ok := h.Age(now); ok != beats || ok && age != want {
			t.Errorf("age %v, %v; want %v, %v", age, ok, want, beats)
		}
	}
	expect(0, false)
	h.Observe(0, now) // no operator yet
	now = now.Add(time.Hour)
	expect(0, false)
	h.Observe(7, now)
	expect(0, true)
	now = now.Add(time.Minute)
	h.Observe(7, now)
	expect(time.Minute, true)
	h.Observe(8, now)
	expect(0, true)
	now = now.Add(time.Minute)
	h.Observe(0, now) // the key's lease ran out
	expect(time.Minute, true)
	h.ReadFailed()
	now = now.Add(time.Hour)
	h.Observe(8, now) // the store can be read again
	expect(0, true)
	h.Observe(3, now) // the store was restored: another revision is a beat
	expect(0, true)
}
