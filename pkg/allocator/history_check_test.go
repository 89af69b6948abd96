package allocator_test

import (
	"context"
	"fmt"
	"hash/maphash"
	"sort"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"
	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/allocator"
)

// maxNodes bounds the nodes of one history.
const maxNodes = 64

// opKind is a kind of operation in a history.
type opKind uint8

const (
	opAllocate opKind = iota
	opRelease
	opLookup
	// opLose: the references of a node, or of all, may have gone from the store: its lease ended,
	// or the store went back in time. The node has not observed it. What it says about the keys it
	// holds binds no one until it has released them all.
	opLose
	// opCrash: a node ended. It holds nothing afterwards.
	opCrash
)

// op is what was asked; the answer of the store is an allocator.ID.
type op struct {
	kind opKind
	key  string // empty: all keys
	node int    // -1: all nodes
}

// keyState is what the promises say about one key: who holds it, and under which ID.
type keyState struct {
	id    allocator.ID // of the holders that are certain
	held  [maxNodes]uint8
	vague uint64 // nodes whose references may have been lost
}

// certain reports whether a node holds the key for certain.
func (s *keyState) certain() bool {
	for n, c := range s.held {
		if c > 0 && s.vague&(1<<n) == 0 {
			return true
		}
	}
	return false
}

// keyModel is the sequential specification of one key: while it is held for certain, it has one
// ID.
func keyModel() porcupine.Model {
	seed := maphash.MakeSeed()
	return porcupine.Model{
		Init: func() any { return keyState{} },
		Step: func(state, input, output any) (bool, any) {
			s, in := state.(keyState), input.(op)
			id, _ := output.(allocator.ID)
			switch in.kind {
			case opAllocate:
				bit := uint64(1) << in.node
				switch {
				case s.held[in.node] > 0 && s.vague&bit != 0:
				case s.certain() && s.id != id:
					return false, nil
				default:
					s.id = id
				}
				s.held[in.node]++
			case opRelease:
				if s.held[in.node] == 0 {
					return false, nil
				}
				if s.held[in.node]--; s.held[in.node] == 0 {
					s.vague &^= 1 << in.node
				}
			case opLookup:
				if s.certain() && s.vague == 0 && s.id != id {
					return false, nil
				}
				return true, s
			case opLose, opCrash:
				for n := range s.held {
					if in.node >= 0 && n != in.node {
						continue
					}
					if in.kind == opCrash {
						s.held[n] = 0
						s.vague &^= 1 << n
					} else if s.held[n] > 0 {
						s.vague |= 1 << n
					}
				}
			}
			if !s.certain() {
				s.id = allocator.NoID
			}
			return true, s
		},
		Equal: func(a, b any) bool { return a.(keyState) == b.(keyState) },
		Hash:  func(s any) uint64 { return maphash.Comparable(seed, s.(keyState)) },
		DescribeOperation: func(input, output any) string {
			in := input.(op)
			return fmt.Sprintf("%s(node %d, %s) -> %v", [...]string{"allocate", "release", "lookup", "lose", "crash"}[in.kind], in.node, in.key, output)
		},
	}
}

// history collects the operations of a run.
type history struct {
	start time.Time
	mu    sync.Mutex
	ops   []porcupine.Operation
}

func (h *history) now() int64 { return int64(time.Since(h.start)) }

func (h *history) add(client int, in op, call, ret int64, out allocator.ID) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ops = append(h.ops, porcupine.Operation{ClientId: client, Input: in, Call: call, Output: out, Return: ret})
}

// byKey splits the history; what concerns all keys goes into each part.
func (h *history) byKey(keys []string) map[string][]porcupine.Operation {
	parts := make(map[string][]porcupine.Operation)
	for _, o := range h.ops {
		if k := o.Input.(op).key; k != "" {
			parts[k] = append(parts[k], o)
			continue
		}
		for _, k := range keys {
			parts[k] = append(parts[k], o)
		}
	}
	return parts
}

// checkKeys checks each key's history for linearizability.
func (h *history) checkKeys(keys []string) (faults []string) {
	model := keyModel()
	for key, ops := range h.byKey(keys) {
		switch porcupine.CheckOperationsTimeout(model, ops, time.Minute) {
		case porcupine.Illegal:
			faults = append(faults, fmt.Sprintf("the history of key %q is not linearizable:\n%s", key, describe(model, ops)))
		case porcupine.Unknown:
			faults = append(faults, fmt.Sprintf("the history of key %q, %d operations, was not checked within a minute", key, len(ops)))
		}
	}
	return faults
}

