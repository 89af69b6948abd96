package clustermesh

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

const (
	describing = "cilium/cluster-config/b"
	secondPod  = "cilium/state/ip/v1/default/10.2.1.6"
)

// allCanaries are the keys that mark the state of cluster b as complete.
func allCanaries() map[string]any {
	out := map[string]any{}
	for _, kind := range []string{kindIdentities, kindNodes, kindAddresses, kindServices} {
		out["cilium/synced/b/cilium/state/"+kind] = "2026-01-02T03:04:05Z"
	}
	return out
}

// marked is a good cluster b with two pods, which writes canaries, in two parts: its description,
// and the rest without the canaries.
func marked() (description, state map[string]any) {
	state = cluster("b", 2)
	delete(state, describing)
	state[secondPod] = ipcache.Pair{Prefix: pfx("10.2.1.6/32"), Host: addr("192.0.2.2"), Identity: 131077}
	return map[string]any{describing: Description{ID: 2, Capabilities: Capabilities{SyncedCanaries: true}}}, state
}

func without(m map[string]any, key string) map[string]any {
	m = maps.Clone(m)
	delete(m, key)
	return m
}

// gone has all keys deleted.
func gone(m map[string]any) map[string]any {
	out := map[string]any{}
	for key := range m {
		out[key] = nil
	}
	return out
}

// rowsOfMarked are the rows of marked: with both pods, and without the second.
func rowsOfMarked() (both, first []string) {
	first = rowsOf("b", 2)
	return append(slices.Clone(first), "address b 10.2.1.6/32 131077 at 192.0.2.2 by clustermesh"), first
}

// incomplete is the status of a cluster whose state is held.
func incomplete(s Status) bool {
	return s.Ready && strings.Contains(s.LastError, "may be incomplete")
}

// followMarked follows a complete cluster that writes canaries, until it is ready.
func (w *world) followMarked() (description, state map[string]any, both, first []string) {
	w.t.Helper()
	description, state = marked()
	both, first = rowsOfMarked()
	for _, part := range []map[string]any{description, state, allCanaries()} {
		w.put("b", part)
	}
	w.config("b", "b")
	w.start()
	w.eventually("at first", both)
	w.status("b", func(s Status) bool { return s.Ready })
	return description, state, both, first
}

// TestAnotherStoreIsFilled: a new connection finds a store that has only just begun to be filled.
// Nothing goes before it is complete, and then what it does not have does.
func TestAnotherStoreIsFilled(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	description, state, both, first := w.followMarked()
	w.mem["b2"] = kvstore.NewMemory()
	w.put("b2", description)
	w.config("b", "b2")
	w.status("b", incomplete)
	w.eventually("the store is empty", both)
	w.put("b2", without(state, secondPod))
	w.eventually("the store is filled", both)
	w.put("b2", without(allCanaries(), "cilium/synced/b/cilium/state/"+kindAddresses))
	w.status("b", func(s Status) bool { return incomplete(s) && !strings.Contains(s.LastError, kindNodes) })
	w.eventually("all but the addresses are complete", both)
	w.put("b2", allCanaries())
	w.eventually("all is complete", first)
	w.status("b", func(s Status) bool { return s.Ready && s.LastError == "" })
	w.put("b2", map[string]any{secondPod: state[secondPod]})
	w.eventually("the pod is back", both)
	w.put("b2", map[string]any{secondPod: nil})
	w.eventually("the pod ends", first)
}

// TestLeasesEnd: what the leases of a cluster's writer take with them stays until the writer has
// written everything again.
func TestLeasesEnd(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	description, state, both, first := w.followMarked()
	w.put("b", gone(allCanaries()))
	// The watches of two kinds are delivered in any order, so nothing shows when the end of the
	// canaries was observed but that a key which goes is held.
	service := "cilium/state/services/v1/b/ns/web"
	w.until("the canaries are missed", func() string {
		w.put("b", map[string]any{service: nil})
		time.Sleep(20 * time.Millisecond)
		list, _ := w.mesh.Status()
		if incomplete(list[0]) {
			return ""
		}
		w.put("b", map[string]any{service: state[service]}) // its end was believed
		return "they are not"
	})
	w.eventually("the canaries are gone", both)
	w.put("b", gone(state))
	w.put("b", gone(description))
	w.status("b", func(s Status) bool { return strings.Contains(s.LastError, "no description") })
	w.eventually("everything is lost", both)
	w.put("b", description)
	w.status("b", incomplete)
	w.put("b", without(state, secondPod))
	w.put("b", allCanaries())
	w.eventually("everything was written again", first)
	w.status("b", func(s Status) bool { return s.Ready && s.LastError == "" })
}

