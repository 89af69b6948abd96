package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/bench/child"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/internal/sandbox/region"
)

const (
	hostScope = "a cluster beside it, the same but that nodes give addresses of their own pod CIDRs (--ipam=kubernetes)"
	// answerTime is how long each answer of the cloud's API takes.
	answerTime = 250 * time.Millisecond
	// dryAhead is how many free addresses a node keeps while its pool is measured dry: the fewest
	// that can be asked for.
	dryAhead = 1
)

// cloudAddresses measures ADD on a node of AWS, against one whose pods have addresses of host
// scope.
func (b *bencher) cloudAddresses(ctx context.Context) error {
	eni, err := b.newPodCluster("eni", func(c *kube.Config) { c.Cloud = region.AWS })
	if err != nil {
		return err
	}
	host, err := b.newPodCluster("host", func(*kube.Config) {})
	if err != nil {
		return err
	}
	return withClusters(ctx, []*podCluster{eni, host}, func() (err error) {
		var nodes [2]*addressed
		for k, c := range []*podCluster{eni, host} {
			nodes[k] = &addressed{b: b, c: c, pods: map[string]*heldPod{}}
			defer func() { err = errors.Join(err, nodes[k].close()) }()
		}
		cloud, err := eni.cluster.Cloud()
		if err != nil {
			return err
		}
		// Also a pool that is warm has a slow cloud behind it.
		if _, err := cloud.Order(ctx, region.Order{Do: "slow", Latency: answerTime}); err != nil {
			return err
		}
		if err := b.warmPool(ctx, nodes[0], nodes[1]); err != nil {
			return fmt.Errorf("warm pool: %w", err)
		}
		if err := b.dryPool(ctx, nodes[0], nodes[1], cloud); err != nil {
			return fmt.Errorf("dry pool: %w", err)
		}
		return nodes[0].belong(ctx, cloud)
	})
}

// warmPool attaches pods one after the other, on one node and the other in turn.
func (b *bencher) warmPool(ctx context.Context, eni, host *addressed) error {
	// One that stays, so that the identity of the others is known.
	for _, n := range []*addressed{eni, host} {
		if _, err := n.create(ctx, []string{"stays"}); err != nil {
			return err
		}
	}
	var p pairs
	// The first ones after an agent's start are slower than any later one.
	first, turns := 3, pick(b, 100, 20)
	for i := range first + turns {
		var took [2]time.Duration
		for at, n := range []*addressed{eni, host} {
			pod, err := n.prepare(fmt.Sprintf("turn-%d", i))
			if err != nil {
				return err
			}
			if err := pod.announce(ctx); err != nil {
				return err
			}
			if err := pause(ctx); err != nil { // in which the agent observes the pod
				return err
			}
			if took[at], err = pod.plugin("ADD"); err != nil {
				return err
			}
			if err := pod.remove(ctx); err != nil {
				return err
			}
		}
		if i >= first {
			p.add(ms(took[0]), ms(took[1]))
		}
	}
	b.add(p.fill(Figure{Row: "ipam", Name: "ADD from a warm pool, p50", Unit: "ms", BaselineName: hostScope, First: 1.1, Far: 1, GoalOfRatio: true}))
	b.add(Figure{Row: "ipam", Name: "ADD from a warm pool, p99", Unit: "ms", Value: p99(p.value), Baseline: p99(p.base), BaselineName: hostScope, Samples: turns})
	return nil
}

