package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// meshCluster is a cluster of one node with an etcd of its own.
type meshCluster struct {
	*machineNode
	name string
	etcd *kvstoretest.Etcd
	raw  *clientv3.Client
}

// newMeshCluster makes a cluster on a namespace that has an eth0. Its agent does not run yet.
func newMeshCluster(t *testing.T, ns *testenv.NetNS, name string, id int) *meshCluster {
	t.Helper()
	etcd := kvstoretest.StartEtcd(t)
	c := &meshCluster{
		machineNode: nodeIn(t, ns, "n1", fmt.Sprintf("10.%d.1.0/24", id), fmt.Sprintf("fd00:%d::/112", id)), name: name, etcd: etcd, raw: etcd.Client(),
	}
	if err := os.Mkdir(c.path("mesh"), 0o755); err != nil {
		t.Fatal(err)
	}
	c.flags = append(c.flags, "--kvstore", "etcd", "--kvstore-opt", "etcd.address="+etcd.Endpoint(), "--cluster-name", name, "--cluster-id", fmt.Sprint(id),
		"--clustermesh-config", c.path("mesh"), "--node-delete-delay", "1s", "--clustermesh-sync-timeout", "5s")
	c.put("cilium/cluster-config/"+name, fmt.Sprintf(`{"id":%d,"capabilities":{"maxConnectedClusters":255}}`, id)) // what the operator writes
	return c
}

func (c *meshCluster) put(key, value string) {
	c.t.Helper()
	if _, err := c.raw.Put(c.t.Context(), key, value); err != nil {
		c.t.Fatal(err)
	}
}

// follow configures the agent with another cluster.
func (c *meshCluster) follow(other *meshCluster) {
	c.t.Helper()
	path := filepath.Join(c.path("mesh"), other.name)
	if err := os.WriteFile(path, []byte("endpoints:\n- "+other.etcd.Endpoint()+"\n"), 0o600); err != nil {
		c.t.Fatal(err)
	}
}

// remote waits until the status of another cluster is right.
func (c *meshCluster) remote(name, what string, right func(rest.RemoteCluster) bool) {
	c.t.Helper()
	deadline := time.Now().Add(2 * time.Minute)
	for {
		st, err := c.client.Health(context.Background(), false)
		for _, r := range st.ClusterMesh.Clusters {
			if r.Name == name && right(r) {
				return
			}
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("cluster %s as %s sees it, %s: %+v, %v", name, c.name, what, st.ClusterMesh, err)
		}
		time.Sleep(10 * time.Millisecond) // another process: nothing notifies this one
	}
}

func ready(r rest.RemoteCluster) bool { return r.Ready && r.Connected && r.NumNodes > 0 }

// allow is a policy for pods app=web: only those of one cluster with one label.
func allow(cluster, app string) string {
	return fmt.Sprintf(`apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: web, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: %s, io.cilium.k8s.policy.cluster: %s}}]
`, app, cluster)
}

// eventuallyReaches waits until TCP gets through, or does not.
func eventuallyReaches(t *testing.T, what string, from *machinePod, to netip.AddrPort, want bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for (once(from.ns, to, impatient) == nil) != want {
		if time.Now().After(deadline) {
			t.Fatalf("%s: reaches %s is %v for 30 s", what, to, !want)
		}
	}
}

