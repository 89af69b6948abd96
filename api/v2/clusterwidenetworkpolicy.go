package v2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CiliumClusterwideNetworkPolicy is a policy for endpoints of all namespaces, or for nodes.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ciliumclusterwidenetworkpolicies,singular=ciliumclusterwidenetworkpolicy,scope=Cluster,shortName=ccnp,categories={cilium,ciliumpolicy}
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels="io.cilium.k8s.crd.schema.version=1.33.14"
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=".status.conditions[?(@.type=='Valid')].status",description="Whether the policy is understood and enforced"
type CiliumClusterwideNetworkPolicy struct {
	metav1.TypeMeta `json:",inline"`
	// +required
	metav1.ObjectMeta `json:"metadata"`
	// Spec or Specs hold the rules; one of them must be there.
	// +optional
	Spec *Rule `json:"spec,omitempty"`
	// +optional
	Specs []*Rule `json:"specs,omitempty"`
	// +optional
	Status NetworkPolicyStatus `json:"status,omitzero"`
}

// CiliumClusterwideNetworkPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type CiliumClusterwideNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumClusterwideNetworkPolicy `json:"items"`
}
