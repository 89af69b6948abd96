package bench

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/kube/image"
	"github.com/hawser-net/hawser/pkg/retry"
)

const (
	// barePTP is what pods are compared with.
	barePTP = "a cluster of the same programs beside it, whose pods get a veth pair and an address by Debian's plugins ptp and host-local, and no policy"
	// podTimeout bounds how long pods may take to be Ready, and to be gone.
	podTimeout = 2 * time.Minute
	// rest is how long a kubelet gets at most to finish with a pod before the next one; see pause.
	rest = 200 * time.Millisecond
)

// podCluster is a cluster of one node for these rows alone.
type podCluster struct {
	what    string // distinguishes it
	fresh   bool   // its pods have labels that no pod has had yet
	cluster *kube.Cluster
	kube    kubernetes.Interface
	node    kube.NodeInfo
}

// podReady measures how long pods take from the call that creates them until a watch shows that
// they are Ready.
func (b *bencher) podReady(ctx context.Context) (err error) {
	ours, err := b.newPodCluster(kube.Hawser, func(*kube.Config) {})
	if err != nil {
		return err
	}
	theirs, err := b.newPodCluster(kube.PTP, func(c *kube.Config) { c.CNI, c.KubeProxy = kube.PTP, true })
	if err != nil {
		return err
	}
	row := podRow{row: "pod-ready", pod: "pod", pods: "pods", ours: ours, theirs: theirs, baseline: barePTP, first: 1.05, far: 1}
	return b.podRow(ctx, row)
}

// agentsMake is what pods are compared with whose identities the operator makes.
const agentsMake = "a cluster beside it, the same but that agents make identities"

// podManaged measures the same where the operator makes identities, against agents that do. Each
// pod has labels of its own, so that each needs a new identity.
func (b *bencher) podManaged(ctx context.Context) (err error) {
	manifest, err := b.managedManifest()
	if err != nil {
		return err
	}
	ours, err := b.newPodCluster("managed", func(c *kube.Config) { c.Manifest = manifest })
	if err != nil {
		return err
	}
	theirs, err := b.newPodCluster("agents", func(*kube.Config) {})
	if err != nil {
		return err
	}
	ours.fresh, theirs.fresh = true, true
	return b.podRow(ctx, podRow{row: "pod-managed", pod: "pod with new labels", pods: "pods with new labels", ours: ours, theirs: theirs, baseline: agentsMake})
}

// managedManifest is the product's, with identities made by the operator.
func (b *bencher) managedManifest() (path string, err error) {
	const made, by = `identity-management-mode: "agent"`, `identity-management-mode: "operator"`
	text, err := os.ReadFile(filepath.Join("deploy", "hawser.yaml"))
	if err != nil {
		return "", err
	}
	if !bytes.Contains(text, []byte(made)) {
		return "", fmt.Errorf("deploy/hawser.yaml does not say %s", made)
	}
	path = filepath.Join(b.dir, "managed.yaml")
	return path, os.WriteFile(path, bytes.ReplaceAll(text, []byte(made), []byte(by)), 0o600)
}

// podRow is what is measured on two clusters in turn. Goals are of the ratio, 0 for none.
type podRow struct {
	row, pod, pods string
	ours, theirs   *podCluster
	baseline       string
	first, far     float64
}

// figure is one of the row's, with its goals.
func (r podRow) figure(name, unit string) Figure {
	return Figure{Row: r.row, Name: name, Unit: unit, BaselineName: r.baseline, First: r.first, Far: r.far, GoalOfRatio: true}
}

// podRow starts the clusters, measures, and takes them down.
func (b *bencher) podRow(ctx context.Context, row podRow) error {
	clusters := []*podCluster{row.ours, row.theirs}
	return withClusters(ctx, clusters, func() error {
		for _, c := range clusters {
			if err := c.warm(ctx); err != nil {
				return fmt.Errorf("cluster of %s: %w", c.what, err)
			}
		}
		return errors.Join(b.podsInTurn(ctx, row), b.podsAtOnce(ctx, row))
	})
}