// TestTwoClusters: pods of two clusters reach each other as policy says of their identities,
// whatever becomes of the other cluster's store.
func TestTwoClusters(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	ns1, ns2 := twoNamespaces(t)
	a, b := newMeshCluster(t, ns1, "alpha", 1), newMeshCluster(t, ns2, "beta", 2)
	b.race = true
	b.follow(a)
	b.policy("web.yaml", allow("alpha", "front"))
	a.start()
	b.start()
	front, other := a.attached("front", map[string]string{"app": "front"}), a.attached("other", map[string]string{"app": "other"})
	web, own := b.attached("web", map[string]string{"app": "web"}), b.attached("own", map[string]string{"app": "front"})
	for _, p := range []*machinePod{front, web} {
		for _, to := range p.both(80) {
			serveEcho(t, p.ns, to)
		}
	}
	if id := web.endpoint().Status.Identity.ID; id>>16 != 2 {
		t.Errorf("identity %d is not of cluster 2", id)
	}
	for _, to := range web.both(80) {
		if once(front.ns, to, impatient) == nil {
			t.Error("a cluster is reached that no node follows")
		}
	}
	a.follow(b)
	a.remote("beta", "at first", ready)
	b.remote("alpha", "at first", func(r rest.RemoteCluster) bool {
		return ready(r) && r.NumEndpoints >= 4 && r.NumIdentities >= 2 && r.Config.ClusterID == 1
	})
	for _, to := range web.both(80) {
		eventuallyReaches(t, "front of alpha", front, to, true)
		reaches(t, "from the other cluster", front.ns, to, 1450)
		refused(t, "other labels of the other cluster", other.ns, to)
		refused(t, "the same labels of the own cluster", own.ns, to)
	}
	for _, to := range front.both(80) {
		reaches(t, "to the other cluster, which has no policy", web.ns, to, 1450)
	}
	// The other cluster's store dies: what was observed stays in force, and identities that are
	// known still identify the others.
	a.etcd.Stop()
	b.remote("alpha", "without its store", func(r rest.RemoteCluster) bool { return !r.Connected && r.Ready && r.NumEndpoints >= 4 })
	for _, to := range web.both(80) {
		reaches(t, "without the other cluster's store", front.ns, to, 1450)
		refused(t, "other labels, without the other cluster's store", other.ns, to)
	}
	b.policy("web.yaml", allow("alpha", "other"))
	for _, to := range web.both(80) {
		eventuallyReaches(t, "after a change of policy", other, to, true)
		eventuallyReaches(t, "after a change of policy", front, to, false)
	}
	a.etcd.Start()
	b.remote("alpha", "with its store again", ready)
	// No more connected: everything of it goes.
	if err := os.Remove(filepath.Join(b.path("mesh"), "alpha")); err != nil {
		t.Fatal(err)
	}
	for _, to := range web.both(80) {
		eventuallyReaches(t, "after the cluster is gone from the configuration", other, to, false)
	}
	b.gone("alpha")
}

