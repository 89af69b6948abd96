package enforcement

import (
	"log/slog"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/policy"
)

// Policy counts as in force after one Sync: the named ports of all peers must be known by then,
// however many there are, or a deny by a port's name has no effect.
func TestNamedPortsOfManyPeers(t *testing.T) {
	t.Parallel()
	engine, err := policy.New(policy.Defaults())
	if err != nil {
		t.Fatal(err)
	}
	p, err := NewPolicy(slog.New(slog.DiscardHandler), engine, fake.New().Maps)
	if err != nil {
		t.Fatal(err)
	}
	cache := ipcache.New()
	const peers = 5000
	at := netip.MustParseAddr("10.2.0.0")
	for i := range peers {
		at = at.Next()
		claim := ipcache.Claim{Source: ipcache.KVStore, Identity: identity.ID(1000 + i), NamedPorts: []ipcache.NamedPort{{Name: "web", Port: 80, Protocol: "TCP"}}}
		if _, err := cache.Upsert(netip.PrefixFrom(at, 32), claim); err != nil {
			t.Fatal(err)
		}
	}
	named := NewNamedPorts(slog.New(slog.DiscardHandler), p, cache)
	defer named.watch.Close()
	named.Sync()
	if n := len(named.byID); n != peers {
		t.Errorf("the named ports of %d identities are known, want %d", n, peers)
	}
}
