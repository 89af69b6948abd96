package addressing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/aws/aws-sdk-go-v2/config"
	"github.com/aws/aws-sdk-go-v2/credentials"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	aws "github.com/hawser-net/hawser/internal/operator/nodemanager/aws"
	fake "github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

func singlesConfig(dir string) Config {
	c := testConfig(dir)
	c.Mode, c.UpdateInterval = CRD, 50*time.Millisecond
	return c
}

// singlesAt makes the addresses of a node whose state is in dir, as an agent does that begins.
func singlesAt(t *testing.T, dir string) (*Singles, *ipam.IPAM) {
	t.Helper()
	s, err := newSingles(singlesConfig(dir))
	if err != nil {
		t.Fatal(err)
	}
	pool, err := ipam.New(ipam.Config{Assigned: ipam.IPv4})
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Attach(pool); err != nil {
		t.Fatal(err)
	}
	return s, pool
}

// shown is the node's object in its so many-th version, with a pool and steps as "address=step".
func shown(generation int64, pool []string, steps ...string) *v2.CiliumNode {
	o := ciliumNode(generation)
	o.Spec.IPAM.Pool = v2.AllocationMap{}
	for _, ip := range pool {
		o.Spec.IPAM.Pool[ip] = v2.AllocationIP{Resource: "eni-1"}
	}
	o.Status.IPAM.ReleaseIPs = map[string]v2.IPReleaseStatus{}
	for _, s := range steps {
		ip, step, _ := strings.Cut(s, "=")
		o.Status.IPAM.ReleaseIPs[ip] = v2.IPReleaseStatus(step)
	}
	return o
}

func released(patch map[string]any) map[string]any {
	part, _ := patch["ipam"].(map[string]any)
	out, _ := part["release-ips"].(map[string]any)
	return out
}

