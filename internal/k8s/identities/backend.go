package identities

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"sync/atomic"
	"time"

	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/gentype"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// HeartbeatAnnotation marks an identity that the operator found unused, with the time.
const HeartbeatAnnotation = "io.cilium.heartbeat"

// Config is what a Backend is made from.
type Config struct {
	Client *k8s.Client
	// First and Last bound the IDs that are made; what lies outside belongs to others.
	First, Last allocator.ID
	// KeyType is any key; it is used to read others.
	KeyType allocator.MapKey
	// Node and Namespace are whose Leases confirm the end of IDs, and where; without them
	// Confirm fails.
	Node, Namespace string
	// Log is optional.
	Log *slog.Logger
}

// Backend is the allocator's backend on CiliumIdentity objects. Its methods may be called from many
// goroutines. Those that look for an ID need the first list, which ListAndWatch brings, and wait
// for it.
type Backend struct {
	cfg     Config
	objects *gentype.ClientWithList[*v2.CiliumIdentity, *v2.CiliumIdentityList]
	index   *index
	prober  Prober
	salt    Salt
	seals   *rate.Limiter
	origin  atomic.Pointer[string] // of Confirm's Leases
}

var _ allocator.Backend = (*Backend)(nil)

// New checks the settings. It does no I/O.
func New(cfg Config) (*Backend, error) {
	if cfg.Client == nil || cfg.KeyType == nil {
		return nil, errors.New("identities in Kubernetes need a client and a key type")
	}
	if cfg.First == allocator.NoID || cfg.Last < cfg.First {
		return nil, fmt.Errorf("identities in Kubernetes: %s to %s is no range of IDs", cfg.First, cfg.Last)
	}
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	b := &Backend{
		cfg: cfg, index: newIndex(), seals: rate.NewLimiter(sealRate, sealBurst),
		objects: gentype.NewClientWithList("ciliumidentities", cfg.Client.UrgentV2, metav1.ParameterCodec, "",
			func() *v2.CiliumIdentity { return &v2.CiliumIdentity{} }, func() *v2.CiliumIdentityList { return &v2.CiliumIdentityList{} }),
	}
	b.prober = Prober{Objects: b.objects, First: cfg.First, Last: cfg.Last, Text: b.text, Salt: b.readSalt, Known: func(id allocator.ID) (Entry, bool) {
		e, ok := b.index.get(id)
		// Of one that was edited before it was observed, only the server knows whose it is.
		return Entry{Text: e.text, Quarantined: e.quarantined, Since: e.since, Life: e.uid, Certain: e.certain}, ok && (e.text != "" || !e.edited)
	}, Former: b.index.former, Full: func(text string) bool { return b.index.full(text, int(cfg.Last-cfg.First)+1) }, Seal: b.seals.Allow}
	return b, nil
}

// readSalt returns the cluster's salt.
func (b *Backend) readSalt(ctx context.Context) (string, error) {
	return b.salt.Get(ctx, func(ctx context.Context) (types.UID, error) {
		ns, err := b.cfg.Client.Urgent.CoreV1().Namespaces().Get(ctx, SaltNamespace, metav1.GetOptions{})
		if err != nil {
			return "", err
		}
		return ns.UID, nil
	})
}

// Objects without a digest, as earlier versions made them, get one when they are used. Every node
// observes each, so no node writes more of them in its time than these, of whatever ID it uses:
// with 5,000 nodes about 80 a second at most, and no object twice.
const (
	sealRate  = rate.Limit(1.0 / 60)
	sealBurst = 5
)

// maxSteps bounds the requests of one call while others keep changing the same objects.
const maxSteps = 64

// Acquire implements [allocator.Backend].
func (b *Backend) Acquire(ctx context.Context, key allocator.AllocatorKey, ids allocator.IDSource) (allocator.Acquired, error) {
	return b.AcquireExcept(ctx, key, ids, nil)
}

