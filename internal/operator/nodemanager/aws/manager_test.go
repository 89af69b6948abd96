package aws

import (
	"context"
	"fmt"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	fake "github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/nodemanagertest"
)

// region is a region with a VPC of two zones, and options by which the SDK finds it.
type region struct {
	*fake.Cloud
	options []func(*config.LoadOptions) error
	prefix  bool
	ipv6    bool
}

func newRegion(t *testing.T) *region {
	c := fake.New()
	c.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"))
	c.AddSubnet("subnet-a", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), map[string]string{"for": "nodes"})
	c.AddSubnet("subnet-pods", "vpc-1", "eu-test-1a", netip.MustParsePrefix("100.64.0.0/24"), map[string]string{"for": "pods"})
	c.AddSubnet("subnet-b", "vpc-1", "eu-test-1b", netip.MustParsePrefix("10.0.1.0/24"), map[string]string{"for": "pods"})
	c.AddGroup("sg-nodes", "vpc-1", nil)
	c.AddGroup("sg-pods", "vpc-1", map[string]string{"for": "pods"})
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	return &region{Cloud: c, options: []func(*config.LoadOptions) error{
		config.WithBaseEndpoint(s.URL), config.WithRegion("eu-test-1"), config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("id", "secret", "")),
		config.WithSharedConfigFiles(nil), config.WithSharedCredentialsFiles(nil),
	}}
}

// Provider implements [nodemanagertest.Cloud].
func (r *region) Provider(ctx context.Context, b *nodemanager.Budget) (nodemanager.Provider, map[string]string, error) {
	cfg := Config{ClusterName: "test", PrefixDelegation: r.prefix, IPv6: r.ipv6}
	p, err := New(ctx, cfg, b, r.options...)
	return p, cfg.Collected(), err
}

// Disturbed implements [nodemanagertest.Cloud].
func (r *region) Disturbed() *cloud.Disturbances { return &r.Disturbances }

// Start implements [nodemanagertest.Cloud]: the pods' subnet is not the node's.
func (r *region) Start(name, action string) (s v2.NodeSpec, err error) {
	if action == "DescribeAddresses" || action == "AssociateAddress" {
		if _, err = r.AddElasticIP(edge); err != nil {
			return s, err
		}
		defer func() { s.IPAM.StaticIPTags = edge }()
	}
	return r.start(name, "m5.xlarge", 1)
}

func (r *region) start(name, kind string, first int) (s v2.NodeSpec, err error) {
	_, err = r.AddInstance("i-"+name, kind, "subnet-a", []string{"sg-nodes"}, nil)
	s.InstanceID, s.ENI.InstanceType, s.ENI.FirstInterfaceIndex = "i-"+name, kind, &first
	s.ENI.SubnetTags = map[string]string{"for": "pods"}
	return s, err
}

// Exhaust implements [nodemanagertest.Cloud].
func (r *region) Exhaust(free int) { r.Cloud.Exhaust("subnet-pods", free) }

// Assigned implements [nodemanagertest.Cloud].
func (r *region) Assigned(instance string) (map[string]string, error) {
	out := map[string]string{}
	for _, i := range r.Interfaces() {
		if i.Attachment == "" && i.Tags[nodemanager.InstanceTag] == instance {
			return nil, fmt.Errorf("%s is not attached", i.ID)
		}
		if i.Instance != instance {
			continue
		}
		if i.Index > 0 && !i.DeleteOnTermination {
			return nil, fmt.Errorf("%s would outlive the instance", i.ID)
		}
		for _, a := range i.Addresses {
			out[a.String()] = i.ID
		}
		for _, p := range i.Prefixes {
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				out[a.String()] = i.ID
			}
		}
	}
	return out, nil
}

// CheckStatus implements [nodemanagertest.Cloud].
func (r *region) CheckStatus(n *v2.CiliumNode) string {
	for _, i := range r.Interfaces() {
		if e := n.Status.ENI.ENIs[i.ID]; i.Instance == n.Spec.InstanceID && (e.Number != i.Index || len(e.Addresses) != len(i.Addresses)+16*len(i.Prefixes)) {
			return fmt.Sprintf("status of %s: %+v", i.ID, e)
		}
	}
	if r.ipv6 {
		return r.checkIPv6(n)
	}
	return r.checkPublic(n)
}

// Loose implements [nodemanagertest.Cloud].
func (r *region) Loose() (out []string) {
	for _, i := range r.Interfaces() {
		if i.Attachment == "" {
			out = append(out, i.ID)
		}
	}
	return out
}