// dryPool creates one pod more than the node has free addresses, all at once, and as many on the
// other node. The last of them waits until the cloud has given an address.
func (b *bencher) dryPool(ctx context.Context, eni, host *addressed, cloud region.Client) error {
	if err := eni.ahead(ctx, dryAhead); err != nil {
		return err
	}
	free, calls, err := eni.rest(ctx, cloud)
	if err != nil {
		return err
	}
	if free > dryAhead { // uses up what was there in advance before
		var names []string
		for k := range free - dryAhead {
			names = append(names, fmt.Sprintf("before-%d", k))
		}
		if _, err := eni.create(ctx, names); err != nil {
			return err
		}
		if free, calls, err = eni.rest(ctx, cloud); err != nil {
			return err
		}
	}
	var whole, beyond, extended pairs
	rounds := pick(b, 12, 4)
	for i := range rounds {
		var names []string
		for k := range free + 1 {
			names = append(names, fmt.Sprintf("dry-%d-%d", i, k))
		}
		if err := pause(ctx); err != nil {
			return err
		}
		took, err := eni.create(ctx, names)
		if err != nil {
			return err
		}
		st, err := cloud.Status(ctx)
		if err != nil {
			return err
		}
		base, err := host.create(ctx, names)
		if err != nil {
			return err
		}
		answers, made := needed(calls, st.Calls)
		given := time.Duration(answers) * answerTime
		switch {
		case answers == 0 || took < given:
			return fmt.Errorf("%d pods have addresses after %v, although %d were free and the cloud gave %d answers that took %v each: nothing was measured of a dry pool",
				len(names), took, free, answers, answerTime)
		case made:
			extended.add(ms(took), ms(given))
		default:
			whole.add(ms(took), ms(given))
			beyond.add(ms(took-given), ms(base))
		}
		if free, calls, err = eni.rest(ctx, cloud); err != nil {
			return err
		}
	}
	if len(whole.value) == 0 {
		return errors.New("every round needed another interface: nothing was measured of one with room")
	}
	answer := fmt.Sprintf("for a dry pool: the cloud's answer that it takes, %v; of another interface two of them", answerTime)
	const same = "for what is not the cloud's answer: as many pods at once with host scope"
	b.add(whole.fill(Figure{Row: "ipam", Name: "pods created until the last ADD ends, dry pool, p50", Unit: "ms", BaselineName: answer}))
	b.add(beyond.fill(Figure{Row: "ipam", Name: "of which not the cloud's answer, p50", Unit: "ms", BaselineName: same}))
	b.add(Figure{Row: "ipam", Name: "of which not the cloud's answer, slowest", Unit: "ms", Value: quantile(slices.Clone(beyond.value), 1),
		Baseline: quantile(slices.Clone(beyond.base), 1), BaselineName: same, Samples: len(beyond.value)})
	if len(extended.value) > 0 {
		b.add(extended.fill(Figure{Row: "ipam", Name: "the whole where it takes another interface", Unit: "ms", BaselineName: answer}))
	}
	return nil
}

// needed returns how many answers of the cloud, one after the other, an address took that it has
// given between two counts of its calls, and whether that was on an interface made for it. What is
// asked for in advance meanwhile is not counted. It is 0 if none was given.
func needed(before, after map[string]int) (answers int, made bool) {
	if n := after["CreateNetworkInterface"] - before["CreateNetworkInterface"]; n > 0 {
		return n + after["AttachNetworkInterface"] - before["AttachNetworkInterface"], true
	}
	if after["AssignPrivateIpAddresses"] > before["AssignPrivateIpAddresses"] {
		return 1, false
	}
	return 0, false
}

// addressed is the node of a cluster, on which the plugin is run for pods that the kubelet does not
// start.
type addressed struct {
	b    *bencher
	c    *podCluster
	pods map[string]*heldPod
}

// heldPod is a pod of Kubernetes whose volume does not exist, so that the kubelet never comes to
// its network; ns is what it has for a namespace.
type heldPod struct {
	node *addressed
	name string
	uid  types.UID
	ns   *namespace
	ipv4 netip.Addr
}

func (n *addressed) close() (err error) {
	for _, p := range n.pods {
		err = errors.Join(err, p.ns.remove())
	}
	return err
}

// prepare makes the namespace of a pod.
func (n *addressed) prepare(name string) (*heldPod, error) {
	ns, err := n.b.newNamespace(n.c.what + "-" + name)
	if err != nil {
		return nil, err
	}
	p := &heldPod{node: n, name: name, ns: ns}
	n.pods[name] = p
	return p, nil
}

// create creates pods and attaches them, all at once. It returns the time from the first call until
// the last of them is attached.
func (n *addressed) create(ctx context.Context, names []string) (time.Duration, error) {
	var pods []*heldPod
	for _, name := range names {
		p, err := n.prepare(name)
		if err != nil {
			return 0, err
		}
		pods = append(pods, p)
	}
	took, errs := crowd(len(pods), func(i int) error {
		err := pods[i].announce(ctx)
		if err == nil {
			_, err = pods[i].plugin("ADD")
		}
		return err
	})
	return took, errors.Join(errs...)
}

// announce creates the pod's object.
func (p *heldPod) announce(ctx context.Context) error {
	object := p.node.c.pod(p.name)
	missing := &corev1.HostPathVolumeSource{Path: "/hawser-bench-does-not-exist", Type: new(corev1.HostPathDirectory)}
	object.Spec.Volumes = []corev1.Volume{{Name: "missing", VolumeSource: corev1.VolumeSource{HostPath: missing}}}
	object.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "missing", MountPath: "/missing"}}
	object, err := p.node.c.kube.CoreV1().Pods(metav1.NamespaceDefault).Create(ctx, object, metav1.CreateOptions{})
	if err == nil {
		p.uid = object.UID
	}
	return err
}