// TestNoDescription: a cluster without canaries is believed about what has gone as long as it has a
// description.
func TestNoDescription(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.put("b", cluster("b", 2))
	w.config("b", "b")
	w.start()
	w.eventually("at first", rowsOf("b", 2))
	w.put("b", map[string]any{describing: nil})
	w.status("b", func(s Status) bool { return strings.Contains(s.LastError, "no description") })
	w.put("b", map[string]any{"cilium/state/services/v1/b/ns/web": nil, "cilium/state/ip/v1/default/10.2.1.5": nil, "cilium/state/ip/v1/default/10.2.1.6": nil})
	pod := ipcache.Pair{Prefix: pfx("10.2.1.7/32"), Host: addr("192.0.2.2"), Identity: 131077}
	w.put("b", map[string]any{"cilium/state/ip/v1/default/10.2.1.7": pod})
	w.eventually("without a description", rowsOf("b", 2), []string{"address b 10.2.1.7/32 131077 at 192.0.2.2 by clustermesh"})
	w.put("b", map[string]any{describing: Description{ID: 2}})
	w.eventually("back", rowsOf("b", 2)[1:3], []string{"address b 10.2.1.7/32 131077 at 192.0.2.2 by clustermesh"})
	w.put("b", map[string]any{describing: nil})
	w.config("b", "")
	w.eventually("removed", nil)
}

// ailing is a store whose state a test decides.
type ailing struct {
	kvstore.Backend
	ill *atomic.Bool
}

func (a ailing) Status() kvstore.Status {
	s := a.Backend.Status()
	if a.ill.Load() {
		s.State, s.LastError = kvstore.StateFailed, "the heartbeat has not changed"
	}
	return s
}

// TestOldHeartbeat: leases do not end all at once, so keys may go before their canary. Their writer
// is away, as the heartbeat shows, and they stay.
func TestOldHeartbeat(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var ill atomic.Bool
	open := w.mesh.p.Open
	w.mesh.p.Open = func(ctx context.Context, file string, log *slog.Logger) (kvstore.Backend, error) {
		b, err := open(ctx, file, log)
		return ailing{b, &ill}, err
	}
	_, _, both, first := w.followMarked()
	w.status("b", func(s Status) bool { return s.Ready && s.Connected })
	ill.Store(true)
	w.status("b", func(s Status) bool { return !s.Connected })
	other := "cilium/state/services/v1/b/ns/other"
	w.put("b", map[string]any{secondPod: nil, other: `{"cluster":"b","namespace":"ns","name":"other","clusterID":2,"shared":true}`})
	w.status("b", func(s Status) bool { return s.Services == 2 })
	w.eventually("the heartbeat is old", both, []string{"service b/ns/other 0"})
	ill.Store(false)
	w.eventually("it is not", first, []string{"service b/ns/other 0"})
}

// TestEmptiedEtcd: the etcd of a cluster is replaced by an empty one, which is filled again.
func TestEmptiedEtcd(t *testing.T) {
	t.Parallel()
	etcd := kvstoretest.StartEtcd(t)
	put := func(parts ...map[string]any) {
		t.Helper()
		raw := etcd.Client()
		for _, part := range parts {
			for key, v := range part {
				text, ok := v.(string)
				if !ok {
					data, err := json.Marshal(v)
					if err != nil {
						t.Fatal(err)
					}
					text = string(data)
				}
				if _, err := raw.Put(t.Context(), key, text); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	description, state := marked()
	both, first := rowsOfMarked()
	put(description, state, allCanaries())
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "b"), []byte(fmt.Sprintf("endpoints: [%q]\n", etcd.Endpoint())), 0o600); err != nil {
		t.Fatal(err)
	}
	w := followed(t, dir)
	w.eventually("at first", both)
	w.status("b", func(s Status) bool { return s.Ready && s.Connected })
	etcd.Empty()
	w.status("b", func(s Status) bool { return s.Ready && strings.Contains(s.LastError, "no description") })
	put(description)
	w.status("b", incomplete)
	w.eventually("the store is empty", both)
	put(without(state, secondPod), allCanaries())
	w.eventually("the store is full again", first)
	w.status("b", func(s Status) bool { return s.Ready && s.Connected && s.LastError == "" })
}
