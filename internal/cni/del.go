package cni

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/containernetworking/cni/pkg/invoke"
	"github.com/containernetworking/cni/pkg/skel"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/deletequeue"
)

// del removes an attachment. Doing so twice, or one that never was, succeeds; only if the agent
// refuses, or neither it nor its queue can be reached, the runtime is asked to come again, for
// otherwise an address and an endpoint would leak.
func (p *Plugin) del(args *skel.CmdArgs) error {
	started := time.Now()
	p.step(StepDelStart)
	conf, err := parseConf(args.StdinData)
	if err != nil {
		return fail(cnitypes.ErrDecodingFailure, "invalid network configuration", err)
	}
	log := newLogger(conf, args)
	defer log.close()
	agent, err := p.agent(conf)
	if err != nil {
		return err
	}
	defer agent.Close()
	ctx, cancel := interruptible()
	defer cancel()
	name := conf.IPAM.mode()
	if name != "" {
		release, err := lockAttachment(ctx, agent, attachment{args.ContainerID, args.IfName}, deleteTimeout)
		if err != nil {
			log.error("DEL failed", err, started)
			return err
		}
		defer release()
	}

	// While the interface is there, by which they are found.
	if err := unroute(args); err != nil {
		log.warn("Rules for the pod's addresses stay in its network namespace", err)
	}
	agentRemovesLink, err := deleteAttachment(ctx, agent, args.ContainerID, args.IfName)
	if err != nil {
		log.error("DEL failed", err, started)
		return err
	}
	p.step(StepDelEndpoint)
	if !agentRemovesLink {
		if err := removeLinks(args); err != nil {
			log.error("DEL failed", err, started)
			return fail(cnitypes.ErrInternal, "cannot remove the pod's interface", err)
		}
	}
	p.step(StepDelLink)
	// Last: what has the address still must not be there when another pod is given it.
	if name != "" {
		if err := (delegate{name, args.StdinData}).call(ctx, invoke.DelegateDel); err != nil {
			log.error("DEL failed", err, started)
			return err
		}
	}
	log.info("DEL done", started, "by-agent", agentRemovesLink)
	return nil
}

// deleteAttachment deletes the endpoint or queues that. It returns whether the agent knew the
// endpoint, and so removes its interface itself.
func deleteAttachment(ctx context.Context, agent *client.Client, containerID, ifName string) (known bool, err error) {
	id := attachmentID(containerID, ifName)
	try := func(ctx context.Context) error {
		_, err := agent.DeleteEndpoint(ctx, id)
		switch {
		case err == nil:
			known = true
		case client.NotFound(err), client.StatusCode(err) == http.StatusBadRequest:
			err = nil // never was, or can't be
		}
		return err
	}
	bounded, cancel := context.WithTimeout(ctx, deleteTimeout)
	defer cancel()
	err = try(bounded)
	if err == nil {
		return known, nil
	}
	if code := client.StatusCode(err); code != 0 && code != http.StatusServiceUnavailable {
		return false, agentError("the agent does not delete the endpoint", err)
	}
	if ctx.Err() != nil {
		return false, fail(cnitypes.ErrTryAgainLater, "interrupted", err)
	}
	done, queueErr := queue(agent, deletequeue.Entry{EndpointID: id}, try)
	if queueErr != nil {
		return false, fail(cnitypes.ErrTryAgainLater, "the agent does not answer and the deletion can't be queued", errors.Join(err, queueErr))
	}
	return done && known, nil
}

// removeLinks removes the interface from the host or, if it is not found there, from the pod:
// unless it is another attachment's, whose container has the namespace now, or another program's.
func removeLinks(args *skel.CmdArgs) error {
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer host.Close()
	hostName := hostIfName(args.ContainerID, args.IfName)
	if err := removeVeth(host, hostName); err != nil {
		return err
	}
	pod, err := podOf(args)
	if pod == nil || err != nil {
		return err
	}
	defer pod.close()
	other, err := ofAnother(host, pod, args.IfName, hostName)
	if errors.Is(err, errForeign) {
		return nil
	}
	if err != nil || other != "" {
		return err
	}
	return removeVeth(pod.h, args.IfName)
}

// podOf opens the namespace of a DEL; it is nil if that is gone, or was none of a pod.
func podOf(args *skel.CmdArgs) (*podNS, error) {
	if args.Netns == "" || isOwnNS(args.Netns) {
		return nil, nil
	}
	pod, err := enter(args.Netns, nil)
	if errors.Is(err, errNoNS) {
		return nil, nil
	}
	return pod, err
}

// unroute removes the rules for the addresses of the attachment's interface, if it has any.
func unroute(args *skel.CmdArgs) error {
	pod, err := podOf(args)
	if pod == nil || err != nil {
		return err
	}
	defer pod.close()
	if rules, err := pod.rules(); err != nil || len(rules) == 0 {
		return err
	}
	host, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	defer host.Close()
	other, err := ofAnother(host, pod, args.IfName, hostIfName(args.ContainerID, args.IfName))
	if errors.Is(err, errForeign) || other != "" {
		return nil
	}
	if err != nil {
		return err
	}
	return pod.removeRules(args.IfName)
}
