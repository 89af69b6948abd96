package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/client-go/gentype"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-net/hawser/api/rest"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// kubeCluster is a real API server with nodes whose agents know it.
type kubeCluster struct {
	*kubeapi.Server
	t      testing.TB
	client *k8s.Client
}

// servers are the API servers of the tests.
var servers = controllers.NewPool(6)

// newKubeCluster returns a cluster of an API server that has only the test's own objects. With
// flags it is started for the test.
func newKubeCluster(t testing.TB, flags ...string) *kubeCluster {
	t.Helper()
	testenv.RequireRoot(t)
	var server *kubeapi.Server
	if len(flags) == 0 {
		server = servers.Take(t).Server
	} else {
		server = kubeapi.Start(t, flags...)
		server.DefineResources()
	}
	client, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	return &kubeCluster{Server: server, t: t, client: client}
}

// reach has the server answer inside a node's namespace too, at an address of its own there, and
// gives the node a kubeconfig for it, with the rights that an agent has where deploy/hawser.yaml is
// installed.
func (c *kubeCluster) reach(n *machineNode) {
	c.t.Helper()
	var l net.Listener
	n.ns.Must(c.t, func() (err error) {
		if l, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
			l, err = net.Listen("tcp", "[::1]:0") // one that has no IPv4
		}
		return err
	})
	target, err := url.Parse(c.Config.Host)
	if err != nil {
		c.t.Fatal(err)
	}
	var wg sync.WaitGroup
	var mu sync.Mutex
	open := map[net.Conn]bool{}
	wg.Go(func() {
		for {
			in, err := l.Accept()
			if err != nil {
				return
			}
			wg.Go(func() {
				defer in.Close()
				out, err := net.Dial("tcp", target.Host)
				if err != nil {
					return
				}
				defer out.Close()
				mu.Lock()
				open[in], open[out] = true, true
				mu.Unlock()
				done := make(chan struct{}, 2)
				go func() { _, _ = io.Copy(out, in); done <- struct{}{} }()
				go func() { _, _ = io.Copy(in, out); done <- struct{}{} }()
				<-done
				in.Close()
				out.Close()
				<-done
				mu.Lock()
				delete(open, in)
				delete(open, out)
				mu.Unlock()
			})
		}
	})
	c.t.Cleanup(func() {
		l.Close()
		mu.Lock()
		for conn := range open {
			conn.Close()
		}
		mu.Unlock()
		wg.Wait()
	})
	path := n.path("kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: "https://" + l.Addr().String(), InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": c.AuthInfo(kubeapi.Agent)},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, path); err != nil {
		c.t.Fatal(err)
	}
	n.flags = append(n.flags, "--k8s-kubeconfig-path", path)
}

// node makes a node with its object. Without CIDRs the controller manager has not come to it yet.
func (c *kubeCluster) node(ns *testenv.NetNS, name string, podCIDRs ...string) *machineNode {
	c.t.Helper()
	n := nodeIn(c.t, ns, name, "", "")
	c.reach(n)
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.NodeSpec{PodCIDRs: podCIDRs}}
	if len(podCIDRs) > 0 {
		o.Spec.PodCIDR = podCIDRs[0]
	}
	if _, err := c.client.Kube.CoreV1().Nodes().Create(c.t.Context(), o, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	return n
}

