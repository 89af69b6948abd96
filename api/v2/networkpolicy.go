package v2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CiliumNetworkPolicy is a policy for the endpoints of its own namespace.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ciliumnetworkpolicies,singular=ciliumnetworkpolicy,scope=Namespaced,shortName={cnp,ciliumnp},categories={cilium,ciliumpolicy}
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels="io.cilium.k8s.crd.schema.version=1.33.14"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp",description="Time since the policy was created"
// +kubebuilder:printcolumn:name="Valid",type=string,JSONPath=".status.conditions[?(@.type=='Valid')].status",description="Whether the policy is understood and enforced"
type CiliumNetworkPolicy struct {
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

// CiliumNetworkPolicyList is a list of policies.
//
// +kubebuilder:object:root=true
type CiliumNetworkPolicyList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumNetworkPolicy `json:"items"`
}

// NetworkPolicyStatus reports whether a policy is valid and in force.
type NetworkPolicyStatus struct {
	// +optional
	// +listType=map
	// +listMapKey=type
	Conditions []NetworkPolicyCondition `json:"conditions,omitempty"`
	// DerivativePolicies are the policies made from the groups of this one, by name.
	// +optional
	DerivativePolicies map[string]DerivativePolicyStatus `json:"derivativePolicies,omitempty"`
}

// ConditionValid is the type of the condition that shows whether a policy is understood and
// enforced.
const ConditionValid = "Valid"

// NetworkPolicyCondition is one statement about a policy, such as "Valid".
type NetworkPolicyCondition struct {
	// LastTransitionTime is when Status last changed.
	// +optional
	LastTransitionTime metav1.Time `json:"lastTransitionTime,omitzero"`
	// +optional
	Message string `json:"message,omitempty"`
	// Reason is one word.
	// +optional
	Reason string `json:"reason,omitempty"`
	// Status is "True", "False" or "Unknown".
	// +required
	Status string `json:"status"`
	// +required
	Type string `json:"type"`
}

// DerivativePolicyStatus is the status of a policy that was made from another one.
type DerivativePolicyStatus struct {
	// +optional
	Annotations map[string]string `json:"annotations,omitempty"`
	// +optional
	Enforcing bool `json:"enforcing,omitempty"`
	// +optional
	Error string `json:"error,omitempty"`
	// +optional
	LastUpdated metav1.Time `json:"lastUpdated,omitzero"`
	// +optional
	LocalPolicyRevision int64 `json:"localPolicyRevision,omitempty"`
	// +optional
	OK bool `json:"ok,omitempty"`
}
