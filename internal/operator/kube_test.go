package operator

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/yaml"

	api "github.com/hawser-net/hawser/api/operator"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	k8snodes "github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/operator/election"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// asOperator in its environment makes the test binary an operator.
const asOperator = "HAWSER_TEST_AS_OPERATOR"

// beOperator runs the operator's command line, as the program does.
func beOperator() int {
	ctx, cancel := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer cancel()
	if err := NewCommand("test", os.Getenv).ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "hawser-operator:", err)
		return 1
	}
	return 0
}

// process is an operator in a process of its own.
type process struct {
	*testing.T
	name string
	cmd  *exec.Cmd
	log  testenv.Log
	api  string
	done chan struct{}
	err  error
}

// world is a Kubernetes API with operators in it.
type world struct {
	*testing.T
	server     *kubeapi.Server
	client     client.Client
	kubeconfig string
	env        []string // of operators, beside the test's own
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, server: kubeapi.Start(t), kubeconfig: filepath.Join(t.TempDir(), "kubeconfig")}
	c, err := kube.NewClient(w.server.Config)
	if err != nil {
		t.Fatal(err)
	}
	w.client = c
	cfg := clientcmdapi.NewConfig()
	cfg.Clusters["test"] = &clientcmdapi.Cluster{Server: w.server.Config.Host, InsecureSkipTLSVerify: true}
	// The operators have the rights that their manual page names, and no others.
	w.grant("hawser-operator")
	cfg.AuthInfos["test"] = &clientcmdapi.AuthInfo{Token: w.server.Config.BearerToken, Impersonate: operatorUser}
	cfg.Contexts["test"] = &clientcmdapi.Context{Cluster: "test", AuthInfo: "test"}
	cfg.CurrentContext = "test"
	if err := clientcmd.WriteToFile(*cfg, w.kubeconfig); err != nil {
		t.Fatal(err)
	}
	return w
}

// operatorUser is who operators are to the server.
const operatorUser = "hawser-operator"

// manualRights returns the roles of the block of rights in the manual page whose first role has a
// name.
func manualRights(t *testing.T, name string) []string {
	t.Helper()
	for _, text := range strings.Split(referenceText, "```yaml\n")[1:] {
		text, _, _ = strings.Cut(text, "```")
		roles := strings.Split(text, "---\n")
		if strings.Contains(roles[0], "\n  name: "+name+"\n") {
			return roles
		}
	}
	t.Fatalf("the manual page has no rights that begin with a role %s", name)
	return nil
}

// grant gives operators the rights of the block in the manual page that begins with a role.
func (w *world) grant(first string) {
	w.Helper()
	subjects := []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: operatorUser}}
	for _, doc := range manualRights(w.T, first) {
		if strings.Contains(doc, "kind: ClusterRole\n") {
			role := &rbacv1.ClusterRole{}
			if err := yaml.UnmarshalStrict([]byte(doc), role); err != nil {
				w.Fatal(err)
			}
			w.create(role)
			w.create(&rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name}, Subjects: subjects,
				RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: role.Name}})
			continue
		}
		role := &rbacv1.Role{}
		if err := yaml.UnmarshalStrict([]byte(doc), role); err != nil {
			w.Fatal(err)
		}
		role.Namespace = "default"
		w.create(role)
		w.create(&rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: role.Name, Namespace: role.Namespace}, Subjects: subjects,
			RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: role.Name}})
	}
}

// start starts an operator with the options of this test and more.
func (w *world) start(name string, more ...string) *process {
	w.Helper()
	p := &process{T: w.T, name: name, api: freeAddr(w.T), done: make(chan struct{})}
	args := append([]string{
		"--k8s-kubeconfig-path=" + w.kubeconfig, "--identity-allocation-mode=crd", "--operator-api-serve-addr=" + p.api,
		"--cluster-pool-ipv4-cidr=10.0.0.0/16", "--cluster-pool-ipv6-cidr=fd00::/104", "--debug",
	}, more...)
	p.cmd = exec.Command(os.Args[0], args...)
	p.cmd.Env = append(append(os.Environ(), asOperator+"=1"), w.env...)
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := p.cmd.Start(); err != nil {
		w.Fatal(err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	w.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.done
		if w.Failed() {
			text := p.log.String()
			w.Logf("log of operator %s:\n%s", name, text[max(0, len(text)-8000):])
		}
	})
	return p
}

func (p *process) signal(s syscall.Signal) {
	p.Helper()
	if err := p.cmd.Process.Signal(s); err != nil {
		p.Fatalf("operator %s: %v", p.name, err)
	}
}

// ended waits for the end of the process and returns what it ended with.
func (p *process) ended(within time.Duration) error {
	p.Helper()
	select {
	case <-p.done:
		return p.err
	case <-time.After(within):
		p.Fatalf("operator %s has not ended after %s", p.name, within)
		return nil
	}
}

func (w *world) eventually(within time.Duration, f func() string) {
	w.Helper()
	testenv.Eventually(w, within, f)
}

