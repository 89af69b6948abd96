package v2

import "encoding/json"

// GroupName, Version and APIVersion identify the API of this package.
const (
	GroupName  = "cilium.io"
	Version    = "v2"
	APIVersion = GroupName + "/" + Version
)

// TypeMeta says of which kind an object is.
type TypeMeta struct {
	APIVersion string `json:"apiVersion,omitempty"`
	Kind       string `json:"kind,omitempty"`
}

// ObjectMeta names an object.
type ObjectMeta struct {
	Name        string            `json:"name,omitempty"`
	Namespace   string            `json:"namespace,omitempty"`
	UID         string            `json:"uid,omitempty"`
	Labels      map[string]string `json:"labels,omitempty"`
	Annotations map[string]string `json:"annotations,omitempty"`
}

// UnmarshalJSON reads metadata and skips the fields that this type does not have, also where
// unknown fields are refused: manifests written out by a server carry many, and none changes
// what the object means.
func (m *ObjectMeta) UnmarshalJSON(data []byte) error {
	type plain ObjectMeta // without this method
	return json.Unmarshal(data, (*plain)(m))
}

// LabelSelector selects by labels. All parts must hold; a selector without parts selects
// everything in its scope. Keys may start with a source and a colon, as in "k8s:app"; a key
// without a source matches labels of any source.
type LabelSelector struct {
	MatchLabels      map[string]string          `json:"matchLabels,omitempty"`
	MatchExpressions []LabelSelectorRequirement `json:"matchExpressions,omitempty"`
}

// LabelSelectorRequirement relates a key to values.
type LabelSelectorRequirement struct {
	Key string `json:"key"`
	// Operator is one of the Op constants.
	Operator string   `json:"operator"`
	Values   []string `json:"values,omitempty"`
}

// Operators of a LabelSelectorRequirement.
const (
	OpIn           = "In"
	OpNotIn        = "NotIn"
	OpExists       = "Exists"
	OpDoesNotExist = "DoesNotExist"
)
