package clusterpool

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/assign"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.VerifyTestMain(m) }

type trial struct {
	*testing.T
	*controllers.Env
}

func (tr *trial) run(cfg Config) (stop func()) {
	tr.Helper()
	return tr.Env.Run(tr.T, func(ctx context.Context, m manager.Manager, log *slog.Logger) error {
		return Setup(ctx, m, cfg, prometheus.NewRegistry(), log)
	})
}

func (tr *trial) node(name string, cidrs ...string) *v2.CiliumNode {
	tr.Helper()
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.IPAM.PodCIDRs = cidrs
	tr.Create(tr.T, n)
	return n
}

func (tr *trial) get(name string) *v2.CiliumNode {
	tr.Helper()
	n := &v2.CiliumNode{}
	if err := tr.Client.Get(tr.Context(), types.NamespacedName{Name: name}, n); err != nil {
		tr.Fatal(err)
	}
	return n
}

// wants waits until a node has these blocks and a fault that contains the text; "" for none.
func (tr *trial) wants(name, fault string, cidrs ...string) {
	tr.Helper()
	controllers.Eventually(tr.T, 2*time.Minute, func() string {
		n := tr.get(name)
		text := n.Status.IPAM.OperatorStatus.Error
		if !slices.Equal(n.Spec.IPAM.PodCIDRs, cidrs) || (fault == "") != (text == "") || !strings.Contains(text, fault) {
			return fmt.Sprintf("%s has %v, fault %q; want %v, %q", name, n.Spec.IPAM.PodCIDRs, text, cidrs, fault)
		}
		return ""
	})
}

func (tr *trial) delete(name string) {
	tr.Helper()
	if err := tr.Client.Delete(tr.Context(), &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
		tr.Fatal(err)
	}
}

func (tr *trial) edit(name string, cidrs ...string) {
	tr.Helper()
	for {
		n := tr.get(name)
		n.Spec.IPAM.PodCIDRs = cidrs
		err := tr.Client.Update(tr.Context(), n)
		if err == nil {
			return
		}
		if !strings.Contains(err.Error(), "the object has been modified") {
			tr.Fatal(err)
		}
	}
}

func TestController(t *testing.T) {
	env := controllers.Start(t)
	run := func(name string, f func(*trial)) {
		t.Run(name, func(t *testing.T) { f(&trial{t, env}) })
	}
	run("what nodes hold comes first", func(tr *trial) {
		tr.node("a", "10.0.0.0/24", "fd00::/112")
		tr.node("b")
		tr.run(config("10.0.0.0/22", "fd00::/110"))
		tr.wants("b", "", "10.0.1.0/24", "fd00::1:0/112")
		tr.wants("a", "", "10.0.0.0/24", "fd00::/112")
	})
	run("exhausted, and released", func(tr *trial) {
		tr.run(config("10.0.0.0/23", ""))
		for i := range 4 {
			tr.node(fmt.Sprint("n", i))
		}
		given := func() (have, faults []string) {
			for i := range 4 {
				n := tr.get(fmt.Sprint("n", i))
				if len(n.Spec.IPAM.PodCIDRs) > 0 {
					have = append(have, n.Name)
				}
				if strings.Contains(n.Status.IPAM.OperatorStatus.Error, "all 2 blocks of /24 in 10.0.0.0/23 are held") {
					faults = append(faults, n.Name)
				}
			}
			return have, faults
		}
		for range 2 {
			controllers.Eventually(tr.T, 10*time.Second, func() string {
				if have, faults := given(); len(have) != 2 || len(faults) != 2 {
					return fmt.Sprintf("served: %v, not served: %v", have, faults)
				}
				return ""
			})
			have, _ := given()
			tr.delete(have[0]) // a node that waits is served, soon
			began := time.Now()
			controllers.Eventually(tr.T, 10*time.Second, func() string {
				n, faults := 0, 0
				var all v2.CiliumNodeList
				if err := tr.Client.List(tr.Context(), &all); err != nil {
					return err.Error()
				}
				for _, one := range all.Items {
					n += len(one.Spec.IPAM.PodCIDRs)
					if one.Status.IPAM.OperatorStatus.Error != "" {
						faults++
					}
				}
				if n != 2 || faults != 1 {
					return fmt.Sprintf("%d are served, %d are not", n, faults)
				}
				return ""
			})
			if took := time.Since(began); took > assign.WaitingRetry/2 {
				t.Errorf("it took %s", took)
			}
			tr.node(have[0])
		}
	})
	run("conflict", func(tr *trial) {
		tr.node("old", "10.0.0.0/24")
		time.Sleep(1100 * time.Millisecond) // ages are in seconds
		tr.node("young", "10.0.0.0/25")
		stop := tr.run(config("10.0.0.0/22", ""))
		tr.wants("young", "10.0.0.0/25 overlaps 10.0.0.0/24 of node old", "10.0.0.0/25")
		tr.wants("old", "", "10.0.0.0/24")
		tr.edit("young")
		tr.wants("young", "", "10.0.1.0/24")
		// The older one takes it by hand; the younger's status reports it, also after a restart.
		tr.edit("old", "10.0.1.0/24")
		tr.wants("young", "of node old", "10.0.1.0/24")
		stop()
		tr.run(config("10.0.0.0/22", ""))
		tr.edit("old", "10.0.3.0/24")
		tr.wants("old", "", "10.0.3.0/24")
		tr.edit("young", "10.0.1.0/24", "10.0.2.0/24")
		tr.wants("young", "", "10.0.1.0/24", "10.0.2.0/24")
	})
	run("what people remove comes back", func(tr *trial) {
		tr.run(config("10.0.0.0/22", "fd00::/110"))
		tr.node("a")
		tr.wants("a", "", "10.0.0.0/24", "fd00::/112")
		tr.edit("a")
		tr.wants("a", "", "10.0.0.0/24", "fd00::/112")
		tr.edit("a", "fd00::/112")
		tr.wants("a", "", "fd00::/112", "10.0.0.0/24")
	})
	run("what agents write stays", func(tr *trial) {
		tr.run(config("10.0.0.0/22", ""))
		n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "a", Labels: map[string]string{"a": "b"}}}
		n.Spec.Addresses = []v2.NodeAddress{{Type: v2.AddressInternalIP, IP: "192.0.2.1"}}
		n.Spec.BootID = "boot"
		n.Status.IPAM.PodCIDRs = map[string]v2.PodCIDRMapEntry{"10.0.0.0/24": {Status: v2.PodCIDRReleased}}
		tr.Create(tr.T, n)
		tr.wants("a", "", "10.0.0.0/24")
		got := tr.get("a")
		if got.Spec.BootID != "boot" || len(got.Spec.Addresses) != 1 || got.Labels["a"] != "b" || len(got.Status.IPAM.PodCIDRs) != 1 {
			t.Errorf("after the write: %+v", got)
		}
	})
	run("restarts among many", func(tr *trial) { restarts(tr) })
}

