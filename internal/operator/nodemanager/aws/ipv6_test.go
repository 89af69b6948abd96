package aws

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	fake "github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/nodemanagertest"
)

// withIPv6 gives the nodes' and the pods' subnet in one zone IPv6 CIDR blocks, and the operator the
// word to use them.
func (r *region) withIPv6() *region {
	r.ipv6 = true
	r.AddVPCIPv6("vpc-1", netip.MustParsePrefix("2600:1f18:1:ab00::/56"))
	r.AddSubnetIPv6("subnet-a", netip.MustParsePrefix("2600:1f18:1:ab01::/64"))
	r.AddSubnetIPv6("subnet-pods", netip.MustParsePrefix("2600:1f18:1:ab02::/64"))
	return r
}

// checkIPv6 compares what a node's object says of IPv6 with the cloud: one prefix, on one interface
// whose addresses pods get, or two if an operator has ended in the middle.
func (r *region) checkIPv6(n *v2.CiliumNode) string {
	want := map[string]string{}
	for _, i := range r.Interfaces() {
		if i.Instance != n.Spec.InstanceID {
			continue
		}
		var list []string
		for _, p := range i.IPv6Prefixes {
			list = append(list, p.String())
			want[p.String()] = i.ID
		}
		if !slices.Equal(list, n.Status.ENI.ENIs[i.ID].IPv6Prefixes) {
			return fmt.Sprintf("%s has %v, and the status says %v", i.ID, list, n.Status.ENI.ENIs[i.ID].IPv6Prefixes)
		}
	}
	if len(want) < 1 || len(want) > 2 || len(n.Spec.IPAM.IPv6Pool) != len(want) {
		return fmt.Sprintf("it has the prefixes %v and the pool %v: %s", want, n.Spec.IPAM.IPv6Pool, n.Status.IPAM.OperatorStatus.Error)
	}
	for p, id := range want {
		if n.Spec.IPAM.IPv6Pool[p].Resource != id {
			return fmt.Sprintf("%s of %s is not in the pool %v", p, id, n.Spec.IPAM.IPv6Pool)
		}
	}
	return ""
}

