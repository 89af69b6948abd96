package placement

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
)

// serverOwner is the owner of the claims on the addresses of API servers.
const serverOwner = "kube-apiserver"

// serversWait bounds the wait until the kernel has the claims on API servers, which depends on this
// node only.
const serversWait = 10 * time.Second

// ServerRules give the addresses of API servers that are outside of the cluster their identities.
type ServerRules interface {
	// SetServers replaces these addresses. It returns the identities that may be claimed for them.
	SetServers(list []netip.Prefix) (map[netip.Prefix]identity.ID, error)
	// RestoredServers returns the addresses in the cluster that the kernel had as those of API
	// servers when the agent started.
	RestoredServers() []datapath.IPCacheEntry
}

// APIServersConfig gives APIServers what they use.
type APIServersConfig struct {
	Log *slog.Logger
	// Self is this node, Local returns its addresses, PodCIDRs its pod CIDRs.
	Self     node.Key
	Local    func() []netip.Addr
	PodCIDRs func() []netip.Prefix
	Nodes    *table.Table[node.Key, node.Node]

	Cache     *ipcache.Cache
	Addresses *Addresses
	Rules     ServerRules

	// HostLabels returns the labels of this node itself, SetHostLabels changes them.
	HostLabels    func() labels.Set
	SetHostLabels func(labels.Set) error
}

// APIServers keep the claims on the addresses at which the API of Kubernetes is served. Those of
// nodes, and in networks of pods, have the identity kube-apiserver, which is one of the cluster.
// The others are outside: each has the identity of its prefix, which has that label too.
//
// No address is without the label while its identity changes. A claim replaces the one before in
// one write, and by its source counts rather than those of nodes, which come and go apart from
// these; and rules know an identity before the kernel has it at an address, and until after. What
// the kernel has of nodes from before a restart stays until all nodes are known.
type APIServers struct {
	cfg APIServersConfig

	mu       sync.Mutex
	known    bool                           // where the API is served
	servers  []netip.Addr                   // that is there
	allNodes bool                           // the table of nodes has all of them
	outside  []netip.Prefix                 // of these, sorted
	ids      map[netip.Prefix]identity.ID   // that rules gave outside, as far as they could
	claimed  map[netip.Prefix]ipcache.Claim // for these
	failed   bool                           // some of it was not possible
}

// NewAPIServers returns APIServers that know of none but those that the kernel has.
func NewAPIServers(c APIServersConfig) *APIServers {
	s := &APIServers{cfg: c, claimed: map[netip.Prefix]ipcache.Claim{}}
	// Other claims of the nodes, which may be known first, must not count.
	for _, row := range c.Rules.RestoredServers() {
		s.claim(row.Prefix, serverClaim(identity.KubeAPIServer, row.TunnelEndpoint))
	}
	return s
}

// claim claims an address, unless it is claimed so already. It is called with mu held.
func (s *APIServers) claim(p netip.Prefix, c ipcache.Claim) {
	if old, had := s.claimed[p]; had && old.Host == c.Host && old.Identity == c.Identity {
		return
	}
	if _, err := s.cfg.Cache.Upsert(p, c); err != nil {
		s.cfg.Log.Warn("an address of the API server is invalid", "address", p, "error", err)
		return
	}
	s.claimed[p] = c
}

// Set records where the API is served.
func (s *APIServers) Set(list []netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known, s.servers = true, list
	s.place()
}

// NodesSynced records that the table of nodes has those that the cluster had when the agent
// started.
func (s *APIServers) NodesSynced() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.allNodes = true
	s.place()
}

// NodesChanged claims the addresses again, for nodes have changed.
func (s *APIServers) NodesChanged() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.place()
}

// Retry does what was not possible.
func (s *APIServers) Retry() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.failed {
		s.place()
	}
}

