package agent

import (
	"net"
	"net/http"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"testing"

	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	agentrest "github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// muffle has a node reach the API server through m, without TLS, over which alone clients send
// their tokens: the proxy adds it. It is called before the node starts.
func (c *kubeCluster) muffle(n *machineNode, m *kubeapi.Muffler) {
	c.t.Helper()
	target, err := url.Parse(c.Config.Host)
	if err != nil {
		c.t.Fatal(err)
	}
	transport, err := rest.TransportFor(&rest.Config{Host: c.Config.Host, BearerToken: c.Config.BearerToken, TLSClientConfig: rest.TLSClientConfig{Insecure: true}})
	if err != nil {
		c.t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.Transport, proxy.FlushInterval = m.Transport(transport), -1
	var l net.Listener
	n.ns.Must(c.t, func() (err error) {
		l, err = net.Listen("tcp", "127.0.0.1:0")
		return err
	})
	server := &http.Server{Handler: proxy}
	done := make(chan struct{})
	go func() { defer close(done); _ = server.Serve(l) }()
	c.t.Cleanup(func() { m.Off(); server.Close(); <-done })
	path := n.path("kubeconfig")
	cfg, err := clientcmd.LoadFromFile(path)
	if err != nil {
		c.t.Fatal(err)
	}
	cfg.Clusters["c"].Server = "http://" + l.Addr().String()
	if err := clientcmd.WriteToFile(*cfg, path); err != nil {
		c.t.Fatal(err)
	}
}

// TestUnobservedPeerIsDenied: a node observes the addresses of other nodes' pods, and gets packets
// of theirs with identities, whose labels its own watch has not delivered yet. What a deny by
// labels is to keep out does not get in meanwhile, nor when the agent is killed and another one
// starts, which waits for them. Who was known before is let in all the time. A deny by a name of
// the peer's ports denies it every port meanwhile, and one of the cluster denies it too.
func TestUnobservedPeerIsDenied(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	m := &kubeapi.Muffler{Kinds: []string{"ciliumidentities"}}
	c.muffle(n1, m)
	n1.policy("web.yaml", denyEvil)
	n1.policy("more.yaml", `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: client, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: client}}
  egress: [{toEntities: [all]}]
  egressDeny: [{toEndpoints: [{matchExpressions: [{key: app, operator: NotIn, values: [good]}]}], toPorts: [{ports: [{port: echo}]}]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: outer, namespace: default}
spec: {endpointSelector: {matchLabels: {app: outer}}, ingress: [{fromEntities: [all]}], ingressDeny: [{fromEntities: [cluster]}]}
`)
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes")
		n.start()
	}
	web := c.pod(n1, "web", map[string]string{"app": "web"})
	open := c.pod(n1, "open", map[string]string{"app": "open"})
	client, outer := c.pod(n1, "client", map[string]string{"app": "client"}), c.pod(n1, "outer", map[string]string{"app": "outer"})
	good := c.pod(n2, "good", map[string]string{"app": "good"})
	for _, p := range []*machinePod{web, open, outer, good} {
		for _, to := range p.both(80) {
			serveEcho(t, p.ns, to)
		}
	}
	each := func(f func(to netip.AddrPort)) {
		for _, to := range web.both(80) {
			f(to)
		}
	}
	each(func(to netip.AddrPort) { c.passing("good, at first", good, to) })
	knows := func(p *machinePod) bool {
		_, err := n1.client.Identity(t.Context(), strconv.Itoa(p.endpoint().Status.Identity.ID))
		return err == nil
	}
	await := func(p *machinePod) {
		t.Helper()
		c.eventually("the address of a new pod is observed", func() bool {
			m, err := n1.client.Map(t.Context(), "ipcache")
			return err == nil && slices.ContainsFunc(m.Cache, func(e agentrest.BPFMapEntry) bool {
				return e.IPCache.Prefix == p.ip4.String()+"/32" && e.IPCache.Identity == p.endpoint().Status.Identity.ID
			})
		})
	}
	m.On()
	evil, new := c.pod(n2, "evil", map[string]string{"app": "evil"}), c.pod(n2, "new", map[string]string{"app": "new"})
	await(evil)
	await(new)
	if knows(evil) || knows(new) {
		t.Fatal("the watch of identities delivers")
	}
	each(func(to netip.AddrPort) {
		c.blocked("evil, not observed yet", evil, to)
		c.blocked("new, not observed yet", new, to)
		c.passing("good, meanwhile", good, to)
	})
	for i, to := range open.both(80) { // nothing denies there
		c.passing("evil to a pod that denies nobody", evil, to)
		c.blocked("evil to a pod that denies the cluster", evil, outer.both(80)[i])
		c.passing("to good, whose ports are known", client, good.both(80)[i])
	}
	for _, to := range new.both(80) {
		serveEcho(t, new.ns, to)
		c.blocked("to new, whose ports may have any names", client, to)
	}
	n1.kill()
	n1.launch()
	n1.serving(false)
	each(func(to netip.AddrPort) {
		c.passing("good, after a restart", good, to)
		c.blocked("evil, after a restart", evil, to)
	})
	m.Off()
	c.eventually("the identities are observed", func() bool { return knows(evil) && knows(new) })
	each(func(to netip.AddrPort) {
		c.passing("new, once it is observed", new, to)
		c.blocked("evil, once it is observed", evil, to)
	})
	for i, to := range new.both(80) {
		c.passing("to new, which has no port of that name", client, to)
		c.blocked("evil to a pod that denies the cluster, once it is observed", evil, outer.both(80)[i])
	}
}

// TestUnobservedAddressIsDenied: with native routing a node gets packets of other nodes' pods whose
// addresses it has not observed yet. What a deny by labels is to keep out does not get in, and is
// not outside of the cluster, also if a policy of another namespace names parts of the network that
// the pods are in.
func TestUnobservedAddressIsDenied(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	m := &kubeapi.Muffler{Kinds: []string{"ciliumendpoints"}}
	c.muffle(n1, m)
	n1.policy("web.yaml", denyEvil+`---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: front, namespace: default}
spec: {endpointSelector: {matchLabels: {app: front}}, ingress: [{fromEntities: [world]}]}
`)
	n1.policy("other.yaml", `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: halves, namespace: other}
spec:
  endpointSelector: {}
  egress: [{toCIDR: [10.0.2.0/24, 10.0.2.0/25, 10.0.2.128/25, 'fd00:2::/112', 'fd00:2::/113', 'fd00:2::8000/113']}]
`)
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes", "--routing-mode", "native")
		n.start()
	}
	web, front := c.pod(n1, "web", map[string]string{"app": "web"}), c.pod(n1, "front", map[string]string{"app": "front"})
	good := c.pod(n2, "good", map[string]string{"app": "good"})
	for _, p := range []*machinePod{web, front} {
		for _, to := range p.both(80) {
			serveEcho(t, p.ns, to)
		}
	}
	for i, to := range web.both(80) {
		c.passing("good, at first", good, to)
		c.blocked("good to what is for the world", good, front.both(80)[i])
	}
	m.On()
	evil := c.pod(n2, "evil", map[string]string{"app": "evil"})
	blocked := func(when string) {
		t.Helper()
		for i, to := range web.both(80) {
			c.blocked("evil, "+when, evil, to)
			c.blocked("evil to what is for the world, "+when, evil, front.both(80)[i])
			c.passing("good, "+when, good, to)
		}
	}
	blocked("not observed yet")
	list, err := n1.client.IPs(t.Context(), evil.ip4.String()+"/32", nil)
	if err == nil && len(list) > 0 {
		t.Fatalf("the watch of endpoints delivers: %+v", list)
	}
	m.Off()
	c.eventually("the address is observed", func() bool {
		list, err := n1.client.IPs(t.Context(), evil.ip4.String()+"/32", nil)
		return err == nil && len(list) == 1 && list[0].Identity == evil.endpoint().Status.Identity.ID
	})
	blocked("once it is observed")
}