// TestSinglesHandshake: each step of the operator, with the address free, used, being handed out
// and not restored yet, and an agent that ends after it has agreed.
func TestSinglesHandshake(t *testing.T) {
	t.Parallel()
	const a, b = "10.0.0.1", "10.0.0.2"
	dir := t.TempDir()
	s, pool := singlesAt(t, dir)
	if s.missing() == nil {
		t.Error("nothing is missing")
	}
	s.Observe(shown(1, []string{a, b}, a+"=marked-for-release"))
	if got, _ := s.status(s.object); released(got)[a] != v2.IPDoNotRelease {
		t.Errorf("before the endpoints are restored: %v", got)
	}
	pool.Open()
	flight, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", true) // an ADD in flight
	if err != nil || flight.IPv4.IP.String() != a {
		t.Fatal(flight.IPv4, err)
	}
	got, soon := s.status(s.object)
	if released(got)[a] != v2.IPDoNotRelease || !soon {
		t.Errorf("while it is handed out: %v", got)
	}
	used := got["ipam"].(map[string]any)["used"].(map[string]any)
	if used[a] != (v2.AllocationIP{Owner: "ns/p", Resource: "eni-1"}) || len(used) != 1 {
		t.Errorf("used: %v", used)
	}
	s.Observe(shown(1, []string{a, b}, a+"=do-not-release", b+"=marked-for-release"))
	if got, _ := s.status(s.object); released(got)[b] != v2.IPReadyForRelease || len(released(got)) != 1 {
		t.Errorf("one that is free: %v", got)
	}
	free := func(when string, want bool) {
		t.Helper()
		r, err := pool.AllocateNext(ipam.IPv4, "ns/q", "", false)
		if (err == nil) != want {
			t.Errorf("%s: %+v, %v", when, r.IPv4, err)
		}
		if err == nil {
			pool.FreeOf(r.IPv4.IP, "ns/q")
		}
	}
	free("after it was agreed to", false)

	// The agent ends before it has said so, and the next one observes the former version.
	if s, pool = singlesAt(t, dir); s.object != nil {
		t.Fatal("it remembers an object")
	}
	if err := pool.Restore(flight.IPv4.IP, "ns/p"); err != nil {
		t.Fatal(err)
	}
	pool.Open()
	s.Observe(shown(1, []string{a, b}))
	free("by a version of before", false)
	s.live = func(context.Context) (*v2.CiliumNode, error) { return nil, errors.New("away") }
	if s.confirm(t.Context()) == nil {
		t.Error("the server was not asked")
	}
	free("without the server", false)
	s.live = func(context.Context) (*v2.CiliumNode, error) {
		return shown(1, []string{a, b}, b+"=marked-for-release"), nil
	}
	if err := s.confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	free("while it is marked", false)
	s.live = func(context.Context) (*v2.CiliumNode, error) { return shown(1, []string{a, b}), nil }
	s.Observe(shown(1, []string{a, b}))
	if err := s.confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	free("when the mark was taken back", true)

	// It goes for good, and an old version changes nothing.
	s.Observe(shown(1, []string{a, b}, b+"=marked-for-release"))
	s.status(s.object)
	s.Observe(shown(2, []string{a}, b+"=released"))
	if got, _ := s.status(s.object); len(released(got)) != 1 || released(got)[b] != nil {
		t.Errorf("of what was released the entry stays: %v", got)
	}
	s.live = func(context.Context) (*v2.CiliumNode, error) { return shown(2, []string{a}), nil }
	s.Observe(shown(1, []string{a, b}))
	free("by an old version", false)
	if err := s.confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	free("by an old version, and asked", false)

	// An address in use is taken out of the pool: the pod keeps it, and the status says so.
	s.Observe(shown(3, nil))
	if s.notify.due.fault == nil || !strings.Contains(s.notify.due.fault.Error(), a) {
		t.Errorf("fault: %v", s.notify.due.fault)
	}
	if got, _ := s.status(s.object); len(got) == 0 {
		t.Error("it is not said to be used")
	}

	// The server is put back to a version that has what was released.
	s.live = func(context.Context) (*v2.CiliumNode, error) { return shown(2, []string{a, b}), nil }
	for range 2 {
		s.Observe(shown(2, []string{a, b}))
		if err := s.confirm(t.Context()); err != nil {
			t.Fatal(err)
		}
		free("by a server that was put back", false)
	}
	s.rest, s.later = 0, time.Now()
	if err := s.confirm(t.Context()); err != nil {
		t.Fatal(err)
	}
	free("a while later", true)
}

// nodeAgent is the agent's half, as often as it starts.
type nodeAgent struct {
	*testing.T
	env  *controllers.Env
	dir  string
	pool *ipam.IPAM
	// frozen, if not nil, holds up what the agent writes.
	mu     sync.Mutex
	frozen chan struct{}
	stop   func()
}

func (a *nodeAgent) AddressesMoved() {}
func (a *nodeAgent) Report(error)    {}

type running struct {
	*nodeAgent
	refresh func()
}

func (r running) Refresh() { r.refresh() }

