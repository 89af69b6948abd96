package clustermesh

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// progress is how much of a kind of state was observed, and what of it the store does not have any
// more.
//
// A store that was emptied, or whose writer was away for longer than its leases, lacks keys of what
// still exists. So what is missing goes only while the cluster vouches for the kind: by the kind's
// canary if it writes canaries, else by its description. Until then it stays in force.
type progress struct {
	listed bool  // everything, at least once, over all connections
	since  int64 // revision of the present watch's last listing; 0 until that is done
	looks  int   // how many looks had begun by then
	// complete means that the cluster has vouched for what that listing and the changes since say.
	complete bool
	// missing are the keys that are known here, and not in the store as far as the present watch
	// has delivered it.
	missing map[string]bool

	begun time.Time // when the present watch began
	// full means that keys were refused for lack of room, roomier that others went since.
	full, roomier bool
}

// refill is how often a kind is listed again at most because there is room for what was refused.
const refill = 5 * time.Minute

// begin watches a kind, from a listing on.
func (s *session) begin(kind string) {
	h := s.progress[kind]
	h.since, h.complete, h.missing = 0, false, s.keys(kind)
	h.begun, h.full, h.roomier = time.Now(), false, false
	if end := s.ends[kind]; end != nil {
		end()
	}
	s.events[kind], s.ends[kind] = s.watch(kind)
}

// keys returns the keys of a kind that something is known of, or that were refused.
func (s *session) keys(kind string) map[string]bool {
	out := map[string]bool{}
	if kind == kindAddresses {
		for p := range s.pairs {
			out[ipcache.Pair{Prefix: p}.Key()] = true
		}
	} else {
		for key := range s.space[kind].sizes {
			out[key] = true
		}
	}
	for of := range s.refused {
		if key, ok := strings.CutPrefix(of, kind+"/"); ok {
			out[key] = true
		}
	}
	return out
}

// knows reports whether a key is one of keys.
func (s *session) knows(kind, key string) bool {
	var known bool
	if kind == kindAddresses {
		p, _ := ipcache.ParseKey(key) // of what is no address there is no pair
		_, known = s.pairs[p]
	} else {
		_, known = s.space[kind].sizes[key]
	}
	return known || s.refused[kind+"/"+key]
}

// canaries is the watch of the keys that mark kinds as complete.
const canaries = "canaries"

// takeCanary takes an event of those keys. One that is there, and is needed, shows by a look
// whether it is newer than what was listed.
func (s *session) takeCanary(e kvstore.Event, ok bool) {
	if !ok {
		s.events[canaries] = nil
		return
	}
	for kind, h := range s.progress {
		if e.Key != s.layout().canary(kind) {
			continue
		}
		if e.Kind == kvstore.EventDelete {
			h.complete, h.looks = false, s.looks // a look that is under way may have seen it still
		}
		s.hurry = s.hurry || !h.complete
	}
}

// vouch takes from a look for which kinds the cluster vouches. It returns an error if there are
// keys that stay in force for lack of that.
func (s *session) vouch(l look) error {
	if l.unread != nil {
		return l.unread
	}
	var open []string
	for kind, h := range s.progress {
		mark, marked := l.marks[kind]
		switch {
		case !marked:
			h.complete = false
			if h.since != 0 && len(h.missing) > 0 {
				open = append(open, s.layout().canary(kind))
			}
		case h.complete, h.since == 0, l.number <= h.looks: // or the store is another one since the look
		case mark <= h.since, len(h.missing) == 0:
			h.complete = true
		case time.Since(h.begun) > s.m.p.Describe:
			s.begin(kind) // the listing may be older than the mark; one that is not shows what has gone
		}
	}
	if len(open) == 0 {
		return nil
	}
	slices.Sort(open)
	return fmt.Errorf("the store lacks keys, and may be incomplete: it has no %s, which the cluster's operator writes when it is complete", strings.Join(open, ", "))
}

// trusts reports whether what is missing has gone. While the heartbeat of a writer of canaries is
// old, leases of what still exists may end.
func (s *session) trusts(h *progress) bool {
	return h.complete && s.met && (s.answers || !s.desc.Capabilities.SyncedCanaries)
}

// settle removes what has gone, and lists again where there is room for what was refused.
func (s *session) settle() {
	if s.cancel == nil {
		return // nothing is watched
	}
	for kind, h := range s.progress {
		if len(h.missing) > 0 && s.trusts(h) {
			gone := slices.Collect(maps.Keys(h.missing))
			h.missing = map[string]bool{}
			s.remove(kind, gone)
		}
		if h.full && h.roomier && h.complete && time.Since(h.begun) > refill {
			s.begin(kind)
		}
	}
}

// remove forgets keys.
func (s *session) remove(kind string, gone []string) {
	if kind != kindIdentities {
		for _, key := range gone {
			s.forget(kind, key)
		}
		return
	}
	for _, key := range gone {
		s.clearRejection(kind, key)
	}
	s.identify(nil, gone)
}
