package v2

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// GroupName, Version and APIVersion identify the API of this package.
const (
	GroupName  = "cilium.io"
	Version    = "v2"
	APIVersion = GroupName + "/" + Version
)

// Kinds of this package.
const (
	KindIdentity                 = "CiliumIdentity"
	KindEndpoint                 = "CiliumEndpoint"
	KindNode                     = "CiliumNode"
	KindNetworkPolicy            = "CiliumNetworkPolicy"
	KindClusterwideNetworkPolicy = "CiliumClusterwideNetworkPolicy"
)

// Resources of this package, as they stand in paths and in rules of RBAC.
const (
	ResourceIdentities                 = "ciliumidentities"
	ResourceEndpoints                  = "ciliumendpoints"
	ResourceNodes                      = "ciliumnodes"
	ResourceNetworkPolicies            = "ciliumnetworkpolicies"
	ResourceClusterwideNetworkPolicies = "ciliumclusterwidenetworkpolicies"
)

// SchemeGroupVersion returns the group and version of this package.
func SchemeGroupVersion() schema.GroupVersion {
	return schema.GroupVersion{Group: GroupName, Version: Version}
}

// Resource returns a resource of this package by its plural name, such as ResourceNodes.
func Resource(plural string) schema.GroupVersionResource {
	return SchemeGroupVersion().WithResource(plural)
}

// AddToScheme registers the kinds of this package and their lists. It returns no error today; the
// signature is that of every other group.
func AddToScheme(s *runtime.Scheme) error {
	gv := SchemeGroupVersion()
	s.AddKnownTypes(gv,
		&CiliumIdentity{}, &CiliumIdentityList{},
		&CiliumEndpoint{}, &CiliumEndpointList{},
		&CiliumNode{}, &CiliumNodeList{},
		&CiliumNetworkPolicy{}, &CiliumNetworkPolicyList{},
		&CiliumClusterwideNetworkPolicy{}, &CiliumClusterwideNetworkPolicyList{},
	)
	metav1.AddToGroupVersion(s, gv)
	return nil
}
