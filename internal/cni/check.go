package cni

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

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
	want, err := conf.prevIPs()
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
	if err := checkLinks(args, want); err != nil {
		return fail(cnitypes.ErrInternal, "the pod's interface is not as it was made", err)
	}
	return nil
}

// prevIPs returns the addresses of the result that the runtime kept.
func (c netConf) prevIPs() ([]netip.Addr, error) {
	if len(c.PrevResult) == 0 {
		return nil, errors.New("CHECK needs the prevResult of ADD")
	}
	generic, err := version.NewResult(c.CNIVersion, c.PrevResult)
	if err != nil {
		return nil, fmt.Errorf("prevResult is malformed: %w", err)
	}
	result, err := current.NewResultFromResult(generic)
	if err != nil {
		return nil, fmt.Errorf("prevResult is malformed: %w", err)
	}
	var out []netip.Addr
	for _, ip := range result.IPs {
		if addr, ok := netip.AddrFromSlice(ip.Address.IP); ok {
			out = append(out, addr.Unmap())
		}
	}
	return out, nil
}

func checkLinks(args *skel.CmdArgs, want []netip.Addr) error {
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
	pod, err := enter(args.Netns, nil)
	if err != nil {
		return err
	}
	defer pod.close()
	link, err := pod.h.LinkByName(args.IfName)
	if err != nil {
		return fmt.Errorf("interface %s of the pod: %w", args.IfName, err)
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
	for _, ip := range want {
		if !have[ip] {
			errs = append(errs, fmt.Errorf("interface %s of the pod lacks address %s", args.IfName, ip))
		}
	}
	return errors.Join(errs...)
}

// status tells whether an ADD would work now.
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
		return fail(codeNotAvailable, "DaemonHealthzFailed", fmt.Errorf("the agent says: %s", health.Cilium.Msg))
	}
	return nil
}
