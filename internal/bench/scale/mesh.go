package scale

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/bench/scale/report"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

const (
	meshCluster   = "c1"
	meshNamespace = "apps"
	// meshIdentity is a number of cluster 1.
	meshIdentity = 1<<16 + 256
	// meshRate is how many new pods come a second, and meshBefore how many of them before the
	// leader is killed.
	meshRate, meshBefore = 20.0, 40
)

// mesh is the scenario of a cluster that others follow.
func (r *runner) mesh(ctx context.Context, s *report.Scenario) (err error) {
	s.Text = fmt.Sprintf("%d pods of a cluster are exported into a key-value store that another cluster reads. New pods come, %g a second; when %d are there, the operator that leads "+
		"is killed. How long does it take until the other cluster knows a new pod?", r.cfg.MeshPods, meshRate, meshBefore)
	s.Shared = "The other cluster is one watch of the store, with a connection of its own. There are no agents: CiliumEndpoints are written by the harness."
	s.Limits = []string{"the wait for the next leader: the operators' lease. Before and after it: one transaction of the store"}
	c, err := r.newCluster(ctx)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, c.close()) }()
	dir, err := os.MkdirTemp(r.dir, "store-")
	if err != nil {
		return err
	}
	store, err := child.Start("store", filepath.Join(dir, "etcd.log"), nil, append(slices.Clone(r.cfg.Self), dir)...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, store.Stop(time.Minute)) }()
	m := &meshed{c: c, address: "unix://" + filepath.Join(dir, "client.sock"), made: map[string]time.Time{}, published: map[string]time.Time{}, from: r.cfg.MeshPods}
	s.Variants = []report.Variant{{Name: "etcd"}}
	return m.run(ctx, r, &s.Variants[0])
}

// meshed is one run of the scenario.
type meshed struct {
	c       *cluster
	address string
	from    int // the first pod that is new

	mu        sync.Mutex
	made      map[string]time.Time // when the API server had a new pod, by address
	published map[string]time.Time // when the other cluster got an address
	whole     []time.Time          // when it got the marker that it has everything
}

func meshAddress(i int) string {
	return netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)}).String()
}

// create makes the endpoint of a pod.
func (m *meshed) create(ctx context.Context, i int) error {
	o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: meshNamespace, Name: fmt.Sprint("p", i)}}
	o.Status.Identity = &v2.EndpointIdentity{ID: meshIdentity + int64(i%1000)}
	o.Status.Networking = &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: meshAddress(i)}}}
	err := m.c.client.UrgentV2.Post().Namespace(meshNamespace).Resource(v2.ResourceEndpoints).Body(o).Do(ctx).Error()
	m.mu.Lock()
	defer m.mu.Unlock()
	if i >= m.from {
		m.made[meshAddress(i)] = time.Now()
	}
	return err
}

func (m *meshed) run(ctx context.Context, r *runner, v *report.Variant) error {
	if err := m.c.namespace(ctx, meshNamespace, nil); err != nil {
		return err
	}
	if err := each(ctx, m.from, m.create); err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	cfg := storedial.Defaults()
	cfg.Kind, cfg.Options = "etcd", map[string]string{"etcd.address": m.address}
	other, err := storedial.Open(ctx, cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		return err
	}
	defer other.Close()
	stop := m.follow(ctx, other)
	defer stop()
	began := time.Now()
	// What is here without a pod and its agent is not collected.
	leader, name, err := m.c.startOperators(ctx, append([]string{"--kvstore", "etcd", "--kvstore-opt", "etcd.address=" + m.address, "--cluster-name", meshCluster, "--cluster-id", "1",
		"--cilium-endpoint-gc-interval", "1h", "--identity-gc-interval", "0"}, r.cfg.leaseFlags()...)...)
	if err != nil {
		return err
	}
	first, err := m.await(ctx, r.cfg.Timeout, began)
	if err != nil {
		return fmt.Errorf("the first leader: %w", err)
	}
	v.Figure("everything published first", first.Sub(began).Seconds(), "s", fmt.Sprintf("%d pods, from the operator's start", m.from))
	r.say("  %d pods were published in %s", m.from, first.Sub(began).Round(time.Millisecond))

	n := meshBefore + int(meshRate*(max(r.cfg.Lease, 5*time.Second).Seconds()+20))
	var killed time.Time
	err = paced(ctx, n, meshRate, func(ctx context.Context, i int) error {
		if i == meshBefore {
			killed = time.Now()
			leader.Kill()
		}
		return m.create(ctx, m.from+i)
	})
	if err != nil {
		return fmt.Errorf("new pods: %w", err)
	}
	if _, err := m.c.awaitLeader(ctx, name); err != nil {
		return err
	}
	again, err := m.await(ctx, r.cfg.Timeout, killed)
	if err != nil {
		return fmt.Errorf("the next leader: %w", err)
	}
	_ = child.Poll(ctx, r.cfg.Timeout, 20*time.Millisecond, func() error { // evaluate names those that are left
		m.mu.Lock()
		defer m.mu.Unlock()
		if len(m.published) < m.from+n {
			return errors.New("not all are published")
		}
		return nil
	})
	v.Figure("everything published again by the next leader", again.Sub(killed).Seconds(), "s", "from the end of the last one")
	m.evaluate(v, n, killed)
	return nil
}

