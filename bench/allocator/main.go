// Command allocator compares Hawser's identity allocator with Cilium's: the same work, on the same
// etcd server, in one run.
//
//	go run . [-new 2000] [-shared 100] [-mixed 100000] [-json file]
//
// It prints, for 1, 8 and 64 allocators, for how many keys a second each kind allocates IDs, and
// how many requests etcd served for each key: new keys (all different), shared keys (all allocators
// want the same ones at once), and cached keys (in use on the node already). Beside them stands
// what the same number of clients reach with bare transactions of two writes, alone and with a
// watch each. Then it times the collection of many dead IDs among some in use, at an unlimited
// rate. Then a mixed cluster, half of it of each kind, allocates and releases keys at once; the run
// fails if a key has had two IDs or an ID two keys. A module of its own, so that nothing of the
// product depends on Cilium.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/url"
	"os"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hawser-net/hawser/pkg/kvstore/etcd/member"
)

// node is one allocator of either kind.
type node interface {
	allocate(ctx context.Context, key string) (uint64, error)
	release(ctx context.Context, key string) error
	close()
}

// opener starts a node on the etcd at address, under base, named name.
type opener func(ctx context.Context, address, base, name string) (node, error)

func main() {
	if err := run(); err != nil {
		fmt.Fprintln(os.Stderr, "allocator:", err)
		os.Exit(1)
	}
}

func run() error {
	fresh := flag.Int("new", 2000, "new keys in each row")
	shared := flag.Int("shared", 100, "shared keys in each row")
	mixed := flag.Int("mixed", 5000, "allocations of the mixed cluster")
	dead := flag.Int("dead", 60000, "dead IDs to collect")
	live := flag.Int("live", 5000, "IDs in use among them")
	report := flag.String("json", "", "write the figures to this file as JSON")
	profile := flag.String("cpuprofile", "", "write a CPU profile to this file")
	flag.Parse()
	if *profile != "" {
		f, err := os.Create(*profile)
		if err != nil {
			return err
		}
		defer f.Close()
		if err := pprof.StartCPUProfile(f); err != nil {
			return err
		}
		defer pprof.StopCPUProfile()
	}

	dir, err := os.MkdirTemp("", "allocator-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	ctx := context.Background()
	address, stop, err := startEtcd(ctx, dir)
	if err != nil {
		return err
	}
	defer stop()

	var rows []row
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "allocators\twork\thawser /s\tcilium /s\tratio\traw txn /s\tof raw\traw, watched /s\tof it\thawser requests/key\tcilium requests/key\t")
	for _, n := range []int{1, 8, 64} {
		raw, err := rawRate(ctx, address, fmt.Sprintf("bench/raw%d", n), n, *fresh, false)
		if err != nil {
			return err
		}
		watched, err := rawRate(ctx, address, fmt.Sprintf("bench/watched%d", n), n, *fresh, true)
		if err != nil {
			return err
		}
		h, err := measure(ctx, openHawser, address, fmt.Sprintf("bench/h%d", n), n, *fresh, *shared)
		if err != nil {
			return fmt.Errorf("hawser: %w", err)
		}
		c, err := measure(ctx, openCilium, address, fmt.Sprintf("bench/c%d", n), n, *fresh, *shared)
		if err != nil {
			return fmt.Errorf("cilium: %w", err)
		}
		for i, work := range []string{"new", "shared", "cached"} {
			bare := "\t\t\t"
			if work == "new" {
				bare = fmt.Sprintf("%.0f\t%.0f %%\t%.0f\t%.0f %%", raw, 100*h[i].rate/raw, watched, 100*h[i].rate/watched)
			}
			r := row{Allocators: n, Work: work, Hawser: h[i].rate, Cilium: c[i].rate, HawserRequests: h[i].requests, CiliumRequests: c[i].requests}
			if work == "new" {
				r.Raw, r.RawWatched = raw, watched
			}
			rows = append(rows, r)
			fmt.Fprintf(w, "%d\t%s\t%.0f\t%.0f\t%.1f\t%s\t%.2f\t%.2f\t\n", n, work, h[i].rate, c[i].rate, h[i].rate/c[i].rate, bare, h[i].requests, c[i].requests)
		}
	}
	w.Flush()
	if *report != "" {
		out, err := json.MarshalIndent(rows, "", "  ")
		if err != nil {
			return err
		}
		if err := os.WriteFile(*report, append(out, '\n'), 0o644); err != nil {
			return err
		}
	}
	fmt.Println()
	if err := collect(ctx, address, *dead, *live); err != nil {
		return fmt.Errorf("collection: %w", err)
	}
	return mixedCluster(ctx, address, *mixed)
}

