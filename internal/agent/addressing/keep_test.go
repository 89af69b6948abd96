package addressing

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/ipam"
)

// TestInterfaceInUseStays: whatever becomes of a CiliumNode, the interface of an address that a pod
// has stays set up until the pod is gone, also over a restart of the agent. New addresses of it are
// given to no pod meanwhile.
func TestInterfaceInUseStays(t *testing.T) {
	t.Parallel()
	const pod = "ns/p"
	ip := netip.MustParseAddr("10.0.1.10")
	given := map[int][]string{1: {"10.0.1.10", "10.0.1.11"}}
	for name, change := range map[string]func() *v2.CiliumNode{
		"a status without it": func() *v2.CiliumNode {
			o := eniNode(2, given)
			delete(o.Status.ENI.ENIs, "eni-1")
			return o
		},
		"a status that is invalid": func() *v2.CiliumNode {
			o := eniNode(2, given)
			o.Status.ENI.ENIs["eni-1"] = v2.ENI{ID: "eni-1"}
			return o
		},
		"a new object": func() *v2.CiliumNode {
			o := eniNode(1, nil)
			o.UID = "u2"
			return o
		},
		"another with its number": func() *v2.CiliumNode {
			o := eniNode(2, given)
			e := o.Status.ENI.ENIs["eni-1"]
			e.ID, e.MAC = "eni-0a", macOf(7)
			o.Status.ENI.ENIs["eni-0a"] = e
			o.Spec.IPAM.Pool["10.0.1.12"] = v2.AllocationIP{Resource: "eni-0a"}
			return o
		},
		"another with its hardware address": func() *v2.CiliumNode {
			o := eniNode(2, given)
			e := o.Status.ENI.ENIs["eni-1"]
			e.ID, e.Number = "eni-0a", 0
			o.Status.ENI.ENIs["eni-0a"] = e
			o.Spec.IPAM.Pool["10.0.1.12"] = v2.AllocationIP{Resource: "eni-0a"}
			return o
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				dir := t.TempDir()
				s, pool := eniSingles(t, dir)
				s.Observe(eniNode(1, map[int][]string{1: {"10.0.1.10"}}))
				k := &kernel{plugged: map[string]bool{macOf(1): true, macOf(7): true}}
				s.Connect(Uplinks{Network: k})
				pool.Open()
				runSingles(t, s)
				if r, err := pool.AllocateNext(ipam.IPv4, pod, "", false); err != nil || r.IPv4.IP != ip {
					t.Fatal(r, err)
				}
				o := change()
				s.Observe(o)
				synctest.Wait()
				if i, ok := s.InterfaceOf(ip); !k.leads(ip) || !ok || i.MAC != macOf(1) || i.Number != 1 {
					t.Errorf("a pod's packets are not led any more: %+v, %v", i, ok)
				}
				if _, ok := o.Status.ENI.ENIs["eni-0a"]; ok {
					if _, err := pool.AllocateNext(ipam.IPv4, pod, "", false); err != nil {
						t.Errorf("the one known before gives nothing: %v", err)
					}
				}
				if r, err := pool.AllocateNext(ipam.IPv4, pod, "", false); err == nil {
					t.Errorf("%s is given", r.IPv4.IP)
				}

				// The agent is started again.
				next, nextSingles := eniSingles(t, dir)
				next.before = []netip.Addr{ip}
				nextSingles.AssignAddresses(next.want())
				if err := nextSingles.Restore(ip, pod); err != nil {
					t.Fatal(err)
				}
				k2 := &kernel{plugged: k.plugged}
				next.Connect(Uplinks{Network: k2})
				if !k2.leads(ip) {
					t.Error("a pod's packets are not led after a restart")
				}
				next.Observe(o)
				runSingles(t, next)
				synctest.Wait()
				if !k2.leads(ip) {
					t.Error("a pod's packets are not led after a restart, with the object")
				}

				// The pod goes, and the interface with it.
				nextSingles.FreeOf(ip, pod)
				time.Sleep(time.Second)
				synctest.Wait()
				if _, shown := o.Spec.IPAM.Pool[ip.String()]; !shown && k2.given(ip) {
					t.Error("the kernel side still has a freed address")
				}
				if i, ok := next.InterfaceOf(ip); ok && o.Status.ENI.ENIs["eni-1"].MAC == "" {
					t.Errorf("an unused interface is kept: %+v", i)
				}
			})
		})
	}
}

