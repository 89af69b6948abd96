package multipool

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"path"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
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
	return tr.runOn(tr.Server.Config, cfg)
}

func (tr *trial) runOn(rc *rest.Config, cfg Config) (stop func()) {
	tr.Helper()
	cfg.quarantineTime = time.Second
	return controllers.Run(tr.T, rc, func(ctx context.Context, m manager.Manager, log *slog.Logger) error {
		return Setup(ctx, m, cfg, prometheus.NewRegistry(), log)
	})
}

// node makes a node that asks for addresses, as "pool=number".
func (tr *trial) node(name string, asks ...string) {
	tr.Helper()
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.IPAM.Pools.Requested = requests(asks)
	tr.Create(tr.T, n)
}

func requests(asks []string) (out []v2.IPAMPoolRequest) {
	for _, ask := range asks {
		r := v2.IPAMPoolRequest{}
		pool, number, _ := strings.Cut(ask, "=")
		r.Pool = pool
		fmt.Sscan(number, &r.Needed.IPv4Addrs)
		out = append(out, r)
	}
	return out
}

func (tr *trial) get(name string) *v2.CiliumNode {
	tr.Helper()
	n := &v2.CiliumNode{}
	if err := tr.Client.Get(context.Background(), types.NamespacedName{Name: name}, n); err != nil {
		tr.Fatal(err)
	}
	return n
}

// edit changes a node as its agent does.
func (tr *trial) edit(name string, change func(*v2.IPAMPools)) {
	tr.Helper()
	for {
		n := tr.get(name)
		change(&n.Spec.IPAM.Pools)
		err := tr.Client.Update(tr.Context(), n)
		if err == nil {
			return
		}
		if !apierrors.IsConflict(err) {
			tr.Fatal(err)
		}
	}
}

// pool creates or changes a pool.
func (tr *trial) pool(name string, bits int, cidrs ...string) {
	tr.Helper()
	want := v2alpha1.IPPoolSpec{IPv4: &v2alpha1.IPv4PoolSpec{CIDRs: cidrs, MaskSize: bits}}
	o := &v2alpha1.CiliumPodIPPool{}
	if err := tr.Client.Get(tr.Context(), types.NamespacedName{Name: name}, o); err == nil {
		o.Spec = want
		if err := tr.Client.Update(tr.Context(), o); err != nil {
			tr.Fatal(err)
		}
		return
	}
	tr.Create(tr.T, &v2alpha1.CiliumPodIPPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: want})
}

func shown(n *v2.CiliumNode) string {
	var out []string
	for _, a := range n.Spec.IPAM.Pools.Allocated {
		out = append(out, a.Pool+" "+strings.Join(a.CIDRs, ","))
	}
	return strings.Join(out, "; ")
}

// wants waits until a node has these blocks and a fault that contains the text; "" for none.
func (tr *trial) wants(name, fault, blocks string) {
	tr.Helper()
	controllers.Eventually(tr.T, 2*time.Minute, func() string {
		n := tr.get(name)
		text := n.Status.IPAM.OperatorStatus.Error
		if shown(n) != blocks || (fault == "") != (text == "") || !strings.Contains(text, fault) {
			return fmt.Sprintf("%s has %q, fault %q; want %q, %q", name, shown(n), text, blocks, fault)
		}
		return ""
	})
}

