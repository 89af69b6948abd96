package driver

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestClose: what waits ends with the connection, and nothing begins afterwards.
func TestClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New("test", 1)
		both, done, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		waiting := make(chan error, 2)
		go func() {
			_, _, err := c.Begin(t.Context())
			waiting <- err
		}()
		go func() { waiting <- c.Await(t.Context(), make(chan struct{}), "waiting") }()
		events := Watch(t.Context(), c, func(ctx context.Context, send func(...int) bool) {
			for send(1) {
			}
		})
		synctest.Wait()
		if !c.Shut() || c.Shut() {
			t.Error("the first Shut is not the first, or the second is")
		}
		for range 2 {
			if err := <-waiting; !errors.Is(err, ErrClosed) {
				t.Errorf("who waited got %v", err)
			}
		}
		<-both.Done() // no request outlives the connection; else the test is deadlocked
		done()
		c.Wait()
		for range events {
		}
		if _, _, err := c.Begin(t.Context()); !errors.Is(err, ErrClosed) {
			t.Errorf("Begin afterwards: %v", err)
		}
		if c.Go(func() { t.Error("ran on a closed connection") }) {
			t.Error("Go says that it runs")
		}
		if _, open := <-Watch(t.Context(), c, func(context.Context, func(...int) bool) {}); open {
			t.Error("a watch of a closed connection delivers something")
		}
		if err := c.Fault(t.Context(), "get", "k", errors.New("broken pipe")); !errors.Is(err, ErrClosed) {
			t.Errorf("fault %v", err)
		}
		if err := c.Fault(t.Context(), "put", "k", c.Sent(context.Canceled)); err == nil || errors.Is(err, ErrClosed) || errors.Is(err, context.Canceled) {
			t.Errorf("fault of a write that was under way: %v", err)
		}
	})
}

// TestSlots: no more requests than the bound are under way, and who waits no longer gets none.
func TestSlots(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := New("test", 1)
		defer c.Shut()
		_, done, err := c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		short, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if _, _, err := c.Begin(short); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second request: %v", err)
		}
		done()
		_, done, err = c.Begin(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		done()
		old := c.Broken()
		c.BreakWatches()
		select {
		case <-old:
		default:
			t.Error("watches are not broken")
		}
	})
}