// leader returns which of the operators leads, by the lease; nil if none of them.
func (w *world) leader(among ...*process) *process {
	w.Helper()
	lease := w.lease()
	if lease == nil || lease.HolderIdentity == nil || *lease.HolderIdentity == "" {
		return nil
	}
	for _, p := range among {
		if strings.Contains(p.log.String(), "identity="+*lease.HolderIdentity) {
			return p
		}
	}
	return nil
}

// lease returns the lease that the operators stand for; nil if there is none.
func (w *world) lease() *coordinationv1.LeaseSpec {
	w.Helper()
	c, err := kubernetes.NewForConfig(w.server.Config)
	if err != nil {
		w.Fatal(err)
	}
	lease, err := c.CoordinationV1().Leases("default").Get(context.Background(), election.LockName, metav1.GetOptions{})
	if err != nil {
		return nil
	}
	return &lease.Spec
}

// leading waits until one of the operators leads.
func (w *world) leading(within time.Duration, among ...*process) *process {
	w.Helper()
	var p *process
	w.eventually(within, func() string {
		for _, a := range among {
			select {
			case <-a.done:
				w.Fatalf("operator %s ended: %v", a.name, a.err)
			default:
			}
		}
		if p = w.leader(among...); p == nil {
			return "no operator leads"
		}
		return ""
	})
	return p
}

func (w *world) create(o client.Object) {
	w.Helper()
	if err := w.client.Create(context.Background(), o); err != nil {
		w.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
}

func (w *world) createNode(name string, cidrs ...string) {
	w.Helper()
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.IPAM.PodCIDRs = cidrs
	w.create(n)
}

// served returns "" if every node has a block of each family, and no two overlap.
func (w *world) served() string {
	w.Helper()
	var all v2.CiliumNodeList
	if err := w.client.List(context.Background(), &all); err != nil {
		return err.Error()
	}
	seen := map[netip.Prefix]string{}
	missing := 0
	for _, n := range all.Items {
		var families []bool
		for _, c := range n.Spec.IPAM.PodCIDRs {
			p := netip.MustParsePrefix(string(c))
			if other, ok := seen[p]; ok {
				w.Errorf("%s and %s both have %s", n.Name, other, p)
			}
			seen[p] = n.Name
			families = append(families, p.Addr().Is4())
		}
		if !slices.Contains(families, true) || !slices.Contains(families, false) || len(families) != 2 {
			missing++
		}
	}
	if missing > 0 {
		return fmt.Sprintf("%d of %d nodes have no addresses", missing, len(all.Items))
	}
	return ""
}

func TestFailover(t *testing.T) {
	w := newWorld(t)
	a, b := w.start("a"), w.start("b")
	leader := w.leading(60*time.Second, a, b)
	other := map[*process]*process{a: b, b: a}[leader]
	w.eventually(2*time.Minute, func() string { return crdsServed(w) })
	for _, p := range []*process{a, b} {
		if code, body := (&cluster{T: t, ctx: t.Context()}).http(p.api, "/healthz"); code != 200 || body != "ok" {
			t.Errorf("operator %s, of which %s leads: health %d %s", p.name, leader.name, code, body)
		}
	}

	// Nodes come and go while the leader is killed.
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for i := 0; ; i++ {
			select {
			case <-stop:
				return
			case <-time.After(60 * time.Millisecond):
			}
			n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i)}}
			if err := w.client.Create(context.Background(), n); err != nil {
				t.Errorf("create node: %v", err)
			}
			if i%7 == 6 {
				gone := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("n", i-5)}}
				if err := w.client.Delete(context.Background(), gone); err != nil {
					t.Errorf("delete node: %v", err)
				}
			}
			w.served() // fails the test if two have the same
		}
	}()
	end := sync.OnceFunc(func() { close(stop); <-stopped })
	t.Cleanup(end)
	time.Sleep(2 * time.Second)
	leader.signal(syscall.SIGKILL)
	_ = leader.ended(15 * time.Second)
	before := w.lease()
	if w.leading(60*time.Second, other) != other {
		t.Fatal("no operator took over")
	}
	took := w.lease().AcquireTime.Sub(before.RenewTime.Time)
	t.Logf("killed: the other leads %s after the last renewal", took.Round(time.Millisecond))
	// 15 s lease and twice 2 s between two tries are promised; the rest is for the requests on
	// a busy machine.
	if took > 19*time.Second+10*time.Second {
		t.Errorf("it took %s to take over", took)
	}
	end()
	w.eventually(2*time.Minute, w.served)

	// A leader that is frozen must not go on when it wakes up.
	third := w.start("c")
	w.eventually(2*time.Minute, func() string {
		if !strings.Contains(third.log.String(), "another operator leads") {
			return "the third operator sees no leader"
		}
		return ""
	})
	other.signal(syscall.SIGSTOP)
	if w.leading(60*time.Second, third) != third {
		t.Fatal("no operator took over from a frozen leader")
	}
	for i := range 10 {
		w.createNode(fmt.Sprint("frozen", i))
	}
	other.signal(syscall.SIGCONT)
	if err := other.ended(15 * time.Second); err == nil || !strings.Contains(other.log.String(), election.ErrLost.Error()) {
		t.Errorf("the frozen leader ended with %v\n%s", err, other.log.String())
	}
	w.eventually(2*time.Minute, w.served)

	// A server that is away for a moment.
	w.server.Stop()
	time.Sleep(time.Second)
	w.server.Start()
	w.createNode("after-restart")
	// The leader goes on if it could renew in time, else it ends, and another takes its place.
	fourth := w.start("d")
	w.eventually(90*time.Second, func() string {
		select {
		case <-fourth.done:
			t.Fatalf("operator d ended: %v", fourth.err)
		default:
		}
		return w.served()
	})
}

