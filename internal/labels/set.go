package labels

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Set is a set of labels, sorted by key, with one label a key (as the wire format has it: the
// source does not make a key different). A Set is immutable by convention: make one with NewSet or
// a parser and never write to it. The nil Set is empty.
type Set []Label

// NewSet returns the set of ls. When two labels share a key, a reserved label wins over any
// other, and otherwise the later one wins.
func NewSet(ls ...Label) Set {
	if len(ls) == 0 {
		return nil
	}
	s := slices.Clone(ls)
	slices.SortStableFunc(s, func(a, b Label) int { return cmp.Compare(a.Key, b.Key) })
	out := s[:1]
	for _, l := range s[1:] {
		last := &out[len(out)-1]
		switch {
		case last.Key != l.Key:
			out = append(out, l)
		case last.Source == SourceReserved && l.Source != SourceReserved:
		default:
			*last = l
		}
	}
	return Set(slices.Clip(out))
}

// ParseSet reads a list of labels, each as Parse does. All faults are reported.
func ParseSet(list []string) (Set, error) {
	if len(list) > MaxLabels {
		return nil, fmt.Errorf("%d labels: at most %d are allowed", len(list), MaxLabels)
	}
	ls := make([]Label, 0, len(list))
	var errs []error
	for _, s := range list {
		l, err := Parse(s)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		ls = append(ls, l)
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return NewSet(ls...), nil
}

// ParseKV reads the canonical string of KVString. It accepts labels in any order, since others
// write these strings too, but every label needs a source and a terminating semicolon is optional
// only at the very end. Several labels of one key are an error: a set has one of them, and which
// that is another reader may decide otherwise.
func ParseKV(s string) (Set, error) {
	if strings.Count(s, ";") > MaxLabels {
		return nil, fmt.Errorf("label string: more than %d labels", MaxLabels)
	}
	var ls []Label
	for s != "" {
		var part string
		part, s, _ = strings.Cut(s, ";")
		head, _, _ := strings.Cut(part, "=")
		if !strings.Contains(head, ":") {
			return nil, fmt.Errorf("label string: %q has no source", clip(part))
		}
		l, err := Parse(part)
		if err != nil {
			return nil, fmt.Errorf("label string: %w", err)
		}
		ls = append(ls, l)
	}
	set := NewSet(ls...)
	if len(set) != len(ls) {
		return nil, errors.New("label string: several labels of one key")
	}
	return set, nil
}

// FromMap returns the labels of m, all with the same source, as a set.
func FromMap(source string, m map[string]string) Set {
	ls := make([]Label, 0, len(m))
	for k, v := range m {
		ls = append(ls, New(source, k, v))
	}
	return NewSet(ls...)
}

// KVString returns the canonical string of the set: "source:key=value;" for each label in order
// of the keys, with "=" even when the value is empty. It is the value of an identity's key in the
// kvstore and part of the keys that lead to it.
func (s Set) KVString() string {
	n := 0
	for i := range s {
		n += len(s[i].Source) + len(s[i].Key) + len(s[i].Value) + 3
	}
	var b strings.Builder
	b.Grow(n)
	for i := range s {
		b.WriteString(s[i].Source)
		b.WriteByte(':')
		b.WriteString(s[i].Key)
		b.WriteByte('=')
		b.WriteString(s[i].Value)
		b.WriteByte(';')
	}
	return b.String()
}

// String returns the labels for people, separated by commas.
func (s Set) String() string { return strings.Join(s.Strings(), ",") }

// Strings returns each label's String, in order; never nil.
func (s Set) Strings() []string {
	out := make([]string, len(s))
	for i := range s {
		out[i] = s[i].String()
	}
	return out
}

// Get returns the label with the given key, whatever its source.
func (s Set) Get(key string) (Label, bool) {
	if len(s) <= 8 { // a scan beats a search on short sets
		for i := range s {
			if s[i].Key == key {
				return s[i], true
			}
		}
		return Label{}, false
	}
	i, ok := slices.BinarySearchFunc(s, key, func(l Label, k string) int { return cmp.Compare(l.Key, k) })
	if !ok {
		return Label{}, false
	}
	return s[i], true
}

// Has reports whether the set has a label with this source and key. SourceAny stands for any
// source.
func (s Set) Has(source, key string) bool {
	l, ok := s.Get(key)
	return ok && (source == SourceAny || l.Source == source)
}

// Value returns the value of the label with this source and key, or "". SourceAny stands for any
// source.
func (s Set) Value(source, key string) string {
	if l, ok := s.Get(key); ok && (source == SourceAny || l.Source == source) {
		return l.Value
	}
	return ""
}

// HasReserved reports whether the set holds "reserved:name".
func (s Set) HasReserved(name string) bool { return s.Has(SourceReserved, name) }

// Equal reports whether both sets hold the same labels.
func (s Set) Equal(t Set) bool { return slices.Equal(s, t) }

// With returns the set with ls added, by the rules of NewSet. The receiver is unchanged.
func (s Set) With(ls ...Label) Set { return NewSet(append(slices.Clone(s), ls...)...) }

// Without returns the set without the labels for which drop returns true. The receiver is
// unchanged.
func (s Set) Without(drop func(Label) bool) Set {
	var out Set
	for _, l := range s {
		if !drop(l) {
			out = append(out, l)
		}
	}
	return out
}

// Validate reports what keeps the set from a round trip through its canonical string.
func (s Set) Validate() error {
	var errs []error
	if len(s) > MaxLabels {
		errs = append(errs, fmt.Errorf("%d labels: at most %d are allowed", len(s), MaxLabels))
	}
	for i, l := range s {
		if err := l.Validate(); err != nil {
			errs = append(errs, err)
		}
		if i > 0 && s[i-1].Key >= l.Key {
			errs = append(errs, fmt.Errorf("the set is not sorted at %q", clip(l.Key)))
		}
	}
	return errors.Join(errs...)
}

// MarshalJSON writes the set as a list of label strings.
func (s Set) MarshalJSON() ([]byte, error) { return json.Marshal(s.Strings()) }

// UnmarshalJSON reads a list of label strings.
func (s *Set) UnmarshalJSON(data []byte) error {
	var list []string
	if err := json.Unmarshal(data, &list); err != nil {
		return fmt.Errorf("labels: %w", err)
	}
	set, err := ParseSet(list)
	if err != nil {
		return err
	}
	*s = set
	return nil
}
