package consul

import (
	"context"
	"errors"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/internal/leases"
	"github.com/hawser-net/hawser/pkg/retry"
)

// MaxOps is how many operations Consul takes in one transaction.
const MaxOps = 128

// guards is how many guard keys there are. Folders share them; sharing costs an occasional retry.
const guards = 4096

// maxTries bounds the attempts of a transaction while others keep changing what it reads.
const maxTries = 100

// guardOf returns the guard of a folder, which ends with a slash or is empty.
func guardOf(folder string) string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(folder)) // it cannot fail
	return fmt.Sprintf("%s%d", GuardPrefix, h.Sum32()%guards)
}

// folder returns the folder that a prefix is in: up to its last slash.
func folder(prefix string) string { return prefix[:strings.LastIndexByte(prefix, '/')+1] }

// snapshot is the part of the store that a transaction looks at, at one index.
type snapshot struct {
	pairs map[string]*api.KVPair
	index uint64
}

func (s snapshot) under(prefix string) []kvstore.KeyValue {
	var out []kvstore.KeyValue
	for key, p := range s.pairs {
		if strings.HasPrefix(key, prefix) {
			out = append(out, pair(p))
		}
	}
	slices.SortFunc(out, func(a, b kvstore.KeyValue) int { return strings.Compare(a.Key, b.Key) })
	return out
}

func (s snapshot) holds(cond kvstore.Cond) bool {
	p := s.pairs[cond.Key]
	switch cond.Kind {
	case kvstore.CondAbsent:
		return p == nil
	case kvstore.CondExists:
		return p != nil
	case kvstore.CondUnleased:
		return p == nil || p.Session == ""
	case kvstore.CondValueIs:
		return p != nil && string(p.Value) == string(cond.Value)
	case kvstore.CondModRevisionIs:
		return p != nil && int64(p.ModifyIndex) == cond.Revision
	case kvstore.CondCreateRevisionIs:
		return p != nil && int64(p.CreateIndex) == cond.Revision
	}
	for _, kv := range s.under(cond.Key) {
		if cond.Kind == kvstore.CondPrefixValuesAre && string(kv.Value) != string(cond.Value) ||
			cond.Kind == kvstore.CondPrefixUnchangedSince && kv.ModRevision > cond.Revision {
			return false
		}
	}
	return true
}

func ofPrefix(cond kvstore.Cond) bool {
	return cond.Kind == kvstore.CondPrefixValuesAre || cond.Kind == kvstore.CondPrefixUnchangedSince
}

// ops collects operations, each once.
type ops struct {
	list api.TxnOps
	seen map[string]bool
}

func (o *ops) add(verb api.KVOp, op api.KVTxnOp) {
	op.Verb = verb
	id := string(verb) + " " + op.Key
	if o.seen == nil {
		o.seen = make(map[string]bool)
	}
	if !o.seen[id] {
		o.seen[id] = true
		o.list = append(o.list, &api.TxnOp{KV: &op})
	}
}

// tree reads what is under a prefix, and its guard. The prefix is read as a key, too, which says
// whether the token may read there, see snapshot.
func (o *ops) tree(prefix string) {
	o.add(api.KVGetTree, api.KVTxnOp{Key: prefix})
	o.add(api.KVGetOrEmpty, api.KVTxnOp{Key: prefix})
	o.add(api.KVGetOrEmpty, api.KVTxnOp{Key: guardOf(folder(prefix))})
}

// still makes the transaction fail if a key is not as it was read.
func (o *ops) still(s snapshot, key string) {
	if p := s.pairs[key]; p != nil {
		o.add(api.KVCheckIndex, api.KVTxnOp{Key: key, Index: p.ModifyIndex})
	} else {
		o.add(api.KVCheckNotExists, api.KVTxnOp{Key: key})
	}
}

func (o *ops) check() error {
	if len(o.list) > MaxOps {
		return fmt.Errorf("%w: it takes %d operations of Consul, which allows %d", kvstore.ErrTxnTooLarge, len(o.list), MaxOps)
	}
	return nil
}

// tooLarge reports whether Consul refused a transaction for its bytes (limits.txn_max_req_len). Of
// its answer the library hands on the text only.
func tooLarge(err error) bool {
	return err != nil && strings.Contains(err.Error(), "Request body(") && strings.Contains(err.Error(), "too large")
}

// meaning wraps Consul's error with what it means to users of package kvstore.
func meaning(err error) error {
	if tooLarge(err) {
		return fmt.Errorf("%w (%w)", kvstore.ErrTxnTooLarge, err)
	}
	return err
}

