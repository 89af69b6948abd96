package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// disturbance is what goes wrong around a change.
type disturbance struct {
	kind, what string
	// noAPI says that there is no API server meanwhile.
	noAPI bool
	// noStore says that there is no store of identities meanwhile.
	noStore bool
	begin   func(context.Context) error
	// changed is called when the change has been made, if not nil.
	changed func(context.Context) error
	lasts   time.Duration
	end     func(context.Context) error
}

func (d disturbance) String() string { return d.what }

func nothing(context.Context) error { return nil }

// disturbance returns what goes wrong next, mostly nothing.
func (s *soak) disturbance(ctx context.Context) (disturbance, error) {
	info, err := s.Info()
	if err != nil {
		return disturbance{}, err
	}
	node := info.Nodes[s.rng.IntN(len(info.Nodes))].Name
	switch n := s.rng.IntN(100); {
	case n < 10:
		return s.killed("kill-agent", "the agent of "+node+" is killed", node, "hawser-agent", "k8s-app=cilium"), nil
	case n < 22:
		return s.frozen("freeze-agent", "the agent of "+node+" stands still", node, "hawser-agent", s.seconds(3, 12)), nil
	case n < 30:
		return s.leader(ctx, func(node string) disturbance {
			return s.killed("kill-leader", "the leading operator is killed on "+node, node, "hawser-operator", "io.cilium/app=operator")
		})
	case n < 38:
		// Longer than a lease lasts, so that another one leads when it goes on.
		lasts := s.seconds(16, 24)
		return s.leader(ctx, func(node string) disturbance {
			return s.frozen("freeze-leader", "the leading operator stands still on "+node, node, "hawser-operator", lasts)
		})
	case n < 44:
		return s.away(ctx, node)
	case s.Lab.Store == nil && n < 54:
		return s.serverBack(), nil
	case s.Lab.Store == nil:
	case n < 52:
		return s.storeGone(node), nil
	case n < 58:
		return s.storeFrozen(), nil
	case n < 70 && s.cluster.Store == kube.Etcd:
		return s.storeBack(), nil
	}
	return disturbance{kind: "calm", what: "calm", begin: nothing, lasts: time.Second, end: nothing}, nil
}

// leader makes a disturbance of the node of the leading operator.
func (s *soak) leader(ctx context.Context, of func(node string) disturbance) (disturbance, error) {
	lease, err := s.Kube.CoordinationV1().Leases(system).Get(ctx, "cilium-operator-resource-lock", metav1.GetOptions{})
	if err != nil || lease.Spec.HolderIdentity == nil {
		return disturbance{}, errors.Join(errors.New("no operator holds the lease"), err)
	}
	info, err := s.Info()
	if err != nil {
		return disturbance{}, err
	}
	for _, n := range info.Nodes {
		if strings.HasPrefix(*lease.Spec.HolderIdentity, n.Name+"-") || strings.HasPrefix(*lease.Spec.HolderIdentity, n.Name+"_") {
			return of(n.Name), nil
		}
	}
	return disturbance{}, fmt.Errorf("the operators' leader %q is on no node", *lease.Spec.HolderIdentity)
}

// signal sends a signal to a program on a node. It may not run: a leader that was killed holds its
// lease for a while.
func (s *soak) signal(ctx context.Context, node, signal, program string) error {
	_, err := s.Exec(ctx, node, "sh", "-c", `pkill "-$1" -x "$2" || test $? = 1`, "sh", signal, program)
	return err
}

func (s *soak) frozen(kind, what, node, program string, lasts time.Duration) disturbance {
	return disturbance{
		kind: kind, what: fmt.Sprintf("%s for %s", what, lasts), lasts: lasts,
		begin: func(ctx context.Context) error { return s.signal(ctx, node, "STOP", program) },
		// The kubelet may have ended it meanwhile, as it did not answer.
		end: func(ctx context.Context) error { _ = s.signal(ctx, node, "CONT", program); return nil },
	}
}

// killed ends a program. Its pod is removed afterwards, as the kubelet would wait longer each time
// before it starts the program again.
func (s *soak) killed(kind, what, node, program, selector string) disturbance {
	return disturbance{
		kind: kind, what: what, lasts: time.Second,
		begin: func(ctx context.Context) error { return s.signal(ctx, node, "KILL", program) },
		end:   func(ctx context.Context) error { return s.replace(ctx, node, selector) },
	}
}

// replace removes the pod of a program of the cluster on a node, and waits until another one runs
// and nothing is left of the first. The kubelet may have started the program in the removed pod
// once more, only to end it: whoever asks that one finds it gone a moment later.
func (s *soak) replace(ctx context.Context, node, selector string) error {
	list := metav1.ListOptions{LabelSelector: selector, FieldSelector: "spec.nodeName=" + node}
	pods, err := s.Kube.CoreV1().Pods(system).List(ctx, list)
	if err != nil {
		return err
	}
	removed := map[types.UID]bool{}
	for _, p := range pods.Items {
		removed[p.UID] = true
		err := s.Kube.CoreV1().Pods(system).Delete(ctx, p.Name, metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))})
		if err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	return lab.Eventually(ctx, convergence, func(ctx context.Context) error {
		pods, err := s.Kube.CoreV1().Pods(system).List(ctx, list)
		if err != nil {
			return err
		}
		// The kubelet observed the removal before it observed the new pod, so it starts nothing in
		// the removed one any more once the new one runs.
		if !slices.ContainsFunc(pods.Items, func(p corev1.Pod) bool { return !removed[p.UID] && running(&p) }) {
			return fmt.Errorf("no new pod of %s runs on %s", selector, node)
		}
		for uid := range removed {
			out, err := s.Exec(ctx, node, "sh", "-c", `cat /proc/[0-9]*/cgroup 2>/dev/null | grep -cF "$1" || test $? = 1`, "sh", string(uid))
			if err != nil {
				return err
			}
			if n := strings.TrimSpace(string(out)); n != "0" {
				return fmt.Errorf("%s processes of the removed pod %s are left on %s", n, uid, node)
			}
		}
		return nil
	})
}

// running reports whether every container of a pod runs.
func running(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && len(p.Status.ContainerStatuses) > 0 &&
		!slices.ContainsFunc(p.Status.ContainerStatuses, func(c corev1.ContainerStatus) bool { return c.State.Running == nil })
}

// away takes the API server away, and meanwhile kills an agent, which then has what it wrote down.
func (s *soak) away(ctx context.Context, node string) (disturbance, error) {
	info, err := s.Info()
	if err != nil {
		return disturbance{}, err
	}
	kill := s.rng.IntN(2) == 0
	what := "no API server"
	if kill {
		what += ", and the agent of " + node + " is killed"
	}
	return disturbance{
		kind: "api-away", what: what, noAPI: true, lasts: s.seconds(8, 20),
		begin: func(ctx context.Context) error {
			if err := info.Processes["kube-apiserver"].Send(unix.SIGKILL); err != nil {
				return err
			}
			if kill {
				return s.signal(ctx, node, "KILL", "hawser-agent")
			}
			return nil
		},
		end: func(ctx context.Context) error { return s.Sandbox(ctx, "up", "--kubernetes", "--yes") },
	}, nil
}
