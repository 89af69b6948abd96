package groups

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) {
	kubeapi.VerifyTestMain(m,
		// Idle connections of the SDK's client, which cannot be closed.
		goleak.IgnoreTopFunction("internal/poll.runtime_pollWait"),
		goleak.IgnoreTopFunction("net/http.(*persistConn).writeLoop"),
	)
}

// cluster is an API server with the controllers, and an EC2.
type cluster struct {
	*testing.T
	*controllers.Env
	ec2  *ec2Server
	stop func()
	// timeout, if it is not 0, is how long AWS may take to answer.
	timeout time.Duration
}

func (c *cluster) run() {
	c.Helper()
	c.stop = c.Env.Run(c.T, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		p := c.ec2.provider()
		p.timeout = cmp.Or(c.timeout, p.timeout)
		return Setup(m, Config{Interval: time.Second}, p, log)
	})
}

func (c *cluster) cnp(name, spec string) *v2.CiliumNetworkPolicy {
	c.Helper()
	return c.cnpIn("default", name, spec)
}

func (c *cluster) cnpIn(namespace, name, spec string) *v2.CiliumNetworkPolicy {
	c.Helper()
	p := &v2.CiliumNetworkPolicy{}
	if err := yaml.Unmarshal(fmt.Appendf(nil, "metadata: {name: %s, namespace: %s}\nspec: %s\n", name, namespace, spec), p); err != nil {
		c.Fatal(err)
	}
	if err := c.Client.Create(c.Context(), p); err != nil {
		c.Fatal(err)
	}
	return p
}

func (c *cluster) eventually(what string, f func() error) {
	c.Helper()
	controllers.Eventually(c, 2*time.Minute, func() string {
		if err := f(); err != nil {
			return fmt.Sprintf("%s: %v", what, err)
		}
		return ""
	})
}

func (c *cluster) derivative(p *v2.CiliumNetworkPolicy) (*v2.CiliumNetworkPolicy, error) {
	d := &v2.CiliumNetworkPolicy{}
	err := c.Client.Get(c.Context(), types.NamespacedName{Namespace: p.Namespace, Name: p.Name + "-togroups-" + string(p.UID)}, d)
	return d, err
}

// members waits until the derivative allows exactly these addresses, and returns it.
func (c *cluster) members(p *v2.CiliumNetworkPolicy, want ...string) *v2.CiliumNetworkPolicy {
	c.Helper()
	var d *v2.CiliumNetworkPolicy
	c.eventually(fmt.Sprintf("derivative of %s with %v", p.Name, want), func() (err error) {
		if d, err = c.derivative(p); err != nil {
			return err
		}
		got := []string{}
		for _, r := range d.Specs {
			for _, e := range r.Egress {
				for _, s := range e.ToCIDRSet {
					got = append(got, s.CIDR)
				}
			}
		}
		if diff := gocmp.Diff(append([]string{}, want...), got); diff != "" {
			return fmt.Errorf("members (-want +got):\n%s", diff)
		}
		return nil
	})
	if _, err := policy.Parse(d); err != nil {
		c.Errorf("nodes cannot enforce the derivative: %v", err)
	}
	return d
}

// waitStatus waits until the status of p says ok, or an error with that text.
func (c *cluster) waitStatus(p *v2.CiliumNetworkPolicy, fault string) {
	c.Helper()
	c.eventually(fmt.Sprintf("status of %s", p.Name), func() error {
		got := &v2.CiliumNetworkPolicy{}
		if err := c.Client.Get(c.Context(), client.ObjectKeyFromObject(p), got); err != nil {
			return err
		}
		for _, s := range got.Status.DerivativePolicies {
			if s.OK == (fault == "") && strings.Contains(s.Error, fault) && len(got.Status.DerivativePolicies) == 1 {
				return nil
			}
		}
		return fmt.Errorf("status %+v, want %q", got.Status.DerivativePolicies, fault)
	})
}

// TestOneOfMany has the policies of one namespace name many groups for which AWS does not answer:
// the groups of others are looked up all the same.
func TestOneOfMany(t *testing.T) {
	t.Parallel()
	c := &cluster{T: t, Env: controllers.Start(t), ec2: newEC2(t)}
	c.ec2.hang, c.ec2.only = make(chan struct{}), "slow"
	t.Cleanup(func() { close(c.ec2.hang) })
	c.ec2.set(instance{groups: []string{"sg-1"}, private: "10.0.0.1"})
	var many strings.Builder
	for i := range 200 {
		fmt.Fprintf(&many, "{aws: {labels: {slow: '%d'}}},", i)
	}
	c.run()
	for i := range 2 * workers {
		c.cnp(fmt.Sprint("many-", i), `{endpointSelector: {}, egress: [{toGroups: [`+strings.ReplaceAll(many.String(), "slow: '", fmt.Sprintf("slow: '%d-", i))+`]}]}`)
	}
	controllers.Eventually(t, time.Minute, func() string {
		if n := c.ec2.waiting.Load(); n < perNamespace {
			return fmt.Sprintf("%d requests are not answered", n)
		}
		return ""
	})
	c.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "other"}})
	began := time.Now()
	c.members(c.cnpIn("other", "one", `{endpointSelector: {}, egress: [{toGroups: [{aws: {securityGroupsIds: [sg-1]}}]}]}`), "10.0.0.1/32")
	if took := time.Since(began); took > 20*time.Second {
		t.Errorf("it took %v", took)
	}
}

