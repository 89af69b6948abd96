package addressing

import (
	"context"
	"fmt"
	"net"
	"net/http/httptest"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/agent/instance"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/internal/operator/nodemanager/alibaba"
	"github.com/hawser-net/hawser/internal/operator/nodemanager/aws"
	"github.com/hawser-net/hawser/internal/operator/nodemanager/azure"
	fake "github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestProvidersAgree: what the agent writes of its machine is what the operator of each cloud looks
// for, and what that writes of interfaces is what the agent reads.
func TestProvidersAgree(t *testing.T) {
	t.Parallel()
	cloud := &nodemanager.Snapshot{
		Subnets: map[string]nodemanager.Subnet{"subnet-1": {ID: "subnet-1", CIDR: "10.0.0.0/24", VPC: "vpc-1"}, "subnet-2": {ID: "subnet-2", CIDR: "10.0.2.0/24", VPC: "vpc-1"}},
		VPCs:    map[string]nodemanager.VPC{"vpc-1": {ID: "vpc-1", Primary: "10.0.0.0/16", CIDRs: []string{"100.64.0.0/16"}}},
	}
	attached := []nodemanager.Interface{
		{ID: "if-1", Index: 0, Name: "eth0", State: "succeeded", Subnet: "subnet-1", VPC: "vpc-1", MAC: "02:00:00:00:00:01", Primary: netip.MustParseAddr("10.0.0.4"),
			Tags: map[string]string{"cilium-eni-index": "0"}, Held: []netip.Prefix{netip.MustParsePrefix("10.0.0.9/32")}},
		{ID: "if-2", Index: 1, Name: "eth1", State: "succeeded", Subnet: "subnet-2", VPC: "vpc-1", MAC: "02:00:00:00:00:02", Primary: netip.MustParseAddr("10.0.2.4"),
			Tags: map[string]string{"cilium-eni-index": "1"}, Held: []netip.Prefix{netip.MustParsePrefix("10.0.2.16/28")}},
	}
	for _, c := range []struct {
		provider nodemanager.Provider
		cloud    instance.Cloud
		facts    instance.Facts
		instance string
		gateway  string // of the second
	}{
		{&aws.Provider{}, instance.AWS, instance.Facts{ID: "i-1", Type: "m5.large"}, "i-1", "10.0.2.1"},
		{&azure.Provider{}, instance.Azure, instance.Facts{ID: instance.AzureID("azure:///Subscriptions/S/resourceGroups/G/virtualMachines/M")}, "/subscriptions/s/resourcegroups/g/virtualmachines/m", "10.0.2.1"},
		{&alibaba.Provider{}, instance.Alibaba, instance.Facts{ID: "i-2", Type: "ecs.g7.large"}, "i-2", "10.0.2.253"},
	} {
		o := ciliumNode(1)
		(&instance.Wanted{}).Write(o, c.cloud, c.facts)
		if got, kind := c.provider.Instance(o), c.provider.InstanceType(o); got != c.instance || kind != c.facts.Type {
			t.Errorf("%s: the operator looks for instance %q of type %q", c.cloud, got, kind)
		}
		field, value, _ := c.provider.Status(o, cloud, attached)
		o = patched(t, o, map[string]any{field: value})
		list, err := interfacesOf(string(c.cloud), ipam.Both, o, nil)
		if err != nil || len(list) != 2 || list[0].ID != "if-1" || list[1].ID != "if-2" || list[1].Number != 1 || list[1].MAC != "02:00:00:00:00:02" ||
			list[1].Subnet.String() != "10.0.2.0/24" || list[1].Gateway.String() != c.gateway {
			t.Errorf("%s: the agent reads %+v, %v", c.cloud, list, err)
			continue
		}
		if vpc := netip.MustParsePrefix("10.0.0.0/16"); c.cloud != instance.Azure && !slices.Contains(list[1].Networks, vpc) {
			t.Errorf("%s: its networks are %v", c.cloud, list[1].Networks)
		}
	}
}

// pluggedBy has interfaces be in the kernel a while after the cloud has attached them.
type pluggedBy struct {
	kernel
	cloud    *fake.Cloud
	instance string
}

func (p *pluggedBy) follow() {
	for _, i := range p.cloud.Interfaces() {
		p.mu.Lock()
		p.plugged[i.MAC] = i.Instance == p.instance
		p.mu.Unlock()
	}
}

func (p *pluggedBy) of(instance string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.instance = instance
}

// TestENIWithOperator has a node get its addresses from the operator, on a real API server and
// beside a cloud that counts: what machine it is the agent reads from the metadata, what it is to
// have from the CNI configuration. Its pods have addresses of several interfaces, each of which was
// there when it was given, over restarts of the agent, and give them back.
func TestENIWithOperator(t *testing.T) {
	t.Parallel()
	env := controllers.Start(t)
	cloud := fake.New()
	cloud.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"))
	cloud.AddSubnet("subnet-a", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	cloud.AddSubnet("subnet-p", "vpc-1", "eu-test-1a", netip.MustParsePrefix("100.64.0.0/24"), map[string]string{"for": "pods"})
	cloud.AddGroup("sg-1", "vpc-1", nil)
	if _, err := cloud.AddInstance("i-n1", "m5.large", "subnet-a", []string{"sg-1"}, nil); err != nil {
		t.Fatal(err)
	}
	endpoint := httptest.NewServer(cloud)
	t.Cleanup(endpoint.Close)
	metadata := httptest.NewServer(cloud.Metadata("i-n1"))
	t.Cleanup(metadata.Close)
	runAWS(t, env, endpoint.URL)
	env.Create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})

	e := &operatedNode{
		t: t, env: env, cloud: cloud, metadata: metadata.URL, dir: t.TempDir(), pods: map[netip.Addr]string{}, interfaces: map[string]bool{},
		kernel: &pluggedBy{kernel: kernel{plugged: map[string]bool{}}, cloud: cloud, instance: "i-n1"},
	}
	e.start()
	defer func() { e.stop() }()
	e.giveAll()
	e.describes()
	e.detach()
	e.givesBack()
}

