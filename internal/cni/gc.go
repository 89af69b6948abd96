package cni

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/datapath/link/netdump"
)

// pluginLink reports whether hostIfName could have made the name.
func pluginLink(name string) bool {
	digits, ok := strings.CutPrefix(name, hostIfPrefix)
	return ok && len(digits) == 12 && strings.Trim(digits, "0123456789abcdef") == ""
}

// gc removes every attachment of the network that the runtime does not list. An endpoint whose
// interface names no network counts as of this one; an interface without endpoint that does not
// name it is none of ours.
func (p *Plugin) gc(args *skel.CmdArgs) error {
	started := time.Now()
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return fail(cnitypes.ErrInvalidNetworkConfig, "invalid network configuration", err)
	}
	log := newLogger(conf, args)
	defer log.close()
	valid, err := conf.valid()
	if err != nil {
		return fail(cnitypes.ErrInvalidNetworkConfig, "invalid network configuration", err)
	}
	agent, err := p.agent(conf)
	if err != nil {
		return err
	}
	defer agent.Close()
	ctx, cancel := interruptible()
	defer cancel()
	var release func(attachment) error
	name := conf.IPAM.mode()
	if name != "" {
		release = func(gone attachment) error { return delegate{name, args.StdinData}.forget(ctx, gone) }
	}
	removed, err := collect(ctx, agent, conf.Name, valid, release)
	if err != nil {
		log.error("GC failed", err, started)
		var cniErr *cnitypes.Error
		if errors.As(err, &cniErr) {
			return cniErr
		}
		return fail(cnitypes.ErrInternal, "garbage collection is incomplete", err)
	}
	// Only if all else is gone: what is left has its address still.
	if name != "" {
		if err := (delegate{name, args.StdinData}).call(ctx, invoke.DelegateGC); err != nil {
			log.error("GC failed", err, started)
			return err
		}
	}
	log.info("GC done", started, "removed", removed)
	return nil
}

// valid returns the attachments to keep. The list must be there, even if it is empty: taking a
// missing one for "keep nothing" would take the network from every pod.
func (c netConf) valid() (map[attachment]bool, error) {
	list := c.Attached
	if list == nil {
		list = c.AttachedOld
	}
	if list == nil {
		return nil, errors.New("GC needs cni.dev/valid-attachments, the list of attachments to keep")
	}
	out := make(map[attachment]bool, len(*list))
	for _, a := range *list {
		if a.ContainerID == "" || a.IfName == "" {
			return nil, errors.New("cni.dev/valid-attachments holds an entry without containerID or ifname")
		}
		out[a] = true
	}
	return out, nil
}

// collect removes what belongs to no attachment of valid, of a network, and has the addresses of
// each released, also of those that a GC before has removed and could not release. release is nil
// if the agent gives the addresses.
func collect(ctx context.Context, agent *client.Client, network string, valid map[attachment]bool, release func(attachment) error) (removed int, err error) {
	endpoints, err := agent.Endpoints(ctx, nil)
	if err != nil && !client.NotFound(err) {
		return 0, agentError("the agent does not list its endpoints", err)
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return 0, err
	}
	defer host.Close()
	links, err := netdump.List(host.LinkList)
	if err != nil {
		return 0, fmt.Errorf("list interfaces: %w", err)
	}
	others := map[string]bool{} // interfaces of other networks
	for _, link := range links {
		if a := link.Attrs(); strings.HasPrefix(a.Alias, aliasPrefix) && a.Alias != networkAlias(network) {
			others[a.Name] = true
		}
	}
	// Links in use: those of attachments to keep, and of existing endpoints.
	keep := map[string]bool{}
	attachments := map[string]bool{}
	for a := range valid {
		keep[hostIfName(a.ContainerID, a.IfName)] = true
		attachments[a.ContainerID+":"+a.IfName] = true
		attachments[a.ContainerID] = true // as endpoints without interface name are known
	}
	var errs []error
	owed, here := unreleased{unreleasedDir(agent), network}, map[attachment]bool{}
	finish := func(gone attachment) {
		err := release(gone)
		if err == nil {
			err = owed.remove(gone)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("addresses of attachment %s:%s: %w", gone.ContainerID, gone.IfName, err))
		}
	}
	for _, ep := range endpoints {
		id := ep.Status.ExternalIdentifiers.CNIAttachmentID
		if id == "" || attachments[id] || others[ep.Status.Networking.InterfaceName] {
			keep[ep.Status.Networking.InterfaceName] = true
			continue // not made by a runtime, in use, or none of this network
		}
		container, ifName, whole := strings.Cut(id, ":")
		gone := attachment{container, ifName}
		here[gone] = true
		if whole && release != nil {
			if err := owed.add(gone); err != nil {
				errs = append(errs, fmt.Errorf("endpoint of attachment %s stays, as it cannot be noted that its addresses are to be released: %w", id, err))
				continue
			}
		}
		if _, err := agent.DeleteEndpoint(ctx, "cni-attachment-id:"+id); err != nil && !client.NotFound(err) {
			errs = append(errs, fmt.Errorf("delete endpoint of attachment %s: %w", id, err))
			continue
		}
		removed++
		keep[ep.Status.Networking.InterfaceName] = true // the agent's to remove
		if whole && release != nil {
			finish(gone)
		}
	}
	if release != nil {
		left, err := owed.list()
		if err != nil {
			errs = append(errs, err)
		}
		for _, gone := range left {
			switch {
			case valid[gone]: // it was made again
				if err := owed.remove(gone); err != nil {
					errs = append(errs, err)
				}
			case !here[gone]:
				finish(gone)
			}
		}
	}
	for _, link := range links {
		name := link.Attrs().Name
		// Other network plugins give their interfaces such names, too.
		if keep[name] || link.Attrs().Alias != networkAlias(network) || link.Type() != "veth" || !pluginLink(name) {
			continue
		}
		if err := removeVeth(host, name); err != nil {
			errs = append(errs, err)
			continue
		}
		removed++
	}
	return removed, errors.Join(errs...)
}
