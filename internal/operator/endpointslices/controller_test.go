package endpointslices

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.VerifyTestMain(m) }

// wire stands between an operator and the server: it counts writes of slices, and has them fail.
type wire struct {
	next   http.RoundTripper
	writes atomic.Int64
	// fault, if not nil, is asked about every write of a slice, with its number from 1 on.
	fault func(n int64) fault
}

// fault is what becomes of a request.
type fault int

const (
	none       fault = iota
	refused          // answered with a status, and not done
	unsent           // not sent
	unanswered       // done, and the answer is lost
	deadThen         // not sent, and the operator dies
	deadDone         // done, and the operator dies before it gets the answer
)

// WrappedRoundTripper lets client-go find the connections.
func (w *wire) WrappedRoundTripper() http.RoundTripper { return w.next }

var errWire = errors.New("the wire is cut")

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method == http.MethodGet || !strings.Contains(r.URL.Path, "/ciliumendpointslices") {
		return w.next.RoundTrip(r)
	}
	n := w.writes.Add(1)
	f := none
	if w.fault != nil {
		f = w.fault(n)
	}
	switch f {
	case refused:
		code := []int{409, 429, 500, 503, 504}[n%5]
		h := http.Header{"Content-Type": {"application/json"}}
		body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","status":"Failure","message":"a fault","reason":%q,"code":%d}`, map[int]string{409: "Conflict"}[code], code)
		return &http.Response{StatusCode: code, Status: fmt.Sprint(code), Header: h, Body: io.NopCloser(strings.NewReader(body)), Request: r, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1}, nil
	case unsent, deadThen:
		return nil, errWire
	case unanswered, deadDone:
		if resp, err := w.next.RoundTrip(r); err == nil {
			resp.Body.Close()
		}
		return nil, errWire
	}
	return w.next.RoundTrip(r)
}

// bench is one API server, and the operators of one test on it.
type bench struct {
	*testing.T
	env *controllers.Env
}

// quick is a configuration without the pauses that a big cluster needs.
func quick() Config {
	c := Defaults()
	c.Enable, c.Rates, c.Delay = true, `[{"nodes":0,"limit":50,"burst":100}]`, 50*time.Millisecond
	return c
}

// operator is one that runs.
type operator struct {
	*wire
	stop func()
}

// start starts an operator. It ends with the test, or when stop is called.
func (b *bench) start(cfg Config, resolve Resolve, f func(n int64) fault) *operator {
	b.Helper()
	o := &operator{wire: &wire{}}
	rc := rest.CopyConfig(b.env.Server.Config)
	kube.Apart(rc)
	ctx, cancel := context.WithCancel(context.Background())
	if f != nil {
		o.fault = func(n int64) fault {
			got := f(n)
			if got == deadThen || got == deadDone {
				cancel()
			}
			return got
		}
	}
	rc.Wrap(func(rt http.RoundTripper) http.RoundTripper { o.next = rt; return o.wire })
	m, err := kube.NewManager(rc, nil, slog.New(slog.DiscardHandler), kube.StopTimeout)
	if err != nil {
		b.Fatal(err)
	}
	if err := Setup(m, cfg, resolve, prometheus.NewRegistry(), slog.New(slog.DiscardHandler)); err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	o.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			b.Errorf("the controllers ended with: %v", err)
		}
		utilnet.CloseIdleConnectionsFor(m.GetHTTPClient().Transport)
	})
	b.Cleanup(o.stop)
	return o
}

func (b *bench) namespaces(names ...string) {
	for _, n := range names {
		b.env.Create(b.T, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: n}})
	}
}

func cep(ns, name string, id int64) *v2.CiliumEndpoint {
	o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	o.Status.State = v2.EndpointReady
	o.Status.Networking = &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: fmt.Sprintf("10.%d.%d.%d", rand.IntN(250), rand.IntN(250), rand.IntN(250))}}}
	if id != 0 {
		o.Status.Identity = &v2.EndpointIdentity{ID: id, Labels: []string{"k8s:a=b"}}
	}
	return o
}

// make creates objects, many at once.
func (b *bench) make(objects ...client.Object) {
	b.Helper()
	var wg sync.WaitGroup
	work := make(chan client.Object)
	for range 16 {
		wg.Go(func() {
			for o := range work {
				if err := b.env.Client.Create(context.Background(), o); err != nil {
					b.Errorf("create %T %s: %v", o, o.GetName(), err)
				}
			}
		})
	}
	for _, o := range objects {
		work <- o
	}
	close(work)
	wg.Wait()
}