// start runs the agent's half with the real clients; it ends with stop.
func (a *nodeAgent) start(pods map[netip.Addr]string) {
	a.Helper()
	client, err := k8s.New(rest.CopyConfig(a.env.Server.Config))
	if err != nil {
		a.Fatal(err)
	}
	cfg := singlesConfig(a.dir)
	cfg.KindsWait, cfg.Hosts = time.Minute, []netip.Addr{netip.MustParseAddr("10.0.0.4")}
	cfg.Describe = func(o *v2.CiliumNode, _ bool) {
		o.Spec.InstanceID, o.Spec.ENI.InstanceType = "i-n1", "m5.large"
	}
	s, err := NewSingles(cfg, client)
	if err != nil {
		a.Fatal(err)
	}
	patch := s.patch
	s.patch = func(ctx context.Context, o *v2.CiliumNode, status map[string]any) (*v2.CiliumNode, error) {
		a.mu.Lock()
		frozen := a.frozen
		a.mu.Unlock()
		if frozen != nil {
			select {
			case <-frozen:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		return patch(ctx, o, status)
	}
	if err := s.await(a.Context(), len(pods) > 0); err != nil {
		a.Fatal(err)
	}
	if a.pool, err = ipam.New(ipam.Config{Assigned: ipam.IPv4}); err != nil {
		a.Fatal(err)
	}
	if err := s.Attach(a.pool); err != nil {
		a.Fatal(err)
	}
	own, err := nodes.New(nodes.Config{Self: cfg.Self, Own: s.Observe, Fill: s.Fill}, client, nodes.Discard{})
	if err != nil {
		a.Fatal(err)
	}
	if err := own.Announce(node.Node{Name: "n1", Cluster: "default", Addresses: []node.Address{{Type: node.InternalIP, IP: cfg.Hosts[0]}}}); err != nil {
		a.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { _ = own.Run(ctx) })
	// The object is observed before the endpoints are restored, as in an agent that is late.
	for ip, pod := range pods {
		if err := a.pool.Restore(ip, pod); err != nil {
			a.Errorf("a pod has lost its address: %v", err)
		}
	}
	a.pool.Open()
	wg.Go(func() { _ = s.Run(ctx, running{a, own.Refresh}) })
	a.stop = func() { cancel(); wg.Wait() }
}

// runAWS runs what of the operator gives addresses of AWS, which is at a URL, until the test ends
// or stop is called.
func runAWS(t testing.TB, env *controllers.Env, url string) (stop func()) {
	t.Helper()
	return env.Run(t, func(ctx context.Context, m manager.Manager, log *slog.Logger) error {
		cfg := nodemanager.Defaults()
		cfg.QPS, cfg.Burst, cfg.Resync, cfg.MaxLag, cfg.ReleaseDelay, cfg.ReleaseExcess = 200, 100, time.Second, time.Second, 0, true
		metrics, err := nodemanager.NewMetrics(prometheus.NewRegistry())
		if err != nil {
			return err
		}
		p, err := aws.New(ctx, aws.Config{ClusterName: "test"}, nodemanager.NewBudget(cfg, metrics), config.WithBaseEndpoint(url), config.WithRegion("eu-test-1"),
			config.WithCredentialsProvider(credentials.NewStaticCredentialsProvider("id", "secret", "")), config.WithSharedConfigFiles(nil), config.WithSharedCredentialsFiles(nil))
		if err != nil {
			return err
		}
		return nodemanager.Setup(ctx, m, cfg, p, metrics, log)
	})
}

// TestSinglesWithOperator has both halves agree on each address, on a real API server and beside a
// cloud that counts: pods come and go, the operator ends and starts, the agent ends, starts, and
// stands still between agreeing and saying so. No pod ever has an address that the cloud does not
// lead to its node.
func TestSinglesWithOperator(t *testing.T) {
	t.Parallel()
	env := controllers.Start(t)
	cloud := fake.New()
	cloud.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"))
	cloud.AddSubnet("subnet-a", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	cloud.AddGroup("sg-1", "vpc-1", nil)
	if _, err := cloud.AddInstance("i-n1", "m5.large", "subnet-a", []string{"sg-1"}, nil); err != nil {
		t.Fatal(err)
	}
	endpoint := httptest.NewServer(cloud)
	t.Cleanup(endpoint.Close)
	operator := func() (stop func()) { return runAWS(t, env, endpoint.URL) }
	env.Create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}})
	stop := operator()
	a := &nodeAgent{T: t, env: env, dir: t.TempDir()}
	a.start(nil)
	defer func() { a.stop() }()

	pods := map[netip.Addr]string{}
	check := func() {
		t.Helper()
		assigned := map[netip.Addr]bool{}
		for _, i := range cloud.Interfaces() {
			if i.Instance == "i-n1" {
				for _, ip := range i.Addresses {
					assigned[ip] = true
				}
			}
		}
		for ip, pod := range pods {
			if !assigned[ip] {
				t.Fatalf("%s of %s is not assigned to the node", ip, pod)
			}
			if got, _ := a.pool.Lookup(ip); got.Owner != pod {
				t.Fatalf("%s of %s is %q's", ip, pod, got.Owner)
			}
		}
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	freeze := func(on bool) {
		a.mu.Lock()
		defer a.mu.Unlock()
		switch {
		case on && a.frozen == nil:
			a.frozen = make(chan struct{})
		case !on && a.frozen != nil:
			close(a.frozen)
			a.frozen = nil
		}
	}
	made := 0
	for end := time.Now().Add(12 * time.Second); time.Now().Before(end); {
		switch n := rng.IntN(100); {
		case n < 40 && len(pods) < 20: // a burst of pods
			for range rng.IntN(6) {
				made++
				name := fmt.Sprint("ns/p-", made)
				if r, err := a.pool.AllocateNext(ipam.IPv4, name, "", rng.IntN(2) == 0); err == nil {
					pods[r.IPv4.IP] = name
				}
			}
		case n < 85:
			for ip, pod := range pods {
				if rng.IntN(2) == 0 {
					a.pool.FreeOf(ip, pod)
					delete(pods, ip)
				}
			}
		case n < 90:
			freeze(true)
		case n < 95:
			freeze(false)
		case n < 97:
			stop()
			stop = operator()
		default:
			a.stop()
			a.start(pods)
		}
		check()
		time.Sleep(time.Duration(rng.IntN(200)) * time.Millisecond)
		check()
	}
	freeze(false)
	for ip, pod := range pods {
		a.pool.FreeOf(ip, pod)
	}
	clear(pods)
	controllers.Eventually(t, 2*time.Minute, func() string {
		o := &v2.CiliumNode{}
		if err := env.Client.Get(t.Context(), types.NamespacedName{Name: "n1"}, o); err != nil {
			return err.Error()
		}
		usage := a.pool.Usage()
		switch {
		case len(o.Spec.IPAM.Pool) != 8 || len(o.Status.IPAM.Used) != 0 || len(o.Status.IPAM.ReleaseIPs) != 0:
			return fmt.Sprintf("pool %d, used %v, releases %v, %s", len(o.Spec.IPAM.Pool), o.Status.IPAM.Used, o.Status.IPAM.ReleaseIPs, o.Status.IPAM.OperatorStatus.Error)
		case len(usage) != 1 || usage[0].Capacity != 8:
			return fmt.Sprintf("the agent has %+v", usage)
		}
		return ""
	})
	if cloud.Calls()["UnassignPrivateIpAddresses"] == 0 {
		t.Error("nothing was ever released")
	}
}

// recorder is an agent that records its calls.
type recorder struct {
	mu     sync.Mutex
	faults []string // "" if nothing is wrong
	moves  int
}

func (a *recorder) Refresh() {}

func (a *recorder) AddressesMoved() {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.moves++
}

func (a *recorder) Report(err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	text := ""
	if err != nil {
		text = err.Error()
	}
	a.faults = append(a.faults, text)
}

// seen returns the last fault, of how many, and how often the addresses moved.
func (a *recorder) seen() (fault string, faults, moves int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if n := len(a.faults); n > 0 {
		fault = a.faults[n-1]
	}
	return fault, len(a.faults), a.moves
}

// runSingles runs the addresses until the test ends, beside an API server that takes what is
// written.
func runSingles(t *testing.T, s *Singles) *recorder {
	t.Helper()
	s.patch = func(_ context.Context, o *v2.CiliumNode, status map[string]any) (*v2.CiliumNode, error) {
		return patched(t, o, status), nil
	}
	agent := &recorder{}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); _ = s.Run(ctx, agent) }()
	t.Cleanup(func() { cancel(); <-ended })
	return agent
}