// TestTakenAwayOverRestart: an address that was taken away while a pod has it keeps its interface
// when the agent is started again.
func TestTakenAwayOverRestart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		ip := netip.MustParseAddr("10.0.1.10")
		s, pool := eniSingles(t, dir)
		s.Observe(eniNode(1, map[int][]string{1: {"10.0.1.10"}}))
		k := &kernel{plugged: map[string]bool{macOf(1): true}}
		s.Connect(Uplinks{Network: k})
		pool.Open()
		if _, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false); err != nil {
			t.Fatal(err)
		}
		s.Observe(eniNode(2, map[int][]string{1: {"10.0.1.11"}}))
		next, nextSingles := eniSingles(t, dir)
		next.before = []netip.Addr{ip}
		nextSingles.AssignAddresses(next.want())
		if err := nextSingles.Restore(ip, "ns/p"); err != nil {
			t.Fatal(err)
		}
		k2 := &kernel{plugged: k.plugged}
		next.Connect(Uplinks{Network: k2})
		if _, ok := next.InterfaceOf(ip); !ok || !k2.given(ip) {
			t.Error("it lost its interface")
		}
	})
}

// TestRouterTakenAwayOverRestart: a router's address that was taken out of the pool stays the
// router's when the agent is started again while there are pods, for they have it as their gateway.
// It goes with the last of them.
func TestRouterTakenAwayOverRestart(t *testing.T) {
	t.Parallel()
	const router = "10.0.0.10"
	for name, c := range map[string]struct {
		left   []string // in the pool, of interface 1
		others int      // pods of the second agent, beside the first one
		pods   bool     // whether there are pods when the agent starts again
	}{
		"others are free":   {[]string{"10.0.1.10", "10.0.1.11", "10.0.1.12"}, 0, true},
		"none other's free": {[]string{"10.0.1.10", "10.0.1.11"}, 1, true},
		"there is no pod":   {[]string{"10.0.1.10", "10.0.1.11"}, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			s, pool := eniSingles(t, dir)
			s.Observe(eniNode(1, map[int][]string{0: {router}, 1: {"10.0.1.10"}}))
			r, err := pool.AllocateRouter()
			if err != nil || r.IPv4.IP.String() != router {
				t.Fatal(r.IPv4, err)
			}
			s.Connect(Uplinks{Network: &kernel{plugged: map[string]bool{macOf(0): true, macOf(1): true}}})
			pool.Open()
			// The interface that the router's address is of is no more for pods.
			s.Observe(eniNode(2, map[int][]string{0: nil, 1: c.left}))
			s.connect()
			store, err := endpoint.NewStore(dir)
			if err != nil {
				t.Fatal(err)
			}
			var pods []netip.Addr
			for range 1 + c.others {
				r, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false)
				if err != nil {
					t.Fatal(err)
				}
				pods = append(pods, r.IPv4.IP)
				e := endpoint.Endpoint{ID: uint16(len(pods)), Attachment: endpoint.Attachment{IfIndex: 7, IfName: "lxc1", IPv4: r.IPv4.IP}}
				if err := store.Put(e); c.pods && err != nil {
					t.Fatal(err)
				}
			}
			if !c.pods {
				pods = nil
				for n := range 1 + c.others {
					if err := store.Delete(uint16(n + 1)); err != nil {
						t.Fatal(err)
					}
				}
			}

			again, err := newSingles(s.cfg)
			if err != nil {
				t.Fatal(err)
			}
			again.askAs = func(ctx context.Context, observed func(*v2.CiliumNode)) error {
				observed(eniNode(2, map[int][]string{0: nil, 1: c.left}))
				<-ctx.Done()
				return ctx.Err()
			}
			if err := again.await(t.Context(), len(pods) > 0); err != nil {
				t.Fatal(err)
			}
			next, err := ipam.New(ipam.Config{Assigned: ipam.IPv4})
			if err == nil {
				err = again.Attach(next)
			}
			if err != nil {
				t.Fatal(err)
			}
			for _, ip := range pods {
				if err := next.Restore(ip, "ns/p"); err != nil {
					t.Fatal(err)
				}
			}
			r, err = next.AllocateRouter(netip.MustParseAddr(router))
			if err != nil || (r.IPv4.IP.String() == router) != c.pods {
				t.Fatalf("the router of the next agent: %+v, %v", r.IPv4, err)
			}
			k := &kernel{plugged: map[string]bool{macOf(0): true, macOf(1): true}}
			again.Connect(Uplinks{Network: k})
			next.Open()
			if k.leads(netip.MustParseAddr(router)) != c.pods {
				t.Errorf("packets of the former router's address pass: %t, want %t", !c.pods, c.pods)
			}
			for {
				r, err := next.AllocateNext(ipam.IPv4, "ns/q", "", false)
				if err != nil {
					break
				}
				if r.IPv4.IP.String() == router {
					t.Error("a pod gets an address that was taken away")
				}
			}
		})
	}
}

