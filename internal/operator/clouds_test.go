package operator

import (
	"encoding/json"
	"encoding/pem"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/election"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/alibaba"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/azure"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/nodemanagertest"
)

// killTrial is a cloud in which operators are killed, each a process that finds the cloud as every
// user of its SDK does.
type killTrial struct {
	cloud interface {
		http.Handler
		View() cloud.View
		Script(func(string) *cloud.Fault)
	}
	// ipv6 has each node be given an IPv6 prefix, too.
	ipv6 bool
	// tls has the cloud be served with a certificate; the AWS SDK takes authorities from elsewhere.
	tls    bool
	flags  func(url string) []string
	env    func(url string) []string
	points []killPoint
	// launch runs an instance that has the action be called, and returns what its agent says of it.
	launch func(name, action string) (v2.NodeSpec, error)
	// outlives names an interface that would be left when its instance ends.
	outlives func() string
	// public says what is wrong with the public address of a node that is at rest; nil where nodes
	// have none.
	public func(*v2.CiliumNode) string
}

// killPoint is a call in the middle of which the operator is killed.
type killPoint struct {
	action string
	// shrink waits for the call as the node shrinks, if growing has the same one be made.
	shrink bool
}

const (
	cloudSecret  = "very-secret-key"
	deleteAction = "DeleteNetworkInterface"
	attachAction = "AttachNetworkInterface"
	publicAction = "AssociateAddress"
)

