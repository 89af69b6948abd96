package agent

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/gentype"

	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// This file proves "Agent changes" of CFP-27752 on real kernels and a real API server, the test
// being the operator.

func (c *kubeCluster) identities() *gentype.ClientWithList[*v2.CiliumIdentity, *v2.CiliumIdentityList] {
	return gentype.NewClientWithList("ciliumidentities", c.client.UrgentV2, metav1.ParameterCodec, "",
		func() *v2.CiliumIdentity { return &v2.CiliumIdentity{} }, func() *v2.CiliumIdentityList { return &v2.CiliumIdentityList{} })
}

// readOnlyIdentities takes from the agents what they may write of identities, as the chart does
// where the operator makes them, and checks that they can't.
func (c *kubeCluster) readOnlyIdentities() {
	c.t.Helper()
	auth := c.AuthInfo(kubeapi.Agent)
	role, err := c.client.Kube.RbacV1().ClusterRoles().Get(c.t.Context(), "hawser-agent", metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	before := len(role.Rules)
	role.Rules = slices.DeleteFunc(role.Rules, func(r rbacv1.PolicyRule) bool {
		return slices.Equal(r.Resources, []string{"ciliumidentities"}) && slices.Contains(r.Verbs, "create")
	})
	if len(role.Rules) != before-1 {
		c.t.Fatalf("the agent's role has %d rules, it had %d", len(role.Rules), before)
	}
	if _, err := c.client.Kube.RbacV1().ClusterRoles().Update(c.t.Context(), role, metav1.UpdateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	rc := *c.Config
	rc.Impersonate.UserName, rc.Impersonate.Groups = auth.Impersonate, auth.ImpersonateGroups
	agent, err := k8s.New(&rc)
	if err != nil {
		c.t.Fatal(err)
	}
	c.eventually("agents have no right to write identities", func() bool {
		err := agent.UrgentV2.Post().Resource(v2.ResourceIdentities).Body(&v2.CiliumIdentity{
			ObjectMeta: metav1.ObjectMeta{Name: "65000"}, SecurityLabels: map[string]string{"k8s:a": "b"},
		}).Param("dryRun", "All").Do(c.t.Context()).Error()
		return err != nil && strings.Contains(err.Error(), "forbidden")
	})
}

// assign does what the operator does for the labels that a pod's endpoint has now: it makes the
// identity, and names it in the pod's CiliumEndpoint.
func (c *kubeCluster) assign(p *machinePod, number int, correct bool) {
	c.t.Helper()
	c.assignLabels(p.endpoint().Status.Identity.Labels, p.name, number, correct)
}

func (c *kubeCluster) assignLabels(set []string, pod string, number int, correct bool) {
	c.t.Helper()
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: strconv.Itoa(number)}, SecurityLabels: map[string]string{}}
	for _, text := range set {
		l, err := labels.Parse(text)
		if err != nil {
			c.t.Fatal(err)
		}
		o.SecurityLabels[l.Source+":"+l.Key] = l.Value
	}
	if _, err := c.identities().Create(c.t.Context(), o, metav1.CreateOptions{}); err != nil {
		c.t.Fatal(err)
	}
	if !correct {
		return
	}
	list := fmt.Sprintf("%q", set)
	list = strings.ReplaceAll(list, `" "`, `","`)
	body := fmt.Sprintf(`[{"op":"add","path":"/status/identity","value":{"id":%d,"labels":%s}}]`, number, list)
	if _, err := c.endpoints().Patch(c.t.Context(), pod, types.JSONPatchType, []byte(body), metav1.PatchOptions{}); err != nil {
		c.t.Fatal(err)
	}
}

// publishedID returns the ID that the pod's CiliumEndpoint names: 0 if none, -1 if there is no
// object.
func (c *kubeCluster) publishedID(p *machinePod) int {
	o, err := c.endpoints().Get(c.t.Context(), p.name, metav1.GetOptions{})
	switch {
	case err != nil:
		return -1
	case o.Status.Identity == nil:
		return 0
	}
	return int(o.Status.Identity.ID)
}

// has returns a condition: the endpoint of the pod has the ID.
func (p *machinePod) has(number int) func() bool {
	return func() bool { return p.endpoint().Status.Identity.ID == number }
}

