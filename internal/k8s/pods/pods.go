package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/ippools"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// ErrNotFound means that Kubernetes has no such pod.
var ErrNotFound = errors.New("no such pod in Kubernetes")

// Info is what an endpoint of a pod is to have.
type Info struct {
	// UID is that of the object in the API. Runtime is the one that kubelet and runtime use, which
	// stays if the object of a static pod is recreated.
	UID, Runtime string

	Labels labels.Set
	Ports  []policy.NamedPort
	// Choice is what selects the pools of the pod's addresses.
	Choice ippools.Pod
	// SkipMasquerade: the namespace has the annotation [SkipMasquerade].
	SkipMasquerade bool
	// Created is when the pod was created, by the API server's clock, which counts seconds; zero
	// for a pod that has had a network before, such as one whose sandbox is recreated.
	Created time.Time
}

// SkipMasquerade is an annotation of namespaces: if "true", packets of its pods leave the cluster
// under the pods' own addresses. Where there are several pools of addresses it is one of pools,
// among which namespaces choose. It has no effect on pods, so that the right to create pods is not
// enough to set it.
const SkipMasquerade = "ipam.cilium.io/skip-masquerade"

// Config is what [Pods] is made from.
type Config struct {
	Client *k8s.Client
	// NodeName is this node's name in Kubernetes, Cluster the cluster's name.
	NodeName, Cluster string
	// Changed is notified of a pod whose labels or ports may be others than before. It is called
	// from the goroutines that follow, which it must not hold up.
	Changed func(k8s.Key)
	// Gated, if not nil, is notified of a pod that declares the gate [ReadinessGate], whenever
	// something is observed of it. It must not block.
	Gated func(k8s.Key)
	// WaitTimeout is how long Get waits for the watch before it asks the server, 300 ms by default.
	WaitTimeout time.Duration
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// pod is what is kept of a pod.
type pod struct {
	uid, static string // static is the UID by which the runtime knows a static pod
	account     string
	labels      map[string]string
	ports       []policy.NamedPort
	wishes      map[string]string // annotations about pools of addresses
	created     time.Time
	workload    Workload
	ips         []netip.Addr // none if it has no network of its own
	// gated: the pod's readiness depends on the gate; met: the gate is open.
	gated, met bool
}

// namespace is what is kept of a namespace.
type namespace struct {
	labels map[string]string
	plain  bool              // annotated with SkipMasquerade
	wishes map[string]string // annotations about pools of addresses
}

func (p *Pods) readNamespace(o metav1.Object) namespace {
	n := namespace{labels: o.GetLabels(), wishes: ippools.Wishes(o.GetAnnotations())}
	if v, ok := o.GetAnnotations()[SkipMasquerade]; ok {
		var err error
		if n.plain, err = strconv.ParseBool(v); err != nil {
			p.cfg.Log.Warn("an annotation of a namespace is neither true nor false and is ignored", "namespace", o.GetName(), "annotation", SkipMasquerade, "value", v)
		}
	}
	return n
}

// Pods is described with the package. Its methods are safe for concurrent use.
type Pods struct {
	cfg    Config
	synced chan struct{}

	mu         sync.Mutex
	pods       map[k8s.Key]pod
	namespaces map[string]namespace
	moved      chan struct{} // closed when something changes
}

// New returns Pods that know nothing until Run.
func New(cfg Config) (*Pods, error) {
	if cfg.Client == nil || cfg.NodeName == "" || cfg.Changed == nil {
		return nil, errors.New("pods: a client, the node's name and a receiver of changes are needed")
	}
	cfg.WaitTimeout = cmp.Or(cfg.WaitTimeout, 300*time.Millisecond)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	return &Pods{
		cfg: cfg, synced: make(chan struct{}), pods: map[k8s.Key]pod{}, namespaces: map[string]namespace{}, moved: make(chan struct{}),
	}, nil
}

// Run follows pods and namespaces until ctx ends, and returns nil then. It is called once.
func (p *Pods) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	synced := make(chan struct{}, 2)
	group.Go(func() error {
		return k8s.Follow(ctx, k8s.Kind(p.cfg.Client.Kube.CoreV1().RESTClient(), "pods", ""), k8s.Options[*corev1.Pod]{
			Log: p.cfg.Log, FieldSelector: "spec.nodeName=" + p.cfg.NodeName, Transform: slim,
		}, k8s.Handler[*corev1.Pod]{Upsert: p.upsertPod, Delete: p.deletePod, Synced: func() { synced <- struct{}{} }})
	})
	group.Go(func() error {
		return k8s.Follow(ctx, p.cfg.Client.MetadataOf(corev1.SchemeGroupVersion.WithResource("namespaces")), k8s.Options[*metav1.PartialObjectMetadata]{
			Log: p.cfg.Log, Transform: slimNamespace,
		}, k8s.Handler[*metav1.PartialObjectMetadata]{Upsert: p.upsertNamespace, Delete: p.deleteNamespace, Synced: func() { synced <- struct{}{} }})
	})
	for range cap(synced) {
		select {
		case <-synced:
		case <-ctx.Done():
		}
	}
	if ctx.Err() == nil {
		close(p.synced)
	}
	if err := group.Wait(); err != nil {
		return fmt.Errorf("pods: %w", err)
	}
	return nil
}

