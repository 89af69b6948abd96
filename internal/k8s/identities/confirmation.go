package identities

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strconv"
	"strings"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s"
)

// Confirmation is what an agent confirms of the identities that it has observed: those that were
// put in quarantine or deleted up to a version are none to its node any more. See
// docs/design/0010-reuse.md. It holds over restarts: of several of a node the highest counts, see
// [SumUp].
type Confirmation struct {
	Node string
	// Version is a resource version of CiliumIdentities. 0 takes back what the node confirmed
	// before.
	Version uint64
	// Origin, if not empty, distinguishes what is confirmed for the same version before and after
	// something was taken back: there are no two Leases of a name, and an agent may not change one.
	Origin string
}

// What marks the Leases by which agents confirm it.
const (
	// ConfirmationLabel is on each of them, with ConfirmationLabelValue.
	ConfirmationLabel      = "network.hawser.net/part"
	ConfirmationLabelValue = "identities-confirmed"

	confirmationAnnotation = "network.hawser.net/identities-confirmed"
)

// maxName is the longest name of an object.
const maxName = 253

// Lease returns the object that confirms it. Each is an object of its own, so that agents need no
// right but to create some, in a namespace where the Leases of others are; the operator deletes
// those that a higher one makes superfluous.
func (h Confirmation) Lease(namespace string) *coordinationv1.Lease {
	version := strconv.FormatUint(h.Version, 10)
	end := "." + version
	if h.Origin != "" {
		end += "." + h.Origin
	}
	name := ConfirmationLabelValue + "." + h.Node + end
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(h.Node))
		name = ConfirmationLabelValue + "." + hex.EncodeToString(sum[:]) + end
	}
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{ConfirmationLabel: ConfirmationLabelValue}, Annotations: map[string]string{confirmationAnnotation: version},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &h.Node},
	}
}

// ReadConfirmation returns what a Lease confirms; ok is false if it does not name the node. A
// version that cannot be read is 0. So is one that the server had not reached when it made the
// Lease: it is from before the server went back to an old copy, whose versions mean something else
// since.
func ReadConfirmation(o *coordinationv1.Lease) (h Confirmation, ok bool) {
	if o.Spec.HolderIdentity == nil || *o.Spec.HolderIdentity == "" {
		return Confirmation{}, false
	}
	n, err := strconv.ParseUint(o.Annotations[confirmationAnnotation], 10, 64)
	if err != nil {
		n = 0
	}
	if made, err := strconv.ParseUint(o.ResourceVersion, 10, 64); err == nil && n >= made {
		n = 0
	}
	return Confirmation{Node: *o.Spec.HolderIdentity, Version: n}, true
}

// SumUp returns the version up to which each node has confirmed, and the Leases that are no longer
// needed. A Lease that revokes its node's confirmations invalidates all older ones: of the others
// the one with the highest version counts. The resource version of a Lease shows its age, as Leases
// of agents are never updated. One that revokes others is needed until those are gone.
func SumUp(all []*coordinationv1.Lease) (said map[string]uint64, needless []*coordinationv1.Lease) {
	type record struct {
		lease     *coordinationv1.Lease
		confirmed uint64
		made      uint64
	}
	records := map[string][]record{}
	for _, o := range all {
		h, ok := ReadConfirmation(o)
		if !ok {
			needless = append(needless, o)
			continue
		}
		made := k8s.VersionOf(o) // without one it is as old as can be
		records[h.Node] = append(records[h.Node], record{o, h.Version, made})
	}
	said = make(map[string]uint64, len(records))
	for node, list := range records {
		slices.SortFunc(list, func(x, y record) int {
			return cmp.Or(cmp.Compare(x.made, y.made), strings.Compare(x.lease.Name, y.lease.Name))
		})
		after := 0 // the first that is not taken back; list[after-1] takes the others back
		for i, w := range list {
			if w.confirmed == 0 {
				after = i + 1
			}
		}
		best := -1
		for i := after; i < len(list); i++ {
			if best < 0 || list[i].confirmed > list[best].confirmed {
				best = i
			}
		}
		said[node] = 0
		if best >= 0 {
			said[node] = list[best].confirmed
		}
		for i, w := range list {
			if i == best || i == after-1 && (best < 0 || i > 0) {
				continue
			}
			needless = append(needless, w.lease)
		}
	}
	return said, needless
}

// Confirm implements [allocator.Backend]: it does so by a Lease. A revision of 0 takes back what
// was confirmed before.
func (b *Backend) Confirm(ctx context.Context, revision int64) error {
	if b.cfg.Node == "" || b.cfg.Namespace == "" || revision < 0 {
		return errors.New("to confirm the end of identities, a node and a namespace are needed")
	}
	if revision == 0 || b.origin.Load() == nil {
		origin := strconv.FormatUint(uint64(rand.Uint32()), 16)
		b.origin.Store(&origin)
	}
	o := Confirmation{Node: b.cfg.Node, Version: uint64(revision), Origin: *b.origin.Load()}.Lease(b.cfg.Namespace)
	_, err := b.cfg.Client.Urgent.CoordinationV1().Leases(b.cfg.Namespace).Create(ctx, o, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("confirm by Lease %s/%s which identities have ended: %w", b.cfg.Namespace, o.Name, err)
	}
	return nil
}

// ObserveLostConfirmation implements [allocator.Backend]. Such a Lease is on no lease of a store.
func (b *Backend) ObserveLostConfirmation(func()) (stop func()) { return func() {} }
