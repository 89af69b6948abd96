package relay

import (
	"context"
	"time"

	"google.golang.org/grpc"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/peer"
	"github.com/hawser-net/hawser/pkg/retry"
)

// peerServiceName is the name of the service in the certificate with which agents answer for it:
// before the cluster's, where nodes have their own.
const peerServiceName = "hubble-peer"

// followPeers updates the roster from agents, until ctx ends. While no agent answers, the known
// nodes stay.
func (r *Relay) followPeers(ctx context.Context) {
	list := uint64(0)
	for failures := 0; ; failures++ {
		began := time.Now()
		list++
		err := r.readPeers(ctx, list)
		if ctx.Err() != nil {
			return
		}
		r.roster.setProblem(text(err))
		if time.Since(began) > r.cfg.RetryTimeout {
			failures = 0
		}
		wait := retry.Backoff(failures, firstRetry, r.cfg.RetryTimeout)
		r.log.Warn("no server lists the nodes; asking again", "service", r.cfg.PeerService, "error", text(err), "wait", wait)
		if !retry.Sleep(ctx, wait) {
			return
		}
	}
}

// readPeers follows one agent's list of nodes and returns why that ended.
func (r *Relay) readPeers(ctx context.Context, list uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	serverName := ""
	if !r.cfg.NoClientTLS {
		serverName = peerServiceName + "." + r.cfg.ClusterName + ".hubble-grpc.cilium.io"
	}
	conn, err := r.dial(r.cfg.PeerService, serverName)
	if err != nil {
		return err
	}
	defer conn.Close()
	if _, err := r.ask(ctx, conn); err != nil {
		return err
	}
	r.running.Go(func() { cancel(r.probe(ctx, conn, func(*observer.ServerStatusResponse) {})) })
	stream, err := peer.NewPeerClient(conn).Notify(ctx, &peer.NotifyRequest{}, grpc.WaitForReady(false))
	if err != nil {
		return err
	}
	// Nothing marks where the present nodes end and changes begin. A node that was known and is not
	// named again is gone, some time after the list began: agents begin it when they know all.
	var listed *time.Timer
	defer func() {
		if listed != nil {
			listed.Stop()
		}
	}()
	warned := false
	for {
		n, err := stream.Recv()
		if err != nil {
			if cause := context.Cause(ctx); cause != nil {
				return cause
			}
			return err
		}
		if listed == nil {
			listed = time.AfterFunc(r.cfg.relist, func() {
				if ctx.Err() == nil {
					r.roster.remove(func(m *member) bool { return m.seen < list })
				}
			})
		}
		p := peerNode{n.GetName(), n.GetAddress(), n.GetTls().GetServerName()}
		if p.name == "" || len(p.name) > maxNodeName || len(p.address) > maxNodeName || len(p.serverName) > 2*maxNodeName {
			continue // it could not be distinguished, or reported
		}
		switch n.GetType() {
		case peer.ChangeNotificationType_PEER_ADDED, peer.ChangeNotificationType_PEER_UPDATED:
			ok := r.roster.set(r.nodes, p, list, func(ctx context.Context, m *member) {
				r.running.Go(func() { r.lookAfter(ctx, m, p) })
			})
			if !ok && !warned {
				warned = true
				r.log.Warn("there are more nodes than this relay asks; the rest is left out", "most", r.cfg.nodes)
			}
		case peer.ChangeNotificationType_PEER_DELETED:
			r.roster.remove(func(m *member) bool { return m.view.name == p.name })
		}
		r.roster.setProblem("")
	}
}