// patched is an object after a merge patch of its status, as an API server has it then.
func patched(t *testing.T, o *v2.CiliumNode, status map[string]any) *v2.CiliumNode {
	t.Helper()
	if status == nil {
		return o
	}
	tree := func(of any) (out map[string]any) {
		text, err := json.Marshal(of)
		if err == nil {
			err = json.Unmarshal(text, &out)
		}
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	var merge func(have, change map[string]any) // RFC 7386
	merge = func(have, change map[string]any) {
		for k, v := range change {
			deeper, ok := v.(map[string]any)
			switch {
			case v == nil:
				delete(have, k)
			case !ok:
				have[k] = v
			default:
				into, ok := have[k].(map[string]any)
				if !ok {
					into = map[string]any{}
				}
				merge(into, deeper)
				have[k] = into
			}
		}
	}
	object := tree(o)
	merge(object, tree(map[string]any{"status": status}))
	text, err := json.Marshal(object)
	if err != nil {
		t.Fatal(err)
	}
	out := &v2.CiliumNode{}
	if err := json.Unmarshal(text, out); err != nil {
		t.Fatal(err)
	}
	return out
}

// TestSinglesPutBackReads: while the addresses of a server that was put back rest, the server is
// not read over and over, and in the end they are given.
func TestSinglesPutBackReads(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, pool := singlesAt(t, t.TempDir())
		pool.Open()
		s.rest = time.Minute
		var reads atomic.Int32
		s.live = func(context.Context) (*v2.CiliumNode, error) {
			reads.Add(1)
			time.Sleep(time.Millisecond)
			return shown(2, []string{"10.0.0.1", "10.0.0.2"}), nil
		}
		s.Observe(shown(3, []string{"10.0.0.1"}))
		runSingles(t, s)
		s.Observe(shown(2, []string{"10.0.0.1", "10.0.0.2"}))
		capacity := func(want int) {
			t.Helper()
			synctest.Wait()
			if u := pool.Usage(); len(u) != 1 || u[0].Capacity != want {
				t.Errorf("the pool has %+v, want a capacity of %d", u, want)
			}
		}
		time.Sleep(500 * time.Millisecond)
		capacity(1)
		if n := reads.Load(); n == 0 || n > 12 {
			t.Errorf("%d reads in half a second", n)
		}
		time.Sleep(time.Minute)
		capacity(2)
	})
}

