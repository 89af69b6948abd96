package aws

import (
	"context"
	"fmt"
	"log/slog"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	fake "github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// patience is for a machine that does much else.
const patience = 3 * time.Minute

// newCloud returns a region with a VPC of two zones, and options by which the SDK finds it.
func newCloud(t *testing.T) (*fake.Cloud, []func(*config.LoadOptions) error) {
	c := fake.New()
	c.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"))
	c.AddSubnet("subnet-a", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), map[string]string{"for": "nodes"})
	c.AddSubnet("subnet-pods", "vpc-1", "eu-test-1a", netip.MustParsePrefix("100.64.0.0/24"), map[string]string{"for": "pods"})
	c.AddSubnet("subnet-b", "vpc-1", "eu-test-1b", netip.MustParsePrefix("10.0.1.0/24"), map[string]string{"for": "pods"})
	c.AddGroup("sg-nodes", "vpc-1", nil)
	c.AddGroup("sg-pods", "vpc-1", map[string]string{"for": "pods"})
	s := httptest.NewServer(c)
	t.Cleanup(s.Close)
	return c, []func(*config.LoadOptions) error{
		config.WithBaseEndpoint(s.URL), config.WithRegion("eu-test-1"), config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("id", "secret", "")),
		config.WithSharedConfigFiles(nil), config.WithSharedCredentialsFiles(nil),
	}
}

// trial is an API server and a cloud.
type trial struct {
	*testing.T
	*controllers.Env
	cloud   *fake.Cloud
	options []func(*config.LoadOptions) error
}

func newTrial(t *testing.T, env *controllers.Env) *trial {
	c, options := newCloud(t)
	return &trial{t, env, c, options}
}

// run runs a node manager as quick as a test needs it.
func (tr *trial) run(change func(*nodemanager.Config, *Config)) (stop func()) {
	tr.Helper()
	return tr.Env.Run(tr.T, func(ctx context.Context, m manager.Manager, log *slog.Logger) error {
		cfg, aws := nodemanager.Defaults(), Config{ClusterName: "town"}
		cfg.QPS, cfg.Burst, cfg.Resync, cfg.Settle, cfg.ReleaseDelay, cfg.GCInterval = 200, 100, time.Second, 2*time.Second, 0, time.Second
		if change != nil {
			change(&cfg, &aws)
		}
		cfg.ReleaseExcess, cfg.GCTags = aws.ReleaseExcess, aws.Collected()
		metrics, err := nodemanager.NewMetrics(prometheus.NewRegistry())
		if err != nil {
			return err
		}
		p, err := New(ctx, aws, nodemanager.NewBudget(cfg, metrics), tr.options...)
		if err != nil {
			return err
		}
		return nodemanager.Setup(ctx, m, cfg, p, metrics, log)
	})
}

func releasing(_ *nodemanager.Config, a *Config) { a.ReleaseExcess = true }

// node runs an instance and makes its node.
func (tr *trial) node(name, kind string, change func(*v2.NodeSpec)) {
	tr.Helper()
	if _, err := tr.cloud.AddInstance("i-"+name, kind, "subnet-a", []string{"sg-nodes"}, nil); err != nil {
		tr.Fatal(err)
	}
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.InstanceID, n.Spec.ENI.InstanceType = "i-"+name, kind
	n.Spec.ENI.SubnetTags = map[string]string{"for": "pods"}
	if change != nil {
		change(&n.Spec)
	}
	tr.Create(tr.T, n)
}

func (tr *trial) get(name string) *v2.CiliumNode {
	tr.Helper()
	n := &v2.CiliumNode{}
	if err := tr.Client.Get(tr.Context(), types.NamespacedName{Name: name}, n); err != nil {
		tr.Fatal(err)
	}
	return n
}