// operatedNode is the node of TestENIWithOperator, and the agent on it.
type operatedNode struct {
	t          *testing.T
	env        *controllers.Env
	cloud      *fake.Cloud
	metadata   string // where the machine reads what it is
	dir        string
	kernel     *pluggedBy
	allocator  *Allocator
	stop       func()
	pods       map[netip.Addr]string
	interfaces map[string]bool // that pods have addresses of
}

// start starts the agent, which restores the addresses of pods.
func (e *operatedNode) start() {
	e.t.Helper()
	e.stop = func() {}
	cfg := singlesConfig(e.dir)
	cfg.Mode, cfg.KindsWait, cfg.Hosts = ENI, time.Minute, []netip.Addr{netip.MustParseAddr("10.0.0.4")}
	read := instance.Config{
		Cloud: instance.AWS, Endpoint: e.metadata, Path: filepath.Join(e.dir, "instance.json"), Boot: "boot", Save: cfg.Save,
		Has: func(mac net.HardwareAddr) (bool, error) {
			return slices.ContainsFunc(e.cloud.Interfaces(), func(i fake.Interface) bool { return i.MAC == mac.String() }), nil
		},
	}
	facts, err := instance.Read(e.t.Context(), read)
	if err != nil {
		e.t.Fatal(err)
	}
	wanted := instance.Wanted{PreAllocate: 3}
	wanted.ENI.SubnetTags, wanted.ENI.FirstInterfaceIndex = map[string]string{"for": "pods"}, new(1)
	cfg.Describe = func(o *v2.CiliumNode, _ bool) { wanted.Write(o, instance.AWS, facts) }
	client, err := k8s.New(rest.CopyConfig(e.env.Server.Config))
	if err != nil {
		e.t.Fatal(err)
	}
	s, err := NewSingles(cfg, client)
	if err != nil {
		e.t.Fatal(err)
	}
	if err := s.await(e.t.Context(), len(e.pods) > 0); err != nil {
		e.t.Fatal(err)
	}
	pool, err := ipam.New(ipam.Config{Assigned: ipam.IPv4})
	if err == nil {
		err = s.Attach(pool)
	}
	if err != nil {
		e.t.Fatal(err)
	}
	stopping := make(chan struct{})
	e.allocator = &Allocator{IPAM: pool, Node: "n1", InterfaceOf: s.InterfaceOf, Stopping: stopping}
	own, err := nodes.New(nodes.Config{Self: cfg.Self, Own: s.Observe, Fill: s.Fill}, client, nodes.Discard{})
	if err == nil {
		err = own.Announce(node.Node{Name: "n1", Cluster: "default", Addresses: []node.Address{{Type: node.InternalIP, IP: cfg.Hosts[0]}}})
	}
	if err != nil {
		e.t.Fatal(err)
	}
	for ip, pod := range e.pods {
		if err := pool.Restore(ip, pod); err != nil {
			e.t.Errorf("a pod has lost its address: %v", err)
		}
	}
	s.Connect(Uplinks{Network: e.kernel, Masquerade: ipam.IPv4})
	for ip := range e.pods {
		if !e.kernel.leads(ip) {
			e.t.Errorf("packets of %s do not pass after a restart", ip)
		}
	}
	pool.Open()
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = own.Run(ctx) })
	wg.Go(func() { _ = s.Run(ctx, refresher{own}) })
	wg.Go(func() { // what the kernel reports
		for ctx.Err() == nil {
			e.kernel.follow()
			s.InterfacesChanged(nil, nil)
			time.Sleep(50 * time.Millisecond)
		}
	})
	e.stop = func() { close(stopping); cancel(); wg.Wait() }
}

