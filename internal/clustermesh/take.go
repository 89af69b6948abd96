package clustermesh

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// maxBatch bounds how many identities are handed on together.
const maxBatch = 4096

// note records an event of a kind, and reports whether it changes a key, whose last part it
// returns. The end of a key that cannot be trusted yet changes nothing.
func (s *session) note(kind string, e kvstore.Event, ok bool) (key string, of bool) {
	if !ok {
		s.events[kind] = nil // the connection ends
		return "", false
	}
	h := s.progress[kind]
	if e.Kind == kvstore.EventListDone {
		h.listed, h.since, h.looks = true, e.Revision, s.looks
		s.hurry = s.hurry || !h.complete
		s.updated = time.Time{}
		return "", false
	}
	if e.Revision == 0 { // of a listing: the store may be another one
		h.since, h.complete = 0, false
	}
	key = strings.TrimPrefix(e.Key, s.layout().prefix(kind))
	if e.Kind != kvstore.EventDelete {
		delete(h.missing, key)
		return key, true
	}
	if s.trusts(h) {
		return key, true
	}
	if s.knows(kind, key) {
		h.missing[key] = true
	}
	return "", false
}

// takeIdentities takes one event and those that follow at once.
func (s *session) takeIdentities(e kvstore.Event, ok bool) {
	upserts, deletes := map[identity.ID]labels.Set{}, map[string]bool{}
	one := func(e kvstore.Event, ok bool) {
		text, of := s.note(kindIdentities, e, ok)
		if !of {
			return
		}
		id, err := parseID(text)
		if e.Kind == kvstore.EventDelete {
			s.clearRejection(kindIdentities, text)
			delete(upserts, id)
			deletes[text] = err == nil
			return
		}
		var set labels.Set
		if err == nil {
			set, err = s.peer.identity(id, e.Value)
		}
		if err == nil {
			err = s.space[kindIdentities].take(text, len(e.Value))
		}
		if err != nil {
			s.refuse(kindIdentities, text, err)
			delete(upserts, id) // what it was before it is no more
			deletes[text] = true
			return
		}
		s.clearRejection(kindIdentities, text)
		upserts[id] = set
		delete(deletes, text)
	}
	one(e, ok)
	for range maxBatch {
		select {
		case e, ok := <-s.events[kindIdentities]:
			one(e, ok)
			continue
		default:
		}
		break
	}
	s.identify(upserts, slices.Collect(maps.Keys(deletes)))
}

// identify hands identities on.
func (s *session) identify(upserts map[identity.ID]labels.Set, deletes []string) {
	var gone []identity.ID
	for _, text := range deletes {
		s.space[kindIdentities].release(text)
		id, err := parseID(text)
		if _, known := s.identities[id]; err == nil && known {
			gone = append(gone, id)
			delete(s.identities, id)
			s.progress[kindIdentities].roomier = true
		}
	}
	slices.Sort(gone)
	if len(upserts)+len(gone) == 0 {
		return
	}
	maps.Copy(s.identities, upserts)
	if err := s.m.p.Sinks.Identities.SetIdentities(upserts, gone); err != nil {
		s.log.Error("policy is not fully in force", "error", err)
	}
}

// take takes an event of nodes, addresses or services.
func (s *session) take(kind string, e kvstore.Event, ok bool) {
	key, of := s.note(kind, e, ok)
	if !of {
		return
	}
	if e.Kind == kvstore.EventDelete {
		s.forget(kind, key)
		return
	}
	var err error
	switch kind {
	case kindNodes:
		err = s.takeNode(key, e.Value)
	case kindAddresses:
		err = s.takeAddress(key, e.Value)
	case kindServices:
		err = s.takeService(key, e.Value)
	}
	if err == nil {
		return
	}
	if kind == kindAddresses {
		s.forget(kind, key) // its former owner no longer has it; nodes and services stay as they were
	}
	s.refuse(kind, key, err)
}

// refuse rejects a key, and notes whether that is for lack of room.
func (s *session) refuse(kind, key string, err error) {
	s.reject(kind, key, err)
	if errors.Is(err, errFull) {
		s.progress[kind].full = true
	}
}

func (s *session) takeNode(name string, value []byte) error {
	n, err := node.Parse(s.name+"/"+name, value, s.m.p.MaxClusters)
	if err != nil {
		return err
	}
	if _, known := s.nodes[name]; !known && len(s.nodes) >= maxNodes {
		return full(maxNodes, "nodes")
	}
	if err := s.space[kindNodes].take(name, len(value)); err != nil {
		return err
	}
	s.nodes[name] = n
	s.later()
	return nil
}

func (s *session) takeAddress(key string, value []byte) error {
	if len(value) > maxAddress {
		return fmt.Errorf("address %q has a value of %d bytes, more than %d", clip(key), len(value), maxAddress)
	}
	pair, err := ipcache.ParsePair(key, value)
	if err != nil {
		return err
	}
	if n := len(pair.NamedPorts); n > maxAddressPorts {
		return fmt.Errorf("address %s has %d named ports, more than %d", pair.Prefix, n, maxAddressPorts)
	}
	old, known := s.pairs[pair.Prefix]
	if !known && len(s.pairs) >= maxAddresses {
		return full(maxAddresses, "addresses")
	}
	size := s.pairsSize - old.size + len(value)
	if size > maxAddressesSize && len(value) > old.size {
		return full(maxAddressesSize>>20, "MiB of addresses")
	}
	pair.Metadata = "" // not used here
	s.pairs[pair.Prefix], s.pairsSize = sizedPair{pair, len(value)}, size
	s.place(pair)
	return nil
}

