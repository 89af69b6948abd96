package identities

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"strconv"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Heard is what an agent says of the identities that it has heard of: those that were retired or deleted up to a version are none to its node any more. See
// docs/design/0010-reuse.md. It holds over restarts: of several of a node the highest counts.
type Heard struct {
	Node string
	// Version is a resource version of CiliumIdentities.
	Version uint64
}

// What marks the Leases by which agents say it.
const (
	// HeardLabel is on each of them, with HeardLabelValue.
	HeardLabel      = "network.hawser.net/part"
	HeardLabelValue = "identities-heard"

	heardAnnotation = "network.hawser.net/identities-heard"
)

// maxName is the longest name of an object.
const maxName = 253

// Lease returns the object that says it. Each is an object of its own, so that agents need no right but to create some, in a namespace where the Leases of
// others are; the operator deletes those that a higher one makes superfluous.
func (h Heard) Lease(namespace string) *coordinationv1.Lease {
	version := strconv.FormatUint(h.Version, 10)
	name := HeardLabelValue + "." + h.Node + "." + version
	if len(name) > maxName {
		sum := sha256.Sum256([]byte(h.Node))
		name = HeardLabelValue + "." + hex.EncodeToString(sum[:]) + "." + version
	}
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: name, Labels: map[string]string{HeardLabel: HeardLabelValue}, Annotations: map[string]string{heardAnnotation: version},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &h.Node},
	}
}

// ReadHeard returns what a Lease says; ok is false if it does not say whose it is. A version that cannot be read is 0. So is one that the server had not reached when
// it made the Lease: it is of before the server went back to an old copy, whose versions mean something else since.
func ReadHeard(o *coordinationv1.Lease) (h Heard, ok bool) {
	if o.Spec.HolderIdentity == nil || *o.Spec.HolderIdentity == "" {
		return Heard{}, false
	}
	n, err := strconv.ParseUint(o.Annotations[heardAnnotation], 10, 64)
	if err != nil {
		n = 0
	}
	if made, err := strconv.ParseUint(o.ResourceVersion, 10, 64); err == nil && n >= made {
		n = 0
	}
	return Heard{Node: *o.Spec.HolderIdentity, Version: n}, true
}

// Confirm implements [allocator.Backend]: it says so by a Lease.
func (b *Backend) Confirm(ctx context.Context, revision int64) error {
	if b.cfg.Node == "" || b.cfg.Namespace == "" || revision < 0 {
		return errors.New("to confirm the end of identities, a node and a namespace are needed")
	}
	o := Heard{Node: b.cfg.Node, Version: uint64(revision)}.Lease(b.cfg.Namespace)
	_, err := b.cfg.Client.Urgent.CoordinationV1().Leases(b.cfg.Namespace).Create(ctx, o, metav1.CreateOptions{})
	if err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("tell by Lease %s/%s which identities have ended: %w", b.cfg.Namespace, o.Name, err)
	}
	return nil
}

// ObserveLostConfirmation implements [allocator.Backend]. A Lease that says it is on no lease of a store.
func (b *Backend) ObserveLostConfirmation(func()) (stop func()) { return func() {} }
