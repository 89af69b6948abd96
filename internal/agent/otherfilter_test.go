package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"golang.org/x/time/rate"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	making "github.com/hawser-net/hawser/internal/operator/identities"
	managers "github.com/hawser-net/hawser/internal/operator/kube"
)

// TestOtherFilterStopsCollection: an agent that was started with other --labels than the operator
// shows so by its CiliumNode, and no identity is collected until it has the same.
func TestOtherFilterStopsCollection(t *testing.T) {
	t.Parallel()
	c, n1, _, _ := operatorManaged(t)
	rc := rest.CopyConfig(c.Config)
	managers.Apart(rc)
	log := slog.New(slog.DiscardHandler)
	m, err := managers.NewManager(rc, log)
	if err != nil {
		t.Fatal(err)
	}
	control := making.ControlDefaults()
	rules, err := control.Rules("default", identity.MinGlobal, 65535)
	if err != nil {
		t.Fatal(err)
	}
	gc := making.Config{Interval: 200 * time.Millisecond, Rest: time.Hour, Limiter: rate.NewLimiter(rate.Inf, 1), First: 256, Last: 65535}
	if gc.Pods, err = making.Setup(m, control, rules, nil, prometheus.NewRegistry(), log); err != nil {
		t.Fatal(err)
	}
	var refused atomic.Int64
	if err := making.SetupGC(m, gc, func(_ making.Stats, _ time.Duration, err error) {
		if err != nil && strings.Contains(err.Error(), "(nodes n1)") {
			refused.Add(1)
		}
	}, log); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the operator ended with: %v", err)
		}
	})
	unused := func(name string) {
		t.Helper()
		o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: name}, SecurityLabels: map[string]string{"k8s:app": name}}
		if _, err := c.identities().Create(t.Context(), o, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	rests := func(name string) bool {
		o, err := c.identities().Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		_, _, rests := k8sids.Retired(o)
		return rests
	}
	unused("4000")
	c.eventually("agents and operator agree: it collects", func() bool { return rests("4000") })
	n1.stop()
	n1.flags = append(n1.flags, "--labels", "k8s:!zone")
	n1.start()
	c.eventually("the operator refuses to collect", func() bool { return refused.Load() > 0 })
	unused("4001")
	before := refused.Load()
	c.eventually("the operator goes on to refuse", func() bool { return refused.Load() >= before+3 })
	if rests("4001") {
		t.Error("an identity was collected while an agent makes others of the same labels")
	}
	n1.stop()
	n1.flags = n1.flags[:len(n1.flags)-2]
	n1.start()
	c.eventually("it collects again", func() bool { return rests("4001") })
}
