package clustermesh

import (
	"context"
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

// note records an event of a kind, and reports whether it is of a key, whose last part it returns.
func (s *session) note(kind string, e kvstore.Event, ok bool) (key string, of bool) {
	if !ok {
		s.events[kind] = nil // the connection ends
		return "", false
	}
	h := s.progress[kind]
	if e.Kind == kvstore.EventListDone {
		if h.fresh != nil {
			s.sweep(kind, h.fresh)
		}
		h.listed, h.fresh = true, nil
		s.updated = time.Time{}
		return "", false
	}
	key = strings.TrimPrefix(e.Key, s.layout().prefix(kind))
	if h.fresh != nil && e.Kind != kvstore.EventDelete {
		h.fresh[key] = true
	}
	return key, true
}

// sweep forgets what an earlier connection delivered and this one did not.
func (s *session) sweep(kind string, fresh map[string]bool) {
	maps.DeleteFunc(s.refused, func(of string, _ bool) bool { // not all of that is in a table
		key, ok := strings.CutPrefix(of, kind+"/")
		return ok && !fresh[key]
	})
	var gone []string
	add := func(key string) {
		if !fresh[key] {
			gone = append(gone, key)
		}
	}
	switch kind {
	case kindIdentities:
		for id := range s.identities {
			add(fmt.Sprint(uint32(id)))
		}
		s.identify(nil, gone)
		return
	case kindNodes:
		for name := range s.nodes {
			add(name)
		}
	case kindAddresses:
		for p := range s.pairs {
			add(ipcache.Pair{Prefix: p}.Key())
		}
	case kindServices:
		for n := range s.services {
			add(n.String())
		}
	}
	for _, key := range gone {
		s.forget(kind, key)
	}
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
			s.reject(kindIdentities, text, err)
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

// takeCanary handles an event of the keys that show what is complete.
func (s *session) takeCanary(e kvstore.Event, ok bool) {
	if !ok {
		s.events[kindCanaries] = nil
		return
	}
	for kind, h := range s.progress {
		if e.Key == s.layout().canary(kind) && e.Kind != kvstore.EventDelete {
			h.canary = true
			s.updated = time.Time{}
		}
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
	s.reject(kind, key, err)
}

func (s *session) takeNode(name string, value []byte) error {
	n, err := node.Parse(s.name+"/"+name, value, s.m.p.MaxClusters)
	if err != nil {
		return err
	}
	if _, known := s.nodes[name]; !known && len(s.nodes) >= maxNodes {
		return fmt.Errorf("the cluster has more than %d nodes", maxNodes)
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
	if _, known := s.pairs[pair.Prefix]; !known && len(s.pairs) >= maxAddresses {
		return fmt.Errorf("the cluster has more than %d addresses", maxAddresses)
	}
	pair.Metadata = "" // not used here
	s.pairs[pair.Prefix] = pair
	s.place(pair)
	return nil
}

func (s *session) takeService(key string, value []byte) error {
	sv, err := service.ParseShared(s.name+"/"+key, value)
	if err != nil {
		return err
	}
	if _, known := s.services[sv.Name]; !known && len(s.services) >= maxServices {
		return fmt.Errorf("the cluster has more than %d services", maxServices)
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
	switch kind {
	case kindNodes:
		s.space[kind].release(key)
		if _, known := s.nodes[key]; known {
			delete(s.nodes, key)
			s.later()
		}
	case kindAddresses:
		p, err := ipcache.ParseKey(key)
		if err != nil {
			return
		}
		delete(s.pairs, p)
		s.displace(p)
	case kindServices:
		s.space[kind].release(key)
		namespace, name, _ := strings.Cut(key, "/")
		n := service.Name{Namespace: namespace, Name: name}
		delete(s.services, n)
		s.withdraw(n)
	}
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

// revalidate applies the rules again to everything that depends on the nodes of the cluster and on
// the addresses of this one.
func (s *session) revalidate(ctx context.Context) {
	mine := s.m.mineNow()
	moved := !mine.equal(s.mine)
	s.mine = mine
	for _, name := range slices.Sorted(maps.Keys(s.nodes)) {
		n, err := s.peer.node(s.nodes[name], mine)
		if err != nil {
			s.reject(kindNodes, name, err)
			moved = s.dismiss(ctx, name) || moved
			continue
		}
		s.clearRejection(kindNodes, name)
		if old, had := s.accepted[name]; had && old.Equal(n) {
			continue
		}
		if err := s.m.p.Sinks.Nodes.Observe(ctx, n); err != nil {
			if ctx.Err() == nil {
				s.reject(kindNodes, name, err)
			}
			continue
		}
		s.accepted[name], moved = n, true
	}
	for name := range maps.Clone(s.accepted) {
		if _, still := s.nodes[name]; !still {
			moved = s.dismiss(ctx, name) || moved
		}
	}
	if !moved {
		return
	}
	clear(s.hosts)
	for _, name := range slices.Sorted(maps.Keys(s.accepted)) {
		for _, ip := range s.accepted[name].NodeIPs() {
			s.hosts[ip] = append(s.hosts[ip], name)
		}
	}
	for _, pair := range s.pairs {
		s.place(pair)
	}
	for _, sv := range s.services {
		s.offer(sv)
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
