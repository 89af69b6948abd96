package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/pkg/retry"
	"github.com/hawser-net/hawser/test/cluster/invariant"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// scenario is a fault, or several.
type scenario struct {
	name, about string
	// store says that it is about the store of identities, and not for clusters without one.
	store bool
	// away names a node that the scenario turns off, so that no flow is led through it; nil if
	// there is none.
	away func(*day) string
	// run does it, under traffic, and returns when it is over. What must hold afterwards is checked
	// by the caller.
	run func(context.Context, *day) error
}

// scenarios in the order in which they run.
func scenarios() []scenario {
	last := func(d *day) string { return d.nodes[len(d.nodes)-1].Name }
	return []scenario{
		{name: "agent-rollout", about: "a rolling update of the agents", run: agentRollout},
		{name: "agent-kill", about: "every agent killed, and its pod removed without grace, three times", run: agentKill},
		{name: "operator-failover", about: "the leading operator killed, while pods start", run: operatorFailover},
		{name: "node-reboot", about: "a node without power for ten seconds", away: last, run: nodeReboot},
		{name: "kubelet-restart", about: "every kubelet killed", run: func(ctx context.Context, d *day) error { return d.killOnNodes(ctx, "kubelet") }},
		{name: "containerd-restart", about: "every containerd killed", run: func(ctx context.Context, d *day) error { return d.killOnNodes(ctx, "containerd") }},
		{name: "pod-force-delete", about: "pods deleted by force and made again under their names, five times", run: forceDelete},
		{name: "namespaces-bulk", about: "15 namespaces with pods and policies made, and deleted at once", run: bulkNamespaces},
		{name: "cni-config", about: "the CNI configuration removed from every node for ten seconds", run: cniConfig},
		{name: "density", about: "a node filled to 250 pods at once, and emptied at once", run: density},
		{name: "api-down", about: "no API server for two minutes, while sandboxes and agents are restarted", run: apiDown},
		{name: "store-down", about: "no store of identities for a minute, while agents are restarted", store: true, run: storeDown},
	}
}

const system = "kube-system"

// agentRollout replaces every agent, one node after the other, as an upgrade does.
func agentRollout(ctx context.Context, d *day) error {
	if _, err := d.Kubectl(ctx, "", "-n", system, "rollout", "restart", "daemonset/hawser-agent"); err != nil {
		return err
	}
	began := time.Now()
	if _, err := d.Kubectl(ctx, "", "-n", system, "rollout", "status", "daemonset/hawser-agent", "--timeout=4m"); err != nil {
		return err
	}
	d.note("%d agents replaced in %.1f s", len(d.nodes), time.Since(began).Seconds())
	return nil
}

// agentKill ends all agents at once, without a chance to say good-bye: the process, after which the
// kubelet starts it again, and then the pods without grace and when they have only begun, as the
// kubelet would wait longer each time.
func agentKill(ctx context.Context, d *day) error {
	began := time.Now()
	if err := d.killOnNodes(ctx, "hawser-agent"); err != nil {
		return err
	}
	if err := invariant.AgentsAnswer(ctx, d.Lab, 3*time.Minute); err != nil {
		return err
	}
	d.note("agents answer %.1f s after they were killed", time.Since(began).Seconds())
	zero := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	for range 3 {
		old, err := d.agentPods(ctx)
		if err != nil {
			return err
		}
		began := time.Now()
		for _, p := range old {
			if err := d.Kube.CoreV1().Pods(system).Delete(ctx, p.Name, zero); err != nil {
				return err
			}
		}
		err = lab.Eventually(ctx, time.Minute, func(ctx context.Context) error {
			now, err := d.agentPods(ctx)
			if err == nil && len(now) != len(d.nodes) || slices.ContainsFunc(now, func(p corev1.Pod) bool {
				return p.Status.Phase != corev1.PodRunning || slices.ContainsFunc(old, func(q corev1.Pod) bool { return q.UID == p.UID })
			}) {
				err = errors.New("not every node has a new agent")
			}
			return err
		})
		if err != nil {
			return err
		}
		if err := invariant.AgentsAnswer(ctx, d.Lab, time.Minute); err != nil {
			return err
		}
		d.note("agents of new pods answer %.1f s after the old ones were removed", time.Since(began).Seconds())
	}
	return nil
}

func (d *day) agentPods(ctx context.Context) ([]corev1.Pod, error) {
	list, err := d.Kube.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "k8s-app=cilium"})
	if err != nil {
		return nil, err
	}
	return list.Items, nil
}

