package bench

import (
	"context"
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// clusterPods and clusterPolicies are a cluster of n namespaces with four pods and three policies
// each, every pod with an identity of its own: the shape in which the best public figure was
// measured.
func clusterPods(n int) ([]labels.Set, error) {
	var sets []labels.Set
	for i := range n {
		ns := fmt.Sprintf("namespace-%d", i)
		for j := range 4 {
			set, err := labels.PodLabels(labels.Pod{
				Namespace: ns, Cluster: "default", ServiceAccount: "default",
				Labels:          map[string]string{fmt.Sprintf("app-%d", j+1): fmt.Sprintf("scale-%d", j+1)},
				NamespaceLabels: map[string]string{"kubernetes.io/metadata.name": ns},
			})
			if err != nil {
				return nil, err
			}
			sets = append(sets, set)
		}
	}
	return sets, nil
}

func clusterPolicies(n int) ([]*v2.CiliumNetworkPolicy, error) {
	specs := []string{
		`{"endpointSelector":{"matchLabels":{"app-1":"scale-1"}},"ingress":[{"fromEndpoints":[{"matchLabels":{"app-2":"scale-2"}}],"toPorts":[{"ports":[{"port":"80","protocol":"TCP"}]}]}]}`,
		`{"endpointSelector":{"matchLabels":{"app-2":"scale-2"}},"egress":[{"toEndpoints":[{"matchLabels":{"app-1":"scale-1"}}],"toPorts":[{"ports":[{"port":"80","protocol":"TCP"}]}]}],"ingress":[{}]}`,
		`{"endpointSelector":{"matchLabels":{"app-3":"scale-3"}},"ingress":[{"fromEndpoints":[{"matchExpressions":[{"key":"app-1","operator":"Exists"}]},{"matchLabels":{"app-2":"scale-2"}}]}]}`,
	}
	var out []*v2.CiliumNetworkPolicy
	for i := range n {
		for j, spec := range specs {
			p := &v2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("p%d", j), Namespace: fmt.Sprintf("namespace-%d", i)}, Spec: &v2.Rule{}}
			if err := json.Unmarshal([]byte(spec), p.Spec); err != nil {
				return nil, err
			}
			out = append(out, p)
		}
	}
	return out, nil
}

func heapInUse() float64 {
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// watchHeap follows the heap until stop is called, which returns its peak.
func watchHeap() (stop func() float64) {
	var peak atomic.Uint64
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-done:
				return
			case <-tick.C:
				peak.Store(max(peak.Load(), uint64(heapInUse())))
			}
		}
	}()
	return func() float64 {
		close(done)
		<-ended
		return float64(peak.Load())
	}
}

func (b *bencher) policyCompute(ctx context.Context) error {
	const namespaces = 25_000
	sets, err := clusterPods(namespaces)
	if err != nil {
		return err
	}
	policies, err := clusterPolicies(namespaces)
	if err != nil {
		return err
	}
	var total, compute, kept, peak []float64
	for range pick(b, 3, 1) {
		if err := ctx.Err(); err != nil {
			return err
		}
		debug.FreeOSMemory()
		before := heapInUse()
		stop := watchHeap()
		start := time.Now()
		e, err := policy.New(policy.Defaults())
		if err != nil {
			return err
		}
		for _, p := range policies {
			rules, err := policy.Parse(p)
			if err == nil {
				err = e.SetRules(policy.Owner(p.Namespace+"/"+p.Name), rules)
			}
			if err != nil {
				return err
			}
		}
		for i, set := range sets {
			e.SetIdentity(identity.ID(1000+i), set)
			e.AddSubject(policy.Subject{Identity: identity.ID(1000 + i)})
		}
		known := time.Now()
		update := e.Flush()
		total, compute = append(total, time.Since(start).Seconds()), append(compute, time.Since(known).Seconds())
		peak = append(peak, (stop()-before)/1e6)
		if len(update.Install) == 0 {
			return fmt.Errorf("%d policies gave no rule set", len(policies))
		}
		runtime.GC()
		kept = append(kept, (heapInUse()-before)/1e6)
		runtime.KeepAlive(e)
		runtime.KeepAlive(update)
	}
	note := "policies are parsed, pods are labelled, all of them are local"
	b.add(Figure{Row: "compute", Name: "75k policies over 100k pods", Unit: "s", Value: median(total), First: 1.8, Far: 0.5, Samples: len(total), Note: note})
	b.add(Figure{Row: "compute", Name: "of which rule sets from what is known", Unit: "s", Value: median(compute), Samples: len(total)})
	b.add(Figure{Row: "compute", Name: "heap at its peak", Unit: "MB", Value: median(peak), First: 1400, Far: 300, Samples: len(total)})
	b.add(Figure{Row: "compute", Name: "heap kept", Unit: "MB", Value: median(kept), Samples: len(total)})
	return nil
}