func TestConformance(t *testing.T) {
	t.Parallel()
	suite().Run(t)
}

func TestFaultPoints(t *testing.T) {
	t.Parallel()
	s := suite()
	s.New = func(t *testing.T) nodemanagertest.Cloud {
		r := newRegion(t) // with a subnet that has room for a node of each point
		r.AddSubnet("subnet-pods", "vpc-1", "eu-test-1a", netip.MustParsePrefix("100.64.0.0/22"), map[string]string{"for": "pods"})
		return r
	}
	s.FaultPoints(t)
}

func suite() nodemanagertest.Suite {
	return nodemanagertest.Suite{
		New:     func(t *testing.T) nodemanagertest.Cloud { return newRegion(t) },
		Changes: []string{"CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute", "AssignPrivateIpAddresses", "UnassignPrivateIpAddresses", "AssociateAddress"},
		Dry:     "no free address in subnet subnet-pods (100.64.0.0/24)",
		Unread:  nodemanagertest.Refusal{Action: "DescribeSubnets", Fault: fake.Fault{Code: "AuthFailure", Message: "no", Status: 401}, Message: "does not accept the operator's credentials (AuthFailure)"},
		Refusals: []nodemanagertest.Refusal{
			{Action: "DescribeInstanceTypes", Fault: fake.Fault{Code: "UnauthorizedOperation", Message: "no", Status: 403}, Message: "permission ec2:DescribeInstanceTypes is missing"},
			{Action: "CreateNetworkInterface", Fault: fake.Fault{Code: "UnauthorizedOperation", Message: "Encoded authorization failure message: 0x1234", Status: 403}, Message: "permission ec2:CreateNetworkInterface is missing"},
			{Action: "CreateNetworkInterface", Fault: fake.Fault{Code: "NetworkInterfaceLimitExceeded", Message: "too many"}, Message: "quota of network interfaces"},
			{Action: "AttachNetworkInterface", Fault: fake.Fault{Code: "AttachmentLimitExceeded", Message: "too many"}, Message: "the instance holds no more network interfaces"},
			{Action: "CreateNetworkInterface", Fault: fake.Fault{Code: "RequestLimitExceeded", Message: "no", Status: 503}, Message: "asked more often than the account may"},
			{Action: "DescribeAddresses", Fault: fake.Fault{Code: "UnauthorizedOperation", Message: "no", Status: 403}, Message: "permission ec2:DescribeAddresses is missing"},
			{Action: "AssociateAddress", Fault: fake.Fault{Code: "UnauthorizedOperation", Message: "Encoded authorization failure message: 0x1234", Status: 403}, Message: "permission ec2:AssociateAddress is missing"},
			{Action: "AssociateAddress", Fault: fake.Fault{Code: "AddressLimitExceeded", Message: "too many"}, Message: "quota of elastic IPs"},
			{Action: "AssociateAddress", Fault: fake.Fault{Code: "Gateway.NotAttached", Message: "Network vpc-1 is not attached to any internet gateway"}, Message: "the node's VPC has no internet gateway"},
			{Action: "DescribeAddresses", Fault: fake.Fault{Drop: true}, Message: "AWS does not answer DescribeAddresses"},
			{Action: "CreateNetworkInterface", Fault: fake.Fault{Drop: true}, Message: "AWS does not answer CreateNetworkInterface"},
		},
	}
}

// trial is one with a region.
type trial struct {
	nodemanagertest.Trial
	cloud *region
}

func newTrial(t *testing.T) *trial {
	r := newRegion(t)
	return &trial{nodemanagertest.Trial{T: t, Env: controllers.Start(t), Cloud: r}, r}
}

// node runs an instance of a type, and makes its node, whose pods get addresses of the interfaces
// from first on.
func (tr *trial) node(name, kind string, first int, change func(*v2.NodeSpec)) {
	tr.Helper()
	s, err := tr.cloud.start(name, kind, first)
	if err != nil {
		tr.Fatal(err)
	}
	if change != nil {
		change(&s)
	}
	tr.Create(tr.T, &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: s})
}