// crdsServed returns "" if the custom resources can be used.
func crdsServed(w *world) string {
	if err := w.client.List(context.Background(), &v2.CiliumNodeList{}); err != nil {
		return err.Error()
	}
	return ""
}

// TestDutiesOfLeader has one operator do everything once, as far as it shows from outside.
func TestDutiesOfLeader(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	tiers := &unstructured.Unstructured{}
	if err := tiers.UnmarshalJSON(w.server.ClusterNetworkPolicyDefinition()); err != nil {
		t.Fatal(err)
	}
	w.create(tiers)
	prom, profiles := freeAddr(t), freeAddr(t)
	_, profilePort, _ := strings.Cut(profiles, ":")
	p := w.start("only", "--enable-metrics", "--operator-prometheus-serve-addr="+prom, "--operator-pprof", "--operator-pprof-address=127.0.0.1",
		"--operator-pprof-port="+profilePort, "--nodes-gc-interval=1s", "--cilium-endpoint-gc-interval=1s", "--identity-gc-interval=1s",
		"--identity-heartbeat-timeout=1s", "--unmanaged-pod-watcher-interval=1s")
	w.leading(60*time.Second, p)
	w.eventually(2*time.Minute, func() string { return crdsServed(w) })
	d := &duties{world: w}
	d.make(t.Context())
	d.done(t.Context())

	c := &cluster{T: t, ctx: t.Context()}
	for _, want := range []string{
		`cilium_operator_leader_election_master_status\{name="cilium-operator-resource-lock"\} 1`,
		`cilium_operator_identity_gc_entries\{identity_type="crd",status="alive"\} 1`,
		// That of the node that is gone is its own for two minutes more, if it had got one.
		`cilium_operator_cluster_pool_prefixes_held\{family="ipv4"\} [12]`,
		`cilium_operator_collection_removed_total\{kind="endpoints"\} 1`, `cilium_operator_collection_removed_total\{kind="nodes"\} 1`,
		`cilium_operator_collection_removed_total\{kind="identities-crd"\} 1`, `cilium_operator_collection_runs_total\{kind="nodes",outcome="success"\} [1-9]`,
		`cilium_operator_collection_duration_seconds\{kind="endpoints"\} `, `cilium_operator_collection_last_success_timestamp_seconds\{kind="identities-crd"\} 1`,
		`cilium_operator_unmanaged_pods 0`, `cilium_operator_cluster_pool_nodes_waiting 0`, `go_goroutines`, `controller_runtime_reconcile_total`,
	} {
		w.eventually(2*time.Minute, func() string {
			if _, body := c.http(prom, "/metrics"); !regexp.MustCompile(want).MatchString(body) {
				return "metrics without " + want
			}
			return ""
		})
	}
	// What it reports of itself.
	w.eventually(2*time.Minute, func() string {
		code, body := c.http(p.api, "/v1/status")
		var st api.Status
		if err := json.Unmarshal([]byte(body), &st); code != 200 || err != nil {
			return fmt.Sprintf("status: %d %s", code, body)
		}
		if st.Leader == nil || !st.Leader.Self || st.Leader.Holder != st.Name || len(st.Faults) > 0 || len(st.Queues) == 0 || st.Version == "" {
			return "status: " + body
		}
		if st.Identities == nil || *st.Identities != (api.Identities{Total: 1, InUse: 1, Quarantined: 1, Capacity: 65535 - 255}) {
			return fmt.Sprintf("identities in the status: %+v", st.Identities)
		}
		if st.Endpoints == nil || *st.Endpoints != (api.Endpoints{Total: 1}) {
			return fmt.Sprintf("endpoints in the status: %+v", st.Endpoints)
		}
		return ""
	})
	if code, body := c.http(profiles, "/debug/pprof/cmdline"); code != 200 || !strings.Contains(body, "--operator-pprof") {
		t.Errorf("profiles: %d %s", code, body)
	}
	if text := p.log.String(); strings.Contains(text, "forbidden") {
		t.Errorf("the operator lacks a right:\n%s", text)
	}
	w.server.Stop()
	w.eventually(2*time.Minute, func() string {
		if code, body := c.http(p.api, "/readyz"); code != 500 || !strings.Contains(body, "kubernetes:") {
			return fmt.Sprintf("health without a server: %d %s", code, body)
		}
		if code, body := c.http(p.api, "/healthz"); code != 200 {
			return fmt.Sprintf("liveness without a server: %d %s", code, body)
		}
		return ""
	})
	w.server.Start()
}

