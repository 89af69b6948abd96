package identities

import (
	"errors"
	"strings"

	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// Key is a label set as a key of the allocator, on objects and on key-value stores alike. It is a
// value and never changes.
type Key struct {
	Set labels.Set
}

var _ allocator.AllocatorKey = Key{}

// String returns the canonical form.
func (k Key) String() string { return k.Set.KVString() }

// GetKey returns the canonical form, which is what stands in a key-value store.
func (k Key) GetKey() string { return k.Set.KVString() }

// PutKey reads the canonical form.
func (k Key) PutKey(v string) (allocator.AllocatorKey, error) {
	set, err := labels.ParseKV(v)
	return Key{set}, err
}

// GetAsMap returns the labels in the form of an object, see [SecurityLabels].
func (k Key) GetAsMap() map[string]string { return SecurityLabels(k.Set) }

// PutKeyFromMap is the inverse of GetAsMap.
func (k Key) PutKeyFromMap(m map[string]string) (allocator.AllocatorKey, error) {
	set, err := ParseSecurityLabels(m)
	return Key{set}, err
}

// SecurityLabels returns a label set in the form of an object: values by "source:key".
func SecurityLabels(set labels.Set) map[string]string {
	out := make(map[string]string, len(set))
	for _, l := range set {
		out[l.Source+":"+l.Key] = l.Value
	}
	return out
}

// ParseSecurityLabels is the inverse of [SecurityLabels]. A label without a source has source "".
// Labels that are ambiguous in the canonical string are an error.
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
	if len(set) != len(ls) { // a set has one label of a key, and which that is would be chance
		return nil, errors.New("labels of one key with several sources")
	}
	if err := set.Validate(); err != nil {
		return nil, err
	}
	return set, nil
}
