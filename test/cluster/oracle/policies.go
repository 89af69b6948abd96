package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy/oracle"
	"github.com/hawser-net/hawser/internal/testenv/policygen"
	"github.com/hawser-net/hawser/test/cluster/invariant"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// object is a policy of one of four kinds; the others are nil.
type object struct {
	tier       *policyv1alpha2.ClusterNetworkPolicy
	network    *networkingv1.NetworkPolicy
	namespaced *v2.CiliumNetworkPolicy
	cluster    *v2.CiliumClusterwideNetworkPolicy
}

func random(g *policygen.Generator, name string) object {
	switch n := g.Rand.IntN(100); {
	case n < 15:
		return object{tier: g.Cluster(name)}
	case n < 45:
		return object{network: g.NetworkPolicy(name)}
	case n < 82:
		return object{namespaced: g.Namespaced(name)}
	}
	return object{cluster: g.Clusterwide(name)}
}

func (o object) meta() *metav1.ObjectMeta {
	switch {
	case o.tier != nil:
		return &o.tier.ObjectMeta
	case o.network != nil:
		return &o.network.ObjectMeta
	case o.namespaced != nil:
		return &o.namespaced.ObjectMeta
	}
	return &o.cluster.ObjectMeta
}

func (o object) copy() object {
	switch {
	case o.tier != nil:
		return object{tier: o.tier.DeepCopy()}
	case o.network != nil:
		return object{network: o.network.DeepCopy()}
	case o.namespaced != nil:
		return object{namespaced: o.namespaced.DeepCopy()}
	}
	return object{cluster: o.cluster.DeepCopy()}
}

// policy is what the oracle reads.
func (o object) policy() oracle.Policy {
	switch {
	case o.tier != nil:
		return oracle.FromClusterNetworkPolicy(o.tier)
	case o.network != nil:
		return oracle.FromNetworkPolicy(o.network)
	case o.namespaced != nil:
		return oracle.FromObject(o.namespaced)
	}
	return oracle.FromClusterwide(o.cluster)
}

// text is the object as YAML.
func (o object) text() string {
	var in any
	switch {
	case o.tier != nil:
		o.tier.TypeMeta = metav1.TypeMeta{APIVersion: policyv1alpha2.GroupVersion.String(), Kind: "ClusterNetworkPolicy"}
		in = o.tier
	case o.network != nil:
		o.network.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}
		in = o.network
	case o.namespaced != nil:
		o.namespaced.TypeMeta = metav1.TypeMeta{APIVersion: v2.SchemeGroupVersion().String(), Kind: "CiliumNetworkPolicy"}
		in = o.namespaced
	default:
		o.cluster.TypeMeta = metav1.TypeMeta{APIVersion: v2.SchemeGroupVersion().String(), Kind: "CiliumClusterwideNetworkPolicy"}
		in = o.cluster
	}
	data, err := yaml.Marshal(in)
	if err != nil {
		return err.Error()
	}
	return string(bytes.ReplaceAll(data, []byte("  creationTimestamp: null\n"), nil))
}

// create hands the object to the API server.
func (o object) create(ctx context.Context, l *lab.Lab) error {
	o = o.copy()
	switch {
	case o.tier != nil:
		_ = o.text() // sets the kind
		return l.Tiers(http.MethodPost).Body(o.tier).Do(ctx).Error()
	case o.network != nil:
		_, err := l.Kube.NetworkingV1().NetworkPolicies(o.network.Namespace).Create(ctx, o.network, metav1.CreateOptions{})
		return err
	case o.namespaced != nil:
		_ = o.text()
		return l.Custom(http.MethodPost, v2.ResourceNetworkPolicies).Namespace(o.namespaced.Namespace).Body(o.namespaced).Do(ctx).Error()
	}
	_ = o.text()
	return l.Custom(http.MethodPost, v2.ResourceClusterwideNetworkPolicies).Body(o.cluster).Do(ctx).Error()
}

func (o object) remove(ctx context.Context, l *lab.Lab) error {
	var err error
	switch m := o.meta(); {
	case o.tier != nil:
		err = l.Tiers(http.MethodDelete).Name(m.Name).Do(ctx).Error()
	case o.network != nil:
		err = l.Kube.NetworkingV1().NetworkPolicies(m.Namespace).Delete(ctx, m.Name, metav1.DeleteOptions{})
	case o.namespaced != nil:
		err = l.Custom(http.MethodDelete, v2.ResourceNetworkPolicies).Namespace(m.Namespace).Name(m.Name).Do(ctx).Error()
	default:
		err = l.Custom(http.MethodDelete, v2.ResourceClusterwideNetworkPolicies).Name(m.Name).Do(ctx).Error()
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// replace puts objects in the place of those that are there, and waits until every agent has them. Objects that the API server finds invalid
// are left out: the rest is returned.
func (r *rounds) replace(ctx context.Context, objects []object) (kept []object, err error) {
	for _, o := range objects {
		// A name is not used twice: what an agent still has of an earlier policy must not pass for this one.
		r.names++
		o = o.copy()
		o.meta().Name = fmt.Sprintf("random-%d", r.names)
		if err := o.create(ctx, r.Lab); apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
			r.result.Refused++
			r.refusal = err.Error()
			continue
		} else if err != nil {
			return kept, fmt.Errorf("create %s: %w", o.text(), err)
		}
		kept = append(kept, o)
	}
	for _, o := range r.current {
		if err := o.remove(ctx, r.Lab); err != nil {
			return kept, err
		}
	}
	r.current = kept
	return kept, r.arrived(ctx)
}

// arrived waits until every agent has exactly the current policies.
func (r *rounds) arrived(ctx context.Context) error {
	info, err := r.Info()
	if err != nil {
		return err
	}
	var want []string
	for _, o := range r.current {
		want = append(want, o.meta().Name)
	}
	slices.Sort(want)
	return lab.Eventually(ctx, time.Minute, func(ctx context.Context) error {
		for _, n := range info.Nodes {
			c, err := invariant.Agent(n)
			if err != nil {
				return err
			}
			files, err := c.Policy(ctx)
			c.Close()
			if err != nil {
				return err
			}
			if got := names(files.Policy); !slices.Equal(got, want) {
				return fmt.Errorf("the agent of %s has the policies %v, want %v", n.Name, got, want)
			}
		}
		return nil
	})
}

// defineTiers makes the definition of ClusterNetworkPolicy, as its project publishes it, known to the API server.
func defineTiers(ctx context.Context, l *lab.Lab) error {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		return fmt.Errorf("find the definition of ClusterNetworkPolicy: %w", err)
	}
	file := filepath.Join(strings.TrimSpace(string(dir)), "config/crd/standard/policy.networking.k8s.io_clusternetworkpolicies.yaml")
	if _, err := l.Kubectl(ctx, "", "apply", "--server-side", "-f", file); err != nil {
		return err
	}
	_, err = l.Kubectl(ctx, "", "wait", "--for=condition=Established", "--timeout=1m", "crd/clusternetworkpolicies.policy.networking.k8s.io")
	return err
}

// names returns the names of the policies in what an agent says of its rules, sorted.
func names(text string) (out []string) {
	var rules []struct{ Owner string }
	if err := json.Unmarshal([]byte(text), &rules); err != nil {
		return []string{err.Error()}
	}
	for _, r := range rules {
		out = append(out, r.Owner[strings.LastIndexByte(r.Owner, '/')+1:])
	}
	slices.Sort(out)
	return slices.Compact(out)
}
