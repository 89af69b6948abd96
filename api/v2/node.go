package v2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CiliumNode has the addresses of a node and where its pods' addresses come from. The agent of
// the node writes it; the operator writes what it assigns to the node under spec.ipam.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ciliumnodes,singular=ciliumnode,scope=Cluster,shortName={cn,ciliumn},categories=cilium
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels="io.cilium.k8s.crd.schema.version=1.33.14"
// +kubebuilder:printcolumn:name="CiliumInternalIP",type=string,JSONPath=".spec.addresses[?(@.type==\"CiliumInternalIP\")].ip",description="The node's address in the pod network"
// +kubebuilder:printcolumn:name="InternalIP",type=string,JSONPath=".spec.addresses[?(@.type==\"InternalIP\")].ip",description="The node's own address"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp",description="Time since the object was created"
type CiliumNode struct {
	metav1.TypeMeta `json:",inline"`
	// +required
	metav1.ObjectMeta `json:"metadata"`
	// +required
	Spec NodeSpec `json:"spec"`
	// +optional
	Status NodeStatus `json:"status,omitzero"`
}

// CiliumNodeList is a list of nodes.
//
// +kubebuilder:object:root=true
type CiliumNodeList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumNode `json:"items"`
}

// NodeSpec is what others must know of a node.
type NodeSpec struct {
	// +optional
	Addresses []NodeAddress `json:"addresses,omitempty"`
	// +optional
	AlibabaCloud AlibabaCloudSpec `json:"alibaba-cloud,omitzero"`
	// +optional
	Azure AzureSpec `json:"azure,omitzero"`
	// BootID is that of the kernel; it changes with every boot.
	// +optional
	BootID string `json:"bootid,omitempty"`
	// +optional
	Encryption EncryptionSpec `json:"encryption,omitzero"`
	// +optional
	ENI ENISpec `json:"eni,omitzero"`
	// HealthAddressing is where the node's health endpoint answers.
	// +optional
	HealthAddressing NodeServiceAddress `json:"health,omitzero"`
	// IngressAddressing is what the node's ingress proxy sends from.
	// +optional
	IngressAddressing NodeServiceAddress `json:"ingress,omitzero"`
	// InstanceID is the name of the machine at its provider.
	// +optional
	InstanceID string `json:"instance-id,omitempty"`
	// +optional
	IPAM IPAMSpec `json:"ipam,omitzero"`
}

// Types of a NodeAddress.
const (
	AddressHostname         = "Hostname"
	AddressInternalIP       = "InternalIP"
	AddressExternalIP       = "ExternalIP"
	AddressCiliumInternalIP = "CiliumInternalIP"
)

// NodeAddress is an address of a node.
type NodeAddress struct {
	// +optional
	IP string `json:"ip,omitempty"`
	// Type is one of the Address constants; readers skip those that they do not know.
	// +optional
	Type string `json:"type,omitempty"`
}

// NodeServiceAddress is where something on a node answers.
type NodeServiceAddress struct {
	// +optional
	IPv4 string `json:"ipv4,omitempty"`
	// +optional
	IPv6 string `json:"ipv6,omitempty"`
}

// IPAMSpec is what a node may use for its pods, and what it asks for.
type IPAMSpec struct {
	// IPv6Pool are single IPv6 addresses that the node may use, by address.
	// +optional
	IPv6Pool AllocationMap `json:"ipv6-pool,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxAboveWatermark int `json:"max-above-watermark,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	MaxAllocate int `json:"max-allocate,omitempty"`
	// +optional
	// +kubebuilder:validation:Minimum=0
	MinAllocate int `json:"min-allocate,omitempty"`
	// PodCIDRs are the prefixes that the node gives its pods addresses from.
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	PodCIDRs []string `json:"podCIDRs,omitempty"`
	// Pool are single IPv4 addresses that the node may use, by address.
	// +optional
	Pool AllocationMap `json:"pool,omitempty"`
	// +optional
	Pools IPAMPools `json:"pools,omitzero"`
	// PreAllocate is how many addresses the node has in advance, 8 if it is 0.
	// +optional
	// +kubebuilder:validation:Minimum=0
	PreAllocate int `json:"pre-allocate,omitempty"`
	// +optional
	StaticIPTags map[string]string `json:"static-ip-tags,omitempty"`
}

// DefaultPreAllocate is how many addresses a node has in advance unless its CiliumNode, or for a
// pool the agent's options, have another number.
const DefaultPreAllocate = 8

