package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// insideAgent is the namespace of an agent's health endpoint, which has no name: a descriptor of
// the agent is the way in.
type insideAgent struct{ path string }

// healthNS finds it.
func (n *machineNode) healthNS() insideAgent {
	n.t.Helper()
	own, err := os.Stat(n.ns.Path())
	if err != nil {
		n.t.Fatal(err)
	}
	dir := fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid)
	fds, err := os.ReadDir(dir)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, fd := range fds {
		path := filepath.Join(dir, fd.Name())
		if to, err := os.Readlink(path); err == nil && (strings.HasPrefix(to, "net:[") || strings.HasSuffix(to, "/ns/net")) {
			if st, err := os.Stat(path); err == nil && !os.SameFile(st, own) {
				return insideAgent{path}
			}
		}
	}
	n.t.Fatal("the agent holds no namespace but its own")
	return insideAgent{}
}

// Do calls fn on a thread inside, which comes back: the namespace must not stay because a thread is
// in it.
func (in insideAgent) Do(fn func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		previous, err := os.Open("/proc/thread-self/ns/net")
		if err != nil {
			done <- err
			return
		}
		defer previous.Close()
		f, err := os.Open(in.path)
		if err == nil {
			err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET)
			f.Close()
		}
		if err == nil {
			err = fn()
		}
		if back := unix.Setns(int(previous.Fd()), unix.CLONE_NEWNET); back == nil {
			runtime.UnlockOSThread()
		}
		done <- err
	}()
	return <-done
}

// done runs a command on the node that must succeed.
func (n *machineNode) done(name string, args ...string) {
	n.t.Helper()
	if out := n.command(name, args...); out != "" {
		n.t.Fatalf("%s %v: %s", name, args, out)
	}
}

// health is what a node knows of another, in short: which ways do not work, and since when; ok is
// false while something was not probed since.
func (n *machineNode) health(of string, since time.Time) (failing []string, ok bool) {
	n.t.Helper()
	st, err := n.client.ClusterHealth(n.t.Context())
	if err != nil {
		n.t.Fatal(err)
	}
	i := slices.IndexFunc(st.Nodes, func(h rest.HealthNode) bool { return h.Name == "default/"+of })
	if i < 0 {
		return nil, false
	}
	for kind, addrs := range map[string]rest.HealthAddresses{"node": st.Nodes[i].Host, "endpoint": st.Nodes[i].HealthEndpoint} {
		paths := append([]rest.HealthPath{addrs.PrimaryAddress}, addrs.SecondaryAddresses...)
		if len(paths) != 2 {
			return nil, false // both families
		}
		for _, p := range paths {
			for way, c := range map[string]rest.HealthConnectivity{"icmp": p.ICMP, "http": p.HTTP} {
				if c.LastProbed.Before(since) {
					return nil, false
				}
				if c.Status != "" {
					family := "4"
					if strings.Contains(p.IP, ":") {
						family = "6"
					}
					failing = append(failing, kind+" "+way+family)
				}
			}
		}
	}
	slices.Sort(failing)
	return failing, true
}

// wantHealth waits until a node knows of another that just these ways do not work.
func (n *machineNode) wantHealth(what, of string, want ...string) {
	n.t.Helper()
	began := time.Now()
	controllers.Eventually(n.t, 2*time.Minute, func() string {
		got, ok := n.health(of, began)
		if ok && slices.Equal(got, want) {
			return ""
		}
		return fmt.Sprintf("%s: %s says of %s that %q do not work (all probed: %t), want %q", what, n.name, of, got, ok, want)
	})
}