func awsTrial() killTrial {
	c := aws.New()
	c.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"))
	c.AddSubnet("subnet-1", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/22"), nil)
	c.AddGroup("sg-1", "vpc-1", nil)
	c.AddVPCIPv6("vpc-1", netip.MustParsePrefix("2600:1f18:1:ab00::/56"))
	c.AddSubnetIPv6("subnet-1", netip.MustParsePrefix("2600:1f18:1:ab01::/64"))
	return killTrial{
		cloud: c, ipv6: true,
		points: []killPoint{
			{action: "CreateNetworkInterface"}, {action: attachAction}, {action: "ModifyNetworkInterfaceAttribute"}, {action: "AssignIpv6Addresses"},
			{action: "AssignPrivateIpAddresses"}, {action: "UnassignPrivateIpAddresses"}, {action: deleteAction}, {action: publicAction},
		},
		flags: func(string) []string { return []string{"--ipam=eni", "--aws-release-excess-ips"} },
		env: func(url string) []string {
			return []string{
				"AWS_ENDPOINT_URL=" + url, "AWS_REGION=eu-test-1", "AWS_ACCESS_KEY_ID=AKIDTEST", "AWS_SECRET_ACCESS_KEY=" + cloudSecret,
				"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_EC2_METADATA_DISABLED=true",
			}
		},
		launch: func(name, action string) (s v2.NodeSpec, err error) {
			if action == publicAction {
				// More than are needed: an operator that knows nothing has another one to take.
				s.IPAM.StaticIPTags = map[string]string{"for": "edge"}
				for range 3 {
					if _, err := c.AddElasticIP(s.IPAM.StaticIPTags); err != nil {
						return s, err
					}
				}
			}
			_, err = c.AddInstance("i-"+name, "m5.xlarge", "subnet-1", []string{"sg-1"}, nil)
			index := 1
			s.InstanceID, s.ENI.InstanceType, s.ENI.FirstInterfaceIndex = "i-"+name, "m5.xlarge", &index
			return s, err
		},
		outlives: func() string {
			for _, i := range c.Interfaces() {
				if i.Index > 0 && !i.DeleteOnTermination {
					return i.ID
				}
			}
			return ""
		},
		public: func(n *v2.CiliumNode) string { return elastic(c, n) },
	}
}

// elastic compares the elastic IPs that lead to a node's instance with what its object says.
func elastic(c *aws.Cloud, n *v2.CiliumNode) string {
	var has []string
	for _, i := range c.Interfaces() {
		for _, x := range c.ElasticIPs() {
			if i.Instance == n.Spec.InstanceID && x.Interface == i.ID {
				has = append(has, x.IP.String())
			}
		}
	}
	want := []string{n.Status.IPAM.AssignedStaticIP}
	if len(n.Spec.IPAM.StaticIPTags) == 0 {
		want = nil
	}
	if !slices.Equal(has, want) {
		return fmt.Sprintf("the elastic IPs %v lead to %s, which says %q", has, n.Name, n.Status.IPAM.AssignedStaticIP)
	}
	return ""
}

func alibabaTrial() killTrial {
	c := alibaba.New()
	c.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"))
	c.AddVSwitch("vsw-1", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/22"), nil)
	c.AddGroup("sg-1", "vpc-1", nil)
	return killTrial{
		cloud: c, tls: true,
		points: []killPoint{
			{action: "CreateNetworkInterface"}, {action: attachAction}, {action: "AssignPrivateIpAddresses"}, {action: "UnassignPrivateIpAddresses"}, {action: deleteAction},
		},
		flags: func(url string) []string {
			return []string{"--ipam=alibabacloud", "--alibaba-cloud-region-id=eu-test-1", "--alibaba-cloud-endpoint-url=" + url, "--alibaba-cloud-release-excess-ips", "--enable-ipv6=false"}
		},
		env: func(string) []string {
			return []string{"ALIBABA_CLOUD_ACCESS_KEY_ID=AKIDTEST", "ALIBABA_CLOUD_ACCESS_KEY_SECRET=" + cloudSecret}
		},
		launch: func(name, _ string) (s v2.NodeSpec, err error) {
			_, err = c.AddInstance("i-"+name, "ecs.g7.xlarge", "vsw-1", "sg-1")
			s.InstanceID, s.AlibabaCloud.InstanceType = "i-"+name, "ecs.g7.xlarge"
			return s, err
		},
		outlives: func() string {
			for _, i := range c.Interfaces() {
				if !i.Main && !i.DeleteOnRelease {
					return i.ID
				}
			}
			return ""
		},
	}
}

// azureTrial has virtual machines and instances of a scale set.
func azureTrial(t *testing.T) killTrial {
	const putNIC, putVM = "networkInterfaces/write", "virtualMachineScaleSets/virtualMachines/write"
	c := azure.New("sub-1", "group-1")
	c.AddNetwork("net-1", netip.MustParsePrefix("10.0.0.0/16"))
	subnet := c.AddSubnet("nodes", "net-1", netip.MustParsePrefix("10.0.0.0/22"))
	// Tokens of a managed identity, as App Service gives them: of the services of this kind it is
	// the only one whose address the environment can say.
	tokens := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("X-IDENTITY-HEADER") != "mine" {
			http.Error(w, "who?", http.StatusForbidden)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"access_token": cloudSecret, "token_type": "Bearer", "resource": r.URL.Query().Get("resource"),
			"expires_in": "3600", "expires_on": strconv.FormatInt(time.Now().Add(time.Hour).Unix(), 10)})
	}))
	t.Cleanup(tokens.Close)
	return killTrial{
		cloud: c, tls: true,
		points: []killPoint{{action: putNIC}, {action: putNIC, shrink: true}, {action: putVM}, {action: putVM, shrink: true}},
		flags: func(url string) []string {
			return []string{"--ipam=azure", "--azure-subscription-id=sub-1", "--azure-resource-group=group-1", "--azure-resource-manager-url=" + url, "--azure-release-excess-ips", "--enable-ipv6=false"}
		},
		env: func(string) []string { return []string{"IDENTITY_ENDPOINT=" + tokens.URL, "IDENTITY_HEADER=mine"} },
		launch: func(name, action string) (v2.NodeSpec, error) {
			set := ""
			if action == putVM {
				set = "workers"
			}
			id, err := c.AddMachine(set, name, subnet)
			return v2.NodeSpec{InstanceID: strings.ToLower(id)}, err
		},
		outlives: func() string { return "" },
	}
}

// TestENI, TestAzure and TestAlibabaCloud have operators killed in the middle of each kind of call
// that changes the cloud: before it takes effect, after, and with the effect when another operator
// is about to change something. Whoever leads next finishes or removes it: every address that the
// cloud counts as assigned is in one node's object, every address in an object is assigned to its
// instance, and no interface is left.
func TestENI(t *testing.T) {
	t.Parallel()
	awsTrial().run(t)
}

func TestAzure(t *testing.T) {
	t.Parallel()
	azureTrial(t).run(t)
}

func TestAlibabaCloud(t *testing.T) {
	t.Parallel()
	alibabaTrial().run(t)
}