// Synced is closed when all pods of the node and all namespaces have been observed.
func (p *Pods) Synced() <-chan struct{} { return p.synced }

// slim drops what is not needed of a pod.
func slim(o *corev1.Pod) *corev1.Pod {
	kept := ippools.Wishes(o.Annotations)
	if hash := StaticUID(o); hash != "" {
		kept = with(with(kept, hashAnnotation, hash), mirrorAnnotation, hash)
	}
	o.Annotations = kept
	o.OwnerReferences = slices.DeleteFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return r.Controller == nil || !*r.Controller })
	containers := func(list []corev1.Container) []corev1.Container {
		out := make([]corev1.Container, len(list))
		for i, c := range list {
			out[i].Ports, out[i].RestartPolicy = c.Ports, c.RestartPolicy
		}
		return out
	}
	gates := slices.DeleteFunc(o.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType != ReadinessGate })
	conditions := slices.DeleteFunc(o.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type != ReadinessGate })
	o.Spec = corev1.PodSpec{
		ReadinessGates: gates,
		NodeName:       o.Spec.NodeName, ServiceAccountName: o.Spec.ServiceAccountName, HostNetwork: o.Spec.HostNetwork,
		Containers: containers(o.Spec.Containers), InitContainers: containers(o.Spec.InitContainers),
	}
	o.Status = corev1.PodStatus{Conditions: conditions, Phase: o.Status.Phase, PodIP: o.Status.PodIP, PodIPs: o.Status.PodIPs}
	return o
}

// slimNamespace drops what is not needed of a namespace.
func slimNamespace(o *metav1.PartialObjectMetadata) *metav1.PartialObjectMetadata {
	kept := ippools.Wishes(o.Annotations)
	if plain, ok := o.Annotations[SkipMasquerade]; ok {
		kept = with(kept, SkipMasquerade, plain)
	}
	o.Annotations = kept
	return o
}

// with adds an entry to a map that may be nil.
func with(m map[string]string, key, value string) map[string]string {
	if m == nil {
		m = map[string]string{}
	}
	m[key] = value
	return m
}

// hashAnnotation holds the UID by which kubelet and runtime know a static pod; the object in the
// API, its mirror, has another, and yet another after a deletion: the kubelet recreates it.
// mirrorAnnotation, with the same value, makes it a mirror. Any client can set the first; a pod
// with the second is not run by a kubelet that has no such static pod.
const (
	hashAnnotation   = "kubernetes.io/config.hash"
	mirrorAnnotation = "kubernetes.io/config.mirror"
)

// StaticUID returns the UID by which kubelet and runtime know the static pod that a Pod is the
// mirror of; empty if it is a pod of its own.
func StaticUID(o *corev1.Pod) string {
	if hash := o.Annotations[hashAnnotation]; hash == o.Annotations[mirrorAnnotation] {
		return hash
	}
	return ""
}

