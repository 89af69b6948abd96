package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/labels"
)

// PauseImage is what pods of tests run: it does nothing, and is on every node.
const PauseImage = "registry.k8s.io/pause:3.10.2"

// Pod is a running pod and its network namespace.
type Pod struct {
	Object    *corev1.Pod
	Addrs     []netip.Addr
	Namespace *Namespace
	// Labels are those that its identity is made of, as the documentation says, not as the agent
	// does.
	Labels labels.Set
}

// Name is the pod's namespace and name.
func (p *Pod) Name() string { return p.Object.Namespace + "/" + p.Object.Name }

// Node is where it runs.
func (p *Pod) Node() string { return p.Object.Spec.NodeName }

// Addr returns its address of a family.
func (p *Pod) Addr(six bool) netip.Addr {
	for _, a := range p.Addrs {
		if a.Is6() == six {
			return a
		}
	}
	return netip.Addr{}
}

// Pause is the object of a pod that does nothing, on a node.
func Pause(namespace, name, node string, set map[string]string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name, Labels: set},
		Spec: corev1.PodSpec{
			NodeName: node, TerminationGracePeriodSeconds: new(int64(0)), EnableServiceLinks: new(false), AutomountServiceAccountToken: new(false),
			Containers: []corev1.Container{{Name: "pause", Image: PauseImage, ImagePullPolicy: corev1.PullNever}},
			// A node that was away for a while gets its pods back.
			Tolerations: []corev1.Toleration{{Operator: corev1.TolerationOpExists}},
		},
	}
}

// EnsureNamespace makes a namespace with labels, empty: one of an earlier run is removed first. Its
// default service account is there on return.
func (l *Lab) EnsureNamespace(ctx context.Context, name string, set map[string]string) error {
	if err := l.DeleteNamespaces(ctx, name); err != nil {
		return err
	}
	object := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: set}}
	if _, err := l.Kube.CoreV1().Namespaces().Create(ctx, object, metav1.CreateOptions{}); err != nil {
		return err
	}
	return Eventually(ctx, time.Minute, func(ctx context.Context) error {
		_, err := l.Kube.CoreV1().ServiceAccounts(name).Get(ctx, "default", metav1.GetOptions{})
		return err
	})
}

// Relabel gives a namespace that is there these labels, and removes its pods; one that is not there
// is made.
func (l *Lab) Relabel(ctx context.Context, name string, set map[string]string) error {
	object, err := l.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return l.EnsureNamespace(ctx, name, set)
	}
	if err != nil {
		return err
	}
	object.Labels = maps.Clone(set)
	if _, err := l.Kube.CoreV1().Namespaces().Update(ctx, object, metav1.UpdateOptions{}); err != nil {
		return err
	}
	now := metav1.DeleteOptions{GracePeriodSeconds: new(int64(0))}
	if err := l.Kube.CoreV1().Pods(name).DeleteCollection(ctx, now, metav1.ListOptions{}); err != nil {
		return err
	}
	return Eventually(ctx, 2*time.Minute, func(ctx context.Context) error {
		pods, err := l.Kube.CoreV1().Pods(name).List(ctx, metav1.ListOptions{})
		if err == nil && len(pods.Items) > 0 {
			err = fmt.Errorf("%d pods of namespace %s are still there", len(pods.Items), name)
		}
		return err
	})
}