// gone waits until the agent knows nothing of another cluster.
func (c *meshCluster) gone(name string) {
	c.t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		left := []string{}
		nodes, err := c.client.ClusterNodes(c.t.Context(), 0)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, n := range nodes.NodesAdded {
			if strings.HasPrefix(n.Name, name+"/") {
				left = append(left, n.Name)
			}
		}
		ips, err := c.client.IPs(c.t.Context(), "", nil)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, ip := range ips {
			if ip.Metadata.Source == "clustermesh" {
				left = append(left, ip.CIDR)
			}
		}
		ids, err := c.client.Identities(c.t.Context(), nil)
		if err != nil {
			c.t.Fatal(err)
		}
		for _, id := range ids {
			if strings.Contains(fmt.Sprint(id.Labels), "cluster="+name) {
				left = append(left, fmt.Sprint(id.ID))
			}
		}
		if len(left) == 0 {
			return
		}
		if time.Now().After(deadline) {
			c.t.Fatalf("left of %s: %v", name, left)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// TestHostileCluster: a cluster that speaks of this one, or of the world, changes nothing here.
func TestHostileCluster(t *testing.T) {
	t.Parallel()
	testenv.RequireRoot(t)
	ns1, ns2 := twoNamespaces(t)
	a, b := newMeshCluster(t, ns1, "alpha", 1), newMeshCluster(t, ns2, "beta", 2)
	a.race = true
	a.policy("web.yaml", allow("alpha", "front"))
	a.start()
	web, front := a.attached("web", map[string]string{"app": "web"}), a.attached("front", map[string]string{"app": "front"})
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
	}
	own := front.endpoint().Status.Identity.ID
	before := a.routes()
	node := func(name, ip, cidr, mask string) {
		b.put("cilium/state/nodes/v1/beta/"+name, fmt.Sprintf(`{"Name":%q,"Cluster":"beta","ClusterID":2,"IPAddresses":[{"Type":"InternalIP","IP":%q}],`+
			`"IPv4AllocCIDR":{"IP":%q,"Mask":%q}}`, name, ip, cidr, mask))
	}
	pair := func(ip, host string, id int) {
		text, _ := json.Marshal(map[string]any{"IP": ip, "Mask": nil, "HostIP": host, "ID": id, "Key": 0, "Metadata": ""})
		b.put("cilium/state/ip/v1/default/"+ip, string(text))
	}
	node("good", "192.0.2.2", "10.2.1.0", "////AA==")
	node("everything", "192.0.2.3", "0.0.0.0", "AAAAAA==")
	node("half", "192.0.2.3", "128.0.0.0", "gAAAAA==")
	node("ours", "192.0.2.3", "10.1.0.0", "//8AAA==")
	node("us", "192.0.2.1", "10.9.1.0", "////AA==")
	b.put("cilium/state/nodes/v1/alpha/n1", `{"Name":"n1","Cluster":"alpha","ClusterID":1,"IPAddresses":[{"Type":"InternalIP","IP":"192.0.2.9"}]}`)
	pair("10.2.1.5", "192.0.2.2", own) // one of this cluster's identities for its own pod
	pair("10.2.1.6", "192.0.2.2", 7)   // an API server
	pair("10.2.1.7", "192.0.2.2", 131078)
	pair(web.ip4.String(), "192.0.2.2", 131077) // this cluster's pod at its node
	pair("192.0.2.1", "192.0.2.2", 131077)
	pair("198.51.100.1", "192.0.2.2", 131077) // a host in the world
	b.put(fmt.Sprintf("cilium/state/identities/v1/id/%d", own), "k8s:app=evil;k8s:io.cilium.k8s.policy.cluster=alpha;")
	b.put("cilium/state/identities/v1/id/131077", "k8s:app=front;k8s:io.cilium.k8s.policy.cluster=alpha;k8s:io.kubernetes.pod.namespace=default;")
	b.put("cilium/state/identities/v1/id/131078", "k8s:app=front;k8s:io.cilium.k8s.policy.cluster=beta;k8s:io.kubernetes.pod.namespace=default;")
	a.follow(b)
	a.remote("beta", "hostile", func(r rest.RemoteCluster) bool {
		return r.Ready && r.NumNodes == 1 && r.NumEndpoints == 1 && r.NumIdentities == 1 && r.NumRefused == 11
	})
	for _, to := range web.both(80) {
		reaches(t, "the own cluster", front.ns, to, 1450)
	}
	after := a.routes()
	for _, r := range strings.Split(after, "\n") {
		// The kernel makes the last when a pod's interface is up, perhaps only now.
		if !strings.Contains(before, r) && !strings.Contains(r, "10.2.1.0/24") && !strings.HasPrefix(r, "multicast ff00::/8 dev lxc") {
			t.Errorf("a new route: %s", r)
		}
	}
	set, err := a.client.Identity(t.Context(), fmt.Sprint(own))
	if err != nil || strings.Contains(fmt.Sprint(set.Labels), "evil") {
		t.Errorf("identity %d is %v, %v", own, set.Labels, err)
	}
	for _, part := range []string{"refused data of another cluster", "0.0.0.0/0", "128.0.0.0/1", "10.1.0.0/16 overlaps", "192.0.2.1 (InternalIP)", "is outside of the cluster's range"} {
		if !strings.Contains(a.logText(), part) {
			t.Errorf("the log does not say %q", part)
		}
	}
}

// routes are the node's routes.
func (n *machineNode) routes() string {
	n.t.Helper()
	cmd := exec.Command("ip", "route", "show", "table", "all")
	var out []byte
	n.ns.Must(n.t, func() (err error) { out, err = cmd.CombinedOutput(); return err })
	return string(out)
}