// serve serves the cloud, and says how an operator finds it.
func (k killTrial) serve(w *world) (flags []string) {
	w.Helper()
	var s *httptest.Server
	if k.tls {
		s = httptest.NewTLSServer(k.cloud)
		trust := filepath.Join(w.TempDir(), "cloud.crt")
		if err := os.WriteFile(trust, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
			w.Fatal(err)
		}
		w.env = append(w.env, "SSL_CERT_FILE="+trust)
	} else {
		s = httptest.NewServer(k.cloud)
	}
	w.Cleanup(s.Close)
	w.env = append(w.env, k.env(s.URL)...)
	return append(k.flags(s.URL), "--limit-ipam-api-qps=100", "--limit-ipam-api-burst=100", "--excess-ip-release-delay=0", "--eni-gc-interval=1s",
		"--leader-election-lease-duration=10s", "--leader-election-renew-deadline=8s", "--leader-election-retry-period=200ms")
}

// killing is a world in whose cloud operators are killed.
type killing struct {
	*world
	killTrial
	// agents do what the agents of nodes do.
	agents nodemanagertest.Trial
	flags  []string
	p      *process // the operator that runs
	runs   int
	// release has the last call that came late take effect.
	release func()
	nodes   []string
}

func (k killTrial) run(t *testing.T) {
	w := newWorld(t)
	x := &killing{world: w, killTrial: k, agents: nodemanagertest.Trial{T: t, Env: &controllers.Env{Client: w.client}}, release: func() {}}
	x.flags = k.serve(w)
	x.next()
	w.eventually(3*time.Minute, func() string { // the first operator registers the definitions
		if err := w.client.List(w.Context(), &v2.CiliumNodeList{}); err != nil {
			return err.Error()
		}
		return ""
	})
	for _, point := range k.points {
		for _, when := range []string{"before", "after", "late"} {
			begun := time.Now()
			x.strike(fmt.Sprint("node-", x.runs), point, when)
			t.Logf("%s %s: %s", when, point.action, time.Since(begun).Round(time.Millisecond))
		}
	}
	k.cloud.Script(nil)
	x.release()
	begun := time.Now()
	w.eventually(3*time.Minute, x.audit)
	t.Logf("all is in line after %s", time.Since(begun).Round(time.Millisecond))
	for _, text := range []string{x.p.log.String(), fmt.Sprintf("%+v", x.objects())} {
		if strings.Contains(text, cloudSecret) {
			t.Errorf("the secret is shown")
		}
	}
	x.p.signal(syscall.SIGTERM)
	_ = x.p.ended(30 * time.Second)
}

// next starts an operator. It need not wait for the lease of one that was killed: TestFailover
// shows that.
func (x *killing) next() {
	x.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Name: election.LockName, Namespace: "default"}}
	if err := client.IgnoreNotFound(x.client.Delete(x.Context(), lease)); err != nil {
		x.Fatal(err)
	}
	x.runs++
	x.p = x.start(fmt.Sprint(x.runs), x.flags...)
}

// strike has a node grow and shrink until the operator calls an action, kills it then, and starts
// another.
func (x *killing) strike(name string, point killPoint, when string) {
	x.Helper()
	before, late := x.release, make(chan struct{})
	x.release = sync.OnceFunc(func() { close(late) })
	if point.action == deleteAction {
		// An interface that is found loose below is to be the new node's, so that no other may need
		// one meanwhile.
		before()
		x.cloud.Script(nil)
		x.eventually(3*time.Minute, x.audit)
	}
	changes := map[string]bool{}
	for _, p := range x.points {
		changes[p.action] = true
	}
	struck := make(chan struct{})
	var shrinking, once atomic.Bool
	p := x.p
	x.cloud.Script(func(a string) *cloud.Fault {
		if changes[a] {
			before() // what the operator before this one has asked for
		}
		switch {
		case a == attachAction && point.action == deleteAction && !once.Load():
			return &cloud.Fault{Code: "IncorrectState", Message: "not now"}
		case a != point.action || point.shrink && !shrinking.Load() || !once.CompareAndSwap(false, true):
			return nil
		}
		p.signal(syscall.SIGKILL)
		<-p.done
		close(struck)
		if when == "late" {
			<-late
		}
		return &cloud.Fault{Drop: true, After: when != "before"}
	})
	spec, err := x.launch(name, point.action)
	if err != nil {
		x.Fatal(err)
	}
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	x.create(n)
	use, gone := 0, false
	x.eventually(3*time.Minute, func() string {
		select {
		case <-struck:
			return ""
		default:
		}
		switch {
		case gone:
		case point.action == deleteAction:
			if gone = x.loose() != ""; gone {
				if err := x.client.Delete(x.Context(), n); err != nil {
					x.Fatal(err)
				}
			}
		default:
			switch got := len(x.agents.Agent(name, use).Spec.IPAM.Pool); {
			case got == 8 && use == 0:
				use = 12
			case got == 20 && use == 12:
				use = 2
				shrinking.Store(true)
			}
		}
		return point.action + " was not called: " + fmt.Sprint(x.p.log.String()[max(0, len(x.p.log.String())-500):])
	})
	if !gone {
		x.nodes = append(x.nodes, name)
	}
	x.next()
}