// TestManager is what only this cloud has: places of interfaces, tags, types.
func TestManager(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	tr.cloud.Pages(2)
	tr.Run(nil)

	// ---- growth over interfaces, and back -----------------------------------------------------
	tr.node("grow", "m5.large", 0, nil)
	tr.Converges("grow", 0, 8, 8, "")
	n := tr.Converges("grow", 17, 25, 25, "")
	if len(n.Status.ENI.ENIs) != 3 {
		t.Errorf("interfaces: %+v", n.Status.ENI.ENIs)
	}
	for _, e := range n.Status.ENI.ENIs {
		if e.Number == 1 && (e.Subnet.ID != "subnet-pods" || e.Subnet.CIDR != "100.64.0.0/24" || e.VPC.PrimaryCIDR != "10.0.0.0/16" || !slices.Equal(e.VPC.CIDRs, []string{"100.64.0.0/16"}) ||
			!slices.Equal(e.SecurityGroups, []string{"sg-nodes"}) || e.Tags[nodemanager.ClusterTag] != "test") {
			t.Errorf("status of the second interface: %+v", e)
		}
	}
	// It is full: nothing is wrong as long as addresses are free.
	tr.Converges("grow", 20, 27, 27, "")
	tr.Converges("grow", 27, 27, 27, "instance type m5.large holds no more than 3 interfaces with 10 addresses each")
	tr.Converges("grow", 3, 11, 11, "")

	// ---- pods that wait -----------------------------------------------------------------------
	tr.node("surge", "m5.xlarge", 0, nil)
	tr.Converges("surge", 0, 8, 8, "")
	for i := range 30 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("surge-", i), Namespace: "default"}}
		p.Spec.NodeName, p.Spec.Containers = "surge", []corev1.Container{{Name: "c", Image: "none"}}
		tr.Create(t, p)
	}
	tr.Converges("surge", 0, 30, 30, "")

	// ---- prefixes, tags and index -------------------------------------------------------------
	tr.node("tags", "m5.large", 1, func(s *v2.NodeSpec) { s.ENI.SecurityGroupTags = map[string]string{"for": "pods"} })
	n = tr.Converges("tags", 0, 8, 8, "")
	for _, e := range n.Status.ENI.ENIs {
		if e.Number == 1 && !slices.Equal(e.SecurityGroups, []string{"sg-pods"}) {
			t.Errorf("security groups by tag: %v", e.SecurityGroups)
		}
	}
	tr.node("nowhere", "m5.large", 1, func(s *v2.NodeSpec) { s.ENI.SubnetTags = map[string]string{"for": "none"} })
	tr.Converges("nowhere", 0, 0, 0, "none in eu-test-1a of vpc-1 has the tags of spec.eni.subnet-tags")

	// ---- one that would be read as the instances of all, for EC2 knows wildcards ---------------
	tr.node("wild", "m5.large", 1, func(s *v2.NodeSpec) { s.InstanceID = "i-*" })
	tr.Converges("wild", 0, 0, 0, `"i-*" is no instance ID of AWS: correct spec.instance-id`)
	tr.Converges("tags", 0, 8, 8, "")

	// ---- an instance that ends, and its node; what it leaves behind is removed ----------------
	keep := false
	tr.node("end", "m5.large", 1, func(s *v2.NodeSpec) { s.ENI.DeleteOnTermination = &keep })
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		if n := tr.Agent("end", 0); len(n.Spec.IPAM.Pool) != 8 {
			return fmt.Sprint(len(n.Spec.IPAM.Pool), n.Status.IPAM.OperatorStatus)
		}
		return ""
	})
	tr.cloud.Terminate("i-end")
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		return nodemanagertest.Missing(tr.Get("end").Status.IPAM.OperatorStatus.Error, "no network interface that can be seen")
	})
	if err := tr.Client.Delete(t.Context(), tr.Get("end")); err != nil {
		t.Fatal(err)
	}
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		for _, i := range tr.cloud.Interfaces() {
			if i.Tags[nodemanager.InstanceTag] == "i-end" {
				return i.ID + " is still there"
			}
		}
		return ""
	})
}

// TestPrefixes has prefixes assigned and released as a whole, and single addresses where there is
// none.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	tr.cloud.prefix = true
	tr.Run(nil)
	tr.node("nitro", "m5.large", 1, nil)
	tr.Converges("nitro", 0, 16, 16, "")
	tr.Converges("nitro", 30, 48, 48, "")
	n := tr.Converges("nitro", 0, 16, 16, "")
	for _, e := range n.Status.ENI.ENIs {
		if e.Number == 1 && len(e.Prefixes) != 1 {
			t.Errorf("prefixes: %v", e.Prefixes)
		}
	}
	tr.node("xen", "t2.small", 1, nil)
	tr.Converges("xen", 0, 6, 6, "")
	tr.cloud.Exhaust(14)
	tr.node("scattered", "m5.large", 1, nil)
	tr.Converges("scattered", 0, 8, 8, "")
}

