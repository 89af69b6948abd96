package nodes

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/node"
)

// TestUndoIsBounded: another writer's change is undone at once if that was not done lately, else
// when the interval is over; what this node has to say itself is written at once.
func TestUndoIsBounded(t *testing.T) {
	t.Parallel()
	var stored v2.CiliumNode
	writes := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodPut {
			t.Errorf("%s %s", r.Method, r.URL)
		}
		stored = v2.CiliumNode{}
		if err := json.NewDecoder(r.Body).Decode(&stored); err != nil {
			t.Error(err)
		}
		writes++
		stored.ResourceVersion = strconv.Itoa(100 + writes)
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(stored)
	}))
	defer server.Close()
	client, err := k8s.New(&rest.Config{Host: server.URL})
	if err != nil {
		t.Fatal(err)
	}
	told := 0
	n, err := New(Config{
		Self: node.Key{Cluster: "c", Name: "n"}, UndoInterval: 300 * time.Millisecond, Namesake: func(node.Node) { told++ },
	}, client, Discard{})
	if err != nil {
		t.Fatal(err)
	}
	local := func(ip string) node.Node {
		return node.Node{Name: "n", Cluster: "c", BootID: "b", Addresses: []node.Address{{Type: node.InternalIP, IP: netip.MustParseAddr(ip)}}}
	}
	sync := func(wantWrites, wantTold int, waits bool) {
		t.Helper()
		wait, err := n.syncObject(t.Context())
		if err != nil || waits != (wait > 0) || writes != wantWrites || told != wantTold {
			t.Errorf("wait %v, %d writes, told %d times, %v; want %v, %d, %d", wait, writes, told, err, waits, wantWrites, wantTold)
		}
	}
	edited := 0
	edit := func() {
		edited++
		o := stored.DeepCopy()
		o.ResourceVersion = "e" + strconv.Itoa(edited)
		o.Spec.BootID, o.Spec.Addresses = "other", []v2.NodeAddress{{Type: "InternalIP", IP: "192.0.2.9"}}
		n.observe(t.Context(), o)
	}
	if err := n.Announce(local("192.0.2.1")); err != nil {
		t.Fatal(err)
	}
	stored.Name = "n"
	edit() // what an earlier agent has left
	sync(1, 0, false)
	sync(1, 0, false) // the watch is behind
	n.observe(t.Context(), stored.DeepCopy())
	sync(1, 0, false)
	edit()
	sync(2, 0, false)
	edit()
	sync(2, 1, true)
	if err := n.Announce(local("192.0.2.2")); err != nil {
		t.Fatal(err)
	}
	sync(3, 1, false)
	edit()
	sync(3, 2, true)
	time.Sleep(300 * time.Millisecond)
	sync(4, 2, false)
}
