package v2alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// CiliumPodIPPool is a pool of addresses for pods. The operator cuts it into a prefix for each
// node that asks.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ciliumpodippools,singular=ciliumpodippool,scope=Cluster,shortName=cpip,categories=cilium
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels="io.cilium.k8s.crd.schema.version=1.33.14"
type CiliumPodIPPool struct {
	metav1.TypeMeta `json:",inline"`
	// +optional
	metav1.ObjectMeta `json:"metadata"`
	// +required
	Spec IPPoolSpec `json:"spec"`
}

// CiliumPodIPPoolList is a list of pools.
//
// +kubebuilder:object:root=true
type CiliumPodIPPoolList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumPodIPPool `json:"items"`
}

// IPPoolSpec is the addresses of a pool and the pods that may use it.
type IPPoolSpec struct {
	// +optional
	IPv4 *IPv4PoolSpec `json:"ipv4,omitempty"`
	// +optional
	IPv6 *IPv6PoolSpec `json:"ipv6,omitempty"`
	// AllowFirstIP and AllowLastIP are whether the outermost addresses of each node's prefix may be
	// used. +optional +kubebuilder:default=false
	AllowFirstIP bool `json:"allowFirstIP,omitempty"`
	// +optional
	// +kubebuilder:default=false
	AllowLastIP bool `json:"allowLastIP,omitempty"`
	// PodSelector and NamespaceSelector choose pods that use the pool without asking for it.
	// +optional
	PodSelector *v2.LabelSelector `json:"podSelector,omitempty"`
	// +optional
	NamespaceSelector *v2.LabelSelector `json:"namespaceSelector,omitempty"`
}

// IPv4PoolSpec is the IPv4 part of a pool.
type IPv4PoolSpec struct {
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:items:Format=cidr
	CIDRs []string `json:"cidrs"`
	// MaskSize is the length of the prefix that a node gets.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=32
	MaskSize int `json:"maskSize"`
}

// IPv6PoolSpec is the IPv6 part of a pool.
type IPv6PoolSpec struct {
	// +required
	// +kubebuilder:validation:MinItems=1
	// +kubebuilder:validation:items:Format=cidr
	CIDRs []string `json:"cidrs"`
	// MaskSize is the length of the prefix that a node gets.
	// +required
	// +kubebuilder:validation:Minimum=1
	// +kubebuilder:validation:Maximum=128
	MaskSize int `json:"maskSize"`
}
