package aws

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	fake "github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// edge are the tags of the elastic IPs of these tests.
var edge = map[string]string{"for": "edge", "stage": "a*b"}

func (r *region) allocate(t testing.TB, tags map[string]string) fake.ElasticIP {
	t.Helper()
	x, err := r.AddElasticIP(tags)
	if err != nil {
		t.Fatal(err)
	}
	return x
}

// public returns the elastic IPs that lead to the primary address of an instance's first interface,
// or what is wrong with those that lead to the instance.
func (r *region) public(instance string) (out []string, wrong string) {
	for _, i := range r.Interfaces() {
		for _, x := range r.ElasticIPs() {
			switch {
			case i.Instance != instance || x.Interface != i.ID:
			case i.Index > 0 || x.Private != i.Primary:
				return nil, fmt.Sprintf("%s leads to %s of %s", x.IP, x.Private, i.ID)
			default:
				out = append(out, x.IP.String())
			}
		}
	}
	return out, ""
}

// checkPublic compares what a node says of its public address with the cloud.
func (r *region) checkPublic(n *v2.CiliumNode) string {
	has, wrong := r.public(n.Spec.InstanceID)
	if wrong != "" {
		return wrong
	}
	shown := n.Status.IPAM.AssignedStaticIP
	if len(has) == 0 && shown == "" && (len(n.Spec.IPAM.StaticIPTags) == 0 || n.Status.IPAM.OperatorStatus.Error != "") {
		return ""
	}
	if len(has) != 1 || has[0] != shown {
		return fmt.Sprintf("the elastic IPs %v lead to it, and it says %q", has, shown)
	}
	for _, e := range n.Status.ENI.ENIs {
		if e.Number == 0 && e.PublicIP != shown {
			return fmt.Sprintf("the interface says %q, and the node %q", e.PublicIP, shown)
		}
	}
	return ""
}

// tagged makes a node that asks for an elastic IP.
func (tr *trial) tagged(name string, tags map[string]string) {
	tr.Helper()
	tr.node(name, "m5.xlarge", 1, func(s *v2.NodeSpec) { s.IPAM.StaticIPTags = tags })
}

// asked is how often EC2 was asked about elastic IPs.
func (tr *trial) asked() int {
	calls := tr.cloud.Calls()
	return calls["DescribeAddresses"] + calls["AssociateAddress"]
}

