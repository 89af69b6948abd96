package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
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
	"github.com/hawser-net/hawser/internal/deletequeue"
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
	routes []madeRoute
}

// madeRoute is a route of the pod, of which Dst and Gw count, for what an address sends.
type madeRoute struct {
	from netip.Addr
	netlink.Route
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
				out.routes = append(out.routes, madeRoute{addr, ours})
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
	return errors.Join(append(errs, checkRoutes(pod, link, want.routes))...)
}

// checkRoutes verifies that what the addresses of an interface of the pod send goes through it: by
// the main table, or by another one that a rule names.
func checkRoutes(pod *podNS, link netlink.Link, want []madeRoute) error {
	ofLink := &netlink.Route{LinkIndex: link.Attrs().Index, Table: unix.RT_TABLE_UNSPEC}
	routes, err := pod.h.RouteListFiltered(netlink.FAMILY_ALL, ofLink, netlink.RT_FILTER_OIF|netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("routes of interface %s of the pod: %w", link.Attrs().Name, err)
	}
	rules, err := pod.rules()
	if err != nil {
		return err
	}
	var errs []error
	for _, r := range want {
		if !slices.ContainsFunc(routes, func(have netlink.Route) bool {
			return sameRoute(r.Route, have) && (have.Table == unix.RT_TABLE_MAIN || slices.ContainsFunc(rules, func(rule netlink.Rule) bool {
				return rule.Table == have.Table && rule.Src.String() == ipNet(r.from).String()
			}))
		}) {
			errs = append(errs, fmt.Errorf("the pod lacks its route to %s through interface %s", r.Dst, link.Attrs().Name))
		}
	}
	return errors.Join(errs...)
}

// status reports whether an ADD would work. Runtimes ask every few seconds, and the kubelet calls
// the whole node NotReady if it would not, which takes its pods out of Services and has them
// evicted later. Pods that run need no agent. So once the agent was ready, that it is away or that
// a part of it fails is no failure: an ADD waits for it.
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
	seen := deletequeue.Answered(queueDir(agent))
	cfg, err := readyAgent(agent)
	if err != nil {
		if _, statErr := os.Stat(seen); statErr == nil {
			return nil
		}
		return err
	}
	if err := addsWith(conf, cfg, args.StdinData); err != nil {
		_ = os.Remove(seen)
		return err
	}
	// If it cannot be written, the node is NotReady while the agent is away, and all else works.
	_ = os.MkdirAll(filepath.Dir(seen), 0o755)
	if f, err := os.OpenFile(seen, os.O_CREATE, 0o600); err == nil {
		_ = f.Close()
	}
	return nil
}

// readyAgent returns the configuration of the agent, or why it is not ready.
func readyAgent(agent *client.Client) (rest.DaemonConfigurationStatus, error) {
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	var none rest.DaemonConfigurationStatus
	health, err := agent.Health(ctx, true)
	switch {
	case err != nil && client.StatusCode(err) == 0:
		return none, fail(codeNotAvailable, "DaemonDown", err)
	case err != nil:
		return none, fail(codeNotAvailable, "DaemonHealthzFailed", err)
	case health.Cilium.State == rest.StateFailure:
		return none, fail(codeNotAvailable, "DaemonHealthzFailed", fmt.Errorf("the agent reports: %s", health.Cilium.Msg))
	}
	cfg, err := agent.Config(ctx)
	if err != nil {
		return none, fail(codeNotAvailable, "DaemonHealthzFailed", err)
	}
	return cfg.Status, nil
}

// addsWith returns why no ADD works with an agent of that configuration.
func addsWith(conf netConf, cfg rest.DaemonConfigurationStatus, stdin []byte) error {
	if what, err := attaches(cfg.DatapathMode); err != nil {
		return fail(codeNotAvailable, what, err)
	}
	byPlugin, err := conf.delegated(cfg)
	if err := errors.Join(err, conf.suits(cfg.IPAMMode)); err != nil {
		return fail(cnitypes.ErrInvalidNetworkConfig, "InvalidNetworkConfig", err)
	}
	if !byPlugin {
		return nil
	}
	// The kubelet calls a node NotReady whose runtime does not answer for 30 seconds.
	ctx, cancel := context.WithTimeout(context.Background(), statusTimeout)
	defer cancel()
	return delegate{conf.IPAM.mode(), stdin}.call(ctx, invoke.DelegateStatus)
}
