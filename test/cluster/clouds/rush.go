package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/sandbox/region"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// kept is how many addresses of a subnet a node may have besides those of pods: 8 in advance, and
// those of its interfaces.
const kept = 16

// arrivals are the pods of a rush, by name, and when each was created, has its address, and is
// ready.
type arrivals struct {
	mu                        sync.Mutex
	created, addressed, ready map[string]time.Time
	addrs                     map[string]string
	fault                     error
}

// see notes what has become of a pod.
func (a *arrivals) see(p *corev1.Pod, gone bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	had := a.addrs[p.Name]
	switch {
	case gone:
		a.fault = fmt.Errorf("pod %s was removed", p.Name)
	case had != "" && p.Status.PodIP != had:
		a.fault = fmt.Errorf("pod %s had the address %s, and has %q", p.Name, had, p.Status.PodIP)
	case had == "" && p.Status.PodIP != "":
		a.addrs[p.Name], a.addressed[p.Name] = p.Status.PodIP, time.Now()
	}
	if _, ok := a.ready[p.Name]; !ok && lab.Ready(p) {
		a.ready[p.Name] = time.Now()
	}
}

// all reports whether n pods are ready, or what is wrong.
func (a *arrivals) all(n int) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.fault == nil && len(a.ready) < n {
		return fmt.Errorf("of %d pods %d have an address, and %d are ready", n, len(a.addressed), len(a.ready))
	}
	return a.fault
}

// took says how long pods took from their creation to at.
func (a *arrivals) took(at map[string]time.Time) string {
	var all []float64
	for name, t := range at {
		all = append(all, t.Sub(a.created[name]).Seconds())
	}
	slices.Sort(all)
	return fmt.Sprintf("%.1f s (p50), %.1f s (p99), %.1f s at most", all[len(all)/2], all[len(all)*99/100], all[len(all)-1])
}

// follow notes what becomes of the crowd until ctx ends.
func (c *scene) follow(ctx context.Context, a *arrivals) error {
	for ctx.Err() == nil {
		w, err := c.Kube.CoreV1().Pods(crowd).Watch(ctx, metav1.ListOptions{})
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		// A watch ends after the time that the client has for any request; the next one begins with
		// all that there is.
		for e := range w.ResultChan() {
			if p, ok := e.Object.(*corev1.Pod); ok {
				a.see(p, e.Type == watch.Deleted)
			}
		}
	}
	return nil
}

// pooled waits until each node has as many addresses as it had in use before, and pods that come.
func (c *scene) pooled(ctx context.Context, before []v2.CiliumNode, come map[string]int) error {
	return lab.Eventually(ctx, 2*waitTimeout, func(ctx context.Context) error {
		var list v2.CiliumNodeList
		if err := c.Custom("GET", "ciliumnodes").Do(ctx).Into(&list); err != nil {
			return err
		}
		now := map[string]int{}
		for _, n := range list.Items {
			now[n.Name] = len(n.Spec.IPAM.Pool)
		}
		for _, n := range before {
			if want := len(n.Status.IPAM.Used) + come[n.Name]; now[n.Name] < want {
				return fmt.Errorf("node %s has %d addresses for %d pods: %s", n.Name, now[n.Name], want, n.Status.IPAM.OperatorStatus.Error)
			}
		}
		return nil
	})
}

// room is how many pods of a rush the subnet of pods has addresses for.
func (c *scene) room(st region.Status) int {
	free := 0
	for _, s := range st.Subnets {
		// Where there is none for pods alone they have that of the nodes.
		if free == 0 || s.ID == region.PodsSubnet {
			free = s.Free
		}
	}
	return min(c.most, free-kept*len(c.nodes))
}

// rush has many pods come at once: how long does each wait for its address, and how often is the
// cloud asked for it? A call for each pod's address would be as many calls as there are pods.
func (c *scene) rush(ctx context.Context) error {
	before, err := c.read(ctx)
	if err != nil {
		return err
	}
	quiet, err := c.cloud.Status(ctx)
	if err != nil {
		return err
	}
	n := c.room(quiet)
	if n < 1 {
		return fmt.Errorf("the subnet of pods has no room for a rush: %+v", quiet.Subnets)
	}
	if n < c.most {
		c.say("  the subnet of pods has room for %d of %d", n, c.most)
	}
	return c.traffic(ctx, func() error {
		a := &arrivals{created: map[string]time.Time{}, addressed: map[string]time.Time{}, ready: map[string]time.Time{}, addrs: map[string]string{}}
		following, stop := context.WithCancel(ctx)
		var wg sync.WaitGroup
		defer wg.Wait()
		defer stop()
		var lost, dry error
		wg.Go(func() { lost = c.follow(following, a) })
		began, full, come := time.Now(), time.Duration(0), map[string]int{}
		for k := range n {
			p := lab.Pause(crowd, fmt.Sprintf("p%d", k), c.nodes[k%len(c.nodes)], nil)
			a.mu.Lock()
			a.created[p.Name] = time.Now()
			a.mu.Unlock()
			if _, err := c.Kube.CoreV1().Pods(crowd).Create(ctx, p, metav1.CreateOptions{}); err != nil {
				return err
			}
			come[p.Spec.NodeName]++
		}
		created := time.Since(began)
		wg.Go(func() { dry = c.pooled(following, before.nodes, come); full = time.Since(began) })
		err := lab.Eventually(ctx, 5*waitTimeout, func(context.Context) error { return a.all(n) })
		if err == nil {
			err = c.agree(ctx)
		}
		stop()
		wg.Wait()
		if err = errors.Join(err, lost, dry); err != nil {
			said, _ := c.complaints(ctx)
			return fmt.Errorf("%w; the operator says %q", err, said)
		}
		c.say("  %d pods were created within %.1f s; the nodes had as many addresses after %.1f s", n, created.Seconds(), full.Seconds())
		c.say("  a pod has its address after %s", a.took(a.addressed))
		c.say("  and is ready after %s", a.took(a.ready))
		if err := c.count(ctx, quiet, n); err != nil {
			return err
		}
		return c.few(ctx, n)
	})
}

// count says what the cloud was asked for since before, and fails if that was more than once a pod.
func (c *scene) count(ctx context.Context, before region.Status, n int) error {
	now, err := c.cloud.Status(ctx)
	if err != nil {
		return err
	}
	changes, list := 0, []string(nil)
	for _, action := range slices.Sorted(maps.Keys(now.Calls)) {
		k := now.Calls[action] - before.Calls[action]
		if k == 0 {
			continue
		}
		list = append(list, fmt.Sprintf("%s %d", action, k))
		if !strings.HasPrefix(action, "Describe") && !strings.HasSuffix(action, "/read") {
			changes += k
		}
	}
	c.say("  calls that change the cloud, a pod: %.3f (of all calls: %s)", float64(changes)/float64(n), strings.Join(list, ", "))
	if changes == 0 || changes >= n {
		return fmt.Errorf("%d calls changed the cloud for %d pods: want some, and fewer than one each", changes, n)
	}
	return nil
}