// agent does once what the agent of a node does that has use pods: it takes and gives back
// addresses, says so, and answers what is marked.
func (tr *trial) agent(name string, use int) *v2.CiliumNode {
	tr.Helper()
	for {
		n := tr.get(name)
		before := n.DeepCopy()
		used := v2.AllocationMap{}
		for a := range n.Status.IPAM.Used {
			if len(used) < use {
				used[a] = v2.AllocationIP{Owner: "default/pod"}
			}
		}
		for a := range n.Spec.IPAM.Pool {
			if _, asked := n.Status.IPAM.ReleaseIPs[a]; len(used) < use && !asked {
				used[a] = v2.AllocationIP{Owner: "default/pod"}
			}
		}
		n.Status.IPAM.Used = used
		for a, s := range n.Status.IPAM.ReleaseIPs {
			_, has := used[a]
			switch {
			case s == v2.IPReleased:
				delete(n.Status.IPAM.ReleaseIPs, a)
			case s == v2.IPMarkedForRelease && has:
				n.Status.IPAM.ReleaseIPs[a] = v2.IPDoNotRelease
			case s == v2.IPMarkedForRelease:
				n.Status.IPAM.ReleaseIPs[a] = v2.IPReadyForRelease
			}
		}
		if fmt.Sprint(before.Status.IPAM) == fmt.Sprint(n.Status.IPAM) {
			return n
		}
		err := tr.Client.Status().Update(tr.Context(), n)
		if err == nil {
			return n
		}
		if !apierrors.IsConflict(err) {
			tr.Fatal(err)
		}
	}
}

// audit compares what the cloud has assigned to a node's instance with what its object says.
func (tr *trial) audit(n *v2.CiliumNode) string {
	assigned := map[string]string{}
	for _, i := range tr.cloud.Interfaces() {
		if i.Attachment == "" && i.Tags[instanceTag] == n.Spec.InstanceID {
			return i.ID + " is not attached"
		}
		if i.Instance != n.Spec.InstanceID {
			continue
		}
		if i.Index > 0 && !i.DeleteOnTermination {
			return i.ID + " would outlive the instance"
		}
		for _, a := range i.Addresses {
			assigned[a.String()] = i.ID
		}
		for _, p := range i.Prefixes {
			for a := p.Addr(); p.Contains(a); a = a.Next() {
				assigned[a.String()] = i.ID
			}
		}
		if e := n.Status.ENI.ENIs[i.ID]; e.Number != i.Index || len(e.Addresses) != len(i.Addresses)+16*len(i.Prefixes) {
			return fmt.Sprintf("status of %s: %+v", i.ID, e)
		}
	}
	for a, from := range assigned {
		if n.Spec.IPAM.Pool[a].Resource != from {
			return fmt.Sprintf("%s is assigned to %s, and the pool says %q", a, from, n.Spec.IPAM.Pool[a].Resource)
		}
	}
	for a := range n.Spec.IPAM.Pool {
		if assigned[a] == "" {
			return a + " is in the pool and not assigned"
		}
	}
	for a := range n.Status.IPAM.Used {
		if assigned[a] == "" {
			return a + " is used and not assigned"
		}
	}
	return ""
}

// settles waits until a node with use pods has between least and most addresses, all of which are
// its, and says fault.
func (tr *trial) settles(name string, use, least, most int, fault string) *v2.CiliumNode {
	tr.Helper()
	var n *v2.CiliumNode
	controllers.Eventually(tr.T, patience, func() string {
		n = tr.agent(name, use)
		if said := n.Status.IPAM.OperatorStatus.Error; fault == "" && said != "" || !strings.Contains(said, fault) {
			return fmt.Sprintf("the status says %q, not %q", said, fault)
		}
		if got := len(n.Spec.IPAM.Pool); got < least || got > most {
			return fmt.Sprintf("%d addresses, not %d to %d", got, least, most)
		}
		if len(n.Status.IPAM.Used) != use {
			return fmt.Sprintf("%d of %d pods have an address", len(n.Status.IPAM.Used), use)
		}
		if len(n.Status.IPAM.ReleaseIPs) > 0 {
			return fmt.Sprint("under way: ", n.Status.IPAM.ReleaseIPs)
		}
		return tr.audit(n)
	})
	return n
}

