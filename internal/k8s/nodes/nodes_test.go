package nodes_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// sink keeps what it gets.
type sink struct {
	mu    sync.Mutex
	known map[string]string
}

func (s *sink) Observe(_ context.Context, n node.Node) error {
	if err := n.Validate(255); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.known[n.Name] = fmt.Sprint(n.UnderlayIPv4(), n.PodCIDRs())
	return nil
}

func (s *sink) Forget(_ context.Context, k node.Key) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.known, k.Name)
	return nil
}

func (s *sink) WaitApplied(context.Context) error { return nil }

func (s *sink) get(name string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.known[name]
}

func eventually(t *testing.T, wrong func() string) {
	t.Helper()
	testenv.Eventually(t, time.Minute, wrong)
}

func TestNodes(t *testing.T) {
	t.Parallel()
	server := kubeapi.Start(t)
	server.DefineResources()
	client, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.For(v2.SchemeGroupVersion(), v2.AddToScheme)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	self, err := client.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	post := func(o *v2.CiliumNode) {
		t.Helper()
		if err := c.Post().Resource(v2.ResourceNodes).Body(o).Do(ctx).Error(); err != nil {
			t.Fatal(err)
		}
	}
	other := func(name, ip string, cidrs ...string) *v2.CiliumNode {
		return &v2.CiliumNode{
			ObjectMeta: metav1.ObjectMeta{Name: name},
			Spec:       v2.NodeSpec{Addresses: []v2.NodeAddress{{Type: "InternalIP", IP: ip}}, IPAM: v2.IPAMSpec{PodCIDRs: cidrs}},
		}
	}
	post(other("n2", "192.0.2.2", "10.0.2.0/24", "fd00:2::/64"))
	known := &sink{known: map[string]string{}}
	var owned []string
	var mu sync.Mutex
	n, err := nodes.New(nodes.Config{
		Self: node.Key{Cluster: "default", Name: "n1"}, Log: slog.New(slog.DiscardHandler), Retry: 200 * time.Millisecond,
		Own: func(o *v2.CiliumNode) { mu.Lock(); owned = o.Spec.IPAM.PodCIDRs; mu.Unlock() },
	}, client, known)
	if err != nil {
		t.Fatal(err)
	}
	local := node.Node{
		Name: "n1", Cluster: "default", BootID: "b1", Labels: map[string]string{"zone": "a"},
		Addresses: []node.Address{{Type: node.InternalIP, IP: netip.MustParseAddr("192.0.2.1")}, {Type: node.RouterIP, IP: netip.MustParseAddr("10.0.1.1")}},
	}
	if err := n.Announce(local); err != nil {
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- n.Run(ctx) }()
	if err := n.WaitSynced(ctx); err != nil {
		t.Fatal(err)
	}
	if got, want := known.get("n2"), "192.0.2.2 [10.0.2.0/24 fd00:2::/64]"; got != want {
		t.Errorf("after the first list n2 is %q, want %q", got, want)
	}
	want := v2.NodeSpec{
		BootID:    "b1",
		Addresses: []v2.NodeAddress{{Type: "InternalIP", IP: "192.0.2.1"}, {Type: "CiliumInternalIP", IP: "10.0.1.1"}},
	}
	matches := func() string {
		got := &v2.CiliumNode{}
		if err := c.Get().Resource(v2.ResourceNodes).Name("n1").Do(ctx).Into(got); err != nil {
			return err.Error()
		}
		if len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != self.UID {
			return fmt.Sprintf("the owner is %+v", got.OwnerReferences)
		}
		return cmp.Diff(want, got.Spec)
	}
	eventually(t, matches)
	// What the operator writes stays, and is delivered.
	patch := func(name, body string) {
		t.Helper()
		if err := c.Patch(types.MergePatchType).Resource(v2.ResourceNodes).Name(name).Body([]byte(body)).Do(ctx).Error(); err != nil {
			t.Fatal(err)
		}
	}
	patch("n1", `{"spec":{"ipam":{"podCIDRs":["10.0.1.0/24"]},"addresses":null}}`)
	want.IPAM.PodCIDRs = []string{"10.0.1.0/24"}
	eventually(t, matches)
	eventually(t, func() string {
		mu.Lock()
		defer mu.Unlock()
		return cmp.Diff([]string{"10.0.1.0/24"}, owned)
	})
	// Another address of this node.
	local.Addresses = local.Addresses[:1]
	if err := n.Announce(local); err != nil {
		t.Fatal(err)
	}
	want.Addresses = want.Addresses[:1]
	eventually(t, matches)
	// Others come, change and go; one that is invalid changes nothing.
	post(other("n3", "192.0.2.3", "10.0.3.0/24"))
	eventually(t, func() string { return cmp.Diff("192.0.2.3 [10.0.3.0/24]", known.get("n3")) })
	patch("n3", `{"spec":{"addresses":[{"type":"InternalIP","ip":"127.0.0.1"}]}}`)
	patch("n2", `{"spec":{"ipam":{"podCIDRs":["10.0.9.0/24"]}}}`)
	eventually(t, func() string { return cmp.Diff("192.0.2.2 [10.0.9.0/24]", known.get("n2")) })
	if got := known.get("n3"); got != "192.0.2.3 [10.0.3.0/24]" {
		t.Errorf("a node on loopback was believed: %s", got)
	}
	server.Stop()
	time.Sleep(100 * time.Millisecond)
	server.Start()
	if err := c.Delete().Resource(v2.ResourceNodes).Name("n3").Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() string { return cmp.Diff("", known.get("n3")) })
	// The own object is made again.
	if err := c.Delete().Resource(v2.ResourceNodes).Name("n1").Do(ctx).Error(); err != nil {
		t.Fatal(err)
	}
	want.IPAM.PodCIDRs = nil
	eventually(t, matches)
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run: %v", err)
	}
}

