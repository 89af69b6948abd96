package cni

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/skel"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/deletequeue"
)

// newEndpoint is the id with which the agent is asked to choose one.
const newEndpoint = "cilium-local:0"

// adding is one ADD under way.
type adding struct {
	args  *skel.CmdArgs
	agent *client.Client
	log   *logger
	undo  []func(context.Context) error
	// claimed means that an endpoint may have taken the addresses over and released them since, so
	// that they may belong to another pod by now.
	claimed bool
	// unsure means that the agent may have an endpoint that could not be deleted.
	unsure bool
}

func (p *Plugin) add(args *skel.CmdArgs) error {
	started := time.Now()
	p.step(StepAddStart)
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return fail(cnitypes.ErrDecodingFailure, "invalid network configuration", err)
	}
	log := newLogger(conf, args)
	defer log.close()
	result, err := p.addPod(conf, args, log)
	if err != nil {
		log.error("ADD failed", err, started)
		return err
	}
	log.info("ADD done", started, "ips", fmt.Sprint(result.IPs))
	p.step(StepAddResult)
	return nil
}

func (p *Plugin) addPod(conf netConf, args *skel.CmdArgs, log *logger) (result *current.Result, err error) {
	if err := conf.canAdd(); err != nil {
		return nil, fail(cnitypes.ErrInvalidNetworkConfig, "invalid network configuration", err)
	}
	pod, err := parseArgs(args.Args)
	if err != nil {
		return nil, fail(cnitypes.ErrInvalidEnvironmentVariables, "invalid arguments", err)
	}
	labels, err := conf.labels()
	if err != nil {
		return nil, fail(cnitypes.ErrInvalidNetworkConfig, "invalid labels", err)
	}
	if isOwnNS(args.Netns) {
		return nil, fail(cnitypes.ErrInvalidNetNS, "invalid network namespace",
			fmt.Errorf("%s is the namespace of the host, not of a pod", args.Netns))
	}
	ctx, cancel := interruptible()
	defer cancel()
	agent, err := p.agent(conf)
	if err != nil {
		return nil, err
	}
	defer agent.Close()
	if conf.IPAM.mode() != "" {
		release, err := lockAttachment(ctx, agent, attachment{args.ContainerID, args.IfName}, 0)
		if err != nil {
			return nil, err
		}
		defer release() // after what failed was undone
	}

	a := &adding{args: args, agent: agent, log: log}
	defer func() {
		if err != nil {
			a.rollBack()
		}
	}()

	var cfg rest.DaemonConfigurationStatus
	err = retrying(ctx, notNow, func(ctx context.Context) error {
		c, err := agent.Config(ctx)
		cfg = c.Status
		return err
	})
	if err != nil {
		return nil, agentError("cannot read the agent's configuration", err)
	}
	if what, err := attaches(cfg.DatapathMode); err != nil {
		return nil, fail(cnitypes.ErrInternal, what, err)
	}
	if err := conf.suits(cfg.IPAMMode); err != nil {
		return nil, fail(cnitypes.ErrInvalidNetworkConfig, "invalid network configuration", err)
	}
	log.debug("The agent answers", "device-mtu", cfg.DeviceMTU, "route-mtu", cfg.RouteMTU, "ipam-mode", cfg.IPAMMode)
	p.step(StepAddConfig)

	var ipam rest.IPAMResponse
	var addrs []address
	byPlugin, err := conf.delegated(cfg)
	switch {
	case err != nil:
		return nil, fail(cnitypes.ErrInvalidNetworkConfig, "invalid network configuration", err)
	case byPlugin:
		var dns cnitypes.DNS
		if ipam, addrs, dns, err = a.allocateBy(ctx, delegate{conf.IPAM.mode(), args.StdinData}, cfg); conf.DNS.IsEmpty() {
			conf.DNS = dns
		}
	default:
		ipam, addrs, err = a.allocate(ctx, pod.owner(args.ContainerID))
	}
	if err != nil {
		return nil, err
	}
	log.debug("Addresses allocated", "ipv4", ipam.Address.IPv4, "ipv6", ipam.Address.IPv6, "router-ipv4", ipam.HostAddressing.IPv4.IP, "router-ipv6", ipam.HostAddressing.IPv6.IP)
	p.step(StepAddIP)

	req := rest.EndpointChangeRequest{
		State:                  rest.EndpointStateWaitingForIdentity,
		SyncBuildEndpoint:      new(true),
		ContainerID:            args.ContainerID,
		ContainerInterfaceName: args.IfName,
		ContainerNetnsPath:     args.Netns,
		Addressing:             ipam.Address,
		Labels:                 labels,
		K8SPodName:             pod.Name,
		K8SNamespace:           pod.Namespace,
		K8SUid:                 pod.UID,
	}
	req.DatapathConfiguration.ExternalIPAM = byPlugin
	if req.ParentInterfaceIndex, err = parentInterface(ipam.IPv4.MasterMAC); err != nil {
		return nil, fail(cnitypes.ErrTryAgainLater, "the pod's address cannot be used", err)
	}
	req.Addressing.IPv4ExpirationUUID = first(ipam.Address.IPv4ExpirationUUID, ipam.IPv4.ExpirationUUID)
	req.Addressing.IPv6ExpirationUUID = first(ipam.Address.IPv6ExpirationUUID, ipam.IPv6.ExpirationUUID)
	for key, skip := range map[string]bool{
		"property-skip-masquerade-v4": ipam.IPv4.SkipMasquerade, "property-skip-masquerade-v6": ipam.IPv6.SkipMasquerade,
	} {
		if skip {
			if req.Properties == nil {
				req.Properties = map[string]any{}
			}
			req.Properties[key] = true
		}
	}
	if err := p.makeLink(ctx, a, conf.Name, &req, addrs, cfg); err != nil {
		return nil, agentError("cannot set up the pod's interface", err)
	}
	log.debug("Interface made", "host", req.InterfaceName, "index", req.InterfaceIndex, "mac", req.MAC)
	if err := a.createEndpoint(ctx, req); err != nil {
		return nil, err
	}
	p.step(StepAddEndpoint)

	result = makeResult(conf, args, req, addrs, cfg.RouteMTU)
	if err := cnitypes.PrintResult(result, conf.CNIVersion); err != nil {
		return nil, fail(cnitypes.ErrIOFailure, "cannot print the result", err)
	}
	return result, nil
}

