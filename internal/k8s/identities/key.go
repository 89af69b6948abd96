package identities

import (
	"strings"

	"github.com/hawser-net/hawser/internal/labels"
)

// SecurityLabels returns a label set in the form of an object: values by "source:key".
func SecurityLabels(set labels.Set) map[string]string {
	out := make(map[string]string, len(set))
	for _, l := range set {
		out[l.Source+":"+l.Key] = l.Value
	}
	return out
}

// ParseSecurityLabels is the inverse of [SecurityLabels]. A label without a source has source "". Labels that could not be told apart in the canonical string
// are an error.
func ParseSecurityLabels(m map[string]string) (labels.Set, error) {
	ls := make([]labels.Label, 0, len(m))
	for name, value := range m {
		source, key, ok := strings.Cut(name, ":")
		if !ok {
			source, key = "", name
		}
		ls = append(ls, labels.New(source, key, value))
	}
	set := labels.NewSet(ls...)
	if err := set.Validate(); err != nil {
		return nil, err
	}
	return set, nil
}
