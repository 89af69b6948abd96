// Package migration copies identities from a key-value store into CiliumIdentity objects, or back,
// each with its ID, and compares the two places.
//
// A copy is made only where nothing is: an ID that has other labels in the other place, or
// labels that have another ID there, are reported and left alone. So a copy may be broken off
// and begun again at any time, and run while nodes go on: what was copied is found to be the same.
//
// IDs in quarantine are copied as such: else they would be free in the other place while nodes
// still go by what they meant.
//
// The package keeps nothing and starts no goroutine.
package migration

import (
	"cmp"
	"maps"
	"slices"
	"strings"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// Identity is an ID and the labels that it stands for, in canonical form.
type Identity struct {
	ID     allocator.ID `json:"id"`
	Labels string       `json:"labels"`
	// age orders identities of one place by when they were made.
	age int64
}

// Place is what one place has.
type Place struct {
	Identities []Identity
	// Quarantined are IDs that are given to no other labels than they had yet, since when.
	Quarantined []Quarantined
	// Faulty are names and keys that are there and are no identities.
	Faulty []string
	// Foreign counts identities with IDs of other clusters.
	Foreign int
}

// Quarantined is an ID in quarantine, and the labels that it had; "" if these are not known.
type Quarantined struct {
	ID     allocator.ID
	Labels string
	Since  time.Time
}

// Conflict is an identity that the other place cannot have too.
type Conflict struct {
	Identity
	// Owner are the labels that the ID has there; "" if it is free.
	Owner string `json:"owner,omitempty"`
	// Number is the ID that the labels have there; 0 if none.
	Number allocator.ID `json:"number,omitempty"`
}

// Difference is what two places do not have in common.
type Difference struct {
	// Same counts identities that are in both places.
	Same int
	// Missing are those of the first place that the second lacks and can have, the oldest first.
	Missing []Identity
	// Conflicts are those that it lacks and cannot have.
	Conflicts []Conflict
	// Extra are those of the second place that the first lacks.
	Extra []Identity
}

// CompareQuarantined returns which IDs in quarantine of one place are free in another one, and
// which are other labels' there.
func CompareQuarantined(from []Quarantined, to Place) (free []Quarantined, conflicts []Conflict) {
	owner, quarantined := map[allocator.ID]string{}, map[allocator.ID]bool{}
	for _, i := range to.Identities {
		owner[i.ID] = i.Labels
	}
	for _, q := range to.Quarantined {
		quarantined[q.ID] = true
	}
	for _, q := range from {
		switch there, used := owner[q.ID]; {
		case used && there != q.Labels:
			conflicts = append(conflicts, Conflict{Identity: Identity{ID: q.ID, Labels: q.Labels}, Owner: there})
		case !used && !quarantined[q.ID]:
			free = append(free, q)
		}
	}
	return free, conflicts
}

// Compare compares what one place has with what another one has.
func Compare(from, to []Identity) Difference {
	type pair struct {
		id     allocator.ID
		labels string
	}
	owner, ids := map[allocator.ID]string{}, map[string][]allocator.ID{}
	for _, i := range to {
		owner[i.ID] = i.Labels
		ids[i.Labels] = append(ids[i.Labels], i.ID)
	}
	ours := map[pair]bool{}
	for _, i := range from {
		ours[pair{i.ID, i.Labels}] = true
	}
	var d Difference
	for _, i := range from {
		there, used := owner[i.ID]
		if used && there == i.Labels {
			d.Same++
			continue
		}
		c := Conflict{Identity: i, Owner: there}
		for _, n := range ids[i.Labels] {
			if !ours[pair{n, i.Labels}] { // else the labels have several IDs here, too
				c.Number = n
			}
		}
		if used || c.Number != allocator.NoID {
			d.Conflicts = append(d.Conflicts, c)
		} else {
			d.Missing = append(d.Missing, i)
		}
	}
	for _, i := range to {
		if !ours[pair{i.ID, i.Labels}] {
			d.Extra = append(d.Extra, i)
		}
	}
	slices.SortFunc(d.Missing, func(x, y Identity) int { return cmp.Or(cmp.Compare(x.age, y.age), cmp.Compare(x.ID, y.ID)) })
	slices.SortFunc(d.Conflicts, func(x, y Conflict) int { return cmp.Compare(x.ID, y.ID) })
	return d
}

// ofObject returns what an object stands for, which is not in quarantine. It is not ok if that is
// no identity.
func ofObject(o *v2.CiliumIdentity) (i Identity, ok bool) {
	id, err := allocator.ParseID(o.Name)
	text := canonical(o.SecurityLabels)
	if intact, known := identities.Intact(o); err != nil || text == "" || known && !intact { // an edit never counts
		return Identity{}, false
	}
	return Identity{ID: id, Labels: text, age: o.CreationTimestamp.Unix()}, true
}

// canonical returns the canonical form of an object's labels, "" if they are no labels.
func canonical(security map[string]string) string {
	ls := make([]labels.Label, 0, len(security))
	for _, name := range slices.Sorted(maps.Keys(security)) {
		source, key, ok := strings.Cut(name, ":")
		if !ok {
			return ""
		}
		ls = append(ls, labels.New(source, key, security[name]))
	}
	set := labels.NewSet(ls...)
	if len(set) != len(security) || set.Validate() != nil {
		return ""
	}
	return set.KVString()
}

// security is the inverse of canonical.
func security(text string) (map[string]string, error) {
	set, err := labels.ParseKV(text)
	if err != nil {
		return nil, err
	}
	out := make(map[string]string, len(set))
	for _, l := range set {
		out[l.Source+":"+l.Key] = l.Value
	}
	return out, nil
}