func (s *session) takeService(key string, value []byte) error {
	sv, err := service.ParseShared(s.name+"/"+key, value)
	if err != nil {
		return err
	}
	if _, known := s.services[sv.Name]; !known && len(s.services) >= maxServices {
		return full(maxServices, "services")
	}
	if err := s.space[kindServices].take(key, len(value)); err != nil {
		return err
	}
	s.services[sv.Name] = sv
	s.offer(sv)
	return nil
}

// forget withdraws the state of a key.
func (s *session) forget(kind, key string) {
	s.clearRejection(kind, key)
	known := false
	switch kind {
	case kindNodes:
		s.space[kind].release(key)
		if _, known = s.nodes[key]; known {
			delete(s.nodes, key)
			s.later()
		}
	case kindAddresses:
		p, err := ipcache.ParseKey(key)
		if err != nil {
			return
		}
		var old sizedPair
		old, known = s.pairs[p]
		s.pairsSize -= old.size
		delete(s.pairs, p)
		s.displace(p)
	case kindServices:
		s.space[kind].release(key)
		namespace, name, _ := strings.Cut(key, "/")
		n := service.Name{Namespace: namespace, Name: name}
		_, known = s.services[n]
		delete(s.services, n)
		s.withdraw(n)
	}
	h := s.progress[kind]
	h.roomier = h.roomier || known
}

// place forwards an address, if it is accepted. Several nodes have the address of its host while a
// node was recreated under another name and its former key has not expired.
func (s *session) place(pair ipcache.Pair) {
	err := s.peer.address(pair, node.Node{}, false, s.mine)
	for _, name := range s.hosts[pair.Host] {
		if err = s.peer.address(pair, s.accepted[name], true, s.mine); err == nil {
			break
		}
	}
	if err == nil {
		_, err = s.m.p.Sinks.Addresses.Upsert(pair.Prefix, pair.Claim(ipcache.ClusterMesh, s.name))
	}
	if err != nil {
		s.reject(kindAddresses, pair.Key(), err)
		s.displace(pair.Prefix)
		return
	}
	s.clearRejection(kindAddresses, pair.Key())
	s.placed[pair.Prefix] = true
}

func (s *session) displace(p netip.Prefix) {
	if s.placed[p] {
		delete(s.placed, p)
		s.m.p.Sinks.Addresses.Delete(p, ipcache.ClusterMesh, s.name)
	}
}

// offer hands a service on, if it is accepted.
func (s *session) offer(sv service.Shared) {
	key := sv.Name.String()
	ok, err := s.peer.service(sv, s.mine)
	if err != nil {
		s.reject(kindServices, key, err)
		s.withdraw(sv.Name)
		return
	}
	s.clearRejection(kindServices, key)
	if own := len(sv.Backends) - len(ok.Backends); own > 0 {
		s.reject(kindServices, key, fmt.Errorf("%d backends of service %s are addresses of this cluster", own, sv.Name))
	}
	s.offered[sv.Name] = true
	s.m.p.Sinks.Services.SetShared(ok)
}

func (s *session) withdraw(n service.Name) {
	if s.offered[n] {
		delete(s.offered, n)
		s.m.p.Sinks.Services.DeleteShared(s.name, n)
	}
}

// revalidate applies the rules again to what depends on those nodes of the cluster, or addresses of
// this one, that have changed.
func (s *session) revalidate(ctx context.Context) {
	mine := s.m.mineNow()
	moved := !mine.equal(s.mine)
	s.mine = mine
	hosts := map[netip.Addr]bool{} // whose addresses are evaluated again
	touch := func(n node.Node) {
		for _, ip := range n.NodeIPs() {
			hosts[ip] = true
		}
	}
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		old, had := s.accepted[name]
		n, err := s.peer.node(s.nodes[name], mine)
		if err != nil {
			s.reject(kindNodes, name, err)
			if s.dismiss(ctx, name) {
				touch(old)
			}
			continue
		}
		s.clearRejection(kindNodes, name)
		if had && old.Equal(n) {
			continue
		}
		if err := s.m.p.Sinks.Nodes.Observe(ctx, n); err != nil {
			if ctx.Err() == nil {
				s.reject(kindNodes, name, err)
			}
			continue
		}
		s.accepted[name] = n
		if !had || !slices.Equal(old.NodeIPs(), n.NodeIPs()) || !slices.Equal(old.PodCIDRs(), n.PodCIDRs()) {
			touch(old)
			touch(n)
		}
	}
	for name, old := range maps.Clone(s.accepted) {
		if _, still := s.nodes[name]; !still && s.dismiss(ctx, name) {
			touch(old)
		}
	}
	if len(hosts) > 0 {
		clear(s.hosts)
		for _, name := range slices.Sorted(maps.Keys(s.accepted)) {
			for _, ip := range s.accepted[name].NodeIPs() {
				s.hosts[ip] = append(s.hosts[ip], name)
			}
		}
	}
	if !moved && len(hosts) == 0 {
		return
	}
	for _, pair := range s.pairs {
		if moved || hosts[pair.Host] {
			s.place(pair.Pair)
		}
	}
	if moved {
		for _, sv := range s.services {
			s.offer(sv)
		}
	}
}

// dismiss forgets a node that was accepted, and reports whether it was.
func (s *session) dismiss(ctx context.Context, name string) bool {
	if _, had := s.accepted[name]; !had {
		return false
	}
	if err := s.m.p.Sinks.Nodes.Forget(ctx, node.Key{Cluster: s.name, Name: name}); err != nil {
		return false // the agent ends
	}
	delete(s.accepted, name)
	return true
}
