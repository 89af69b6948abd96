package v2alpha1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
)

// CiliumEndpointSlice holds what other nodes must know of many endpoints of one namespace, so that
// changes cost fewer writes and watch events than with an object each.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ciliumendpointslices,singular=ciliumendpointslice,scope=Cluster,shortName=ces,categories=cilium
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels="io.cilium.k8s.crd.schema.version=1.33.14"
type CiliumEndpointSlice struct {
	metav1.TypeMeta `json:",inline"`
	// +required
	metav1.ObjectMeta `json:"metadata"`
	// Namespace is the namespace of all endpoints in the slice.
	// +optional
	Namespace string `json:"namespace,omitempty"`
	// Endpoints has no order.
	// +required
	Endpoints []CoreCiliumEndpoint `json:"endpoints"`
}

// CiliumEndpointSliceList is a list of slices.
//
// +kubebuilder:object:root=true
type CiliumEndpointSliceList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumEndpointSlice `json:"items"`
}

// CoreCiliumEndpoint is what other nodes must know of an endpoint.
type CoreCiliumEndpoint struct {
	// +optional
	Encryption v2.EncryptionSpec `json:"encryption,omitzero"`
	// IdentityID is the number of its identity.
	// +optional
	IdentityID int64 `json:"id,omitempty"`
	// Name is that of the pod and of its CiliumEndpoint.
	// +optional
	Name string `json:"name,omitempty"`
	// +optional
	NamedPorts []v2.NamedPort `json:"named-ports,omitempty"`
	// +optional
	Networking *v2.EndpointNetworking `json:"networking,omitempty"`
	// +optional
	PodUID string `json:"pod-uid,omitempty"`
	// +optional
	ServiceAccount string `json:"service-account,omitempty"`
}
