package agent

import (
	"log/slog"
	"net/netip"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/agent/network"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
)

// serverOwner is the owner of the claims on the addresses of API servers.
const serverOwner = "kube-apiserver"

// apiServers keeps the claims on the addresses at which the API of Kubernetes is served.
type apiServers struct {
	log    *slog.Logger
	self   node.Key
	host   network.Host
	tables *tables

	mu      sync.Mutex
	servers []netip.Addr                   // where the API is served
	claimed map[netip.Prefix]ipcache.Claim // for these
}

func newAPIServers(self node.Key, host network.Host, t *tables, log *slog.Logger) *apiServers {
	return &apiServers{log: log, self: self, host: host, tables: t, claimed: map[netip.Prefix]ipcache.Claim{}}
}

// set records where the API is served.
func (s *apiServers) set(list []netip.Addr) {
	s.mu.Lock()
	s.servers = list
	s.mu.Unlock()
	s.place()
}

// place claims the addresses at which the API is served, and all addresses of the nodes that
// have one of them: pods see a node by any of these.
func (s *apiServers) place() {
	s.mu.Lock()
	defer s.mu.Unlock()
	want := map[netip.Prefix]ipcache.Claim{}
	claim := func(ip, host netip.Addr) {
		want[ipcache.Single(ip)] = ipcache.Claim{Source: ipcache.APIServer, Owner: serverOwner, Identity: identity.KubeAPIServer, Host: host}
	}
	for _, ip := range s.servers {
		claim(ip, netip.Addr{})
	}
	for key, n := range s.tables.nodes.Table().All() {
		ips := n.NodeIPs()
		if key == s.self || !slices.ContainsFunc(ips, func(ip netip.Addr) bool { return slices.Contains(s.servers, ip) }) {
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
	for p := range s.claimed {
		if _, still := want[p]; !still {
			s.tables.cache.Delete(p, ipcache.APIServer, serverOwner)
		}
	}
	for p, c := range want {
		if old, had := s.claimed[p]; had && old.Host == c.Host {
			continue
		}
		if _, err := s.tables.cache.Upsert(p, c); err != nil {
			s.log.Warn("an address of the API server is invalid", "address", p, "error", err)
		}
	}
	s.claimed = want
	// This node itself may serve it: then its own identity is that of an API server too.
	set := labels.NewSet(labels.Reserved("host"))
	local := s.host.All(s.log)
	if slices.ContainsFunc(s.servers, func(ip netip.Addr) bool { return slices.Contains(local, ip) }) {
		set = set.With(labels.Reserved("kube-apiserver"))
	}
	if known, _ := s.tables.identities.Labels(identity.Host); !known.Equal(set) {
		if err := s.tables.identities.Apply(s.tables.policy, map[identity.ID]labels.Set{identity.Host: set}, nil); err != nil {
			s.log.Error("policy is not fully in force", "error", err)
		}
	}
}