// startEtcd starts an etcd that syncs to disk, with its data and sockets in dir.
func startEtcd(ctx context.Context, dir string) (address string, stop func(), err error) {
	client := url.URL{Scheme: "unix", Path: filepath.Join(dir, "c.sock")}
	server, err := member.Member{
		Name: "bench", Dir: filepath.Join(dir, "data"), PeerSocket: filepath.Join(dir, "p.sock"), Listen: []url.URL{client}, Durable: true,
	}.Start(ctx)
	if err != nil {
		return "", nil, err
	}
	return "unix://" + client.Path, server.Close, nil
}

// requests counts the unary requests that etcd has served, except lease renewals, which are a
// stream.
func requests() float64 {
	families, err := prometheus.DefaultGatherer.Gather()
	if err != nil {
		return 0
	}
	sum := 0.0
	for _, f := range families {
		if f.GetName() != "grpc_server_handled_total" {
			continue
		}
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() == "grpc_method" && (l.GetValue() == "Range" || l.GetValue() == "Txn" || l.GetValue() == "Put" || l.GetValue() == "DeleteRange") {
					sum += m.GetCounter().GetValue()
				}
			}
		}
	}
	return sum
}

// row is one line of the table: keys a second, and etcd's requests for each key.
type row struct {
	Allocators     int     `json:"allocators"`
	Work           string  `json:"work"`
	Hawser         float64 `json:"hawser_per_second"`
	Cilium         float64 `json:"cilium_per_second"`
	Raw            float64 `json:"raw_transactions_per_second,omitempty"`
	RawWatched     float64 `json:"raw_watched_transactions_per_second,omitempty"`
	HawserRequests float64 `json:"hawser_requests_per_key"`
	CiliumRequests float64 `json:"cilium_requests_per_key"`
}

type figure struct{ rate, requests float64 }

// inParallel runs work on all nodes at once and returns the time it took.
func inParallel(n int, work func(i int) error) (time.Duration, error) {
	errs := make([]error, n)
	var wg sync.WaitGroup
	start := time.Now()
	for i := range n {
		wg.Go(func() { errs[i] = work(i) })
	}
	wg.Wait()
	return time.Since(start), errors.Join(errs...)
}

func keyOf(kind string, i int) string {
	return fmt.Sprintf("k8s:app=%s-%d;k8s:io.cilium.k8s.policy.cluster=default;k8s:io.kubernetes.pod.namespace=bench;", kind, i)
}

// measure returns the figures for new, shared and cached keys.
func measure(ctx context.Context, open opener, address, base string, n, fresh, shared int) ([]figure, error) {
	nodes, err := openAll(ctx, open, address, base, n)
	if err != nil {
		return nil, err
	}
	defer closeAll(nodes)
	each := (fresh + n - 1) / n
	allocate := func(i, from, to int, kind string) error {
		for k := from; k < to; k++ {
			if _, err := nodes[i].allocate(ctx, keyOf(kind, k)); err != nil {
				return err
			}
		}
		return nil
	}
	var out []figure
	for _, phase := range []struct {
		count int
		work  func(i int) error
	}{
		{each * n, func(i int) error { return allocate(i, i*each, (i+1)*each, "new") }},
		{shared * n, func(i int) error { return allocate(i, 0, shared, "shared") }},
		{each * n, func(i int) error { return allocate(i, i*each, (i+1)*each, "new") }},
	} {
		before := requests()
		took, err := inParallel(n, phase.work)
		if err != nil {
			return nil, err
		}
		out = append(out, figure{float64(phase.count) / took.Seconds(), (requests() - before) / float64(phase.count)})
	}
	return out, nil
}

func openAll(ctx context.Context, open opener, address, base string, n int) ([]node, error) {
	var nodes []node
	for i := range n {
		nd, err := open(ctx, address, base, fmt.Sprintf("192.0.2.%d", i))
		if err != nil {
			closeAll(nodes)
			return nil, err
		}
		nodes = append(nodes, nd)
	}
	return nodes, nil
}

