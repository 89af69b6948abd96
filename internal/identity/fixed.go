package identity

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/hawser-net/hawser/internal/labels"
)

// Fixed maps user-reserved IDs to their names, as --fixed-identity-mapping gives them. A pod
// takes one by the label io.cilium.fixed-identity=name.
type Fixed map[ID]string

// ParseFixed reads entries "ID=name" (a single entry may hold several, separated by commas).
// IDs are 128 to 255; an ID or a name used twice and a name that is reserved already are
// errors. All faults are reported.
func ParseFixed(entries []string) (Fixed, error) {
	out := Fixed{}
	names := map[string]ID{}
	var errs []error
	for _, entry := range entries {
		for part := range strings.SplitSeq(entry, ",") {
			if part == "" {
				continue
			}
			num, name, ok := strings.Cut(part, "=")
			if !ok {
				errs = append(errs, fmt.Errorf("fixed identity %q: write ID=name", clip(part)))
				continue
			}
			n, err := strconv.ParseUint(num, 10, 32)
			id := ID(n)
			switch {
			case err != nil || id < MinUserReserved || id > MaxUserReserved:
				errs = append(errs, fmt.Errorf("fixed identity %q: the ID must be %d to %d",
					clip(part), uint32(MinUserReserved), uint32(MaxUserReserved)))
				continue
			case name == "" || labels.Reserved(name).Validate() != nil:
				errs = append(errs, fmt.Errorf("fixed identity %q: the name is not a label key", clip(part)))
				continue
			case isReservedName(name):
				errs = append(errs, fmt.Errorf("fixed identity %q: the name is reserved", clip(part)))
				continue
			}
			if old, dup := out[id]; dup {
				errs = append(errs, fmt.Errorf("fixed identity %q: ID %d is %q already", clip(part), n, old))
				continue
			}
			if old, dup := names[name]; dup {
				errs = append(errs, fmt.Errorf("fixed identity %q: the name belongs to %d already", clip(part), uint32(old)))
				continue
			}
			out[id], names[name] = name, id
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

// Labels returns the labels of a user-reserved identity.
func (f Fixed) Labels(id ID) (labels.Set, bool) {
	name, ok := f[id]
	if !ok {
		return nil, false
	}
	return labels.NewSet(labels.Reserved(name)), true
}

// ForPod returns the user-reserved identity that a pod's labels ask for. found is false if they
// ask for none; a name that is not mapped is an error, since falling back to another identity would
// give the pod rights it was not meant to have.
func (f Fixed) ForPod(s labels.Set) (id ID, found bool, err error) {
	l, ok := s.Get(labels.KeyFixedIdentity)
	if !ok {
		return 0, false, nil
	}
	for id, name := range f {
		if name == l.Value {
			return id, true, nil
		}
	}
	return 0, false, fmt.Errorf("label %s: no fixed identity is named %q; see --fixed-identity-mapping", l, clip(l.Value))
}

// IDs returns the mapped IDs in order.
func (f Fixed) IDs() []ID {
	return slices.Sorted(maps.Keys(f))
}