// duties is what the leader of TestDutiesOfLeader has to do, in part by these objects.
type duties struct {
	*world
	dns     *corev1.Pod
	policy  *v2.CiliumNetworkPolicy
	refused *unstructured.Unstructured
}

// make makes the objects.
func (d *duties) make(ctx context.Context) {
	// A node whose agent becomes ready.
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	node.Spec.Taints = []corev1.Taint{{Key: "node.cilium.io/agent-not-ready", Effect: corev1.TaintEffectNoSchedule}, {Key: "other", Effect: corev1.TaintEffectNoSchedule}}
	d.create(node)
	d.createNode("n1")
	d.createNode("gone")
	agent := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: "default", Labels: map[string]string{"k8s-app": "cilium"}}}
	agent.Spec = corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	d.create(agent)
	agent.Status = corev1.PodStatus{Phase: corev1.PodRunning, Conditions: []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}}
	if err := d.client.Status().Update(ctx, agent); err != nil {
		d.Fatal(err)
	}
	// An endpoint without a pod, an identity that it uses, and one that none does.
	for _, n := range []string{"1000", "1001"} {
		d.create(&v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: n}, SecurityLabels: map[string]string{"k8s:app": n}})
	}
	ep := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "agent", Namespace: "default", OwnerReferences: []metav1.OwnerReference{
		{APIVersion: "v1", Kind: "Pod", Name: agent.Name, UID: agent.UID}}}}
	ep.Status.Identity = &v2.EndpointIdentity{ID: 1000}
	d.create(ep)
	d.create(&v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "no-pod", Namespace: "default"}})
	// A pod that started without a network.
	d.dns = &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "dns", Namespace: "default", Labels: map[string]string{"k8s-app": "kube-dns"}}}
	d.dns.Spec = corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	d.create(d.dns)
	d.dns.Status = corev1.PodStatus{Phase: corev1.PodRunning, StartTime: &metav1.Time{Time: time.Now().Add(-time.Hour)}}
	if err := d.client.Status().Update(ctx, d.dns); err != nil {
		d.Fatal(err)
	}
	// A policy.
	d.policy = &v2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "all", Namespace: "default"}}
	d.policy.Spec = &v2.Rule{EndpointSelector: &v2.LabelSelector{}, Ingress: []v2.IngressRule{{FromEntities: []string{"cluster"}}}}
	d.create(d.policy)
	// One of the cluster's tiers, which nodes refuse.
	d.refused = &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(`
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: refused}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {}}
  egress: [{action: Deny, to: [{domainNames: [example.org]}]}]
`), &d.refused.Object); err != nil {
		d.Fatal(err)
	}
	d.eventually(2*time.Minute, func() string {
		if err := d.client.Create(ctx, d.refused); err != nil { // the server takes a moment to serve the definition
			return err.Error()
		}
		return ""
	})
}

