package v2

import metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

// CiliumIdentity is a set of labels with a number. The name of the object is the number in decimal.
//
// +kubebuilder:object:root=true
// +kubebuilder:resource:path=ciliumidentities,singular=ciliumidentity,scope=Cluster,shortName=ciliumid,categories=cilium
// +kubebuilder:subresource:status
// +kubebuilder:storageversion
// +kubebuilder:metadata:labels="io.cilium.k8s.crd.schema.version=1.33.14"
// +kubebuilder:printcolumn:name="Namespace",type=string,JSONPath=".metadata.labels.io\\.kubernetes\\.pod\\.namespace",description="The namespace of the pods with this identity"
// +kubebuilder:printcolumn:name="Age",type=date,JSONPath=".metadata.creationTimestamp",description="Time since the identity was allocated"
type CiliumIdentity struct {
	metav1.TypeMeta `json:",inline"`
	// +required
	metav1.ObjectMeta `json:"metadata"`
	// SecurityLabels are the labels that the number stands for: keys are "source:key". They never
	// change. The labels in the metadata are a copy, for selection only.
	// +required
	SecurityLabels map[string]string `json:"security-labels"`
}

// CiliumIdentityList is a list of identities.
//
// +kubebuilder:object:root=true
type CiliumIdentityList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []CiliumIdentity `json:"items"`
}
