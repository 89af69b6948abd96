package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/connectivity"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// dialing is how many nodes are connected to at the same time: a list of thousands that do not
	// answer costs that many sockets.
	dialing = 256
	// maxMessage is the size of an answer of a node in bytes.
	maxMessage = 1 << 20
	// window is the flow-control window of a stream from a node, in bytes.
	window = 64 << 10
	// firstRetry is how long a node is left alone after its first failure.
	firstRetry = 500 * time.Millisecond
	// maxProblem is how much of a node's error text is kept, in bytes.
	maxProblem = 256
	// maxVersion is how much is kept of the name of its version, in bytes.
	maxVersion = 128
	// maxCount is how much it may count.
	maxCount = 1 << 48
)

// dial returns a connection that is made when it is first used.
func (r *Relay) dial(address, serverName string) (*grpc.ClientConn, error) {
	opts := []grpc.DialOption{
		grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(maxMessage)), grpc.WithMaxHeaderListSize(16 << 10),
		grpc.WithStaticStreamWindowSize(window), grpc.WithStaticConnWindowSize(16 * window),
		grpc.WithDisableServiceConfig(), grpc.WithNoProxy(), grpc.WithIdleTimeout(0), grpc.WithUserAgent("hawser-relay/" + r.version),
	}
	target := "passthrough:///" + address
	if path, ok := socketPath(address); ok {
		target = "unix://" + path
		opts = append(opts, grpc.WithTransportCredentials(r.local))
	} else {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, fmt.Errorf("its address %q is not host:port", address)
		}
		creds, err := r.cfg.credentialsFor(serverName)
		if err != nil {
			return nil, err
		}
		opts = append(opts, grpc.WithTransportCredentials(creds))
	}
	return grpc.NewClient(target, opts...)
}

// lookAfter keeps a connection to a node until ctx ends.
func (r *Relay) lookAfter(ctx context.Context, m *member, p peerNode) {
	log := r.log.With("node", p.name, "address", p.address)
	for failures := 0; ; failures++ {
		began := time.Now()
		err := r.serveNode(ctx, m, p, log)
		if ctx.Err() != nil {
			return
		}
		problem := text(err)
		r.roster.update(m, relay.NodeState_NODE_UNAVAILABLE, nil, problem, nil)
		if time.Since(began) > r.cfg.RetryTimeout {
			failures = 0
		}
		wait := retry.Backoff(failures, firstRetry, r.cfg.RetryTimeout) // nodes that went together do not come back together
		log.Debug("node does not answer", "error", problem, "retry", wait)
		if !retry.Sleep(ctx, wait) {
			return
		}
	}
}

// serveNode connects to a node and returns why that ended.
func (r *Relay) serveNode(ctx context.Context, m *member, p peerNode, log *slog.Logger) error {
	select {
	case r.dialing <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	conn, st, err := r.connect(ctx, p)
	<-r.dialing
	if err != nil {
		return err
	}
	// Streams that read from it fail, and so end.
	defer conn.Close()
	r.roster.update(m, relay.NodeState_NODE_CONNECTED, conn, "", st)
	log.Info("node is connected")
	err = r.probe(ctx, conn, func(st *observer.ServerStatusResponse) {
		r.roster.update(m, relay.NodeState_NODE_CONNECTED, conn, "", st)
		r.presentAgain(ctx, p, log)
	})
	if ctx.Err() == nil {
		log.Warn("node is not connected any more", "error", text(err))
		r.roster.update(m, relay.NodeState_NODE_UNAVAILABLE, nil, text(err), nil) // before the streams end
	}
	return err
}

// presentAgain has a node and the relay present their certificates to each other again, on an extra
// connection: both may have been renewed since the one that stays up was made.
func (r *Relay) presentAgain(ctx context.Context, p peerNode, log *slog.Logger) {
	if p.serverName == "" || r.cfg.NoClientTLS || !r.expiry.Outdated(p.serverName) {
		return
	}
	select {
	case r.dialing <- struct{}{}:
	case <-ctx.Done():
		return
	}
	defer func() { <-r.dialing }()
	conn, _, err := r.connect(ctx, p)
	if err != nil {
		if ctx.Err() == nil {
			log.Warn("node is connected, but a new connection to it fails", "error", text(err))
		}
		return
	}
	conn.Close()
}

func (r *Relay) connect(ctx context.Context, p peerNode) (*grpc.ClientConn, *observer.ServerStatusResponse, error) {
	conn, err := r.dial(p.address, p.serverName)
	if err != nil {
		return nil, nil, err
	}
	st, err := r.ask(ctx, conn)
	if err != nil {
		conn.Close()
		return nil, nil, err
	}
	return conn, st, nil
}

// ask asks a server how it is. An answer of any kind is one; a server may not know the question.
func (r *Relay) ask(ctx context.Context, conn *grpc.ClientConn) (*observer.ServerStatusResponse, error) {
	ctx, cancel := context.WithTimeout(ctx, r.cfg.DialTimeout)
	defer cancel()
	st, err := observer.NewObserverClient(conn).ServerStatus(ctx, &observer.ServerStatusRequest{})
	switch status.Code(err) {
	case codes.OK:
		return bounded(st), nil
	case codes.DeadlineExceeded:
		return nil, fmt.Errorf("no answer within %v", r.cfg.DialTimeout)
	case codes.Unimplemented:
		return nil, nil
	}
	return nil, err
}

// bounded is a server's status, as far as the relay keeps it while the node exists: a version is
// short, and the counts of all nodes together are numbers, too.
func bounded(st *observer.ServerStatusResponse) *observer.ServerStatusResponse {
	out := &observer.ServerStatusResponse{
		NumFlows: min(st.GetNumFlows(), maxCount), MaxFlows: min(st.GetMaxFlows(), maxCount), SeenFlows: min(st.GetSeenFlows(), maxCount),
		UptimeNs: st.GetUptimeNs(), Version: clip(st.GetVersion(), maxVersion),
	}
	if rate := st.GetFlowsRate(); rate >= 0 && rate <= maxCount { // and not NaN
		out.FlowsRate = rate
	}
	return out
}

// probe returns when a server that was connected does not answer any more: a connection alone
// would not show that a process is frozen.
func (r *Relay) probe(ctx context.Context, conn *grpc.ClientConn, answer func(*observer.ServerStatusResponse)) error {
	for {
		wait, cancel := context.WithTimeout(ctx, r.cfg.probe/2+rand.N(r.cfg.probe/2+1))
		changed := conn.WaitForStateChange(wait, connectivity.Ready)
		cancel()
		switch {
		case ctx.Err() != nil:
			return ctx.Err()
		case changed:
			return errors.New("the connection ended")
		}
		st, err := r.ask(ctx, conn)
		if err != nil {
			return err
		}
		answer(st)
	}
}

// text is the text of an error, of bounded length. It is valid UTF-8, which messages must be: a
// node's error may be any bytes.
func text(err error) string {
	if err == nil {
		return ""
	}
	s := err.Error()
	if st, ok := status.FromError(err); ok {
		s = st.Message()
	}
	return clip(s, maxProblem)
}