// done waits until all was done.
func (d *duties) done(ctx context.Context) {
	d.eventually(2*time.Minute, d.served)
	get := func(o client.Object, namespace, name string) error {
		return d.client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, o)
	}
	d.eventually(2*time.Minute, func() string {
		n := &corev1.Node{}
		if err := get(n, "", "n1"); err != nil {
			return err.Error()
		}
		up := slices.ContainsFunc(n.Status.Conditions, func(c corev1.NodeCondition) bool {
			return c.Type == corev1.NodeNetworkUnavailable && c.Status == corev1.ConditionFalse && c.Reason == "CiliumIsUp"
		})
		tainted := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "node.cilium.io/agent-not-ready" })
		kept := slices.ContainsFunc(n.Spec.Taints, func(t corev1.Taint) bool { return t.Key == "other" })
		if !up || tainted || !kept {
			return fmt.Sprintf("node: %+v, taints %v", n.Status.Conditions, n.Spec.Taints)
		}
		return ""
	})
	for _, gone := range []struct {
		o               client.Object
		namespace, name string
	}{{&v2.CiliumNode{}, "", "gone"}, {&v2.CiliumEndpoint{}, "default", "no-pod"}, {&v2.CiliumIdentity{}, "", "1001"}} {
		d.eventually(2*time.Minute, func() string {
			err := get(gone.o, gone.namespace, gone.name)
			if id, ok := gone.o.(*v2.CiliumIdentity); ok && err == nil {
				if _, _, quarantined := k8sids.Quarantined(id); quarantined { // its ID is not free yet
					return ""
				}
			}
			if !apierrors.IsNotFound(err) {
				return fmt.Sprintf("%T %s is still there: %v", gone.o, gone.name, err)
			}
			return ""
		})
	}
	d.eventually(2*time.Minute, func() string {
		if err := get(d.dns, "default", "dns"); err == nil && d.dns.DeletionTimestamp.IsZero() {
			return "the pod without an endpoint was not restarted"
		}
		return ""
	})
	for _, kept := range []struct {
		o               client.Object
		namespace, name string
	}{{&v2.CiliumNode{}, "", "n1"}, {&v2.CiliumEndpoint{}, "default", "agent"}, {&v2.CiliumIdentity{}, "", "1000"}, {&corev1.Pod{}, "default", "agent"}} {
		if err := get(kept.o, kept.namespace, kept.name); err != nil {
			d.Errorf("%T %s: %v", kept.o, kept.name, err)
		}
	}
	d.eventually(2*time.Minute, func() string {
		if err := get(d.policy, "default", "all"); err != nil {
			return err.Error()
		}
		if len(d.policy.Status.Conditions) != 1 || d.policy.Status.Conditions[0].Status != "True" {
			return fmt.Sprintf("policy: %+v", d.policy.Status.Conditions)
		}
		return ""
	})
	d.eventually(2*time.Minute, func() string {
		if err := get(d.refused, "", "refused"); err != nil {
			return err.Error()
		}
		conditions, _, _ := unstructured.NestedSlice(d.refused.Object, "status", "conditions")
		if text := fmt.Sprint(conditions...); !strings.Contains(text, "type:Valid") || !strings.Contains(text, "status:False") {
			return "policy of the cluster: " + text
		}
		return ""
	})
	d.eventually(2*time.Minute, func() string {
		var list eventsv1.EventList
		if err := d.client.List(ctx, &list); err != nil {
			return err.Error()
		}
		for _, e := range list.Items {
			if e.Reason == "PolicyRefused" && e.Regarding.Name == "refused" && strings.Contains(e.Note, "spec.egress[0].to[0].domainNames") {
				return ""
			}
		}
		return fmt.Sprintf("no Event of %d says that the policy is refused", len(list.Items))
	})
}

// TestIdentities has two operators make identities with the rights that the manual page names; one
// takes over from the other. It is "Operator changes 2" of CFP-27752.
func TestIdentities(t *testing.T) {
	t.Parallel()
	takeTurns(t)
}

// TestIdentitiesInStore is the same where identities are keys of a store: "KVStore compatibility"
// of CFP-27752. Collection goes on all the time.
func TestIdentitiesInStore(t *testing.T) {
	t.Parallel()
	etcd := kvstoretest.StartEtcd(t)
	takeTurns(t, "--identity-allocation-mode=kvstore", "--kvstore=etcd", "--kvstore-opt=etcd.address="+etcd.Endpoint(), "--identity-gc-interval=1s",
		"--identity-heartbeat-timeout=1s")
	c := etcd.Client()
	ids, err := c.Get(t.Context(), storekeys.IdentitiesPrefix+"/id/", clientv3.WithPrefix())
	if err != nil || len(ids.Kvs) != 2 {
		t.Errorf("there are %d identities for 2 sets of labels: %v, %v", len(ids.Kvs), ids.Kvs, err)
	}
}