// withClusters starts clusters, has measure use them, and takes them down.
func withClusters(ctx context.Context, clusters []*podCluster, measure func() error) (err error) {
	// Clusters are the machine's, known by their names: two of these rows at once would take each
	// other's away. An abstract socket leaves nothing behind.
	lock, err := net.Listen("unix", "@hawser-bench-pod-ready")
	if err != nil {
		return fmt.Errorf("another run measures pods on this machine: %w", err)
	}
	defer lock.Close()
	for _, c := range clusters {
		// What a run that was killed left has its pods.
		if kube.Exists(kube.Defaults().Root, c.name()) {
			if err := c.cluster.Down(ctx); err != nil {
				return err
			}
		}
		defer func() { err = errors.Join(err, c.cluster.Down(context.WithoutCancel(ctx))) }()
		if err := c.up(ctx); err != nil {
			return fmt.Errorf("cluster of %s: %w", c.what, err)
		}
	}
	return measure()
}

// podsInTurn starts pods one after the other, on one cluster and the other in turn.
func (b *bencher) podsInTurn(ctx context.Context, row podRow) error {
	ours, theirs := row.ours, row.theirs
	clusters := []*podCluster{ours, theirs}
	var p pairs
	var sandboxes [2]sandboxTime
	for at, c := range clusters {
		before, err := c.sandboxes(ctx)
		if err != nil {
			return err
		}
		sandboxes[at] = before
	}
	turns, each := pick(b, 80, 10), 20
	for i := range turns {
		var took [2]time.Duration
		for at, c := range clusters {
			if err := pause(ctx); err != nil {
				return err
			}
			all, err := c.start(ctx, []string{fmt.Sprintf("turn-%d", i)})
			if err != nil {
				return fmt.Errorf("cluster of %s: %w", c.what, err)
			}
			took[at] = all[0]
		}
		p.add(ms(took[0]), ms(took[1]))
		if (i+1)%each == 0 || i+1 == turns {
			if err := errors.Join(ours.empty(ctx), theirs.empty(ctx)); err != nil {
				return err
			}
		}
	}
	for at, c := range clusters {
		after, err := c.sandboxes(ctx)
		if err != nil {
			return err
		}
		sandboxes[at] = sandboxTime{after.seconds - sandboxes[at].seconds, after.count - sandboxes[at].count}
	}
	b.add(p.fill(row.figure(row.pod+" created until Ready, p50", "ms")))
	b.add(Figure{Row: row.row, Name: row.pod + " created until Ready, p99", Unit: "ms", Value: p99(p.value), Baseline: p99(p.base), BaselineName: row.baseline,
		Samples: turns})
	sandbox := row.figure("of which the pod's sandbox, by the kubelet, mean", "ms")
	sandbox.Value, sandbox.Baseline, sandbox.Samples = sandboxes[0].mean(), sandboxes[1].mean(), int(sandboxes[0].count)
	b.add(sandbox)
	return nil
}

// podsAtOnce starts many pods at once, on one cluster and the other in turn.
func (b *bencher) podsAtOnce(ctx context.Context, row podRow) error {
	const size = 20
	ours, theirs := row.ours, row.theirs
	var p, work pairs
	for i := range pick(b, 4, 1) {
		var took, used [2]time.Duration
		for at, c := range []*podCluster{ours, theirs} {
			before, err := c.processorTime()
			if err != nil {
				return err
			}
			var names []string
			for k := range size {
				names = append(names, fmt.Sprintf("crowd-%d-%d", i, k))
			}
			all, err := c.start(ctx, names)
			if err != nil {
				return fmt.Errorf("cluster of %s: %w", c.what, err)
			}
			after, err := c.processorTime()
			if err != nil {
				return err
			}
			took[at], used[at] = quantile(all, 1), after-before
			if err := c.empty(ctx); err != nil {
				return err
			}
		}
		p.add(ms(took[0]), ms(took[1]))
		work.add(ms(used[0])/size, ms(used[1])/size)
	}
	b.add(p.fill(row.figure(fmt.Sprintf("%d %s created at once until the last is Ready", size, row.pods), "ms")))
	if ours.node.Cgroup != "" {
		b.add(work.fill(Figure{Row: row.row, Name: "processor time of the node for each of them", Unit: "ms", BaselineName: row.baseline}))
	}
	return nil
}

// pause waits for a moment, in which the kubelets finish with the pod before, and not always for
// the same one: what either does every so often should not always meet the same cluster's pod.
func pause(ctx context.Context) error {
	if !retry.Sleep(ctx, rest/2+rand.N(rest/2)) {
		return ctx.Err()
	}
	return nil
}

