package identities

import (
	"context"

	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"

	"github.com/hawser-net/hawser/internal/identity"
)

// identityStore is where IDs are kept: [objectStore] or [keyStore]. The controller decides what
// is to be done for a set of labels, an identity store does it. What follows from it comes back by
// way of the observer. Its methods may be called from many goroutines, but for one set of labels by
// one at a time.
type identityStore interface {
	// follow reports every ID and its changes to l, until ctx ends. The function that it returns
	// reports whether all IDs that existed at the start have been reported.
	follow(ctx context.Context, informers cache.Cache, l observer) (toolscache.InformerSynced, error)
	// run does what goes on all the time, until ctx ends. It returns an error if the identity store
	// is of no use any more.
	run(ctx context.Context) error

	// make finds or makes an ID for a set of labels.
	make(ctx context.Context, st step) (made, error)
	// restore gives the set the ID again that its endpoints carry, or another one if that belongs
	// to other labels now or is in quarantine after them. revert undoes an edit of the ID's labels.
	restore(ctx context.Context, st step) (made, error)
	revert(ctx context.Context, st step) (made, error)
	// seal records with an ID which labels it was given: those that it has.
	seal(ctx context.Context, st step) error
	// withdraw ends an ID that make made; it is in quarantine then, as agents may have observed it.
	withdraw(ctx context.Context, st step) error
	// labelsOf reads, not from a cache, which labels an ID stands for now; "" if for none.
	labelsOf(ctx context.Context, id identity.ID) (text string, err error)
	// release releases an ID that make or restore reported as held.
	release(ctx context.Context, text string) error
}

// observer is notified of IDs.
type observer interface {
	setID(now *idEntry)
	dropID(id identity.ID)
}

// made is what an identity store did for a set of labels.
type made struct {
	// id is the ID, and uid what to know it by, if this call made it; 0 and "" else.
	id  identity.ID
	uid types.UID
	// held means that a reference keeps the ID in force until release.
	held bool
}