// attaches returns what is wrong if an agent in that mode has no pods, or none that this plugin can
// attach.
func attaches(mode rest.DatapathMode) (what string, err error) {
	switch mode {
	case "", rest.DatapathModeVeth:
		return "", nil
	case rest.DatapathModeLbOnly:
		return "this node has no pods", fmt.Errorf("the agent's --datapath-mode is %s: the node only leads clients to services; "+
			"schedule pods elsewhere (a taint, or kubectl cordon)", mode)
	}
	return "unsupported datapath mode", fmt.Errorf("the agent wants %q, this plugin makes veth pairs", mode)
}

func first(values ...string) string {
	for _, v := range values {
		if v != "" {
			return v
		}
	}
	return ""
}

// allocate has the agent give addresses and checks what it gave.
func (a *adding) allocate(ctx context.Context, owner string) (rest.IPAMResponse, []address, error) {
	var ipam rest.IPAMResponse
	err := retrying(ctx, refusedForNow, func(ctx context.Context) error {
		var err error
		ipam, err = a.agent.AllocateIP(ctx, rest.AllocateIPParams{Owner: owner, Expiration: true})
		return err
	})
	if err != nil {
		return ipam, nil, agentError("the agent allocates no address", err)
	}
	for _, lease := range []struct{ ip, pool string }{
		{ipam.Address.IPv4, ipam.Address.IPv4PoolName}, {ipam.Address.IPv6, ipam.Address.IPv6PoolName},
	} {
		if lease.ip == "" {
			continue
		}
		a.undo = append(a.undo, func(ctx context.Context) error {
			if a.claimed {
				return nil
			}
			bare, _, _ := strings.Cut(lease.ip, "/")
			return a.agent.ReleaseIP(ctx, bare, lease.pool)
		})
	}
	// IPv6 first, as in the result.
	var addrs []address
	var errs []error
	for _, f := range []struct {
		ip, router string
		v6         bool
	}{
		{ipam.Address.IPv6, ipam.HostAddressing.IPv6.IP, true},
		{ipam.Address.IPv4, ipam.HostAddressing.IPv4.IP, false},
	} {
		if f.ip == "" {
			continue
		}
		ip, err := parseIP(f.ip, f.v6)
		errs = append(errs, err)
		router, err := parseIP(f.router, f.v6)
		if err != nil {
			err = fmt.Errorf("the node's router address: %w", err)
		}
		errs = append(errs, err)
		addrs = append(addrs, address{ip: ip, router: router})
	}
	if len(addrs) == 0 {
		errs = append(errs, errors.New("neither an IPv4 nor an IPv6 address was given"))
	}
	if err := errors.Join(errs...); err != nil {
		return ipam, nil, fail(cnitypes.ErrInternal, "the agent's answer to the address request is invalid", err)
	}
	return ipam, addrs, nil
}