// pod makes a pod's object on a node.
func (c *kubeCluster) object(n *machineNode, name string, labels map[string]string, ports ...corev1.ContainerPort) *corev1.Pod {
	c.t.Helper()
	o, err := c.client.Kube.CoreV1().Pods("default").Create(c.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", Labels: labels},
		Spec: corev1.PodSpec{
			NodeName: n.name, ServiceAccountName: "default", Containers: []corev1.Container{{Name: "c", Image: "none", Ports: ports}},
			AutomountServiceAccountToken: new(bool),
		},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	return o
}

// pod makes a pod's object and attaches the pod.
func (c *kubeCluster) pod(n *machineNode, name string, labels map[string]string) *machinePod {
	c.t.Helper()
	c.object(n, name, labels)
	return n.attached(name, nil)
}

func (c *kubeCluster) eventually(what string, ok func() bool) {
	c.t.Helper()
	testenv.Eventually(c.t, time.Minute, func() string {
		if !ok() {
			return what
		}
		return ""
	})
}

func (c *kubeCluster) endpoints() *gentype.ClientWithList[*v2.CiliumEndpoint, *v2.CiliumEndpointList] {
	return gentype.NewClientWithList("ciliumendpoints", c.client.UrgentV2, metav1.ParameterCodec, "default",
		func() *v2.CiliumEndpoint { return &v2.CiliumEndpoint{} }, func() *v2.CiliumEndpointList { return &v2.CiliumEndpointList{} })
}

func (c *kubeCluster) ciliumNodes() *gentype.ClientWithList[*v2.CiliumNode, *v2.CiliumNodeList] {
	return gentype.NewClientWithList("ciliumnodes", c.client.UrgentV2, metav1.ParameterCodec, "",
		func() *v2.CiliumNode { return &v2.CiliumNode{} }, func() *v2.CiliumNodeList { return &v2.CiliumNodeList{} })
}

func twoNamespaces(t testing.TB) (a, b *testenv.NetNS) {
	a, b = testenv.NewNetNS(t), testenv.NewNetNS(t)
	testenv.Connect(t, a, "eth0", []string{"192.0.2.1/24", "2001:db8::1/64"}, b, "eth0", []string{"192.0.2.2/24", "2001:db8::2/64"})
	return a, b
}

// TestKubernetes runs two nodes of a cluster: addresses, nodes, identities, endpoints, changes of
// labels, the server away, agents killed.
func TestKubernetes(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, ns2 := twoNamespaces(t)
	k := &kubernetesTest{t: t, cluster: c, n1: c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), n2: c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")}
	for _, n := range []*machineNode{k.n1, k.n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes", "--enable-health-checking", "--cluster-health-interval", "1s")
		n.start()
	}
	k.n1.wantHealth("in Kubernetes", "n2")
	k.n2.wantHealth("in Kubernetes", "n1")
	k.attach(t.Context())
	k.changeLabels(t.Context())
	k.refuse()
	k.serverAway(t.Context())
	k.detach(t.Context())
	k.n1.stop()
	k.n2.stop()
}

// kubernetesTest is the cluster of TestKubernetes, step by step.
type kubernetesTest struct {
	t                   *testing.T
	cluster             *kubeCluster
	n1, n2              *machineNode
	client, web, second *machinePod
	cep                 *v2.CiliumEndpoint // of web
}

// knows reports whether a node has the identity of a pod's address.
func (k *kubernetesTest) knows(n *machineNode, p *machinePod) func() bool {
	return func() bool {
		want := p.endpoint().Status.Identity.ID
		list, err := n.client.IPs(k.t.Context(), p.ip4.String()+"/32", nil)
		return err == nil && len(list) == 1 && list[0].Identity == want
	}
}

// attach has pods come, and looks at the objects that this makes.
func (k *kubernetesTest) attach(ctx context.Context) {
	k.cluster.object(k.n1, "late", map[string]string{"app": "late"})
	k.cluster.object(k.n2, "web", map[string]string{"app": "web"}, corev1.ContainerPort{Name: "http", ContainerPort: 80})
	k.client, k.web = k.cluster.pod(k.n1, "client", map[string]string{"app": "client", "io.cilium.k8s.policy.cluster": "forged"}), k.n2.attached("web", nil)
	if !netip.MustParsePrefix("10.0.1.0/24").Contains(k.client.ip4) || !netip.MustParsePrefix("fd00:2::/112").Contains(k.web.ip6) {
		k.t.Errorf("addresses %s and %s are not from the nodes' pod CIDRs", k.client.ip4, k.web.ip6)
	}
	got := k.client.endpoint().Status.Identity.Labels
	for _, want := range []string{
		"k8s:app=client", "k8s:io.kubernetes.pod.namespace=default", "k8s:io.cilium.k8s.policy.cluster=default",
		"k8s:io.cilium.k8s.policy.serviceaccount=default", "k8s:io.cilium.k8s.namespace.labels.kubernetes.io/metadata.name=default",
	} {
		if !slices.Contains(got, want) {
			k.t.Errorf("the client's labels %v lack %s", got, want)
		}
	}

	// The nodes' objects.
	node, err := k.cluster.ciliumNodes().Get(ctx, "n1", metav1.GetOptions{})
	if err != nil {
		k.t.Fatal(err)
	}
	if !slices.Contains(node.Spec.Addresses, v2.NodeAddress{Type: "InternalIP", IP: "192.0.2.1"}) || !slices.Contains(node.Spec.IPAM.PodCIDRs, "10.0.1.0/24") ||
		!strings.HasPrefix(node.Spec.HealthAddressing.IPv4, "10.0.1.") || !strings.HasPrefix(node.Spec.HealthAddressing.IPv6, "fd00:1::") ||
		len(node.OwnerReferences) != 1 || node.OwnerReferences[0].Kind != "Node" {
		k.t.Errorf("CiliumNode n1 is %+v", node)
	}

	// Their endpoints.
	k.cluster.eventually("CiliumEndpoint of the web server", func() bool {
		k.cep, err = k.cluster.endpoints().Get(ctx, "web", metav1.GetOptions{})
		return err == nil
	})
	status := k.cep.Status
	if status.Identity == nil || int(status.Identity.ID) != k.web.endpoint().Status.Identity.ID || status.Networking.NodeIP != "192.0.2.2" ||
		status.Networking.Addressing[0].IPv4 != k.web.ip4.String() || status.State != "ready" || len(status.NamedPorts) != 1 || status.NamedPorts[0].Port != 80 {
		text, _ := json.Marshal(status)
		k.t.Errorf("the status of the web server's CiliumEndpoint is %s", text)
	}
	k.cluster.eventually("n1 knows the web server", k.knows(k.n1, k.web))
	for _, to := range k.web.both(80) {
		serveEcho(k.t, k.web.ns, to)
		reaches(k.t, "pod to pod of another node", k.client.ns, to, 1450)
	}

	// A pod of the same labels has the same ID, without another object.
	k.second = k.cluster.pod(k.n2, "client-2", map[string]string{"app": "client"})
	if a, b := k.client.endpoint().Status.Identity.ID, k.second.endpoint().Status.Identity.ID; a != b {
		k.t.Errorf("two pods of the same labels have the identities %d and %d", a, b)
	}
}

// changeLabels changes those of the pod and of the namespace: both make other identities.
func (k *kubernetesTest) changeLabels(ctx context.Context) {
	before := k.client.endpoint().Status.Identity.ID
	patch := func(what string, f func() error) {
		k.t.Helper()
		if err := f(); err != nil {
			k.t.Fatalf("%s: %v", what, err)
		}
	}
	patch("label the pod", func() error {
		_, err := k.cluster.client.Kube.CoreV1().Pods("default").Patch(ctx, "client", types.MergePatchType, []byte(`{"metadata":{"labels":{"app":"other"}}}`), metav1.PatchOptions{})
		return err
	})
	k.cluster.eventually("another identity for other labels", func() bool {
		id := k.client.endpoint().Status.Identity
		return id.ID != before && slices.Contains(id.Labels, "k8s:app=other")
	})
	k.cluster.eventually("n2 knows it", k.knows(k.n2, k.client))
	patch("label the namespace", func() error {
		_, err := k.cluster.client.Kube.CoreV1().Namespaces().Patch(ctx, "default", types.MergePatchType, []byte(`{"metadata":{"labels":{"team":"red"}}}`), metav1.PatchOptions{})
		return err
	})
	for _, p := range []*machinePod{k.client, k.web, k.second} {
		k.cluster.eventually("the namespace's labels on "+p.name, func() bool {
			st := p.endpoint().Status // it has the labels before the identity that they make
			return st.State == rest.EndpointStateReady && slices.Contains(st.Identity.Labels, "k8s:io.cilium.k8s.namespace.labels.team=red")
		})
	}
	k.cluster.eventually("n1 knows the web server's new identity", k.knows(k.n1, k.web))
	// A label that makes no identity is published all the same.
	before = k.web.endpoint().Status.Identity.ID
	k.cluster.labelPod("web", "pod-template-hash", "1")
	k.cluster.eventually("the label in the web server's object", func() bool {
		cep, err := k.cluster.endpoints().Get(ctx, "web", metav1.GetOptions{})
		return err == nil && cep.Labels["pod-template-hash"] == "1"
	})
	if after := k.web.endpoint().Status.Identity.ID; after != before {
		k.t.Errorf("for a label that makes none the identity has changed from %d to %d", before, after)
	}
}

// refuse attaches pods that Kubernetes does not have, or has otherwise.
func (k *kubernetesTest) refuse() {
	// Labels of the runtime's configuration are no labels of a pod of Kubernetes.
	k.cluster.object(k.n1, "labelled", map[string]string{"app": "labelled"})
	if err := k.n1.newPod("labelled", map[string]string{"app": "web"}).add(); err == nil || !strings.Contains(err.Error(), "args.cni.labels") || !strings.Contains(err.Error(), "cni:app=web") {
		k.t.Errorf("a pod with labels of the runtime: %v", err)
	}

	// A pod that Kubernetes does not have is refused, and so is another one of the same name.
	if err := k.n1.newPod("unknown", nil).add(); err == nil || !strings.Contains(err.Error(), "no such pod") {
		k.t.Errorf("a pod that Kubernetes does not have: %v", err)
	}
}

// serverAway has the server go away: traffic flows, known pods come and go, agents restart.
func (k *kubernetesTest) serverAway(ctx context.Context) {
	k.cluster.Stop()
	reaches(k.t, "while the API server is away", k.client.ns, k.web.both(80)[0], 1450)
	if err := k.second.del(); err != nil {
		k.t.Errorf("deletion while the API server is away: %v", err)
	}
	k.second.renew()
	if err := k.second.add(); err != nil {
		k.t.Errorf("a known pod's sandbox made anew while the API server is away: %v", err)
	}
	// A pod whose labels no pod had before starts with a temporary identity, by its own rules.
	began := time.Now()
	late := k.n1.attached("late", nil)
	if took := time.Since(began); took > 15*time.Second {
		k.t.Errorf("a pod with unknown labels took %v without an API server", took)
	}
	late.temporary("without an API server", identity.Init)
	id := k.web.endpoint().Status.Identity.ID
	k.n2.kill()
	k.n2.launch()
	k.n2.serving(false)
	if now := k.web.endpoint().Status.Identity.ID; now != id {
		k.t.Errorf("the agent that started without an API server gives the web server identity %d, it was %d", now, id)
	}
	reaches(k.t, "to a pod whose agent started without an API server", k.client.ns, k.web.both(80)[0], 1450)
	if st, err := k.n2.client.Health(ctx, false); err != nil || st.Kubernetes.State == rest.StateOk {
		k.t.Errorf("status without an API server: %+v, %v", st.Kubernetes, err)
	}
	k.cluster.Start()
	k.n2.ready()
	reaches(k.t, "after the API server is back", k.client.ns, k.web.both(80)[0], 1450)
	k.cluster.eventually("status says that the server answers", func() bool {
		st, err := k.n2.client.Health(ctx, false)
		return err == nil && st.Kubernetes.State == rest.StateOk && strings.Contains(st.Kubernetes.Msg, strings.TrimPrefix(kubeapi.Version, "v"))
	})
	k.cluster.eventually("n1 knows the pod that was made anew", k.knows(k.n1, k.second))
	k.cluster.eventually("the pod with a temporary identity has its own", func() bool {
		return !identity.ID(late.endpoint().Status.Identity.ID).IsTemporary()
	})
	k.cluster.eventually("n2 knows it", k.knows(k.n2, late))
}

// detach has a pod go: its object is still the same one, and goes with the endpoint.
func (k *kubernetesTest) detach(ctx context.Context) {
	again, err := k.cluster.endpoints().Get(ctx, "web", metav1.GetOptions{})
	if err != nil || again.UID != k.cep.UID {
		k.t.Errorf("the CiliumEndpoint was not taken over: %v, %v", again, err)
	}
	if err := k.web.del(); err != nil {
		k.t.Fatal(err)
	}
	k.cluster.eventually("no CiliumEndpoint without an endpoint", func() bool {
		_, err := k.cluster.endpoints().Get(ctx, "web", metav1.GetOptions{})
		return err != nil
	})
	k.cluster.eventually("n1 forgets its address", func() bool {
		list, _ := k.n1.client.IPs(ctx, k.web.ip4.String()+"/32", nil)
		return len(list) == 0
	})
}

// TestKubernetesClusterPool has a node wait for the operator, and keep its range when its object is
// deleted, and over a restart.
func TestKubernetesClusterPool(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, _ := twoNamespaces(t)
	n := c.node(ns1, "n1")
	n.flags = append(n.flags, "--enable-ipv6=false")
	n.launch()
	var node *v2.CiliumNode
	c.eventually("CiliumNode of the node", func() bool {
		var err error
		node, err = c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil
	})
	node.Spec.IPAM.PodCIDRs = []string{"10.7.3.0/24"}
	node.Spec.InstanceID = "i-1"
	if _, err := c.ciliumNodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	n.ready()
	p := c.pod(n, "p", map[string]string{"app": "p"})
	if !netip.MustParsePrefix("10.7.3.0/24").Contains(p.ip4) {
		t.Errorf("the pod has %s", p.ip4)
	}
	c.eventually("the node's address in the pod network", func() bool {
		now, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && now.Spec.InstanceID == "i-1" && slices.Equal(now.Spec.IPAM.PodCIDRs, node.Spec.IPAM.PodCIDRs) &&
			slices.ContainsFunc(now.Spec.Addresses, func(a v2.NodeAddress) bool { return a.Type == "CiliumInternalIP" && strings.HasPrefix(a.IP, "10.7.3.") })
	})
	if err := c.ciliumNodes().Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually("another object that names the range", func() bool {
		now, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && slices.Equal(now.Spec.IPAM.PodCIDRs, node.Spec.IPAM.PodCIDRs)
	})
	// It has become another node's: no new pod gets an address of it.
	assign := func(cidr string) {
		c.eventually("a write", func() bool {
			now, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
			if err == nil {
				now.Spec.IPAM.PodCIDRs = []string{cidr}
				_, err = c.ciliumNodes().Update(t.Context(), now, metav1.UpdateOptions{})
			}
			return err == nil
		})
	}
	given := func() error {
		_, err := n.client.AllocateIP(t.Context(), rest.AllocateIPParams{Owner: "default/late"})
		return err
	}
	assign("10.7.9.0/24")
	c.eventually("addresses are refused", func() bool {
		err := given()
		return err != nil && strings.Contains(err.Error(), "pods of this node use 10.7.3.0/24, but the operator has assigned 10.7.9.0/24")
	})
	assign("10.7.3.0/24")
	c.eventually("addresses are given again", func() bool { return given() == nil })
	n.stop()
	c.Stop()
	n.launch()
	n.serving(false)
	if got := p.endpoint().Status.Networking.Addressing[0].IPv4; got != p.ip4.String() {
		t.Errorf("the pod has %s after a restart without the API server, it was %s", got, p.ip4)
	}
}

// TestKubernetesNodeMadeAgain: a Node that is deleted, and made again with other pod CIDRs, while
// its agent runs and over a restart. Pods keep their addresses, no pod is given one of the former
// CIDRs, which may be another node's, and the status says so. Without pods the node takes the new
// CIDRs.
func TestKubernetesNodeMadeAgain(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, _ := twoNamespaces(t)
	n := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes")
	n.start()
	a, b := c.pod(n, "a", map[string]string{"app": "a"}), c.pod(n, "b", map[string]string{"app": "b"})
	nodes := c.client.Kube.CoreV1().Nodes()
	again := func(podCIDRs ...string) {
		t.Helper()
		if err := nodes.Delete(t.Context(), "n1", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		if len(podCIDRs) == 0 {
			return
		}
		o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: podCIDRs[0], PodCIDRs: podCIDRs}}
		if _, err := nodes.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	give := func() error {
		got, err := n.client.AllocateIP(t.Context(), rest.AllocateIPParams{Owner: "default/late"})
		for _, ip := range []string{got.Address.IPv4, got.Address.IPv6} {
			if err == nil {
				err = n.client.ReleaseIP(t.Context(), ip, "")
			}
		}
		return err
	}
	refuses := func(when string, texts ...string) {
		t.Helper()
		controllers.Eventually(t, time.Minute, func() string {
			err := give()
			for _, text := range texts {
				if err == nil || !strings.Contains(err.Error(), text) {
					return fmt.Sprintf("%s: %v does not name %q", when, err, text)
				}
			}
			st, err := n.client.Health(t.Context(), false)
			if err != nil || !slices.ContainsFunc(st.Parts, func(p rest.PartStatus) bool {
				return p.Name == partPodCIDRs && p.State == rest.StateFailure && strings.Contains(p.Msg, texts[0])
			}) {
				return fmt.Sprintf("%s: the status is %+v, %v", when, st.Parts, err)
			}
			return ""
		})
		for _, ip := range []netip.Addr{a.ip4, a.ip6} {
			if err := ping(t, b.ns, ip, 5*time.Second); err != nil {
				t.Errorf("%s: a pod does not answer at %s: %v", when, ip, err)
			}
		}
	}
	again()
	refuses("no Node", "Node n1 does not exist", "10.0.1.0/24")
	o := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}, Spec: corev1.NodeSpec{PodCIDR: "10.0.1.0/24", PodCIDRs: []string{"10.0.1.0/24", "fd00:1::/112"}}}
	if _, err := nodes.Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	c.eventually("the same CIDRs are given of again", func() bool { return give() == nil })
	again("10.0.9.0/24", "fd00:9::/112")
	refuses("other CIDRs", "this node uses 10.0.1.0/24, fd00:1::/112", "Node n1 has 10.0.9.0/24, fd00:9::/112")
	c.object(n, "late", map[string]string{"app": "late"})
	late := n.newPod("late", nil)
	if err := late.add(); err == nil || !strings.Contains(err.Error(), "10.0.9.0/24") {
		t.Errorf("ADD with former CIDRs: %v, addresses %s and %s", err, late.ip4, late.ip6)
	}
	n.stop()
	n.launch()
	n.serving(false)
	if err := give(); err == nil {
		t.Error("after a restart an address of the former CIDRs is given")
	}
	refuses("after a restart", "this node uses 10.0.1.0/24, fd00:1::/112", "Node n1 has 10.0.9.0/24, fd00:9::/112")
	for _, p := range []*machinePod{a, b} {
		if err := p.del(); err != nil {
			t.Error(err)
		}
	}
	n.stop()
	n.start()
	if err := late.add(); err != nil || !netip.MustParsePrefix("10.0.9.0/24").Contains(late.ip4) || !netip.MustParsePrefix("fd00:9::/112").Contains(late.ip6) {
		t.Errorf("a node without pods and other CIDRs: %v, addresses %s and %s", err, late.ip4, late.ip6)
	}
}