func describe(model porcupine.Model, ops []porcupine.Operation) string {
	sort.Slice(ops, func(i, j int) bool { return ops[i].Call < ops[j].Call })
	var b strings.Builder
	for i, o := range ops {
		if i == 400 {
			b.WriteString("...\n")
			break
		}
		fmt.Fprintf(&b, "%10.3fms %10.3fms client %3d %s\n", float64(o.Call)/1e6, float64(o.Return)/1e6, o.ClientId, model.DescribeOperation(o.Input, o.Output))
	}
	return b.String()
}

// checkIDs checks that no ID was held for certain for two keys at once: from the answer to
// an Allocate until the last Release of that key on that node is called, or until the reference may
// have been lost.
func (h *history) checkIDs() (faults []string) {
	type hold struct {
		id       allocator.ID
		count    int
		from     int64
		doubtful bool
	}
	type span struct {
		key      string
		from, to int64
	}
	ops := append([]porcupine.Operation(nil), h.ops...)
	at := func(o porcupine.Operation) int64 { // when an operation begins or ends a hold for certain
		if o.Input.(op).kind == opAllocate {
			return o.Return
		}
		return o.Call
	}
	sort.SliceStable(ops, func(i, j int) bool { return at(ops[i]) < at(ops[j]) })
	holds := make(map[op]*hold) // by key and node
	spans := make(map[allocator.ID][]span)
	end := func(k op, hd *hold, to int64) {
		if !hd.doubtful && to > hd.from {
			spans[hd.id] = append(spans[hd.id], span{k.key, hd.from, to})
		}
	}
	// An Allocate that was under way while the reference was lost holds nothing for certain.
	disturbed := func(o porcupine.Operation) bool {
		for _, l := range h.ops {
			in := l.Input.(op)
			if in.kind == opLose && (in.node < 0 || in.node == o.Input.(op).node) && l.Call <= o.Return && l.Return >= o.Call {
				return true
			}
		}
		return false
	}
	for _, o := range ops {
		in := o.Input.(op)
		k := op{key: in.key, node: in.node}
		switch in.kind {
		case opAllocate:
			if holds[k] == nil {
				holds[k] = &hold{id: o.Output.(allocator.ID), from: o.Return, doubtful: disturbed(o)}
			}
			holds[k].count++
		case opRelease:
			if hd := holds[k]; hd != nil {
				if hd.count--; hd.count == 0 {
					end(k, hd, o.Call)
					delete(holds, k)
				}
			}
		case opLose, opCrash:
			for k, hd := range holds {
				if in.node < 0 || in.node == k.node {
					end(k, hd, o.Call)
					hd.doubtful = true
					if in.kind == opCrash {
						delete(holds, k)
					}
				}
			}
		}
	}
	for k, hd := range holds {
		end(k, hd, h.now())
	}
	for id, list := range spans {
		sort.Slice(list, func(i, j int) bool { return list[i].from < list[j].from })
		for i, s := range list {
			for _, other := range list[i+1:] {
				if other.from >= s.to {
					break
				}
				if other.key != s.key {
					faults = append(faults, fmt.Sprintf("ID %d was held for %q from %d to %d ns and for %q from %d", id, s.key, s.from, s.to, other.key, other.from))
				}
			}
		}
	}
	return faults
}

// recorder follows the store itself, change by change, and checks each against what must always
// hold there.
type recorder struct {
	base    string
	h       *history
	cancel  context.CancelFunc
	done    chan struct{}
	masters map[string]string // ID -> key
	refs    map[string]string // path below value/ -> ID

	seen atomic.Int64 // the newest revision applied

	mu      sync.Mutex
	faults  []string
	changes int
	log     map[string][]string // what became of each reference
}

// lastChanges returns the last changes of a reference.
func (r *recorder) lastChanges(path string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	list := r.log[path]
	return strings.Join(list[max(0, len(list)-12):], "\n")
}