// place claims the addresses at which the API is served, and all addresses of the nodes that
// have one of them: pods see a node by any of these. It is called with mu held.
func (s *APIServers) place() {
	if !s.known {
		return
	}
	local := s.cfg.Local()
	want, outside := s.wanted(local)
	// Rules know the identities of addresses that become outside before the kernel has them, and
	// those of addresses that were until it has them no more.
	before := s.outside
	both := slices.Compact(slices.SortedFunc(slices.Values(slices.Concat(before, outside)), netip.Prefix.Compare))
	s.setOutside(both)
	for _, p := range outside {
		if id, ok := s.ids[p]; ok {
			want[p] = serverClaim(id, netip.Addr{})
		} else if c, had := s.claimed[p]; had {
			want[p] = c // until rules could be told
		}
	}
	for p := range s.claimed {
		if _, still := want[p]; !still {
			s.cfg.Cache.Delete(p, ipcache.APIServer, serverOwner)
			delete(s.claimed, p)
		}
	}
	for p, c := range want {
		s.claim(p, c)
	}
	if len(both) > len(outside) && s.awaitKernel() {
		s.setOutside(outside)
	}
	s.failed = len(s.outside) > len(outside) || len(s.ids) < len(s.outside)
	// This node itself may serve it: then its own identity is that of an API server too.
	set := labels.NewSet(labels.Reserved("host"))
	if slices.ContainsFunc(s.servers, func(ip netip.Addr) bool { return slices.Contains(local, ip) }) {
		set = set.With(labels.Reserved("kube-apiserver"))
	}
	if !s.cfg.HostLabels().Equal(set) {
		if err := s.cfg.SetHostLabels(set); err != nil {
			s.cfg.Log.Error("policy is not fully in force", "error", err)
		}
	}
}

// serverClaim is the claim on an address of an API server.
func serverClaim(id identity.ID, host netip.Addr) ipcache.Claim {
	return ipcache.Claim{Source: ipcache.APIServer, Owner: serverOwner, Identity: id, Host: host}
}

// wanted returns the claims on addresses of the cluster, and the addresses that are outside,
// sorted. local are the addresses of this node.
func (s *APIServers) wanted(local []netip.Addr) (map[netip.Prefix]ipcache.Claim, []netip.Prefix) {
	want := map[netip.Prefix]ipcache.Claim{}
	for p, c := range s.claimed {
		if !s.allNodes && c.Identity == identity.KubeAPIServer {
			want[p] = c
		}
	}
	claim := func(ip, host netip.Addr) {
		want[ipcache.Single(ip)] = serverClaim(identity.KubeAPIServer, host)
	}
	pods := s.cfg.PodCIDRs()
	for key, n := range s.cfg.Nodes.All() {
		ips := n.NodeIPs()
		pods = append(pods, n.PodCIDRs()...)
		if !slices.ContainsFunc(ips, func(ip netip.Addr) bool { return slices.Contains(s.servers, ip) }) {
			continue
		}
		if key == s.cfg.Self {
			local = append(slices.Clone(local), ips...)
			continue
		}
		host := n.UnderlayIPv4()
		if !host.IsValid() {
			host = n.UnderlayIPv6()
		}
		for _, ip := range ips {
			claim(ip, netip.Addr{})
		}
		for _, ip := range n.RouterIPs() {
			claim(ip, host)
		}
	}
	var outside []netip.Prefix
	for _, ip := range s.servers {
		p := ipcache.Single(ip)
		if _, ofNode := want[p]; ofNode {
			continue
		}
		if slices.Contains(local, ip) || slices.ContainsFunc(pods, func(c netip.Prefix) bool { return c.Contains(ip) }) {
			claim(ip, netip.Addr{})
		} else {
			outside = append(outside, p)
		}
	}
	return want, outside
}

// setOutside has rules know the addresses that are outside. They may have to do before they return,
// so it asks them only for what is new, or was not possible.
func (s *APIServers) setOutside(list []netip.Prefix) {
	if slices.Equal(list, s.outside) && len(s.ids) == len(list) {
		return
	}
	ids, err := s.cfg.Rules.SetServers(list)
	if err != nil {
		s.cfg.Log.Error("policy is not fully in force", "error", err)
	}
	s.outside, s.ids = list, ids
}

// awaitKernel waits until the kernel has the claims, and reports whether it has.
func (s *APIServers) awaitKernel() bool {
	ctx, cancel := context.WithTimeout(context.Background(), serversWait)
	defer cancel()
	err := s.cfg.Addresses.WaitTried(ctx, s.cfg.Cache.Table().Revision())
	if err != nil {
		s.cfg.Log.Warn("the kernel does not have the addresses of API servers yet; those of before keep their identities", "error", err)
	}
	return err == nil
}
