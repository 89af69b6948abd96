package operator

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/hawser-net/hawser/internal/operator/election"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// leaderKey is the key of the leader in the key-value store. Only writes of its last writer
// succeed.
const leaderKey = "cilium/.operator-leader"

// fencedStore is the key-value store as a leader writes it. What it writes takes effect only while
// no other operator has begun to lead: a process that was stopped for a while, and goes on before
// it finds out, changes nothing that the next leader has written. The one exception are
// transactions that write if their conditions do not hold; for these the clock alone decides, as
// for the API server.
//
// It takes the place of the leader with its first write, so that an unreachable store does not
// prevent an election. Its methods are safe for concurrent use.
type fencedStore struct {
	kvstore.Backend
	// held returns an error if the lease is not surely this operator's.
	held func() error
	name string
	// lost is called when another operator has begun to lead: this one must end, and stand again.
	lost func()

	mu       sync.Mutex
	revision int64 // at which leaderKey was written; 0 before
}

// Txn implements [kvstore.Backend]. The error wraps [election.ErrLost] if another operator leads.
func (s *fencedStore) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	if !writes(txn.Then) && !writes(txn.Else) {
		return s.Backend.Txn(ctx, txn)
	}
	if err := s.held(); err != nil {
		return kvstore.TxnResult{}, err
	}
	if writes(txn.Else) {
		return s.Backend.Txn(ctx, txn)
	}
	then, ifs, otherwise := txn.Then, slices.Clip(txn.If), slices.Clip(txn.Else)
	for again := false; ; again = true {
		revision, err := s.acquire(ctx)
		if err != nil {
			return kvstore.TxnResult{}, err
		}
		r, err := s.Backend.Txn(ctx, kvstore.Txn{
			If: append(ifs, kvstore.ModRevisionIs(leaderKey, revision)), Then: then, Else: append(otherwise, kvstore.GetOp(leaderKey)),
		})
		if err != nil || r.Succeeded {
			return r, err
		}
		last := len(r.Results) - 1
		leader := r.Results[last]
		switch {
		case len(leader) == 1 && leader[0].ModRevision == revision:
			r.Results = r.Results[:last]
			return r, nil
		case !again && (len(leader) == 0 || leader[0].ModRevision < revision || string(leader[0].Value) == s.name):
			// The store has lost the key, was restored from a backup, or a write of this operator
			// came late: there is no other leader.
			s.release(revision)
		default:
			s.lost()
			return kvstore.TxnResult{}, fmt.Errorf("%w: %s has been written by another operator", election.ErrLost, leaderKey)
		}
	}
}

// release has the next write make this operator the one whose writes count again.
func (s *fencedStore) release(revision int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revision == revision {
		s.revision = 0
	}
}

// acquire makes this operator the one whose writes count, the first time, and returns at which
// revision it did.
func (s *fencedStore) acquire(ctx context.Context) (int64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.revision != 0 {
		return s.revision, nil
	}
	r, err := s.Backend.Txn(ctx, kvstore.Txn{Then: []kvstore.Op{kvstore.PutOp(leaderKey, []byte(s.name), kvstore.Permanent)}})
	if err != nil {
		return 0, fmt.Errorf("record in the key-value store that this operator leads: %w", err)
	}
	if err := s.held(); err != nil { // it may have been stopped before that write
		return 0, err
	}
	s.revision = r.Revision
	return s.revision, nil
}

func writes(ops []kvstore.Op) bool {
	return slices.ContainsFunc(ops, func(o kvstore.Op) bool { return o.Kind != kvstore.OpGet && o.Kind != kvstore.OpList })
}