// TestIPv6 has nodes be given one prefix each, whatever else becomes of them; who can have none is
// gets the reason in its status, and IPv4 addresses as ever.
func TestIPv6(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	tr.cloud.withIPv6()
	tr.cloud.Pages(2)
	stop := tr.Run(nil)
	asked := func() int { return tr.cloud.Calls()["AssignIpv6Addresses"] }

	// ---- one prefix for all of a node's life, and no more calls at rest -----------------------
	tr.node("grow", "m5.large", 0, nil)
	n := tr.Converges("grow", 0, 8, 8, "")
	for p, x := range n.Spec.IPAM.IPv6Pool {
		if e := n.Status.ENI.ENIs[x.Resource]; e.Number != 0 || !netip.MustParsePrefix("2600:1f18:1:ab01::/64").Contains(netip.MustParsePrefix(p).Addr()) {
			t.Errorf("%s is of %+v", p, e)
		}
	}
	before := fmt.Sprint(n.Spec.IPAM.IPv6Pool)
	tr.Converges("grow", 20, 27, 27, "")
	n = tr.Converges("grow", 0, 8, 8, "")
	if after := fmt.Sprint(n.Spec.IPAM.IPv6Pool); after != before || asked() != 1 {
		t.Errorf("%s became %s by %d calls", before, after, asked())
	}
	tr.node("second", "m5.large", 1, nil)
	n = tr.Converges("second", 0, 8, 8, "")
	for p, x := range n.Spec.IPAM.IPv6Pool {
		if e := n.Status.ENI.ENIs[x.Resource]; e.Number != 1 || !netip.MustParsePrefix("2600:1f18:1:ab02::/64").Contains(netip.MustParsePrefix(p).Addr()) {
			t.Errorf("%s is of %+v", p, e)
		}
	}

	// ---- an address whose prefix is not the node's --------------------------------------------
	n.Status.IPAM.IPv6Used = v2.AllocationMap{"2600:1f18:1:ab0f::7": {Owner: "default/lost"}}
	if err := tr.Client.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	n = tr.Converges("second", 0, 8, 8, "address 2600:1f18:1:ab0f::7 of default/lost is in no prefix of the instance")
	for p := range n.Spec.IPAM.IPv6Pool {
		n.Status.IPAM.IPv6Used = v2.AllocationMap{netip.MustParsePrefix(p).Addr().Next().String(): {Owner: "default/found"}}
	}
	if err := tr.Client.Status().Update(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	tr.Converges("second", 0, 8, 8, "")

	// ---- who can have none --------------------------------------------------------------------
	calls := asked()
	converges := func(name string, use, least int, fault string) {
		t.Helper()
		controllers.Eventually(t, nodemanagertest.Timeout, func() string {
			n := tr.Agent(name, use)
			if len(n.Spec.IPAM.Pool) != least || len(n.Spec.IPAM.IPv6Pool) != 0 {
				return fmt.Sprintf("%d addresses and %v: %s", len(n.Spec.IPAM.Pool), n.Spec.IPAM.IPv6Pool, n.Status.IPAM.OperatorStatus.Error)
			}
			return nodemanagertest.Missing(n.Status.IPAM.OperatorStatus.Error, fault)
		})
	}
	tr.node("old", "m1.small", 0, nil)
	converges("old", 0, 6, "instance type m1.small does not support IPv6")
	tr.node("xen", "t2.small", 1, nil)
	converges("xen", 0, 6, "instance type t2.small is not built on the Nitro System")
	tr.cloud.AddSubnetIPv6("subnet-pods", netip.Prefix{})
	reads := tr.cloud.Calls()["DescribeVpcs"] // which come after the subnets
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		if tr.cloud.Calls()["DescribeVpcs"] < reads+2 {
			return "the subnet has not been read anew"
		}
		return ""
	})
	tr.node("late", "m5.xlarge", 1, nil)
	converges("late", 0, 8, "subnet subnet-pods (100.64.0.0/24) has no IPv6 CIDR block: associate one with it")
	converges("late", 5, 13, "subnet subnet-pods (100.64.0.0/24) has no IPv6 CIDR block")
	if asked() != calls {
		t.Errorf("%d calls for what cannot be had", asked()-calls)
	}
	tr.Converges("second", 0, 8, 8, "") // what it has it keeps
	tr.cloud.AddSubnetIPv6("subnet-pods", netip.MustParsePrefix("2600:1f18:1:ab03::/64"))
	tr.Converges("late", 5, 13, 13, "")

	// ---- refused, for a while: IPv4 is not held up --------------------------------------------
	var refuse atomic.Pointer[fake.Fault]
	tr.cloud.Script(func(action string) *cloud.Fault {
		if action == "AssignIpv6Addresses" {
			return refuse.Load()
		}
		return nil
	})
	for k, r := range []nodemanagertest.Refusal{
		{Fault: fake.Fault{Code: "UnauthorizedOperation", Message: "Encoded authorization failure message: 0x1234", Status: 403}, Message: "permission ec2:AssignIpv6Addresses is missing"},
		{Fault: fake.Fault{Code: "InsufficientCidrBlocks", Message: "no"}, Message: "the IPv6 CIDR block of the subnet has no /80 left"},
		{Fault: fake.Fault{Code: "RequestLimitExceeded", Message: "no", Status: 503}, Message: "asked more often than the account may"},
		{Fault: fake.Fault{Drop: true}, Message: "AWS does not answer AssignIpv6Addresses"},
	} {
		refuse.Store(&r.Fault)
		name := fmt.Sprint("refused-", k)
		tr.node(name, "m5.xlarge", 1, nil)
		converges(name, 0, 8, r.Message)
		converges(name, 9, 17, r.Message)
		if said := tr.Get(name).Status.IPAM.OperatorStatus.Error; strings.Contains(said, "0x1234") {
			t.Errorf("the status says %q", said)
		}
		refuse.Store(nil)
		tr.Converges(name, 9, 17, 17, "")
	}

	// ---- an instance that ends ----------------------------------------------------------------
	tr.cloud.Terminate("i-late")
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		return nodemanagertest.Missing(tr.Get("late").Status.IPAM.OperatorStatus.Error, "no network interface that can be seen")
	})

	// ---- switched off: pods get none any more, what is assigned stays -------------------------
	stop()
	tr.cloud.ipv6 = false
	tr.Run(nil)
	controllers.Eventually(t, nodemanagertest.Timeout, func() string {
		n := tr.Get("grow")
		if len(n.Spec.IPAM.IPv6Pool) > 0 {
			return fmt.Sprintf("pods get %v", n.Spec.IPAM.IPv6Pool)
		}
		return ""
	})
	shown := 0
	for _, e := range tr.Get("grow").Status.ENI.ENIs {
		shown += len(e.IPv6Prefixes)
	}
	if shown != 1 {
		t.Errorf("the interfaces have %d prefixes", shown)
	}
}

// TestIPv6FaultPoints is TestFaultPoints of the call by which a prefix is delegated, and of the one
// before it.
func TestIPv6FaultPoints(t *testing.T) {
	t.Parallel()
	s := suite()
	s.Changes = []string{"ModifyNetworkInterfaceAttribute", "AssignIpv6Addresses"}
	s.New = func(t *testing.T) nodemanagertest.Cloud { return newRegion(t).withIPv6() }
	s.FaultPoints(t)
}

// TestIPv6Subnets has nodes' interfaces be made where there is IPv6.
func TestIPv6Subnets(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	tr.cloud.withIPv6()
	tr.cloud.AddSubnet("subnet-large", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.8.0/22"), map[string]string{"for": "pods"})
	tr.Run(nil)
	tr.node("dual", "m5.large", 1, nil)
	n := tr.Converges("dual", 12, 18, 18, "")
	in := map[int]string{}
	for _, e := range n.Status.ENI.ENIs {
		in[e.Number] = e.Subnet.ID
	}
	if in[1] != "subnet-pods" || in[2] != "subnet-large" {
		t.Errorf("interfaces are in %v", in)
	}
}