// TestElasticIPs has nodes ask for elastic IPs by tags: each gets one, once, and the addresses of
// its pods whatever becomes of that.
func TestElasticIPs(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	stop := tr.Run(nil)

	// ---- no node asks --------------------------------------------------------------------------
	one := tr.cloud.allocate(t, edge)
	tr.cloud.allocate(t, map[string]string{"for": "edge"})
	tr.node("plain", "m5.large", 1, nil)
	tr.Converges("plain", 0, 8, 8, "")
	if n := tr.asked(); n != 0 {
		t.Errorf("asked %d times, and no node has tags", n)
	}

	// ---- tags are what they are, and no patterns ------------------------------------------------
	tr.tagged("wild", map[string]string{"for": "*", "stage": "*"})
	tr.Converges("wild", 0, 8, 8, "no elastic IP in the operator's account and region has the tags")

	// ---- one that all tags are of; what EC2 gave the instance by itself makes way ---------------
	spec, err := tr.cloud.start("first", "m5.xlarge", 1)
	if err != nil {
		t.Fatal(err)
	}
	tr.cloud.GivePublic("i-first", netip.MustParseAddr("198.51.100.9"))
	n := &v2.CiliumNode{Spec: spec}
	n.Name, n.Spec.IPAM.StaticIPTags = "first", edge
	before := tr.cloud.Calls()["AssociateAddress"]
	tr.Create(t, n)
	if n = tr.Converges("first", 3, 11, 11, ""); n.Status.IPAM.AssignedStaticIP != one.IP.String() {
		t.Errorf("it says %q, not %s", n.Status.IPAM.AssignedStaticIP, one.IP)
	}
	if n := tr.cloud.Calls()["AssociateAddress"] - before; n != 1 {
		t.Errorf("%d calls for one address", n)
	}

	// ---- none is free, then one is; pods do not wait for that -----------------------------------
	tr.tagged("second", edge)
	tr.Converges("second", 0, 8, 8, "none of the 1 elastic IPs with the tags of spec.ipam.static-ip-tags is free")
	tr.Converges("second", 9, 17, 17, "none of the 1 elastic IPs")
	two := tr.cloud.allocate(t, edge)
	if n := tr.Converges("second", 9, 17, 17, ""); n.Status.IPAM.AssignedStaticIP != two.IP.String() {
		t.Errorf("it says %q, not %s", n.Status.IPAM.AssignedStaticIP, two.IP)
	}

	// ---- another operator leads: it asks for nothing that is there ------------------------------
	stop()
	now := tr.cloud.Calls()
	reads := func() int { return tr.cloud.Calls()["DescribeSubnets"] - now["DescribeSubnets"] }
	stop = tr.Run(nil)
	controllers.Eventually(t, time.Minute, func() string {
		if reads() < 3 {
			return "it has not read the cloud"
		}
		return ""
	})
	if n := tr.cloud.Calls()["AssociateAddress"] - now["AssociateAddress"]; n != 0 {
		t.Errorf("%d associations of what was associated", n)
	}

	// ---- it is taken away; the tags go; the instance ends ---------------------------------------
	tr.cloud.Vacate(two.ID)
	tr.Converges("second", 9, 17, 17, "")
	if err := tr.Client.Patch(t.Context(), tr.Get("second"), client.RawPatch(types.MergePatchType, []byte(`{"spec": {"ipam": {"static-ip-tags": null}}}`))); err != nil {
		t.Fatal(err)
	}
	if n := tr.Converges("second", 2, 10, 10, ""); n.Status.IPAM.AssignedStaticIP != two.IP.String() {
		t.Errorf("without tags it has %q, not %s as before", n.Status.IPAM.AssignedStaticIP, two.IP)
	}
	tr.tagged("third", edge)
	tr.Converges("third", 0, 8, 8, "none of the 2 elastic IPs")
	tr.cloud.Terminate("i-first")
	if n := tr.Converges("third", 0, 8, 8, ""); n.Status.IPAM.AssignedStaticIP != one.IP.String() {
		t.Errorf("it says %q, not %s that an instance had which ended", n.Status.IPAM.AssignedStaticIP, one.IP)
	}
	stop()
}

// TestElasticIPTaken has another user take addresses between look and association, for as long as
// there are others: what another has is never taken away.
func TestElasticIPTaken(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	var left atomic.Int32
	left.Store(3)
	others := map[string]bool{}
	tr.cloud.Script(func(action string) *fake.Fault {
		if action == "AssociateAddress" && left.Add(-1) >= 0 {
			for _, x := range tr.cloud.ElasticIPs() {
				if x.Association == "" {
					others[x.ID] = true
				}
				tr.cloud.Occupy(x.ID)
			}
			if _, err := tr.cloud.AddElasticIP(edge); err != nil {
				t.Error(err)
			}
		}
		return nil
	})
	tr.cloud.allocate(t, edge)
	tr.cloud.allocate(t, edge)
	tr.Run(nil)
	tr.tagged("late", edge)
	tr.Converges("late", 0, 8, 8, "")
	for _, x := range tr.cloud.ElasticIPs() {
		if others[x.ID] && (x.Association == "" || x.Private.IsValid()) {
			t.Errorf("%s was another user's, and is %+v", x.IP, x)
		}
	}
	if len(others) != 4 || left.Load() >= 0 {
		t.Errorf("others took %d addresses; %d calls were not struck", len(others), left.Load())
	}
}

