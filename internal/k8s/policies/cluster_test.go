package policies_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/testenv"
)

const (
	definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	clusterCRD  = "clusternetworkpolicies.policy.networking.k8s.io"
)

// defineCluster defines ClusterNetworkPolicy as its authors do, in the channel with all fields.
func (c *cluster) defineCluster() {
	c.t.Helper()
	err := c.client.Urgent.Discovery().RESTClient().Post().AbsPath(definitions).SetHeader("Content-Type", "application/json").
		Body(c.server.ClusterNetworkPolicyDefinition()).Do(c.t.Context()).Error()
	if err != nil {
		c.t.Fatal(err)
	}
}

// applySoon applies a manifest, and waits for a server that does not know its kind yet.
func (c *cluster) applySoon(manifest string) {
	c.t.Helper()
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := c.apply(manifest)
		if err == nil {
			return
		}
		if !apierrors.IsNotFound(err) || time.Now().After(deadline) {
			c.t.Fatal(err)
		}
	}
}

const isolate = `
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: isolate}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {}}
  ingress:
  - {name: ours, action: Pass, from: [{namespaces: {matchLabels: {team: red}}}]}
  - {action: Deny, from: [{pods: {namespaceSelector: {}, podSelector: {}}}]}
  egress:
  - action: Deny
    to: [{networks: [10.0.0.0/8]}]
    protocols: [{tcp: {destinationPort: {range: {start: 1, end: 1023}}}}]
`

// TestClusterNetworkPolicy: its definition may be missing, come and go; that holds up nothing, and
// its policies come and go with it.
func TestClusterNetworkPolicy(t *testing.T) {
	testenv.CheckLeaks(t)
	c := newCluster(t)
	c.mustApply(denyAll)
	cfg := policies.Defaults()
	cfg.Look = 20 * time.Millisecond
	p, f := c.start(cfg)
	f.until(t, has("k8s/NetworkPolicy/a/deny"))
	c.defineCluster()
	c.applySoon(isolate)
	const owner = policy.Owner("k8s/ClusterNetworkPolicy/isolate")
	f.until(t, has("k8s/NetworkPolicy/a/deny", owner))
	f.mu.Lock()
	r := f.rules[owner][0]
	f.mu.Unlock()
	if r.Tier != policy.TierAdmin || r.Priority != 7 || len(r.Clauses) != 3 || !r.Clauses[0].Pass || len(policy.Blocks([]*policy.Rule{r})) != 1 {
		t.Errorf("the policy became %+v", r)
	}

	// A later start observes it in its first batch.
	_, again := c.start(cfg)
	again.until(t, has("k8s/NetworkPolicy/a/deny", owner))
	again.mu.Lock()
	if len(again.batches[0]) != 2 {
		t.Errorf("the first batch has %d changes, want both", len(again.batches[0]))
	}
	again.mu.Unlock()

	// What cannot be enforced is refused by its field; what was good before stays.
	c.mustApply(strings.Replace(isolate, "networks: [10.0.0.0/8]", "domainNames: [example.org]", 1))
	f.until(t, func(rules map[policy.Owner][]*policy.Rule) error {
		for _, s := range p.Status() {
			var fe *policy.FieldError
			if s.Owner == owner && errors.As(s.Err, &fe) && fe.Field == "spec.egress[0].to[0].domainNames" && len(rules[owner]) == 1 {
				return nil
			}
		}
		return fmt.Errorf("status %+v, rules %v", p.Status(), rules[owner])
	})
	c.mustApply(isolate)

	if err := c.client.Urgent.Discovery().RESTClient().Delete().AbsPath(definitions, clusterCRD).Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	f.until(t, has("k8s/NetworkPolicy/a/deny"))
	for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := c.client.Urgent.Discovery().RESTClient().Get().AbsPath(definitions, clusterCRD).Do(t.Context()).Error()
		if apierrors.IsNotFound(err) {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the definition does not go")
		}
	}
	c.defineCluster()
	c.applySoon(isolate)
	f.until(t, has("k8s/NetworkPolicy/a/deny", owner))
}

// starting makes an API server look as one that starts: it answers, and is not ready; it has not
// read yet which kinds are defined.
type starting struct {
	http.RoundTripper
	on atomic.Bool
}

func (s *starting) RoundTrip(r *http.Request) (*http.Response, error) {
	code := 0
	if s.on.Load() {
		switch {
		case r.URL.Path == "/readyz":
			code = http.StatusInternalServerError
		case strings.HasPrefix(r.URL.Path, "/apis/policy.networking.k8s.io/"):
			code = http.StatusNotFound
		}
	}
	if code == 0 {
		return s.RoundTripper.RoundTrip(r)
	}
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{},
		Body: io.NopCloser(strings.NewReader(http.StatusText(code))), Request: r,
	}, nil
}

// TestClusterNetworkPolicyServerStarts: a server that starts does not say what is defined. The
// agent waits for one that is ready, rather than run without what may be there, and keeps what it
// has.
func TestClusterNetworkPolicyServerStarts(t *testing.T) {
	testenv.CheckLeaks(t)
	c := newCluster(t)
	c.mustApply(denyAll)
	c.defineCluster()
	c.applySoon(isolate)
	s := &starting{}
	rc := rest.CopyConfig(c.server.Config)
	rc.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		s.RoundTripper = rt
		return s
	})
	var err error
	if c.client, err = k8s.New(rc); err != nil {
		t.Fatal(err)
	}
	s.on.Store(true)
	cfg := policies.Defaults()
	cfg.Look = 20 * time.Millisecond
	_, f := c.start(cfg)
	time.Sleep(500 * time.Millisecond) // some looks
	s.on.Store(false)
	const owner = policy.Owner("k8s/ClusterNetworkPolicy/isolate")
	f.until(t, has("k8s/NetworkPolicy/a/deny", owner))
	f.mu.Lock()
	if len(f.batches[0]) != 2 {
		t.Errorf("the first batch has %d changes, want both policies", len(f.batches[0]))
	}
	f.mu.Unlock()

	// It starts again while the policies are in force.
	s.on.Store(true)
	time.Sleep(500 * time.Millisecond)
	s.on.Store(false)
	f.mu.Lock()
	if err := has("k8s/NetworkPolicy/a/deny", owner)(f.rules); err != nil || len(f.batches) > 1 {
		t.Errorf("after a start of the server: %d batches, %v", len(f.batches), err)
	}
	f.mu.Unlock()
}