func read(o *corev1.Pod) pod {
	out := pod{uid: string(o.UID), static: StaticUID(o), account: o.Spec.ServiceAccountName, labels: o.Labels, wishes: ippools.Wishes(o.Annotations),
		workload: workloadOf(o), ips: addressesOf(o)}
	if o.Status.PodIP == "" {
		out.created = o.CreationTimestamp.Time
	}
	out.gated = slices.ContainsFunc(o.Spec.ReadinessGates, func(g corev1.PodReadinessGate) bool { return g.ConditionType == ReadinessGate })
	out.met = slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == ReadinessGate && c.Status == corev1.ConditionTrue
	})
	add := func(list []corev1.ContainerPort) {
		for _, c := range list {
			proto := uint8(6)
			switch c.Protocol {
			case corev1.ProtocolUDP:
				proto = 17
			case corev1.ProtocolSCTP:
				proto = 132
			}
			if c.Name != "" && c.ContainerPort > 0 && c.ContainerPort < 65536 {
				out.ports = append(out.ports, policy.NamedPort{Name: c.Name, Proto: proto, Port: uint16(c.ContainerPort)})
			}
		}
	}
	for _, c := range o.Spec.Containers {
		add(c.Ports)
	}
	for _, c := range o.Spec.InitContainers {
		// An init container that restarts is a sidecar.
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			add(c.Ports)
		}
	}
	return out
}

// addressesOf returns the addresses that a pod has according to its object.
func addressesOf(o *corev1.Pod) (ips []netip.Addr) {
	if !k8s.Networked(o) {
		return nil
	}
	for _, ip := range o.Status.PodIPs {
		if a, err := netip.ParseAddr(ip.IP); err == nil {
			ips = append(ips, a.Unmap())
		}
	}
	return ips
}

// Address is an address that a pod has according to an object.
type Address struct {
	IP  netip.Addr
	Pod k8s.Key
	// UID is the pod's, in one of its forms; empty if the object does not name it.
	UID string
}

// Addresses returns the addresses that pods of the node have according to their objects, as far as
// the watch has shown, in no order.
func (p *Pods) Addresses() (out []Address) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for key, o := range p.pods {
		for _, ip := range o.ips {
			out = append(out, Address{ip, key, o.uid})
		}
	}
	return out
}

// Has reports whether the watch has shown a pod with a UID; the empty one is any.
func (p *Pods) Has(key k8s.Key, uid string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	o, found := p.pods[key]
	return found && o.matches(uid)
}

func (p *Pods) upsertPod(o *corev1.Pod) {
	key, now := k8s.KeyOf(o), read(o)
	p.mu.Lock()
	old, known := p.pods[key]
	p.pods[key] = now
	p.announce()
	p.mu.Unlock()
	if now.gated && p.cfg.Gated != nil {
		p.cfg.Gated(key)
	}
	if known && old.uid == now.uid && old.account == now.account && maps.Equal(old.labels, now.labels) && slices.Equal(old.ports, now.ports) {
		return
	}
	p.cfg.Changed(key)
}

func (p *Pods) deletePod(key k8s.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.pods, key)
}

func (p *Pods) upsertNamespace(o *metav1.PartialObjectMetadata) {
	now := p.readNamespace(o)
	p.mu.Lock()
	old, known := p.namespaces[o.Name]
	p.namespaces[o.Name] = now
	p.announce()
	var changed []k8s.Key
	if !known || !maps.Equal(old.labels, now.labels) {
		for key := range p.pods {
			if key.Namespace == o.Name {
				changed = append(changed, key)
			}
		}
	}
	p.mu.Unlock()
	for _, key := range changed {
		p.cfg.Changed(key)
	}
}

func (p *Pods) deleteNamespace(key k8s.Key) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.namespaces, key.Name)
}

// announce wakes those who wait. It must be called with mu held.
func (p *Pods) announce() {
	close(p.moved)
	p.moved = make(chan struct{})
}

