package agent

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	clientv3 "go.etcd.io/etcd/client/v3"
	"golang.org/x/time/rate"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	making "github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/allocator"
)

// collecting runs what of the operator makes and collects identities, until the function that it
// returns is called or the test ends. The quarantine of IDs is short.
func (c *kubeCluster) collecting(lost time.Duration) (stop func()) {
	c.t.Helper()
	return c.collectingWith(making.Config{Interval: 200 * time.Millisecond, Quarantine: time.Second, Lost: lost, Namespace: "default"}, func(error) {})
}

// collectingWith is collecting with a configuration; seen is called with the error of each round.
func (c *kubeCluster) collectingWith(gc making.Config, seen func(error)) (stop func()) {
	c.t.Helper()
	gc.Limiter, gc.First, gc.Last = rate.NewLimiter(rate.Inf, 1), 256, 65535
	return controllers.Run(c.t, c.Config, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		control := making.ControlDefaults()
		rules, err := control.Rules("default", identity.MinGlobal, 65535)
		if err != nil {
			return err
		}
		if gc.Pods, err = making.Setup(m, control, rules, nil, prometheus.NewRegistry(), log); err != nil {
			return err
		}
		return making.SetupGC(m, gc, func(_ making.Stats, _ time.Duration, err error) { seen(err) }, log)
	})
}

// fate reports what has become of an ID.
func (c *kubeCluster) fate(number int) string {
	c.t.Helper()
	o, err := c.identities().Get(c.t.Context(), strconv.Itoa(number), metav1.GetOptions{})
	switch {
	case apierrors.IsNotFound(err):
		return "free"
	case err != nil:
		c.t.Fatal(err)
	}
	if _, _, quarantined := k8sids.Quarantined(o); quarantined {
		return "quarantined"
	}
	return "stands"
}

// gone deletes a pod, on its node and in Kubernetes.
func (c *kubeCluster) gone(p *machinePod) {
	c.t.Helper()
	if err := p.del(); err != nil {
		c.t.Fatal(err)
	}
	now := int64(0)
	if err := c.client.Kube.CoreV1().Pods("default").Delete(c.t.Context(), p.name, metav1.DeleteOptions{GracePeriodSeconds: &now}); err != nil {
		c.t.Fatal(err)
	}
}

// freeze stops an agent until the function that it returns is called.
func freeze(t *testing.T, n *machineNode) (goOn func()) {
	t.Helper()
	p := n.cmd.Process
	if err := p.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	goOn = func() {
		if err := p.Signal(syscall.SIGCONT); err != nil && !errors.Is(err, os.ErrProcessDone) {
			t.Error(err)
		}
	}
	t.Cleanup(goOn)
	return goOn
}

// aimed returns, as an adversary who knows the cluster's salt can, a value of the label app for
// which the search for a pod's ID begins at one ID.
func (c *kubeCluster) aimed(at int, label func(app string) string) string {
	c.t.Helper()
	ns, err := c.client.Urgent.CoreV1().Namespaces().Get(c.t.Context(), k8sids.SaltNamespace, metav1.GetOptions{})
	if err != nil {
		c.t.Fatal(err)
	}
	for i := range 1 << 22 {
		app := "aimed-" + strconv.Itoa(i)
		for first := range k8sids.Sequence(string(ns.UID), label(app), 256, 65535) {
			if first == allocator.ID(at) {
				return app
			}
			break
		}
	}
	c.t.Fatalf("no label is looked for at %d first", at)
	return ""
}

