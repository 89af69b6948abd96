package agent

import (
	"context"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	apirest "github.com/hawser-net/hawser/api/rest"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/labels"
	making "github.com/hawser-net/hawser/internal/operator/identities"
	operator "github.com/hawser-net/hawser/internal/operator/relevance"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// mayFollow gives agents the rights that the chart gives them where the operator makes identities.
func (c *kubeCluster) mayFollow() {
	c.t.Helper()
	rbac, ctx := c.client.Kube.RbacV1(), c.t.Context()
	meta := metav1.ObjectMeta{Name: "hawser-agent", Namespace: "default"}
	_, err := rbac.Roles("default").Create(ctx, &rbacv1.Role{ObjectMeta: meta, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{relevance.ConfigMapName}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{"coordination.k8s.io"}, Resources: []string{"leases"}, Verbs: []string{"create"}},
	}}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	_, err = rbac.RoleBindings("default").Create(ctx, &rbacv1.RoleBinding{
		ObjectMeta: meta, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "hawser-agent"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: "kube-system", Name: "hawser-agent"}},
	}, metav1.CreateOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
}

// operator runs what of the operator makes identities and chooses their labels, until the test
// ends.
func (c *kubeCluster) operator(cfg operator.Config) {
	c.t.Helper()
	controllers.Run(c.t, c.Config, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		control := making.ControlDefaults()
		rules, err := control.Rules("default", identity.MinGlobal, 65535)
		if err != nil {
			return err
		}
		keys := operator.New(cfg, "default", log)
		control.Await = keys.Await
		reg := prometheus.NewRegistry()
		ids, err := making.Setup(m, control, rules, nil, reg, log)
		if err != nil {
			return err
		}
		return keys.Setup(m, ids, reg)
	})
}

// labelsAre waits until identities are made, and policies evaluated, by these keys.
func (c *kubeCluster) labelsAre(keys ...string) {
	c.t.Helper()
	want := labels.KeysOf(keys...)
	var last relevance.State
	for end := time.Now().Add(90 * time.Second); ; time.Sleep(50 * time.Millisecond) {
		o, err := c.client.Urgent.CoreV1().ConfigMaps("default").Get(c.t.Context(), relevance.ConfigMapName, metav1.GetOptions{})
		if err == nil {
			if last, err = relevance.Read(o); err != nil {
				c.t.Fatal(err)
			}
			if last.Keys.Equal(want) && last.Ready.Equal(want) {
				return
			}
		} else if !apierrors.IsNotFound(err) {
			c.t.Fatal(err)
		}
		if time.Now().After(end) {
			c.t.Fatalf("identities by %q: never; published is %+v", keys, last)
		}
	}
}

// never sends to an address until the function that it returns is called, which checks that nothing
// was ever answered.
func (c *kubeCluster) never(what string, from *machinePod, to netip.AddrPort) func() {
	c.t.Helper()
	f := startFlow(c.t, what, from.ns, to)
	return func() {
		c.t.Helper()
		if sent, lost := f.finish(); len(lost) != sent || sent == 0 {
			c.t.Errorf("%s: %d of %d datagrams were answered, which both the policies before and after forbid", what, sent-len(lost), sent)
		}
	}
}

func from(sel ...metav1.LabelSelector) func(*networkingv1.NetworkPolicySpec) {
	return func(s *networkingv1.NetworkPolicySpec) {
		s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{{}}
		for i := range sel {
			s.Ingress[0].From = append(s.Ingress[0].From, networkingv1.NetworkPolicyPeer{PodSelector: &sel[i]})
		}
	}
}

