package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/peer"
	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/v2"
)

// What an agent knows of bad peers keeps it neither from starting nor from routing to good ones; it
// says which they are, and routes to them when the obstacle is gone. The peers are those that the
// agent before left on disk.
func TestAgentStartsWithBadPeers(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	if err := os.MkdirAll(n.path("run/state"), 0o755); err != nil {
		t.Fatal(err)
	}
	peers := `[{"Name":"afar","IPv4":"198.51.100.9","IPv6":"","PodCIDRs":["10.0.2.0/24"]},
		{"Name":"blocked","IPv4":"192.0.2.3","IPv6":"","PodCIDRs":["10.0.3.0/24"]},
		{"Name":"good","IPv4":"192.0.2.4","IPv6":"2001:db8::4","PodCIDRs":["10.0.4.0/24","fd00:4::/112"]},
		{"Name":"other/far","Cluster":"other","ClusterID":300,"IPv4":"192.0.2.6","IPv6":"","PodCIDRs":["10.0.6.0/24"]},
		{"Name":"mine","IPv4":"192.0.2.5","IPv6":"","PodCIDRs":["10.0.1.0/24"]}]`
	if err := os.WriteFile(n.path("run/state/peers.json"), []byte(peers), 0o600); err != nil {
		t.Fatal(err)
	}
	n.command("ip", "route", "add", "10.0.3.0/24", "via", outside4, "proto", "bird")
	// A store that is not there: no other node is observed.
	n.flags = append(n.flags, "--routing-mode", "native", "--kvstore", "etcd", "--kvstore-opt", "etcd.address=http://127.0.0.1:9",
		"--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"))
	n.launch()
	n.serving(false)
	if peers, err := peer.NewPeerClient(n.flowConn(n.path("run/hubble.sock"))).Notify(t.Context(), &peer.NotifyRequest{}); err != nil {
		t.Error(err)
	} else if list, err := peers.Recv(); status.Code(err) != codes.Unavailable {
		t.Errorf("a relay gets %v (%v) as if there were no other nodes", list, err)
	}

	routes := func() string {
		return n.command("ip", "route", "show", "proto", "72") + n.command("ip", "-6", "route", "show", "proto", "72")
	}
	for _, want := range []string{"10.0.4.0/24 via 192.0.2.4", "fd00:4::/112 via 2001:db8::4", "unreachable 10.0.1.0/24"} {
		if !strings.Contains(routes(), want) {
			t.Errorf("no route %q in\n%s", want, routes())
		}
	}
	if out := n.command("ip", "route", "get", "10.0.1.77"); strings.Contains(out, "192.0.2.5") {
		t.Errorf("this node's own network leads to a peer: %s", out)
	}
	said := func() (msg string) {
		st, err := n.client.Health(context.Background(), false)
		i := slices.IndexFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == "routes" })
		if err == nil && i >= 0 {
			msg = st.Parts[i].Msg
		}
		return msg
	}
	eventually := func(what string, ok func() bool) {
		t.Helper()
		for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(50 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("%s: not after a minute; the status says %q; routes\n%s", what, said(), routes())
			}
		}
	}
	own := "identities 256 to 65535"
	n.tunnelFrom("the others are known", map[string]string{"198.51.100.9": own, "192.0.2.3": own, "192.0.2.4": own, "2001:db8::4": own, "192.0.2.5": own})
	if strings.Contains(routes(), "10.0.6.0/24") {
		t.Errorf("a route to a node of a cluster that there cannot be:\n%s", routes())
	}
	eventually("the status names the peers", func() bool {
		return strings.Contains(said(), "node afar") && strings.Contains(said(), "node other/far of cluster other is refused") && strings.Contains(said(), "10.0.3.0/24") && strings.Contains(said(), "--auto-direct-node-routes=false")
	})
	for _, node := range []string{"node=afar", "node=blocked"} {
		if !strings.Contains(n.logText(), node) {
			t.Errorf("the log does not name %s", node)
		}
	}
	n.command("ip", "route", "del", "10.0.3.0/24", "proto", "bird")
	eventually("the obstacle is gone", func() bool { return strings.Contains(routes(), "10.0.3.0/24 via 192.0.2.3") })
	eventually("the status says so", func() bool { return !strings.Contains(said(), "10.0.3.0/24") && strings.Contains(said(), "node afar") })
}

// TestHostileCiliumNodes: what a node writes into its own CiliumNode keeps others neither from
// routes to the rest, nor from being ready, and makes no route where no pods are.
func TestHostileCiliumNodes(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes")
	n.start()
	say := func(name, ip string, cidrs ...string) {
		t.Helper()
		o := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v2.NodeSpec{Addresses: []v2.NodeAddress{{Type: "InternalIP", IP: ip}}, IPAM: v2.IPAMSpec{PodCIDRs: cidrs}}}
		if _, err := c.ciliumNodes().Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprintf("10.%d.%d.0/24", 100+i/256, i%256))
	}
	say("mapped", "192.0.2.66", "::ffff:10.9.0.0/112")
	say("half", "192.0.2.67", "0.0.0.0/1", "128.0.0.0/1")
	say("metadata", "192.0.2.68", "169.254.0.0/16")
	say("many", "192.0.2.69", many...)
	say("good", "192.0.2.70", "10.0.7.0/24", "fd00:7::/112")
	routes := func() string {
		return n.command("ip", "route", "show", "proto", "72") + n.command("ip", "-6", "route", "show", "proto", "72")
	}
	c.eventually("the routes to a node that says what is right", func() bool {
		return strings.Contains(routes(), "10.0.7.0/24") && strings.Contains(routes(), "fd00:7::/112")
	})
	if p := n.part("routes"); p.State == rest.StateFailure {
		t.Errorf("the node is not ready: %+v", p)
	}
	for _, never := range []string{"0.0.0.0/1", "128.0.0.0/1", "169.254.0.0/16", "10.100.0.0/24", "10.9.0.0"} {
		if strings.Contains(routes(), never) {
			t.Errorf("a route to %s", never)
		}
	}
	for _, name := range []string{"node=mapped", "node=half", "node=metadata", "node=many"} {
		c.eventually("the log names "+name, func() bool { return strings.Contains(n.logText(), name) })
	}
	n.stop()
}

// command runs a command on the node and returns what it says, also if it fails.
func (n *machineNode) command(name string, args ...string) (out string) {
	n.t.Helper()
	n.ns.Must(n.t, func() error {
		text, err := exec.Command(name, args...).CombinedOutput()
		out = string(text)
		if _, failed := errors.AsType[*exec.ExitError](err); failed {
			return nil
		}
		return err
	})
	return out
}