// parseIP takes an address with or without a prefix length.
func parseIP(s string, v6 bool) (netip.Addr, error) {
	bare, _, _ := strings.Cut(s, "/")
	ip, err := netip.ParseAddr(bare)
	if err != nil {
		return ip, fmt.Errorf("%q is not an address", s)
	}
	ip = ip.Unmap()
	if ip.Is6() != v6 || ip.Zone() != "" {
		return ip, fmt.Errorf("%q is not of the family asked for", s)
	}
	return ip, nil
}

// makeLink creates and configures the interface, for a network, and completes req with what it is.
func (p *Plugin) makeLink(ctx context.Context, a *adding, network string, req *rest.EndpointChangeRequest, addrs []address, cfg rest.DaemonConfigurationStatus) error {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return fmt.Errorf("open netlink: %w", err)
	}
	defer host.Close()
	ipv6 := addrs[0].ip.Is6()
	pod, err := enter(a.args.Netns, func() {
		if err := podSysctls(cfg, ipv6); err != nil {
			a.log.warn("Some kernel parameters of the pod stay as they are", err)
		}
	})
	if err != nil {
		return err
	}
	defer pod.close()

	hostName := hostIfName(a.args.ContainerID, a.args.IfName)
	link, err := createVeth(host, pod, network, hostName, a.args.IfName, cfg, func(other string) error { return a.unused(ctx, other) })
	if err != nil {
		return err
	}
	a.undo = append(a.undo, func(context.Context) error {
		h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer h.Close()
		return removeOwnVeth(h, hostName, link.hostIndex)
	})
	p.step(StepAddLink)
	// A name for people only, next to the one that is cut to 15 characters.
	_ = host.LinkAddAltName(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Index: link.hostIndex}}, "cilium_cni:"+hostName)

	a.undo = append(a.undo, func(context.Context) error { return forgetRules(a.args.Netns, addrs) })
	if err := configurePod(pod, a.args.IfName, addrs, cfg); err != nil {
		return err
	}
	p.step(StepAddPod)
	req.InterfaceName = hostName
	req.InterfaceIndex = link.hostIndex
	req.HostMAC = link.hostMAC.String()
	req.MAC = link.podMAC.String()
	req.NetnsCookie = strconv.FormatUint(pod.cookie, 10)
	return nil
}

// forgetRules removes the rules that were made for addresses.
func forgetRules(netns string, addrs []address) error {
	if !slices.ContainsFunc(addrs, func(a address) bool { return a.table != 0 }) {
		return nil
	}
	pod, err := enter(netns, nil)
	if err != nil {
		return err
	}
	defer pod.close()
	var errs []error
	for _, a := range addrs {
		if a.table != 0 {
			errs = append(errs, removeRule(pod.h, a.rule()))
		}
	}
	return errors.Join(errs...)
}

// notAttached returns an error if the agent has an endpoint for this attachment, or does not
// answer. A runtime that asks twice has lost its own record of a pod that runs: its interface must
// stay.
func (a *adding) notAttached(ctx context.Context) error {
	id := attachmentID(a.args.ContainerID, a.args.IfName)
	_, err := a.agent.EndpointHealth(ctx, id)
	switch {
	case err == nil:
		return fmt.Errorf("container %s has interface %s already, and an endpoint for it: DEL it first", a.args.ContainerID, a.args.IfName)
	case client.NotFound(err):
		return nil
	}
	return fmt.Errorf("there is an interface of this attachment, and whether it is in use is unknown: %w", err)
}