// showsClientsOfFlows waits until a node shows them that just these ways do not work, since a time.
func (n *machineNode) showsClientsOfFlows(since time.Time, want ...string) {
	n.t.Helper()
	client := health.NewNodeHealthClient(n.flowConn(n.path("run/hubble.sock")))
	controllers.Eventually(n.t, time.Minute, func() string {
		res, err := client.Get(n.t.Context(), &health.GetRequest{})
		if err != nil || len(res.GetNodes()) != 1 || len(want) == 0 && res.GetNodes()[0].GetLatency().AsDuration() <= 0 || int(res.GetNodes()[0].GetUnreachable()) != len(want) {
			return fmt.Sprintf("%s: %v, %v", n.name, res, err)
		}
		var got []string
		for _, f := range res.GetFailures() {
			var ways []string
			for _, w := range f.GetWays() {
				ways = append(ways, w.GetKind()+" "+w.GetAddress())
			}
			got = append(got, fmt.Sprintf("%s to %s: %s", f.GetFrom(), f.GetTo(), strings.Join(ways, ", ")))
			if at := f.GetSince().AsTime(); at.Before(since.Add(-time.Minute)) || at.After(time.Now()) {
				return fmt.Sprintf("since %v, want about %v", at, since)
			}
		}
		if !slices.Equal(got, want) {
			return fmt.Sprintf("%s reports %q, want %q", n.name, got, want)
		}
		return ""
	})
}

// onlyHealth lets health endpoints reach watched, and no others.
const onlyHealth = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: watched, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: watched}}
  ingress:
  - fromEntities: [health]
