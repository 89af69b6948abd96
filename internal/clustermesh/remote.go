package clustermesh

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// How many objects of a kind one cluster may have. A store that is full of nonsense must not eat
// this node's memory.
const (
	maxNodes     = 20_000
	maxAddresses = 1_000_000
	maxServices  = 100_000
)

// What a client of another cluster's store may read of one kind, and in one message. Otherwise a
// store could fill memory with what is refused afterwards.
const (
	MaxKeys    = maxAddresses + maxAddresses/4
	MaxBytes   = 384 << 20 // as many addresses, of 300 bytes each
	MaxMessage = 16 << 20
)

// maxRefused is how many refused keys of one cluster are remembered, and so counted, maxRefusedKey
// how long one of them may be. Those beyond are refused, too.
const (
	maxRefused    = 20_000
	maxRefusedKey = 1 << 10
)

// gather is how long changes of what others depend on are gathered before those are looked at
// again.
const gather = 50 * time.Millisecond

// remote is one other cluster. But for its status, it belongs to the goroutine that runs it, and
// before and after that to the one of [Mesh.Run].
type remote struct {
	m    *Mesh
	name string
	log  *slog.Logger
	// complaints bounds how often refusals are logged: a writer of invalid keys may write many.
	complaints rate.Sometimes

	peer     peer // zero before the cluster was let in
	desc     Description
	progress map[string]*progress // by kind
	space    map[string]*space    // by kind, but for addresses

	identities map[identity.ID]labels.Set      // handed on
	nodes      map[string]node.Node            // all that could be read, by name
	accepted   map[string]node.Node            // handed on
	hosts      map[netip.Addr][]string         // names of the accepted, by address, sorted
	pairs      map[netip.Prefix]sizedPair      // all that could be read
	pairsSize  int                             // of all their values, in bytes
	placed     map[netip.Prefix]bool           // handed on
	services   map[service.Name]service.Shared // all that could be read
	offered    map[service.Name]bool           // handed on
	refused    map[string]bool                 // keys of what is not accepted, with what they are of
	mine       *prefixes                       // what nodes, addresses and services were evaluated by

	mu     sync.Mutex
	status Status
}

// sizedPair is what is kept of an address: all that [session.place] needs, as the node that hosts
// it may be observed later.
type sizedPair struct {
	ipcache.Pair
	size int // of its value, in bytes
}

func newRemote(m *Mesh, name string) *remote {
	r := &remote{
		m: m, name: name, log: m.p.Log.With("cluster", name), complaints: rate.Sometimes{First: 20, Interval: 10 * time.Second},
		status: Status{Name: name, Since: time.Now(), Message: "connecting"},
	}
	r.reset()
	return r
}

func (r *remote) reset() {
	r.peer, r.desc = peer{}, Description{}
	r.progress = map[string]*progress{kindIdentities: {}, kindNodes: {}, kindAddresses: {}, kindServices: {}}
	r.space = map[string]*space{kindIdentities: newSpace(), kindNodes: newSpace(), kindServices: newSpace()}
	r.identities, r.refused = map[identity.ID]labels.Set{}, map[string]bool{}
	r.nodes, r.accepted, r.hosts = map[string]node.Node{}, map[string]node.Node{}, map[netip.Addr][]string{}
	r.pairs, r.pairsSize, r.placed = map[netip.Prefix]sizedPair{}, 0, map[netip.Prefix]bool{}
	r.services, r.offered = map[service.Name]service.Shared{}, map[service.Name]bool{}
}

// drain takes back everything that was handed on, unless ctx, that of [Mesh.Run], ends first.
func (r *remote) drain(ctx context.Context) {
	for p := range r.placed {
		r.m.p.Sinks.Addresses.Delete(p, ipcache.ClusterMesh, r.name)
	}
	for n := range r.offered {
		r.m.p.Sinks.Services.DeleteShared(r.name, n)
	}
	for name := range r.accepted {
		if err := r.m.p.Sinks.Nodes.Dismiss(ctx, node.Key{Cluster: r.name, Name: name}); err != nil {
			return // the agent ends
		}
	}
	if len(r.identities) > 0 {
		if err := r.m.p.Sinks.Identities.SetIdentities(nil, slices.Sorted(maps.Keys(r.identities))); err != nil {
			r.log.Error("policy is not fully in force", "error", err)
		}
	}
	r.log.Info("removed what was received from another cluster", "identities", len(r.identities), "nodes", len(r.accepted), "addresses", len(r.placed), "services", len(r.offered))
	r.m.release(r.peer.id, r.name)
	r.reset()
}

// connect follows the cluster by a file until ctx ends. run is the context of [Mesh.Run], fault why
// the file could not be read, if it could not.
func (r *remote) connect(run, ctx context.Context, file string, fault error) {
	var store kvstore.Backend
	err := fault
	if err == nil {
		store, err = r.m.p.Open(ctx, file, r.log.With("part", "kvstore"))
	}
	if err != nil {
		// A file that cannot be read is read again when it changes.
		r.disconnect()
		r.fail(fmt.Errorf("%s: %w", file, err))
		<-ctx.Done()
		return
	}
	defer func() {
		if err := store.Close(); err != nil {
			r.log.Debug("closing the store of another cluster", "error", err)
		}
	}()
	s := &session{remote: r, store: store, empty: func() { r.drain(run) }}
	s.run(ctx)
}

// disconnect notes that there is no connection.
func (r *remote) disconnect() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.status.Connected {
		r.status.Connected, r.status.Since = false, time.Now()
	}
	r.status.Message = "not connected"
}

// fail notes what keeps the cluster from being followed.
func (r *remote) fail(err error) {
	r.mu.Lock()
	again := r.status.LastError == err.Error()
	r.status.LastError, r.status.LastErrorAt = err.Error(), time.Now()
	r.status.Failures++
	if r.peer.id == 0 {
		r.status.Message = "not followed"
	}
	r.mu.Unlock()
	if again {
		return
	}
	text := "another cluster cannot be followed"
	if r.peer.id != 0 {
		text += "; what was read of it stays in force"
	}
	r.log.Warn(text, "error", err)
}

// well notes that what failed works again.
func (r *remote) well() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.status.LastError = ""
}

// reject notes that an object of the cluster is not accepted. It takes nothing back: what was
// accepted of that key before is the caller's business.
func (r *remote) reject(kind, key string, err error) {
	if r.refused[kind+"/"+key] {
		return
	}
	if len(r.refused) < maxRefused && len(key) <= maxRefusedKey {
		r.refused[kind+"/"+key] = true
	}
	r.complaints.Do(func() {
		r.log.Warn("refused data of another cluster", "kind", kind, "key", clip(key), "error", err)
	})
}

func (r *remote) clearRejection(kind, key string) { delete(r.refused, kind+"/"+key) }

func (r *remote) layout() layout { return layout{r.name, r.desc.Capabilities.Cached} }