// TestAgentsOfTheirOwnInStore: where the operator makes identities in a store beside agents, an
// endpoint of an agent that announces that it makes them alone keeps the identity that this names.
func TestAgentsOfTheirOwnInStore(t *testing.T) {
	t.Parallel()
	etcd := kvstoretest.StartEtcd(t)
	w := newWorld(t)
	w.grant("hawser-operator-identities")
	w.start("a", "--identity-management-mode=both", "--ipam=kubernetes", "--identity-allocation-mode=kvstore", "--kvstore=etcd",
		"--kvstore-opt=etcd.address="+etcd.Endpoint(), "--identity-gc-interval=0")
	w.eventually(2*time.Minute, func() string { return crdsServed(w) })
	node := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{k8snodes.ManagementAnnotation: string(identity.ManagedByAgent)}}}
	w.create(node)
	const own, set = 300, "k8s:app=web;unspec:team=red;" // users have set a label of the endpoint
	if _, err := etcd.Client().Put(t.Context(), fmt.Sprintf("%s/id/%d", storekeys.IdentitiesPrefix, own), set); err != nil {
		t.Fatal(err)
	}
	endpoint := func(name string, id *v2.EndpointIdentity) *v2.CiliumEndpoint {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": name}}}
		p.Spec = corev1.PodSpec{NodeName: node.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		w.create(p)
		e := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: p.UID}}
		e.Status.Identity = id
		w.create(e)
		return e
	}
	named := func(e *v2.CiliumEndpoint) int64 {
		if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
			t.Fatal(err)
		}
		if e.Status.Identity == nil {
			return 0
		}
		return e.Status.Identity.ID
	}
	web := endpoint("web", &v2.EndpointIdentity{ID: own, Labels: []string{"k8s:app=web", "unspec:team=red"}})
	later := endpoint("later", nil)
	w.eventually(2*time.Minute, func() string {
		if named(later) == 0 {
			return "the operator has named no identity"
		}
		return ""
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if id := named(web); id != own {
			t.Fatalf("the operator wrote %d over the identity of an agent that expects no other writer", id)
		}
	}
	node.Annotations[k8snodes.ManagementAnnotation] = string(identity.ManagedByBoth)
	if err := w.client.Update(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	w.eventually(2*time.Minute, func() string {
		if id := named(web); id == own {
			return "an agent that accepts the operator's identity still has its own"
		}
		return ""
	})
}

// TestIdentitiesInForeignStore has an operator pointed at the store of another cluster. It says so,
// and neither makes identities there nor collects them, nor removes keys of nodes, until the other
// cluster is gone.
func TestIdentitiesInForeignStore(t *testing.T) {
	t.Parallel()
	for _, who := range []string{"operator", "agent"} {
		t.Run("identities of the "+who, func(t *testing.T) {
			t.Parallel()
			etcd := kvstoretest.StartEtcd(t)
			c := etcd.Client()
			put := func(key, value string) {
				t.Helper()
				if _, err := c.Put(t.Context(), key, value); err != nil {
					t.Fatal(err)
				}
			}
			const other = storekeys.ClusterConfigPrefix + "/other"
			put(other, `{"id":2}`)
			put(storekeys.IdentitiesPrefix+"/id/300", "k8s:app=theirs;") // of which no reference is left
			put(storekeys.NodesPrefix+"/default/gone", `{"Name":"gone","Cluster":"default","Source":"local","Annotations":{"network.hawser.net/kubernetes-node":"true"}}`)
			keys := func() string {
				t.Helper()
				var out []string
				for _, prefix := range []string{storekeys.IdentitiesPrefix, storekeys.NodesPrefix} {
					r, err := c.Get(t.Context(), prefix+"/", clientv3.WithPrefix())
					if err != nil {
						t.Fatal(err)
					}
					for _, kv := range r.Kvs {
						out = append(out, string(kv.Key)+"="+string(kv.Value))
					}
				}
				return strings.Join(out, "\n")
			}
			before := keys()
			w := newWorld(t)
			w.grant("hawser-operator-identities")
			p := w.start("a", "--identity-management-mode="+who, "--ipam=kubernetes", "--identity-allocation-mode=kvstore", "--kvstore=etcd",
				"--kvstore-opt=etcd.address="+etcd.Endpoint(), "--identity-gc-interval=1s", "--identity-heartbeat-timeout=0s", "--nodes-gc-interval=1s")
			pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "web", Labels: map[string]string{"app": "web"}}}
			pod.Spec = corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
			w.create(pod)
			w.leading(60*time.Second, p)
			w.eventually(2*time.Minute, w.served)
			ready := func(code int, text string) {
				t.Helper()
				w.eventually(2*time.Minute, func() string {
					got, body := (&cluster{T: t, ctx: t.Context()}).http(p.api, "/readyz")
					if got != code || !strings.Contains(body, text) {
						return fmt.Sprintf("ready: %d %s", got, body)
					}
					return ""
				})
			}
			ready(500, other)
			for end := time.Now().Add(6 * time.Second); time.Now().Before(end); time.Sleep(200 * time.Millisecond) {
				if now := keys(); now != before {
					t.Fatalf("in another cluster's store (-before +now):\n%s", cmp.Diff(before, now))
				}
			}
			if _, err := c.Delete(t.Context(), other); err != nil {
				t.Fatal(err)
			}
			ready(200, "ok")
			w.eventually(2*time.Minute, func() string {
				now := keys()
				made := strings.Contains(now, "/id/") && strings.Contains(now, "k8s:app=web;")
				if strings.Contains(now, "theirs") && !strings.Contains(now, "/quarantine/") || strings.Contains(now, "/gone=") || made != (who == "operator") {
					return "when the other cluster is gone there are\n" + now
				}
				return ""
			})
		})
	}
}

// TestFirstReadsFail has the server fail the first lists of CiliumNodes, as an overloaded one does:
// the operator goes on, and serves a node.
func TestFirstReadsFail(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	var failed atomic.Int64
	w.through(func(rw http.ResponseWriter, r *http.Request) bool {
		if !strings.HasSuffix(r.URL.Path, "/ciliumnodes") || r.Method != http.MethodGet || failed.Add(1) > 3 {
			return false
		}
		http.Error(rw, "overloaded", http.StatusInternalServerError)
		return true
	})
	p := w.start("a")
	w.eventually(2*time.Minute, func() string { return crdsServed(w) })
	w.createNode("n")
	w.eventually(2*time.Minute, func() string {
		select {
		case <-p.done:
			t.Fatalf("the operator ended: %v", p.err)
		default:
		}
		return w.served()
	})
	if n := failed.Load(); n <= 3 {
		t.Errorf("%d lists of nodes were asked for", n)
	}
}

