package sandbox

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

func (s *Sandbox) cniConf(n string) string  { return s.nodePath(n, "cni/05-hawser.conflist") }
func (s *Sandbox) agentLog(n string) string { return s.path("logs", n+".log") }

// startAgent starts the agent of a node as the node would: on its namespace, with its own paths.
func (s *Sandbox) startAgent(st *state, n *node) error {
	for _, d := range []string{"run", "cni", "config"} {
		if err := os.MkdirAll(s.nodePath(n.Name, d), 0o755); err != nil {
			return err
		}
	}
	args := []string{
		filepath.Join(st.BinDir, "hawser-agent"),
		"--config-dir", s.nodePath(n.Name, "config"),
		"--socket-path", s.socket(n.Name),
		"--state-dir", s.nodePath(n.Name, "run"),
		"--bpf-root", s.nodePath(n.Name, "bpf"),
		"--node-name", n.Name,
		"--cluster-name", "default",
		"--kvstore", "etcd",
		"--kvstore-opt", fmt.Sprintf("etcd.address=http://%s:2379", worldHost().IPv4),
		"--devices", "eth0",
		"--ipv4-node", n.IPv4.String(),
		"--ipv6-node", n.IPv6.String(),
		"--ipv4-range", n.Pods4.String(),
		"--routing-mode", st.RoutingMode,
		"--enable-policy", st.EnablePolicy,
		"--static-cnp-path", s.PolicyDir(),
		"--write-cni-conf-when-ready", s.cniConf(n.Name),
		"--cni-log-file", s.nodePath(n.Name, "run/hawser-cni.log"),
		"--agent-health-port", "9879",
		"--prometheus-serve-addr", "127.0.0.1:9962",
		"--enable-hubble", "--hubble-socket-path", s.flowSocket(n.Name),
		// The underlay is inside of the sandbox, as etcd's is.
		"--hubble-listen-address", fmt.Sprintf(":%d", flowserver.DefaultPort), "--hubble-disable-tls",
	}
	if n.Pods6.IsValid() {
		args = append(args, "--ipv6-range", n.Pods6.String())
	} else {
		args = append(args, "--enable-ipv6=false")
	}
	var err error
	n.Agent, err = machine.Daemon{
		Namespace: s.netns(n.Name), Log: s.agentLog(n.Name), Argv: append(args, s.cfg.AgentArgs...),
		Env: s.nodeEnv(n.Name, s.flowSocket(n.Name)),
	}.Start()
	if err != nil {
		return fmt.Errorf("agent of %s: %w", n.Name, err)
	}
	return nil
}

// nodeEnv makes programs started for a node find its agent, and flows at a socket.
func (s *Sandbox) nodeEnv(n, flows string) []string {
	return []string{"CILIUM_SOCK=" + s.socket(n), "HUBBLE_SERVER=unix://" + flows, "K8S_NODE_NAME=" + n}
}

// waitAgent waits until the agent says that it is well and has written the CNI configuration.
func (s *Sandbox) waitAgent(ctx context.Context, n *node, started time.Time) error {
	ctx, cancel := context.WithTimeout(ctx, s.cfg.StartTimeout)
	defer cancel()
	// Files and sockets of other processes appear without notice.
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	var last error
	for {
		if last = s.agentHealth(ctx, n.Name); last == nil {
			if _, last = os.Stat(s.cniConf(n.Name)); last == nil {
				s.say("agent of %s is ready: pods %s, API %s (%s)", n.Name, prefixes(n), s.socket(n.Name), since(started))
				return nil
			}
		}
		if !n.Agent.Alive() {
			return fmt.Errorf("the agent of %s ended: %s", n.Name, machine.LastLines(s.agentLog(n.Name), 8))
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("the agent of %s is not ready after %v (%w): %s", n.Name, s.cfg.StartTimeout, last, machine.LastLines(s.agentLog(n.Name), 8))
		}
	}
}

// agentHealth asks the agent for its health; nil means well.
func (s *Sandbox) agentHealth(ctx context.Context, n string) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", s.socket(n))
	}, DisableKeepAlives: true}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://agent/v1/healthz", nil)
	if err != nil {
		return err
	}
	req.Header.Set("brief", "true")
	resp, err := (&http.Client{Transport: tr}).Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("health: %s: %s", resp.Status, strings.TrimSpace(string(body)))
	}
	return nil
}

func prefixes(n *node) string {
	if n.Pods6.IsValid() {
		return n.Pods4.String() + ", " + n.Pods6.String()
	}
	return n.Pods4.String()
}
