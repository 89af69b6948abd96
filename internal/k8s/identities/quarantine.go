package identities

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// Annotations of an ID in quarantine: when it was put there, in RFC 3339, and the canonical string
// of the labels that it had.
const (
	QuarantinedAnnotation       = "hawser.net/quarantined"
	QuarantinedLabelsAnnotation = "hawser.net/quarantined-labels"
	// TakenAnnotation is on an ID that was in quarantine and was given to other labels, as no
	// other was free: the version of the object that was taken.
	TakenAnnotation = "hawser.net/taken"
)

// Incarnation identifies one assignment of labels to o: it changes if the object is recreated, or
// taken for other labels. While it is the same, other labels are an edit by hand.
func Incarnation(o *v2.CiliumIdentity) types.UID {
	if taken := o.Annotations[TakenAnnotation]; taken != "" {
		return o.UID + "/" + types.UID(taken)
	}
	return o.UID
}

// Quarantine turns o, an unused object, into the record of an ID in quarantine: it has no labels,
// so it is no identity, but the object reserves the ID. Writers of every version find the name
// taken and try another ID; none needs state for that. canonical is the former labels.
func Quarantine(o *v2.CiliumIdentity, canonical string, now time.Time) {
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	delete(o.Annotations, HeartbeatAnnotation)
	o.Annotations[QuarantinedAnnotation] = now.UTC().Format(time.RFC3339)
	o.Annotations[QuarantinedLabelsAnnotation] = canonical
	o.SecurityLabels = map[string]string{} // the definition demands the field
	delete(o.Labels, labels.KeyNamespace)
}

// Quarantined reports whether an object is the record of an ID in quarantine, since when, and what
// it stood for. The zero time is one that cannot be read.
func Quarantined(o *v2.CiliumIdentity) (canonical string, since time.Time, ok bool) {
	text, marked := o.Annotations[QuarantinedAnnotation]
	if !marked || len(o.SecurityLabels) > 0 { // with labels it is in use again
		return "", time.Time{}, false
	}
	since, err := time.Parse(time.RFC3339, text)
	if err != nil {
		since = time.Time{}
	}
	return o.Annotations[QuarantinedLabelsAnnotation], since, true
}

// Restore makes o the identity of these security labels. It may have been in quarantine, or edited.
func Restore(o *v2.CiliumIdentity, security map[string]string) {
	delete(o.Annotations, HeartbeatAnnotation)
	delete(o.Annotations, QuarantinedAnnotation)
	delete(o.Annotations, QuarantinedLabelsAnnotation)
	fill(o, security)
}

// fill gives an object its labels, sealed. Its [TakenAnnotation] is as it is to be.
func fill(o *v2.CiliumIdentity, security map[string]string) {
	o.SecurityLabels = security
	if ns := security[labels.SourceK8s+":"+labels.KeyNamespace]; ns != "" {
		if o.Labels == nil {
			o.Labels = map[string]string{}
		}
		o.Labels[labels.KeyNamespace] = ns
	}
	Seal(o)
}

// NewObject returns the object of an ID that stands for these security labels.
func NewObject(id allocator.ID, security map[string]string) *v2.CiliumIdentity {
	out := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id.String()}}
	fill(out, security)
	return out
}