// TestKubernetesMissingKinds gives up with an error that names what is missing.
func TestKubernetesMissingKinds(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	server := kubeapi.Start(t)
	client, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	c := &kubeCluster{Server: server, t: t, client: client}
	ns1, _ := twoNamespaces(t)
	n := c.node(ns1, "n1")
	n.flags = append(n.flags, "--crd-wait-timeout", "2s")
	n.launch()
	select {
	case <-n.exited:
	case <-time.After(30 * time.Second):
		t.Fatal("the agent still waits")
	}
	n.cmd = nil
	if text := n.logText(); !strings.Contains(text, "ciliumnodes.v2.cilium.io") || !strings.Contains(text, "--crd-wait-timeout") {
		t.Errorf("the log does not say what is missing: %s", text)
	}
}

// TestKubernetesOneIdentity has pods with the same labels start on two nodes at once.
func TestKubernetesOneIdentity(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	var pods []*machinePod
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes")
		n.start()
	}
	for i := range count(12, 6, 60) {
		for _, n := range []*machineNode{n1, n2} {
			name := fmt.Sprintf("p-%s-%d", n.name, i)
			c.object(n, name, map[string]string{"app": fmt.Sprint(i / 2)})
			pods = append(pods, n.newPod(name, nil))
		}
	}
	var wg sync.WaitGroup
	for _, p := range pods {
		wg.Go(func() {
			if err := p.add(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	byLabels := map[string]int{}
	for _, p := range pods {
		id := p.endpoint().Status.Identity
		text := strings.Join(id.Labels, ",")
		if old, known := byLabels[text]; known && old != id.ID {
			t.Errorf("%s has the identities %d and %d", text, old, id.ID)
		}
		byLabels[text] = id.ID
	}
	list := &v2.CiliumIdentityList{}
	if err := c.client.UrgentV2.Get().Resource("ciliumidentities").Do(context.Background()).Into(list); err != nil {
		t.Fatal(err)
	}
	if len(list.Items) != len(byLabels) {
		t.Errorf("%d objects for %d label sets", len(list.Items), len(byLabels))
	}
}

// TestKubernetesRules enforces a NetworkPolicy, leads to a service, and knows who serves the API;
// over a restart too.
func TestKubernetesRules(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.race = true
		n.flags = append(n.flags, "--ipam", "kubernetes")
		n.start()
	}
	ctx := t.Context()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	tcp, http := corev1.ProtocolTCP, intstr.FromString("http")
	rules := c.client.Kube.NetworkingV1().NetworkPolicies("default")
	web := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "web"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeIngress},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}},
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &http}},
			}},
		},
	}
	_, err := rules.Create(ctx, web, metav1.CreateOptions{})
	must(err)
	_, err = rules.Create(ctx, &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "client"},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}},
			PolicyTypes: []networkingv1.PolicyType{networkingv1.PolicyTypeEgress},
			Egress: []networkingv1.NetworkPolicyEgressRule{{
				To:    []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{}}},
				Ports: []networkingv1.NetworkPolicyPort{{Protocol: &tcp, Port: &http}},
			}},
		},
	}, metav1.CreateOptions{})
	must(err)
	c.eventually("rules in force on n1 and n2", func() bool {
		for _, n := range []*machineNode{n1, n2} {
			files, err := n.client.PolicyFiles(ctx)
			in := 0
			for _, f := range files {
				if f.InForce {
					in++
				}
			}
			if err != nil || in != 2 {
				return false
			}
		}
		return true
	})
	c.object(n2, "web", map[string]string{"app": "web"}, corev1.ContainerPort{Name: "http", ContainerPort: 80}, corev1.ContainerPort{Name: "other", ContainerPort: 81})
	server := n2.attached("web", nil)
	client, denied := c.pod(n1, "client", map[string]string{"app": "client"}), c.pod(n1, "denied", map[string]string{"app": "denied"})
	for _, port := range []uint16{80, 81} {
		for _, to := range server.both(port) {
			serveEcho(t, server.ns, to)
		}
	}
	// connects reports whether a connection is made within a while; TCP, for the rules are for TCP.
	connects := func(p *machinePod, to netip.AddrPort, timeout time.Duration) bool {
		for end := time.Now().Add(timeout); ; {
			var conn net.Conn
			err := p.ns.Do(func() (err error) {
				conn, err = net.DialTimeout("tcp", to.String(), 300*time.Millisecond)
				return err
			})
			if err == nil {
				conn.Close()
				return true
			}
			if time.Now().After(end) {
				return false
			}
		}
	}
	check := func(when string) {
		t.Helper()
		for _, to := range server.both(80) {
			if !connects(client, to, 20*time.Second) {
				t.Errorf("%s: the client does not reach %s by its named port", when, to)
			}
			if connects(denied, to, time.Second) {
				t.Errorf("%s: a denied client reaches %s", when, to)
			}
		}
		if connects(client, server.both(81)[0], time.Second) {
			t.Errorf("%s: the client reaches a port that no rule allows", when)
		}
	}
	check("at first")

	// A service of its own, whose backend is the server.
	svc, err := c.client.Kube.CoreV1().Services("default").Create(ctx, &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Name: "http", Port: 8080, TargetPort: intstr.FromInt32(80)}}},
	}, metav1.CreateOptions{})
	must(err)
	ready, port, name := true, int32(80), "http"
	_, err = c.client.Kube.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{server.ip4.String()}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
		Ports:     []discoveryv1.EndpointPort{{Name: &name, Port: &port, Protocol: &tcp}},
	}, metav1.CreateOptions{})
	must(err)
	vip := netip.AddrPortFrom(netip.MustParseAddr(svc.Spec.ClusterIP), 8080)
	if !connects(client, vip, 20*time.Second) {
		t.Errorf("the client does not reach the service at %s", vip)
	}
	if connects(denied, vip, time.Second) {
		t.Errorf("a denied client reaches the service at %s", vip)
	}

	// The API is served by n2.
	_, err = c.client.Kube.DiscoveryV1().EndpointSlices("default").Create(ctx, &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{Name: "kubernetes", Labels: map[string]string{discoveryv1.LabelServiceName: "kubernetes"}}, AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints: []discoveryv1.Endpoint{{Addresses: []string{"192.0.2.2"}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}}},
	}, metav1.CreateOptions{})
	must(err)
	c.eventually("n1 knows who serves the API", func() bool {
		list, err := n1.client.IPs(ctx, "192.0.2.2/32", nil)
		return err == nil && len(list) == 1 && list[0].Identity == int(identity.KubeAPIServer)
	})
	c.eventually("n2 knows that it serves the API itself", func() bool {
		id, err := n2.client.Identity(ctx, identity.Host.String())
		return err == nil && slices.Contains(id.Labels, "reserved:kube-apiserver")
	})

	// A restart keeps all of it, without a moment of openness; a deleted rule opens.
	n2.kill()
	n2.start()
	n1.kill()
	n1.start()
	check("after a restart")
	must(rules.Delete(ctx, "web", metav1.DeleteOptions{}))
	if !connects(denied, server.both(80)[0], 20*time.Second) {
		t.Error("the denied client does not reach the server when no rule isolates it any more")
	}
	n1.stop()
	n2.stop()
}