// through has operators that are started later reach the server by a proxy. What answer answers
// does not get there.
func (w *world) through(answer func(http.ResponseWriter, *http.Request) bool) {
	w.Helper()
	to, err := url.Parse(w.server.Config.Host)
	if err != nil {
		w.Fatal(err)
	}
	on := &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}}
	proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: on, FlushInterval: -1, ErrorLog: log.New(io.Discard, "", 0)}
	s := httptest.NewTLSServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		if !answer(rw, r) {
			proxy.ServeHTTP(rw, r)
		}
	}))
	w.Cleanup(func() {
		s.CloseClientConnections()
		s.Close()
		on.CloseIdleConnections()
	})
	cfg, err := clientcmd.LoadFromFile(w.kubeconfig)
	if err != nil {
		w.Fatal(err)
	}
	cfg.Clusters["test"].Server = s.URL
	if err := clientcmd.WriteToFile(*cfg, w.kubeconfig); err != nil {
		w.Fatal(err)
	}
}

// TestDeletedNodes: an agent's key of a node that was deleted goes at once, and the keys of all
// others stay, those of agents without Kubernetes too.
func TestDeletedNodes(t *testing.T) {
	t.Parallel()
	etcd := kvstoretest.StartEtcd(t)
	w := newWorld(t)
	there := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "there"}}
	doomed := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "doomed"}}
	w.create(there)
	w.create(doomed)
	c := etcd.Client()
	put := func(key, value string) {
		t.Helper()
		if _, err := c.Put(t.Context(), storekeys.NodesPrefix+"/"+key, value); err != nil {
			t.Fatal(err)
		}
	}
	const (
		local = `{"Name":"x","Cluster":"default","Source":"local","Annotations":{"network.hawser.net/kubernetes-node":"true"}}`
		plain = `{"Name":"x","Cluster":"default","Source":"local","Annotations":null}` // of an agent without Kubernetes, or an older one
	)
	for _, name := range []string{"default/there", "default/gone", "default/kept", "other/gone", "default-2/gone"} {
		put(name, local)
	}
	put("default/alone", plain)
	put("default/doomed", plain)
	put("default/custom", `{"Name":"x","Cluster":"default","Source":"custom-resource"}`)
	put("default/broken", `{`)
	left := func(want ...string) {
		t.Helper()
		w.eventually(2*time.Minute, func() string {
			r, err := c.Get(t.Context(), storekeys.NodesPrefix+"/", clientv3.WithPrefix())
			if err != nil {
				return err.Error()
			}
			var got []string
			for _, kv := range r.Kvs {
				got = append(got, strings.TrimPrefix(string(kv.Key), storekeys.NodesPrefix+"/"))
			}
			return cmp.Diff(want, got)
		})
	}
	p := w.start("a", "--ipam=kubernetes", "--kvstore=etcd", "--kvstore-opt=etcd.address="+etcd.Endpoint(), "--identity-allocation-mode=kvstore", "--nodes-gc-interval=1h")
	w.leading(60*time.Second, p)
	w.eventually(2*time.Minute, w.served)
	left("default-2/gone", "default/alone", "default/broken", "default/custom", "default/doomed", "default/there", "other/gone")
	w.create(&v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "kept", Annotations: map[string]string{"cilium.io/do-not-gc": "true"}}})
	put("default/kept", local)
	if err := w.client.Delete(t.Context(), doomed); err != nil {
		t.Fatal(err)
	}
	left("default-2/gone", "default/alone", "default/broken", "default/custom", "default/kept", "default/there", "other/gone")
	if text := p.log.String(); strings.Contains(text, "forbidden") {
		t.Errorf("the operator lacks a right:\n%s", text)
	}
}

func takeTurns(t *testing.T, more ...string) {
	w := newWorld(t)
	w.grant("hawser-operator-identities")
	flags := append([]string{"--identity-management-mode=operator", "--enable-metrics", "--ipam=kubernetes", "--labels=!noise"}, more...)
	a := w.start("a", append(flags, "--operator-prometheus-serve-addr="+freeAddr(t))...)
	b := w.start("b", append(flags, "--operator-prometheus-serve-addr="+freeAddr(t))...)
	pod := func(name, app string) *v2.CiliumEndpoint {
		p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{"app": app, "noise": name}}}
		p.Spec = corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		w.create(p)
		e := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}}
		e.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: name, UID: p.UID}}
		w.create(e)
		return e
	}
	number := func(e *v2.CiliumEndpoint) (id int64) {
		w.eventually(2*time.Minute, func() string {
			if err := w.client.Get(t.Context(), client.ObjectKeyFromObject(e), e); err != nil {
				return err.Error()
			}
			if e.Status.Identity == nil {
				return "endpoint " + e.Name + " has no identity"
			}
			return ""
		})
		return e.Status.Identity.ID
	}
	leader := w.leading(60*time.Second, a, b)
	w.eventually(2*time.Minute, w.served)
	one, two, other := number(pod("one", "web")), number(pod("two", "web")), number(pod("other", "db"))
	if one != two || one == other {
		t.Errorf("pods have %d, %d and %d", one, two, other)
	}
	leader.signal(syscall.SIGKILL)
	<-leader.done
	rest := a
	if leader == a {
		rest = b
	}
	if three := number(pod("three", "web")); three != one {
		t.Errorf("with another leader the same labels have %d, not %d", three, one)
	}
	if w.leading(60*time.Second, rest) != rest {
		t.Error("the other operator does not lead")
	}
	w.eventually(2*time.Minute, func() string {
		_, body := (&cluster{T: t, ctx: t.Context()}).http(rest.api, "/v1/status")
		var st api.Status
		if err := json.Unmarshal([]byte(body), &st); err != nil || st.Identities == nil || *st.Identities != (api.Identities{Total: 2, InUse: 2, Capacity: 65535 - 255}) {
			return "status: " + body
		}
		return ""
	})
	// What it may not do it would have logged.
	for _, p := range []*process{a, b} {
		if text := p.log.String(); strings.Contains(text, "forbidden") {
			i := strings.Index(text, "forbidden")
			t.Errorf("operator %s lacks a right: %s", p.name, text[max(0, i-300):i+100])
		}
	}
}

