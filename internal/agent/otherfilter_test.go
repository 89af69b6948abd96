package agent

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	making "github.com/hawser-net/hawser/internal/operator/identities"
)

// TestOtherFilterStopsCollection: an agent that was started with other --labels than the operator
// shows so by its CiliumNode, and no identity is collected until it has the same.
func TestOtherFilterStopsCollection(t *testing.T) {
	t.Parallel()
	c, n1, _, _ := operatorManaged(t)
	var refused atomic.Int64
	c.collectingWith(making.Config{Interval: 200 * time.Millisecond, Quarantine: time.Hour}, func(err error) {
		if err != nil && strings.Contains(err.Error(), "(nodes n1)") {
			refused.Add(1)
		}
	})
	unused := func(name string) {
		t.Helper()
		o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: name}, SecurityLabels: map[string]string{"k8s:app": name}}
		if _, err := c.identities().Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	quarantined := func(name string) bool {
		o, err := c.identities().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		_, _, quarantined := k8sids.Quarantined(o)
		return quarantined
	}
	unused("4000")
	c.eventually("agents and operator agree: it collects", func() bool { return quarantined("4000") })
	n1.stop()
	n1.flags = append(n1.flags, "--labels", "k8s:!zone")
	n1.start()
	c.eventually("the operator refuses to collect", func() bool { return refused.Load() > 0 })
	unused("4001")
	before := refused.Load()
	c.eventually("the operator goes on to refuse", func() bool { return refused.Load() >= before+3 })
	if quarantined("4001") {
		t.Error("an identity was collected while an agent makes others of the same labels")
	}
	n1.stop()
	n1.flags = n1.flags[:len(n1.flags)-2]
	n1.start()
	c.eventually("it collects again", func() bool { return quarantined("4001") })
}
