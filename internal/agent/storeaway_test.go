package agent

import (
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestDeleteWithoutStore: pods whose labels no other has are deleted, and get other labels, as long
// as the key-value store is away; and no deletion that was done stays queued.
func TestDeleteWithoutStore(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	store := kvstoretest.StartEtcd(t)
	n.flags = append(n.flags, "--kvstore", "etcd", "--kvstore-opt", "etcd.address="+store.Endpoint())
	n.start()
	before := n.audit()
	own, changed := n.attached("own", map[string]string{"app": "own"}), n.attached("changed", map[string]string{"app": "changed"})
	store.Stop()
	within := func(limit time.Duration, what string, f func() error) {
		t.Helper()
		began := time.Now()
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(began); took > limit {
			t.Errorf("%s took %v without the store", what, took)
		}
	}
	// As a plugin does that has not got an answer in time.
	queue, err := deletequeue.Hold(t.Context(), deletequeue.Dir(n.path("run/a.sock")))
	if err != nil {
		t.Fatal(err)
	}
	if err := queue.Add(deletequeue.Entry{EndpointID: own.id()}); err != nil {
		t.Fatal(err)
	}
	queue.Close()
	within(8*time.Second, "DEL", func() error { return own.del() })
	// A new identity is waited for a little.
	within(9*time.Second, "a change of labels", func() error {
		return n.client.PatchEndpointLabels(t.Context(), changed.id(), []string{"k8s:tier=gold"})
	})
	within(8*time.Second, "DEL after a change of labels", func() error { return changed.del() })
	n.sameAudit(before, "after the deletions")
	n.stop()
}
