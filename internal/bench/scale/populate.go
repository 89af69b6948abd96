package scale

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/pkg/retry"
)

// writers is how many requests of the harness's own are under way at once.
const writers = 64

// each calls f for every number below n, many at once, and returns the first error.
func each(ctx context.Context, n int, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	for range min(writers, n) {
		wg.Go(func() {
			for ctx.Err() == nil {
				i := int(next.Add(1)) - 1
				if i >= n {
					return
				}
				if err := f(ctx, i); err != nil {
					cancel(err)
				}
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// paced calls f for every number below n at a rate a second, each in a goroutine of its own, and
// returns the first error.
func paced(ctx context.Context, n int, rate float64, f func(ctx context.Context, i int) error) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var wg sync.WaitGroup
	defer wg.Wait()
	began := time.Now()
	for i := range n {
		if !retry.Sleep(ctx, time.Until(began.Add(time.Duration(float64(i)/rate*float64(time.Second))))) {
			return context.Cause(ctx)
		}
		wg.Go(func() {
			if err := f(ctx, i); err != nil {
				cancel(err)
			}
		})
	}
	wg.Wait()
	return context.Cause(ctx)
}

// namespace makes a namespace.
func (c *cluster) namespace(ctx context.Context, name string, labels map[string]string) error {
	_, err := c.client.Urgent.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: labels}}, metav1.CreateOptions{})
	if apierrors.IsAlreadyExists(err) {
		return nil
	}
	return err
}

// pod makes a pod's object on a node, about as large as a small one of a Deployment is, and returns
// it.
func (c *cluster) pod(ctx context.Context, namespace, name, node string, labels map[string]string) (*corev1.Pod, error) {
	all := map[string]string{"pod-template-hash": "6d4cf56db6"}
	for k, v := range labels {
		all[k] = v
	}
	o, err := c.client.Urgent.CoreV1().Pods(namespace).Create(ctx, &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: namespace, Labels: all},
		Spec: corev1.PodSpec{
			NodeName: node, ServiceAccountName: "default", AutomountServiceAccountToken: new(bool),
			Containers: []corev1.Container{{Name: "app", Image: "registry.invalid/app:1", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}}}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		return nil, fmt.Errorf("create pod %s/%s: %w", namespace, name, err)
	}
	return o, nil
}

// address writes an address into a pod's status, as its kubelet does.
func (c *cluster) address(ctx context.Context, pod *corev1.Pod, host, ip netip.Addr) error {
	pod = pod.DeepCopy()
	pod.Status = corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: host.String(), HostIPs: []corev1.HostIP{{IP: host.String()}}, PodIP: ip.String(), PodIPs: []corev1.PodIP{{IP: ip.String()}},
	}
	_, err := c.client.Urgent.CoreV1().Pods(pod.Namespace).UpdateStatus(ctx, pod, metav1.UpdateOptions{})
	return err
}