func (b *bench) slices() []v2alpha1.CiliumEndpointSlice {
	b.Helper()
	var all v2alpha1.CiliumEndpointSliceList
	if err := b.env.Client.List(context.Background(), &all); err != nil {
		b.Fatal(err)
	}
	return all.Items
}

// wanted reads from the server what should be in slices.
func (b *bench) wanted() map[key]*entry {
	b.Helper()
	var all v2.CiliumEndpointList
	if err := b.env.Client.List(context.Background(), &all); err != nil {
		b.Fatal(err)
	}
	out := map[key]*entry{}
	for i := range all.Items {
		if e := ofEndpoint(&all.Items[i]); e != nil {
			out[client.ObjectKeyFromObject(&all.Items[i])] = e
		}
	}
	return out
}

// waitSynced waits until the steady state is reached: the one invariant of all scenarios.
func (b *bench) waitSynced(most int) {
	b.Helper()
	controllers.Eventually(b.T, 90*time.Second, func() string { return wrong(b.wanted(), b.slices(), most) })
}

// still starts an operator and checks that it finds nothing to write: the invariant of restarts.
func (b *bench) still(cfg Config, resolve Resolve) {
	b.Helper()
	before := map[string]string{}
	for _, s := range b.slices() {
		before[s.Name] = s.ResourceVersion
	}
	o := b.start(cfg, resolve, nil)
	time.Sleep(1500 * time.Millisecond) // for nothing to happen
	o.stop()
	if n := o.writes.Load(); n != 0 {
		b.Errorf("an operator that started wrote %d times, though nothing had changed", n)
	}
	for _, s := range b.slices() {
		if before[s.Name] != s.ResourceVersion {
			b.Errorf("slice %s was written", s.Name)
		}
	}
}

// witness watches the slices and reports endpoints that vanish, though they are kept, until stop is
// called.
func (b *bench) witness(kept func(key) bool) (stop func()) {
	b.Helper()
	rc := rest.CopyConfig(b.env.Server.Config)
	kube.Apart(rc)
	h, err := rest.HTTPClientFor(rc)
	if err != nil {
		b.Fatal(err)
	}
	scheme, err := kube.Scheme()
	if err != nil {
		b.Fatal(err)
	}
	c, err := client.NewWithWatch(rc, client.Options{Scheme: scheme, HTTPClient: h})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var list v2alpha1.CiliumEndpointSliceList
	if err := c.List(ctx, &list); err != nil {
		b.Fatal(err)
	}
	w, err := c.Watch(ctx, &v2alpha1.CiliumEndpointSliceList{}, &client.ListOptions{Raw: &metav1.ListOptions{ResourceVersion: list.ResourceVersion}})
	if err != nil {
		b.Fatal(err)
	}
	var wg sync.WaitGroup
	wg.Go(func() {
		have := map[string]v2alpha1.CiliumEndpointSlice{}
		for _, s := range list.Items {
			have[s.Name] = s
		}
		all := func() []v2alpha1.CiliumEndpointSlice {
			var out []v2alpha1.CiliumEndpointSlice
			for _, s := range have {
				out = append(out, s)
			}
			return out
		}
		for e := range w.ResultChan() {
			s, ok := e.Object.(*v2alpha1.CiliumEndpointSlice)
			if !ok {
				if ctx.Err() == nil {
					b.Errorf("the watch ended: %v", e)
				}
				return
			}
			before := all()
			if e.Type == "DELETED" {
				delete(have, s.Name)
			} else {
				have[s.Name] = *s
			}
			if v := vanished(before, all(), kept); len(v) > 0 {
				b.Errorf("%v vanished when slice %s was written", v, s.Name)
			}
		}
	})
	return func() {
		cancel()
		w.Stop()
		wg.Wait()
		utilnet.CloseIdleConnectionsFor(h.Transport)
	}
}

// clean removes what a scenario made, so that the next one begins with nothing.
func (b *bench) clean() {
	b.Helper()
	ctx := context.Background()
	var all v2.CiliumEndpointList
	if err := b.env.Client.List(ctx, &all); err != nil {
		b.Fatal(err)
	}
	spaces := map[string]bool{}
	for i := range all.Items {
		spaces[all.Items[i].Namespace] = true
	}
	for ns := range spaces {
		if err := b.env.Client.DeleteAllOf(ctx, &v2.CiliumEndpoint{}, client.InNamespace(ns)); err != nil {
			b.Fatal(err)
		}
	}
	if err := b.env.Client.DeleteAllOf(ctx, &v2alpha1.CiliumEndpointSlice{}); err != nil {
		b.Fatal(err)
	}
}