func TestManager(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, controllers.Start(t))
	tr.cloud.Pages(2)
	tr.run(releasing)

	// ---- growth over interfaces, and back -----------------------------------------------------
	tr.node("grow", "m5.large", nil)
	tr.settles("grow", 0, 8, 8, "")
	n := tr.settles("grow", 17, 25, 25, "")
	if len(n.Status.ENI.ENIs) != 3 {
		t.Errorf("interfaces: %+v", n.Status.ENI.ENIs)
	}
	for _, e := range n.Status.ENI.ENIs {
		if e.Number == 1 && (e.Subnet.ID != "subnet-pods" || e.Subnet.CIDR != "100.64.0.0/24" || e.VPC.PrimaryCIDR != "10.0.0.0/16" || !slices.Equal(e.VPC.CIDRs, []string{"100.64.0.0/16"}) ||
			!slices.Equal(e.SecurityGroups, []string{"sg-nodes"}) || e.Tags[clusterTag] != "town") {
			t.Errorf("status of the second interface: %+v", e)
		}
	}
	// It is full: nothing is wrong as long as addresses are free.
	tr.settles("grow", 20, 27, 27, "")
	tr.settles("grow", 27, 27, 27, "instance type m5.large holds no more than 3 interfaces with 10 addresses each")
	tr.settles("grow", 3, 11, 11, "")

	// ---- pods that wait -----------------------------------------------------------------------
	tr.node("surge", "m5.xlarge", nil)
	tr.settles("surge", 0, 8, 8, "")
	for i := range 30 {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("surge-", i), Namespace: "default"}}
		p.Spec.NodeName, p.Spec.Containers = "surge", []corev1.Container{{Name: "c", Image: "none"}}
		tr.Create(t, p)
	}
	tr.settles("surge", 0, 30, 30, "")

	// ---- prefixes, tags and index -------------------------------------------------------------
	tr.node("tags", "m5.large", func(s *v2.NodeSpec) {
		first := 1
		s.ENI.FirstInterfaceIndex, s.ENI.SecurityGroupTags = &first, map[string]string{"for": "pods"}
	})
	n = tr.settles("tags", 0, 8, 8, "")
	for _, e := range n.Status.ENI.ENIs {
		if e.Number == 1 && !slices.Equal(e.SecurityGroups, []string{"sg-pods"}) {
			t.Errorf("security groups by tag: %v", e.SecurityGroups)
		}
	}
	tr.node("nowhere", "m5.large", func(s *v2.NodeSpec) {
		first := 1
		s.ENI.FirstInterfaceIndex, s.ENI.SubnetTags = &first, map[string]string{"for": "nobody"}
	})
	tr.settles("nowhere", 0, 0, 0, "none in eu-test-1a of vpc-1 has the tags of spec.eni.subnet-tags")

	// ---- a subnet that runs dry and is widened ------------------------------------------------
	tr.node("dry", "m5.large", func(s *v2.NodeSpec) { first := 1; s.ENI.FirstInterfaceIndex = &first })
	tr.settles("dry", 0, 8, 8, "")
	tr.cloud.Exhaust("subnet-pods", 3)
	tr.settles("dry", 8, 9, 12, "no free address in subnet subnet-pods (100.64.0.0/24)")
	tr.cloud.Exhaust("subnet-pods", 1000)
	tr.settles("dry", 8, 16, 16, "")

	// ---- an instance that is another's --------------------------------------------------------
	thief := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "thief"}}
	thief.Spec.InstanceID, thief.Spec.ENI.InstanceType = "i-dry", "m5.large"
	tr.Create(t, thief)
	controllers.Eventually(t, patience, func() string {
		if n := tr.get("thief"); !strings.Contains(n.Status.IPAM.OperatorStatus.Error, "is that of node dry") || len(n.Spec.IPAM.Pool) > 0 {
			return fmt.Sprintf("%+v", n.Status)
		}
		return ""
	})

	// ---- an instance that ends, and its node; what it leaves behind is removed ----------------
	keep := false
	tr.node("end", "m5.large", func(s *v2.NodeSpec) { first := 1; s.ENI.FirstInterfaceIndex, s.ENI.DeleteOnTermination = &first, &keep })
	controllers.Eventually(t, patience, func() string {
		if n := tr.agent("end", 0); len(n.Spec.IPAM.Pool) != 8 {
			return fmt.Sprint(len(n.Spec.IPAM.Pool), n.Status.IPAM.OperatorStatus)
		}
		return ""
	})
	tr.cloud.Terminate("i-end")
	controllers.Eventually(t, patience, func() string {
		return missing(tr.get("end").Status.IPAM.OperatorStatus.Error, "no network interface that can be seen")
	})
	if err := tr.Client.Delete(t.Context(), tr.get("end")); err != nil {
		t.Fatal(err)
	}
	controllers.Eventually(t, patience, func() string {
		for _, i := range tr.cloud.Interfaces() {
			if i.Tags[instanceTag] == "i-end" {
				return i.ID + " is still there"
			}
		}
		return ""
	})
}

