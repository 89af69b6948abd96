package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/pkg/retry"
	"github.com/hawser-net/hawser/test/cluster/invariant"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// outage is how long the API server is away.
const outage = 2 * time.Minute

// apiDown takes the API server away, and meanwhile ends a server's sandbox on every node, which the
// kubelet makes anew without asking anybody. The new one has a network, and its policy, from its
// first packet.
func apiDown(ctx context.Context, d *day) error {
	var victims []*corev1.Pod
	for _, n := range d.nodes {
		p := d.pod("server", n.Name)
		p.Name = "victim-" + n.Name
		p.Labels["on"] = "nothing" // it is no backend of the service of this node
		victims = append(victims, p)
	}
	d.undoing(ctx, func(ctx context.Context) error { return d.deletePods(ctx, victims) })
	if err := d.CreatePods(ctx, 2*time.Minute, victims...); err != nil {
		return err
	}
	if err := invariant.Hold(ctx, d.Lab, time.Minute); err != nil {
		return err
	}
	open, err := d.OpenPods(ctx, stage)
	if err != nil {
		return err
	}
	lab.ClosePods(open)

	restarts, err := d.operatorRestarts(ctx)
	if err != nil {
		return err
	}
	info, err := d.Info()
	if err != nil {
		return err
	}
	restore := d.undoing(ctx, d.up)
	if err := info.Processes["kube-apiserver"].Send(unix.SIGKILL); err != nil {
		return err
	}
	began := time.Now()
	for _, v := range victims {
		if err := d.restartSandbox(ctx, open[v.Namespace+"/"+v.Name]); err != nil {
			return err
		}
	}
	d.note("without API server, %d pods have a new sandbox and their policy after %.1f s", len(victims), time.Since(began).Seconds())
	// An agent that starts now has only what it wrote down.
	if err := d.killOnNodes(ctx, "hawser-agent"); err != nil {
		return err
	}
	retry.Sleep(ctx, outage-time.Since(began))
	if err := restore(); err != nil {
		return err
	}
	began = time.Now()
	if err := d.WaitReady(ctx, 2*time.Minute, victims...); err != nil {
		return err
	}
	if err := invariant.Hold(ctx, d.Lab, 3*time.Minute); err != nil {
		return err
	}
	d.note("all is in order %.1f s after the API server is back", time.Since(began).Seconds())
	// The leader ends when it cannot renew its lease. Probes must end none: a new operator reaches
	// the API server no better than the old one.
	now, err := d.operatorRestarts(ctx)
	if err == nil && now > restarts+1 {
		err = fmt.Errorf("operators were restarted %d times while the API server was away, want once at most: the leader", now-restarts)
	}
	return err
}

// up starts what does not run of the cluster's own programs.
func (d *day) up(ctx context.Context) error { return d.Sandbox(ctx, "up", "--kubernetes", "--yes") }

// operatorRestarts is how often operators were restarted since their pods were made.
func (d *day) operatorRestarts(ctx context.Context) (n int32, err error) {
	pods, err := d.Kube.CoreV1().Pods(system).List(ctx, metav1.ListOptions{LabelSelector: "io.cilium/app=operator"})
	if err != nil {
		return 0, err
	}
	for i := range pods.Items {
		for _, c := range pods.Items[i].Status.ContainerStatuses {
			n += c.RestartCount
		}
	}
	return n, nil
}

// restartSandbox ends the processes that hold a server's namespaces, waits for the new sandbox, and
// probes it.
func (d *day) restartSandbox(ctx context.Context, p *lab.Pod) error {
	old, err := lab.Processes(string(p.Object.UID))
	if err != nil || len(old) == 0 {
		return errors.Join(fmt.Errorf("pod %s has no process", p.Name()), err)
	}
	before, err := machine.NamespaceID(netns(old[0]))
	if err != nil {
		return err
	}
	for _, pid := range old {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return err
		}
	}
	return d.probeSandbox(ctx, p, before, time.Minute, d.nodes, []string{p.Node()})
}

func netns(pid int) string { return fmt.Sprintf("/proc/%d/ns/net", pid) }

// conflist is what the agent gives the runtime, on every node.
const conflist = "cni/net.d/05-cilium.conflist"

// cniConfig removes the runtime's configuration of the network on every node. Pods that run must
// not notice; new ones wait until it is back.
func cniConfig(ctx context.Context, d *day) error {
	saved := map[string][]byte{}
	for _, n := range d.nodes {
		data, err := os.ReadFile(filepath.Join(n.Dir, conflist))
		if err != nil {
			return err
		}
		saved[n.Name] = data
	}
	restored := 0
	restore := d.undoing(ctx, func(context.Context) error {
		for _, n := range d.nodes {
			file := filepath.Join(n.Dir, conflist)
			if _, err := os.Stat(file); err == nil {
				restored++
				continue
			}
			if err := os.WriteFile(file, saved[n.Name], 0o600); err != nil {
				return err
			}
		}
		return nil
	})
	for _, n := range d.nodes {
		if err := os.Remove(filepath.Join(n.Dir, conflist)); err != nil {
			return err
		}
	}
	began := time.Now()
	if !retry.Sleep(ctx, 10*time.Second) {
		return ctx.Err()
	}
	if err := restore(); err != nil {
		return err
	}
	d.note("%d of %d agents put their configuration back within %.0f s", restored, len(d.nodes), time.Since(began).Seconds())
	extra := d.extras("cni")
	began = time.Now()
	if err := d.CreatePods(ctx, 2*time.Minute, extra...); err != nil {
		return err
	}
	d.note("%d new pods are ready %.1f s later", len(extra), time.Since(began).Seconds())
	return d.deletePods(ctx, extra)
}