func closeAll(nodes []node) {
	for _, nd := range nodes {
		nd.close()
	}
}

// rawRate is what n clients reach with transactions that write two keys, one on a lease, if neither
// exists. With watches every client also receives every ID, as any node must that knows them
// all; all nodes share this machine's processors here, so that is the ceiling of an allocator with
// a cache.
func rawRate(ctx context.Context, address, base string, n, count int, watches bool) (float64, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	clients := make([]*clientv3.Client, n)
	leases := make([]clientv3.LeaseID, n)
	for i := range clients {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{address}, Logger: zap.NewNop()})
		if err != nil {
			return 0, err
		}
		defer c.Close()
		l, err := c.Grant(ctx, 900)
		if err != nil {
			return 0, err
		}
		clients[i], leases[i] = c, l.ID
		if watches {
			events := c.Watch(ctx, base+"/id/", clientv3.WithPrefix())
			go func() {
				for range events { //nolint:revive // receiving is all
				}
			}()
		}
	}
	each := (count + n - 1) / n
	took, err := inParallel(n, func(i int) error {
		for k := range each {
			a := fmt.Sprintf("%s/id/%d-%d", base, i, k)
			b := fmt.Sprintf("%s/value/%s/192.0.2.%d", base, keyOf("raw", i*each+k), i)
			_, err := clients[i].Txn(ctx).If(clientv3.Compare(clientv3.CreateRevision(a), "=", 0)).
				Then(clientv3.OpPut(a, "x"), clientv3.OpPut(b, "x", clientv3.WithLease(leases[i]))).Commit()
			if err != nil {
				return err
			}
		}
		return nil
	})
	return float64(each*n) / took.Seconds(), err
}

// mixedCluster lets both kinds allocate and release the same and different keys, and checks every
// ID that anyone was given.
func mixedCluster(ctx context.Context, address string, count int) error {
	const half, keys = 4, 2000
	a, err := openAll(ctx, openHawser, address, "bench/mixed", half)
	if err != nil {
		return err
	}
	defer closeAll(a)
	var b []node
	for i := range half {
		nd, err := openCilium(ctx, address, "bench/mixed", fmt.Sprintf("198.51.100.%d", i))
		if err != nil {
			return err
		}
		defer nd.close()
		b = append(b, nd)
	}
	nodes := append(append([]node(nil), a...), b...)

	var mu sync.Mutex
	ids, owners := map[string]uint64{}, map[uint64]string{}
	var faults []string
	var done atomic.Int64
	took, err := inParallel(len(nodes), func(i int) error {
		held := map[string]bool{}
		for done.Add(1) <= int64(count) {
			// Half of the keys are contended by all, the others belong to the node.
			key := keyOf("all", rand.IntN(keys/2))
			if rand.IntN(2) == 0 {
				key = keyOf(fmt.Sprint("own-", i), rand.IntN(keys/2))
			}
			if held[key] {
				if err := nodes[i].release(ctx, key); err != nil {
					return fmt.Errorf("release: %w", err)
				}
				delete(held, key)
			}
			id, err := nodes[i].allocate(ctx, key)
			if err != nil {
				return fmt.Errorf("allocate: %w", err)
			}
			held[key] = true
			mu.Lock()
			if have, ok := ids[key]; ok && have != id {
				faults = append(faults, fmt.Sprintf("%s had %d and has %d", key, have, id))
			}
			if have, ok := owners[id]; ok && have != key {
				faults = append(faults, fmt.Sprintf("%d had %s and has %s", id, have, key))
			}
			ids[key], owners[id] = id, key
			mu.Unlock()
		}
		return nil
	})
	if err != nil {
		return fmt.Errorf("mixed cluster: %w", err)
	}
	fmt.Printf("\nmixed cluster: %d + %d allocators, %d allocations of %d keys in %v: %d faults\n",
		half, half, count, len(ids), took.Round(time.Millisecond), len(faults))
	if len(faults) > 0 {
		return errors.New("a key had two IDs or an ID two keys:\n" + strings.Join(faults[:min(20, len(faults))], "\n"))
	}
	return nil
}