// TestBesideUnknown has a policy name one group for which AWS never answers, and another: the
// members of that follow AWS.
func TestBesideUnknown(t *testing.T) {
	t.Parallel()
	c := &cluster{T: t, Env: controllers.Start(t), ec2: newEC2(t), timeout: 100 * time.Millisecond}
	c.ec2.hang, c.ec2.only = make(chan struct{}), "slow"
	t.Cleanup(func() { close(c.ec2.hang) })
	web := instance{groups: []string{"sg-1"}, private: "10.0.0.1"}
	c.ec2.set(web)
	c.run()
	p := c.cnp("p", `{endpointSelector: {}, egress: [{toGroups: [{aws: {labels: {slow: '1'}}}, {aws: {securityGroupsIds: [sg-1]}}]}]}`)
	c.members(p, "10.0.0.1/32")
	c.waitStatus(p, "deadline exceeded")
	c.ec2.set(web, instance{groups: []string{"sg-1"}, private: "10.0.0.2"})
	c.members(p, "10.0.0.1/32", "10.0.0.2/32")
}

// TestKnowsLess: a derivative is not made anew without members that were known when it was made.
func TestKnowsLess(t *testing.T) {
	t.Parallel()
	c := &controller{made: map[types.NamespacedName]made{}}
	p := types.NamespacedName{Namespace: "default", Name: "p"}
	nothing, a, both := map[string]bool{}, map[string]bool{"a": true}, map[string]bool{"a": true, "b": true}
	check := func(when string, now made, want bool) {
		t.Helper()
		if got := c.knowsLess(p, now); got != want {
			t.Errorf("%s: %v", when, got)
		}
	}
	check("made by another operator", made{"d", a}, true)
	check("made by another operator, all is known", made{"d", nothing}, false)
	c.setMade(p, &made{"d", a})
	check("one was never known", made{"d", a}, false)
	check("one is known now", made{"d", nothing}, false)
	check("another one was forgotten", made{"d", both}, true)
	check("of another source", made{"e", a}, true)
	c.setMade(p, nil)
	check("the policy was gone", made{"d", a}, true)
}

