package kube

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// Two clusters that are connected have a cable between their worlds, which lead to the other one's
// underlay through it. The underlay knows nothing of pods and identities.

// cable is the name of a world's end of the cable to the cluster with this number.
func (p plan) cable() string { return fmt.Sprintf("mesh%d", int(p)) }

// gateway is the IPv6 address that a world has on its cables: neighbours there must answer for an
// address of the very link.
func (p plan) gateway() netip.Addr { return netip.MustParseAddr(fmt.Sprintf("fe80::%d", int(p))) }

// Link connects the underlays of two running clusters, again if they are connected.
func (c *Cluster) Link(other *Cluster) error {
	return c.withBoth(other, func() error {
		a, err := c.linkable()
		if err != nil {
			return err
		}
		b, err := other.linkable()
		if err != nil {
			return err
		}
		if a.ID == b.ID {
			return fmt.Errorf("clusters %q and %q both have the number %d: one of the two needs another --cluster-id", a.Name, b.Name, a.ID)
		}
		if err := unlink(c.netns(worldName), b.plan().cable()); err != nil {
			return err
		}
		if err := c.plug(a, other, b); err != nil {
			return errors.Join(err, unlink(c.netns(worldName), b.plan().cable()))
		}
		return nil
	})
}

// Unlink removes what connects the underlays of two clusters, as far as they are there.
func (c *Cluster) Unlink(other *Cluster) error {
	return c.withBoth(other, func() error {
		// Either end takes the other one with it.
		for _, side := range []struct{ here, there *Cluster }{{c, other}, {other, c}} {
			_, err := side.here.load()
			there, thereErr := side.there.load()
			if err != nil || thereErr != nil {
				continue // a world that is gone took its cables with it
			}
			if err := unlink(side.here.netns(worldName), there.plan().cable()); err != nil {
				return err
			}
		}
		return nil
	})
}

// withBoth runs fn while no other command changes one of the two. The order of locks is that of
// names, so that two commands can't wait for each other.
func (c *Cluster) withBoth(other *Cluster, fn func() error) error {
	both := []*Cluster{c, other}
	slices.SortFunc(both, func(a, b *Cluster) int { return cmp.Compare(a.cfg.Name, b.cfg.Name) })
	return both[0].withLock(func() error { return both[1].withLock(fn) })
}

// linkable returns the state of a cluster that can be connected.
func (c *Cluster) linkable() (*state, error) {
	st, err := c.load()
	if err != nil {
		return nil, err
	}
	switch {
	case !st.Complete:
		return nil, fmt.Errorf("cluster %q is not up: run `hawser sandbox up --kubernetes --name %s`", st.Name, st.Name)
	case st.ID == 0:
		return nil, fmt.Errorf("cluster %q has no number, so its addresses may be those of others: restart it with --cluster-id", st.Name)
	case !st.meshed():
		return nil, fmt.Errorf("cluster %q has no store for others: only clusters with nodes, and with --cni hawser or none, can be connected", st.Name)
	}
	return st, nil
}

// plug lays the cable and makes the two worlds route through it.
func (c *Cluster) plug(a *state, other *Cluster, b *state) error {
	f, err := os.Open(other.netns(worldName))
	if err != nil {
		return err
	}
	defer f.Close()
	err = machine.WithNetlink(c.netns(worldName), func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = b.plan().cable()
		if err := h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: a.plan().cable(), PeerNamespace: netlink.NsFd(int(f.Fd()))}); err != nil {
			return fmt.Errorf("cable between %s and %s: %w", a.Name, b.Name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	// Both ends are up before a route needs them.
	if err := errors.Join(c.raise(a, b), other.raise(b, a)); err != nil {
		return err
	}
	return errors.Join(c.lead(b), other.lead(a))
}

// raise brings up the end of the cable in this cluster's world, and makes the world a router.
func (c *Cluster) raise(own, other *state) error {
	path := c.netns(worldName)
	err := machine.InNamespace(path, func() error {
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644),
			os.WriteFile("/proc/sys/net/ipv6/conf/all/forwarding", []byte("1"), 0o644))
	})
	if err != nil {
		return fmt.Errorf("forwarding in the world of %s: %w", own.Name, err)
	}
	return machine.WithNetlink(path, func(h *netlink.Handle) error {
		return machine.AddressAndUp(h, other.plan().cable(), netip.PrefixFrom(own.plan().gateway(), 64))
	})
}

// lead routes to the underlay of another cluster.
func (c *Cluster) lead(to *state) error {
	return machine.WithNetlink(c.netns(worldName), func(h *netlink.Handle) error {
		link, err := h.LinkByName(to.plan().cable())
		if err != nil {
			return err
		}
		v4, v6 := to.plan().underlay()
		for dst, via := range map[netip.Prefix]netip.Addr{v4: to.plan().world().IPv4, v6: to.plan().gateway()} {
			route := &netlink.Route{LinkIndex: link.Attrs().Index, Dst: machine.IPNet(dst), Gw: via.AsSlice()}
			if via.Is4() {
				route.Flags = unix.RTNH_F_ONLINK // the other world answers for its address on any of its links
			}
			if err := h.RouteReplace(route); err != nil {
				return fmt.Errorf("route to %s via %s: %w", dst, via, err)
			}
		}
		return nil
	})
}