// newPodCluster prepares a cluster on Hawser, but for what change changes.
func (b *bencher) newPodCluster(what string, change func(*kube.Config)) (*podCluster, error) {
	bin, err := filepath.Abs(b.cfg.BinDir)
	if err != nil {
		return nil, err
	}
	c := &podCluster{what: what}
	cfg := kube.Defaults()
	cfg.Name, cfg.CNI, cfg.Nodes, cfg.BinDir = c.name(), kube.Hawser, 1, bin
	cfg.Self = []string{filepath.Join(bin, "hawser"), "sandbox"}
	change(&cfg)
	c.cluster, err = kube.New(cfg, &lines{say: func(s string) { b.say("  %s: %s", what, s) }}, false)
	return c, err
}

func (c *podCluster) name() string { return "bench-" + c.what }

// pod is a pod of the cluster's.
func (c *podCluster) pod(name string) *corev1.Pod {
	p := benchPod(name)
	if c.fresh {
		p.Labels["only"] = name
	}
	return p
}

// up starts the cluster and waits until everything that it starts by itself runs: it would disturb
// what is measured.
func (c *podCluster) up(ctx context.Context) error {
	if err := c.cluster.Up(ctx); err != nil {
		return err
	}
	info, err := kube.Inspect(c.name())
	if err != nil {
		return err
	}
	c.node = info.Nodes[0]
	config, err := clientcmd.BuildConfigFromFlags("", c.cluster.Kubeconfig())
	if err != nil {
		return err
	}
	config.QPS = -1 // a limit here would be measured
	if c.kube, err = kubernetes.NewForConfig(config); err != nil {
		return err
	}
	return child.Poll(ctx, podTimeout, 200*time.Millisecond, func() error {
		list, err := c.kube.CoreV1().Pods(metav1.NamespaceSystem).List(ctx, metav1.ListOptions{})
		if err != nil {
			return err
		}
		for i := range list.Items {
			if p := &list.Items[i]; !isReady(p) && p.Spec.NodeName != "" {
				return errors.New(describePod(p))
			}
		}
		return nil
	})
}

// processorTime is what everything on the node has used: kubelet, runtime, the network's programs,
// pods. Unlike a duration it hardly depends on who else uses the machine. It is 0 where the node
// has no cgroup of version 2.
func (c *podCluster) processorTime() (time.Duration, error) {
	if c.node.Cgroup == "" {
		return 0, nil
	}
	data, err := os.ReadFile(filepath.Join(c.node.Cgroup, "cpu.stat"))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(data)) {
		var us int64
		if n, _ := fmt.Sscanf(line, "usage_usec %d", &us); n == 1 {
			return time.Duration(us) * time.Microsecond, nil
		}
	}
	return 0, fmt.Errorf("no usage_usec in cpu.stat of %s", c.node.Cgroup)
}

// warm starts a few pods: the first ones of a node are slower than any later one.
func (c *podCluster) warm(ctx context.Context) error {
	if _, err := c.start(ctx, []string{"warm-0", "warm-1", "warm-2"}); err != nil {
		return err
	}
	return c.empty(ctx)
}

// start creates pods at once and waits until they are Ready. It returns how long after the first
// call each was, as a watch showed.
func (c *podCluster) start(ctx context.Context, names []string) ([]time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, podTimeout)
	pods := c.kube.CoreV1().Pods(metav1.NamespaceDefault)
	list, err := pods.List(ctx, metav1.ListOptions{Limit: 1})
	if err != nil {
		cancel()
		return nil, err
	}
	watch, err := pods.Watch(ctx, metav1.ListOptions{ResourceVersion: list.ResourceVersion})
	if err != nil {
		cancel()
		return nil, err
	}
	defer watch.Stop()
	waiting := map[string]string{} // the state of pods that are not Ready
	for _, name := range names {
		waiting[name] = "pod " + name + " was not observed"
	}
	var creating sync.WaitGroup
	defer func() { cancel(); creating.Wait() }()
	failed := make(chan error, len(names))
	began := time.Now()
	for _, name := range names {
		creating.Go(func() {
			if _, err := pods.Create(ctx, c.pod(name), metav1.CreateOptions{}); err != nil {
				failed <- fmt.Errorf("create pod %s: %w", name, err)
			}
		})
	}
	var took []time.Duration
	for len(waiting) > 0 {
		select {
		case err := <-failed:
			return nil, err
		case <-ctx.Done():
			return nil, notReady(waiting, ctx.Err())
		case event, ok := <-watch.ResultChan():
			if !ok {
				return nil, notReady(waiting, errors.New("the watch of pods ended"))
			}
			p, ok := event.Object.(*corev1.Pod)
			if _, ours := waiting[p.GetName()]; !ok || !ours {
				continue
			}
			waiting[p.Name] = describePod(p)
			if isReady(p) {
				took = append(took, time.Since(began))
				delete(waiting, p.Name)
			}
		}
	}
	return took, nil
}