// TestTwoNodesOfOneName: two machines that run under one name undo each other's writes once, then
// once an interval each, and both are told of the other.
func TestTwoNodesOfOneName(t *testing.T) {
	t.Parallel()
	server := kubeapi.Start(t)
	server.DefineResources()
	client, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	c, err := client.For(v2.SchemeGroupVersion(), v2.AddToScheme)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var group sync.WaitGroup
	defer group.Wait()
	defer cancel()
	if _, err := client.Kube.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	const interval = 500 * time.Millisecond
	var reports [2]atomic.Int32
	start := time.Now()
	for i, ip := range []string{"192.0.2.1", "192.0.2.2"} {
		n, err := nodes.New(nodes.Config{
			Self: node.Key{Cluster: "default", Name: "n1"}, UndoInterval: interval,
			Namesake: func(other node.Node) {
				if other.UnderlayIPv4().String() == ip {
					t.Errorf("node %d is reported to itself", i)
				}
				reports[i].Add(1)
			},
		}, client, nodes.Discard{})
		if err != nil {
			t.Fatal(err)
		}
		if err := n.Announce(node.Node{
			Name: "n1", Cluster: "default", BootID: ip, Addresses: []node.Address{{Type: node.InternalIP, IP: netip.MustParseAddr(ip)}},
		}); err != nil {
			t.Fatal(err)
		}
		group.Go(func() { _ = n.Run(ctx) })
	}
	eventually(t, func() string {
		if reports[0].Load() == 0 || reports[1].Load() == 0 {
			return "not both nodes were told of the other"
		}
		return ""
	})
	time.Sleep(3 * interval) // in which nodes without a bound write hundreds of times
	var o v2.CiliumNode
	if err := c.Get().Resource(v2.ResourceNodes).Name("n1").Do(ctx).Into(&o); err != nil {
		t.Fatal(err)
	}
	if most := 4 + 2*int64(time.Since(start)/interval+1); o.Generation > most {
		t.Errorf("the object was written %d times, want at most %d", o.Generation, most)
	}
}

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// TestReadPools: a node's networks are those of every mode, once each; one that is none is a fault.
func TestReadPools(t *testing.T) {
	t.Parallel()
	o := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n2"}, Spec: v2.NodeSpec{Addresses: []v2.NodeAddress{{Type: "InternalIP", IP: "192.0.2.2"}}}}
	o.Spec.IPAM.PodCIDRs = []string{"10.0.2.0/24"}
	o.Spec.IPAM.Pools.Allocated = []v2.IPAMPoolAllocation{
		{Pool: "default", CIDRs: []string{"10.0.2.0/24", "10.0.3.1/24", "fd00:2::/112"}}, {Pool: "edge", CIDRs: []string{"10.9.0.0/28"}},
	}
	n, err := nodes.Read(o, "default", 0)
	if got, want := fmt.Sprint(n.PodCIDRs()), "[10.0.2.0/24 10.0.3.0/24 10.9.0.0/28 fd00:2::/112]"; err != nil || got != want {
		t.Errorf("%s, %v; want %s", got, err, want)
	}
	for _, text := range []string{"10.9.0.0", "::ffff:10.9.0.0/112"} {
		o.Spec.IPAM.Pools.Allocated[1].CIDRs = []string{text}
		if _, err := nodes.Read(o, "default", 0); err == nil || !strings.Contains(err.Error(), fmt.Sprintf("spec.ipam.pools.allocated: %q is no CIDR", text)) {
			t.Errorf("%s: %v", text, err)
		}
	}
}
