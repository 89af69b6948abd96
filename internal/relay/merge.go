package relay

import (
	"container/heap"
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"google.golang.org/protobuf/types/known/timestamppb"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/pkg/retry"
)

// catchUp is how long the flows of a node are sorted into the past, if a request follows: only the
// node's own clock shows whether it still sends the past.
const catchUp = time.Minute

// item is an answer of a node.
type item struct {
	res entry
	// key is the time by which it is sorted: its own, but not later than it arrived, since the
	// flows of a node whose clock is ahead would otherwise be held, and all others after them.
	// While following it is not earlier than arrival less hold either: a node whose clock is behind
	// would precede all others as long as it sends.
	key time.Time
	// tokens is what it takes of its source's room, pooled what it takes of the relay's pool.
	tokens int
	pooled int64
}

// entryCost is what an entry costs at most, in bytes as [policypb.Cost] counts them, without taking
// room for more than one: flows with a few dozen labels do.
const entryCost = 8 << 10

// pool bounds what entries that cost more than entryCost may cost together, of all requests. It is
// safe for concurrent use.
type pool struct {
	held atomic.Int64
	most int64
}

// take takes some of the pool, if there is as much.
func (p *pool) take(n int64) bool {
	if p.held.Add(n) <= p.most {
		return true
	}
	p.held.Add(-n)
	return false
}

func (p *pool) give(n int64) { p.held.Add(-n) }

// source is what one node sends for one request. But for the channel its fields are guarded by the
// merge.
type source struct {
	node  string
	count int           // of entries that came after the end; it belongs to who puts them
	room  chan struct{} // holds a token for each entryCost of each entry of queue
	queue []item        // by key
	at    int           // in the heap, if queue is not empty
	// catching means that the node still sends flows from before the request, which must be merged
	// with those of others.
	catching bool
	ended    bool
	err      error // why it ended; nil if it sent everything
	end      context.CancelFunc
	// last is the time of its latest flow that was sent on. It belongs to who takes entries.
	last time.Time
}

// clockStep is by how much a flow is earlier than the one before it if the node's clock was set
// back: what its processors record is less out of order.
const clockStep = time.Second

// latest notes the time of a flow that was sent on. Once the clock was set back, the node goes on
// from there: to ask for what is later than before would miss all until the clock is there again.
func (s *source) latest(at time.Time) {
	if at.After(s.last) || s.last.Sub(at) > clockStep {
		s.last = at
	}
}

// merge merges the streams of nodes into one, in the order of time. Each node's stream is nearly
// sorted by itself; so the earliest of all heads is the next one, if every node has one.
//
// There are two waits for a node without a head. While it sends the past, it has timeout to
// continue; then the merge gives it up. After that, or when a client follows from now on, it may
// have nothing to send, and the flows of all nodes are held until they are as old as hold, or while
// there is room.
type merge struct {
	mu      sync.Mutex
	heads   sources
	woken   chan struct{}
	live    int // sources that have not ended
	idle    int // of those, the ones without a head
	waiting int // of those, the ones that are catching up
	held    int // entries of all queues
	// over are sources of which everything was taken, and that ended has not returned yet.
	over []*source
	// stuck is since when the merge waits for nodes that send the past, if it does, and allowed how
	// much longer it may: timeout, less what it took already. Each entry adds earned, so that a
	// node that sends a little from time to time does not block the others for ever.
	stuck   time.Time
	allowed time.Duration

	start         time.Time
	end           time.Time // up to when there are entries; zero if it is not bounded
	past          int       // how many a node may send after the end
	follow        bool
	timeout, hold time.Duration
	size          int // how many entries are held, if nodes are fewer; less of those that cost more
	pool          *pool
	// lost makes the entry in place of one for which the pool has no room.
	lost func(node string, at *timestamppb.Timestamp) entry
}

func newMerge(follow bool, start time.Time, timeout, hold time.Duration, size int, p *pool, lost func(string, *timestamppb.Timestamp) entry) *merge {
	return &merge{
		woken: make(chan struct{}, 1), follow: follow, start: start, timeout: timeout, allowed: timeout, hold: hold, size: size, pool: p, lost: lost,
	}
}

func (m *merge) wake() {
	retry.Notify(m.woken)
}

// add makes a source for a node, one of so many. catching is for one that sends the past.
func (m *merge) add(node string, of int, catching bool, end context.CancelFunc) *source {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &source{node: node, room: make(chan struct{}, max(2, m.size/max(of, 1))), catching: catching, end: end}
	m.live++
	m.idle++
	if catching {
		m.waiting++
	}
	return s
}

// maxPast is how many entries a node may send after the end: as many as it keeps, however slowly
// they are taken, and what it says about those that it does not.
const maxPast = 2 * flows.MaxKept

