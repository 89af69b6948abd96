package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
)

// check verifies that the endpoint is well and that the pod's interface is as ADD made it.
func (p *Plugin) check(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return fail(cnitypes.ErrInvalidNetworkConfig, "InvalidNetworkConfig", err)
	}
	if _, err := parseArgs(args.Args); err != nil {
		return fail(cnitypes.ErrInvalidNetworkConfig, "InvalidArgs", err)
	}
	want, err := conf.previous()
	if err != nil {
		return fail(cnitypes.ErrInvalidNetworkConfig, "InvalidNetworkConfig", err)
	}
	agent, err := p.agent(conf)
	if err != nil {
		return err
	}
	defer agent.Close()
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	id := attachmentID(args.ContainerID, args.IfName)
	health, err := agent.EndpointHealth(ctx, id)
	switch {
	case client.StatusCode(err) == 0 && err != nil:
		return fail(cnitypes.ErrTryAgainLater, "DaemonDown", err)
	case err != nil:
		return fail(codeHealthzFailed, "HealthzFailed", fmt.Errorf("health of endpoint %s: %w", id, err))
	case health.OverallHealth == rest.EndpointHealthStatusFailure:
		return fail(codeUnhealthy, "Unhealthy", fmt.Errorf("endpoint %s: datapath %s, policy %s", id, health.BPF, health.Policy))
	}
	ep, err := agent.Endpoint(ctx, id)
	if err != nil {
		return fail(codeHealthzFailed, "HealthzFailed", fmt.Errorf("interface of endpoint %s: %w", id, err))
	}
	if err := checkLinks(args, ep.Status.Networking.InterfaceIndex, want); err != nil {
		return fail(cnitypes.ErrInternal, "the pod's interface is not as it was made", err)
	}
	if name := conf.IPAM.mode(); name != "" {
		return delegate{name, args.StdinData}.call(context.Background(), invoke.DelegateCheck)
	}
	return nil
}

// made is the configuration of the pod's interface by ADD, according to a result.
type made struct {
	ips    []netip.Addr
	routes []netlink.Route // of these Dst and Gw count
}

// previous parses the result that the runtime kept. Only routes that this plugin makes are in it:
// other plugins of the list may have added theirs, or replaced ours in the result.
func (c netConf) previous() (made, error) {
	if len(c.PrevResult) == 0 {
		return made{}, errors.New("CHECK needs the prevResult of ADD")
	}
	generic, err := version.NewResult(c.CNIVersion, c.PrevResult)
	if err != nil {
		return made{}, fmt.Errorf("prevResult is malformed: %w", err)
	}
	result, err := current.NewResultFromResult(generic)
	if err != nil {
		return made{}, fmt.Errorf("prevResult is malformed: %w", err)
	}
	var out made
	for _, ip := range result.IPs {
		addr, ok := netip.AddrFromSlice(ip.Address.IP)
		if !ok {
			continue
		}
		addr = addr.Unmap()
		out.ips = append(out.ips, addr)
		router, ok := netip.AddrFromSlice(ip.Gateway)
		if router = router.Unmap(); !ok || router.Is4() != addr.Is4() {
			continue
		}
		for _, ours := range (address{ip: addr, router: router}).routes(0) {
			if slices.ContainsFunc(result.Routes, func(r *cnitypes.Route) bool {
				return r != nil && sameRoute(ours, netlink.Route{Dst: &r.Dst, Gw: r.GW})
			}) {
				out.routes = append(out.routes, ours)
			}
		}
	}
	return out, nil
}

// sameRoute reports whether two routes lead to the same prefix by the same gateway.
func sameRoute(a, b netlink.Route) bool {
	if a.Dst == nil || b.Dst == nil || !a.Dst.IP.Equal(b.Dst.IP) || !a.Gw.Equal(b.Gw) {
		return false
	}
	aBits, aOf := a.Dst.Mask.Size()
	bBits, bOf := b.Dst.Mask.Size()
	return aBits == bBits && aOf == bOf
}