// matches reports whether a pod is the one that a runtime calls by a UID; the empty UID is any.
func (o pod) matches(uid string) bool { return uid == "" || uid == o.uid || uid == o.static }

// info makes the answer.
func (p *Pods) info(key k8s.Key, o pod, ns namespace) (Info, error) {
	set, err := labels.PodLabels(labels.Pod{
		Namespace: key.Namespace, ServiceAccount: o.account, Cluster: p.cfg.Cluster, Labels: o.labels, NamespaceLabels: ns.labels,
	})
	return Info{UID: o.uid, Runtime: cmp.Or(o.static, o.uid), Labels: set, Ports: o.ports, SkipMasquerade: ns.plain, Created: o.created, Choice: ippools.Pod{
		Annotations: o.wishes, Labels: o.labels, NamespaceAnnotations: ns.wishes, NamespaceLabels: ns.labels,
	}}, err
}

// SkipsMasquerade reports whether a namespace has the annotation [SkipMasquerade], as far as the
// watch has shown.
func (p *Pods) SkipsMasquerade(name string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.namespaces[name].plain
}

// Workload returns what made a pod, as far as the watch has shown.
func (p *Pods) Workload(key k8s.Key) Workload {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.pods[key].workload
}

// Known returns what the watch has shown of a pod. An empty uid is that of any pod of the name.
func (p *Pods) Known(key k8s.Key, uid string) (info Info, ok bool, err error) {
	p.mu.Lock()
	o, found := p.pods[key]
	ns, foundNS := p.namespaces[key.Namespace]
	p.mu.Unlock()
	if !found || !foundNS || !o.matches(uid) {
		return Info{}, false, nil
	}
	info, err = p.info(key, o, ns)
	return info, err == nil, err
}

// Get returns what the endpoint of a pod is to have. An empty uid is that of any pod of the name. A
// pod that Kubernetes does not have is an error that wraps ErrNotFound; so is one that was replaced
// by another of the same name.
func (p *Pods) Get(ctx context.Context, key k8s.Key, uid string) (Info, error) {
	timeout := time.NewTimer(p.cfg.WaitTimeout)
	defer timeout.Stop()
	for {
		p.mu.Lock()
		moved := p.moved
		p.mu.Unlock()
		if info, ok, err := p.Known(key, uid); ok || err != nil {
			return info, err
		}
		select {
		case <-moved:
			continue
		case <-ctx.Done():
			return Info{}, fmt.Errorf("pod %s: %w", key, ctx.Err())
		case <-timeout.C:
		}
		return p.ask(ctx, key, uid)
	}
}

// ask reads a pod and its namespace from the server.
func (p *Pods) ask(ctx context.Context, key k8s.Key, uid string) (Info, error) {
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	o, err := p.cfg.Client.Urgent.CoreV1().Pods(key.Namespace).Get(ctx, key.Name, metav1.GetOptions{})
	if apierrors.IsNotFound(err) {
		return Info{}, fmt.Errorf("pod %s: %w", key, ErrNotFound)
	}
	if err != nil {
		return Info{}, fmt.Errorf("read pod %s: %w", key, err)
	}
	now := read(o)
	switch {
	case !now.matches(uid):
		return Info{}, fmt.Errorf("pod %s with UID %s was replaced by one with UID %s: %w", key, uid, now.uid, ErrNotFound)
	case o.Spec.NodeName != p.cfg.NodeName:
		return Info{}, fmt.Errorf("pod %s belongs to node %q, not to this one: %w", key, o.Spec.NodeName, ErrNotFound)
	}
	p.mu.Lock()
	ns, known := p.namespaces[key.Namespace]
	p.mu.Unlock()
	if !known {
		got, err := p.cfg.Client.Urgent.CoreV1().Namespaces().Get(ctx, key.Namespace, metav1.GetOptions{})
		if err != nil {
			return Info{}, fmt.Errorf("read namespace %s: %w", key.Namespace, err)
		}
		ns = p.readNamespace(got)
	}
	return p.info(key, now, ns)
}