// restarts has nodes come and go while the operator is restarted again and again, twice at once for
// a moment each time, and watches every state of every node: no two have the same at any time.
func restarts(tr *trial) {
	cfg := config("10.0.0.0/19", "fd00::/107") // 32 of each
	type state struct {
		mu   sync.Mutex
		held map[string]string // block to node
		of   map[string][]string
	}
	s := state{held: map[string]string{}, of: map[string][]string{}}
	seen := func(name string, cidrs []string) {
		s.mu.Lock()
		defer s.mu.Unlock()
		for _, c := range s.of[name] {
			delete(s.held, c)
		}
		s.of[name] = cidrs
		for _, c := range cidrs {
			if other, ok := s.held[c]; ok {
				tr.Errorf("%s and %s both have %s", name, other, c)
			}
			s.held[c] = name
		}
	}
	watcher, err := client.NewWithWatch(tr.Server.Config, client.Options{Scheme: tr.Client.Scheme()})
	if err != nil {
		tr.Fatal(err)
	}
	w, err := watcher.Watch(tr.Context(), &v2.CiliumNodeList{})
	if err != nil {
		tr.Fatal(err)
	}
	watched := make(chan struct{})
	go func() {
		defer close(watched)
		for e := range w.ResultChan() {
			if n, ok := e.Object.(*v2.CiliumNode); ok && e.Type == "DELETED" {
				seen(n.Name, nil)
			} else if ok {
				seen(n.Name, n.Spec.IPAM.PodCIDRs)
			}
		}
	}()
	defer func() {
		w.Stop()
		<-watched
	}()
	stop := tr.run(cfg)
	for i := range 40 {
		tr.node(fmt.Sprint("r", i))
		if i >= 20 {
			tr.delete(fmt.Sprint("r", i-20))
		}
		if i%10 == 9 {
			stop()
			stop = tr.run(cfg)
		}
	}
	for i := 20; i < 40; i++ {
		controllers.Eventually(tr.T, 2*time.Minute, func() string {
			if n := tr.get(fmt.Sprint("r", i)); len(n.Spec.IPAM.PodCIDRs) != 2 {
				return fmt.Sprintf("%s has %v", n.Name, n.Spec.IPAM.PodCIDRs)
			}
			return ""
		})
	}
	stop()
}
