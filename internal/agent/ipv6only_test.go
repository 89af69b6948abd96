package agent

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// without4 takes the last address of IPv4 from a namespace, that of loopback, and gives it a
// default route, through its neighbour.
func without4(t *testing.T, ns *testenv.NetNS, via string) {
	t.Helper()
	h := ns.Netlink(t)
	lo, err := h.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	addr, err := netlink.ParseAddr("127.0.0.1/8")
	if err == nil {
		err = h.AddrDel(lo, addr)
	}
	if err == nil {
		err = h.RouteAdd(&netlink.Route{Dst: &net.IPNet{IP: net.IPv6zero, Mask: net.CIDRMask(0, 128)}, Gw: net.ParseIP(via)})
	}
	if err != nil {
		t.Fatal(err)
	}
}

// onlyClients lets the pods of a client reach web, and no others.
const onlyClients = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: web, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: client}}]
`

// TestIPv6Only: nodes that have no IPv4 at all, not even of loopback, are nodes like others: agents
// start and find their device, pods reach each other, on a node and between nodes, and services;
// policies filter them, and nodes know of each other's health.
func TestIPv6Only(t *testing.T) {
	for _, mode := range []string{"tunnel", "native"} {
		t.Run(mode, func(t *testing.T) {
			t.Parallel()
			c := newKubeCluster(t, "--service-cluster-ip-range=fd96::/112", "--advertise-address=::1", "--bind-address=::")
			ns1, ns2 := testenv.NewNetNS(t), testenv.NewNetNS(t)
			testenv.Connect(t, ns1, "eth0", []string{"2001:db8::1/64"}, ns2, "eth0", []string{"2001:db8::2/64"})
			without4(t, ns1, "2001:db8::2")
			without4(t, ns2, "2001:db8::1")
			n1, n2 := c.node(ns1, "n1", "fd00:1::/112"), c.node(ns2, "n2", "fd00:2::/112")
			mtu := 1500
			if mode == "tunnel" {
				mtu = 1430
			}
			for _, n := range []*machineNode{n1, n2} {
				i := slices.Index(n.flags, "--devices") // it is found
				n.flags = slices.Delete(n.flags, i, i+2)
				n.flags = append(n.flags, "--ipam", "kubernetes", "--enable-ipv4=false", "--routing-mode", mode, "--enable-health-checking", "--cluster-health-interval", "1s")
				n.policy("web.yaml", onlyClients)
				n.start()
			}
			for _, n := range []*machineNode{n1, n2} {
				controllers.Eventually(t, 2*time.Minute, func() string {
					st, err := n.client.ClusterHealth(t.Context())
					if err != nil {
						return err.Error()
					}
					for _, h := range st.Nodes {
						for _, p := range []string{h.Host.PrimaryAddress.ICMP.Status, h.Host.PrimaryAddress.HTTP.Status, h.HealthEndpoint.PrimaryAddress.ICMP.Status, h.HealthEndpoint.PrimaryAddress.HTTP.Status} {
							if p != "" {
								return fmt.Sprintf("%s says of %s: %s", n.name, h.Name, p)
							}
						}
						if h.HealthEndpoint.PrimaryAddress.HTTP.LastProbed.IsZero() || len(h.Host.SecondaryAddresses) > 0 {
							return fmt.Sprintf("%s knows of %s: %+v", n.name, h.Name, h)
						}
					}
					if len(st.Nodes) != 2 {
						return fmt.Sprintf("%s knows %d nodes", n.name, len(st.Nodes))
					}
					return ""
				})
			}
			client, local := c.pod(n1, "client", map[string]string{"app": "client"}), c.pod(n1, "local", map[string]string{"app": "web"})
			web, denied := c.pod(n2, "web", map[string]string{"app": "web"}), c.pod(n1, "denied", map[string]string{"app": "denied"})
			if client.ip4.IsValid() || !netip.MustParsePrefix("fd00:1::/112").Contains(client.ip6) {
				t.Fatalf("the client has %s and %s", client.ip4, client.ip6)
			}
			for _, to := range []*machinePod{local, web} {
				at := netip.AddrPortFrom(to.ip6, 80)
				serveEcho(t, to.ns, at)
				connectsAt(t, "whom the policy lets in", client.ns, at.String(), true)
			}
			reaches(t, "on one node", client.ns, netip.AddrPortFrom(local.ip6, 80), mtu)
			reaches(t, "between nodes", client.ns, netip.AddrPortFrom(web.ip6, 80), mtu)
			refused(t, "whom the policy keeps out, between nodes", denied.ns, netip.AddrPortFrom(web.ip6, 80))
			refused(t, "whom the policy keeps out, on one node", denied.ns, netip.AddrPortFrom(local.ip6, 80))

			// A service, of IPv6 as all are there.
			svc, err := c.client.Kube.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 8080, TargetPort: intstr.FromInt32(80)}}},
			}, metav1.CreateOptions{})
			if err != nil {
				t.Fatal(err)
			}
			port, name := int32(80), "http"
			if _, err := c.client.Kube.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
				ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv6,
				Endpoints: []discoveryv1.Endpoint{{Addresses: []string{web.ip6.String()}}},
				Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
			}, metav1.CreateOptions{}); err != nil {
				t.Fatal(err)
			}
			vip := netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), 8080)
			connectsAt(t, "the service", client.ns, vip.String(), true)
			if err := once(denied.ns, vip, impatient); err == nil {
				t.Error("whom the policy keeps out reaches the service")
			}
			// A restart finds everything again.
			n1.kill()
			n1.start()
			connectsAt(t, "after a restart", client.ns, netip.AddrPortFrom(web.ip6, 80).String(), true)
			connectsAt(t, "the service after a restart", client.ns, vip.String(), true)
			n1.stop()
			n2.stop()
		})
	}
}
