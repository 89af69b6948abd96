package kube

import (
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/config"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
)

// StopTimeout is how long an operator's controllers may take to end what they are doing.
const StopTimeout = 5 * time.Second

// Scheme returns the kinds of objects that the operator reads and writes.
func Scheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{clientgoscheme.AddToScheme, apiextensionsv1.AddToScheme, v2.AddToScheme, v2alpha1.AddToScheme} {
		if err := add(s); err != nil {
			return nil, fmt.Errorf("kinds of objects: %w", err)
		}
	}
	return s, nil
}

// NewClient returns a client without a cache.
func NewClient(cfg *rest.Config) (client.Client, error) {
	s, err := Scheme()
	if err != nil {
		return nil, err
	}
	c, err := client.New(cfg, client.Options{Scheme: s})
	if err != nil {
		return nil, fmt.Errorf("a client of the API server: %w", err)
	}
	return c, nil
}

// NewManager returns a manager for controllers, with caches that keep of Pods and Nodes only what
// the operator reads. It elects no leader and serves nothing: that is up to the caller. When it is
// stopped, it reports controllers that take longer than the time given to end. kinds is a mapper
// that knows the kinds of the custom resources; nil for one of the manager's own. The server must
// serve them already.
func NewManager(cfg *rest.Config, kinds meta.RESTMapper, log *slog.Logger, stop time.Duration) (manager.Manager, error) {
	s, err := Scheme()
	if err != nil {
		return nil, err
	}
	yes, no := true, false
	opts := manager.Options{
		Scheme: s, Logger: logr.FromSlogHandler(log.Handler()), LeaderElection: false, HealthProbeBindAddress: "0", PprofBindAddress: "0",
		Metrics:                 metricsserver.Options{BindAddress: "0"},
		GracefulShutdownTimeout: &stop,
		// Names are unique within a manager; tests have several managers in a process. The queue
		// with priorities leaves a goroutine behind when it is stopped with work in it.
		Controller: config.Controller{SkipNameValidation: &yes, UsePriorityQueue: &no},
		Cache: cache.Options{
			DefaultTransform: cache.TransformStripManagedFields(),
			ByObject: map[client.Object]cache.ByObject{
				&corev1.Pod{}:        {Transform: slimPod},
				&corev1.Node{}:       {Transform: slimNode},
				&v2.CiliumEndpoint{}: {Transform: slimEndpoint},
			},
		},
		// Policies are read as they are, fields included that no type of ours has.
		Client: client.Options{Cache: &client.CacheOptions{Unstructured: true}},
	}
	if kinds != nil {
		opts.MapperProvider = func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return kinds, nil }
	}
	m, err := manager.New(cfg, opts)
	if err != nil {
		return nil, fmt.Errorf("a manager of controllers: %w", err)
	}
	return m, nil
}

// slimMeta drops metadata that is not read here.
func slimMeta(m *metav1.ObjectMeta) {
	m.ManagedFields, m.Annotations, m.Finalizers, m.GenerateName = nil, nil, nil, ""
}

// slimPod keeps what makes a pod's identity, where it runs, and in what state it is. A cluster has
// many pods, and the cache holds them all.
func slimPod(obj any) (any, error) {
	p, ok := obj.(*corev1.Pod)
	if !ok {
		return obj, nil // a tombstone
	}
	slimMeta(&p.ObjectMeta)
	p.Spec = corev1.PodSpec{
		NodeName: p.Spec.NodeName, HostNetwork: p.Spec.HostNetwork, ServiceAccountName: p.Spec.ServiceAccountName,
		InitContainers: slimContainers(p.Spec.InitContainers), Containers: slimContainers(p.Spec.Containers),
	}
	var ready []corev1.PodCondition
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			ready = append(ready, corev1.PodCondition{Type: c.Type, Status: c.Status})
		}
	}
	p.Status = corev1.PodStatus{Phase: p.Status.Phase, Conditions: ready, StartTime: p.Status.StartTime, PodIPs: p.Status.PodIPs, HostIP: p.Status.HostIP}
	return p, nil
}

// slimContainers keeps what makes the named ports of a pod: nothing of containers without any.
func slimContainers(all []corev1.Container) []corev1.Container {
	var out []corev1.Container
	for _, c := range all {
		if slices.ContainsFunc(c.Ports, func(p corev1.ContainerPort) bool { return p.Name != "" }) {
			out = append(out, corev1.Container{Ports: c.Ports, RestartPolicy: c.RestartPolicy})
		}
	}
	return out
}

// slimEndpoint drops of a CiliumEndpoint what only its own agent reads.
func slimEndpoint(obj any) (any, error) {
	e, ok := obj.(*v2.CiliumEndpoint)
	if !ok {
		return obj, nil
	}
	e.ManagedFields, e.Annotations = nil, nil
	e.Status.Controllers, e.Status.Health, e.Status.Log, e.Status.Policy = nil, nil, nil, nil
	return e, nil
}

// slimNode keeps a node's taints and conditions.
func slimNode(obj any) (any, error) {
	n, ok := obj.(*corev1.Node)
	if !ok {
		return obj, nil
	}
	slimMeta(&n.ObjectMeta)
	n.Spec = corev1.NodeSpec{Taints: n.Spec.Taints, PodCIDRs: n.Spec.PodCIDRs}
	n.Status = corev1.NodeStatus{Conditions: n.Status.Conditions, Addresses: n.Status.Addresses}
	return n, nil
}