// TestSinglesInUseOutsidePool: that pods use addresses which are not the node's any more is said
// until their pods are deleted, also by an agent that starts meanwhile.
func TestSinglesInUseOutsidePool(t *testing.T) {
	t.Parallel()
	for _, restart := range []bool{false, true} {
		t.Run(fmt.Sprint("restart=", restart), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				const a, b = "10.0.0.1", "10.0.0.2"
				dir := t.TempDir()
				s, pool := singlesAt(t, dir)
				pool.Open()
				s.Observe(shown(1, []string{a, b}))
				res, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false)
				if err != nil {
					t.Fatal(err)
				}
				if restart {
					s.Observe(shown(2, []string{b}))
					if s, err = newSingles(singlesConfig(dir)); err != nil {
						t.Fatal(err)
					}
					if pool, err = ipam.New(ipam.Config{Assigned: ipam.IPv4}); err != nil {
						t.Fatal(err)
					}
					if err := s.Attach(pool); err != nil {
						t.Fatal(err)
					}
					s.before = []netip.Addr{res.IPv4.IP}         // as if its endpoint were on disk
					s.Observe(shown(2, []string{b, "10.0.0.3"})) // before it is restored
					if err := pool.Restore(res.IPv4.IP, "ns/p"); err != nil {
						t.Fatal(err)
					}
					pool.Open()
				}
				agent := runSingles(t, s)
				s.Observe(shown(2, []string{b}))
				time.Sleep(time.Second)
				synctest.Wait()
				fault, said, moves := agent.seen()
				if !strings.Contains(fault, a) {
					t.Errorf("in use outside the pool: %q", fault)
				}
				pool.FreeOf(res.IPv4.IP, "ns/p")
				time.Sleep(time.Second)
				synctest.Wait()
				fault, saidNow, movesNow := agent.seen()
				if fault != "" || saidNow != said+1 {
					t.Errorf("after the pod was deleted: %q", fault)
				}
				if got := pool.Prefixes(); len(got) != 1 || got[0].Addr().String() != b || movesNow != moves+1 {
					t.Errorf("the node still has %v, notified %d times", got, movesNow-moves)
				}
			})
		})
	}
}