func notReady(waiting map[string]string, err error) error {
	for _, what := range waiting {
		return fmt.Errorf("%d pods are not Ready: %w; one of them: %s", len(waiting), err, what)
	}
	return err
}

// empty removes the pods and waits until they are gone.
func (c *podCluster) empty(ctx context.Context) error {
	pods := c.kube.CoreV1().Pods(metav1.NamespaceDefault)
	// A second of grace: without any, the object would go at once and the kubelet would clean up
	// while others are measured.
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: new(int64(1))}, metav1.ListOptions{}); err != nil {
		return err
	}
	return child.Poll(ctx, podTimeout, 100*time.Millisecond, func() error {
		list, err := pods.List(ctx, metav1.ListOptions{})
		if err == nil && len(list.Items) > 0 {
			err = fmt.Errorf("%d pods are not gone, the first: %s", len(list.Items), describePod(&list.Items[0]))
		}
		return err
	})
}

// benchPod is a pod that does nothing, on the one node, with nothing to wait for but its network.
func benchPod(name string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": "bench"}},
		Spec: corev1.PodSpec{
			NodeName: "n1", EnableServiceLinks: new(false), AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{Name: "pause", Image: image.AgnhostName, Args: []string{"pause"}, ImagePullPolicy: corev1.PullNever}},
		},
	}
}

func isReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// describePod says what a pod waits for.
func describePod(p *corev1.Pod) string {
	s := fmt.Sprintf("%s/%s is %s", p.Namespace, p.Name, p.Status.Phase)
	for _, c := range p.Status.ContainerStatuses {
		if w := c.State.Waiting; w != nil {
			s += fmt.Sprintf(", container %s waits: %s %s", c.Name, w.Reason, w.Message)
		}
	}
	return s
}

// sandboxTime is what a kubelet says of the sandboxes that it made: their network is part of the
// time.
type sandboxTime struct{ seconds, count float64 }

// mean is in milliseconds, 0 without sandboxes.
func (s sandboxTime) mean() float64 {
	if s.count == 0 {
		return 0
	}
	return 1e3 * s.seconds / s.count
}

// sandboxes reads the metric of the node's kubelet.
func (c *podCluster) sandboxes(ctx context.Context) (sandboxTime, error) {
	text, err := c.kube.CoreV1().RESTClient().Get().AbsPath("/api/v1/nodes/n1/proxy/metrics").DoRaw(ctx)
	if err != nil {
		return sandboxTime{}, fmt.Errorf("metrics of the kubelet: %w", err)
	}
	return readSandboxes(text)
}

func readSandboxes(metrics []byte) (s sandboxTime, err error) {
	const name = "kubelet_run_podsandbox_duration_seconds_"
	in := bufio.NewScanner(bytes.NewReader(metrics))
	in.Buffer(nil, 1<<20)
	for in.Scan() {
		rest, ok := strings.CutPrefix(in.Text(), name)
		f := strings.Fields(rest)
		if !ok || len(f) != 2 {
			continue
		}
		var v float64
		if _, err := fmt.Sscan(f[1], &v); err != nil {
			return s, fmt.Errorf("metric of the kubelet %q: %w", in.Text(), err)
		}
		switch kind, _, _ := strings.Cut(f[0], "{"); kind {
		case "sum":
			s.seconds += v
		case "count":
			s.count += v
		}
	}
	return s, in.Err()
}

// lines hands each line written to it to say.
type lines struct {
	say  func(string)
	rest []byte
}

// Write takes text of any length; a line without its end waits for that.
func (l *lines) Write(text []byte) (int, error) {
	l.rest = append(l.rest, text...)
	for {
		line, rest, ok := bytes.Cut(l.rest, []byte("\n"))
		if !ok {
			return len(text), nil
		}
		if s := strings.TrimSpace(string(line)); s != "" {
			l.say(s)
		}
		l.rest = rest
	}
}