// temporary checks that the pod's endpoint has a temporary identity, and returns it.
func (p *machinePod) temporary(when string, seenAs identity.ID) int {
	p.node.t.Helper()
	id := p.endpoint().Status.Identity
	if !identity.ID(id.ID).IsTemporary() || !id.Temporary || id.SeenAs != int(seenAs) {
		p.node.t.Errorf("%s: %s has %+v, want a temporary identity, seen as %s", when, p.name, id, seenAs)
	}
	return id.ID
}

// leaks looks for temporary IDs where none may be: in maps of the kernels, selectors, addresses
// and objects.
func (c *kubeCluster) leaks(ctx context.Context, nodes ...*machineNode) (found []string) {
	add := func(where string, id int) {
		if identity.ID(id).IsTemporary() {
			found = append(found, fmt.Sprintf("%s: %d", where, id))
		}
	}
	for _, n := range nodes {
		for _, name := range []string{"endpoints", "ipcache", "policy", "ct"} {
			m, err := n.client.Map(ctx, name)
			if err != nil {
				continue // the agent is not there at the moment
			}
			for _, e := range m.Cache {
				add(n.name+" map "+name, e.Endpoint.Identity)
				add(n.name+" map "+name, e.IPCache.Identity)
				add(n.name+" map "+name, e.Policy.Identity)
				add(n.name+" map "+name, e.Flow.SourceIdentity)
				add(n.name+" map "+name, e.Flow.DestinationIdentity)
			}
		}
		ips, err := n.client.IPs(ctx, "", nil)
		if err == nil {
			for _, ip := range ips {
				add(n.name+" address "+ip.CIDR, ip.Identity)
			}
		}
		selectors, err := n.client.Selectors(ctx)
		if err == nil {
			for _, s := range selectors {
				for _, id := range s.Identities {
					add(n.name+" selector "+s.Selector, id)
				}
			}
		}
	}
	list, err := c.endpoints().List(ctx, metav1.ListOptions{})
	if err == nil {
		for _, o := range list.Items {
			if o.Status.Identity != nil {
				add("CiliumEndpoint "+o.Name, int(o.Status.Identity.ID))
			}
		}
	}
	return found
}

// watchLeaks looks for them again and again until the test ends.
func (c *kubeCluster) watchLeaks(nodes ...*machineNode) {
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	c.t.Cleanup(func() { cancel(); wg.Wait() })
	wg.Go(func() {
		for ctx.Err() == nil {
			began := time.Now()
			if found := c.leaks(ctx, nodes...); len(found) > 0 {
				c.t.Errorf("temporary identities where none may be: %q", found)
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(testenv.Breath(began)):
			}
		}
	})
}

// sniffVNIs listens on a node's uplink and returns a function that returns which VNIs were seen so
// far.
func sniffVNIs(t testing.TB, ns *testenv.NetNS) func() map[uint32]int {
	t.Helper()
	return sniff(t, ns, func(frame []byte) (vni uint32, ok bool) {
		if len(frame) < 14 {
			return 0, false
		}
		udp := 0
		switch n := len(frame); {
		case binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IP && n > 14+20 && frame[14+9] == unix.IPPROTO_UDP:
			udp = 14 + int(frame[14]&15)*4
		case binary.BigEndian.Uint16(frame[12:]) == unix.ETH_P_IPV6 && n > 14+40 && frame[14+6] == unix.IPPROTO_UDP:
			udp = 14 + 40
		}
		if udp == 0 || len(frame) < udp+16 || binary.BigEndian.Uint16(frame[udp+2:]) != 8472 {
			return 0, false
		}
		return binary.BigEndian.Uint32(frame[udp+12:]) >> 8, true
	})
}

// noneTemporary checks that no VNI is the lower bits of a temporary ID.
func noneTemporary(t testing.TB, seen map[uint32]int) {
	t.Helper()
	for vni, n := range seen {
		if identity.ID(vni | uint32(identity.LocalScope)).IsTemporary() {
			t.Errorf("%d packets carried the temporary identity %d", n, vni)
		}
	}
}

// passing waits until datagrams to an address are answered.
func (c *kubeCluster) passing(what string, from *machinePod, to netip.AddrPort) {
	c.t.Helper()
	c.eventually(what, func() bool { return ask(c.t, from.ns, to, 64, false, 100*time.Millisecond) == nil })
}

