package agent

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
)

// TestAttachTwice: a runtime that asks again for an interface that a pod has is refused, and the
// pod goes on talking.
func TestAttachTwice(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	web, peer := n.attached("web", map[string]string{"app": "web"}), n.attached("peer", map[string]string{"app": "peer"})
	for _, to := range peer.both(80) {
		serveEcho(t, peer.ns, to)
	}
	talk := func(when string) {
		t.Helper()
		for _, to := range peer.both(80) {
			if err := ask(t, web.ns, to, 64, false, 5*time.Second); err != nil {
				t.Fatalf("%s: %s: %v", when, to, err)
			}
		}
	}
	talk("before")
	before := n.audit()
	if out, err := web.run("ADD"); err == nil || !strings.Contains(string(out)+err.Error(), "has interface eth0 already") {
		t.Errorf("ADD of what is there: %s, %v", out, err)
	}
	talk("after the second ADD")
	n.sameAudit(before, "after the second ADD")
	n.stop()
}

// TestAddressesOfTheHost: the node has addresses in its pod CIDRs on an interface that another
// program made. No pod gets them, and no client can reserve them.
func TestAddressesOfTheHost(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	must := func(args ...string) {
		t.Helper()
		if out := n.command("ip", args...); out != "" {
			t.Fatalf("ip %s: %s", strings.Join(args, " "), out)
		}
	}
	must("link", "add", "other0", "type", "veth", "peer", "name", "other1")
	must("link", "set", "other0", "up")
	must("link", "set", "other1", "up") // without a carrier, IPv6 addresses are not in use yet
	taken := []string{"10.0.1.2", "10.0.1.3", "10.0.1.5", "fd00:1::2", "fd00:1::4"}
	for _, ip := range taken {
		args := []string{"addr", "add", ip, "dev", "other0"}
		if strings.Contains(ip, ":") {
			args = append(args, "nodad")
		}
		must(args...)
	}
	n.start()
	for range 6 {
		got, err := n.client.AllocateIP(t.Context(), rest.AllocateIPParams{Owner: "default/web"})
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range taken {
			if got.Address.IPv4 == ip || got.Address.IPv6 == ip {
				t.Errorf("%s is the host's and was given to a pod", ip)
			}
		}
	}
	// One that comes while the agent runs.
	must("addr", "add", "10.0.1.77", "dev", "other0")
	if err := n.client.ReserveIP(t.Context(), "10.0.1.77", rest.ReserveIPParams{Owner: "default/web"}); client.StatusCode(err) != http.StatusConflict {
		t.Errorf("an address that the host has is reserved: %v, want status 409", err)
	}
	n.stop()
}

// TestAddressOfADeadPlugin: the agent ends between giving an address and making the endpoint, which
// then fails, and the plugin ends before it gives the address back. It expires as if the agent had
// not ended.
func TestAddressOfADeadPlugin(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--ipam-expiration", "3s")
	n.start()
	ctx := context.Background()
	given, err := n.client.AllocateIP(ctx, rest.AllocateIPParams{Owner: "default/web", Expiration: true})
	if err != nil {
		t.Fatal(err)
	}
	n.kill()
	n.start()
	_, err = n.client.CreateEndpoint(ctx, "cilium-local:0", rest.EndpointChangeRequest{
		State: rest.EndpointStateWaitingForIdentity, ContainerID: "dead", ContainerInterfaceName: "eth0", InterfaceName: "lxcdead", InterfaceIndex: 4711,
		Addressing: given.Address, K8SPodName: "web", K8SNamespace: "default", MAC: "02:00:00:00:00:01", HostMAC: "02:00:00:00:00:02", ContainerNetnsPath: "/proc/1/ns/net",
	})
	if err == nil {
		t.Fatal("an endpoint whose interface does not exist was made")
	}
	t.Log(err)
	held := func() bool { _, ok := n.addresses()[given.Address.IPv4]; return ok }
	if !held() {
		t.Fatalf("the address is not held while the plugin may try again: %v", n.addresses())
	}
	for deadline := time.Now().Add(30 * time.Second); held(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("the address is never free again: %v", n.addresses())
		}
	}
	n.stop()
}