// TestSinglesFailedWrite: what could not be stored is not used, said, and tried again without an
// event of the object.
func TestSinglesFailedWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, pool := singlesAt(t, t.TempDir())
		pool.Open()
		save := s.cfg.Save
		var full atomic.Bool
		var tries atomic.Int32
		full.Store(true)
		s.cfg.Save = func(path string, data []byte) error {
			if tries.Add(1); full.Load() {
				return errors.New("disk full")
			}
			return save(path, data)
		}
		now := shown(1, []string{"10.0.0.1"})
		s.live = func(context.Context) (*v2.CiliumNode, error) {
			time.Sleep(time.Millisecond)
			return now, nil
		}
		agent := runSingles(t, s)
		s.Observe(now)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if fault, _, _ := agent.seen(); !strings.Contains(fault, "disk full") || len(pool.Usage()) != 0 {
			t.Errorf("a disk that is full: %q, %+v", fault, pool.Usage())
		}
		if n := tries.Load(); n < 2 || n > 20 {
			t.Errorf("%d writes in ten seconds", n)
		}
		full.Store(false)
		time.Sleep(5 * time.Second)
		synctest.Wait()
		if fault, _, _ := agent.seen(); fault != "" || len(pool.Usage()) != 1 {
			t.Errorf("after there was room: %q, %+v", fault, pool.Usage())
		}
	})
}

// TestSinglesReleasedAndStillInPool: the status shows an address as released before it is taken out
// of the spec. The entry stays until then, and no pod gets the address.
func TestSinglesReleasedAndStillInPool(t *testing.T) {
	t.Parallel()
	const a, b = "10.0.0.1", "10.0.0.2"
	s, pool := singlesAt(t, t.TempDir())
	pool.Open()
	s.Observe(shown(1, []string{a, b}, b+"=marked-for-release"))
	status, _ := s.status(s.object)
	s.Observe(patched(t, s.object, status))
	s.Observe(shown(1, []string{a, b}, b+"=released"))
	if status, _ := s.status(s.object); status != nil {
		t.Errorf("the entry of an address that is still in the pool: %v", status)
	}
	for range 2 {
		if r, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false); err == nil && r.IPv4.IP.String() != a {
			t.Errorf("%s was given to a pod", r.IPv4.IP)
		}
	}
	s.Observe(shown(2, []string{a}, b+"=released"))
	status, _ = s.status(s.object)
	if v, ok := released(status)[b]; !ok || v != nil {
		t.Errorf("the entry of an address that has gone: %v", status)
	}
}

// TestSinglesAfterReinstall: a node without endpoints has only what it is given now, however long
// that takes.
func TestSinglesAfterReinstall(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		dir := t.TempDir()
		before, _ := singlesAt(t, dir)
		before.Observe(shown(1, []string{"10.0.0.1"}))
		s, err := newSingles(singlesConfig(dir))
		if err != nil {
			t.Fatal(err)
		}
		s.askAs = func(ctx context.Context, _ func(*v2.CiliumNode)) error {
			<-ctx.Done()
			return ctx.Err()
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := s.await(ctx, false); err == nil {
			t.Errorf("it starts with %v", s.state.Pool)
		}
		s.askAs = func(ctx context.Context, observed func(*v2.CiliumNode)) error {
			observed(shown(1, []string{"10.0.0.1"}))
			<-ctx.Done()
			return ctx.Err()
		}
		if err := s.await(t.Context(), false); err != nil {
			t.Error(err)
		}
	})
}

// TestSinglesKeepsNothing: of what a node without endpoints was assigned while it waited, nothing
// stays that was taken away again.
func TestSinglesKeepsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := singlesConfig(t.TempDir())
		cfg.Families = ipam.Both
		s, err := newSingles(cfg)
		if err != nil {
			t.Fatal(err)
		}
		s.askAs = func(ctx context.Context, observed func(*v2.CiliumNode)) error {
			observed(shown(1, []string{"10.0.0.1"}))
			o := shown(2, []string{"10.0.0.2"})
			o.Spec.IPAM.IPv6Pool = v2.AllocationMap{"fd00::2": {}}
			observed(o)
			<-ctx.Done()
			return ctx.Err()
		}
		if err := s.await(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if len(s.state.Lost) > 0 {
			t.Errorf("it keeps %v", s.state.Lost)
		}
	})
}

