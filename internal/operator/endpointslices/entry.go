package endpointslices

import (
	"slices"

	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
)

// key names an endpoint: the namespace and the name of its pod.
type key = types.NamespacedName

// entry is a slice's entry of an endpoint. One that the index has is never changed.
type entry = v2alpha1.CoreCiliumEndpoint

// same compares two entries; what is missing and what is empty are the same.
func same(a, b *entry) bool {
	if a == b {
		return true
	}
	if a == nil || b == nil {
		return false
	}
	return a.Name == b.Name && a.IdentityID == b.IdentityID && a.PodUID == b.PodUID && a.ServiceAccount == b.ServiceAccount &&
		a.Encryption == b.Encryption && slices.Equal(a.NamedPorts, b.NamedPorts) && sameNetworking(a.Networking, b.Networking)
}

func sameNetworking(a, b *v2.EndpointNetworking) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.NodeIP == b.NodeIP && slices.EqualFunc(a.Addressing, b.Addressing, func(x, y *v2.AddressPair) bool {
		if x == nil || y == nil {
			return x == y
		}
		return *x == *y
	})
}

// ofEndpoint returns the entry of a CiliumEndpoint, nil if it is not to be in a slice: others
// cannot place a pod without an address, and have no rule for one without an identity.
func ofEndpoint(o *v2.CiliumEndpoint) *entry {
	s := &o.Status
	if s.Identity == nil || s.Identity.ID <= 0 || s.Networking == nil || len(s.Networking.Addressing) == 0 {
		return nil
	}
	e := &entry{
		Name: o.Name, IdentityID: s.Identity.ID, Networking: s.Networking.DeepCopy(), Encryption: s.Encryption, NamedPorts: slices.Clone(s.NamedPorts),
		ServiceAccount: s.ServiceAccount,
	}
	for _, ref := range o.OwnerReferences {
		if ref.Kind == "Pod" {
			e.PodUID = string(ref.UID)
		}
	}
	return e
}
