package world

import (
	"bytes"
	"context"
	"net/http"

	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy/oracle"
	"github.com/hawser-net/hawser/internal/testenv/policygen"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// Object is a policy of one of four kinds; the others are nil.
type Object struct {
	Tier       *policyv1alpha2.ClusterNetworkPolicy
	Network    *networkingv1.NetworkPolicy
	Namespaced *v2.CiliumNetworkPolicy
	Cluster    *v2.CiliumClusterwideNetworkPolicy
}

// Random returns a policy of a random kind.
func Random(g *policygen.Generator, name string) Object {
	switch n := g.Rand.IntN(100); {
	case n < 15:
		return Object{Tier: g.Cluster(name)}
	case n < 45:
		return Object{Network: g.NetworkPolicy(name)}
	case n < 82:
		return Object{Namespaced: g.Namespaced(name)}
	}
	return Object{Cluster: g.Clusterwide(name)}
}

// Meta returns the metadata, to read and to change.
func (o Object) Meta() *metav1.ObjectMeta {
	switch {
	case o.Tier != nil:
		return &o.Tier.ObjectMeta
	case o.Network != nil:
		return &o.Network.ObjectMeta
	case o.Namespaced != nil:
		return &o.Namespaced.ObjectMeta
	}
	return &o.Cluster.ObjectMeta
}

// Copy returns a deep copy.
func (o Object) Copy() Object {
	switch {
	case o.Tier != nil:
		return Object{Tier: o.Tier.DeepCopy()}
	case o.Network != nil:
		return Object{Network: o.Network.DeepCopy()}
	case o.Namespaced != nil:
		return Object{Namespaced: o.Namespaced.DeepCopy()}
	}
	return Object{Cluster: o.Cluster.DeepCopy()}
}

// Policy is what the oracle reads.
func (o Object) Policy() oracle.Policy {
	switch {
	case o.Tier != nil:
		return oracle.FromClusterNetworkPolicy(o.Tier)
	case o.Network != nil:
		return oracle.FromNetworkPolicy(o.Network)
	case o.Namespaced != nil:
		return oracle.FromObject(o.Namespaced)
	}
	return oracle.FromClusterwide(o.Cluster)
}

// Text is the object as YAML.
func (o Object) Text() string {
	var in any
	switch {
	case o.Tier != nil:
		o.Tier.TypeMeta = metav1.TypeMeta{APIVersion: policyv1alpha2.GroupVersion.String(), Kind: "ClusterNetworkPolicy"}
		in = o.Tier
	case o.Network != nil:
		o.Network.TypeMeta = metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"}
		in = o.Network
	case o.Namespaced != nil:
		o.Namespaced.TypeMeta = metav1.TypeMeta{APIVersion: v2.SchemeGroupVersion().String(), Kind: "CiliumNetworkPolicy"}
		in = o.Namespaced
	default:
		o.Cluster.TypeMeta = metav1.TypeMeta{APIVersion: v2.SchemeGroupVersion().String(), Kind: "CiliumClusterwideNetworkPolicy"}
		in = o.Cluster
	}
	data, err := yaml.Marshal(in)
	if err != nil {
		return err.Error()
	}
	return string(bytes.ReplaceAll(data, []byte("  creationTimestamp: null\n"), nil))
}

// Create hands the object to the API server.
func (o Object) Create(ctx context.Context, l *lab.Lab) error {
	o = o.Copy()
	switch {
	case o.Tier != nil:
		_ = o.Text() // sets the kind
		return l.Tiers(http.MethodPost).Body(o.Tier).Do(ctx).Error()
	case o.Network != nil:
		_, err := l.Kube.NetworkingV1().NetworkPolicies(o.Network.Namespace).Create(ctx, o.Network, metav1.CreateOptions{})
		return err
	case o.Namespaced != nil:
		_ = o.Text()
		return l.Custom(http.MethodPost, v2.ResourceNetworkPolicies).Namespace(o.Namespaced.Namespace).Body(o.Namespaced).Do(ctx).Error()
	}
	_ = o.Text()
	return l.Custom(http.MethodPost, v2.ResourceClusterwideNetworkPolicies).Body(o.Cluster).Do(ctx).Error()
}

// Remove deletes the object; there being none is fine.
func (o Object) Remove(ctx context.Context, l *lab.Lab) error {
	var err error
	switch m := o.Meta(); {
	case o.Tier != nil:
		err = l.Tiers(http.MethodDelete).Name(m.Name).Do(ctx).Error()
	case o.Network != nil:
		err = l.Kube.NetworkingV1().NetworkPolicies(m.Namespace).Delete(ctx, m.Name, metav1.DeleteOptions{})
	case o.Namespaced != nil:
		err = l.Custom(http.MethodDelete, v2.ResourceNetworkPolicies).Namespace(m.Namespace).Name(m.Name).Do(ctx).Error()
	default:
		err = l.Custom(http.MethodDelete, v2.ResourceClusterwideNetworkPolicies).Name(m.Name).Do(ctx).Error()
	}
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}
