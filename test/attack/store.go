package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/storekeys"
)

// works is what becomes of others whom a claim must not harm.
const works = "works"

// storeRows are what a hostile node writes to the store of the cluster in place of its agent.
func storeRows() []row {
	var rows []row
	add := func(r row) {
		r.who, r.once, r.when = asNode, true, mode.plain
		rows = append(rows, r)
	}
	add(row{what: "claim n1's pod in the store, with a friend's identity", wanted: dropped, try: func(s *scene) (string, error) {
		evil, victim := s.pods["evil1"], s.pods["victim1"]
		return s.claimPod(evil, s.pods["friend1"].identity, func(f *scene) (string, error) {
			return f.strike(victim.eth, f.plain(evil, victim).shot, f.plain(evil, s.pods["open1"]), f.friendly(victim))
		}, dropped)
	}})
	add(row{what: "claim n1's pod in the store, with an identity that no policy admits", wanted: works, try: func(s *scene) (string, error) {
		return s.claimPod(s.pods["friend1"], s.pods["evil1"].identity, func(f *scene) (string, error) {
			return f.unharmed(f.friendly(s.pods["victim1"]))
		}, works)
	}})
	others := func(f *scene) []control {
		return []control{f.friendly(f.pods["victim1"]), f.friendly(f.pods["victim2"]), f.plain(f.pods["friend2"], f.pods["victim1"]),
			f.plain(f.pods["friend1"], f.pods["victim2"]), f.honest(f.external, f.pods["open1"])}
	}
	for _, c := range []struct {
		name  string
		claim func(mine, theirs map[string]any)
	}{
		{"n1's addresses", func(mine, theirs map[string]any) { mine["IPAddresses"] = theirs["IPAddresses"] }},
		{"n1's pod network", func(mine, theirs map[string]any) {
			mine["IPv4AllocCIDR"], mine["IPv6AllocCIDR"] = theirs["IPv4AllocCIDR"], theirs["IPv6AllocCIDR"]
		}},
		{"an address behind no link", func(mine, _ map[string]any) {
			mine["IPAddresses"] = []any{map[string]any{"Type": "InternalIP", "IP": "192.0.2.9"}, map[string]any{"Type": "InternalIP", "IP": "2001:db8::9"}}
		}},
	} {
		add(row{what: "claim " + c.name + " in the store", wanted: works, try: func(s *scene) (string, error) {
			return s.claimNode(c.claim, func(f *scene) (string, error) { return f.unharmed(others(f)...) })
		}})
	}
	return rows
}

// unharmed says whether what must work does.
func (s *scene) unharmed(controls ...control) (string, error) {
	for _, c := range controls {
		if err := s.check(c); errors.Is(err, errControl) {
			return lost + ": " + c.what, nil
		} else if err != nil {
			return "", err
		}
	}
	return works, nil
}

// swap has a key of the store say something else until it is put back. It keeps its lease.
func (s *scene) swap(store *clientv3.Client, key string, change func([]byte) ([]byte, error)) (back func() error, err error) {
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	got, err := store.Get(ctx, key)
	if err != nil {
		return nil, err
	}
	if len(got.Kvs) != 1 {
		return nil, fmt.Errorf("%w: the store has no key %s", errControl, key)
	}
	old := got.Kvs[0]
	put := func(value []byte) error {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(s.ctx), timeout)
		defer cancel()
		_, err := store.Put(ctx, key, string(value), clientv3.WithLease(clientv3.LeaseID(old.Lease)))
		return err
	}
	value, err := change(old.Value)
	if err != nil {
		return nil, err
	}
	return func() error { return put(old.Value) }, put(value)
}

// hostile opens the store as n3 might, whose agent stands still until close.
func (s *scene) hostile() (store *clientv3.Client, closeAll func() error, err error) {
	agent, err := s.agent("n3")
	if err != nil {
		return nil, nil, err
	}
	if store, err = clientv3.New(clientv3.Config{Endpoints: []string{s.sandbox.EtcdEndpoint()}, DialTimeout: timeout, Context: s.ctx}); err != nil {
		return nil, nil, err
	}
	closeAll = func() error { return errors.Join(agent.Send(unix.SIGCONT), store.Close()) }
	if err := agent.Send(unix.SIGSTOP); err != nil {
		return nil, nil, errors.Join(err, closeAll())
	}
	return store, closeAll, nil
}

// during is for how long a claim stands: nothing shows when another agent has observed it and has
// not believed it.
const during = time.Second

// stands plays something again and again while a claim stands.
func (s *scene) stands(wanted string, play func(*scene) (string, error)) (string, error) {
	for until := time.Now().Add(during); ; {
		if got, err := s.bothFamilies(wanted, play); err != nil || got != wanted {
			return got, err
		}
		if time.Now().After(until) {
			return wanted, nil
		}
	}
}

// claimPod has the store say that a pod of n1 is n3's, and has another identity.
func (s *scene) claimPod(p *pod, identity uint32, play func(*scene) (string, error), wanted string) (got string, err error) {
	store, closeAll, err := s.hostile()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	for _, a := range []netip.Addr{p.addr[0], p.addr[1]} {
		back, err := s.swap(store, storekeys.IPsPrefix+"/default/"+a.String(), func(old []byte) ([]byte, error) {
			return edit(old, func(v map[string]any) { v["ID"], v["HostIP"] = identity, s.nodes["n3"].addr[0].String() })
		})
		if err != nil {
			return "", err
		}
		defer func() { err = errors.Join(err, back()) }()
	}
	return s.stands(wanted, play)
}

// claimNode has the store announce for n3 what belongs to n1, or to no node.
func (s *scene) claimNode(claim func(mine, theirs map[string]any), play func(*scene) (string, error)) (got string, err error) {
	store, closeAll, err := s.hostile()
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, closeAll()) }()
	ctx, cancel := context.WithTimeout(s.ctx, timeout)
	defer cancel()
	const key = storekeys.NodesPrefix + "/default/"
	n1, err := store.Get(ctx, key+"n1")
	if err != nil || len(n1.Kvs) != 1 {
		return "", errors.Join(fmt.Errorf("%w: the store does not know n1", errControl), err)
	}
	var theirs map[string]any
	if err := json.Unmarshal(n1.Kvs[0].Value, &theirs); err != nil {
		return "", err
	}
	back, err := s.swap(store, key+"n3", func(old []byte) ([]byte, error) {
		return edit(old, func(mine map[string]any) { claim(mine, theirs) })
	})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, back()) }()
	return s.stands(works, play)
}

// edit changes a JSON object.
func edit(old []byte, change func(map[string]any)) ([]byte, error) {
	var v map[string]any
	if err := json.Unmarshal(old, &v); err != nil {
		return nil, err
	}
	change(v)
	return json.Marshal(v)
}
