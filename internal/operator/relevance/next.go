package relevance

import (
	"slices"
	"time"

	k8skeys "github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/labels"
)

// facts is what decides about the next state.
type facts struct {
	// need are the keys that policies use, or used a short while ago.
	need labels.Keys
	// made and enforced are whether every agent has confirmed that for the present generation.
	made, enforced bool
	// applied reports whether all endpoints have identities by the present keys. It is only asked
	// if made.
	applied func() bool
}

// maxKeys is how long the text of the keys may be that identities are narrowed to, in bytes. A
// ConfigMap has room for 1 MiB, and keys are there twice.
const maxKeys = 256 << 10

// next returns the state to publish after s, and whether it differs. For a new key all identities
// are made first, and then policies are evaluated by it: further new ones wait until then, or they
// could hold it up for ever. A key to remove is first withdrawn from evaluation, on all nodes, and
// then from identities. So no rule is ever evaluated by a label that identities may lack.
func next(s k8skeys.State, f facts) (k8skeys.State, bool) {
	if len(f.need.String()) > maxKeys {
		f.need = labels.AllKeys()
	}
	coming := f.need.Intersect(s.Keys)
	switch {
	case !s.Ready.Covers(coming):
		if !f.made || !f.applied() {
			return s, false
		}
		s.Ready = s.Ready.Union(coming)
	case !s.Keys.Covers(f.need):
		s.Keys = s.Keys.Union(f.need)
	case !s.Ready.Equal(f.need):
		s.Ready = f.need
	case !s.Keys.Equal(s.Ready):
		if !f.enforced {
			return s, false
		}
		s.Keys = s.Ready
	default:
		return s, false
	}
	s.Generation++
	return s, true
}

// memory remembers when a key was last needed, so that one that no policy needs for a while is
// kept.
type memory struct {
	grace time.Duration
	last  map[string]time.Time
	all   time.Time // when all were
}

// since returns a memory of a time at which these keys were needed.
func since(grace time.Duration, keys labels.Keys, now time.Time) *memory {
	m := &memory{grace: grace, last: map[string]time.Time{}}
	m.note(keys, now)
	return m
}

func (m *memory) note(keys labels.Keys, now time.Time) {
	if keys.All() {
		m.all = now
	}
	for _, key := range keys.List() {
		m.last[key] = now
	}
}

// need returns the keys that are needed now, and those that were within the grace period. at is
// when that becomes less, zero if it does not.
func (m *memory) need(keys labels.Keys, now time.Time) (need labels.Keys, at time.Time) {
	m.note(keys, now)
	if keys.All() {
		return keys, time.Time{}
	}
	sooner := func(t time.Time) {
		if at.IsZero() || t.Before(at) {
			at = t
		}
	}
	var kept []string
	for key, used := range m.last {
		switch end := used.Add(m.grace); {
		case keys.Has(key):
		case now.Before(end):
			kept = append(kept, key)
			sooner(end)
		default:
			delete(m.last, key)
		}
	}
	if end := m.all.Add(m.grace); !m.all.IsZero() && now.Before(end) {
		sooner(end)
		return labels.AllKeys(), at
	}
	slices.Sort(kept)
	return keys.Union(labels.KeysOf(kept...)), at
}