// TestSlices has an operator make identities, and slices without CiliumEndpoints, with the rights
// that the manual page names; then another one that makes none deletes what is left. It is where
// "Operator acts on Pod instead of CEP changes" of CFP-27752 leads to.
func TestSlices(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	w.grant("hawser-operator-identities")
	w.grant("hawser-operator-slices")
	on := []string{"--identity-management-mode=operator", "--ipam=kubernetes", "--disable-endpoint-crd", "--enable-cilium-endpoint-slice", "--ces-controller-mode=slim"}
	p := w.start("slim", on...)
	w.eventually(2*time.Minute, func() string { return crdsServed(w) })
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n"}}
	n.Spec.Addresses = []v2.NodeAddress{{IP: "192.0.2.1", Type: "InternalIP"}}
	w.create(n)
	for i := range 3 {
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("pod-", i), Labels: map[string]string{"app": "web"}}}
		pod.Spec = corev1.PodSpec{NodeName: "n", Containers: []corev1.Container{{Name: "c", Image: "i"}}}
		w.create(pod)
		pod.Status.PodIP = fmt.Sprint("10.0.0.", i+1)
		pod.Status.PodIPs = []corev1.PodIP{{IP: pod.Status.PodIP}}
		if err := w.client.Status().Update(t.Context(), pod); err != nil {
			t.Fatal(err)
		}
	}
	var all v2alpha1.CiliumEndpointSliceList
	w.eventually(2*time.Minute, func() string {
		if err := w.client.List(t.Context(), &all); err != nil {
			return err.Error()
		}
		if len(all.Items) != 1 || len(all.Items[0].Endpoints) != 3 {
			return fmt.Sprintf("slices: %+v", all.Items)
		}
		return ""
	})
	for _, e := range all.Items[0].Endpoints {
		if e.IdentityID < 256 || e.IdentityID != all.Items[0].Endpoints[0].IdentityID || e.Networking.NodeIP != "192.0.2.1" {
			t.Errorf("%+v", e)
		}
	}
	p.signal(syscall.SIGTERM)
	<-p.done
	off := w.start("off", "--identity-management-mode=operator", "--ipam=kubernetes")
	w.eventually(2*time.Minute, func() string {
		if err := w.client.List(t.Context(), &all); err != nil || len(all.Items) > 0 {
			return fmt.Sprintf("%d slices are left: %v", len(all.Items), err)
		}
		return ""
	})
	for _, p := range []*process{p, off} {
		if text := p.log.String(); strings.Contains(text, "forbidden") {
			i := strings.Index(text, "forbidden")
			t.Errorf("operator %s lacks a right: %s", p.name, text[max(0, i-300):i+100])
		}
	}
}

// TestNoEndpointObjects has the operator remove CiliumEndpoints that no agent keeps, with the
// rights it has.
func TestNoEndpointObjects(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	p := w.start("only", "--disable-endpoint-crd", "--identity-gc-interval=0", "--ipam=kubernetes", "--validate-network-policy=false")
	w.leading(60*time.Second, p)
	w.eventually(2*time.Minute, func() string {
		err := w.client.Create(context.Background(), &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "ep", Namespace: "default"}})
		if err != nil && !apierrors.IsAlreadyExists(err) {
			return err.Error()
		}
		return ""
	})
	// It may have looked before: another one surely finds it, and writes the definitions that this
	// one had no time for.
	p.signal(syscall.SIGTERM)
	if err := p.ended(30 * time.Second); err != nil {
		t.Errorf("ended with %v", err)
	}
	w.start("second", "--disable-endpoint-crd", "--identity-gc-interval=0", "--ipam=kubernetes", "--validate-network-policy=false")
	w.eventually(2*time.Minute, func() string {
		var all v2.CiliumEndpointList
		if err := w.client.List(context.Background(), &all); err != nil {
			return err.Error()
		}
		if len(all.Items) > 0 {
			return "there is still a CiliumEndpoint"
		}
		return ""
	})
}