// giveAll gives as many addresses as there are, with a restart in between.
func (e *operatedNode) giveAll() {
	for n := range 14 { // m5.large: three interfaces of nine addresses, the first is the node's
		pod := fmt.Sprint("ns/p-", n)
		r, err := e.allocator.Give(e.t.Context(), ipam.IPv4, pod, ipam.Choice{}, false)
		if err != nil {
			e.t.Fatalf("pod %d: %v", n, err)
		}
		ip := r.IPv4.IP
		e.pods[ip] = pod
		if !e.kernel.leads(ip) {
			e.t.Errorf("%s is given and its packets do not pass", ip)
		}
		i, ok, err := e.allocator.Through(ip)
		if err != nil || !ok || i.Number == 0 || i.Gateway.String() != "100.64.0.1" || !slices.Contains(i.Networks, netip.MustParsePrefix("10.0.0.0/16")) {
			e.t.Errorf("%s leaves by %+v, %v", ip, i, err)
		}
		if !slices.ContainsFunc(e.cloud.Interfaces(), func(c fake.Interface) bool {
			return c.ID == i.ID && c.MAC == i.MAC && c.Index == i.Number && c.Instance == "i-n1" && slices.Contains(c.Addresses, ip)
		}) {
			e.t.Errorf("%s is not of %+v in the cloud", ip, i)
		}
		e.interfaces[i.ID] = true
		if n == 9 {
			e.stop()
			e.start()
		}
	}
	if len(e.interfaces) < 2 {
		e.t.Errorf("all addresses are of %v", e.interfaces)
	}
}

// describes checks what the node's object says.
func (e *operatedNode) describes() {
	o := &v2.CiliumNode{}
	if err := e.env.Client.Get(e.t.Context(), types.NamespacedName{Name: "n1"}, o); err != nil {
		e.t.Fatal(err)
	}
	if eni := o.Spec.ENI; o.Spec.InstanceID != "i-n1" || eni.InstanceType != "m5.large" || eni.VpcID != "vpc-1" || eni.NodeSubnetID != "subnet-a" || eni.AvailabilityZone != "eu-test-1a" ||
		o.Spec.IPAM.PreAllocate != 3 || *eni.FirstInterfaceIndex != 1 {
		e.t.Errorf("the node says %+v", o.Spec)
	}
}

// detach detaches an interface in the cloud: no pod gets an address of it.
func (e *operatedNode) detach() {
	var gone string
	for id := range e.interfaces {
		gone = max(gone, id)
	}
	for ip, pod := range e.pods {
		e.allocator.FreeOf(ip, pod)
		delete(e.pods, ip)
	}
	k := slices.IndexFunc(e.cloud.Interfaces(), func(c fake.Interface) bool { return c.ID == gone })
	mac := e.cloud.Interfaces()[k].MAC
	e.kernel.of("none") // all are unplugged at once
	controllers.Eventually(e.t, 10*time.Second, func() string {
		if r, err := e.allocator.AllocateNext(ipam.IPv4, "ns/none", "", false); err == nil {
			e.allocator.FreeOf(r.IPv4.IP, "ns/none")
			return "an address of an interface that is not there is given"
		}
		return ""
	})
	e.kernel.of("i-n1")
	controllers.Eventually(e.t, 2*time.Minute, func() string {
		if !e.kernel.has(mac) {
			return "it is not plugged again"
		}
		r, err := e.allocator.AllocateNext(ipam.IPv4, "ns/again", "", false)
		if err != nil {
			return err.Error()
		}
		e.allocator.FreeOf(r.IPv4.IP, "ns/again")
		return ""
	})
}

// givesBack checks that what is superfluous goes back, and that the kernel is given nothing that is
// not the node's.
func (e *operatedNode) givesBack() {
	o := &v2.CiliumNode{}
	controllers.Eventually(e.t, 2*time.Minute, func() string {
		if err := e.env.Client.Get(e.t.Context(), types.NamespacedName{Name: "n1"}, o); err != nil {
			return err.Error()
		}
		if len(o.Spec.IPAM.Pool) != 3 || len(o.Status.IPAM.Used) != 0 || len(o.Status.IPAM.ReleaseIPs) != 0 {
			return fmt.Sprintf("pool %d, used %v, releases %v, %s", len(o.Spec.IPAM.Pool), o.Status.IPAM.Used, o.Status.IPAM.ReleaseIPs, o.Status.IPAM.OperatorStatus.Error)
		}
		e.kernel.mu.Lock()
		defer e.kernel.mu.Unlock()
		var routed []string
		for _, i := range e.kernel.want {
			for _, p := range i.Pods {
				routed = append(routed, datapath.SpellPods(p))
			}
		}
		for _, ip := range routed {
			if _, ok := o.Spec.IPAM.Pool[ip]; !ok {
				return "the kernel still forwards " + strings.Join(routed, ", ")
			}
		}
		return ""
	})
}

type refresher struct{ *nodes.Nodes }

func (refresher) AddressesMoved() {}
func (refresher) Report(error)    {}
