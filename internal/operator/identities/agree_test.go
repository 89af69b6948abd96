package identities

import (
	"errors"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"golang.org/x/time/rate"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/labels"
)

// TestOtherFilters: as long as one agent makes other labels count than the operator, or does not
// say which, no identity is collected, and it is said whose agent that is.
func TestOtherFilters(t *testing.T) {
	t.Parallel()
	env := servers.Take(t)
	l := newLagging(t, env, false, rate.Inf)
	other, err := labels.NewFilter([]string{"k8s:!zone"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	node := func(name, filter string) client.Object {
		o := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
		if filter != "" {
			o.Annotations = map[string]string{nodes.LabelFilterAnnotation: filter}
		}
		if err := l.Client.Create(l.ctx, o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	// stays checks that an unused ID is not collected until f was called.
	stays := func(what, name, culprit string, f func()) {
		t.Helper()
		l.plant(name)
		before := l.refused.Load()
		l.eventually("the operator refuses to collect: "+what, func() bool { return l.refused.Load() >= before+4 })
		if l.quarantined(name) {
			t.Errorf("%s: an identity was collected", what)
		}
		if err := l.last.Load(); err == nil || !errors.Is(*err, errDiffer) || !strings.Contains((*err).Error(), "(nodes "+culprit+")") {
			t.Errorf("%s: the operator says %v", what, err)
		}
		f()
		l.eventually("it collects again: "+what, func() bool { return l.quarantined(name) })
	}
	node("same", l.rules.Filter.Fingerprint())
	l.plant("1000")
	l.eventually("all agree: it collects", func() bool { return l.quarantined("1000") })
	o := node("other", other.Fingerprint())
	stays("another filter", "1001", "other", func() {
		l.edit(o, func(o client.Object) {
			o.SetAnnotations(map[string]string{nodes.LabelFilterAnnotation: l.rules.Filter.Fingerprint()})
		})
	})
	o = node("silent", "")
	stays("an agent that does not say", "1002", "silent", func() {
		if err := l.Client.Delete(l.ctx, o); err != nil {
			t.Fatal(err)
		}
	})
}
