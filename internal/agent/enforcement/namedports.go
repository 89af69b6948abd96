package enforcement

import (
	"cmp"
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/time/rate"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/table"
)

// maxMeshPorts is how many ports of one name and protocol other clusters may give an identity. Each
// costs an entry in every rule set of this cluster that names it, and a rule set beyond its share
// locks its pods.
const maxMeshPorts = 64

// NamedPorts reports to the policy engine which named ports the endpoints of an identity have, all
// together, by the claims in the address cache: an egress rule may call a peer's port by its name.
type NamedPorts struct {
	log    *slog.Logger
	policy *Policy
	watch  *table.Observer[netip.Prefix, ipcache.Entry]

	mu sync.Mutex
	// byPrefix has the prefixes whose endpoints have named ports, byID how many endpoints of an
	// identity have which.
	byPrefix map[netip.Prefix]portsOf
	byID     map[identity.ID]map[portsOf]int
	// refused counts the ports of identities that are beyond maxMeshPorts.
	refused    map[identity.ID]int
	complaints rate.Sometimes // another cluster may change its ports often
}

type portsOf struct {
	id   identity.ID
	text string // canonical
	mesh bool   // as another cluster says
}

// NewNamedPorts returns one that has reported nothing yet. It must run.
func NewNamedPorts(log *slog.Logger, p *Policy, cache *ipcache.Cache) *NamedPorts {
	return &NamedPorts{
		log: log, policy: p, watch: cache.Table().Watch(),
		byPrefix: map[netip.Prefix]portsOf{}, byID: map[identity.ID]map[portsOf]int{}, refused: map[identity.ID]int{},
		complaints: rate.Sometimes{First: 20, Interval: 10 * time.Second},
	}
}

// Run follows the cache until ctx ends.
func (b *NamedPorts) Run(ctx context.Context) error {
	defer b.watch.Close()
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-b.watch.Changed():
			b.Sync()
		}
	}
}

// Sync notifies the engine of what has changed in the cache until now.
func (b *NamedPorts) Sync() {
	b.mu.Lock()
	defer b.mu.Unlock()
	touched := map[identity.ID]bool{}
	for {
		changes, err := b.watch.Poll()
		if err != nil {
			return // closed: the agent ends
		}
		if len(changes) == 0 {
			break
		}
		for _, ch := range changes {
			b.apply(ch, touched)
		}
	}
	if len(touched) == 0 {
		return
	}
	texts := make(map[identity.ID]string, len(touched))
	for id := range touched {
		text, refused := union(b.byID[id])
		b.noteRefused(id, refused)
		texts[id] = text
	}
	err := b.policy.Change(func(e *policy.Engine) error {
		for id, text := range texts {
			if err := e.SetNamedPorts(id, text); err != nil {
				return err // texts are canonical: it cannot be
			}
		}
		return nil
	})
	if err != nil {
		b.log.Error("policy is not fully in force", "error", err)
	}
}

// union returns the named ports of an identity, and how many of those that other clusters give it
// are left out: each name and protocol has the lowest ports, so that every node decides alike.
func union(counts map[portsOf]int) (text string, refused int) {
	var kept, mesh []policy.NamedPort
	for p := range counts {
		ports, _ := policy.ParseNamedPorts(p.text) // written by portText
		if p.mesh {
			mesh = append(mesh, ports...)
		} else {
			kept = append(kept, ports...)
		}
	}
	slices.SortFunc(mesh, func(a, b policy.NamedPort) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Proto, b.Proto), cmp.Compare(a.Port, b.Port))
	})
	mesh = slices.Compact(mesh)
	same := 0 // ports of this name and protocol
	for i, p := range mesh {
		if i > 0 && (mesh[i-1].Name != p.Name || mesh[i-1].Proto != p.Proto) {
			same = 0
		}
		if same++; same > maxMeshPorts {
			refused++
			continue
		}
		kept = append(kept, p)
	}
	return policy.FormatNamedPorts(kept), refused
}

// noteRefused records how many ports of an identity are left out.
func (b *NamedPorts) noteRefused(id identity.ID, n int) {
	if n > 0 && b.refused[id] == 0 {
		b.complaints.Do(func() {
			b.log.Warn("other clusters give an identity too many ports of one name: to rules that name it, only the lowest have it",
				"identity", id, "limit", maxMeshPorts, "refused", n)
		})
	}
	if b.refused[id] = n; n == 0 {
		delete(b.refused, id)
	}
}

// apply counts one change of the cache, and notes whose ports differ by it.
func (b *NamedPorts) apply(ch table.Change[netip.Prefix, ipcache.Entry], touched map[identity.ID]bool) {
	var now portsOf
	if !ch.Deleted {
		if text := portText(ch.Value.NamedPorts()); text != "" {
			now = portsOf{ch.Value.Identity, text, ch.Value.Source == ipcache.ClusterMesh}
		}
	}
	old := b.byPrefix[ch.Key]
	if old == now {
		return
	}
	b.count(old, -1, touched)
	b.count(now, 1, touched)
	if now == (portsOf{}) {
		delete(b.byPrefix, ch.Key)
	} else {
		b.byPrefix[ch.Key] = now
	}
}

func (b *NamedPorts) count(p portsOf, n int, touched map[identity.ID]bool) {
	if p == (portsOf{}) {
		return
	}
	counts := b.byID[p.id]
	if counts == nil {
		counts = map[portsOf]int{}
		b.byID[p.id] = counts
	}
	was := counts[p]
	counts[p] += n
	if counts[p] == 0 {
		delete(counts, p)
	}
	if len(counts) == 0 {
		delete(b.byID, p.id)
	}
	if was == 0 || was+n == 0 {
		touched[p.id] = true
	}
}

// portText is the canonical text of named ports; what no rule can name is left out.
func portText(ports []ipcache.NamedPort) string {
	var list []policy.NamedPort
	for _, p := range ports {
		if proto, err := datapath.ParseProto(p.Protocol); err == nil {
			list = append(list, policy.NamedPort{Name: p.Name, Proto: proto, Port: p.Port})
		}
	}
	return policy.FormatNamedPorts(list)
}