// once is a kernel whose answers a test spoils.
type once struct {
	kernel
	spoilMu sync.Mutex
	spoil   func([]datapath.InterfaceState) error // for one Set
}

func (k *once) Set(want []datapath.Interface) ([]datapath.InterfaceState, error) {
	states, err := k.kernel.Set(want)
	k.spoilMu.Lock()
	defer k.spoilMu.Unlock()
	if k.spoil != nil {
		err = k.spoil(states)
		k.spoil = nil
	}
	return states, err
}

// TestUplinksTryAgain: of what failed nothing is given, also if the error is no one interface's,
// until whoever tries it again reports another outcome. Nothing else tries it again.
func TestUplinksTryAgain(t *testing.T) {
	t.Parallel()
	broken := errors.New("the list of rules was interrupted")
	for name, c := range map[string]struct {
		spoil func([]datapath.InterfaceState) error
		given int // before it is tried again
	}{
		"of an interface": {func(st []datapath.InterfaceState) error {
			st[0].Err = fmt.Errorf("raise: %w", broken)
			return errors.Join(nil, st[0].Err)
		}, 1},
		"of none": {func([]datapath.InterfaceState) error { return errors.Join(broken) }, 0},
		"of none and an interface": {func(st []datapath.InterfaceState) error {
			st[0].Err = errors.New("x")
			return errors.Join(st[0].Err, broken)
		}, 0},
		"of an interface, no error": {func(st []datapath.InterfaceState) error { st[1].Err = broken; return nil }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s, pool := eniSingles(t, t.TempDir())
				s.Observe(eniNode(1, map[int][]string{0: {"10.0.0.10"}, 1: {"10.0.1.10"}}))
				k := &once{kernel: kernel{plugged: map[string]bool{macOf(0): true, macOf(1): true}}, spoil: c.spoil}
				s.Connect(Uplinks{Network: k})
				pool.Open()
				runSingles(t, s)
				give := func() (list []netip.Addr) {
					for {
						r, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false)
						if err != nil {
							return list
						}
						list = append(list, r.IPv4.IP)
					}
				}
				synctest.Wait()
				first := give()
				if len(first) != c.given {
					t.Errorf("given after a failure: %v, want %d", first, c.given)
				}
				time.Sleep(time.Minute)
				synctest.Wait()
				if more := give(); len(more) != 0 {
					t.Errorf("given before it was set up: %v", more)
				}
				s.InterfacesChanged(nil, nil)
				synctest.Wait()
				if all := slices.Concat(first, give()); len(all) != 2 {
					t.Errorf("given in the end: %v", all)
				}
				k.mu.Lock()
				defer k.mu.Unlock()
				if k.sets != 2 {
					t.Errorf("set %d times, want 2", k.sets)
				}
			})
		})
	}
}