// Txn implements [kvstore.Backend].
func (c *Client) Txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	if err := txn.Validate(); err != nil {
		return kvstore.TxnResult{}, err
	}
	first := ""
	if len(txn.Then) > 0 {
		first = txn.Then[0].Key
	} else if len(txn.If) > 0 {
		first = txn.If[0].Key
	}
	r, err := c.txn(ctx, txn)
	return r, c.conn.Fault(ctx, "transaction on", first, err)
}

func (c *Client) txn(ctx context.Context, txn kvstore.Txn) (kvstore.TxnResult, error) {
	var last error
	for try := range maxTries {
		if try > 0 && !retry.Sleep(ctx, retryPause(try, 250*time.Millisecond)) {
			return kvstore.TxnResult{}, ctx.Err()
		}
		snap, err := c.snapshot(ctx, txn)
		if err != nil {
			return kvstore.TxnResult{}, err
		}
		res := kvstore.TxnResult{Succeeded: true, Revision: int64(snap.index)}
		branch := txn.Then
		for _, cond := range txn.If {
			if !snap.holds(cond) {
				res.Succeeded, branch = false, txn.Else
				break
			}
		}
		writes := false
		res.Results = make([][]kvstore.KeyValue, len(branch))
		for i, op := range branch {
			switch op.Kind {
			case kvstore.OpGet:
				if p := snap.pairs[op.Key]; p != nil {
					res.Results[i] = []kvstore.KeyValue{pair(p)}
				}
			case kvstore.OpList:
				res.Results[i] = snap.under(op.Key)
			default:
				writes = true
			}
		}
		if !writes {
			return res, nil
		}
		index, stale, err := c.write(ctx, txn.If, branch, snap)
		if err != nil {
			return kvstore.TxnResult{}, err
		}
		if stale == nil {
			res.Revision = int64(index)
			return res, nil
		}
		last = stale
	}
	return kvstore.TxnResult{}, fmt.Errorf("others changed the same keys %d times in a row, at last: %w", maxTries, last)
}

// snapshot reads everything that a transaction may look at.
func (c *Client) snapshot(ctx context.Context, txn kvstore.Txn) (snapshot, error) {
	var o ops
	for _, cond := range txn.If {
		if ofPrefix(cond) {
			o.tree(cond.Key)
		} else {
			o.add(api.KVGetOrEmpty, api.KVTxnOp{Key: cond.Key})
		}
	}
	for _, branch := range [][]kvstore.Op{txn.Then, txn.Else} {
		for _, op := range branch {
			switch op.Kind {
			case kvstore.OpGet, kvstore.OpPut:
				o.add(api.KVGetOrEmpty, api.KVTxnOp{Key: op.Key})
			case kvstore.OpList:
				o.tree(op.Key)
			}
		}
	}
	if len(o.list) == 0 { // deletions only
		return snapshot{}, nil
	}
	if err := o.check(); err != nil {
		return snapshot{}, err
	}
	both, done, err := c.conn.Begin(ctx)
	if err != nil {
		return snapshot{}, err
	}
	defer done()
	ok, resp, meta, err := c.consul.Txn().Txn(o.list, consistent(both))
	if err != nil {
		return snapshot{}, meaning(err)
	}
	if !ok {
		return snapshot{}, errors.Join(refusal(resp))
	}
	s := snapshot{pairs: make(map[string]*api.KVPair, len(resp.Results)), index: meta.LastIndex}
	seen := make(map[string]bool, len(resp.Results))
	for _, r := range resp.Results {
		if r.KV == nil {
			continue
		}
		seen[r.KV.Key] = true
		if r.KV.ModifyIndex != 0 {
			s.pairs[r.KV.Key] = r.KV
			s.index = max(s.index, r.KV.ModifyIndex)
		}
	}
	// Of a transaction Consul does not say that it has left keys out. But there is an answer for
	// each key that was asked for by its name, whether or not it exists.
	for _, op := range o.list {
		if op.KV.Verb == api.KVGetOrEmpty && !seen[op.KV.Key] {
			return snapshot{}, errHidden
		}
	}
	return s, nil
}

// refusal returns why Consul refuses a transaction: stale if all it has against it is that what was
// read has changed, that a session is gone, or that a key may not be locked yet; else err.
func refusal(resp *api.TxnResponse) (stale, err error) {
	err = errors.New("consul gives no reason for refusing the transaction")
	for i, e := range resp.Errors {
		what := errors.New(e.What)
		switch {
		case strings.HasPrefix(e.What, "Permission denied"):
			return nil, fmt.Errorf("%w; the token's policy must allow what is written, and writing below %s", what, GuardPrefix)
		case !isStale(e.What):
			return nil, what
		case i == 0:
			stale, err = what, nil
		}
	}
	return stale, err
}