func TestController(t *testing.T) {
	env := controllers.Start(t)
	for _, s := range []struct {
		name string
		f    func(*bench)
	}{
		{"bulk", bulk}, {"churn under faults", churn}, {"killed at every write", killed}, {"two leaders", leaders}, {"by hand", byHand},
		{"moves", moves}, {"identities come late", late}, {"born again", bornAgain}, {"priority", priority}, {"off and on", offAndOn}, {"slim", slimMode},
		{"from slim to default", leaveSlim},
	} {
		t.Run(s.name, func(t *testing.T) {
			b := &bench{t, env}
			s.f(b)
			b.clean()
		})
	}
}

// bulk creates two thousand endpoints as fast as the server takes them, and reports what that
// costs.
func bulk(b *bench) {
	b.namespaces("bulk")
	o := b.start(func() Config { c := Defaults(); c.Enable = true; return c }(), nil, nil)
	const pods = 2000
	var all []client.Object
	for n := range pods {
		all = append(all, cep("bulk", fmt.Sprint("pod-", n), 300+int64(n%20)))
	}
	began := time.Now()
	b.make(all...)
	made := time.Since(began)
	b.waitSynced(100)
	writes := o.writes.Load()
	per := float64(writes) / pods
	b.Logf("%d endpoints made in %s, known in slices after %s: %d slices, %d writes, %.4f per pod", pods, made.Round(time.Millisecond),
		time.Since(began).Round(time.Millisecond), len(b.slices()), writes, per)
	if n := len(b.slices()); n != pods/100 {
		b.Errorf("%d slices, want %d", n, pods/100)
	}
	if made < 20*time.Second && per > 0.02 { // not on a machine that takes so long that this was no bulk
		b.Errorf("%.4f writes per pod, want at most 0.02", per)
	}
	o.stop()
	b.still(quick(), nil)
	// The namespace goes, and all of it with it.
	o = b.start(quick(), nil, nil)
	for try := 1; ; try++ { // a loaded server ends a request after a minute
		err := b.env.Client.DeleteAllOf(context.Background(), &v2.CiliumEndpoint{}, client.InNamespace("bulk"))
		if err == nil {
			break
		}
		if try == 5 {
			b.Fatal(err)
		}
	}
	b.waitSynced(100)
	if n := len(b.slices()); n != 0 {
		b.Errorf("%d slices of nothing", n)
	}
	b.Logf("namespace emptied: %d writes", o.writes.Load())
}

// life has endpoints come, change and go for a while. It returns which names are never removed.
func (b *bench) life(ns string, rounds int, pause time.Duration) {
	ctx := context.Background()
	for range rounds {
		name := fmt.Sprint("pod-", rand.IntN(40))
		o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
		switch rand.IntN(4) {
		case 0, 1:
			_ = b.env.Client.Create(ctx, cep(ns, name, 256+rand.Int64N(50)))
		case 2:
			patch := fmt.Sprintf(`{"status":{"identity":{"id":%d}}}`, 256+rand.Int64N(50))
			_ = b.env.Client.Patch(ctx, o, client.RawPatch(types.MergePatchType, []byte(patch)))
		case 3:
			if rand.IntN(2) == 0 {
				_ = b.env.Client.Delete(ctx, o)
			}
		}
		time.Sleep(pause)
	}
}

func keep(ns string, n int) []client.Object {
	var out []client.Object
	for i := range n {
		out = append(out, cep(ns, fmt.Sprint("kept-", i), 300))
	}
	return out
}

func isKept(k key) bool { return strings.HasPrefix(k.Name, "kept-") }

func churn(b *bench) {
	b.namespaces("churn")
	b.make(keep("churn", 25)...)
	cfg := quick()
	cfg.Max = 10
	o := b.start(cfg, nil, func(int64) fault { return []fault{none, none, none, refused, unsent, unanswered}[rand.IntN(6)] })
	b.waitSynced(10)
	stop := b.witness(isKept)
	b.life("churn", 300, 5*time.Millisecond)
	b.waitSynced(10)
	stop()
	o.stop()
	b.still(cfg, nil)
}