func TestController(t *testing.T) {
	env := controllers.Start(t)
	run := func(name string, f func(*trial)) {
		t.Run(name, func(t *testing.T) { f(&trial{t, env}) })
	}
	run("a pool that is created at the start", func(tr *trial) {
		cfg := Defaults()
		cfg.Create = "made=ipv4-cidrs:10.3.0.0/24;ipv4-mask-size:28"
		tr.Cleanup(func() {
			_ = env.Client.Delete(context.Background(), &v2alpha1.CiliumPodIPPool{ObjectMeta: metav1.ObjectMeta{Name: "made"}})
		})
		stop := tr.run(cfg)
		tr.node("a", "made=8")
		tr.wants("a", "", "made 10.3.0.0/28")
		stop()
		cfg.Create = "made=ipv4-cidrs:10.4.0.0/24;ipv4-mask-size:28"
		tr.run(cfg) // it exists, and stays as it is
		tr.node("b", "made=8")
		tr.wants("b", "", "made 10.3.0.16/28")
	})
	run("a server that does not answer at first", func(tr *trial) {
		cfg := Defaults()
		cfg.Create = "late=ipv4-cidrs:10.5.0.0/24;ipv4-mask-size:28"
		tr.Cleanup(func() {
			_ = env.Client.Delete(context.Background(), &v2alpha1.CiliumPodIPPool{ObjectMeta: metav1.ObjectMeta{Name: "late"}})
		})
		failing := &overloaded{left: map[string]int{"POST ciliumpodippools": 2, "GET ciliumpodippools": 2, "GET ciliumnodes": 2}}
		rc := rest.CopyConfig(tr.Server.Config)
		rc.Wrap(func(next http.RoundTripper) http.RoundTripper {
			failing.next = next
			return failing
		})
		tr.runOn(rc, cfg)
		failing.mu.Lock()
		for what, left := range failing.left {
			if left > 0 {
				tr.Errorf("%s: %d of 2 failures are left", what, left)
			}
		}
		failing.mu.Unlock()
		tr.node("a", "late=8")
		tr.wants("a", "", "late 10.5.0.0/28")
	})
	run("growth, shrinking and hand-back", func(tr *trial) {
		tr.pool("default", 28, "10.0.0.0/28")
		tr.run(Defaults())
		tr.node("a", "default=14")
		tr.wants("a", "", "default 10.0.0.0/28")
		tr.node("b", "default=8", "blue=2")
		tr.wants("b", "there is no CiliumPodIPPool blue", "")
		tr.wants("b", "all 1 block of /28 in 10.0.0.0/28 are held", "")
		tr.pool("blue", 30, "10.1.0.0/29")
		tr.pool("default", 28, "10.0.0.0/28", "10.2.0.0/28")
		tr.wants("b", "", "blue 10.1.0.0/30; default 10.2.0.0/28")
		// A range goes to another pool while a node has it.
		tr.pool("default", 28, "10.2.0.0/27")
		tr.pool("blue", 28, "10.0.0.0/28")
		tr.wants("a", `pool "default" does not have 10.0.0.0/28 (any more)`, "default 10.0.0.0/28,10.2.0.16/28")
		tr.wants("b", `pool "blue" does not have 10.1.0.0/30 (any more)`, "blue 10.1.0.0/30; default 10.2.0.0/28")
		tr.edit("a", func(p *v2.IPAMPools) { p.Allocated[0].CIDRs = p.Allocated[0].CIDRs[1:] })
		tr.wants("a", "", "default 10.2.0.16/28")
		tr.wants("b", `pool "blue" does not have 10.1.0.0/30 (any more)`, "blue 10.1.0.0/30,10.0.0.0/28; default 10.2.0.0/28")
	})
	run("a new operator gives nothing that is held", func(tr *trial) {
		tr.pool("default", 28, "10.0.0.0/26")
		n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "old"}}
		n.Spec.IPAM.PodCIDRs = []string{"10.0.0.0/28"} // of cluster-pool
		tr.Create(tr.T, n)
		cfg := Defaults()
		cfg.Migrate = true
		stop := tr.run(cfg)
		tr.node("a", "default=8")
		tr.wants("a", "", "default 10.0.0.16/28")
		stop()
		tr.run(cfg)
		tr.node("b", "default=8")
		tr.wants("b", "", "default 10.0.0.32/28")
		tr.edit("old", func(p *v2.IPAMPools) { p.Requested = requests([]string{"default=8"}) })
		tr.wants("old", "", "default 10.0.0.0/28")
		if got := tr.get("old").Spec.IPAM.PodCIDRs; len(got) > 0 {
			tr.Errorf("podCIDRs are still %v", got)
		}
	})
	run("writes that are lost, and operators that end", func(tr *trial) { lossy(tr) })
}

// overloaded fails the first requests of some kinds: their methods with the last part of the path.
type overloaded struct {
	next http.RoundTripper

	mu   sync.Mutex
	left map[string]int
}

