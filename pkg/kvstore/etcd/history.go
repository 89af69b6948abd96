package etcd

import (
	"sync"

	pb "go.etcd.io/etcd/api/v3/etcdserverpb"
)

// history notices that the store went back in time: it was restored from a backup, or another cluster answers at its address. A watch would then wait for
// revisions that are years away, so all watches must list again.
//
// All our reads and writes are linearizable: an answer never shows an older revision than one that was known before its request was sent.
type history struct {
	mu       sync.Mutex
	revision int64
	cluster  uint64
	breaks   int64
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

// note books an answer to a request sent when before was the newest revision, and says whether history broke.
func (h *history) note(before int64, cluster uint64, revision int64) bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	broke := revision < before || h.cluster != 0 && cluster != h.cluster
	h.cluster = cluster
	if broke {
		h.breaks++
		h.revision = revision
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
	c.breakWatches()
}

// breakWatches makes every watch open a new stream.
func (c *Client) breakWatches() {
	c.mu.Lock()
	defer c.mu.Unlock()
	close(c.broken)
	c.broken = make(chan struct{})
}