func missing(text, want string) string {
	if strings.Contains(text, want) {
		return ""
	}
	return fmt.Sprintf("%q does not say %q", text, want)
}

// TestPrefixes has prefixes assigned and released as a whole, and single addresses where there is
// none.
func TestPrefixes(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, controllers.Start(t))
	tr.run(func(_ *nodemanager.Config, a *Config) { a.ReleaseExcess, a.PrefixDelegation = true, true })
	one := func(s *v2.NodeSpec) { first := 1; s.ENI.FirstInterfaceIndex = &first }
	tr.node("nitro", "m5.large", one)
	tr.settles("nitro", 0, 16, 16, "")
	tr.settles("nitro", 30, 48, 48, "")
	n := tr.settles("nitro", 0, 16, 16, "")
	for _, e := range n.Status.ENI.ENIs {
		if e.Number == 1 && len(e.Prefixes) != 1 {
			t.Errorf("prefixes: %v", e.Prefixes)
		}
	}
	tr.node("xen", "t2.small", one)
	tr.settles("xen", 0, 6, 6, "")
	tr.cloud.Exhaust("subnet-pods", 14)
	tr.node("scattered", "m5.large", one)
	tr.settles("scattered", 0, 8, 8, "")
}

// TestRefusals has the cloud refuse, and the status of the node say what to do, until it does not.
func TestRefusals(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, controllers.Start(t))
	var refuse atomic.Pointer[func(action string) *fake.Fault]
	none := func(string) *fake.Fault { return nil }
	refuse.Store(&none)
	tr.cloud.Script(func(action string) *fake.Fault { return (*refuse.Load())(action) })
	tr.run(nil)
	for k, c := range []struct {
		action string
		fault  fake.Fault
		say    string
	}{
		{"CreateNetworkInterface", fake.Fault{Code: "UnauthorizedOperation", Message: "Encoded authorization failure message: 0x1234", Status: 403}, "permission ec2:CreateNetworkInterface is missing"},
		{"CreateNetworkInterface", fake.Fault{Code: "NetworkInterfaceLimitExceeded", Message: "too many"}, "quota of network interfaces"},
		{"AttachNetworkInterface", fake.Fault{Code: "AttachmentLimitExceeded", Message: "too many"}, "the instance holds no more network interfaces"},
		{"DescribeInstanceTypes", fake.Fault{Code: "UnauthorizedOperation", Message: "no", Status: 403}, "permission ec2:DescribeInstanceTypes is missing"},
		{"CreateNetworkInterface", fake.Fault{Code: "RequestLimitExceeded", Message: "no", Status: 503}, "asked more often than the account may"},
		{"CreateNetworkInterface", fake.Fault{Drop: true}, "AWS does not answer CreateNetworkInterface"},
		{"DescribeSubnets", fake.Fault{Code: "AuthFailure", Message: "no", Status: 401}, "does not accept the operator's credentials (AuthFailure)"},
	} {
		no := func(action string) *fake.Fault {
			if action == c.action {
				return &c.fault
			}
			return nil
		}
		refuse.Store(&no)
		name, kind := fmt.Sprint("refused-", k), []string{"m5.large", "m5.xlarge"}[k%2]
		if c.action == "DescribeInstanceTypes" {
			kind = "t3.small" // not asked for before
		}
		tr.node(name, kind, func(s *v2.NodeSpec) { first := 1; s.ENI.FirstInterfaceIndex = &first })
		controllers.Eventually(t, patience, func() string {
			said := tr.get(name).Status.IPAM.OperatorStatus.Error
			if strings.Contains(said, "0x1234") || strings.Contains(said, "secret") {
				t.Errorf("the status says %q", said)
			}
			return missing(said, c.say)
		})
		refuse.Store(&none)
		tr.settles(name, 0, 6, 8, "")
	}
}

