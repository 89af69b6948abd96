package labels

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Keys is a set of label keys, or all there can be. The zero value is the empty set. Keys are
// immutable and safe for concurrent use.
type Keys struct {
	all  bool
	list []string // sorted, each once; nil if all
}

// AllKeys returns the set of all keys.
func AllKeys() Keys { return Keys{all: true} }

// KeysOf returns the set of these keys.
func KeysOf(keys ...string) Keys {
	list := slices.Clone(keys)
	slices.Sort(list)
	return Keys{list: slices.Clip(slices.Compact(list))}
}

// All reports whether every key is in the set.
func (k Keys) All() bool { return k.all }

// List returns the keys, sorted; nil if they are all there can be. The caller must not change it.
func (k Keys) List() []string { return k.list }

// Has reports whether a key is in the set.
func (k Keys) Has(key string) bool {
	if k.all {
		return true
	}
	_, found := slices.BinarySearch(k.list, key)
	return found
}

// Covers reports whether every key of o is in the set.
func (k Keys) Covers(o Keys) bool {
	if k.all || o.all {
		return k.all
	}
	return !slices.ContainsFunc(o.list, func(key string) bool { return !k.Has(key) })
}

// Equal reports whether both sets are the same.
func (k Keys) Equal(o Keys) bool { return k.all == o.all && slices.Equal(k.list, o.list) }

// Union returns the keys of both sets.
func (k Keys) Union(o Keys) Keys {
	if k.all || o.all {
		return AllKeys()
	}
	return KeysOf(slices.Concat(k.list, o.list)...)
}

// Intersect returns the keys that both sets have.
func (k Keys) Intersect(o Keys) Keys {
	if k.all {
		return o
	}
	return Keys{list: slices.DeleteFunc(slices.Clone(k.list), func(key string) bool { return !o.Has(key) })}
}

// everyKey stands for all keys in a text; no label has it as its key.
const everyKey = "*"

// String returns the keys line by line, and "*" for all of them, as ParseKeys reads it.
func (k Keys) String() string {
	if k.all {
		return everyKey
	}
	return strings.Join(k.list, "\n")
}

// ParseKeys reads what String writes. What is not a key of a label is an error.
func ParseKeys(text string) (Keys, error) {
	var list []string
	var errs []error
	for line := range strings.SplitSeq(text, "\n") {
		switch line = strings.TrimSpace(line); {
		case line == everyKey:
			return AllKeys(), nil
		case line == "":
		default:
			if err := (Label{Source: SourceAny, Key: line}).Validate(); err != nil {
				errs = append(errs, fmt.Errorf("%q is no key of a label: %w", clip(line), err))
			}
			list = append(list, line)
		}
	}
	if len(errs) > 0 {
		return Keys{}, errors.Join(errs...)
	}
	return KeysOf(list...), nil
}

// prefixPolicy starts the keys that the network gives each pod for policies: cluster and service
// account.
const prefixPolicy = PrefixOwned + ".policy."

// Always reports whether a label is part of identities whichever keys are chosen: those that name a
// pod's owner, and those that only the network sets.
func (l Label) Always() bool {
	return l.Source == SourceReserved || l.Source == SourceGenerated || l.Key == KeyNamespace || l.Key == KeyFixedIdentity || strings.HasPrefix(l.Key, prefixPolicy)
}

// Project returns the labels of a set that have one of the keys, and those that count always. If
// that is none, it is all of them: to have no label at all means something of its own.
func (k Keys) Project(s Set) Set {
	if k.all {
		return s
	}
	if some := s.Without(func(l Label) bool { return !k.Has(l.Key) && !l.Always() }); len(some) > 0 {
		return some
	}
	return s
}

// Narrow returns a filter whose Split takes of the labels that f takes only those that Keys.Project
// leaves.
func (f *Filter) Narrow(keys Keys) *Filter {
	n := *f
	n.keys = keys
	return &n
}
