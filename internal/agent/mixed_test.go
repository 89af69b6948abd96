package agent

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/identity"
	making "github.com/hawser-net/hawser/internal/operator/identities"
	managers "github.com/hawser-net/hawser/internal/operator/kube"
)

// makers runs what of the operator makes identities, as in mode both, until the test ends.
func (c *kubeCluster) makers() {
	c.t.Helper()
	ctrllog.SetLogger(logr.Discard()) // the library complains if nobody does
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("who", "operator")
	}
	rc := rest.CopyConfig(c.Config)
	managers.Apart(rc)
	m, err := managers.NewManager(rc, log)
	if err != nil {
		c.t.Fatal(err)
	}
	control := making.ControlDefaults()
	control.Agents = true
	rules, err := control.Rules("default", identity.MinGlobal, 65535)
	if err != nil {
		c.t.Fatal(err)
	}
	if _, err := making.Setup(m, control, rules, nil, prometheus.NewRegistry(), log); err != nil {
		c.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	c.t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("the operator ended with: %v", err)
		}
	})
}

// history follows which identities a pod's CiliumEndpoint names, one after the other. What it returns tells those so far.
func (c *kubeCluster) history(pod string) func() []int64 {
	c.t.Helper()
	w, err := c.endpoints().Watch(c.t.Context(), metav1.ListOptions{FieldSelector: "metadata.name=" + pod})
	if err != nil {
		c.t.Fatal(err)
	}
	var mu sync.Mutex
	var seen []int64
	var wg sync.WaitGroup
	c.t.Cleanup(func() { w.Stop(); wg.Wait() })
	wg.Go(func() {
		for ev := range w.ResultChan() {
			o, ok := ev.Object.(*v2.CiliumEndpoint)
			if !ok || o.Status.Identity == nil {
				continue
			}
			mu.Lock()
			if n := len(seen); n == 0 || seen[n-1] != o.Status.Identity.ID {
				seen = append(seen, o.Status.Identity.ID)
			}
			mu.Unlock()
		}
	})
	return func() []int64 {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(seen)
	}
}

// back returns the first number that a history comes back to, 0 if to none.
func back(history []int64) int64 {
	seen := map[int64]bool{}
	for _, id := range history {
		if seen[id] {
			return id
		}
		seen[id] = true
	}
	return 0
}

// TestMixedModes is "Two CEP writing sources" of CFP-27752 while a cluster changes from one to two. It has an operator make identities beside an agent that does so itself, and knows a pod by a label that users set on its socket: what the pod's CiliumEndpoint
// names does not go to and fro, neither by itself nor when the pod's labels change. When the agent lets the operator write identities, no more such labels can be
// set; those that are there can be deleted, and then all mean the same.
func TestMixedModes(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes")
	n.start()
	web := c.pod(n, "web", map[string]string{"app": "web"})
	id := func() int64 { return int64(web.endpoint().Status.Identity.ID) }
	own := id()
	labels := fmt.Sprintf("/endpoint/%d/labels", web.endpoint().ID)
	user := func(want int, list ...string) string {
		t.Helper()
		body := `{"user": []}`
		if len(list) > 0 {
			body = `{"user": ["` + strings.Join(list, `","`) + `"]}`
		}
		code, text := n.call(http.MethodPatch, labels, body)
		if code != want {
			t.Fatalf("user labels %v: %d %s, not %d", list, code, text, want)
		}
		return text
	}
	user(http.StatusOK, "team=red")
	c.eventually("the others are told of the label", func() bool { return id() != own && int64(c.told(web)) == id() })
	history := c.history("web")
	c.eventually("the history begins", func() bool { return len(history()) > 0 })

	c.makers()
	// The operator has looked at the pod once another one of the same labels, whose object comes later, has its identity.
	later := c.object(n, "later", map[string]string{"app": "later"})
	c.eventually("the operator makes identities", func() bool {
		list, err := c.identities().List(t.Context(), metav1.ListOptions{})
		return err == nil && slices.ContainsFunc(list.Items, func(o v2.CiliumIdentity) bool { return o.SecurityLabels["k8s:app"] == later.Labels["app"] })
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if h := history(); len(h) != 1 {
			t.Fatalf("agent and operator take turns: %v", h)
		}
	}
	for _, app := range []string{"db", "cache", "queue"} {
		before := id()
		c.labelPod("web", "app", app)
		c.eventually("the others are told of the pod's new labels", func() bool { return id() != before && int64(c.told(web)) == id() })
	}
	if h := history(); back(h) != 0 || len(h) != 4 {
		t.Errorf("three changes of labels: %v", h)
	}

	n.stop()
	n.flags = append(n.flags, "--"+identity.ManagementFlag, string(identity.ManagedByBoth))
	n.start()
	if log := n.logText(); !strings.Contains(log, "users have set labels of an endpoint") {
		t.Error("the log does not tell of the label that nobody else knows")
	}
	user(http.StatusOK, "team=red") // it is there
	text := user(http.StatusBadRequest, "team=red", "tier=front")
	for _, want := range []string{"tier=front", identity.ManagementFlag, "label the pod"} {
		if !strings.Contains(text, want) {
			t.Errorf("the refusal does not say %q: %s", want, text)
		}
	}
	for path, body := range map[string]string{
		strings.TrimSuffix(labels, "/labels"):           `{"labels": ["tier=front"]}`,
		strings.TrimSuffix(labels, "labels") + "config": `{"label-configuration": {"user": ["tier=front"]}}`,
	} {
		if code, text := n.call(http.MethodPatch, path, body); code != http.StatusBadRequest || !strings.Contains(text, "tier=front") {
			t.Errorf("%s: %d %s", path, code, text)
		}
	}
	user(http.StatusOK)
	c.eventually("all mean the same", func() bool {
		e := web.endpoint().Status.Identity
		return int64(c.told(web)) == int64(e.ID) && !slices.ContainsFunc(e.Labels, func(l string) bool { return strings.Contains(l, "team") })
	})
	n.stop()
}