// AcquireExcept is Acquire where IDs are kept in another place, too: see [Prober].
func (b *Backend) AcquireExcept(ctx context.Context, key allocator.AllocatorKey, ids allocator.IDSource,
	elsewhere func(context.Context, allocator.ID) (allocator.Occupant, bool, error),
) (allocator.Acquired, error) {
	text := key.GetKey()
	if text == "" {
		return allocator.Acquired{}, errors.New("a key must not be empty")
	}
	if err := b.index.wait(ctx); err != nil {
		return allocator.Acquired{}, err
	}
	security, err := labelsOf(key)
	if err != nil {
		return allocator.Acquired{}, err
	}
	if id := ids.Known(text); id != allocator.NoID {
		ok, err := b.keep(ctx, id, text, security)
		if err != nil || ok {
			return allocator.Acquired{ID: id}, err
		}
	}
	prober := b.prober
	prober.Elsewhere = elsewhere
	got, err := prober.Probe(ctx, text, security)
	if err != nil {
		return allocator.Acquired{}, err
	}
	// Beside another place that has the labels under another ID, what came back must go again.
	made := got.Made || got.Back && elsewhere != nil
	return allocator.Acquired{ID: got.ID, IsNew: made, Revision: revision(got.Object)}, nil
}

// keep makes sure that an object which the watch has shown is not about to be deleted. It reports
// false if it is gone or another's.
func (b *Backend) keep(ctx context.Context, id allocator.ID, text string, security map[string]string) (bool, error) {
	// The index is changed before the cache is: what is missing from it is gone.
	if e, ok := b.index.get(id); !ok || e.quarantined || !e.marked {
		return ok && !e.quarantined && e.text == text, nil
	}
	for range maxSteps {
		got, err := b.objects.Get(ctx, id.String(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			return false, nil
		}
		if err != nil {
			return false, fmt.Errorf("read identity %s: %w", id, err)
		}
		if !b.prober.of(got, id, text, security) {
			return false, nil
		}
		_, done, err := b.prober.use(ctx, got, id, text, security)
		if done || err != nil {
			return done, err
		}
	}
	return false, fmt.Errorf("identity %s: %w", id, allocator.ErrContended)
}

// labelsOf returns the labels of a key in the form of an object.
func labelsOf(key allocator.AllocatorKey) (map[string]string, error) {
	k, ok := key.(allocator.MapKey)
	if !ok {
		return nil, fmt.Errorf("key %q is a %T, which is no allocator.MapKey: an identity in Kubernetes is made of labels", key.GetKey(), key)
	}
	return k.GetAsMap(), nil
}

// read returns the key of an object that is not in quarantine.
func (b *Backend) read(o *v2.CiliumIdentity) (allocator.AllocatorKey, error) {
	return b.cfg.KeyType.PutKeyFromMap(o.SecurityLabels)
}

// text returns the canonical string of an object, "" if it has none.
func (b *Backend) text(o *v2.CiliumIdentity) string {
	key, err := b.read(o)
	if err != nil {
		return ""
	}
	return key.GetKey()
}

// revision returns the version of an object as the number that Kubernetes promises it to be, 0 if
// it is none.
func revision(o metav1.Object) int64 {
	n, err := strconv.ParseInt(o.GetResourceVersion(), 10, 64)
	if err != nil || n < 0 {
		return 0
	}
	return n
}

// Withdraw implements [allocator.Backend]: it puts the ID of an object into quarantine that was
// made a moment ago and that no client has written since. Other nodes may have observed it.
func (b *Backend) Withdraw(ctx context.Context, key allocator.AllocatorKey, a allocator.Acquired) error {
	if !a.IsNew {
		return nil
	}
	o, err := b.objects.Get(ctx, a.ID.String(), metav1.GetOptions{})
	if err == nil && revision(o) == a.Revision {
		Quarantine(o, key.GetKey(), time.Now())
		_, _, err = b.prober.update(ctx, o, "withdraw")
	}
	if err == nil || apierrors.IsNotFound(err) || apierrors.IsForbidden(err) {
		return nil // what stays is collected
	}
	return fmt.Errorf("withdraw identity %s, a duplicate: %w", a.ID, err)
}

// Release implements [allocator.Backend]. There is nothing to do: the reference is the
// CiliumEndpoint.
func (b *Backend) Release(context.Context, allocator.ID, allocator.AllocatorKey) error { return nil }

// Check implements [allocator.Backend], by what the watch has shown. An object without a digest is
// not in order either if it was edited, or of as many as may get one now.
func (b *Backend) Check(ctx context.Context, refs []allocator.Reference) ([]allocator.Reference, error) {
	if err := b.index.wait(ctx); err != nil {
		return nil, err
	}
	var wrong []allocator.Reference
	seals := int(b.seals.Tokens())
	for _, ref := range refs {
		e, ok := b.index.get(ref.ID)
		switch {
		case !ok || e.text != ref.Key.GetKey() || e.marked || e.quarantined:
			wrong = append(wrong, ref)
		case e.bare && e.certain && e.edited: // who observes it first believes the edit
			wrong = append(wrong, ref)
		case e.bare && e.certain && seals > 0:
			seals--
			wrong = append(wrong, ref)
		}
	}
	return wrong, nil
}

// Restore implements [allocator.Backend].
func (b *Backend) Restore(ctx context.Context, ref allocator.Reference) error {
	text := ref.Key.GetKey()
	if err := b.index.wait(ctx); err != nil {
		return err
	}
	if oldest := b.index.oldest(text); oldest != allocator.NoID && oldest != ref.ID {
		return &allocator.ConflictError{Key: text, Held: ref.ID, InForce: oldest}
	}
	security, err := labelsOf(ref.Key)
	if err != nil {
		return err
	}
	_, err = b.prober.Restore(ctx, ref.ID, text, security)
	return err
}

// Get implements [allocator.Backend], from the watch's cache. Whether the ID is in use is not known
// here.
func (b *Backend) Get(ctx context.Context, key allocator.AllocatorKey) (allocator.ID, error) {
	if err := b.index.wait(ctx); err != nil {
		return allocator.NoID, err
	}
	return b.index.oldest(key.GetKey()), nil
}

// Occupant returns whom an ID belongs to according to the server; ok is false if it is free.
func (b *Backend) Occupant(ctx context.Context, id allocator.ID) (o allocator.Occupant, ok bool, err error) {
	got, err := b.objects.Get(ctx, id.String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return o, false, nil
	}
	if err != nil {
		return o, false, fmt.Errorf("read identity %s: %w", id, err)
	}
	if was, since, quarantined := Quarantined(got); quarantined {
		return allocator.Occupant{Key: was, Quarantined: true, Since: since}, true, nil
	}
	return allocator.Occupant{Key: b.text(got)}, true, nil
}

// GetByID implements [allocator.Backend].
func (b *Backend) GetByID(ctx context.Context, id allocator.ID) (allocator.AllocatorKey, error) {
	got, err := b.objects.Get(ctx, id.String(), metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("ID %s: %w", id, allocator.ErrIdentityNonExistent)
	}
	if err != nil {
		return nil, fmt.Errorf("read identity %s: %w", id, err)
	}
	if _, _, quarantined := Quarantined(got); quarantined {
		return nil, fmt.Errorf("ID %s is in quarantine: %w", id, allocator.ErrIdentityNonExistent)
	}
	if intact, sealed := Intact(got); sealed && !intact {
		return nil, fmt.Errorf("ID %s stands for nothing until its labels, which were edited by hand, are restored: %w", id, allocator.ErrIdentityNonExistent)
	}
	key, err := b.read(got)
	if err != nil {
		return nil, fmt.Errorf("identity %s: %w: %w", id, allocator.ErrUnreadable, err)
	}
	return key, nil
}

// ErrNotHere is what RunGC returns.
var ErrNotHere = errors.New("identities in Kubernetes are collected by the operator, which knows the endpoints that refer to them")

// RunGC implements [allocator.Backend]: it refuses, because what refers to an ID is not known
// here.
func (b *Backend) RunGC(context.Context, *rate.Limiter, allocator.Range, map[allocator.ID]int64) (map[allocator.ID]int64, allocator.GCStats, error) {
	return nil, allocator.GCStats{}, ErrNotHere
}

// RunLocksGC implements [allocator.Backend]. There are no locks.
func (b *Backend) RunLocksGC(context.Context, map[string]allocator.Lock) (map[string]allocator.Lock, int, error) {
	return nil, 0, nil
}

// DeleteAllKeys implements [allocator.Backend].
func (b *Backend) DeleteAllKeys(ctx context.Context) error {
	return b.cfg.Client.UrgentV2.Delete().Resource("ciliumidentities").Do(ctx).Error()
}
