package etcd

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/retry"
)

// history notices that the store went back in time: it was restored from a backup, or another
// cluster answers at its address. A watch would then wait for revisions that are years away, or go
// on where others' writes have taken the place of those that it has delivered, so all watches must
// list again.
//
// All our reads and writes are linearizable: an answer never shows an older revision than one that
// was known before its request was sent. A store that was restored from a backup may have reached
// that revision again before this client reconnects. So after each reconnect the client checks that
// the newest known change is at its revision: see [Client.verify].
type history struct {
	mu       sync.Mutex
	revision int64
	cluster  uint64
	breaks   int64
	newest   change
	// later is the newest change that was seen while the store was in doubt: it may come from the
	// connection that broke, so it is asked for as well.
	later change
	// doubts counts the connections that were made. As long as it is not trusted, newest stays as
	// it is.
	doubts, trusted int64
}

// change is a change of a key that was seen at a revision, or none if that is 0.
type change struct {
	key      string
	revision int64
	deleted  bool
	value    string // that was put
}

// remember keeps a change if it is the newest.
func (h *history) remember(ch change) {
	h.mu.Lock()
	defer h.mu.Unlock()
	last := &h.newest
	if h.doubts != h.trusted {
		last = &h.later
	}
	if ch.revision > last.revision {
		*last = ch
	}
}

// doubt is called when a connection was made.
func (h *history) doubt() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.doubts++
}

// doubted returns the change to ask for, if the store may have gone back, and what to give
// [history.resolve].
func (h *history) doubted() (newest change, doubts int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.newest, h.doubts, h.doubts != h.trusted
}

// resolve records whether the store still had the change after so many doubts. It is trusted when
// it has what was seen since, too.
func (h *history) resolve(doubts int64, same bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !same:
		h.breaks++
		h.revision, h.newest = 0, change{}
	case h.later.revision > h.newest.revision:
		h.newest, h.later = h.later, change{}
		return
	}
	h.later, h.trusted = change{}, doubts
}

// seen returns the newest revision known; take it before sending a request.
func (h *history) seen() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.revision
}

// age counts the times that history was broken.
func (h *history) age() int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.breaks
}

// note records an answer to a request sent when before was the newest revision, and reports whether
// history broke.
func (h *history) note(before int64, cluster uint64, revision int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	broke := revision < before || h.cluster != 0 && cluster != h.cluster
	h.cluster = cluster
	if broke {
		h.breaks++
		h.revision, h.newest, h.later = revision, change{}, change{}
		return true
	}
	h.revision = max(h.revision, revision)
	return false
}

// observe looks at the header of an answer.
func (c *Client) observe(before int64, header *pb.ResponseHeader) {
	if header == nil || !c.history.note(before, header.ClusterId, header.Revision) {
		return
	}
	c.log.Warn("etcd went back in time: it was restored or replaced, everything is listed again", "was", before, "is", header.Revision)
	c.conn.BreakWatches()
}

// verifyLoop looks after each new connection whether the store is still the same, until the client
// is closed.
func (c *Client) verifyLoop() {
	for {
		select {
		case <-c.doubts:
		case <-c.conn.Context().Done():
			return
		}
		// A store that changes constantly is checked repeatedly, so at growing intervals.
		for asked := 0; ; asked++ {
			newest, doubts, ok := c.history.doubted()
			if !ok {
				break
			}
			if asked > 0 && !retry.Sleep(c.conn.Context(), retryPause(asked-1, 5*time.Second)) {
				return
			}
			same, err := c.verify(newest)
			if err != nil {
				continue
			}
			c.history.resolve(doubts, same)
			if !same {
				c.log.Warn("etcd went back in time: it was restored or replaced, everything is listed again", "lost", newest.key, "revision", newest.revision)
				c.conn.BreakWatches()
			}
		}
	}
}

// verify reports whether the store has a change at its revision. One that was compacted counts as
// lost: no watch could continue from there either.
func (c *Client) verify(ch change) (same bool, err error) {
	if ch.revision == 0 {
		return true, nil // nothing is known that could be lost
	}
	ctx, cancel := context.WithTimeout(c.conn.Context(), c.cfg.CheckTimeout)
	defer cancel()
	done, err := c.begin(ctx)
	if err != nil {
		return false, err
	}
	defer done()
	read := []clientv3.Op{clientv3.OpGet(ch.key, clientv3.WithRev(ch.revision))}
	if ch.deleted {
		read = append(read, clientv3.OpGet(ch.key, clientv3.WithRev(ch.revision-1)))
	}
	resp, err := c.etcd.Txn(clientv3.WithRequireLeader(ctx)).Then(read...).Commit()
	if errors.Is(err, rpctypes.ErrFutureRev) || errors.Is(err, rpctypes.ErrCompacted) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	if len(resp.Responses) != len(read) {
		return false, fmt.Errorf("etcd answers %d reads with %d results", len(read), len(resp.Responses))
	}
	at := resp.Responses[0].GetResponseRange().GetKvs()
	if ch.deleted {
		return len(at) == 0 && len(resp.Responses[1].GetResponseRange().GetKvs()) == 1, nil
	}
	return len(at) == 1 && at[0].ModRevision == ch.revision && string(at[0].Value) == ch.value, nil
}
