package etcd_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestGoesBack: a store that was put back to an old copy, and whose revision has passed what the
// client knew before the client is back. What was written since the copy must be reported as
// deleted, and what others wrote under revisions that the client had seen as there.
func TestGoesBack(t *testing.T) {
	t.Parallel()
	for _, last := range []string{"its own write", "its own delete", "another's write", "another's delete"} {
		t.Run(last, func(t *testing.T) {
			t.Parallel()
			goesBack(t, last)
		})
	}
}

func goesBack(t *testing.T, last string) {
	server := kvstoretest.StartEtcd(t)
	ctx := timeout(t, 2*time.Minute)
	c := open(t, config(server))
	put := func(b kvstore.Backend, key, value string) {
		t.Helper()
		if err := kvstore.Put(ctx, b, key, []byte(value), kvstore.Permanent); err != nil {
			t.Fatal(err)
		}
	}
	put(c, "test/x/before", "1")
	put(c, "test/x/to-delete", "1")
	restore := server.Snapshot()

	shown := map[string]string{} // what the watch has delivered
	events := c.Watch(ctx, "test/x/")
	until := func(what string, ok func() bool) {
		t.Helper()
		for !ok() {
			select {
			case ev := <-events:
				switch ev.Kind {
				case kvstore.EventDelete:
					delete(shown, strings.TrimPrefix(ev.Key, "test/x/"))
				case kvstore.EventCreate, kvstore.EventModify:
					shown[strings.TrimPrefix(ev.Key, "test/x/")] = string(ev.Value)
				}
			case <-ctx.Done():
				t.Fatalf("%s: the watch shows %v", what, shown)
			}
		}
	}
	until("at first", func() bool { return len(shown) == 2 })
	other := open(t, config(server))
	put(other, "test/x/lost", "1")
	until("after another's write", func() bool { return len(shown) == 3 })
	by := kvstore.Backend(c)
	if strings.HasPrefix(last, "another") {
		by = other
	}
	if strings.HasSuffix(last, "delete") {
		if err := kvstore.Delete(ctx, by, "test/x/to-delete"); err != nil {
			t.Fatal(err)
		}
		until("after the delete", func() bool { return len(shown) == 2 })
	} else {
		put(by, "test/x/lost-too", "1")
		until("after the write", func() bool { return len(shown) == 4 })
	}

	restore()
	// Clients that were there wait before they come back.
	fresh := open(t, config(server))
	for i := range 30 {
		put(fresh, fmt.Sprintf("test/elsewhere/%d", i%3), fmt.Sprint(i))
	}
	put(fresh, "test/x/before", "2")
	until("after the store went back", func() bool { return len(shown) == 2 && shown["before"] == "2" && shown["to-delete"] == "1" })
	put(fresh, "test/x/after", "1")
	until("after it went on", func() bool { return shown["after"] == "1" })
	if _, err := c.Get(ctx, "test/x/lost"); err == nil {
		t.Error("the store did not go back")
	}
}

// TestComesBackTheSame: a store that was away and has all its data is followed on, without a new
// listing.
func TestComesBackTheSame(t *testing.T) {
	t.Parallel()
	server := kvstoretest.StartEtcd(t)
	ctx := timeout(t, 2*time.Minute)
	c := open(t, config(server))
	lists := 0
	events := c.Watch(ctx, "test/x/")
	next := func(kind kvstore.EventKind) {
		t.Helper()
		for {
			select {
			case ev := <-events:
				if ev.Kind == kvstore.EventListDone {
					lists++
				}
				if ev.Kind == kind {
					return
				}
			case <-ctx.Done():
				t.Fatalf("no event of kind %v", kind)
			}
		}
	}
	next(kvstore.EventListDone)
	for range 3 {
		retry(ctx, t, func() error { return kvstore.Put(ctx, c, "test/x/a", nil, kvstore.Permanent) })
		next(kvstore.EventCreate)
		retry(ctx, t, func() error { return kvstore.Delete(ctx, c, "test/x/a") })
		next(kvstore.EventDelete)
		server.Stop()
		server.Start()
	}
	retry(ctx, t, func() error { return kvstore.Put(ctx, c, "test/x/a", nil, kvstore.Permanent) })
	next(kvstore.EventCreate)
	if lists != 1 {
		t.Errorf("%d listings, want the first only", lists)
	}
}

// retry tries until it succeeds: a request may be lost with the connection.
func retry(ctx context.Context, t *testing.T, fn func() error) {
	t.Helper()
	for {
		err := fn()
		if err == nil {
			return
		}
		if ctx.Err() != nil {
			t.Fatal(err)
		}
	}
}
