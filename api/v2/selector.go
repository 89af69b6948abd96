package v2

// LabelSelector selects by labels. All parts must hold; a selector without parts selects
// everything in its scope. Keys may start with a source and a colon, as in "k8s:app"; a key
// without a source matches labels of any source. It is not that of Kubernetes, whose keys have
// no colon.
type LabelSelector struct {
	// +optional
	MatchLabels map[string]LabelValue `json:"matchLabels,omitempty"`
	// +optional
	// +listType=atomic
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelValue is the value of a label.
//
// +kubebuilder:validation:MaxLength=63
// +kubebuilder:validation:Pattern=`^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$`
type LabelValue string

// LabelSelectorRequirement relates a key to values.
type LabelSelectorRequirement struct {
	// +required
	Key string `json:"key"`
	// Operator is one of the Op constants.
	// +required
	// +kubebuilder:validation:Enum=In;NotIn;Exists;DoesNotExist
	Operator string `json:"operator"`
	// +optional
	// +listType=atomic
	Values []string `json:"values,omitempty"`
}

// Operators of a LabelSelectorRequirement.
const (
	OpIn           = "In"
	OpNotIn        = "NotIn"
	OpExists       = "Exists"
	OpDoesNotExist = "DoesNotExist"
)