// checkLinks verifies the attachment's pair of interfaces: the host side is the one that the
// endpoint has, by its index, and the pod's is its other end. An interface that took the place of
// either by its name would have neither the programs nor the address of the endpoint.
func checkLinks(args *skel.CmdArgs, index int, want made) error {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer host.Close()
	name := hostIfName(args.ContainerID, args.IfName)
	side, err := host.LinkByName(name)
	if err != nil {
		return fmt.Errorf("host side %s: %w", name, err)
	}
	if side.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("host side %s is down", name)
	}
	if side.Attrs().Index != index {
		return fmt.Errorf("host side %s has index %d, and the endpoint's interface %d: another one has taken its place", name, side.Attrs().Index, index)
	}
	pod, err := enter(args.Netns, nil)
	if err != nil {
		return err
	}
	defer pod.close()
	link, err := pod.h.LinkByName(args.IfName)
	if err != nil {
		return fmt.Errorf("interface %s of the pod: %w", args.IfName, err)
	}
	if link.Attrs().Flags&net.FlagUp == 0 {
		return fmt.Errorf("interface %s of the pod is down", args.IfName)
	}
	pair, err := isPair(host, pod, side, link)
	if err != nil {
		return err
	}
	if !pair {
		return fmt.Errorf("interface %s of the pod is not the other end of %s on the host: another one has taken its place", args.IfName, name)
	}
	addrs, err := pod.h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("addresses of interface %s of the pod: %w", args.IfName, err)
	}
	have := map[netip.Addr]bool{}
	for _, a := range addrs {
		if ip, ok := netip.AddrFromSlice(a.IP); ok {
			have[ip.Unmap()] = true
		}
	}
	var errs []error
	for _, ip := range want.ips {
		if !have[ip] {
			errs = append(errs, fmt.Errorf("interface %s of the pod lacks address %s", args.IfName, ip))
		}
	}
	routes, err := pod.h.RouteList(link, netlink.FAMILY_ALL)
	if err != nil {
		return fmt.Errorf("routes of interface %s of the pod: %w", args.IfName, err)
	}
	for _, r := range want.routes {
		if !slices.ContainsFunc(routes, func(have netlink.Route) bool { return sameRoute(r, have) }) {
			errs = append(errs, fmt.Errorf("the pod lacks its route to %s through interface %s", r.Dst, args.IfName))
		}
	}
	return errors.Join(errs...)
}

// status reports whether an ADD would work now.
func (p *Plugin) status(args *skel.CmdArgs) error {
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return fail(cnitypes.ErrInvalidNetworkConfig, "InvalidNetworkConfig", err)
	}
	if err := conf.canAdd(); err != nil {
		return fail(cnitypes.ErrInvalidNetworkConfig, "InvalidNetworkConfig", err)
	}
	agent, err := p.agent(conf)
	if err != nil {
		return err
	}
	defer agent.Close()
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	health, err := agent.Health(ctx, true)
	switch {
	case err != nil && client.StatusCode(err) == 0:
		return fail(codeNotAvailable, "DaemonDown", err)
	case err != nil:
		return fail(codeNotAvailable, "DaemonHealthzFailed", err)
	case health.Cilium.State == rest.StateFailure:
		return fail(codeNotAvailable, "DaemonHealthzFailed", fmt.Errorf("the agent reports: %s", health.Cilium.Msg))
	}
	cfg, err := agent.Config(ctx)
	if err != nil {
		return fail(codeNotAvailable, "DaemonHealthzFailed", err)
	}
	if what, err := attaches(cfg.Status.DatapathMode); err != nil {
		return fail(codeNotAvailable, what, err)
	}
	byPlugin, err := conf.delegated(cfg.Status)
	err = errors.Join(err, conf.suits(cfg.Status.IPAMMode))
	switch {
	case err != nil:
		return fail(cnitypes.ErrInvalidNetworkConfig, "InvalidNetworkConfig", err)
	case byPlugin:
		return delegate{conf.IPAM.mode(), args.StdinData}.call(context.Background(), invoke.DelegateStatus)
	}
	return nil
}
