package scale

import (
	"strings"

	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// labelKey is a label set as a key of the allocator, in the forms that the agent uses.
type labelKey struct{ set labels.Set }

// String returns the canonical form.
func (k labelKey) String() string { return k.set.KVString() }

// GetKey returns the canonical form.
func (k labelKey) GetKey() string { return k.set.KVString() }

// PutKey reads the canonical form.
func (k labelKey) PutKey(v string) (allocator.AllocatorKey, error) {
	set, err := labels.ParseKV(v)
	return labelKey{set}, err
}

// GetAsMap returns the labels by "source:key".
func (k labelKey) GetAsMap() map[string]string {
	out := make(map[string]string, len(k.set))
	for _, l := range k.set {
		out[l.Source+":"+l.Key] = l.Value
	}
	return out
}

// PutKeyFromMap is the inverse of GetAsMap.
func (k labelKey) PutKeyFromMap(m map[string]string) (allocator.AllocatorKey, error) {
	ls := make([]labels.Label, 0, len(m))
	for name, value := range m {
		source, key, _ := strings.Cut(name, ":")
		ls = append(ls, labels.New(source, key, value))
	}
	set := labels.NewSet(ls...)
	return labelKey{set}, set.Validate()
}