// DeleteNamespaces removes namespaces and waits until they are gone. There being none is fine.
func (l *Lab) DeleteNamespaces(ctx context.Context, names ...string) error {
	for _, name := range names {
		if err := l.Kube.CoreV1().Namespaces().Delete(ctx, name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
			return err
		}
	}
	for _, name := range names {
		err := Eventually(ctx, 3*time.Minute, func(ctx context.Context) error {
			_, err := l.Kube.CoreV1().Namespaces().Get(ctx, name, metav1.GetOptions{})
			if apierrors.IsNotFound(err) {
				return nil
			}
			return errors.Join(fmt.Errorf("namespace %s is still there", name), err)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// CreatePods creates pods and waits until all of them are ready.
func (l *Lab) CreatePods(ctx context.Context, timeout time.Duration, pods ...*corev1.Pod) error {
	for _, p := range pods {
		if _, err := l.Kube.CoreV1().Pods(p.Namespace).Create(ctx, p, metav1.CreateOptions{}); err != nil {
			return fmt.Errorf("create pod %s/%s: %w", p.Namespace, p.Name, err)
		}
	}
	return l.WaitReady(ctx, timeout, pods...)
}

// WaitReady waits until pods, known by namespace and name, are ready.
func (l *Lab) WaitReady(ctx context.Context, timeout time.Duration, pods ...*corev1.Pod) error {
	byNamespace := map[string][]string{}
	for _, p := range pods {
		byNamespace[p.Namespace] = append(byNamespace[p.Namespace], p.Name)
	}
	return Eventually(ctx, timeout, func(ctx context.Context) error {
		for namespace, names := range byNamespace {
			list, err := l.Kube.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
			if err != nil {
				return err
			}
			have := map[string]*corev1.Pod{}
			for i := range list.Items {
				have[list.Items[i].Name] = &list.Items[i]
			}
			for _, name := range names {
				if p := have[name]; p == nil || !Ready(p) {
					return fmt.Errorf("pod %s/%s is not ready: %s", namespace, name, describe(p))
				}
			}
		}
		return nil
	})
}

// Ready reports whether a pod is ready and has addresses.
func Ready(p *corev1.Pod) bool {
	return p.DeletionTimestamp == nil && len(p.Status.PodIPs) > 0 && slices.ContainsFunc(p.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

func describe(p *corev1.Pod) string {
	if p == nil {
		return "there is none"
	}
	text := string(p.Status.Phase)
	for _, c := range p.Status.Conditions {
		if c.Status != corev1.ConditionTrue {
			text += fmt.Sprintf(", %s %s %s", c.Type, c.Reason, c.Message)
		}
	}
	for _, c := range p.Status.ContainerStatuses {
		if c.State.Waiting != nil {
			text += fmt.Sprintf(", %s %s", c.State.Waiting.Reason, c.State.Waiting.Message)
		}
	}
	return text
}

// OpenPods returns the pods of some namespaces that run on their own network, by name, each with
// its namespace entered. Close them with ClosePods.
func (l *Lab) OpenPods(ctx context.Context, namespaces ...string) (map[string]*Pod, error) {
	processes, err := podProcesses()
	if err != nil {
		return nil, err
	}
	out := map[string]*Pod{}
	for _, ns := range namespaces {
		object, err := l.Kube.CoreV1().Namespaces().Get(ctx, ns, metav1.GetOptions{})
		if err != nil {
			return nil, err
		}
		list, err := l.Kube.CoreV1().Pods(ns).List(ctx, metav1.ListOptions{})
		if err != nil {
			return nil, err
		}
		for i := range list.Items {
			object, p := object, &Pod{Object: &list.Items[i]}
			if p.Object.Spec.HostNetwork || !Ready(p.Object) {
				continue
			}
			if err := p.open(l.Name, processes, object.Labels); err != nil {
				ClosePods(out)
				return nil, fmt.Errorf("pod %s: %w", p.Name(), err)
			}
			out[p.Name()] = p
		}
	}
	return out, nil
}

func (p *Pod) open(cluster string, processes map[string][]int, namespaceLabels map[string]string) error {
	pids := processes[string(p.Object.UID)]
	if len(pids) == 0 {
		return errors.New("no process of it runs on this machine")
	}
	set, err := IdentityLabels(cluster, p.Object, namespaceLabels)
	if err != nil {
		return err
	}
	p.Labels = set
	for _, ip := range p.Object.Status.PodIPs {
		a, err := netip.ParseAddr(ip.IP)
		if err != nil {
			return err
		}
		p.Addrs = append(p.Addrs, a)
	}
	p.Namespace, err = OpenNamespace(fmt.Sprintf("/proc/%d/ns/net", pids[0]))
	return err
}

// IdentityLabels are the labels of a pod that its identity is made of.
func IdentityLabels(cluster string, p *corev1.Pod, namespaceLabels map[string]string) (labels.Set, error) {
	account := p.Spec.ServiceAccountName
	if account == "" {
		account = "default"
	}
	all, err := labels.PodLabels(labels.Pod{
		Namespace: p.Namespace, ServiceAccount: account, Cluster: cluster, Labels: p.Labels, NamespaceLabels: namespaceLabels,
	})
	if err != nil {
		return nil, err
	}
	set, _ := labels.DefaultFilter().Split(all)
	return set, nil
}

// ClosePods gives up the namespaces of pods.
func ClosePods(pods map[string]*Pod) {
	for _, p := range pods {
		p.Namespace.Close()
	}
}

// Processes returns the processes of the pod with this UID. All of them are in its network
// namespace.
func Processes(uid string) ([]int, error) {
	processes, err := podProcesses()
	return processes[uid], err
}

// podProcesses returns the processes of each pod on this machine, by the UID of the pod: they are
// in a cgroup named after it.
func podProcesses() (map[string][]int, error) {
	files, err := filepath.Glob("/proc/[0-9]*/cgroup")
	if err != nil {
		return nil, err
	}
	out := map[string][]int{}
	for _, f := range files {
		data, err := os.ReadFile(f)
		if err != nil {
			continue // it ended
		}
		if _, rest, ok := strings.Cut(string(data), "/pod"); ok && len(rest) >= 36 && strings.Count(rest[:36], "-") == 4 {
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
			if err != nil {
				return nil, err
			}
			out[rest[:36]] = append(out[rest[:36]], pid)
		}
	}
	return out, nil
}
