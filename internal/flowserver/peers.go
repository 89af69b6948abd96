package flowserver

import (
	"context"
	"errors"
	"net"
	"strconv"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/peer"
	"github.com/hawser-net/hawser/internal/node"
)

// ServerName is the name in the certificate with which a node serves flows.
func ServerName(n node.Key) string {
	label := func(s string) string { return strings.ReplaceAll(s, ".", "-") }
	return label(n.Name) + "." + label(n.Cluster) + ".hubble-grpc.cilium.io"
}

// address is where a node serves flows, if it has an address.
func (s *Server) address(n node.Node) (hostPort string, ok bool) {
	for _, a := range n.Addresses {
		if a.Type == node.InternalIP {
			return net.JoinHostPort(a.IP.String(), strconv.Itoa(int(s.cfg.PeerPort))), true
		}
	}
	return "", false
}

// syncTimeout is how long a client waits at most for a list of nodes that is complete.
const syncTimeout = 5 * time.Second

// Notify implements [peer.PeerServer]: the nodes of the cluster, this one among them, then what
// changes. While the node does not know all of them it fails with [codes.Unavailable]: nothing in
// the protocol distinguishes a list of some from one of all, and another agent may know more.
func (s *Server) Notify(_ *peer.NotifyRequest, stream peer.Peer_NotifyServer) error {
	if s.cfg.WaitSynced != nil {
		ctx, cancel := context.WithTimeout(stream.Context(), syncTimeout)
		err := s.cfg.WaitSynced(ctx)
		cancel()
		if err != nil {
			return status.Errorf(codes.Unavailable, "%s does not know all nodes yet; ask another agent, or again", s.nodeName())
		}
	}
	watch := s.cfg.Nodes.Watch()
	defer watch.Close()
	return Watch(stream.Context(), s.cfg.Stall, func(ctx context.Context, send func(func() error) error) error {
		sent := map[node.Key]string{} // addresses
		for {
			changes, err := watch.Next(ctx)
			if err != nil {
				if ctx.Err() != nil {
					return ctx.Err()
				}
				return errors.New("the table of nodes is not followed any more")
			}
			for _, ch := range changes {
				if ch.Key.Cluster != s.cfg.Self.Cluster {
					continue // another cluster has its own relay, which has its certificates
				}
				n, ok := s.change(sent, ch.Key, ch.Value, ch.Deleted)
				if !ok {
					continue
				}
				if err := send(func() error { return stream.Send(n) }); err != nil {
					return err
				}
			}
		}
	})
}

// change returns the message about a node for a client that was sent some addresses, if one is due.
func (s *Server) change(sent map[node.Key]string, key node.Key, n node.Node, gone bool) (*peer.ChangeNotification, bool) {
	before, had := sent[key]
	address, has := s.address(n)
	has = has && !gone
	out := &peer.ChangeNotification{Name: key.String(), Address: address}
	switch {
	case has && !had:
		out.Type = peer.ChangeNotificationType_PEER_ADDED
	case has && address != before:
		out.Type = peer.ChangeNotificationType_PEER_UPDATED
	case had && !has:
		out.Type, out.Address = peer.ChangeNotificationType_PEER_DELETED, before
	default:
		return nil, false
	}
	if has {
		sent[key] = address
	} else {
		delete(sent, key)
	}
	if s.cfg.PeerTLS {
		out.Tls = &peer.TLS{ServerName: ServerName(key)}
	}
	return out, true
}