// TestSinglesOfAnotherMachine: a machine that takes over the CiliumNode of another one has nothing
// of that one's pool: it takes it out of the object with its first write, and waits for its own.
func TestSinglesOfAnotherMachine(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cfg := singlesConfig(t.TempDir())
		cfg.Mode = ENI
		cfg.Describe = func(o *v2.CiliumNode, _ bool) { o.Spec.InstanceID = "i-new" }
		s, err := newSingles(cfg)
		if err != nil {
			t.Fatal(err)
		}
		old := eniNode(1, map[int][]string{0: {"10.0.0.10"}})
		old.Spec.InstanceID = "i-old"
		old.Spec.IPAM.IPv6Pool = v2.AllocationMap{"fd00::/80": {}}
		var written *v2.CiliumNode
		s.askAs = func(ctx context.Context, observed func(*v2.CiliumNode)) error {
			observed(old)
			time.Sleep(time.Hour)
			if s.missing() == nil {
				t.Errorf("it has the other's: %v", s.state.Pool)
			}
			written = old.DeepCopy()
			written.Generation = 2
			s.Fill(written, false)
			observed(written)
			time.Sleep(time.Hour)
			if s.missing() == nil {
				t.Errorf("it has the other's after it has written: %v", s.state.Pool)
			}
			o := eniNode(3, map[int][]string{1: {"10.0.1.10"}})
			o.Spec.InstanceID = "i-new"
			observed(o)
			<-ctx.Done()
			return ctx.Err()
		}
		s.live = func(context.Context) (*v2.CiliumNode, error) { return old, nil }
		if err := s.await(t.Context(), false); err != nil {
			t.Fatal(err)
		}
		if len(old.Spec.IPAM.Pool) != 1 || len(written.Spec.IPAM.Pool)+len(written.Spec.IPAM.IPv6Pool) > 0 || written.Spec.InstanceID != "i-new" {
			t.Errorf("written is %+v", written.Spec)
		}
		if got := fmt.Sprint(s.state.Pool, s.state.Lost); got != "map[10.0.1.10/32:eni-1] map[]" {
			t.Errorf("in the end it has %s", got)
		}
		// A running node's pool stays, whatever another writer makes of the object.
		old.Spec.InstanceID = "i-other"
		if s.Fill(old, false); len(old.Spec.IPAM.Pool) != 1 || old.Spec.InstanceID != "i-new" {
			t.Errorf("written is %+v", old.Spec)
		}
	})
}

// TestSinglesUsedIsWrittenOnce: whatever the status said before, what is written is what is there
// afterwards.
func TestSinglesUsedIsWrittenOnce(t *testing.T) {
	t.Parallel()
	s, pool := singlesAt(t, t.TempDir())
	pool.Open()
	s.Observe(shown(1, []string{"10.0.0.1"}))
	if _, err := pool.AllocateNext(ipam.IPv4, "ns/p", "", false); err != nil {
		t.Fatal(err)
	}
	for _, was := range []v2.AllocationMap{
		nil,
		{"10.0.0.1": {Owner: "ns/p", Resource: "eni-1"}},
		{"10.0.0.1": {Owner: "ns/q"}, "10.0.0.2": {Owner: "ns/r", Resource: "eni-1"}},
	} {
		for _, pool := range [][]string{nil, {"10.0.0.1"}} { // without a pool nothing says of what the address is
			o := shown(1, pool)
			o.Status.IPAM.Used = was
			s.Observe(o)
			status, _ := s.status(o)
			if again, _ := s.status(patched(t, o, status)); again != nil {
				t.Errorf("of %v in pool %v: %v, and then again %v", was, pool, status, again)
			}
		}
	}
}