// follow reads what another cluster reads, until stop is called.
func (m *meshed) follow(ctx context.Context, other kvstore.Backend) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	watch := func(prefix string, note func(key string, at time.Time)) {
		wg.Go(func() {
			for ev := range other.Watch(ctx, prefix) {
				if ev.Kind == kvstore.EventCreate || ev.Kind == kvstore.EventModify {
					m.mu.Lock()
					note(strings.TrimPrefix(ev.Key, prefix), time.Now())
					m.mu.Unlock()
				}
			}
		})
	}
	watch(kvstore.JoinKey(storekeys.IPsPrefix, storekeys.DefaultAddressSpace)+"/", func(key string, at time.Time) {
		if _, known := m.published[key]; !known {
			m.published[key] = at
		}
	})
	watch(kvstore.JoinKey(storekeys.SyncedPrefix, meshCluster, "cilium/state/ip/v1"), func(_ string, at time.Time) { m.whole = append(m.whole, at) })
	return func() {
		cancel()
		wg.Wait()
	}
}

// await waits until the other cluster gets the marker, after a moment, that it has everything, and
// returns when that was.
func (m *meshed) await(ctx context.Context, timeout time.Duration, after time.Time) (at time.Time, err error) {
	err = child.Poll(ctx, timeout, 20*time.Millisecond, func() error {
		m.mu.Lock()
		defer m.mu.Unlock()
		for _, w := range m.whole {
			if w.After(after) {
				at = w
				return nil
			}
		}
		return fmt.Errorf("%d of %d pods are published, without the marker that these are all", len(m.published), m.from+len(m.made))
	})
	return at, err
}

// evaluate reports how long new pods were unknown: those that came before the leader was killed,
// and after.
func (m *meshed) evaluate(v *report.Variant, n int, killed time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	var before, after []float64
	var unknown []string
	for ip, made := range m.made {
		at, ok := m.published[ip]
		switch wait := max(0, at.Sub(made).Seconds()); {
		case !ok:
			unknown = append(unknown, ip)
		case at.Before(killed):
			before = append(before, wait)
		default:
			after = append(after, wait)
		}
	}
	for i := range m.from {
		if ip := meshAddress(i); m.published[ip].IsZero() {
			unknown = append(unknown, ip)
		}
	}
	slices.Sort(unknown)
	v.Check("the other cluster knows every pod", false, unknown)
	for _, part := range []struct {
		name  string
		waits []float64
	}{{"with a leader", before}, {"when it was killed, and after", after}} {
		if len(part.waits) == 0 {
			continue
		}
		slices.Sort(part.waits)
		note := fmt.Sprintf("%d of %d new pods", len(part.waits), n)
		v.Figure("new pod known "+part.name+", p50", report.Quantile(part.waits, 0.5), "s", note)
		v.Figure("new pod known "+part.name+", max", part.waits[len(part.waits)-1], "s", note)
	}
}