// TestElasticIPRivals has two operators look after the same nodes at once, neither of which knows
// of the other, with descriptions that are old and few calls allowed: each node ends with one
// elastic IP, and none that the status does not show.
func TestElasticIPRivals(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	const nodes = 8
	for range nodes {
		tr.cloud.allocate(t, edge)
	}
	tr.cloud.Lag(500 * time.Millisecond)
	tr.cloud.Throttle(40, 10)
	slow := func(c *nodemanager.Config) { c.QPS, c.Resync = 20, 2*time.Second }
	stop := tr.Run(slow)
	tr.Run(slow)
	for k := range nodes {
		tr.tagged(fmt.Sprint("rival-", k), edge)
	}
	for k := range nodes {
		controllers.Eventually(t, 2*time.Minute, func() string {
			n := tr.Get(fmt.Sprint("rival-", k))
			if n.Status.IPAM.AssignedStaticIP == "" {
				return "it has no elastic IP: " + n.Status.IPAM.OperatorStatus.Error
			}
			return ""
		})
	}
	stop()
	shown := map[string]string{}
	for k := range nodes {
		n := tr.Converges(fmt.Sprint("rival-", k), 0, 8, 40, "")
		if other := shown[n.Status.IPAM.AssignedStaticIP]; other != "" {
			t.Errorf("%s is that of %s and %s", n.Status.IPAM.AssignedStaticIP, other, n.Name)
		}
		shown[n.Status.IPAM.AssignedStaticIP] = n.Name
	}
	for _, x := range tr.cloud.ElasticIPs() {
		if shown[x.IP.String()] == "" {
			t.Errorf("%s leads nowhere, and there are as many nodes as addresses", x.IP)
		}
	}
}

// TestElasticIPScarce has EC2 allow little, with the budget far above: the calls of elastic IPs are
// part of it, and all nodes get theirs.
func TestElasticIPScarce(t *testing.T) {
	t.Parallel()
	tr := newTrial(t)
	const perSecond, nodes = 10, 4
	for range nodes {
		tr.cloud.allocate(t, edge)
	}
	tr.cloud.Throttle(perSecond, perSecond)
	begun := time.Now()
	tr.Run(func(c *nodemanager.Config) { c.Resync = 10 * time.Second })
	for k := range nodes {
		tr.tagged(fmt.Sprint("slow-", k), edge)
	}
	for k := range nodes {
		tr.Converges(fmt.Sprint("slow-", k), 0, 8, 8, "")
	}
	total := 0
	for _, n := range tr.cloud.Calls() {
		total += n
	}
	if allowed := perSecond * (1 + time.Since(begun).Seconds()); float64(total) > 2*allowed+20 {
		t.Errorf("%d calls, %.0f were allowed", total, allowed)
	}
}

// TestElasticIPTags: more tags than an elastic IP can have are not asked for.
func TestElasticIPTags(t *testing.T) {
	t.Parallel()
	r := newRegion(t)
	p := r.provider(t)
	many := map[string]string{}
	for k := range 51 {
		many[fmt.Sprint("k", k)] = "v"
	}
	if list, err := p.StaticIPs(t.Context(), many); err == nil || !strings.Contains(err.Error(), "name fewer") || len(r.Calls()) > 0 {
		t.Errorf("%v, %v, asked %v", list, err, r.Calls())
	}
	empty := r.allocate(t, map[string]string{"only": ""})
	full := r.allocate(t, map[string]string{"only": "x"})
	for _, x := range []struct {
		key, value, want string
	}{{"only", "", empty.ID}, {"only", "?", ""}, {"only", `\x`, ""}, {"Only", "x", ""}, {"only", "x", full.ID}} {
		list, err := p.StaticIPs(t.Context(), map[string]string{x.key: x.value})
		got := ""
		for _, a := range list {
			got += a.ID
		}
		if err != nil || got != x.want {
			t.Errorf("%s=%s: %+v, %v", x.key, x.value, list, err)
		}
	}
}
