package kvstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore/internal/driver"
)

// DefaultLeaseTTL is how long leased keys outlive a client that has gone silent, unless its backend
// is configured otherwise.
const DefaultLeaseTTL = 15 * time.Minute

// MaxKeysPerLease bounds the keys attached to one lease. In etcd the cost of writing a leased key
// grows with the keys on its lease, and an expiring lease deletes them all in one revision.
const MaxKeysPerLease = 1000

var (
	// ErrNotFound means that the store answered and has no such key.
	ErrNotFound = errors.New("key not found")
	// ErrNoSpace means that the store has used up its space: it refuses writes and new leases, and
	// goes on to read, to delete and to renew leases. A person must make room. The write that used
	// up the last of it may have taken place.
	ErrNoSpace = errors.New("the store's space is exhausted, and it accepts no writes until space is freed")
	// ErrClosed means that the backend was closed; nothing was written. A write that was under way
	// then has another error, since it may have been carried out.
	ErrClosed = driver.ErrClosed
)

// Backend is a connection to a key-value store, with leases of its own. See the package doc for
// what all implementations promise.
type Backend interface {
	// Get returns the key, or an error that wraps [ErrNotFound].
	Get(ctx context.Context, key string) (KeyValue, error)

	// List returns all keys that start with prefix, sorted by key, as they were at one revision. An
	// empty result is not an error.
	List(ctx context.Context, prefix string) (Listing, error)

	// Txn evaluates the conditions and runs one of the two branches, atomically.
	Txn(ctx context.Context, txn Txn) (TxnResult, error)

	// Watch delivers the present state under prefix and then its changes, until ctx ends or the
	// backend is closed; then the channel is closed. It never fails: while the store cannot be
	// reached it is silent. A reader that stops reading must end ctx.
	Watch(ctx context.Context, prefix string) <-chan Event

	// ObserveLostLeases calls lost with those keys under prefix that this backend had put on a
	// lease that is gone, sorted. The calls come from a goroutine of the backend, one after the
	// other, perhaps after a write has returned that found the lease gone. They must not block:
	// Close waits for one under way, and none comes afterwards. A call does not mean that the store
	// can be reached again. The function returned ends the observation.
	ObserveLostLeases(prefix string, lost func(keys []string)) (stop func())

	// RevokeLeases gives up every lease of this backend, and so deletes every key it wrote with
	// one. It is for a node that leaves for good; observers of lost leases are not notified. Later
	// leased writes take a new lease.
	RevokeLeases(ctx context.Context) error

	// Layout is how texts and locks are stored in this kind of store.
	Layout() Layout

	// Status returns the state of the connection, without a request to the store.
	Status() Status

	// Close ends the connection and waits for the goroutines of the backend. Leases are left to run
	// out, so that a process that restarts finds its keys in place. Calls under way fail, and later
	// ones with [ErrClosed].
	Close() error
}

// Pager is a [Backend] that lists in pages.
type Pager interface {
	// ListPages calls page for the keys that start with prefix, sorted by key, some at a time, as
	// they were at one revision, which it returns. It calls begin first, and again whenever it has
	// to begin anew: what page has seen before then does not count. After an error page has seen a
	// part of them.
	ListPages(ctx context.Context, prefix string, begin func(), page func([]KeyValue)) (revision int64, err error)
}

// ListPages is [Pager] for every backend. One that is no Pager gives one page, with everything.
func ListPages(ctx context.Context, b Backend, prefix string, begin func(), page func([]KeyValue)) (revision int64, err error) {
	if p, ok := b.(Pager); ok {
		return p.ListPages(ctx, prefix, begin, page)
	}
	begin()
	l, err := b.List(ctx, prefix)
	if err != nil {
		return 0, err
	}
	page(l.Pairs)
	return l.Revision, nil
}

// KeyValue is one key of the store at one moment.
type KeyValue struct {
	Key   string
	Value []byte
	// CreateRevision and ModRevision are the revisions that made the key and last wrote it.
	CreateRevision, ModRevision int64
	// Lease names the lease that the key hangs on, in the backend's own words; empty if it has
	// none.
	Lease string
}

// Listing is what [Backend.List] found.
type Listing struct {
	Pairs []KeyValue
	// Revision is that of the whole store at the time of the listing.
	Revision int64
}

// EventKind is what happened to a key.
type EventKind uint8

// The kinds of event of a watch.
const (
	// EventCreate: the key was not known to this watch before.
	EventCreate EventKind = iota + 1
	// EventModify: a known key was written again, perhaps with the same value.
	EventModify
	// EventDelete: a known key is gone.
	EventDelete
	// EventListDone closes each listing: after it the reader knows the whole state at
	// [Event.Revision].
	EventListDone
)

// String returns the kind's name.
func (k EventKind) String() string {
	switch k {
	case EventCreate:
		return "create"
	case EventModify:
		return "modify"
	case EventDelete:
		return "delete"
	case EventListDone:
		return "list-done"
	}
	return fmt.Sprintf("EventKind(%d)", uint8(k))
}

// Event is one message of a watch.
type Event struct {
	Kind EventKind
	// KeyValue is the key as written; for EventDelete only its Key is set, for EventListDone
	// nothing.
	KeyValue
	// Revision is the store revision of this change. It is 0 for the events of a listing, which
	// come in no order of time, and that of the listing for EventListDone. Once a reader has seen
	// an event with Revision r, it has seen every change before r; changes of one revision are one
	// event each.
	Revision int64
}

// State is the health of a connection in one word.
type State string

// The states of a connection.
const (
	// StateConnecting: the store has not answered yet.
	StateConnecting State = "connecting"
	// StateOK: the last check found the store answering with a quorum.
	StateOK State = "ok"
	// StateDegraded: the store answers, but something is wrong that does not stop it yet: an
	// endpoint is down, or a check failed once.
	StateDegraded State = "degraded"
	// StateFailed: the store cannot be relied on.
	StateFailed State = "failed"
	// StateClosed: the backend was closed.
	StateClosed State = "closed"
)

// Status describes a connection for people and for health checks.
type Status struct {
	// Kind is "etcd", "consul" or "memory".
	Kind  string
	State State
	// Message is one line for people.
	Message string
	// Endpoints are the servers, as far as the backend knows single ones.
	Endpoints []EndpointStatus
	// Leases counts the leases this backend holds, LeasedKeys the keys on them.
	Leases, LeasedKeys int
	// Full means that writes fail with [ErrNoSpace]. A client that could not write may have lost
	// keys with its leases, so that a missing reference does not show that a key is unused.
	Full bool
	// QuorumFailures counts the failed checks in a row.
	QuorumFailures int
	// LastOK is when the store last answered with a quorum; zero if never.
	LastOK time.Time
	// LastError is the newest fault seen, empty when all is well.
	LastError string
}

// EndpointStatus is one server of the store.
type EndpointStatus struct {
	Address string
	Healthy bool
	// Message has details, for example the server's version or why it is not healthy.
	Message string
}

// Healthy reports whether the store can be used now.
func (s Status) Healthy() bool { return s.State == StateOK || s.State == StateDegraded }
