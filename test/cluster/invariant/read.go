// Package invariant checks what must hold of a cluster with Hawser whenever nothing is under way,
// whatever happened before: each invariant is a function of one reading of the objects, the agents
// and the kernels of all nodes.
package invariant

import (
	"context"
	"fmt"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// World is one reading.
type World struct {
	Cluster    string
	Namespaces map[string]map[string]string // with their labels
	Pods       []corev1.Pod                 // on a network of their own, not ended
	// Endpoints are the objects. Where slices are made of pods and there are no objects, those of
	// Sliced stand for them: without labels and owners.
	Endpoints []v2.CiliumEndpoint
	// Sliced are the pods in slices, by namespace/name; nil if there are no slices.
	Sliced     map[string]*v2alpha1.CoreCiliumEndpoint
	Identities []v2.CiliumIdentity
	Nodes      map[string]*Node

	slim bool // the endpoints are those of slices
	// shared says that identities are in a store, where others' references may keep what this
	// cluster does not use.
	shared bool
}

// Node is what a node says of itself.
type Node struct {
	Info        kube.NodeInfo
	Endpoints   []rest.Endpoint
	Allocations map[string]string // owner of each address
	Kernel      []rest.MapEndpoint
	IPCache     []rest.MapIPCache
	RuleSets    map[int]bool // in the kernel
	// Identities are what the agent takes IDs for.
	Identities map[int]labels.Set
	Links      []string // host ends of pods
}

// Read reads everything. Parts that change meanwhile may not fit together: read again.
func Read(ctx context.Context, l *lab.Lab) (*World, error) {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	info, err := l.Info()
	if err != nil {
		return nil, err
	}
	w := &World{Cluster: l.Name, Namespaces: map[string]map[string]string{}, Nodes: map[string]*Node{}}
	var mu sync.Mutex
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return w.readObjects(ctx, l) })
	for _, n := range info.Nodes {
		g.Go(func() error {
			node, err := readNode(ctx, l, n)
			if err != nil {
				return fmt.Errorf("node %s: %w", n.Name, err)
			}
			mu.Lock()
			defer mu.Unlock()
			w.Nodes[n.Name] = node
			return nil
		})
	}
	return w, g.Wait()
}

func (w *World) readObjects(ctx context.Context, l *lab.Lab) error {
	namespaces, err := l.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, n := range namespaces.Items {
		w.Namespaces[n.Name] = n.Labels
	}
	pods, err := l.Kube.CoreV1().Pods("").List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	for _, p := range pods.Items {
		if !p.Spec.HostNetwork && p.Status.Phase != corev1.PodSucceeded && p.Status.Phase != corev1.PodFailed {
			w.Pods = append(w.Pods, p)
		}
	}
	var endpoints v2.CiliumEndpointList
	if err := l.Custom("GET", v2.ResourceEndpoints).Do(ctx).Into(&endpoints); err != nil {
		return err
	}
	w.Endpoints = endpoints.Items
	if w.Identities, err = Identities(ctx, l); err != nil {
		return err
	}
	w.shared = l.Store != nil
	return w.readSlices(ctx, l)
}

// Identities returns the identities of a cluster, from objects or, in the same form, from the store
// that keeps them.
func Identities(ctx context.Context, l *lab.Lab) ([]v2.CiliumIdentity, error) {
	if l.Store == nil {
		var list v2.CiliumIdentityList
		err := l.Custom("GET", v2.ResourceIdentities).Do(ctx).Into(&list)
		return list.Items, err
	}
	list, err := l.Store.List(ctx, IdentityKey(""))
	if err != nil {
		return nil, err
	}
	var out []v2.CiliumIdentity
	for _, kv := range list.Pairs {
		set, err := labels.ParseKV(l.Store.Layout().Decode(string(kv.Value)))
		if err != nil {
			return nil, fmt.Errorf("key %s: %w", kv.Key, err)
		}
		id := v2.CiliumIdentity{SecurityLabels: identities.SecurityLabels(set)}
		id.Name = strings.TrimPrefix(kv.Key, IdentityKey(""))
		out = append(out, id)
	}
	return out, nil
}

// IdentityKey is the key of an ID in a store.
func IdentityKey(number string) string { return storekeys.IdentitiesPrefix + "/id/" + number }

// readSlices reads what slices say, if the cluster has them.
func (w *World) readSlices(ctx context.Context, l *lab.Lab) error {
	var list v2alpha1.CiliumEndpointSliceList
	if err := l.Slices("GET").Do(ctx).Into(&list); err != nil {
		if apierrors.IsNotFound(err) {
			return nil
		}
		return err
	}
	for i := range list.Items {
		slice := &list.Items[i]
		for j := range slice.Endpoints {
			if w.Sliced == nil {
				w.Sliced = map[string]*v2alpha1.CoreCiliumEndpoint{}
			}
			w.Sliced[slice.Namespace+"/"+slice.Endpoints[j].Name] = &slice.Endpoints[j]
		}
	}
	if len(w.Endpoints) > 0 {
		return nil
	}
	for _, name := range slices.Sorted(maps.Keys(w.Sliced)) {
		core := w.Sliced[name]
		namespace, pod, _ := strings.Cut(name, "/")
		w.Endpoints = append(w.Endpoints, v2.CiliumEndpoint{
			ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: pod},
			Status:     v2.EndpointStatus{Identity: &v2.EndpointIdentity{ID: core.IdentityID}, Networking: core.Networking},
		})
	}
	w.slim = len(w.Sliced) > 0
	return nil
}

