package policies_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// cluster is an API server with the custom resources, and a way to write manifests to it.
type cluster struct {
	t      *testing.T
	server *kubeapi.Server
	client *k8s.Client
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, server: kubeapi.Start(t)}
	c.server.DefineResources()
	var err error
	if c.client, err = k8s.New(c.server.Config); err != nil {
		t.Fatal(err)
	}
	for _, ns := range []string{"a", "b"} {
		_, err := c.client.Kube.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: ns}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
	}
	return c
}

// path returns where objects of a kind are.
func path(kind, namespace string) string {
	switch kind {
	case "CiliumNetworkPolicy":
		return "/apis/cilium.io/v2/namespaces/" + namespace + "/ciliumnetworkpolicies"
	case "ClusterNetworkPolicy":
		return "/apis/policy.networking.k8s.io/v1alpha2/clusternetworkpolicies"
	case "CiliumClusterwideNetworkPolicy":
		return "/apis/cilium.io/v2/ciliumclusterwidenetworkpolicies"
	}
	return "/apis/networking.k8s.io/v1/namespaces/" + namespace + "/networkpolicies"
}

// apply writes a manifest, new or changed, and returns what the server says.
func (c *cluster) apply(manifest string) error {
	c.t.Helper()
	var meta metav1.PartialObjectMetadata
	text, err := yaml.YAMLToJSONStrict([]byte(manifest))
	if err == nil {
		err = yaml.Unmarshal(text, &meta)
	}
	if err != nil {
		c.t.Fatal(err)
	}
	p := path(meta.Kind, meta.Namespace)
	return c.client.Urgent.Discovery().RESTClient().Patch("application/apply-patch+yaml").AbsPath(p, meta.Name).
		Param("fieldManager", "test").Param("force", "true").Body(text).Do(c.t.Context()).Error()
}

func (c *cluster) mustApply(manifest string) {
	c.t.Helper()
	if err := c.apply(manifest); err != nil {
		c.t.Fatalf("%v\n%s", err, manifest)
	}
}

func (c *cluster) remove(kind, namespace, name string) {
	c.t.Helper()
	p := path(kind, namespace)
	if err := c.client.Urgent.Discovery().RESTClient().Delete().AbsPath(p, name).Do(c.t.Context()).Error(); err != nil {
		c.t.Fatal(err)
	}
}

// force is what is in force, by what Run hands out.
type force struct {
	mu        sync.Mutex
	batches   [][]policy.Change
	rules     map[policy.Owner][]*policy.Rule
	delivered chan struct{}
}

func (f *force) apply(changes []policy.Change) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.batches = append(f.batches, changes)
	for _, ch := range changes {
		if f.rules[ch.Owner] = ch.Rules; len(ch.Rules) == 0 {
			delete(f.rules, ch.Owner)
		}
	}
	select {
	case f.delivered <- struct{}{}:
	default:
	}
}

// start runs a part until the test ends.
func (c *cluster) start(cfg policies.Config) (*policies.Policies, *force) {
	c.t.Helper()
	p, err := policies.New(cfg, c.client, slog.New(slog.NewTextHandler(c.t.Output(), nil)))
	if err != nil {
		c.t.Fatal(err)
	}
	f := &force{rules: map[policy.Owner][]*policy.Rule{}, delivered: make(chan struct{}, 1)}
	ctx, cancel := context.WithCancel(c.t.Context())
	done := make(chan error, 1)
	go func() { done <- p.Run(ctx, f.apply) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Error(err)
		}
	})
	return p, f
}

// until waits for the state that check describes; nil from check means that it is there.
func (f *force) until(t *testing.T, check func(map[policy.Owner][]*policy.Rule) error) {
	t.Helper()
	deadline := time.After(30 * time.Second)
	for {
		f.mu.Lock()
		err := check(maps.Clone(f.rules))
		f.mu.Unlock()
		if err == nil {
			return
		}
		select {
		case <-f.delivered:
		case <-time.After(20 * time.Millisecond):
		case <-deadline:
			t.Fatal(err)
		}
	}
}

func has(want ...policy.Owner) func(map[policy.Owner][]*policy.Rule) error {
	slices.Sort(want)
	return func(rules map[policy.Owner][]*policy.Rule) error {
		if diff := cmp.Diff(want, slices.Sorted(maps.Keys(rules))); diff != "" {
			return fmt.Errorf("owners (-want +got):\n%s", diff)
		}
		return nil
	}
}

const (
	denyAll = `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: deny, namespace: a}, spec: {podSelector: {}}}`
	web     = `{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: web, namespace: a}, spec: {endpointSelector: {matchLabels: {app: web}}, ingress: [{fromEndpoints: []}]}}`
	all     = `{apiVersion: cilium.io/v2, kind: CiliumClusterwideNetworkPolicy, metadata: {name: all}, specs: [{endpointSelector: {}, egress: [{toEntities: [cluster]}]}, {endpointSelector: {}, egressDeny: [{toEntities: [world]}]}]}`
)