// unused returns an error if an interface that is in the way is in use: that of this attachment,
// and in the pod that of another, if it is not empty.
func (a *adding) unused(ctx context.Context, other string) error {
	if err := a.notAttached(ctx); err != nil || other == "" {
		return err
	}
	endpoints, err := a.agent.Endpoints(ctx, nil)
	if err != nil && !client.NotFound(err) {
		return fmt.Errorf("there is an interface %s of another attachment in the pod, and whether it is in use is unknown: %w", a.args.IfName, err)
	}
	for _, ep := range endpoints {
		if ep.Status.Networking.InterfaceName == other {
			return fmt.Errorf("interface %s in %s is that of attachment %s: DEL that first", a.args.IfName, a.args.Netns, ep.Status.ExternalIdentifiers.CNIAttachmentID)
		}
	}
	return nil
}

// createEndpoint asks the agent to take the interface over, and returns when its policy is
// enforced.
func (a *adding) createEndpoint(ctx context.Context, req rest.EndpointChangeRequest) error {
	// Whether the endpoint exists is unknown if no answer came. If the agent refused, an endpoint
	// by that id would be an older one, which is not ours to delete.
	unknown := false
	a.undo = append(a.undo, func(ctx context.Context) error {
		if !unknown {
			return nil
		}
		return a.deleteEndpoint(ctx)
	})
	err := retrying(ctx, refusedForNow, func(ctx context.Context) error {
		unknown = true
		_, err := a.agent.CreateEndpoint(ctx, newEndpoint, req)
		unknown = err == nil || client.StatusCode(err) == 0
		return err
	})
	if err != nil {
		return agentError("the agent does not create the endpoint", err)
	}
	return nil
}

func (a *adding) deleteEndpoint(ctx context.Context) error {
	id := attachmentID(a.args.ContainerID, a.args.IfName)
	del := func(ctx context.Context) error {
		_, err := a.agent.DeleteEndpoint(ctx, id)
		if err == nil {
			a.claimed = true
		}
		if client.NotFound(err) {
			return nil
		}
		return err
	}
	err := del(ctx)
	if err == nil {
		return nil
	}
	a.claimed = true // perhaps; the addresses go with the endpoint or expire
	if _, queueErr := queue(a.agent, deletequeue.Entry{EndpointID: id}, del); queueErr != nil {
		a.unsure = true
		return errors.Join(err, queueErr)
	}
	return nil
}

// rollBack undoes everything, last things first. What fails is logged: the runtime sends DEL, and
// addresses expire.
func (a *adding) rollBack() {
	for i := len(a.undo) - 1; i >= 0; i-- {
		// Each has its own time: an agent that hangs must not cost the IPAM plugin its DEL.
		ctx, cancel := context.WithTimeout(context.Background(), undoTimeout)
		if err := a.undo[i](ctx); err != nil {
			a.log.warn("Could not undo a part of the failed ADD", err)
		}
		cancel()
	}
}

// makeResult returns what was created: the host side first, then the pod's.
func makeResult(conf netConf, args *skel.CmdArgs, req rest.EndpointChangeRequest, addrs []address, routeMTU int) *current.Result {
	r := &current.Result{
		CNIVersion: current.ImplementedSpecVersion,
		Interfaces: []*current.Interface{
			{Name: req.InterfaceName, Mac: req.HostMAC},
			{Name: args.IfName, Mac: req.MAC, Sandbox: args.Netns},
		},
		DNS: conf.DNS,
	}
	for _, a := range addrs {
		r.IPs = append(r.IPs, &current.IPConfig{Interface: current.Int(1), Address: *ipNet(a.ip), Gateway: a.router.AsSlice()})
		var table *int
		if a.table != 0 {
			table = &a.table
		}
		r.Routes = append(r.Routes,
			&cnitypes.Route{Dst: *ipNet(a.router), Table: table},
			&cnitypes.Route{Dst: *anyNet(a.ip), GW: a.router.AsSlice(), MTU: routeMTU, Table: table})
	}
	return r
}
