package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox/kube/image"
)

// lab is the cluster and the programs that it is tried with.
type lab struct {
	name, hawser, helm, chart string
	kubectl, kubeconfig       string
	replace, keep             bool
	from                      int
	// id is the number of the cluster, which decides on its addresses; 0 for none.
	id int
	// stateDir is where agents have their files, empty for the usual place.
	stateDir string
}

type place struct{ name, ip string }

// nodes of the cluster: two, with the addresses of the sandbox's plan.
func (l *lab) nodes() []place { return []place{{"n1", l.underlay(11)}, {"n2", l.underlay(12)}} }

func (l *lab) underlay(host int) string {
	if l.id != 0 {
		return fmt.Sprintf("192.168.%d.%d", l.id, host)
	}
	return fmt.Sprintf("10.99.0.%d", host)
}

func (l *lab) image() string { return image.AgnhostName }

// values are those that this cluster needs, and more.
func (l *lab) values(more []string) []string {
	all := append([]string{"agent.cgroupRoot=" + cgroup2()}, more...)
	if l.replace {
		all = append(all, "kubeProxyReplacement=true", "k8s.serviceHost="+l.underlay(10), "k8s.servicePort=6443")
	}
	if l.stateDir != "" {
		all = append(all, "agent.stateDir="+l.stateDir)
	}
	return set(all)
}

func set(values []string) (out []string) {
	for _, v := range values {
		if strings.HasPrefix(v, "--") {
			out = append(out, v)
		} else {
			out = append(out, "--set", v)
		}
	}
	return out
}

// do runs a program. What it says on both outputs is in the error, too.
func (l *lab) do(ctx context.Context, program string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+l.kubeconfig)
	out, err := cmd.CombinedOutput()
	if err != nil {
		err = fmt.Errorf("%s %s: %w: %s", program, strings.Join(args, " "), err, strings.TrimSpace(string(out)))
	}
	return string(out), err
}

// k runs kubectl.
func (l *lab) k(ctx context.Context, args ...string) (string, error) {
	return l.do(ctx, l.kubectl, args...)
}

func (l *lab) apply(ctx context.Context, manifest string) error {
	cmd := exec.CommandContext(ctx, l.kubectl, "apply", "-f", "-")
	cmd.Env = append(cmd.Environ(), "KUBECONFIG="+l.kubeconfig)
	cmd.Stdin = strings.NewReader(manifest)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("apply: %w: %s", err, out)
	}
	return nil
}

type pod struct{ name, ip, node string }

// pods returns the pods of a DaemonSet, one on each node. A node that has just got its network
// takes some a moment later.
func (l *lab) pods(ctx context.Context, selector string) (out []pod, err error) {
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Second) {
		if out, err = l.podsNow(ctx, selector); err == nil || time.Now().After(deadline) || ctx.Err() != nil {
			return out, err
		}
	}
}

func (l *lab) podsNow(ctx context.Context, selector string) (out []pod, err error) {
	text, err := l.k(ctx, "-n", "chart", "get", "pods", "-l", selector, "-o",
		`jsonpath={range .items[*]}{.metadata.name} {.status.podIP} {.spec.nodeName}{"\n"}{end}`)
	if err != nil {
		return nil, err
	}
	for line := range strings.Lines(text) {
		if f := strings.Fields(line); len(f) == 3 {
			out = append(out, pod{f[0], f[1], f[2]})
		}
	}
	if len(out) != len(l.nodes()) {
		return nil, fmt.Errorf("%d pods of %s, want one on each node: %q", len(out), selector, text)
	}
	return out, nil
}

// fromHost asks from a node, or from outside of the cluster.
func (l *lab) fromHost(ctx context.Context, place, to string) (err error) {
	for deadline := time.Now().Add(20 * time.Second); ; {
		_, err = l.do(ctx, l.hawser, "sandbox", "exec", "--name", l.name, place, "--", "curl", "-sS", "-m", "3", "-o", "/dev/null", "http://"+to+"/hostname")
		if err == nil || ctx.Err() != nil || time.Now().After(deadline) {
			return err
		}
	}
}

// traffic are requests that go on until end.
type traffic struct {
	stop        context.CancelFunc
	running     sync.WaitGroup
	asked, lost atomic.Int64
	mu          sync.Mutex
	first       error
}

// ask has every client ask every target again and again, each time on a connection of its own.
func (l *lab) ask(ctx context.Context, clients []pod, targets []string) *traffic {
	ctx, stop := context.WithCancel(ctx)
	t := &traffic{stop: stop}
	for _, c := range clients {
		t.running.Go(func() {
			script := ""
			for _, to := range targets {
				script += fmt.Sprintf("curl -sS -m 5 -o /dev/null http://%s/hostname && echo ok || echo lost; ", to)
			}
			for ctx.Err() == nil {
				// Ten rounds a call: kubectl itself takes longer than all of them.
				out, err := l.k(context.WithoutCancel(ctx), "-n", "chart", "exec", c.name, "--", "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do "+script+"sleep 0.1; done")
				if err != nil {
					t.fail(err)
					return
				}
				t.asked.Add(int64(strings.Count(out, "ok\n") + strings.Count(out, "lost\n")))
				if n := strings.Count(out, "lost\n"); n > 0 {
					t.lost.Add(int64(n))
					t.fail(fmt.Errorf("from %s: %s", c.name, out))
				}
			}
		})
	}
	return t
}

func (t *traffic) fail(err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.first == nil {
		t.first = err
	}
}

func (t *traffic) end() (asked, lost int64, err error) {
	t.stop()
	t.running.Wait()
	return t.asked.Load(), t.lost.Load(), t.first
}

// cgroup2 is where this machine, and so a node, has its cgroups of version 2.
func cgroup2() string {
	const usual, beside = "/sys/fs/cgroup", "/sys/fs/cgroup/unified"
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	return usual
}
