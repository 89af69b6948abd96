package identities

import (
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// Annotations of a number in quarantine: when it was retired, in RFC 3339, and the canonical string
// of the labels that it had.
const (
	RetiredAnnotation       = "hawser.net/retired"
	RetiredLabelsAnnotation = "hawser.net/retired-labels"
	// TakenAnnotation is on a number that was in quarantine and was given to other labels, as no
	// other was free: the version of the object that was taken.
	TakenAnnotation = "hawser.net/taken"
)

// Incarnation names what o is the identity of: it is another one if the object was made anew, or
// taken for other labels. While it is the same, other labels are an edit by hand.
func Incarnation(o *v2.CiliumIdentity) types.UID {
	if taken := o.Annotations[TakenAnnotation]; taken != "" {
		return o.UID + "/" + types.UID(taken)
	}
	return o.UID
}

// Retire makes o, an object that nobody uses, the record of a number in quarantine: it has no
// labels, so it is nobody's identity, but the object holds the number. Every writer, of whatever
// version, meets it and goes on to another number; none has to remember anything. canonical is what
// o's labels were.
func Retire(o *v2.CiliumIdentity, canonical string, now time.Time) {
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	delete(o.Annotations, HeartbeatAnnotation)
	o.Annotations[RetiredAnnotation] = now.UTC().Format(time.RFC3339)
	o.Annotations[RetiredLabelsAnnotation] = canonical
	o.SecurityLabels = map[string]string{} // the definition demands the field
	delete(o.Labels, labels.KeyNamespace)
}

// Retired reports whether an object is the record of a number in quarantine, since when, and what
// it stood for. The zero time is one that cannot be read.
func Retired(o *v2.CiliumIdentity) (canonical string, since time.Time, ok bool) {
	text, marked := o.Annotations[RetiredAnnotation]
	if !marked || len(o.SecurityLabels) > 0 { // whoever gave it labels has taken it into use
		return "", time.Time{}, false
	}
	since, err := time.Parse(time.RFC3339, text)
	if err != nil {
		since = time.Time{}
	}
	return o.Annotations[RetiredLabelsAnnotation], since, true
}

// Revive makes o the identity of these security labels. It may have been in quarantine, or been
// changed by somebody.
func Revive(o *v2.CiliumIdentity, security map[string]string) {
	delete(o.Annotations, HeartbeatAnnotation)
	delete(o.Annotations, RetiredAnnotation)
	delete(o.Annotations, RetiredLabelsAnnotation)
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

// NewObject returns the object of a number that stands for these security labels.
func NewObject(id allocator.ID, security map[string]string) *v2.CiliumIdentity {
	out := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id.String()}}
	fill(out, security)
	return out
}
