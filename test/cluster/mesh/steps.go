package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/admin/connect"
	"github.com/hawser-net/hawser/pkg/retry"
	"github.com/hawser-net/hawser/test/cluster/flows"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// step is one thing to try.
type step struct {
	name, about string
	run         func(*mesh, context.Context) error
}

// steps are in the order in which they must run.
func steps() []step {
	return []step{
		{"connect", "both clusters are connected", (*mesh).connect},
		{"rights", "whoever reads a store for another cluster can read what is meant for it, and write nothing", (*mesh).rights},
		{"policy", "servers let in clients of the other cluster, and no others; open pods everybody", (*mesh).policy},
		{"relabel", "a pod becomes a client, and an intruder again: the other cluster observes it", (*mesh).relabel},
		{"service", "a global service has the backends of both, of one's own first, or of the other first", (*mesh).service},
		{"store", "the store of the second cluster is killed under traffic, and comes back", (*mesh).store},
		{"agents", "the agents of the first cluster are replaced under traffic", (*mesh).agents},
		{"disconnect", "neither knows the other one any more, and nothing is left", (*mesh).disconnect},
	}
}

func (m *mesh) connect(ctx context.Context) error {
	if err := m.hawser(ctx, m.out, "clustermesh", "connect", m.a.Name, m.b.Name); err != nil {
		return err
	}
	for _, s := range m.sides() {
		for _, n := range s.nodes {
			o := m.other(s)
			err := lab.Eventually(ctx, timeout, func(ctx context.Context) error {
				r, err := s.remote(ctx, n, o.Name)
				if err == nil && (!r.Connected || !r.Ready || r.NumNodes != len(o.nodes) || r.NumRefused != 0 || r.NumEndpoints < 2*len(o.pods)) {
					err = fmt.Errorf("agent %s/%s says of %s: %+v", s.Name, n, o.Name, r)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

func (m *mesh) rights(ctx context.Context) error {
	node, err := m.a.Node(m.a.nodes[0])
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Join(node.Dir, "tmp"), "mesh-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	there := filepath.Join("/tmp", filepath.Base(dir)) // as the node sees it
	secret, err := m.b.Kube.CoreV1().Secrets("kube-system").Get(ctx, connect.AccessSecret, metav1.GetOptions{})
	if err != nil {
		return err
	}
	config := "endpoints: [" + string(secret.Data["endpoints"]) + "]\n"
	for option, name := range map[string]string{"trusted-ca-file": "ca.crt", "cert-file": "tls.crt", "key-file": "tls.key"} {
		if err := os.WriteFile(filepath.Join(dir, name), secret.Data[name], 0o600); err != nil {
			return err
		}
		config += option + ": " + filepath.Join(there, name) + "\n"
	}
	if err := os.WriteFile(filepath.Join(dir, "config"), []byte(config), 0o600); err != nil {
		return err
	}
	for _, tc := range []struct {
		args string
		may  bool
	}{
		{"get --recursive cilium/state/", true}, {"get cilium/cluster-config/" + m.b.Name, true}, {"get --recursive cilium/synced/" + m.b.Name + "/", true},
		{"get cilium/.heartbeat", true}, {"get --recursive cilium/", false}, {"get cilium/cluster-config/" + m.a.Name, false},
		{"set cilium/state/nodes/v1/" + m.b.Name + "/n1 x", false}, {"delete cilium/.heartbeat", false}, {"set other x", false},
	} {
		// From the other cluster's network, as its agents do.
		_, err := m.a.Exec(ctx, m.a.nodes[0], append(strings.Fields("hawser kvstore "+tc.args), "--kvstore-opt", "etcd.config="+filepath.Join(there, "config"))...)
		denied := err != nil && strings.Contains(err.Error(), "permission denied")
		if tc.may != (err == nil) || !tc.may && !denied {
			return fmt.Errorf("%s: %w, allowed %t", tc.args, err, tc.may)
		}
	}
	return nil
}

func (m *mesh) policy(ctx context.Context) error {
	var probes []probe
	for _, s := range m.sides() {
		o := m.other(s)
		probes = append(probes, pairs(s, o, "client", "server", true)...)
		probes = append(probes, pairs(s, o, "intruder", "server", false)...)
		probes = append(probes, pairs(s, s, "client", "server", false)...)
		probes = append(probes, pairs(s, o, "intruder", "open", true)...)
	}
	asked, took, err := m.converge(ctx, probes)
	m.say("  %d probes as the policies say, after %.1f s", asked, took.Seconds())
	return err
}

func (m *mesh) relabel(ctx context.Context) error {
	pod := "intruder-" + m.a.nodes[0]
	var in, out []probe
	for _, n := range m.b.nodes {
		in = append(in, probe{from: m.a, to: m.b, src: pod, dst: "server-" + n, allowed: true})
		out = append(out, probe{from: m.a, to: m.b, src: pod, dst: "server-" + n})
	}
	for _, change := range []struct {
		role   string
		probes []probe
	}{{"client", in}, {"intruder", out}} {
		if err := m.a.label(ctx, pod, change.role); err != nil {
			return err
		}
		_, took, err := m.converge(ctx, change.probes)
		if err != nil {
			return fmt.Errorf("as %s: %w", change.role, err)
		}
		m.say("  as %s it is treated so after %.1f s", change.role, took.Seconds())
	}
	return nil
}

func (m *mesh) service(ctx context.Context) error {
	const each = 40
	for _, s := range m.sides() {
		for _, tc := range []struct {
			affinity    string
			own, others bool
		}{{"none", true, true}, {"local", true, false}, {"remote", false, true}} {
			if err := s.annotate(ctx, tc.affinity); err != nil {
				return err
			}
			err := lab.Eventually(ctx, timeout, func(context.Context) error {
				own, others, err := m.count(s, each)
				if err == nil && ((own > 0) != tc.own || (others > 0) != tc.others) {
					err = fmt.Errorf("affinity %s in %s: %d answers of its own, %d of the other cluster", tc.affinity, s.Name, own, others)
				}
				if err == nil {
					m.say("  %s, affinity %-6s %3d answers of its own backends, %3d of the other cluster's", s.Name, tc.affinity, own, others)
				}
				return err
			})
			if err != nil {
				return err
			}
		}
	}
	// One's own first, but there are none.
	if err := m.a.annotate(ctx, "local"); err != nil {
		return err
	}
	for _, n := range m.a.nodes {
		if err := m.a.label(ctx, "open-"+n, "away"); err != nil {
			return err
		}
	}
	err := lab.Eventually(ctx, timeout, func(context.Context) error {
		own, others, err := m.count(m.a, 10)
		if err == nil && own > 0 {
			err = fmt.Errorf("affinity local without backends: %d answers of pods that are none", own)
		}
		if err == nil {
			m.say("  %s, affinity local, none there: %d answers of the other cluster's", m.a.Name, others)
		}
		return err
	})
	for _, n := range m.a.nodes {
		err = errors.Join(err, m.a.label(ctx, "open-"+n, "open"))
	}
	return errors.Join(err, m.a.annotate(ctx, "none"))
}

// traffic runs flows from the first cluster to the second and back while something happens.
func (m *mesh) traffic(ctx context.Context, during func() error) error {
	var plan []flows.Flow
	for _, s := range m.sides() {
		o := m.other(s)
		for _, from := range s.nodes {
			for _, to := range o.nodes {
				for _, addr := range o.pods["server-"+to].Addrs {
					for _, kind := range []flows.Kind{flows.TCPEstablished, flows.UDPEstablished, flows.TCPNew, flows.UDPNew} {
						for role, allowed := range map[string]bool{"client": true, "intruder": false} {
							if !allowed && (kind == flows.TCPEstablished || kind == flows.UDPEstablished) {
								continue
							}
							plan = append(plan, flows.Flow{
								Name: fmt.Sprintf("%s %s/%s-%s -> %s/server-%s at %s", kind, s.Name, role, from, o.Name, to, addr),
								From: s.pods[role+"-"+from].Namespace, To: netip.AddrPortFrom(addr, port), Kind: kind, Allowed: allowed,
							})
						}
					}
				}
			}
		}
	}
	running, err := flows.Start(ctx, m.servers, &m.numbers, plan)
	if err != nil {
		return err
	}
	err = during()
	retry.Sleep(ctx, 2*time.Second)
	sent, forbidden := 0, 0
	var bad []string
	for _, r := range running.Stop() {
		if r.Allowed {
			sent += r.Sent
		} else {
			forbidden += r.Sent
		}
		if r.Bad() {
			bad = append(bad, fmt.Sprintf("%s: %d of %d lost, %d wrong: %s", r.Name, r.Lost, r.Sent, r.Wrong, join(r.Why)))
		}
	}
	m.say("  %d flows: %d messages that are allowed, %d that are not", len(plan), sent, forbidden)
	if len(bad) > 0 {
		err = errors.Join(err, fmt.Errorf("%d flows lost messages or got through, such as %s", len(bad), bad[0]))
	}
	return err
}

func (m *mesh) store(ctx context.Context) error {
	info, err := m.b.Info()
	if err != nil {
		return err
	}
	err = m.traffic(ctx, func() error {
		if err := info.Processes["mesh-etcd"].Send(unix.SIGKILL); err != nil {
			return err
		}
		return lab.Eventually(ctx, 2*timeout, func(ctx context.Context) error {
			for _, n := range m.a.nodes {
				r, err := m.a.remote(ctx, n, m.b.Name)
				if err == nil && (r.Connected || !r.Ready) {
					err = fmt.Errorf("agent %s/%s says connected %t, ready %t", m.a.Name, n, r.Connected, r.Ready)
				}
				if err != nil {
					return err
				}
			}
			return nil
		})
	})
	if err != nil {
		return fmt.Errorf("while it is away: %w", err)
	}
	if err := m.policy(ctx); err != nil {
		return fmt.Errorf("while it is away: %w", err)
	}
	if err := m.hawser(ctx, m.out, "sandbox", "up", "--kubernetes", "--name", m.b.Name); err != nil {
		return err
	}
	err = lab.Eventually(ctx, 2*timeout, func(ctx context.Context) error {
		for _, n := range m.a.nodes {
			if r, err := m.a.remote(ctx, n, m.b.Name); err != nil || !r.Connected {
				return errors.Join(err, fmt.Errorf("agent %s/%s is not connected again: %s", m.a.Name, n, r.LastError))
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	// And what changes from now on is observed.
	return m.relabelBack(ctx)
}

// relabelBack is relabel the other way: a pod of the second cluster, of whose store the first one
// observes.
func (m *mesh) relabelBack(ctx context.Context) error {
	m.a, m.b = m.b, m.a
	defer func() { m.a, m.b = m.b, m.a }()
	return m.relabel(ctx)
}

func (m *mesh) agents(ctx context.Context) error {
	err := m.traffic(ctx, func() error {
		for _, args := range [][]string{{"rollout", "restart"}, {"rollout", "status", "--timeout=2m"}} {
			args = append([]string{"-n", "kube-system", args[0], args[1], "daemonset/hawser-agent"}, args[2:]...)
			if _, err := m.a.Kubectl(ctx, "", args...); err != nil {
				return err
			}
		}
		return nil
	})
	return errors.Join(err, m.policy(ctx))
}

func (m *mesh) disconnect(ctx context.Context) error {
	if err := m.hawser(ctx, m.out, "clustermesh", "disconnect", m.a.Name, m.b.Name); err != nil {
		return err
	}
	var probes []probe
	for _, s := range m.sides() {
		probes = append(probes, pairs(s, m.other(s), "client", "server", false)...)
		probes = append(probes, pairs(s, m.other(s), "client", "open", false)...)
	}
	for i := range probes {
		probes[i].refused = true // the router has no route to these addresses
	}
	asked, err := m.ask(probes)
	if err != nil {
		return err
	}
	m.say("  %d probes across, none got through", asked)
	for _, s := range m.sides() {
		if err := m.left(ctx, s); err != nil {
			return fmt.Errorf("left in %s: %w", s.Name, err)
		}
	}
	return nil
}

// left says what of the other cluster is still there in a cluster.
func (m *mesh) left(ctx context.Context, s *side) error {
	o := m.other(s)
	if _, err := s.Kube.CoreV1().Secrets("kube-system").Get(ctx, connect.MeshSecret, metav1.GetOptions{}); !apierrors.IsNotFound(err) {
		return fmt.Errorf("the Secret %s (%w)", connect.MeshSecret, err)
	}
	info, err := o.Info()
	if err != nil {
		return err
	}
	theirs := []string{"io.cilium.k8s.policy.cluster=" + o.Name, o.Name + "/"}
	for _, n := range info.Nodes {
		theirs = append(theirs, n.IPv4.String()+" ", strings.TrimSuffix(n.Pods4.String(), "0/24"), strings.TrimSuffix(n.Pods6.String(), ":/64"))
	}
	for _, n := range s.nodes {
		for _, argv := range [][]string{
			{"hawser", "node", "list"}, {"hawser", "identity", "list"}, {"hawser", "bpf", "ipcache", "list"}, {"hawser", "service", "list"},
			{"ip", "route"}, {"ip", "-6", "route"}, {"nft", "list", "ruleset"},
		} {
			text, err := s.Exec(ctx, n, argv...)
			if err != nil {
				return err
			}
			for line := range strings.Lines(text) {
				if slices.ContainsFunc(theirs, func(t string) bool { return strings.Contains(line, t) }) {
					return fmt.Errorf("on %s, %s: %s", n, strings.Join(argv, " "), strings.TrimSpace(line))
				}
			}
		}
	}
	links, err := s.Exec(ctx, "world", "ip", "-o", "link")
	if err == nil && strings.Contains(links, "mesh") {
		err = fmt.Errorf("in the world: %s", links)
	}
	return err
}