// TestPolicies follows what a real API server has.
func TestPolicies(t *testing.T) {
	testenv.CheckLeaks(t)
	c := newCluster(t)
	for _, m := range []string{denyAll, web, all} {
		c.mustApply(m)
	}
	p, f := c.start(policies.Defaults())
	f.until(t, has("k8s/NetworkPolicy/a/deny", "k8s/CiliumNetworkPolicy/a/web", "k8s/CiliumClusterwideNetworkPolicy/all"))
	f.mu.Lock()
	if len(f.batches) != 1 || len(f.batches[0]) != 3 {
		t.Errorf("the first of %d batches has %d changes, want all 3", len(f.batches), len(f.batches[0]))
	}
	deny := f.rules["k8s/NetworkPolicy/a/deny"]
	noPeers := f.rules["k8s/CiliumNetworkPolicy/a/web"]
	two := f.rules["k8s/CiliumClusterwideNetworkPolicy/all"]
	f.mu.Unlock()
	if len(deny) != 1 || deny[0].DefaultDeny != [2]bool{true, false} || len(deny[0].Clauses) != 0 || deny[0].Namespace != "a" {
		t.Errorf("the default deny became %+v", deny)
	}
	// An empty list of peers is not an absent one, on all the way through the server.
	if len(noPeers) != 1 || len(noPeers[0].Clauses) != 1 || noPeers[0].Clauses[0].AllPeers || len(noPeers[0].Clauses[0].Peers) != 0 {
		t.Errorf("entries for no peer became %+v", noPeers)
	}
	if len(two) != 2 || two[1].Path != "specs[1]" {
		t.Errorf("specs became %+v", two)
	}

	t.Run("changes", func(t *testing.T) {
		c.mustApply(strings.Replace(denyAll, "podSelector: {}", "podSelector: {}, ingress: [{from: [{ipBlock: {cidr: 10.0.0.0/8, except: [10.1.0.0/16]}}]}]", 1))
		c.mustApply(strings.Replace(web, "name: web, namespace: a", "name: web, namespace: b", 1))
		c.remove("CiliumClusterwideNetworkPolicy", "", "all")
		f.until(t, has("k8s/NetworkPolicy/a/deny", "k8s/CiliumNetworkPolicy/a/web", "k8s/CiliumNetworkPolicy/b/web"))
		f.until(t, func(rules map[policy.Owner][]*policy.Rule) error {
			if n := len(policy.Blocks(rules["k8s/NetworkPolicy/a/deny"])); n != 2 {
				return fmt.Errorf("the changed policy names %d blocks, want 2", n)
			}
			return nil
		})
	})

	t.Run("faulty", func(t *testing.T) {
		owner := policy.Owner("k8s/CiliumNetworkPolicy/a/web")
		fault := func() (s policies.Status) {
			for _, s = range p.Status() {
				if s.Owner == owner {
					return s
				}
			}
			return policies.Status{}
		}
		// Valid to the server, but nothing that can be enforced here.
		l7 := strings.Replace(web, "fromEndpoints: []", `toPorts: [{ports: [{port: "80", protocol: TCP}], rules: {http: [{method: GET}]}}]`, 1)
		c.mustApply(l7)
		f.until(t, func(rules map[policy.Owner][]*policy.Rule) error {
			if s := fault(); s.Err == nil {
				return errors.New("the fault is not reported")
			} else if r := rules[owner]; !s.InForce || s.Failed.IsZero() || len(r) != 1 || len(r[0].Faults) != 1 || !r[0].DefaultDeny[datapath.Ingress] || len(r[0].Clauses[0].Ports) > 0 {
				return fmt.Errorf("status %+v, rules %+v; it must isolate and grant nothing", s, rules[owner])
			}
			return nil
		})
		var fe *policy.FieldError
		if !errors.As(fault().Err, &fe) || fe.Field != "spec.ingress[0].toPorts[0].rules.http" {
			t.Errorf("the fault is %v", fault().Err)
		}
		c.mustApply(strings.Replace(l7, "name: web", "name: new", 1)) // never good
		f.until(t, func(rules map[policy.Owner][]*policy.Rule) error {
			if ok, faulty := p.Counts(); ok != 2 || faulty != 2 {
				return fmt.Errorf("%d good, %d faulty; want 2 and 2", ok, faulty)
			}
			return has("k8s/NetworkPolicy/a/deny", owner, "k8s/CiliumNetworkPolicy/a/new", "k8s/CiliumNetworkPolicy/b/web")(rules)
		})
		c.remove("CiliumNetworkPolicy", "a", "new")
		c.mustApply(web)
		f.until(t, func(map[policy.Owner][]*policy.Rule) error {
			if s := fault(); s.Err != nil || !s.Failed.IsZero() {
				return fmt.Errorf("the fault stays: %v", s.Err)
			}
			return nil
		})
		c.mustApply(l7)
		f.until(t, func(map[policy.Owner][]*policy.Rule) error {
			if fault().Err == nil {
				return errors.New("the fault is not reported")
			}
			return nil
		})
		c.remove("CiliumNetworkPolicy", "a", "web")
		f.until(t, has("k8s/NetworkPolicy/a/deny", "k8s/CiliumNetworkPolicy/b/web"))
	})

	t.Run("server away", func(t *testing.T) {
		c.mustApply(all)
		f.until(t, has("k8s/NetworkPolicy/a/deny", "k8s/CiliumNetworkPolicy/b/web", "k8s/CiliumClusterwideNetworkPolicy/all"))
		f.mu.Lock()
		before := len(f.batches)
		f.mu.Unlock()
		c.server.Stop()
		time.Sleep(300 * time.Millisecond)
		f.mu.Lock()
		if len(f.batches) != before || len(f.rules) != 3 {
			t.Error("the loss of the server changes what is in force")
		}
		f.mu.Unlock()
		c.server.Start()
		c.remove("NetworkPolicy", "a", "deny")
		f.until(t, has("k8s/CiliumNetworkPolicy/b/web", "k8s/CiliumClusterwideNetworkPolicy/all"))
	})

	t.Run("disabled kinds", func(t *testing.T) {
		cfg := policies.Defaults()
		cfg.Cilium = false
		_, f := c.start(cfg)
		f.until(t, has("k8s/CiliumClusterwideNetworkPolicy/all"))
	})
}