// isStale knows a refusal by how Consul begins it, as the rest has the key.
func isStale(what string) bool {
	return strings.HasPrefix(what, "key ") && strings.HasSuffix(what, " exists") || // check-not-exists
		slices.ContainsFunc([]string{
			"failed to check index, key ", "failed index check for key ", // check-index
			"failed to set key ",    // cas: the index is stale
			"failed to lock key ",   // another session has it, or the lock delay is not over
			"failed to unlock key ", // the session does not have it any more
			invalidSession,
		}, func(begin string) bool { return strings.HasPrefix(what, begin) })
}

const invalidSession = "invalid session "

// write runs the writes of a branch if what was read still stands, else stale is what does not.
func (c *Client) write(ctx context.Context, conds []kvstore.Cond, branch []kvstore.Op, snap snapshot) (index uint64, stale, err error) {
	var o ops
	for _, cond := range conds {
		if ofPrefix(cond) {
			// The guard catches what was written, check-index what was deleted and does not matter:
			// so the guard is all.
			o.still(snap, guardOf(folder(cond.Key)))
		} else {
			o.still(snap, cond.Key)
		}
	}
	var leased []string
	for _, op := range branch {
		switch op.Kind {
		case kvstore.OpGet:
			o.still(snap, op.Key)
		case kvstore.OpList:
			o.still(snap, guardOf(folder(op.Key)))
			for _, kv := range snap.under(op.Key) {
				o.still(snap, kv.Key)
			}
		case kvstore.OpPut:
			if op.Lifetime == kvstore.Leased {
				leased = append(leased, op.Key)
			}
		}
	}
	held, err := c.reserve(ctx, leased)
	if err != nil {
		return 0, nil, err
	}
	touched := make(map[string]bool)
	for _, op := range branch {
		have := snap.pairs[op.Key]
		put := api.KVTxnOp{Key: op.Key, Value: op.Value, Flags: rand.Uint64()} // without a change in something Consul does not count it as a write
		switch {
		case op.Kind == kvstore.OpDelete:
			o.add(api.KVDelete, api.KVTxnOp{Key: op.Key})
		case op.Kind == kvstore.OpDeletePrefix:
			o.add(api.KVDeleteTree, api.KVTxnOp{Key: op.Key})
		case op.Kind != kvstore.OpPut:
			continue
		case op.Lifetime == kvstore.Leased:
			put.Session = held.ID(op.Key)
			if have != nil && have.Session != "" && have.Session != put.Session {
				o.add(api.KVUnlock, api.KVTxnOp{Key: op.Key, Value: op.Value, Session: have.Session})
			}
			o.add(api.KVLock, put)
		case have != nil && have.Session != "":
			o.add(api.KVUnlock, api.KVTxnOp{Key: op.Key, Value: op.Value, Session: have.Session})
			o.add(api.KVSet, put)
		default:
			if have != nil {
				put.Index = have.ModifyIndex
			}
			o.add(api.KVCAS, put)
		}
		for f := folder(op.Key); ; f = folder(strings.TrimSuffix(f, "/")) {
			touched[guardOf(f)] = true
			if f == "" {
				break
			}
		}
	}
	for guard := range touched {
		o.add(api.KVSet, api.KVTxnOp{Key: guard, Flags: rand.Uint64()})
	}
	if err := o.check(); err != nil {
		c.leases.Finish(held, nil, leases.NotSent)
		return 0, nil, err
	}
	both, done, err := c.conn.Begin(ctx)
	if err != nil {
		c.leases.Finish(held, nil, leases.NotSent)
		return 0, nil, err
	}
	defer done()
	ok, resp, _, err := c.consul.Txn().Txn(o.list, consistent(both))
	switch {
	case tooLarge(err):
		c.leases.Finish(held, nil, leases.NotSent)
		return 0, nil, meaning(err)
	case err != nil:
		c.observers.Notify(c.conn, c.leases.Finish(held, nil, leases.Unknown))
		return 0, nil, c.conn.Sent(err)
	case !ok:
		c.leases.Finish(held, nil, leases.NotSent)
		stale, err := refusal(resp)
		if slices.ContainsFunc(resp.Errors, func(e *api.TxnError) bool { return strings.HasPrefix(e.What, invalidSession) }) {
			c.dropLost(ctx, held)
		}
		return 0, stale, err
	}
	c.observers.Notify(c.conn, c.leases.Finish(held, branch, leases.Done))
	for _, r := range resp.Results {
		if r.KV != nil {
			index = max(index, r.KV.ModifyIndex)
		}
	}
	return index, nil, nil
}