// killed kills operators before and after every write of theirs, and has others go on.
func killed(b *bench) {
	b.namespaces("killed")
	b.make(keep("killed", 25)...)
	cfg := quick()
	cfg.Max = 10
	first := b.start(cfg, nil, nil)
	b.waitSynced(10)
	first.stop()
	stop := b.witness(isKept)
	for round := range 3 {
		how := []fault{deadThen, deadDone}[round%2]
		cfg.Max = []int{10, 7, 12}[round]
		b.life("killed", 30, time.Millisecond)
		for at := int64(1); ; at++ {
			o := b.start(cfg, nil, func(n int64) fault {
				if n == at {
					return how
				}
				return none
			})
			time.Sleep(500 * time.Millisecond)
			o.stop()
			if o.writes.Load() < at { // it was through before it could be killed
				break
			}
			if at > 12 {
				b.Fatalf("an operator that is killed at its write %d has still more to write", at)
			}
		}
	}
	last := b.start(cfg, nil, nil)
	b.waitSynced(cfg.Max)
	stop()
	last.stop()
	b.still(cfg, nil)
}

// leaders has two operators write at once, as when one does not know yet that it leads no more.
func leaders(b *bench) {
	b.namespaces("leaders")
	b.make(keep("leaders", 25)...)
	cfg := quick()
	cfg.Max = 10
	one, two := b.start(cfg, nil, nil), b.start(cfg, nil, func(int64) fault { return []fault{none, none, unanswered}[rand.IntN(3)] })
	b.waitSynced(10)
	stop := b.witness(isKept)
	b.life("leaders", 300, 5*time.Millisecond)
	b.waitSynced(10)
	stop()
	one.stop()
	two.stop()
	b.still(cfg, nil)
}

// byHand edits and deletes slices as a user does.
func byHand(b *bench) {
	b.namespaces("by-hand")
	b.make(keep("by-hand", 45)...)
	cfg := quick()
	cfg.Max = 10
	o := b.start(cfg, nil, nil)
	b.waitSynced(10)
	ctx := context.Background()
	for n, edit := range []func(*v2alpha1.CiliumEndpointSlice) error{
		func(s *v2alpha1.CiliumEndpointSlice) error { return b.env.Client.Delete(ctx, s) },
		func(s *v2alpha1.CiliumEndpointSlice) error {
			s.Endpoints = s.Endpoints[1:]
			return b.env.Client.Update(ctx, s)
		},
		func(s *v2alpha1.CiliumEndpointSlice) error {
			s.Endpoints = []entry{}
			return b.env.Client.Update(ctx, s)
		},
		func(s *v2alpha1.CiliumEndpointSlice) error {
			s.Namespace = "default"
			return b.env.Client.Update(ctx, s)
		},
		func(s *v2alpha1.CiliumEndpointSlice) error {
			s.Endpoints[0].IdentityID = 1
			return b.env.Client.Update(ctx, s)
		},
		func(s *v2alpha1.CiliumEndpointSlice) error {
			s.Endpoints = append(s.Endpoints, s.Endpoints[0], entry{Name: "never-was", IdentityID: 5})
			return b.env.Client.Update(ctx, s)
		},
		func(s *v2alpha1.CiliumEndpointSlice) error {
			s.ObjectMeta = metav1.ObjectMeta{Name: "hand-made"}
			return b.env.Client.Create(ctx, s)
		},
	} {
		all := b.slices()
		if err := edit(&all[n%len(all)]); err != nil {
			b.Fatalf("edit %d: %v", n, err)
		}
		b.waitSynced(10)
	}
	// What others write into the metadata stays.
	s := b.slices()[0]
	s.Labels = map[string]string{"team": "a"}
	if err := b.env.Client.Update(ctx, &s); err != nil {
		b.Fatal(err)
	}
	if err := b.env.Client.Delete(ctx, cep("by-hand", s.Endpoints[0].Name, 0)); err != nil {
		b.Fatal(err)
	}
	b.waitSynced(10)
	if err := b.env.Client.Get(ctx, client.ObjectKeyFromObject(&s), &s); err != nil || s.Labels["team"] != "a" {
		b.Errorf("labels of the slice: %v, %v", s.Labels, err)
	}
	o.stop()
	b.still(cfg, nil)
}

// moves lowers the number of endpoints that a slice may have, and raises it.
func moves(b *bench) {
	b.namespaces("moves")
	b.make(keep("moves", 60)...)
	cfg := quick()
	for _, most := range []int{30, 7, 20} {
		cfg.Max = most
		stop := b.witness(isKept)
		o := b.start(cfg, nil, nil)
		b.waitSynced(most)
		stop()
		o.stop()
	}
	b.still(cfg, nil)
}

