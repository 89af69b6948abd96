package leases_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/driver"
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

// TestObtainEndsWithItsContext: who waits for the lease that another asks for waits no longer than
// its own context lasts, and has the lease if it comes in time.
func TestObtainEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var table leases.Table[int]
		answer, first := make(chan struct{}), make(chan error, 1)
		asked := 0
		add := func() error {
			asked++
			<-answer
			table.Add(asked, func() {})
			return nil
		}
		obtain := func(ctx context.Context, key string) error {
			_, err := table.Obtain(ctx, []string{key}, add)
			return err
		}
		go func() { first <- obtain(t.Context(), "a") }()
		synctest.Wait()
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if err := obtain(short, "b"); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("who waits for a second: %v after %v", err, time.Since(began))
		}
		second := make(chan error, 1)
		go func() { second <- obtain(t.Context(), "c") }()
		close(answer)
		if err := errors.Join(<-first, <-second); err != nil || asked != 1 {
			t.Errorf("%d leases were asked for, want 1: %v", asked, err)
		}
	})
}

// TestNotices: observers are called in order and by another goroutine than that of the notice, and
// no more when they are stopped or the connection is closed.
func TestNotices(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var o leases.Observers
		c := driver.New("test", 0)
		turn := make(chan struct{})
		var got []string
		o.Add("a/", func(keys []string) {
			<-turn
			got = append(got, keys...)
		})
		stop := o.Add("", func([]string) { t.Error("an observer that was stopped is notified") })
		stop()
		o.Notify(c, nil)
		for _, key := range []string{"a/1", "b/1", "a/2", "a/3"} {
			o.Notify(c, []string{key})
		}
		turn <- struct{}{}
		turn <- struct{}{}
		synctest.Wait()
		c.Shut()
		close(turn)
		c.Wait()
		o.Notify(c, []string{"a/4"})
		synctest.Wait()
		if fmt.Sprint(got) != "[a/1 a/2 a/3]" { // the last was under way
			t.Errorf("notices %q", got)
		}
	})
}
