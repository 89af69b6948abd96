package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/test/cluster/flows"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// newSandbox waits until a pod has a network namespace other than the one before, with addresses.
func newSandbox(ctx context.Context, p *lab.Pod, before machine.Inode, timeout time.Duration) (ns *lab.Namespace, addrs []netip.Addr, err error) {
	err = lab.Eventually(ctx, timeout, func(context.Context) error {
		none := fmt.Errorf("pod %s has no new sandbox", p.Name())
		pids, err := lab.Processes(string(p.Object.UID))
		if err != nil || len(pids) == 0 {
			return errors.Join(none, err)
		}
		if id, err := machine.NamespaceID(netns(pids[0])); err != nil || id == before {
			return errors.Join(none, err)
		}
		if ns, err = lab.OpenNamespace(netns(pids[0])); err != nil {
			return err
		}
		if addrs, err = ns.Addrs(); err != nil || len(addrs) < 2 {
			ns.Close()
			return errors.Join(fmt.Errorf("pod %s has the addresses %v", p.Name(), addrs), err)
		}
		return nil
	})
	return ns, addrs, err
}

// probeSandbox waits for a server's new sandbox and probes it from the first moment that it has
// addresses: intruders of all these nodes must not reach it, at no time, and clients of the nodes
// called near must before long.
func (d *day) probeSandbox(ctx context.Context, p *lab.Pod, before machine.Inode, timeout time.Duration, nodes []kube.NodeInfo, near []string) error {
	ns, addrs, err := newSandbox(ctx, p, before, timeout)
	if err != nil {
		return err
	}
	defer ns.Close()
	servers := flows.NewServers()
	defer servers.Close()
	const number = 1000
	if err := servers.Serve(ns, number, addrs, openPort); err != nil {
		return err
	}
	var attacks []flows.Flow
	for _, n := range nodes {
		for _, a := range addrs {
			for _, kind := range []flows.Kind{flows.TCPNew, flows.UDPNew} {
				attacks = append(attacks, flows.Flow{
					Name: fmt.Sprintf("%s intruder-%s -> new sandbox of %s at %s", kind, n.Name, p.Object.Name, a),
					From: d.pods["intruder-"+n.Name].Namespace, To: netip.AddrPortFrom(a, openPort), Kind: kind,
				})
			}
		}
	}
	traffic, err := flows.Start(ctx, servers, &d.numbers, attacks)
	if err != nil {
		return err
	}
	var errs []error
	for _, n := range nodes {
		if !slices.Contains(near, n.Name) {
			continue
		}
		for _, a := range addrs {
			for _, network := range []string{"tcp", "udp"} {
				err := lab.Eventually(ctx, time.Minute, func(context.Context) error {
					return flows.Ask(d.pods["client-"+n.Name].Namespace, network, netip.AddrPortFrom(a, openPort), number, 2*time.Second)
				})
				if err != nil {
					errs = append(errs, fmt.Errorf("client-%s does not reach the new sandbox of %s by %s at %s: %w", n.Name, p.Name(), network, a, err))
				}
			}
		}
	}
	for _, r := range traffic.Stop() {
		if r.Bad() {
			errs = append(errs, fmt.Errorf("%s: %d of %d got through: %v", r.Name, r.Wrong, r.Sent, r.Why))
		}
	}
	return errors.Join(errs...)
}