// late creates endpoints without an identity: they come into a slice when they have one.
func late(b *bench) {
	b.namespaces("late")
	o := b.start(quick(), nil, nil)
	for n := range 5 {
		b.make(cep("late", fmt.Sprint("pod-", n), 0))
	}
	b.make(cep("late", "last", 300))
	b.waitSynced(100)
	if all := b.slices(); len(all) != 1 || len(all[0].Endpoints) != 1 {
		b.Errorf("slices: %+v", all)
	}
	for n := range 5 {
		patch := []byte(`{"status":{"identity":{"id":301}}}`)
		if err := b.env.Client.Patch(context.Background(), cep("late", fmt.Sprint("pod-", n), 0), client.RawPatch(types.MergePatchType, patch)); err != nil {
			b.Fatal(err)
		}
	}
	b.waitSynced(100)
	if all := b.slices(); len(all) != 1 || len(all[0].Endpoints) != 6 {
		b.Errorf("slices: %+v", all)
	}
	o.stop()
}

// bornAgain replaces endpoints by others of the same names, with other owners and addresses, some
// of them without identity.
func bornAgain(b *bench) {
	b.namespaces("born")
	o := b.start(quick(), nil, nil)
	owned := func(name, uid string, id int64) *v2.CiliumEndpoint {
		e := cep("born", name, id)
		e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: types.UID(uid)}}
		return e
	}
	b.make(owned("a", "a1", 300), owned("b", "b1", 300))
	b.waitSynced(100)
	for _, e := range []*v2.CiliumEndpoint{owned("a", "a2", 301), owned("b", "b2", 0)} {
		if err := b.env.Client.Delete(context.Background(), cep("born", e.Name, 0)); err != nil {
			b.Fatal(err)
		}
		b.make(e)
	}
	b.waitSynced(100)
	if all := b.slices(); len(all) != 1 || len(all[0].Endpoints) != 1 || all[0].Endpoints[0].PodUID != "a2" {
		b.Errorf("slices: %+v", all)
	}
	o.stop()
}

// priority has one namespace go before others that came first.
func priority(b *bench) {
	b.namespaces("slow")
	b.env.Create(b.T, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "urgent", Annotations: map[string]string{PriorityAnnotation: PriorityValue}}})
	cfg := Defaults()
	cfg.Enable, cfg.Max, cfg.Rates = true, 1, `[{"nodes":0,"limit":5,"burst":1}]`
	o := b.start(cfg, nil, nil)
	var all []client.Object
	for n := range 60 {
		all = append(all, cep("slow", fmt.Sprint("pod-", n), 300))
	}
	b.make(all...)
	controllers.Eventually(b.T, 2*time.Minute, func() string {
		if len(b.slices()) == 0 {
			return "nothing written"
		}
		return ""
	})
	b.make(cep("urgent", "a", 300), cep("urgent", "b", 300))
	behind := 0
	controllers.Eventually(b.T, 2*time.Minute, func() string {
		urgent := 0
		have := b.slices()
		for _, s := range have {
			if s.Namespace == "urgent" {
				urgent++
			}
		}
		behind = 60 - (len(have) - urgent)
		if urgent < 2 {
			return "the namespace with priority waits"
		}
		return ""
	})
	if behind < 20 {
		b.Errorf("only %d slices of the other namespace were still to be written", behind)
	}
	o.stop()
}

// offAndOn is the way from CiliumEndpoints to slices and back.
func offAndOn(b *bench) {
	b.namespaces("upgrade")
	b.make(keep("upgrade", 30)...)
	off := Defaults()
	o := b.start(off, nil, nil)
	time.Sleep(300 * time.Millisecond)
	o.stop()
	if n := o.writes.Load(); n != 0 {
		b.Errorf("%d writes where there was nothing to delete", n)
	}
	o = b.start(quick(), nil, nil)
	b.waitSynced(100)
	o.stop()
	o = b.start(off, nil, func(n int64) fault { return []fault{unanswered, none}[min(n-1, 1)] })
	controllers.Eventually(b.T, 2*time.Minute, func() string {
		if n := len(b.slices()); n != 0 {
			return fmt.Sprint(n, " slices left")
		}
		return ""
	})
	o.stop()
	if n := len(b.wanted()); n != 30 {
		b.Errorf("%d of 30 CiliumEndpoints are left", n)
	}
	o = b.start(quick(), nil, nil)
	b.waitSynced(100)
	o.stop()
}