`

// TestClusterHealth runs two agents that probe each other, and cuts what is between them: who
// cannot reach whom is named, with the way and the time.
func TestClusterHealth(t *testing.T) {
	for _, mode := range []string{"tunnel", "native"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			_, n1, n2 := nodesWithStore(t, "--routing-mode", mode)
			n1.race = mode == "tunnel"
			for _, n := range []*machineNode{n1, n2} {
				n.flags = append(n.flags, "--enable-health-checking", "--cluster-health-interval", "1s", "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"))
				n.policy("watched.yaml", onlyHealth)
				n.start()
			}
			all := []string{"endpoint http4", "endpoint http6", "endpoint icmp4", "endpoint icmp6", "node http4", "node http6", "node icmp4", "node icmp6"}
			for _, n := range []*machineNode{n1, n2} {
				for _, of := range []string{"n1", "n2"} {
					n.wantHealth("at first", of)
				}
			}

			// The endpoint: identity 4, known to the other node, and of use in policies.
			ep, err := n2.client.Endpoint(t.Context(), "container-name:"+"cilium-health-ep")
			if err != nil || ep.Status.Identity.ID != int(identity.Health) || ep.Status.State != rest.EndpointStateReady {
				t.Fatalf("the health endpoint: %+v, %v", ep.Status.Identity, err)
			}
			for _, ip := range []string{ep.Status.Networking.Addressing[0].IPv4, ep.Status.Networking.Addressing[0].IPv6} {
				if list, err := n1.client.IPs(t.Context(), ip, nil); err != nil || len(list) != 1 || list[0].Identity != int(identity.Health) {
					t.Errorf("n1 knows of %s: %+v, %v", ip, list, err)
				}
			}
			if code, body := n2.call("PATCH", fmt.Sprintf("/endpoint/%d/labels", ep.ID), `{"user": ["k8s:app=watched"]}`); code != 400 {
				t.Errorf("the health endpoint gets labels: %d %s", code, body)
			}
			watched, denied := n1.attached("watched", map[string]string{"app": "watched"}), n2.attached("denied", map[string]string{"app": "denied"})
			for _, to := range watched.both(80) {
				serveEcho(t, watched.ns, to)
				reaches(t, "health endpoint of the other node to a pod that allows health", n2.healthNS(), to, 1400)
				reaches(t, "health endpoint of its node", n1.healthNS(), to, 1400)
				refused(t, "a pod to one that allows health only", denied.ns, to)
			}

			// One way only: requests of n1 do not arrive at n2's own addresses. n1 says so, n2 has
			// nothing to say.
			began := time.Now()
			n2.done("nft", "add", "table", "inet", "cut")
			n2.done("nft", "add", "chain", "inet", "cut", "in", "{ type filter hook prerouting priority -400 ; }")
			n2.done("nft", "add", "rule", "inet", "cut", "in", "iifname", "eth0", "icmp", "type", "echo-request", "drop")
			n2.done("nft", "add", "rule", "inet", "cut", "in", "iifname", "eth0", "icmpv6", "type", "echo-request", "drop")
			// Those to the endpoint are in the tunnel, or taken to it before netfilter sees them.
			n1.wantHealth("echo requests are dropped on their way", "n2", "node icmp4", "node icmp6")
			n2.wantHealth("echo requests to itself are dropped", "n1")
			n1.wantHealth("a node is cut off from another", "n1")
			n1.showsClientsOfFlows(began, "default/n1 to default/n2: icmp 192.0.2.2, icmp 2001:db8::2")
			n2.showsClientsOfFlows(began)
			st, err := n1.client.Health(t.Context(), false)
			sum := st.Cluster.CiliumHealth
			_, stamp, named := strings.Cut(sum.Msg, "default/n2 since ")
			if since, perr := time.Parse(time.RFC3339, stamp); err != nil || sum.State != rest.StateWarning || !named || perr != nil ||
				since.Before(began.Truncate(time.Second)) || since.After(time.Now()) {
				t.Errorf("the status of n1: %+v, %v %v; it began at %v", sum, err, perr, began)
			}
			if st.Cilium.State != rest.StateOk {
				t.Errorf("the agent itself is %+v: another node is no fault of its own", st.Cilium)
			}
			metrics := func(n *machineNode) map[string]float64 {
				_, body := n.call("GET", "/metrics", "")
				out := map[string]float64{}
				for _, m := range parseMetrics(t, body) {
					out[m.Name+m.Labels["node"]+m.Labels["type"]+m.Labels["status"]] = m.Value
				}
				return out
			}
			if m := metrics(n1); m["cilium_unreachable_nodes"] != 1 || m["cilium_node_health_connectivity_statusnodereachable"] != 1 ||
				m["cilium_node_unreachable_since_secondsdefault/n2node"] < float64(began.Unix()) {
				t.Errorf("metrics of n1: %v unreachable, since %v; it began %d", m["cilium_unreachable_nodes"], m["cilium_node_unreachable_since_secondsdefault/n2node"], began.Unix())
			}
			if m := metrics(n2); m["cilium_unreachable_nodes"] != 0 {
				t.Errorf("n2 says that %v nodes are unreachable", m["cilium_unreachable_nodes"])
			}

			// All that n2 sends is lost: neither gets anything from the other, and each is well
			// with itself.
			n2.done("nft", "flush", "chain", "inet", "cut", "in")
			n1.wantHealth("nothing is dropped", "n2")
			n2.done("tc", "qdisc", "add", "dev", "eth0", "root", "blackhole")
			n1.wantHealth("what n2 sends is lost", "n2", all...)
			n2.wantHealth("what n2 sends is lost", "n1", all...)
			n1.wantHealth("what n2 sends is lost", "n1")
			n2.done("tc", "qdisc", "del", "dev", "eth0", "root")
			for _, n := range []*machineNode{n1, n2} {
				n.wantHealth("all is well again", "n1")
				n.wantHealth("all is well again", "n2")
			}

			// An agent that is killed takes its endpoint along; the next one has the same
			// addresses. So has one that a client deleted.
			addrs := ep.Status.Networking.Addressing[0]
			n2.kill()
			n1.wantHealth("the agent of n2 is away", "n2", "endpoint http4", "endpoint http6", "endpoint icmp4", "endpoint icmp6", "node http4", "node http6")
			n2.start()
			n1.wantHealth("the agent of n2 is back", "n2")
			again, err := n2.client.Endpoint(t.Context(), "container-name:"+"cilium-health-ep")
			if err != nil || again.Status.Networking.Addressing[0] != addrs {
				t.Errorf("after a restart: %+v, %v; want %+v", again.Status.Networking.Addressing, err, addrs)
			}
			if _, err := n2.client.DeleteEndpoint(t.Context(), fmt.Sprint(again.ID)); err != nil {
				t.Fatal(err)
			}
			n1.wantHealth("a client deleted the endpoint", "n2")
			n2.noDoubles("at the end")
			stops := []*machineNode{n1, n2}
			for _, n := range stops {
				n.stop()
			}
		})
	}
}

// TestHealthOff: without health checking nothing is probed and nothing listens, and clients get an
// error so; without the endpoint, nodes are probed alone.
func TestHealthOff(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"))
	n.start()
	if _, err := n.client.ClusterHealth(t.Context()); client.StatusCode(err) != 501 {
		t.Errorf("cluster health of an agent without: %v", err)
	}
	if _, err := health.NewNodeHealthClient(n.flowConn(n.path("run/hubble.sock"))).Get(t.Context(), &health.GetRequest{}); status.Code(err) != codes.FailedPrecondition {
		t.Errorf("clients of flows get: %v", err)
	}
	if st, err := n.client.Health(t.Context(), false); err != nil || st.Cluster.CiliumHealth.State != rest.StateDisabled {
		t.Errorf("status: %+v, %v", st.Cluster.CiliumHealth, err)
	}
	if names := n.ns.LinkNames(t); slices.Contains(names, "lxc_health") {
		t.Errorf("interfaces %v", names)
	}
	n.stop()
	n.flags = append(n.flags, "--enable-health-checking", "--enable-endpoint-health-checking=false", "--cluster-health-interval", "1s")
	n.start()
	var st rest.HealthStatus
	controllers.Eventually(t, time.Minute, func() string {
		var err error
		if st, err = n.client.ClusterHealth(t.Context()); err != nil {
			return err.Error()
		}
		if len(st.Nodes) != 1 || st.Nodes[0].Host.PrimaryAddress.HTTP.LastProbed.IsZero() || st.Nodes[0].Host.PrimaryAddress.HTTP.Status != "" {
			return fmt.Sprintf("the node itself is not probed: %+v", st)
		}
		return ""
	})
	if st.Nodes[0].HealthEndpoint.PrimaryAddress.IP != "" {
		t.Errorf("an endpoint that is off is probed: %+v", st.Nodes[0])
	}
	if eps, err := n.client.Endpoints(t.Context(), nil); err == nil && len(eps) > 0 {
		t.Errorf("endpoints of a node without pods: %+v", eps)
	}
}

// TestHealthSocketIsGuarded: what the configuration keeps from clients of the API it keeps from
// those of health.sock.
func TestHealthSocketIsGuarded(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--enable-health-checking", "--enable-endpoint-health-checking=false", "--enable-cilium-api-server-access", "GetHealthz",
		"--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"))
	n.start()
	if _, err := health.NewNodeHealthClient(n.flowConn(n.path("run/hubble.sock"))).Get(t.Context(), &health.GetRequest{}); status.Code(err) != codes.PermissionDenied {
		t.Errorf("clients of flows get: %v", err)
	}
	h := http.Client{Timeout: time.Minute, Transport: &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", n.path("run/health.sock"))
	}}}
	for path, want := range map[string]int{"/v1beta/status": http.StatusForbidden, "/v1beta/healthz": http.StatusOK} {
		controllers.Eventually(t, time.Minute, func() string {
			resp, err := h.Get("http://localhost" + path)
			if err != nil {
				return err.Error()
			}
			defer resp.Body.Close()
			if body, err := io.ReadAll(resp.Body); err != nil || resp.StatusCode != want {
				return fmt.Sprintf("%s: %s %s, %v; want %d", path, resp.Status, body, err, want)
			}
			return ""
		})
	}
}

func parseMetrics(t *testing.T, body string) (out []rest.Metric) {
	t.Helper()
	if err := json.Unmarshal([]byte(body), &out); err != nil {
		t.Fatalf("metrics: %v: %.200s", err, body)
	}
	return out
}