// TestIDsWaitForFrozenAgent: an ID whose labels no pod has any more is not given to others, that
// aim at it, while an agent is stopped that may still use it; once it goes on it releases it, and
// evaluates its next owner by what that is.
func TestIDsWaitForFrozenAgent(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.readOnlyIdentities()
	c.mayFollow()
	ns1, ns2 := twoNamespaces(t)
	n1, n2 := c.node(ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), c.node(ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(n.flags, "--ipam", "kubernetes", "--operator-manage-cid")
		n.start()
	}
	stop := c.collecting(time.Hour)
	c.network("web", "web", fromApp("friend"))
	web := c.pod(n1, "web", map[string]string{"app": "web"})
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
	}
	known := func(p *machinePod) int {
		var id int
		c.eventually(p.name+" has an identity", func() bool {
			id = p.endpoint().Status.Identity.ID
			return id >= 256 && id <= 65535
		})
		return id
	}
	known(web)
	friend := c.pod(n2, "friend", map[string]string{"app": "friend"})
	number := known(friend)
	for _, to := range web.both(80) {
		c.passing("the friend", friend, to)
	}
	text := k8sids.Key{Set: parseAll(t, friend.endpoint().Status.Identity.Labels)}.GetKey()
	enemy := c.aimed(number, func(app string) string { return strings.Replace(text, "k8s:app=friend;", "k8s:app="+app+";", 1) })

	// n1 has let it in, and stands still from here on.
	goOn := freeze(t, n1)
	c.gone(friend)
	c.eventually("the ID is in quarantine", func() bool { return c.fate(number) == "quarantined" })
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		if is := c.fate(number); is != "quarantined" {
			t.Fatalf("an agent stands still, and ID %d, which it takes for a friend, %s", number, is)
		}
	}
	other := c.pod(n2, "enemy", map[string]string{"app": enemy})
	if got := known(other); got == number {
		t.Fatalf("%s has ID %d, by which a node lets in friends", enemy, got)
	}
	for _, to := range web.both(80) {
		c.blocked("the enemy, while the agent stands still", other, to)
	}
	c.gone(other)

	goOn()
	c.eventually("all agents have released the ID", func() bool { return c.fate(number) == "free" })
	if _, err := n1.client.Identity(t.Context(), strconv.Itoa(number)); err == nil {
		t.Errorf("n1 knows ID %d still", number)
	}
	again := c.pod(n2, "enemy-again", map[string]string{"app": enemy + "x"}) // of other labels, for which no ID is in quarantine
	known(again)
	for _, to := range web.both(80) {
		c.blocked("another one afterwards", again, to)
	}

	// A node that says nothing counts as lost in the end.
	number = known(again)
	stop()
	c.collecting(3 * time.Second)
	freeze(t, n1)
	c.gone(again)
	c.eventually("the node counts as lost", func() bool { return c.fate(number) == "free" })
}

// TestKeysWaitForFrozenAgent is the same where IDs are keys of a store: by the agent's own key
// there.
func TestKeysWaitForFrozenAgent(t *testing.T) {
	t.Parallel()
	store, n1, n2 := nodesWithStore(t)
	n1.start()
	n2.start()
	cfg := storedial.Defaults()
	cfg.Kind, cfg.Options = "etcd", map[string]string{"etcd.address": store.Endpoint()}
	keys, err := storedial.Open(context.Background(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { keys.Close() })
	operator, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
		Store: keys, BasePath: storekeys.IdentitiesPrefix, KeyType: k8sids.Key{}, Quarantine: time.Second, ConfirmTimeout: time.Hour,
	})
	if err != nil {
		t.Fatal(err)
	}
	seen := map[allocator.ID]int64{}
	collect := func() allocator.GCStats {
		t.Helper()
		next, stats, err := operator.RunGC(t.Context(), nil, allocator.Range{Min: 256, Max: 65535}, seen)
		if err != nil {
			t.Fatal(err)
		}
		seen = next
		return stats
	}
	eventually := func(what string, f func() bool) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); !f(); time.Sleep(100 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: never", what)
			}
		}
	}
	confirmed := func() (n int) {
		l, err := keys.List(t.Context(), storekeys.IdentitiesPrefix+"/confirmed/")
		if err != nil {
			t.Fatal(err)
		}
		return len(l.Pairs)
	}
	eventually("both agents confirm", func() bool { return confirmed() == 2 })
	pod := n2.attached("friend", map[string]string{"app": "friend"})
	number := pod.endpoint().Status.Identity.ID
	goOn := freeze(t, n1)
	if err := pod.del(); err != nil {
		t.Fatal(err)
	}
	eventually("the ID is in quarantine", func() bool { return collect().Quarantined == 1 })
	eventually("it waits for n1", func() bool { return collect().Unconfirmed == 1 })
	for range 20 {
		if stats := collect(); stats.Freed > 0 {
			t.Fatalf("an agent stands still, and ID %d is free: %+v", number, stats)
		}
		time.Sleep(100 * time.Millisecond)
	}
	goOn()
	eventually("both agents have released it", func() bool { return collect().Freed == 1 })
	if _, err := n1.client.Identity(t.Context(), fmt.Sprint(number)); err == nil {
		t.Errorf("n1 knows ID %d still", number)
	}
	// What agents said is lost with their leases, and is said again at once: others would not wait
	// for them meanwhile.
	before := map[int64]bool{}
	l, err := store.Client().Get(t.Context(), storekeys.IdentitiesPrefix+"/confirmed/", clientv3.WithPrefix())
	if err != nil || len(l.Kvs) != 2 {
		t.Fatalf("%d agents confirm, %v", len(l.Kvs), err)
	}
	for _, kv := range l.Kvs {
		before[kv.Lease] = true
		if _, err := store.Client().Revoke(t.Context(), clientv3.LeaseID(kv.Lease)); err != nil {
			t.Fatal(err)
		}
	}
	eventually("both agents confirm on new leases", func() bool {
		l, err := store.Client().Get(t.Context(), storekeys.IdentitiesPrefix+"/confirmed/", clientv3.WithPrefix())
		return err == nil && len(l.Kvs) == 2 && !before[l.Kvs[0].Lease] && !before[l.Kvs[1].Lease]
	})
}
