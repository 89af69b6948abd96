package agent

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// openFiles counts the descriptors of the agent.
func (n *machineNode) openFiles() int {
	n.t.Helper()
	fds, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", n.cmd.Process.Pid))
	if err != nil {
		n.t.Fatal(err)
	}
	return len(fds)
}

// TestChurnLeavesNothing attaches and detaches pods many times, several at once, and compares the
// whole node, and the key-value store, with what was before.
func TestChurnLeavesNothing(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	store := kvstoretest.StartEtcd(t)
	n.flags = append(n.flags, "--prometheus-serve-addr", "127.0.0.1:9962", "--kvstore", "etcd", "--kvstore-opt", "etcd.address="+store.Endpoint())
	n.start()
	client := store.Client()
	keys := func() map[string]int {
		out := map[string]int{}
		for _, prefix := range []string{"cilium/state/identities/v1/value/", "cilium/state/ip/v1/", "cilium/state/nodes/v1/"} {
			r, err := client.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithCountOnly())
			if err != nil {
				t.Fatal(err)
			}
			out[prefix] = int(r.Count)
		}
		return out
	}
	const workers = 8
	pods := make([]*machinePod, workers)
	for i := range pods {
		pods[i] = n.newPod(fmt.Sprintf("pod-%d", i), map[string]string{"app": fmt.Sprintf("app-%d", i%4)})
	}
	cycle := func(times int) {
		var wg sync.WaitGroup
		var failed atomic.Bool
		for i, p := range pods {
			wg.Go(func() {
				for k := range times {
					p.renew()
					p.labels["round"] = fmt.Sprint(k % 3)
					if err := p.add(); err != nil {
						t.Errorf("worker %d, round %d: %v", i, k, err)
						failed.Store(true)
					}
					if err := p.del(); err != nil {
						t.Errorf("worker %d, round %d: %v", i, k, err)
						failed.Store(true)
					}
					if failed.Load() {
						return
					}
				}
			})
		}
		wg.Wait()
	}
	cycle(2) // what is made once and stays
	// The last interfaces go a moment later.
	stable := n.audit()
	for deadline := time.Now().Add(20 * time.Second); ; {
		time.Sleep(200 * time.Millisecond)
		now := n.audit()
		if fmt.Sprint(now) == fmt.Sprint(stable) || time.Now().After(deadline) {
			break
		}
		stable = now
	}
	// The store has it a moment later, too.
	gone := func() bool {
		for prefix, n := range keys() {
			if n > 0 && prefix != "cilium/state/nodes/v1/" {
				return false
			}
		}
		return true
	}
	for deadline := time.Now().Add(time.Minute); !gone(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("keys of the store by prefix before the churn: %v", keys())
		}
	}
	files, goroutines := n.openFiles(), n.metric("go_goroutines")

	rounds := count(1000, 80, 5000) / workers
	began := time.Now()
	cycle(rounds)
	t.Logf("%d times ADD and DEL in %v", rounds*workers, time.Since(began).Round(time.Millisecond))
	n.sameAudit(stable, "after the churn")
	for _, p := range pods {
		if links := p.ns.LinkNames(t); len(links) != 1 {
			t.Errorf("the namespace of %s is left with %q", p.name, links)
		}
	}
	for deadline := time.Now().Add(time.Minute); !gone(); time.Sleep(50 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("keys of the store by prefix: %v", keys())
		}
	}
	if now := n.openFiles(); now > files+8 { // idle connections come and go
		t.Errorf("the agent has %d open files, before %d", now, files)
	}
	if now := n.metric("go_goroutines"); now > goroutines+8 {
		t.Errorf("the agent has %v goroutines, before %v", now, goroutines)
	}
	n.stop()
}

// get asks one of the agent's servers on loopback.
func (n *machineNode) get(url string) (*http.Response, error) {
	tr := &http.Transport{DisableKeepAlives: true, DialContext: func(ctx context.Context, network, addr string) (c net.Conn, err error) {
		err = n.ns.Do(func() error { c, err = (&net.Dialer{}).DialContext(ctx, network, addr); return err })
		return c, err
	}}
	return (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Get(url)
}

// metric reads one of the agent's metrics.
func (n *machineNode) metric(name string) float64 {
	n.t.Helper()
	resp, err := n.get("http://127.0.0.1:9962/metrics")
	if err != nil {
		n.t.Fatal(err)
	}
	defer resp.Body.Close()
	for sc := bufio.NewScanner(resp.Body); sc.Scan(); {
		if value, ok := strings.CutPrefix(sc.Text(), name+" "); ok {
			v, err := strconv.ParseFloat(value, 64)
			if err != nil {
				n.t.Fatal(err)
			}
			return v
		}
	}
	n.t.Fatalf("there is no metric %s", name)
	return 0
}
