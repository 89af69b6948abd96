package identities

import (
	"context"
	"fmt"
	"iter"
	"maps"
	"slices"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// Objects reads and writes CiliumIdentities on the server itself, without a cache.
type Objects interface {
	Create(ctx context.Context, o *v2.CiliumIdentity, opts metav1.CreateOptions) (*v2.CiliumIdentity, error)
	Get(ctx context.Context, name string, opts metav1.GetOptions) (*v2.CiliumIdentity, error)
	// Update fails with a conflict if the object is not what was read any more.
	Update(ctx context.Context, o *v2.CiliumIdentity, opts metav1.UpdateOptions) (*v2.CiliumIdentity, error)
}

// Entry is what a watch has shown of an ID's object.
type Entry struct {
	// Text is the canonical string of its labels; "" if they cannot be read. Of an ID in quarantine
	// it is what the labels were.
	Text string
	// Quarantined: see [Quarantine]. Since is from when, the zero time if that cannot be read.
	Quarantined bool
	Since       time.Time
	// Life is the incarnation that all this is of. Certain means that Text is no edit: the object
	// was created with it, or labels in use had the ID before.
	Life    types.UID
	Certain bool
}

// Prober finds the IDs of label sets, or makes them. All who write CiliumIdentities use it,
// agents and operator alike: that is why they agree. It keeps nothing; its method may be called
// from many goroutines.
type Prober struct {
	Objects     Objects
	First, Last allocator.ID
	// Salt returns the cluster's salt, see [Sequence].
	Salt func(context.Context) (string, error)
	// Text returns the canonical string of an object's labels, "" if they cannot be read.
	Text func(*v2.CiliumIdentity) string
	// Known reports what a watch has shown of an ID; ok is false if there is no object. It may
	// be behind. It spares requests and decides nothing, but that an ID which is known to be
	// other labels' is passed over.
	Known func(allocator.ID) (e Entry, ok bool)
	// Former returns the ID that according to a watch is in quarantine after labels, the smallest
	// of several; NoID if there is none. It is tried first.
	Former func(text string) allocator.ID
	// Full, if not nil, summarizes Known for all IDs: each belongs to other labels than these, and
	// none is in quarantine. So thousands of waiters for an ID cost next to nothing.
	Full func(text string) bool
	// Seal, if not nil, reports whether an object may be written for no other reason than that it
	// has no digest.
	Seal func() bool
	// Elsewhere, if not nil, returns whom an ID belongs to in another place where identities are
	// kept, too. One that is other labels' there is treated as if it were here.
	Elsewhere func(context.Context, allocator.ID) (o allocator.Occupant, ok bool, err error)
}

// Taken is the outcome of [Prober.Probe].
type Taken struct {
	ID     allocator.ID
	Object *v2.CiliumIdentity
	// Made means that this call created the object, Back that it took it out of the quarantine
	// after the same labels.
	Made, Back bool
}

// Probe goes through the IDs in the order of the label set until it has made an object or met
// one of the same labels. text is the set's canonical string. An ID that is in quarantine after the
// set comes before all others: else it would stay there beside the set's next one. One that is in
// quarantine after another set is only taken if no ID is free, and then the one longest in
// quarantine. If all IDs are taken the error wraps [allocator.ErrExhausted], if others keep
// changing the same objects [allocator.ErrContended].
func (p *Prober) Probe(ctx context.Context, text string, security map[string]string) (Taken, error) {
	if p.Full != nil && p.Full(text) {
		return Taken{}, p.exhausted()
	}
	type candidate struct {
		id    allocator.ID
		since time.Time
	}
	salt, err := p.Salt(ctx)
	if err != nil {
		return Taken{}, err
	}
	var candidates []candidate
	steps := maxSteps
	for id := range p.order(salt, text) {
		if e, ok := p.Known(id); ok && e.Text != text {
			if e.Quarantined {
				candidates = append(candidates, candidate{id, e.Since})
			}
			continue
		}
		if o, others, err := p.elsewhere(ctx, id, text, &steps); err != nil {
			return Taken{}, err
		} else if others {
			if o.Quarantined {
				candidates = append(candidates, candidate{id, o.Since})
			}
			continue
		}
		got, other, err := p.try(ctx, id, text, security, &steps)
		if err != nil || other == nil {
			return got, err
		}
		if _, since, quarantined := Quarantined(other); quarantined {
			candidates = append(candidates, candidate{id, since})
		}
	}
	// No ID is free. Those in quarantine are the last resort: better than a pod without an
	// identity.
	slices.SortStableFunc(candidates, func(x, y candidate) int { return x.since.Compare(y.since) })
	for _, r := range candidates {
		if o, others, err := p.elsewhere(ctx, r.id, text, &steps); err != nil {
			return Taken{}, err
		} else if others && !o.Quarantined {
			continue
		}
		if got, err := p.takeOver(ctx, r.id, text, security, &steps); err != nil || got.ID != allocator.NoID {
			return got, err
		}
	}
	return Taken{}, p.exhausted()
}

// order yields the IDs in the order in which they are tried for a label set.
func (p *Prober) order(salt, text string) iter.Seq[allocator.ID] {
	former := p.Former(text)
	return func(yield func(allocator.ID) bool) {
		if former != allocator.NoID && !yield(former) {
			return
		}
		for id := range Sequence(salt, text, p.First, p.Last) {
			if id != former && !yield(id) {
				return
			}
		}
	}
}

// elsewhere returns whom an ID belongs to in the other place; others is false if it is free there,
// or belongs to these labels.
func (p *Prober) elsewhere(ctx context.Context, id allocator.ID, text string, steps *int) (o allocator.Occupant, others bool, err error) {
	if p.Elsewhere == nil {
		return o, false, nil
	}
	if *steps--; *steps < 0 {
		return o, false, fmt.Errorf("labels %s: %w", text, allocator.ErrContended)
	}
	o, ok, err := p.Elsewhere(ctx, id)
	return o, ok && o.Key != text, err
}

func (p *Prober) exhausted() error {
	return fmt.Errorf("%w: all of %s to %s are taken", allocator.ErrExhausted, p.First, p.Last)
}

// try decides one ID. If it is other labels', or is about to vanish, it returns that object.
func (p *Prober) try(ctx context.Context, id allocator.ID, text string, security map[string]string, steps *int) (Taken, *v2.CiliumIdentity, error) {
	for {
		if *steps--; *steps < 0 {
			return Taken{}, nil, fmt.Errorf("labels %s: %w", text, allocator.ErrContended)
		}
		made, err := p.Objects.Create(ctx, NewObject(id, security), metav1.CreateOptions{})
		if err == nil {
			return Taken{ID: id, Object: made, Made: true}, nil, nil
		}
		if !apierrors.IsAlreadyExists(err) {
			return Taken{}, nil, fmt.Errorf("create identity %s: %w", id, err)
		}
		got, err := p.Objects.Get(ctx, id.String(), metav1.GetOptions{})
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return Taken{}, nil, fmt.Errorf("read identity %s: %w", id, err)
		}
		if !p.of(got, id, text, security) {
			return Taken{}, got, nil
		}
		_, _, quarantined := Quarantined(got)
		if got, done, err := p.use(ctx, got, id, text, security); done || err != nil {
			return Taken{ID: id, Object: got, Back: quarantined && err == nil}, nil, err
		}
	}
}