// blocked checks that a few datagrams and a connection come to nothing.
func (c *kubeCluster) blocked(what string, from *machinePod, to netip.AddrPort) {
	c.t.Helper()
	if ask(c.t, from.ns, to, 64, false, impatient) == nil || once(from.ns, to, impatient) == nil {
		c.t.Errorf("%s: got through to %s", what, to)
	}
}

// operatorManaged makes two nodes whose agents leave identities to the operator.
func operatorManaged(t *testing.T) (c *kubeCluster, n1, n2 *machineNode, vnis func() map[uint32]int) {
	t.Helper()
	c = newKubeCluster(t)
	c.readOnlyIdentities()
	ns1, ns2 := twoNamespaces(t)
	n1, n2 = c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes", "--operator-manage-cid")
		n.start()
	}
	c.watchLeaks(n1, n2)
	return c, n1, n2, sniffVNIs(t, ns1)
}

// fromApp lets pods with the label app of one of the names in.
func fromApp(names ...string) func(*networkingv1.NetworkPolicySpec) {
	return func(s *networkingv1.NetworkPolicySpec) {
		s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{{}}
		for _, name := range names {
			s.Ingress[0].From = append(s.Ingress[0].From, networkingv1.NetworkPolicyPeer{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": name}}})
		}
	}
}

// TestTemporaryStart is "Temporary ID", "Pod startup", "Pod creation process", "Policy enforcement"
// and "Security" of CFP-27752: pods start while nothing makes identities, by agents that have no
// right to; their own policies hold from the first packet; no other node sees a temporary ID; and
// when the identities come no packet of what is allowed before and after is lost, and none of what
// is forbidden before and after gets through.
func TestTemporaryStart(t *testing.T) {
	t.Parallel()
	c, n1, n2, vnis := operatorManaged(t)
	c.network("web", "web", fromApp("client"))
	c.network("locked", "locked", func(s *networkingv1.NetworkPolicySpec) {
		s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeEgress}
		s.Egress = []networkingv1.NetworkPolicyEgressRule{{To: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}}}
	})
	for _, name := range []string{"web", "locked"} {
		c.eventually("the policies are observed", func() bool {
			files, err := n1.client.PolicyFiles(t.Context())
			return err == nil && slices.ContainsFunc(files, func(f rest.PolicyFile) bool { return f.Path == "k8s/NetworkPolicy/default/"+name && f.InForce })
		})
	}
	app := func(n *machineNode, name, app string) *machinePod {
		return c.pod(n, name, map[string]string{"app": app})
	}
	web, plain, client, other := app(n1, "web", "web"), app(n1, "plain", "plain"), app(n1, "client", "client"), app(n1, "other", "other")
	farPlain, farClient := app(n2, "far-plain", "plain"), app(n2, "far-client", "client")
	everyone := []*machinePod{web, plain, client, other, farPlain, farClient}
	for _, p := range everyone {
		p.temporary("at the start", identity.Init)
		for _, at := range p.both(80) {
			serveEcho(t, p.ns, at)
		}
	}
	if a, b := farPlain.endpoint().Status.Identity.ID, plain.endpoint().Status.Identity.ID; a == 0 || b == 0 {
		t.Errorf("identities %d and %d", a, b)
	}
	// The first packet of a pod whose egress is limited, sent as soon as there is a pod.
	locked := app(n1, "locked", "locked")
	for _, to := range plain.both(80) {
		c.blocked("egress that the pod's own policy forbids", locked, to)
	}
	web4, web6 := web.both(80)[0], web.both(80)[1]
	c.blocked("egress by label, to an identity that no node knows yet", locked, client.both(80)[0])
	for _, p := range []*machinePod{client, other, farClient, plain} {
		c.blocked("ingress by label from "+p.name+", whose identity no node knows yet", p, web4)
	}
	c.blocked("the same over IPv6", client, web6)
	for _, p := range everyone {
		for _, to := range append(plain.both(80), farPlain.both(80)...) {
			if p.ip4 != to.Addr() && p.ip6 != to.Addr() {
				c.passing("no policy forbids it: "+p.name+" to "+to.String(), p, to)
			}
		}
	}
	c.eventually("objects of all pods", func() bool {
		return !slices.ContainsFunc(everyone, func(p *machinePod) bool { return c.publishedID(p) != 0 })
	})
	if seen := vnis(); seen[uint32(identity.Init)] == 0 {
		t.Errorf("no packet of the pods carried init: %v", seen)
	}
	st, err := n1.client.Health(t.Context(), false)
	if err != nil || !slices.ContainsFunc(st.Parts, func(p rest.PartStatus) bool {
		return p.Name == partTemporary && p.State == rest.StateWarning && strings.Contains(p.Msg, "wait for an identity")
	}) {
		t.Errorf("the status does not say that endpoints wait: %+v, %v", st.Parts, err)
	}

	// What is allowed before and after, and what is forbidden before and after.
	allowed := []*flow{
		startFlow(t, "client to plain", client.ns, plain.both(80)[0]), startFlow(t, "client to plain over IPv6", client.ns, plain.both(80)[1]),
		startFlow(t, "client to far plain", client.ns, farPlain.both(80)[0]), startFlow(t, "far client to plain", farClient.ns, plain.both(80)[1]),
		startFlow(t, "far plain to client", farPlain.ns, client.both(80)[0]),
	}
	forbidden := []*flow{
		startFlow(t, "other to web", other.ns, web4), startFlow(t, "other to web over IPv6", other.ns, web6), startFlow(t, "far plain to web", farPlain.ns, web4),
		startFlow(t, "locked to plain", locked.ns, plain.both(80)[0]), startFlow(t, "locked to far plain", locked.ns, farPlain.both(80)[1]),
	}
	stream := startStream(t, client.ns, plain.both(80)[0])
	connecting := startConnecting(t, client.ns, farPlain.both(80)[1])

	time.Sleep(100 * time.Millisecond)
	numbers := map[*machinePod]int{web: 1001, plain: 1002, client: 1003, other: 1004}
	for i, p := range []*machinePod{web, other, client, plain} {
		c.assign(p, numbers[p], i%2 == 0) // half of them with the object's status, which the agents must not fight over
		c.eventually(p.name+" has its identity", p.has(numbers[p]))
	}
	numbers[farPlain], numbers[farClient] = 1002, 1003
	c.assign(locked, 1005, false)
	numbers[locked] = 1005
	for p, number := range numbers {
		c.eventually(p.name+" has its identity", p.has(number))
		c.eventually("its object names it", func() bool { return c.publishedID(p) == number })
	}
	for _, p := range []*machinePod{client, farClient} {
		for _, to := range web.both(80) {
			c.passing("the policy lets "+p.name+" in to "+to.String(), p, to)
			if err := once(p.ns, to, patient); err != nil {
				t.Errorf("%s to %s: %v", p.name, to, err)
			}
		}
	}
	c.passing("egress by label", locked, client.both(80)[0])
	time.Sleep(100 * time.Millisecond)
	for _, f := range allowed {
		if sent, lost := f.finish(); len(lost) > 0 || sent == 0 {
			t.Errorf("%s: %d of %d lost, at %v", f.name, len(lost), sent, lost)
		}
	}
	for _, f := range forbidden {
		if sent, lost := f.finish(); len(lost) != sent || sent == 0 {
			t.Errorf("%s: %d of %d got through", f.name, sent-len(lost), sent)
		}
	}
	if n, err := stream(); err != nil || n == 0 {
		t.Errorf("a TCP connection after %d questions: %v", n, err)
	}
	if n, errs := connecting(); len(errs) > 0 || n == 0 {
		t.Errorf("%d connections: %v", n, errors.Join(errs...))
	}
	seen := vnis()
	noneTemporary(t, seen)
	if seen[1003] == 0 {
		t.Errorf("no packet carried the client's identity: %v", seen)
	}
	if found := c.leaks(t.Context(), n1, n2); len(found) > 0 {
		t.Errorf("temporary identities: %q", found)
	}
	list, err := n1.client.Identities(t.Context(), nil)
	if err != nil || slices.ContainsFunc(list, func(id rest.Identity) bool { return id.Temporary }) {
		t.Errorf("temporary identities are still listed: %+v, %v", list, err)
	}
	n1.stop()
	n2.stop()
}