// record starts a recorder on the store as it is now.
func record(t *testing.T, raw *clientv3.Client, base string, h *history) *recorder {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	r := &recorder{base: base, cancel: cancel, done: make(chan struct{}), masters: map[string]string{}, refs: map[string]string{}, h: h}
	l, err := raw.Get(ctx, base+"/", clientv3.WithPrefix())
	if err != nil {
		cancel()
		t.Fatal(err)
	}
	for _, kv := range l.Kvs {
		if id, ok := strings.CutPrefix(string(kv.Key), base+"/id/"); ok {
			r.masters[id] = string(kv.Value)
		} else if path, ok := strings.CutPrefix(string(kv.Key), base+"/value/"); ok {
			r.refs[path] = string(kv.Value)
		}
	}
	r.seen.Store(l.Header.Revision)
	watch := raw.Watch(ctx, base+"/", clientv3.WithPrefix(), clientv3.WithRev(l.Header.Revision+1))
	go func() {
		defer close(r.done)
		for resp := range watch {
			if err := resp.Err(); err != nil && ctx.Err() == nil {
				r.fault("the recorder's watch ended: %v", err)
			}
			// The changes of one revision come together.
			for i := 0; i < len(resp.Events); {
				j := i
				for j < len(resp.Events) && resp.Events[j].Kv.ModRevision == resp.Events[i].Kv.ModRevision {
					j++
				}
				r.apply(resp.Events[i:j])
				i = j
			}
		}
	}()
	return r
}

func (r *recorder) fault(format string, args ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.faults = append(r.faults, fmt.Sprintf(format, args...))
}

// stop ends the recording and reports what was found.
func (r *recorder) stop(t *testing.T) (changes int) {
	t.Helper()
	r.cancel()
	<-r.done
	for i, f := range r.faults {
		if i == 10 {
			t.Errorf("... and %d more", len(r.faults)-i)
			break
		}
		t.Error(f)
	}
	return r.changes
}

func (r *recorder) apply(events []*clientv3.Event) {
	r.changes += len(events)
	var newMasters, newRefs, goneMasters []string
	old := map[string]string{}
	for _, ev := range events {
		key := string(ev.Kv.Key)
		if path, ok := strings.CutPrefix(key, r.base+"/value/"); ok && r.h != nil {
			r.mu.Lock()
			if r.log == nil {
				r.log = make(map[string][]string)
			}
			r.log[path] = append(r.log[path], fmt.Sprintf("%10.3fms revision %d: %v %s on lease %x", float64(r.h.now())/1e6, ev.Kv.ModRevision, ev.Type, ev.Kv.Value, ev.Kv.Lease))
			r.mu.Unlock()
		}
		if id, ok := strings.CutPrefix(key, r.base+"/id/"); ok {
			old[id] = r.masters[id]
			if ev.Type == clientv3.EventTypeDelete {
				delete(r.masters, id)
				goneMasters = append(goneMasters, id)
			} else {
				r.masters[id] = string(ev.Kv.Value)
				newMasters = append(newMasters, id)
			}
		} else if path, ok := strings.CutPrefix(key, r.base+"/value/"); ok {
			if ev.Type == clientv3.EventTypeDelete {
				delete(r.refs, path)
			} else {
				r.refs[path] = string(ev.Kv.Value)
				newRefs = append(newRefs, path)
			}
		}
	}
	rev := events[0].Kv.ModRevision
	r.seen.Store(rev)
	for _, id := range newMasters {
		if was := old[id]; was != "" && was != r.masters[id] {
			r.fault("revision %d: ID %s was given to %q although it belongs to %q", rev, id, r.masters[id], was)
		}
	}
	for _, id := range goneMasters {
		for path, to := range r.refs {
			if key := path[:strings.LastIndexByte(path, '/')]; to == id && key == old[id] {
				r.fault("revision %d: ID %s of %q was deleted although %s refers to it", rev, id, key, path)
			}
		}
	}
	for _, path := range newRefs {
		id, key := r.refs[path], path[:strings.LastIndexByte(path, '/')]
		if r.masters[id] != key {
			r.fault("revision %d: a reference to ID %s for %q was written, but the ID belongs to %q", rev, id, key, r.masters[id])
		}
		for other, to := range r.refs {
			if other != path && to != id && other[:strings.LastIndexByte(other, '/')] == key && r.masters[to] == key {
				r.fault("revision %d: a reference to ID %s for %q was written beside one to %s (%s)", rev, id, key, to, other)
			}
		}
	}
}