// killOnNodes kills the program of this name on every node.
func (d *day) killOnNodes(ctx context.Context, program string) error {
	for _, n := range d.nodes {
		if _, err := d.Exec(ctx, n.Name, "pkill", "-KILL", "-x", program); err != nil {
			return err
		}
	}
	return nil
}

// holder returns who leads the operators: host and random.
func (d *day) holder(ctx context.Context) (string, error) {
	lease, err := d.Kube.CoordinationV1().Leases(system).Get(ctx, "cilium-operator-resource-lock", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return "", errors.Join(errors.New("no operator holds the lease"), err)
	}
	return *lease.Spec.HolderIdentity, nil
}

// operatorFailover kills the leader and starts pods with new labels before another one leads, so
// that identities are needed in between.
func operatorFailover(ctx context.Context, d *day) error {
	old, err := d.holder(ctx)
	if err != nil {
		return err
	}
	node := ""
	for _, n := range d.nodes {
		if strings.HasPrefix(old, n.Name+"-") || strings.HasPrefix(old, n.Name+"_") {
			node = n.Name
		}
	}
	if node == "" {
		return fmt.Errorf("the operators' leader %q is on no node", old)
	}
	if _, err := d.Exec(ctx, node, "pkill", "-KILL", "-x", "hawser-operator"); err != nil {
		return err
	}
	began := time.Now()
	extra := d.extras("failover")
	if err := d.CreatePods(ctx, time.Minute, extra...); err != nil {
		return err
	}
	d.note("%d pods with new labels ready %.1f s after the leader was killed", len(extra), time.Since(began).Seconds())
	err = lab.Eventually(ctx, time.Minute, func(ctx context.Context) error {
		now, err := d.holder(ctx)
		if err == nil && now == old {
			err = fmt.Errorf("%s still holds the lease", old)
		}
		return err
	})
	if err != nil {
		return err
	}
	d.note("another operator leads after %.1f s", time.Since(began).Seconds())
	if err := invariant.Hold(ctx, d.Lab, 2*time.Minute); err != nil {
		return err
	}
	return d.deletePods(ctx, extra)
}

func (d *day) deletePods(ctx context.Context, pods []*corev1.Pod) error {
	for _, p := range pods {
		if err := d.Kube.CoreV1().Pods(p.Namespace).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return lab.Eventually(ctx, 2*time.Minute, func(ctx context.Context) error {
		for _, p := range pods {
			list, err := d.Kube.CoreV1().Pods(p.Namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			if slices.ContainsFunc(list.Items, func(q corev1.Pod) bool { return q.Name == p.Name }) {
				return fmt.Errorf("pod %s is still there", p.Name)
			}
		}
		return nil
	})
}

// nodeReboot turns the last node off and on again. Its pods come back by themselves, with their
// policy from the first packet; the flows between the others must not notice.
func nodeReboot(ctx context.Context, d *day) error {
	node, others := d.nodes[len(d.nodes)-1].Name, d.nodes[:len(d.nodes)-1]
	server := d.pods["server-"+node]
	pids, err := lab.Processes(string(server.Object.UID))
	if err != nil || len(pids) == 0 {
		return errors.Join(fmt.Errorf("pod %s has no process", server.Name()), err)
	}
	before, err := machine.NamespaceID(netns(pids[0]))
	if err != nil {
		return err
	}
	start := d.undoing(ctx, func(ctx context.Context) error { return d.Sandbox(ctx, "node", "start", node) })
	if err := d.Sandbox(ctx, "node", "kill", node); err != nil {
		return err
	}
	if !retry.Sleep(ctx, 10*time.Second) {
		return ctx.Err()
	}
	began := time.Now()
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		return d.probeSandbox(gctx, server, before, 3*time.Minute, others, nodeNames(others))
	})
	g.Go(start) // also when the probes have failed: a node that has begun to start is to be whole
	if err := g.Wait(); err != nil {
		return err
	}
	d.note("node %s is Ready and its server is reached %.1f s after it was started", node, time.Since(began).Seconds())
	info, err := d.Info()
	if err != nil {
		return err
	}
	d.nodes = info.Nodes
	if err := invariant.Hold(ctx, d.Lab, 3*time.Minute); err != nil {
		return err
	}
	d.note("all its pods are back after %.1f s", time.Since(began).Seconds())
	return nil
}

func nodeNames(nodes []kube.NodeInfo) (out []string) {
	for _, n := range nodes {
		out = append(out, n.Name)
	}
	return out
}