// AllocationMap holds addresses and their owners.
type AllocationMap map[string]AllocationIP

// AllocationIP describes an address.
type AllocationIP struct {
	// Owner is its user, such as "namespace/pod"; "" if it is free. +optional
	Owner string `json:"owner,omitempty"`
	// Resource is where it comes from, such as the number of a cloud interface.
	// +optional
	Resource string `json:"resource,omitempty"`
}

// IPAMPools is what a node has of named pools, and what it asks for.
type IPAMPools struct {
	// +optional
	Allocated []IPAMPoolAllocation `json:"allocated,omitempty"`
	// +optional
	Requested []IPAMPoolRequest `json:"requested,omitempty"`
}

// IPAMPoolAllocation is what the operator gave a node of a pool.
type IPAMPoolAllocation struct {
	// AllowFirstIP and AllowLastIP are whether the outermost addresses of each prefix may be used.
	// +optional
	AllowFirstIP bool `json:"allowFirstIP,omitempty"`
	// +optional
	AllowLastIP bool `json:"allowLastIP,omitempty"`
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	CIDRs []string `json:"cidrs,omitempty"`
	// +required
	// +kubebuilder:validation:MinLength=1
	Pool string `json:"pool"`
}

// IPAMPoolRequest is what a node needs of a pool.
type IPAMPoolRequest struct {
	// +optional
	Needed IPAMPoolDemand `json:"needed,omitzero"`
	// +required
	// +kubebuilder:validation:MinLength=1
	Pool string `json:"pool"`
}

// IPAMPoolDemand counts addresses.
type IPAMPoolDemand struct {
	// +optional
	IPv4Addrs int `json:"ipv4-addrs,omitempty"`
	// +optional
	IPv6Addrs int `json:"ipv6-addrs,omitempty"`
}

// NodeStatus is what became of the spec.
type NodeStatus struct {
	// +optional
	AlibabaCloud AlibabaCloudStatus `json:"alibaba-cloud,omitzero"`
	// +optional
	Azure AzureStatus `json:"azure,omitzero"`
	// +optional
	ENI ENIStatus `json:"eni,omitzero"`
	// +optional
	IPAM IPAMStatus `json:"ipam,omitzero"`
}

// IPAMStatus is what a node uses.
type IPAMStatus struct {
	// +optional
	AssignedStaticIP string `json:"assigned-static-ip,omitempty"`
	// +optional
	IPv6Used AllocationMap `json:"ipv6-used,omitempty"`
	// OperatorStatus is what went wrong in the operator.
	// +optional
	OperatorStatus OperatorStatus `json:"operator-status,omitzero"`
	// PodCIDRs has how full the prefixes of the spec are.
	// +optional
	PodCIDRs map[string]PodCIDRMapEntry `json:"pod-cidrs,omitempty"`
	// ReleaseIPs and ReleaseIPv6s are the addresses that operator and agent agree to give back.
	// +optional
	ReleaseIPs map[string]IPReleaseStatus `json:"release-ips,omitempty"`
	// +optional
	ReleaseIPv6s map[string]IPReleaseStatus `json:"release-ipv6s,omitempty"`
	// +optional
	Used AllocationMap `json:"used,omitempty"`
}

// OperatorStatus is what the operator reports about a node.
type OperatorStatus struct {
	// Error is the last fault; "" if there is none.
	// +optional
	Error string `json:"error,omitempty"`
}

// PodCIDRMapEntry describes a prefix.
type PodCIDRMapEntry struct {
	// +optional
	Status PodCIDRStatus `json:"status,omitempty"`
}

// PodCIDRStatus is how full a prefix is.
//
// +kubebuilder:validation:Enum=released;depleted;in-use
type PodCIDRStatus string

// How full a prefix is.
const (
	PodCIDRReleased PodCIDRStatus = "released"
	PodCIDRDepleted PodCIDRStatus = "depleted"
	PodCIDRInUse    PodCIDRStatus = "in-use"
)

// IPReleaseStatus is a step of giving an address back.
//
// +kubebuilder:validation:Enum=marked-for-release;ready-for-release;do-not-release;released
type IPReleaseStatus string

// Steps of giving an address back: the operator marks, the agent answers, the operator releases.
const (
	IPMarkedForRelease IPReleaseStatus = "marked-for-release"
	IPReadyForRelease  IPReleaseStatus = "ready-for-release"
	IPDoNotRelease     IPReleaseStatus = "do-not-release"
	IPReleased         IPReleaseStatus = "released"
)
