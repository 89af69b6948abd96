package ui

import (
	"hash/maphash"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/observer"
)

const (
	// resumeMargin is how much earlier than needed a stream resumes: flows come only nearly in the
	// order of their times.
	resumeMargin = 2 * time.Second
	// maxResumeSeen is how many answers half of the memory of a resumption has, maxResumeNodes of
	// how many nodes it knows the clocks.
	maxResumeSeen  = 1 << 16
	maxResumeNodes = 1 << 13
)

// resumption is what it takes to go on after a stream of flows, or of events, has ended, with none
// lost or counted twice: they have the times of their nodes, whose clocks differ and are set. So
// the next stream of flows begins earlier by as much as any node is behind, that of events has all
// of the window, and what came before is left out.
type resumption struct {
	seed maphash.Seed
	// recent and older are what came, by its hash; older is forgotten when recent is full.
	recent, older map[uint64]struct{}
	// began is when the first of recent came. What came since remembered is known.
	began, remembered time.Time
	// came is when the last answer came, behind how old the last flow of each node was then.
	came   time.Time
	behind map[string]time.Duration
}

func newResumption() *resumption {
	return &resumption{seed: maphash.MakeSeed(), recent: map[uint64]struct{}{}, behind: map[string]time.Duration{}}
}

// fresh notes an answer that came now, and reports whether it had not come before.
func (r *resumption) fresh(res *observer.GetFlowsResponse, now time.Time) bool {
	r.came = now
	if f := res.GetFlow(); f != nil {
		if _, known := r.behind[res.GetNodeName()]; known || len(r.behind) < maxResumeNodes {
			r.behind[res.GetNodeName()] = now.Sub(f.GetTime().AsTime())
		}
	}
	if id := res.GetFlow().GetUuid(); id != "" {
		return r.first(maphash.String(r.seed, id), now)
	}
	return r.first(r.hash(res), now)
}

// first notes the hash of an answer that came now, and reports whether it had not come before.
func (r *resumption) first(h uint64, now time.Time) bool {
	if _, known := r.recent[h]; known {
		return false
	}
	_, known := r.older[h]
	if len(r.recent) >= maxResumeSeen {
		r.older, r.recent, r.remembered = r.recent, map[uint64]struct{}{}, r.began
	}
	if len(r.recent) == 0 {
		r.began = now
	}
	r.recent[h] = struct{}{}
	return !known
}

// hash identifies an answer that has no ID of its own.
func (r *resumption) hash(res proto.Message) uint64 {
	b, _ := proto.MarshalOptions{Deterministic: true}.Marshal(res)
	return maphash.Bytes(r.seed, b)
}

// since is from when the next stream must have flows, if the last one had them since before.
func (r *resumption) since(before time.Time) time.Time {
	if r.came.IsZero() {
		return before
	}
	var most time.Duration
	for _, d := range r.behind {
		most = max(most, d)
	}
	since := r.came.Add(-min(most, Window) - resumeMargin)
	if since.Before(r.remembered) {
		since = r.remembered
	}
	return since
}