// plugin runs the plugin on the node as a container runtime does.
func (p *heldPod) plugin(command string) (time.Duration, error) {
	n := p.node
	a := attachment{
		bin: n.b.cfg.BinDir, inNode: func(fn func() error) error { return machine.InNamespace(n.c.node.Netns, fn) },
		socket: filepath.Join(n.c.node.Dir, "run", "cilium", "cilium.sock"), netns: p.ns.path, container: p.ns.name,
		args: fmt.Sprintf("IgnoreUnknown=1;K8S_POD_NAMESPACE=%s;K8S_POD_NAME=%s;K8S_POD_UID=%s", metav1.NamespaceDefault, p.name, p.uid),
	}
	took, ipv4, err := a.run(command)
	if err != nil {
		return took, fmt.Errorf("%s of pod %s on the node of %s: %w", command, p.name, n.c.what, err)
	}
	if command == "ADD" {
		p.ipv4 = ipv4
	}
	return took, nil
}

// remove detaches a pod and deletes it.
func (p *heldPod) remove(ctx context.Context) error {
	_, err := p.plugin("DEL")
	delete(p.node.pods, p.name)
	zero := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	return errors.Join(err, p.ns.remove(), p.node.c.kube.CoreV1().Pods(metav1.NamespaceDefault).Delete(ctx, p.name, zero))
}

const ciliumNode = "/apis/cilium.io/v2/ciliumnodes/n1"

// ahead sets how many free addresses the node is to have.
func (n *addressed) ahead(ctx context.Context, addresses int) error {
	patch := fmt.Appendf(nil, `{"spec":{"ipam":{"pre-allocate":%d}}}`, addresses)
	_, err := n.c.kube.CoreV1().RESTClient().Patch(types.MergePatchType).AbsPath(ciliumNode).Body(patch).DoRaw(ctx)
	return err
}

// rest waits until the operator knows which addresses are used, and has nothing left to do. It
// returns how many are free, and what the cloud was asked for until then.
func (n *addressed) rest(ctx context.Context, cloud region.Client) (free int, calls map[string]int, err error) {
	before := -1
	err = child.Poll(ctx, podTimeout, 2*answerTime, func() error {
		raw, err := n.c.kube.CoreV1().RESTClient().Get().AbsPath(ciliumNode).DoRaw(ctx)
		if err != nil {
			return err
		}
		var o v2.CiliumNode
		if err := json.Unmarshal(raw, &o); err != nil {
			return err
		}
		st, err := cloud.Status(ctx)
		if err != nil {
			return err
		}
		answers, _ := needed(calls, st.Calls)
		size := len(o.Spec.IPAM.Pool)
		same := before == size && answers == 0
		before, calls, free = size, st.Calls, size-len(o.Status.IPAM.Used)
		var owners []string
		for _, a := range o.Status.IPAM.Used {
			owners = append(owners, a.Owner)
		}
		for name := range n.pods {
			if owner := metav1.NamespaceDefault + "/" + name; !slices.Contains(owners, owner) {
				return fmt.Errorf("the CiliumNode does not say which address %s has", owner)
			}
		}
		// What is being released is not given, although the pool shows it.
		if !same || free < dryAhead || len(o.Status.IPAM.ReleaseIPs) > 0 {
			return fmt.Errorf("the operator is at work still: %d addresses are free; it says %q", free, o.Status.IPAM.OperatorStatus.Error)
		}
		return nil
	})
	return free, calls, err
}

// belong checks that each pod has an address of its own that the cloud has assigned to the node.
func (n *addressed) belong(ctx context.Context, cloud region.Client) error {
	st, err := cloud.Status(ctx)
	if err != nil {
		return err
	}
	free := map[netip.Addr]bool{}
	for _, i := range st.Interfaces {
		if i.Instance == region.InstanceID(region.AWS, n.c.node.Name) {
			for _, ip := range i.Addresses {
				free[ip] = true
			}
		}
	}
	for _, p := range n.pods {
		if !free[p.ipv4] {
			return fmt.Errorf("pod %s has %s, which is another's, or which the cloud has not assigned to its node", p.name, p.ipv4)
		}
		delete(free, p.ipv4)
	}
	return nil
}
