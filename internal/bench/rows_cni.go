package bench

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os/exec"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const barePair = "a bare veth pair made in the pod's namespace and configured, by netlink in-process"

// bare makes and configures a pair of interfaces as little as a pod can do with: addresses and a
// default route of both families on its side, the other side up.
func bare(node *namespace, pod *pod, name string, i int) (time.Duration, error) {
	start := time.Now()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	err := node.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(pod.ns.file.Fd()))})
	if err != nil {
		return 0, err
	}
	inner, err := pod.ns.h.LinkByName("eth0")
	if err != nil {
		return 0, err
	}
	outer, err := node.h.LinkByName(name)
	if err != nil {
		return 0, err
	}
	index := inner.Attrs().Index
	v4 := &net.IPNet{IP: net.IPv4(10, 200, byte(i>>8), byte(i)), Mask: net.CIDRMask(32, 32)}
	v6 := &net.IPNet{IP: net.ParseIP(fmt.Sprintf("fd02::%x", i+1)), Mask: net.CIDRMask(128, 128)}
	err = errors.Join(
		pod.ns.h.LinkSetUp(inner), node.h.LinkSetUp(outer),
		pod.ns.h.AddrAdd(inner, &netlink.Addr{IPNet: v4}),
		pod.ns.h.AddrAdd(inner, &netlink.Addr{IPNet: v6, Flags: unix.IFA_F_NODAD}),
		pod.ns.h.RouteAdd(&netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}, Scope: netlink.SCOPE_LINK}),
		pod.ns.h.RouteAdd(&netlink.Route{LinkIndex: index, Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}}))
	return time.Since(start), err
}

// unbare removes a bare pair.
func unbare(node *namespace, name string) (time.Duration, error) {
	link, err := node.h.LinkByName(name)
	if err != nil {
		return 0, err
	}
	start := time.Now()
	err = node.h.LinkDel(link)
	return time.Since(start), err
}

func (b *bencher) addSequential(ctx context.Context, r *testbed) (err error) {
	if err := r.startAgents(ctx); err != nil {
		return err
	}
	n := r.nodes[0]
	// Two pods that stay, so that the identity of the others is known.
	for _, name := range []string{"first", "second"} {
		if _, err := n.addPod(name, "web"); err != nil {
			return err
		}
	}
	var add, addNew, del, alone, nothing, up, down []time.Duration
	var ratioAdd, ratioDel pairs
	turns := pick(b, 200, 30)
	for i := range turns {
		if err := ctx.Err(); err != nil {
			return err
		}
		// The bare pair lives in a namespace that is not a pod's: the plugin wants eth0 for itself.
		spare, err := n.newPod(fmt.Sprintf("bare%d", i), "web")
		if err != nil {
			return err
		}
		name := fmt.Sprintf("bare%d", i)
		tUp, err := bare(n.ns, spare, name, i)
		if err != nil {
			return fmt.Errorf("bare pair: %w", err)
		}
		p, err := n.newPod(fmt.Sprintf("p%d", i), "web")
		if err != nil {
			return err
		}
		tAdd, err := p.plugin("ADD")
		if err != nil {
			return err
		}
		tExec, err := p.plugin("VERSION")
		if err != nil {
			return err
		}
		start := time.Now()
		if err := exec.Command("true").Run(); err != nil {
			return err
		}
		nothing = append(nothing, time.Since(start))
		tDel, err := p.plugin("DEL")
		if err != nil {
			return err
		}
		tDown, err := unbare(n.ns, name)
		if err != nil {
			return err
		}
		if i%4 == 0 {
			fresh, err := n.newPod(fmt.Sprintf("new%d", i), fmt.Sprintf("app-%d", i))
			if err != nil {
				return err
			}
			t, err := fresh.plugin("ADD")
			if err != nil {
				return err
			}
			addNew = append(addNew, t)
		}
		add, alone, del, up, down = append(add, tAdd), append(alone, tExec), append(del, tDel), append(up, tUp), append(down, tDown)
		ratioAdd.add(ms(tAdd), ms(tUp))
		ratioDel.add(ms(tDel), ms(tDown))
	}
	b.add(ratioAdd.fill(Figure{Row: "add", Name: "ADD p50, identity known", Unit: "ms", BaselineName: barePair, First: 25, Far: 5}))
	b.add(Figure{Row: "add", Name: "ADD p99, identity known", Unit: "ms", Value: ms(p99(add)), Baseline: ms(p99(up)),
		BaselineName: barePair, First: 60, Far: 15, Samples: turns})
	b.add(Figure{Row: "add", Name: "ADD p50, new identity", Unit: "ms", Value: ms(median(addNew)), Baseline: ms(median(up)),
		BaselineName: barePair, Samples: len(addNew)})
	b.add(Figure{Row: "add", Name: "plugin alone (VERSION) p50", Unit: "ms", Value: ms(median(alone)), Baseline: ms(median(nothing)),
		BaselineName: "for the plugin alone: true(1) executed", Samples: turns})
	b.add(ratioDel.fill(Figure{Row: "add", Name: "DEL p50", Unit: "ms", BaselineName: "for DEL: the removal of the bare pair", First: 25, Far: 5}))
	b.add(Figure{Row: "add", Name: "DEL p99", Unit: "ms", Value: ms(p99(del)), Baseline: ms(p99(down)),
		BaselineName: "for DEL: the removal of the bare pair", Samples: turns})
	return nil
}

