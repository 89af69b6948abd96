package sandbox

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

func (s *Sandbox) relaySocket() string { return s.path("hubble-relay.sock") }
func (s *Sandbox) relayLog() string    { return s.path("logs", "relay.log") }

// startRelay starts what shows the flows of all nodes at once, and waits until it is connected to
// all of them. A sandbox works without: if the program is not there, each node shows its own.
func (s *Sandbox) startRelay(ctx context.Context, st *state) error {
	program := filepath.Join(st.BinDir, "hawser-relay")
	if _, err := os.Stat(program); errors.Is(err, os.ErrNotExist) {
		s.say("hawser-relay is not in %s: each node shows its own flows only", st.BinDir)
		return nil
	}
	began := time.Now()
	var err error
	st.Relay, err = machine.Daemon{Namespace: s.netns(worldName), Log: s.relayLog(), Argv: []string{
		program, "--listen-address", "unix://" + s.relaySocket(), "--peer-service", "unix://" + s.flowSocket(st.Nodes[0].Name),
		"--disable-client-tls", "--health-listen-address", "", "--retry-timeout", "5s",
	}}.Start()
	if err != nil {
		return fmt.Errorf("relay of flows: %w", err)
	}
	if err := st.save(s.stateFile()); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		last := s.relayHealth(ctx, len(st.Nodes))
		if last == nil {
			s.say("flows of all nodes: %s observe --server %s (%s)", machine.Typed(s.cfg.Self[:1]...), s.relaySocket(), since(began))
			return nil
		}
		if !st.Relay.Alive() {
			return fmt.Errorf("the relay of flows ended: %s", machine.LastLines(s.relayLog(), 8))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the relay of flows is not ready after %v (%w): %s", s.cfg.StartTimeout, last, machine.LastLines(s.relayLog(), 8))
		}
	}
}

// relayHealth asks the relay whether it is connected to so many nodes.
func (s *Sandbox) relayHealth(ctx context.Context, nodes int) error {
	conn, err := grpc.NewClient("unix://"+s.relaySocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	res, err := observer.NewObserverClient(conn).ServerStatus(ctx, &observer.ServerStatusRequest{})
	if err != nil {
		return err
	}
	if n := res.GetNumConnectedNodes().GetValue(); int(n) != nodes {
		return fmt.Errorf("it is connected to %d of %d nodes", n, nodes)
	}
	return nil
}