// put adds what a node sent. It waits for room, and fails if ctx ends before there is some. What is
// large waits until there is room for all of it, or until nothing else of its node is held; if all
// requests together hold too much of what is large, it is reported as lost: to wait for others
// would be to hold it, too.
func (m *merge) put(ctx context.Context, s *source, res entry) error {
	if !m.end.IsZero() && time.Now().After(m.end) {
		if s.count++; s.count > m.past {
			return errEndless
		}
	}
	cost, pooled := int64(policypb.Cost(res)), int64(0)
	if cost > entryCost {
		if m.pool.take(cost) {
			pooled = cost
		} else {
			res, cost = m.lost(s.node, res.GetTime()), 0
		}
	}
	it := item{res: res, tokens: int(min(1+(cost-1)/entryCost, int64(cap(s.room)))), pooled: pooled}
	it.tokens = max(it.tokens, 1)
	for range it.tokens {
		select {
		case s.room <- struct{}{}:
		case <-ctx.Done():
			m.pool.give(pooled)
			return ctx.Err()
		}
	}
	now := time.Now()
	it.key = now
	if t := res.GetTime(); t.IsValid() && t.AsTime().Before(now) {
		it.key = t.AsTime()
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if s.ended { // given up meanwhile
		m.release(s, it)
		return context.Canceled
	}
	if oldest := now.Add(-m.hold); m.follow && (!s.catching || now.Sub(m.start) > catchUp) && it.key.Before(oldest) {
		it.key = oldest
	}
	// What several processors of a node saw is not in order to the microsecond.
	i := len(s.queue)
	for i > 0 && it.key.Before(s.queue[i-1].key) {
		i--
	}
	s.queue = slices.Insert(s.queue, i, it)
	m.held++
	if len(s.queue) == 1 {
		m.idle--
		if s.catching {
			m.waiting--
		}
		heap.Push(&m.heads, s)
	} else if i == 0 {
		heap.Fix(&m.heads, s.at)
	}
	if s.catching && m.follow && !it.key.Before(m.start) {
		s.catching = false // it has a head, so it is not waited for
	}
	m.wake()
	return nil
}

// release gives back the room that an entry took. The lock is held.
func (m *merge) release(s *source, it item) {
	for range it.tokens {
		<-s.room
	}
	m.pool.give(it.pooled)
}

// free gives back what is still held of the pool. Nothing may be put or taken afterwards.
func (m *merge) free() {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, s := range m.heads {
		for _, it := range s.queue {
			m.pool.give(it.pooled)
		}
	}
	m.heads = nil
}

// finish records that a node sends nothing more.
func (m *merge) finish(s *source, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.close(s, err)
	m.wake()
}

// close ends a source; what it has sent stays. The lock is held.
func (m *merge) close(s *source, err error) {
	if s.ended {
		return
	}
	s.ended, s.err = true, err
	s.end()
	m.live--
	if len(s.queue) == 0 {
		m.idle--
		if s.catching {
			m.waiting--
		}
		m.over = append(m.over, s)
	}
}

// ended returns the sources that have ended, and of which everything was taken, since the last
// call.
func (m *merge) ended() []*source {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.over
	m.over = nil
	return out
}

// next is what there is to do now: an entry to send; or caughtUp, if nothing of the past is to come
// any more; or done, if nothing at all is; or to wait, until something wakes, or for wait if that
// is not 0. late has nodes that were given up for being silent.
type next struct {
	item           *item
	source         *source
	caughtUp, done bool
	wait           time.Duration
}

// next returns what is next at a time. all are the sources, of which those may be given up that are
// waited for.
func (m *merge) next(now time.Time, all func(func(*source))) next {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.waiting > 0 {
		// The merge has waited for these since the last entry was taken, or longer.
		if m.stuck.IsZero() {
			m.stuck = now
		}
		if left := m.stuck.Add(m.allowed).Sub(now); left > 0 {
			return next{wait: left}
		}
		all(func(s *source) {
			if s.catching && !s.ended && len(s.queue) == 0 {
				if m.follow {
					s.catching = false
					m.waiting--
				} else {
					m.close(s, errSilent)
				}
			}
		})
	}
	if !m.stuck.IsZero() {
		m.allowed, m.stuck = max(0, m.allowed-now.Sub(m.stuck)), time.Time{}
	}
	if len(m.heads) == 0 {
		if m.live == 0 {
			return next{caughtUp: true, done: true}
		}
		return next{caughtUp: true}
	}
	s := m.heads[0]
	it := s.queue[0]
	if m.idle > 0 && len(s.room) < cap(s.room) && m.held < m.size {
		if left := it.key.Add(m.hold).Sub(now); m.follow && left > 0 {
			// No node that sends the past is waited for, but some may still have flows.
			return next{wait: left}
		}
	}
	m.allowed = min(m.timeout, m.allowed+earned)
	s.queue[0] = item{}
	s.queue = s.queue[1:]
	m.release(s, it)
	m.held--
	if len(s.queue) > 0 {
		heap.Fix(&m.heads, 0)
	} else {
		s.queue = nil
		heap.Pop(&m.heads)
		switch {
		case s.ended:
			m.over = append(m.over, s)
		case s.catching:
			m.waiting++
			fallthrough
		default:
			m.idle++
		}
	}
	return next{item: &it, source: s}
}

// earned is for how long nodes may be waited for, for each entry that there was.
const earned = time.Millisecond

// sources is a heap of those that have a head, by its time.
type sources []*source

func (h sources) Len() int { return len(h) }
func (h sources) Less(i, j int) bool {
	a, b := h[i].queue[0].key, h[j].queue[0].key
	if a.Equal(b) {
		return h[i].node < h[j].node
	}
	return a.Before(b)
}

func (h sources) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].at, h[j].at = i, j
}

func (h *sources) Push(x any) {
	s := x.(*source)
	s.at = len(*h)
	*h = append(*h, s)
}

func (h *sources) Pop() any {
	old := *h
	s := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return s
}