// Agent returns a client of a node's agent.
func Agent(n kube.NodeInfo) (*client.Client, error) {
	return client.New("unix://" + filepath.Join(n.Dir, "run/cilium/cilium.sock"))
}

// AgentsAnswer waits until the agents of all nodes are well.
func AgentsAnswer(ctx context.Context, l *lab.Lab, timeout time.Duration) error {
	info, err := l.Info()
	if err != nil {
		return err
	}
	return lab.Eventually(ctx, timeout, func(ctx context.Context) error {
		for _, n := range info.Nodes {
			c, err := Agent(n)
			if err != nil {
				return err
			}
			status, err := c.Health(ctx, true)
			c.Close()
			if err != nil {
				return fmt.Errorf("agent of %s: %w", n.Name, err)
			}
			if status.Cilium.State != "Ok" {
				return fmt.Errorf("agent of %s: %s %s", n.Name, status.Cilium.State, status.Cilium.Msg)
			}
		}
		return nil
	})
}

func readNode(ctx context.Context, l *lab.Lab, info kube.NodeInfo) (*Node, error) {
	n := &Node{Info: info, RuleSets: map[int]bool{}, Identities: map[int]labels.Set{}}
	c, err := Agent(info)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	status, err := c.Health(ctx, false)
	if err != nil {
		return nil, err
	}
	n.Allocations = status.IPAM.Allocations
	if n.Endpoints, err = c.Endpoints(ctx, nil); err != nil {
		return nil, err
	}
	known, err := c.Identities(ctx, nil)
	if err != nil {
		return nil, err
	}
	for _, id := range known {
		if n.Identities[id.ID], err = labels.ParseSet(id.Labels); err != nil {
			return nil, fmt.Errorf("identity %d: %w", id.ID, err)
		}
	}
	m, err := c.Map(ctx, "endpoints")
	if err != nil {
		return nil, err
	}
	for _, e := range m.Cache {
		n.Kernel = append(n.Kernel, e.Endpoint)
	}
	if m, err = c.Map(ctx, "ipcache"); err != nil {
		return nil, err
	}
	for _, e := range m.Cache {
		n.IPCache = append(n.IPCache, e.IPCache)
	}
	if m, err = c.Map(ctx, "policy"); err != nil {
		return nil, err
	}
	for _, e := range m.Cache {
		n.RuleSets[e.Policy.RuleSet] = true
	}
	links, err := l.Exec(ctx, info.Name, "ip", "-br", "link")
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(links) {
		if name, _, _ := strings.Cut(line, "@"); strings.HasPrefix(name, "lxc") {
			n.Links = append(n.Links, name)
		}
	}
	return n, nil
}

// Check is an invariant: it lists what is wrong.
type Check struct {
	Name string
	Of   func(*World) []string
}

// All are the invariants.
func All() []Check {
	return []Check{
		{"every pod has one endpoint, with the identity of its labels", podsHaveEndpoints},
		{"every node knows every pod, and nothing else", nodesKnowPods},
		{"nothing is left of pods that are gone", nothingLeft},
		{"a label set has one identity", identitiesAreUnique},
		{"an ID means the same everywhere", numbersMeanOne},
	}
}

// Hold reads the cluster until all invariants hold. After the timeout it returns what does not.
func Hold(ctx context.Context, l *lab.Lab, timeout time.Duration) error {
	return lab.Eventually(ctx, timeout, func(ctx context.Context) error {
		w, err := Read(ctx, l)
		if err != nil {
			return err
		}
		var wrong []string
		for _, c := range All() {
			faults := c.Of(w)
			slices.Sort(faults)
			if len(faults) > 0 {
				more := ""
				if len(faults) > 5 {
					faults, more = faults[:5], fmt.Sprintf(" and %d more", len(faults)-5)
				}
				wrong = append(wrong, fmt.Sprintf("not true that %s: %s%s", c.Name, strings.Join(faults, "; "), more))
			}
		}
		if len(wrong) > 0 {
			return fmt.Errorf("%s", strings.Join(wrong, "\n"))
		}
		return nil
	})
}

// sortedNodes are the nodes in order of their names, so that faults come in the same order.
func (w *World) sortedNodes() []*Node {
	var out []*Node
	for _, name := range slices.Sorted(maps.Keys(w.Nodes)) {
		out = append(out, w.Nodes[name])
	}
	return out
}