// TestFaultPoints ends the operator at each call that changes the cloud: before it takes effect,
// after, with the answer lost, and with the effect when the operator has ended already. Another
// goes on. Descriptions are a little old all the time.
func TestFaultPoints(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, controllers.Start(t))
	tr.cloud.Lag(100 * time.Millisecond)
	k := 0
	for _, action := range []string{
		"CreateNetworkInterface", "AttachNetworkInterface", "ModifyNetworkInterfaceAttribute", "AssignPrivateIpAddresses", "UnassignPrivateIpAddresses",
	} {
		for _, when := range []string{"before", "after", "late"} {
			k++
			tr.faultPoint(fmt.Sprint("fault-", k), action, when)
		}
	}
	tr.cloud.Script(nil)
	for _, i := range tr.cloud.Interfaces() {
		if i.Attachment == "" {
			t.Errorf("%s was left behind", i.ID)
		}
	}
}

func (tr *trial) faultPoint(name, action, when string) {
	tr.Helper()
	struck, ended := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	tr.cloud.Script(func(a string) *fake.Fault {
		if a != action || !once.CompareAndSwap(false, true) {
			return nil
		}
		close(struck)
		if when == "late" {
			<-ended
		}
		return &fake.Fault{Drop: true, After: when != "before"}
	})
	stop := tr.run(releasing)
	tr.node(name, "m5.large", nil)
	use := 0
	controllers.Eventually(tr.T, patience, func() string {
		n := tr.agent(name, use)
		select {
		case <-struck:
			return ""
		default:
		}
		switch got := len(n.Spec.IPAM.Pool); {
		case got == 8 && use == 0:
			use = 12
		case got == 20:
			use = 2
		}
		return action + " was not called"
	})
	stop()
	close(ended)
	defer tr.run(releasing)()
	tr.settles(name, 5, 13, 13, "")
}

// TestThrottle has the cloud allow little: nodes get their addresses nevertheless, and the cloud is
// not asked much more often than it allows.
func TestThrottle(t *testing.T) {
	t.Parallel()
	tr := newTrial(t, controllers.Start(t))
	tr.cloud.Throttle(5, 5)
	begun := time.Now()
	tr.run(func(c *nodemanager.Config, _ *Config) { c.Resync = 5 * time.Second })
	for i := range 3 {
		tr.node(fmt.Sprint("slow-", i), "m5.large", nil)
	}
	for i := range 3 {
		tr.settles(fmt.Sprint("slow-", i), 0, 8, 8, "")
	}
	total := 0
	for _, n := range tr.cloud.Calls() {
		total += n
	}
	if allowed := 5 + 5*time.Since(begun).Seconds(); float64(total) > 2*allowed+20 {
		t.Errorf("%d calls, %.0f were allowed", total, allowed)
	}
}