// of reports whether an object is, or was before its quarantine or an edit, the identity of a label
// set.
func (p *Prober) of(o *v2.CiliumIdentity, id allocator.ID, text string, security map[string]string) bool {
	if o.DeletionTimestamp != nil {
		return false
	}
	if was, _, quarantined := Quarantined(o); quarantined {
		return was == text
	}
	intact, sealed := Intact(o)
	if sealed && !intact {
		return WasGiven(o, security)
	}
	return p.Text(o) == text || !sealed && p.certain(o, id, text)
}

// certain reports whether an object without a digest is known to have been given these labels.
func (p *Prober) certain(o *v2.CiliumIdentity, id allocator.ID, text string) bool {
	if o.Generation == 1 {
		return p.Text(o) == text
	}
	e, ok := p.Known(id)
	return ok && e.Certain && !e.Quarantined && e.Text == text && e.Life == Incarnation(o)
}

// use takes an object of the right labels into use: it must not be about to be collected, and must
// not be in quarantine; if it was edited it gets its labels back, and if it has no digest it gets
// one, should it be certain that it was not edited. It reports false if the object has changed and
// must be read again.
func (p *Prober) use(ctx context.Context, o *v2.CiliumIdentity, id allocator.ID, text string, security map[string]string) (*v2.CiliumIdentity, bool, error) {
	_, marked := o.Annotations[HeartbeatAnnotation]
	_, _, quarantined := Quarantined(o)
	intact, sealed := Intact(o)
	edited := !quarantined && !intact && (sealed || p.Text(o) != text)
	bare := !quarantined && !sealed && maps.Equal(o.SecurityLabels, security) && p.certain(o, id, text)
	if !marked && !quarantined && !edited && !(bare && p.Seal != nil && p.Seal()) {
		return o, true, nil
	}
	o = o.DeepCopy()
	switch {
	case quarantined, edited:
		Restore(o, security)
	case bare:
		Seal(o)
	}
	delete(o.Annotations, HeartbeatAnnotation)
	return p.update(ctx, o, "keep")
}

// update writes an object, and reports false if it is not what was read any more.
func (p *Prober) update(ctx context.Context, o *v2.CiliumIdentity, verb string) (*v2.CiliumIdentity, bool, error) {
	now, err := p.Objects.Update(ctx, o, metav1.UpdateOptions{})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err):
		return nil, false, nil
	case err != nil:
		return nil, false, fmt.Errorf("%s identity %s: %w", verb, o.Name, err)
	}
	return now, true, nil
}

// takeOver takes an ID in quarantine after other labels. It returns NoID if the ID has become
// others'.
func (p *Prober) takeOver(ctx context.Context, id allocator.ID, text string, security map[string]string, steps *int) (Taken, error) {
	for {
		got, other, err := p.try(ctx, id, text, security, steps) // its quarantine may be over
		if err != nil || other == nil {
			return got, err
		}
		if _, _, quarantined := Quarantined(other); !quarantined || other.DeletionTimestamp != nil {
			return Taken{}, nil
		}
		other = other.DeepCopy() // it has annotations: it is in quarantine
		other.Annotations[TakenAnnotation] = other.ResourceVersion
		Restore(other, security)
		now, done, err := p.update(ctx, other, "take")
		if err != nil {
			return Taken{}, err
		}
		if done {
			return Taken{ID: id, Object: now}, nil
		}
	}
}

// Restore makes sure that an ID in use has its object, with these labels. If the ID is other
// labels' it changes nothing and returns an [*allocator.ConflictError].
func (p *Prober) Restore(ctx context.Context, id allocator.ID, text string, security map[string]string) (Taken, error) {
	steps := maxSteps
	got, other, err := p.try(ctx, id, text, security, &steps)
	if other != nil {
		owner, _, quarantined := Quarantined(other)
		if !quarantined {
			owner = p.Text(other)
		}
		return Taken{}, &allocator.ConflictError{Key: text, Held: id, Owner: owner, Quarantined: quarantined}
	}
	return got, err
}
