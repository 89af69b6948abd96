package scale

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/bench/scale/report"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// busyShare of the nodes get half of all pods: more than they have addresses for in advance.
	busyShare = 5
	// agentsWrite is how often an agent says which addresses are used, if few are free.
	agentsWrite = time.Second
)

// allotted is a node as its agent sees it.
type allotted struct {
	pool    map[string]bool
	used    map[string]string // owner by address
	waiting []claim
	written int // entries of used that the CiliumNode has
}

// claim is a pod that waits for an address.
type claim struct {
	owner string
	since time.Time
}

// give gives addresses to pods that wait. It must be called with the lock of g held.
func (g *allotting) give(n *allotted) {
	for a := range n.pool {
		if len(n.waiting) == 0 {
			return
		}
		if _, taken := n.used[a]; taken {
			continue
		}
		c := n.waiting[0]
		n.waiting, n.used[a] = n.waiting[1:], c.owner
		g.waited = append(g.waited, time.Since(c.since).Seconds())
	}
}

// places says on which node a pod is.
type places struct {
	random *rand.Rand
	has    []int // pods of each node
}

// newPlaces returns those of a number of nodes, the same each time.
func newPlaces(nodes int) *places {
	return &places{rand.New(rand.NewPCG(1, 2)), make([]int, nodes)}
}

// next returns the node of the i-th pod. Where a node has as many as it takes it is the next one
// that has not.
func (p *places) next(i int) int {
	node := p.random.IntN(len(p.has))
	if i%2 == 0 {
		node /= busyShare
	}
	for p.has[node] >= nodeTakes {
		node = (node + 1) % len(p.has)
	}
	p.has[node]++
	return node
}

// pods has pods come at a rate, and measures how long each waits for an address and how often the
// cloud is asked for it.
func (g *allotting) pods(ctx context.Context, r *runner) error {
	total, rate, allowed := r.cfg.IPAMPods, r.cfg.IPAMPodRate, r.cfg.IPAMRate
	if err := g.c.namespace(ctx, "pods", nil); err != nil {
		return err
	}
	r.say("    %d pods at %g a second", total, rate)
	ctx, cancel := context.WithCancel(ctx)
	var writing sync.WaitGroup
	defer writing.Wait()
	defer cancel()
	var failed error
	writing.Go(func() { failed = g.write(ctx) })
	before := g.cloud.Calls()
	writes, err := g.c.traffic(ctx)
	if err != nil {
		return err
	}
	var mu sync.Mutex
	to := newPlaces(g.want)
	err = paced(ctx, total, rate, func(ctx context.Context, i int) error {
		mu.Lock()
		node := to.next(i)
		mu.Unlock()
		name := fmt.Sprintf("pod-%d", i)
		if _, err := g.c.pod(ctx, "pods", name, nodeOf(node), nil); err != nil {
			return err
		}
		g.mu.Lock()
		defer g.mu.Unlock()
		n := g.node(nodeOf(node))
		n.waiting = append(n.waiting, claim{"pods/" + name, time.Now()})
		g.give(n)
		return nil
	})
	if err != nil {
		return err
	}
	for end := time.Now().Add(r.cfg.Timeout); ; {
		short, text := g.short()
		if short == 0 {
			break
		}
		if time.Now().After(end) {
			return fmt.Errorf("after %v more: %s", r.cfg.Timeout, text)
		}
		if !retry.Sleep(ctx, 100*time.Millisecond) {
			return context.Cause(ctx)
		}
	}
	after, err := g.c.traffic(ctx)
	if err != nil {
		return err
	}
	changes, all := 0, 0
	for action, k := range g.cloud.Calls() {
		if k -= before[action]; !strings.HasPrefix(action, "Describe") {
			changes += k
		}
		all += k
	}
	cancel()
	writing.Wait()
	if failed != nil {
		return failed
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	n := float64(total)
	at := 0
	for _, w := range g.waited {
		if w < 0.01 {
			at++
		}
	}
	g.v.Figure("pods", n, "", fmt.Sprintf("%g a second, half of them on a fifth of the nodes", rate))
	g.v.Figure("pods for which an address was there", 100*float64(at)/n, "%", "")
	g.v.Figure("a pod waits for its address, p50", report.Quantile(g.waited, 0.5), "s", "from the answer to its creation")
	g.v.Figure("a pod waits for its address, p99", report.Quantile(g.waited, 0.99), "s", "")
	g.v.Figure("requests that change the cloud, a pod", float64(changes)/n, "", "refused ones count")
	g.v.Figure("requests to the cloud, a pod", float64(all)/n, "", "those that describe count")
	g.v.Figure("writes of CiliumNodes, a pod", after.Since(writes).Sum(v2.ResourceNodes)/n, "", "those of the agents count")
	queue := max(1/allowed-1/rate, 0)
	const computed = "computed, not measured: what is allowed, a call a pod, and nothing in advance"
	g.v.Figure("a call for each pod's address: a pod waits, p50", 0.1+0.5*n*queue, "s", computed)
	g.v.Figure("a call for each pod's address: a pod waits, p99", 0.1+0.99*n*queue, "s", computed)
	return nil
}

// node returns what the agent of a node sees. It must be called with the lock of g held.
func (g *allotting) node(name string) *allotted {
	n := g.nodes[name]
	if n == nil {
		n = &allotted{pool: map[string]bool{}, used: map[string]string{}}
		g.nodes[name] = n
	}
	return n
}

// short counts the nodes that lack something: an address for a pod, a write, or what they are to
// have in advance.
func (g *allotting) short() (count int, text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, n := range g.nodes {
		if len(n.waiting) > 0 || n.written < len(n.used) || len(n.pool)-len(n.used) < pool {
			count++
			text = fmt.Sprintf("%s has %d addresses for %d pods, %d more wait", name, len(n.pool), len(n.used), len(n.waiting))
		}
	}
	return count, fmt.Sprintf("%d nodes lack something; %s", count, text)
}

// write says in CiliumNodes which addresses are used, as agents do.
func (g *allotting) write(ctx context.Context) error {
	for {
		if !retry.Sleep(ctx, agentsWrite) {
			return nil
		}
		var names []string
		var texts [][]byte
		g.mu.Lock()
		for name, n := range g.nodes {
			if n.written == len(n.used) {
				continue
			}
			used := map[string]v2.AllocationIP{}
			for a, owner := range n.used {
				used[a] = v2.AllocationIP{Owner: owner}
			}
			text, err := json.Marshal(map[string]any{"status": map[string]any{"ipam": map[string]any{"used": used}}})
			if err != nil {
				g.mu.Unlock()
				return err
			}
			names, texts = append(names, name), append(texts, text)
			n.written = len(n.used)
		}
		g.mu.Unlock()
		err := each(ctx, len(names), func(ctx context.Context, i int) error {
			return g.c.client.UrgentV2.Patch(types.MergePatchType).Resource(v2.ResourceNodes).Name(names[i]).SubResource("status").Body(texts[i]).Do(ctx).Error()
		})
		if err != nil && ctx.Err() == nil {
			return err
		}
	}
}