// crowd runs fn for each of n pods at once and returns the time until the last is done.
func crowd(n int, fn func(i int) error) (time.Duration, []error) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() { errs[i] = fn(i) })
	}
	wg.Wait()
	took := time.Since(start)
	var out []error
	for _, err := range errs {
		if err != nil {
			out = append(out, err)
		}
	}
	return took, out
}

func (b *bencher) addBurst(ctx context.Context, r *testbed) (err error) {
	if err := r.startAgents(ctx); err != nil {
		return err
	}
	n := r.nodes[0]
	if _, err := n.addPod("first", "web"); err != nil {
		return err
	}
	burst := func(size int, tag string) (pods []*pod, add, bareTook time.Duration, errs []error, err error) {
		var spares []*pod
		for i := range size {
			p, err := n.newPod(fmt.Sprintf("%s-%d", tag, i), "web")
			if err != nil {
				return nil, 0, 0, nil, err
			}
			s, err := n.newPod(fmt.Sprintf("%s-bare-%d", tag, i), "web")
			if err != nil {
				return nil, 0, 0, nil, err
			}
			pods, spares = append(pods, p), append(spares, s)
		}
		name := func(i int) string { return fmt.Sprintf("b%s%d", tag, i) }
		bareTook, errs = crowd(size, func(i int) error { _, err := bare(n.ns, spares[i], name(i), i); return err })
		if err := errors.Join(errs...); err != nil {
			return nil, 0, 0, nil, fmt.Errorf("bare pairs: %w", err)
		}
		for i := range size {
			if _, err := unbare(n.ns, name(i)); err != nil {
				return nil, 0, 0, nil, err
			}
		}
		add, errs = crowd(size, func(i int) error { _, err := pods[i].plugin("ADD"); return err })
		return pods, add, bareTook, errs, nil
	}
	const size = 100
	pods, add, base, failed, err := burst(size, "w")
	if err != nil {
		return err
	}
	f := Figure{Row: "burst", Name: fmt.Sprintf("%d ADDs at once", size), Unit: "ADD/s", Value: size / add.Seconds(), Baseline: size / base.Seconds(),
		BaselineName: barePair + ", as many at once", First: 30, Far: 150, Higher: true, Samples: size}
	b.add(f)
	b.add(Figure{Row: "burst", Name: "ADDs that failed", Value: float64(len(failed)), Samples: size})
	if len(failed) > 0 {
		return fmt.Errorf("%d of %d ADDs failed, the first: %w", len(failed), size, failed[0])
	}
	remove := func(pods []*pod) (time.Duration, error) {
		took, errs := crowd(len(pods), func(i int) error { _, err := pods[i].plugin("DEL"); return err })
		return took, errors.Join(errs...)
	}
	twenty, err := remove(pods[:20])
	if err != nil {
		return err
	}
	// The baseline: as many bare pairs, removed one after the other, as single calls do.
	var bareDel time.Duration
	for i := range 20 {
		s, err := n.newPod(fmt.Sprintf("d-bare-%d", i), "web")
		if err != nil {
			return err
		}
		if _, err := bare(n.ns, s, fmt.Sprintf("d%d", i), i); err != nil {
			return err
		}
	}
	for i := range 20 {
		t, err := unbare(n.ns, fmt.Sprintf("d%d", i))
		if err != nil {
			return err
		}
		bareDel += t
	}
	b.add(Figure{Row: "burst", Name: "20 DELs at once", Unit: "ms", Value: ms(twenty), Baseline: ms(bareDel),
		BaselineName: "20 bare pairs removed one by one", First: 200, Far: 50, Samples: 20})
	if _, err := remove(pods[20:]); err != nil {
		return err
	}
	if b.cfg.Quick {
		return nil
	}

	// A crowd that finds the agent just killed: the plugins wait for the new one.
	const cold = 250
	var coldPods []*pod
	for i := range cold {
		p, err := n.newPod(fmt.Sprintf("cold-%d", i), "web")
		if err != nil {
			return err
		}
		coldPods = append(coldPods, p)
	}
	n.agent.Kill()
	if err := n.start(); err != nil {
		return err
	}
	took, errs := crowd(cold, func(i int) error { _, err := coldPods[i].plugin("ADD"); return err })
	b.add(Figure{Row: "burst", Name: fmt.Sprintf("%d ADDs with the agent just killed, until the last", cold), Unit: "s", Value: took.Seconds(),
		First: cold / 30., Far: 2, Samples: cold})
	if len(errs) > 0 {
		return fmt.Errorf("%d of %d ADDs after a restart failed, the first: %w", len(errs), cold, errs[0])
	}
	_, err = remove(coldPods)
	return err
}