// RoundTrip implements [http.RoundTripper].
func (o *overloaded) RoundTrip(req *http.Request) (*http.Response, error) {
	kind := req.Method + " " + path.Base(req.URL.Path)
	o.mu.Lock()
	fails := o.left[kind] > 0
	if fails {
		o.left[kind]--
	}
	o.mu.Unlock()
	if !fails {
		return o.next.RoundTrip(req)
	}
	if req.Body != nil {
		req.Body.Close()
	}
	return &http.Response{StatusCode: http.StatusInternalServerError, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("overloaded")), Request: req}, nil
}

// WrappedRoundTripper lets connections be closed.
func (o *overloaded) WrappedRoundTripper() http.RoundTripper { return o.next }

// unreliable loses every third write: in turn the request, and the answer.
type unreliable struct {
	next http.RoundTripper
	n    *atomic.Int64
}

var errLost = errors.New("lost on the way")

// RoundTrip implements [http.RoundTripper].
func (u unreliable) RoundTrip(req *http.Request) (*http.Response, error) {
	if req.Method != http.MethodPatch {
		return u.next.RoundTrip(req)
	}
	n := u.n.Add(1)
	if n%6 == 0 {
		return nil, errLost
	}
	resp, err := u.next.RoundTrip(req)
	if err == nil && n%6 == 3 {
		resp.Body.Close()
		return nil, errLost
	}
	return resp, err
}

// WrappedRoundTripper lets connections be closed.
func (u unreliable) WrappedRoundTripper() http.RoundTripper { return u.next }

// lossy has agents ask for more and hand back, while writes are lost and operators end, and watches
// every state of every node: no two have the same at any time.
func lossy(tr *trial) {
	tr.pool("default", 28, "10.0.0.0/23") // 32 blocks
	var mu sync.Mutex
	held, of := map[netip.Prefix]string{}, map[string][]netip.Prefix{}
	seen := func(n *v2.CiliumNode, gone bool) {
		mu.Lock()
		defer mu.Unlock()
		for _, p := range of[n.Name] {
			delete(held, p)
		}
		of[n.Name] = nil
		if gone {
			return
		}
		for _, a := range n.Spec.IPAM.Pools.Allocated {
			for _, text := range a.CIDRs {
				p := netip.MustParsePrefix(text)
				if other, ok := held[p]; ok {
					tr.Errorf("%s and %s both have %s", n.Name, other, p)
				}
				held[p] = n.Name
				of[n.Name] = append(of[n.Name], p)
			}
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
			if n, ok := e.Object.(*v2.CiliumNode); ok {
				seen(n, e.Type == "DELETED")
			}
		}
	}()
	defer func() {
		w.Stop()
		<-watched
	}()
	rc := rest.CopyConfig(tr.Server.Config)
	var writes atomic.Int64
	rc.Wrap(func(next http.RoundTripper) http.RoundTripper { return unreliable{next, &writes} })
	stop := tr.runOn(rc, Defaults())
	const nodes = 8
	for i := range nodes {
		tr.node(fmt.Sprint("l", i), "default=14")
	}
	for round := range 6 {
		for i := range nodes {
			tr.edit(fmt.Sprint("l", i), func(p *v2.IPAMPools) {
				p.Requested[0].Needed.IPv4Addrs = 14 * (1 + (round+i)%4)
				for j := range p.Allocated { // and one block is not needed any more
					if cidrs := p.Allocated[j].CIDRs; len(cidrs) > 1 {
						p.Allocated[j].CIDRs = cidrs[1:]
					}
				}
			})
		}
		if round%2 == 1 { // in the middle of it
			stop()
			stop = tr.runOn(rc, Defaults())
		}
		for i := range nodes {
			name := fmt.Sprint("l", i)
			controllers.Eventually(tr.T, 90*time.Second, func() string {
				n := tr.get(name)
				have := 0
				for _, a := range n.Spec.IPAM.Pools.Allocated {
					have += 14 * len(a.CIDRs)
				}
				if want := n.Spec.IPAM.Pools.Requested[0].Needed.IPv4Addrs; have < want {
					return fmt.Sprintf("%s has %d addresses and asks for %d: %q", name, have, want, n.Status.IPAM.OperatorStatus.Error)
				}
				return ""
			})
		}
	}
	stop()
	if writes.Load() < 6 {
		tr.Errorf("only %d writes were tried, so not every kind of loss was", writes.Load())
	}
}
