package v2

// CIDRRule is a prefix without some prefixes inside it, or a reference to groups of prefixes.
//
// +kubebuilder:validation:ExactlyOneOf=cidr;cidrGroupRef;cidrGroupSelector
type CIDRRule struct {
	// +optional
	// +kubebuilder:validation:Format=cidr
	CIDR string `json:"cidr,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=253
	// +kubebuilder:validation:Pattern=`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`
	CIDRGroupRef string `json:"cidrGroupRef,omitempty"`
	// +optional
	CIDRGroupSelector *LabelSelector `json:"cidrGroupSelector,omitempty"`
	// +optional
	// +kubebuilder:validation:items:Format=cidr
	Except []string `json:"except,omitempty"`
}

// Service names Kubernetes services as peers.
type Service struct {
	// +optional
	K8sService *NamedService `json:"k8sService,omitempty"`
	// +optional
	K8sServiceSelector *SelectedServices `json:"k8sServiceSelector,omitempty"`
}

// NamedService is a service by name.
type NamedService struct {
	// +optional
	ServiceName string `json:"serviceName,omitempty"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// SelectedServices are services by label.
type SelectedServices struct {
	// +required
	Selector LabelSelector `json:"selector"`
	// +optional
	Namespace string `json:"namespace,omitempty"`
}

// FQDNSelector names peers by DNS name.
type FQDNSelector struct {
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^([-a-zA-Z0-9_]+[.]?)+$`
	MatchName string `json:"matchName,omitempty"`
	// +optional
	// +kubebuilder:validation:MaxLength=255
	// +kubebuilder:validation:Pattern=`^([-a-zA-Z0-9_*]+[.]?)+$`
	MatchPattern string `json:"matchPattern,omitempty"`
}

// Group names peers by groups that a cloud provider knows.
type Group struct {
	// +optional
	AWS *AWSGroup `json:"aws,omitempty"`
}

// AWSGroup names interfaces of AWS instances.
type AWSGroup struct {
	// +optional
	Labels map[string]string `json:"labels,omitempty"`
	// +optional
	SecurityGroupsIDs []string `json:"securityGroupsIds,omitempty"`
	// +optional
	SecurityGroupsNames []string `json:"securityGroupsNames,omitempty"`
	// +optional
	Region string `json:"region,omitempty"`
}

// Authentication asks for mutual authentication.
type Authentication struct {
	// +required
	// +kubebuilder:validation:Enum=disabled;required;test-always-fail
	Mode string `json:"mode"`
}