// loose names an interface that is not attached.
func (x *killing) loose() string {
	for _, i := range x.cloud.View().Interfaces {
		if i.Instance == "" {
			return i.ID + " is not attached"
		}
	}
	return ""
}

func (w *world) objects() []v2.CiliumNode {
	w.Helper()
	var all v2.CiliumNodeList
	if err := w.client.List(w.Context(), &all, &client.ListOptions{}); err != nil {
		w.Fatal(err)
	}
	return all.Items
}

// audit compares what the cloud has assigned with what nodes are given, in both directions, when
// each has five pods.
func (x *killing) audit() string {
	place := func(instance, nic string) string { return strings.ToLower(instance + " " + nic) }
	var nodes []*v2.CiliumNode
	for _, name := range x.nodes {
		n := x.agents.Agent(name, 5)
		if said := n.Status.IPAM.OperatorStatus.Error; len(n.Spec.IPAM.Pool) != 13 || len(n.Status.IPAM.ReleaseIPs) > 0 || len(n.Status.IPAM.Used) != 5 || said != "" {
			return fmt.Sprintf("%s has %d addresses, %d used and %d on their way back, and says %q",
				n.Name, len(n.Spec.IPAM.Pool), len(n.Status.IPAM.Used), len(n.Status.IPAM.ReleaseIPs), said)
		}
		if x.public != nil {
			if wrong := x.public(n); wrong != "" {
				return wrong
			}
		}
		nodes = append(nodes, n)
	}
	assigned := map[string]string{}
	if loose := x.loose(); loose != "" {
		return loose
	}
	if x.ipv6 {
		if wrong := x.auditIPv6(nodes); wrong != "" {
			return wrong
		}
	}
	for _, i := range x.cloud.View().Interfaces {
		for _, a := range i.Addresses {
			if other := assigned[a.String()]; other != "" {
				x.Fatalf("%s is assigned to %s and %s", a, other, i.ID)
			}
			assigned[a.String()] = place(i.Instance, i.ID)
		}
	}
	if id := x.outlives(); id != "" {
		return id + " would outlive its instance"
	}
	for _, n := range nodes {
		for a, from := range n.Spec.IPAM.Pool {
			if assigned[a] != place(n.Spec.InstanceID, from.Resource) {
				return fmt.Sprintf("%s of %s is assigned to %q", a, n.Name, assigned[a])
			}
			delete(assigned, a)
		}
	}
	if len(assigned) > 0 {
		return fmt.Sprint("assigned, and in no node's status: ", assigned)
	}
	return ""
}

// auditIPv6 compares the IPv6 prefixes that the cloud has delegated with those of nodes: each has
// one, or two if a call came late, which no other node has.
func (x *killing) auditIPv6(nodes []*v2.CiliumNode) string {
	left := map[string]string{}
	for _, i := range x.cloud.View().Interfaces {
		for _, p := range i.IPv6Prefixes {
			left[p.String()] = i.Instance + " " + i.ID
		}
	}
	for _, n := range nodes {
		if has := len(n.Spec.IPAM.IPv6Pool); has < 1 || has > 2 {
			return fmt.Sprintf("%s has the IPv6 prefixes %v: %s", n.Name, n.Spec.IPAM.IPv6Pool, n.Status.IPAM.OperatorStatus.Error)
		}
		for p, from := range n.Spec.IPAM.IPv6Pool {
			if left[p] != n.Spec.InstanceID+" "+from.Resource {
				return fmt.Sprintf("%s of %s is delegated to %q", p, n.Name, left[p])
			}
			delete(left, p)
		}
	}
	if len(left) > 0 {
		return fmt.Sprint("delegated, and in no node's status: ", left)
	}
	return ""
}