// TestDerivatives: what becomes of a policy with groups while groups, AWS, the operator and people
// change.
func TestDerivatives(t *testing.T) {
	c := &cluster{T: t, Env: controllers.Start(t), ec2: newEC2(t)}
	web := instance{groups: []string{"sg-1"}, private: "10.0.0.1"}
	c.ec2.set(web)
	c.run()
	plain := c.cnp("plain", `{endpointSelector: {}, egress: [{toCIDR: [10.0.0.0/8]}]}`)
	p := c.cnp("p", `{endpointSelector: {}, egress: [{toGroups: [{aws: {securityGroupsIds: [sg-1]}}], toPorts: [{ports: [{port: "80", protocol: TCP}]}]}, {toEntities: [host]}]}`)
	d := c.members(p, "10.0.0.1/32")
	c.waitStatus(p, "")
	if len(d.Specs) != 1 || len(d.Specs[0].Egress) != 1 || len(d.Specs[0].Egress[0].ToPorts) != 1 || !metav1.IsControlledBy(d, p) {
		t.Errorf("derivative %+v, owned by %+v", d.Specs, d.OwnerReferences)
	}

	// Members come and go; nothing is written when nothing changes.
	c.ec2.set(web, instance{groups: []string{"sg-1"}, private: "10.0.0.2"})
	d = c.members(p, "10.0.0.1/32", "10.0.0.2/32")
	time.Sleep(2500 * time.Millisecond)
	if again := c.members(p, "10.0.0.1/32", "10.0.0.2/32"); again.ResourceVersion != d.ResourceVersion {
		t.Error("a derivative was written although nothing changed")
	}

	// A client changes the derivative: it is put right.
	d.Specs[0].Egress[0].ToCIDRSet = []v2.CIDRRule{{CIDR: "0.0.0.0/0"}}
	if err := c.Client.Update(t.Context(), d); err != nil {
		t.Fatal(err)
	}
	c.members(p, "10.0.0.1/32", "10.0.0.2/32")

	// AWS fails: what was known stays, also for the next operator, and the status says so.
	c.ec2.breakDown(true)
	c.waitStatus(p, "UnauthorizedOperation")
	c.members(p, "10.0.0.1/32", "10.0.0.2/32")
	c.stop()
	c.run()
	c.waitStatus(p, "UnauthorizedOperation")
	time.Sleep(1500 * time.Millisecond)
	c.members(p, "10.0.0.1/32", "10.0.0.2/32")

	// A policy that is new, or changed, while AWS fails allows no address for groups that this
	// operator has not seen.
	fresh := c.cnp("fresh", `{endpointSelector: {}, egress: [{toGroups: [{aws: {securityGroupsIds: [sg-1]}}]}]}`)
	c.members(fresh)
	c.waitStatus(fresh, "UnauthorizedOperation")
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	p.Spec.Egress[0].ToPorts[0].Ports[0].Port = "443"
	if err := c.Client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	if d := c.members(p); d.Specs[0].Egress[0].ToPorts[0].Ports[0].Port != "443" {
		t.Error("the derivative keeps the old port")
	}
	c.ec2.breakDown(false)
	c.members(p, "10.0.0.1/32", "10.0.0.2/32")
	c.members(fresh, "10.0.0.1/32", "10.0.0.2/32")
	c.waitStatus(p, "")

	// An edit that cannot be understood ends what the last good version allowed; what is understood
	// of it is allowed still.
	edit := func(p *v2.CiliumNetworkPolicy, f func(*v2.Rule)) {
		t.Helper()
		for {
			if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
				t.Fatal(err)
			}
			f(p.Spec)
			err := c.Client.Update(t.Context(), p)
			if err == nil {
				return
			}
			if !apierrors.IsConflict(err) {
				t.Fatal(err)
			}
		}
	}
	gone := func(what string, p *v2.CiliumNetworkPolicy) {
		t.Helper()
		c.eventually(what, func() error {
			if _, err := c.derivative(p); !apierrors.IsNotFound(err) {
				return fmt.Errorf("there is a derivative: %v", err)
			}
			return nil
		})
	}
	edit(fresh, func(r *v2.Rule) {
		r.Egress = append(r.Egress, v2.EgressRule{ToFQDNs: []v2.FQDNSelector{{MatchName: "example.com"}}})
	})
	c.members(fresh, "10.0.0.1/32", "10.0.0.2/32")
	edit(fresh, func(r *v2.Rule) { r.Egress[0].Authentication = &v2.Authentication{Mode: "required"} })
	gone("an entry that is restricted by what is not enforced", fresh)
	edit(fresh, func(r *v2.Rule) { r.Egress[0].Authentication = nil })
	c.members(fresh, "10.0.0.1/32", "10.0.0.2/32")
	edit(fresh, func(r *v2.Rule) { r.Egress = r.Egress[1:] })
	gone("an edit that takes the groups away, and cannot be enforced otherwise", fresh)

	// The group becomes empty: no address.
	c.ec2.set()
	c.members(p)

	// The policy names no groups any more.
	if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil {
		t.Fatal(err)
	}
	p.Spec.Egress = p.Spec.Egress[1:]
	if err := c.Client.Update(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	c.eventually("the end of the derivative", func() error {
		if _, err := c.derivative(p); !apierrors.IsNotFound(err) {
			return fmt.Errorf("got %v", err)
		}
		if err := c.Client.Get(t.Context(), client.ObjectKeyFromObject(p), p); err != nil || len(p.Status.DerivativePolicies) > 0 {
			return fmt.Errorf("status %+v, %v", p.Status.DerivativePolicies, err)
		}
		return nil
	})
	if _, err := c.derivative(plain); !apierrors.IsNotFound(err) {
		t.Errorf("a policy without groups has a derivative: %v", err)
	}

	// The same for the whole cluster.
	cc := &v2.CiliumClusterwideNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: strings.Repeat("x", 250)}, Spec: &v2.Rule{
		EndpointSelector: &v2.LabelSelector{}, Ingress: []v2.IngressRule{{FromGroups: []v2.Group{group("sg-7")}}},
	}}
	c.ec2.set(instance{groups: []string{"sg-7"}, private: "10.0.0.7"})
	if err := c.Client.Create(t.Context(), cc); err != nil {
		t.Fatal(err)
	}
	c.eventually("derivative of a clusterwide policy", func() error {
		var all v2.CiliumClusterwideNetworkPolicyList
		if err := c.Client.List(t.Context(), &all, client.MatchingLabels{parentLabel: string(cc.UID)}); err != nil {
			return err
		}
		if len(all.Items) != 1 || len(all.Items[0].Specs[0].Ingress[0].FromCIDRSet) != 1 {
			return fmt.Errorf("found %d", len(all.Items))
		}
		return nil
	})
}