// TestRelevantLabels is "CID lazy creation" of CFP-27752: pods whose labels no policy tells apart
// share an identity; policies that come with labels which identities do not have yet are evaluated
// right from the first packet on, those that select the absence of a label and those that deny by
// one too; what is allowed before and after flows meanwhile; and it goes back when the policies are
// gone.
func TestRelevantLabels(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.readOnlyIdentities()
	c.mayFollow()
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	cfg := operator.Defaults()
	cfg.Labels, cfg.GracePeriod, cfg.MaxPause = relevance.PolicyLabels, 0, 200*time.Millisecond
	c.operator(cfg)
	for _, n := range []*machineNode{n1, n2} {
		n.race = true
		n.flags = append(n.flags, "--ipam", "kubernetes", "--operator-manage-cid", "--"+relevance.Flag, relevance.PolicyLabels, "--static-cnp-path", "")
		n.start()
	}
	pod := func(n *machineNode, name string, kv ...string) *machinePod {
		set := map[string]string{}
		for i := 0; i < len(kv); i += 2 {
			set[kv[i]] = kv[i+1]
		}
		return c.pod(n, name, set)
	}
	friend := metav1.LabelSelector{MatchLabels: map[string]string{"app": "friend"}}
	c.network("web", "web", from(friend))
	c.network("vault", "vault", from(friend))
	web, vault := pod(n1, "web", "app", "web"), pod(n1, "vault", "app", "vault")
	pal := pod(n2, "pal", "app", "friend")
	front, back, bare := pod(n2, "front", "app", "client", "tier", "front"), pod(n2, "back", "app", "client", "tier", "back"), pod(n2, "bare", "app", "client")
	evil, nearEvil := pod(n2, "evil", "app", "client", "zone", "evil"), pod(n1, "near-evil", "app", "client", "zone", "evil")
	for _, p := range []*machinePod{web, vault} {
		for _, at := range p.both(80) {
			serveEcho(t, p.ns, at)
		}
	}
	clients := []*machinePod{front, back, bare, evil, nearEvil}

	// Only app tells pods apart.
	c.labelsAre("app")
	number := func(p *machinePod) int { return p.endpoint().Status.Identity.ID }
	one := func() bool {
		return !slices.ContainsFunc(clients, func(p *machinePod) bool { return number(p) != number(clients[0]) || c.publishedID(p) != number(p) })
	}
	c.eventually("one identity for all clients", one)
	if set := front.endpoint().Status.Identity.Labels; slices.ContainsFunc(set, func(l string) bool { return strings.HasPrefix(l, "k8s:tier") }) {
		t.Errorf("the front's identity has a label that no policy selects: %q", set)
	}
	c.passing("a friend reaches the web server", pal, web.both(80)[0])
	c.passing("a friend reaches the vault", pal, vault.both(80)[1])
	c.blocked("a client does not", front, web.both(80)[0])
	flows := []*flow{startFlow(t, "friend to web", pal.ns, web.both(80)[0]), startFlow(t, "friend to vault over IPv6", pal.ns, vault.both(80)[1])}

	// Rules that match the absence of a label let no pod in that has it.
	end := []func(){c.never("front to web", front, web.both(80)[0]), c.never("front to web over IPv6", front, web.both(80)[1])}
	c.network("not-front", "web", from(metav1.LabelSelector{MatchExpressions: []metav1.LabelSelectorRequirement{
		{Key: "app", Operator: metav1.LabelSelectorOpIn, Values: []string{"client"}}, {Key: "tier", Operator: metav1.LabelSelectorOpNotIn, Values: []string{"front"}},
	}}))
	c.passing("the back is let in", back, web.both(80)[0])
	c.passing("and what has no tier", bare, web.both(80)[1])
	for _, f := range end {
		f()
	}
	c.labelsAre("app", "tier")

	// Rules that deny by a label keep those out who have it, while others with the same rules come
	// in.
	end = []func(){c.never("evil to vault", evil, vault.both(80)[0]), c.never("evil to vault on its node", nearEvil, vault.both(80)[0])}
	policies := c.client.V2.Post().Namespace("default").Resource(v2.ResourceNetworkPolicies)
	if err := policies.Body([]byte(`{"apiVersion":"cilium.io/v2","kind":"CiliumNetworkPolicy","metadata":{"name":"no-evil"},"spec":{
		"endpointSelector":{"matchLabels":{"app":"vault"}},"ingress":[{"fromEndpoints":[{}]}],"ingressDeny":[{"fromEndpoints":[{"matchLabels":{"zone":"evil"}}]}]}}`)).
		Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	c.passing("others are let in", bare, vault.both(80)[0])
	for _, f := range end {
		f()
	}
	c.labelsAre("app", "tier", "zone")

	// An agent that dies goes on where it was.
	before := number(vault)
	n1.kill()
	n1.launch()
	n1.ready()
	c.eventually("the endpoints are as they were", func() bool {
		st := vault.endpoint().Status
		return st.State == apirest.EndpointStateReady && st.Identity.ID == before
	})
	c.blocked("evil after a restart", evil, vault.both(80)[0])

	// The policies go, and so do the labels.
	c.noNetwork("not-front")
	if err := c.client.V2.Delete().Namespace("default").Resource(v2.ResourceNetworkPolicies).Name("no-evil").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	c.labelsAre("app")
	c.eventually("one identity for all clients again", one)
	c.blocked("a client is no friend", back, web.both(80)[0])
	for _, f := range flows {
		if sent, lost := f.finish(); len(lost) > 0 || sent == 0 {
			t.Errorf("%s: %d of %d lost, at %v", f.name, len(lost), sent, lost)
		}
	}
	n1.stop()
	n2.stop()
}