// The checks must be able to see what they are there for.
func TestHistoryChecksFindFaults(t *testing.T) {
	t.Parallel()
	const a, b = "a", "b"
	type row struct {
		in        op
		call, ret int64
		out       allocator.ID
	}
	for name, c := range map[string]struct {
		rows      []row
		keys, ids bool // which check finds a fault
	}{
		"one ID, held twice":    {rows: []row{{op{opAllocate, a, 0}, 0, 1, 7}, {op{opAllocate, a, 1}, 2, 3, 7}, {op{opRelease, a, 0}, 4, 5, 0}, {op{opAllocate, a, 0}, 6, 7, 7}}},
		"a new ID once free":    {rows: []row{{op{opAllocate, a, 0}, 0, 1, 7}, {op{opRelease, a, 0}, 4, 5, 0}, {op{opAllocate, a, 1}, 6, 7, 8}}},
		"two IDs at once":       {rows: []row{{op{opAllocate, a, 0}, 0, 1, 7}, {op{opAllocate, a, 1}, 2, 3, 8}}, keys: true},
		"two IDs, raced":        {rows: []row{{op{opAllocate, a, 0}, 0, 5, 7}, {op{opAllocate, a, 1}, 1, 4, 8}}, keys: true},
		"changed while held":    {rows: []row{{op{opAllocate, a, 0}, 0, 1, 7}, {op{opAllocate, a, 1}, 2, 3, 7}, {op{opRelease, a, 0}, 4, 5, 0}, {op{opAllocate, a, 0}, 6, 7, 8}}, keys: true},
		"a wrong lookup":        {rows: []row{{op{opAllocate, a, 0}, 0, 1, 7}, {op{opLookup, a, 1}, 2, 3, 0}}, keys: true},
		"changed after a loss":  {rows: []row{{op{opAllocate, a, 0}, 0, 1, 7}, {op{kind: opLose, node: 0}, 2, 3, 0}, {op{opAllocate, a, 1}, 4, 5, 8}}},
		"two keys of one ID":    {rows: []row{{op{opAllocate, a, 0}, 0, 1, 7}, {op{opAllocate, b, 1}, 2, 3, 7}}, ids: true},
		"one key after another": {rows: []row{{op{opAllocate, a, 0}, 0, 1, 7}, {op{opRelease, a, 0}, 4, 5, 0}, {op{opAllocate, b, 1}, 6, 7, 7}}},
		"a lost ID reused":      {rows: []row{{op{opAllocate, a, 0}, 0, 1, 7}, {op{kind: opCrash, node: 0}, 2, 3, 0}, {op{opAllocate, b, 1}, 6, 7, 7}}},
	} {
		h := &history{start: time.Now().Add(-time.Second)}
		for _, r := range c.rows {
			h.add(r.in.node, r.in, r.call, r.ret, r.out)
		}
		if got := len(h.checkKeys([]string{a, b})) > 0; got != c.keys {
			t.Errorf("%s: the check of keys found a fault: %v, want %v", name, got, c.keys)
		}
		if got := len(h.checkIDs()) > 0; got != c.ids {
			t.Errorf("%s: the check of IDs found a fault: %v, want %v", name, got, c.ids)
		}
	}
	event := func(rev int64, key, value string) *clientv3.Event {
		ev := &clientv3.Event{Type: clientv3.EventTypePut, Kv: &mvccpb.KeyValue{Key: []byte("x/" + key), Value: []byte(value), ModRevision: rev}}
		if value == "" {
			ev.Type = clientv3.EventTypeDelete
		}
		return ev
	}
	for name, c := range map[string]struct {
		bad    bool
		events []*clientv3.Event
	}{
		"in order":            {false, []*clientv3.Event{event(3, "id/8", "b"), event(4, "value/b/n2", "8"), event(5, "value/a/n2", "7")}},
		"deleted in use":      {true, []*clientv3.Event{event(3, "id/7", "")}},
		"taken over":          {true, []*clientv3.Event{event(3, "id/7", "b")}},
		"without an ID":       {true, []*clientv3.Event{event(3, "value/b/n2", "9")}},
		"another's ID":        {true, []*clientv3.Event{event(3, "value/b/n2", "7")}},
		"a second ID":         {true, []*clientv3.Event{event(3, "id/9", "a"), event(4, "value/a/n2", "9")}},
		"gone with its users": {false, []*clientv3.Event{event(3, "value/a/n1", ""), event(4, "id/7", ""), event(5, "id/7", "b")}},
	} {
		r := &recorder{base: "x", masters: map[string]string{}, refs: map[string]string{}}
		r.apply([]*clientv3.Event{event(2, "id/7", "a"), event(2, "value/a/n1", "7")})
		for _, ev := range c.events {
			r.apply([]*clientv3.Event{ev})
		}
		if got := len(r.faults) > 0; got != c.bad {
			t.Errorf("%s: the recorder found %v", name, r.faults)
		}
	}
}