// TestPodsFirst has pods come to a node without addresses for them, while many nodes wait for a
// cloud that allows few calls: the pods do not wait for nodes that need addresses only in advance.
func TestPodsFirst(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	stop := tr.Run(nil)
	const others = 20
	other := func(i int) string { return fmt.Sprint("a-", i) } // which come before the busy one
	for i := range others {
		tr.node(other(i), "m5.xlarge", 0, nil)
	}
	tr.node("busy", "m5.xlarge", 0, nil)
	tr.Converges("busy", 0, 8, 8, "")
	for i := range others {
		tr.Converges(other(i), 0, 8, 8, "")
	}
	stop()
	for i := range others {
		tr.Agent(other(i), 4)
	}
	lacking := func() (n int) {
		for i := range others {
			if len(tr.Get(other(i)).Spec.IPAM.Pool) < 12 {
				n++
			}
		}
		return n
	}
	tr.Run(func(c *nodemanager.Config) {
		c.QPS, c.Burst, c.Workers, c.Resync, c.ReleaseExcess = 2, 1, 4, time.Hour, false
	})
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		if lacking() == others {
			return "no other node has more addresses yet"
		}
		return ""
	})
	for i := range 12 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("busy-", i), Namespace: "default"}}
		p.Spec.NodeName, p.Spec.Containers = "busy", []corev1.Container{{Name: "c", Image: "none"}}
		tr.Create(t, p)
	}
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		if n := len(tr.Get("busy").Spec.IPAM.Pool); n < 12 {
			return fmt.Sprintf("%d addresses for 12 pods", n)
		}
		return ""
	})
	left := lacking()
	t.Logf("%d of %d other nodes lack addresses", left, others)
	if left < others/2 {
		t.Errorf("the pods have their addresses when only %d of %d other nodes lack theirs", left, others)
	}
	// A queue with priorities that is shut down while keys are ready in it may never end: issue
	// 3538 of controller-runtime.
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		if n := lacking(); n > 0 {
			return fmt.Sprintf("%d nodes lack addresses", n)
		}
		return ""
	})
}

// TestSuccession has an operator release addresses, and another one lead at once, to which EC2
// describes what was before: the node does not get these addresses again.
func TestSuccession(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	lag := func(c *nodemanager.Config) { c.MaxLag = time.Minute }
	stop := tr.Run(lag)
	tr.node("n", "m5.xlarge", 1, nil)
	tr.Converges("n", 9, 17, 17, "")
	tr.cloud.Lag(30 * time.Second)
	tr.Converges("n", 0, 8, 8, "")
	stop()

	reads := func() int { return tr.cloud.Calls()["DescribeVpcs"] }
	before := reads()
	defer tr.Run(lag)()
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		assigned, err := tr.cloud.Assigned("i-n")
		if err != nil {
			return err.Error()
		}
		n := tr.Get("n")
		for a := range n.Spec.IPAM.Pool {
			if assigned[a] == "" {
				t.Fatalf("%s was released, and is in the pool again: %v", a, n.Annotations)
			}
		}
		if reads() < before+4 { // the operator has gone by the first
			return "the cloud has not been described"
		}
		return ""
	})
	tr.cloud.Lag(0)
	tr.Converges("n", 9, 17, 17, "")
	tr.Converges("n", 0, 8, 8, "")
}

// provider is one without a manager.
func (r *region) provider(t *testing.T) *Provider {
	t.Helper()
	metrics, err := nodemanager.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	p, _, err := r.Provider(t.Context(), nodemanager.NewBudget(nodemanager.Defaults(), metrics))
	if err != nil {
		t.Fatal(err)
	}
	return p.(*Provider)
}

// TestForeignInstance has CiliumNodes name what is no instance: EC2, which would take it for a
// pattern, is not asked.
func TestForeignInstance(t *testing.T) {
	t.Parallel()
	r := newRegion(t)
	p := r.provider(t)
	for _, name := range []string{"a", "b"} {
		if _, err := r.Start(name, ""); err != nil {
			t.Fatal(err)
		}
	}
	for _, id := range []string{"i-*", "i-?", "*", `i-\a`, "i-", "", "i-a\n", "eni-a"} {
		if list, err := p.ReadInstance(t.Context(), id); err == nil || !strings.Contains(err.Error(), "is no instance ID of AWS") {
			t.Errorf("%q: %v, %v", id, list, err)
		}
	}
	if n := len(r.Calls()); n > 0 {
		t.Errorf("asked: %v", r.Calls())
	}
	if list, err := p.ReadInstance(t.Context(), "i-a"); err != nil || len(list) != 1 {
		t.Errorf("one's own: %v, %v", list, err)
	}
}
