package nodes

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/netip"
	"reflect"
	"slices"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/pkg/retry"
)

// LabelFilterAnnotation on a CiliumNode identifies the filter by which the node's agent makes
// identities of labels; see labels.Filter.Fingerprint.
const LabelFilterAnnotation = "network.hawser.net/label-filter"

// ManagementAnnotation on a CiliumNode is who makes identities according to the node's agent: an
// identity.Management.
const ManagementAnnotation = "network.hawser.net/identity-management"

// Sink receives other nodes.
type Sink interface {
	Observe(ctx context.Context, n node.Node) error
	Forget(ctx context.Context, k node.Key) error
	// WaitApplied waits until what was handed over before is applied.
	WaitApplied(ctx context.Context) error
}

// Discard is a Sink that ignores everything.
type Discard struct{}

// Observe returns nil.
func (Discard) Observe(context.Context, node.Node) error { return nil }

// Forget returns nil.
func (Discard) Forget(context.Context, node.Key) error { return nil }

// WaitApplied returns nil.
func (Discard) WaitApplied(context.Context) error { return nil }

// Config is what [Nodes] is made from.
type Config struct {
	// Self names the local node; the objects of this cluster are nodes of Self.Cluster, with the
	// number ClusterID.
	Self      node.Key
	ClusterID uint32
	// WritePodCIDRs has the local node's pod CIDRs written to its object. Without it they are the
	// operator's to write.
	WritePodCIDRs bool
	// LabelFilter, if not empty, is the fingerprint of the filter by which the agent makes
	// identities of labels. It is written into the local node's object for the operator, as
	// [LabelFilterAnnotation].
	LabelFilter string
	// Management, if not empty, is written there too, as [ManagementAnnotation].
	Management string
	// Fill, if not nil, writes what else is to be in the local node's object, which is made for the
	// first time or is a copy of the one that there is; it must not change what the two share. It
	// is called whenever the object may be written: see [Nodes.Refresh].
	Fill func(o *v2.CiliumNode, made bool)
	// Own, if not nil, is notified of the local node's object whenever it has changed; it must not
	// change the object.
	Own func(*v2.CiliumNode)
	// Retry is the pause after a write that failed, 5 seconds by default.
	Retry time.Duration
	// UndoInterval is the least time between two writes that undo what another writer has made of
	// the local node's object, a minute by default: two nodes of one name would undo each other's
	// as fast as they can.
	UndoInterval time.Duration
	// Namesake, if not nil, is called with what another writer has made of the object within
	// UndoInterval of an undoing, as another node of this name does; it must not block.
	Namesake func(node.Node)
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Nodes is described with the package. Its methods are safe for concurrent use.
type Nodes struct {
	cfg     Config
	client  rest.Interface
	kube    *k8s.Client
	sink    Sink
	synced  chan struct{}
	trigger chan struct{}

	mu   sync.Mutex
	want *node.Node
	have *v2.CiliumNode // the local node's object as the watch delivered it; nil if there is none

	// Of the goroutine that writes:
	published *node.Node // what the object was seen or written to have
	replaced  string     // the version of the object that was overwritten last
	undone    time.Time  // when another writer's change was last undone
}

// New returns Nodes that do nothing until Run.
func New(cfg Config, client *k8s.Client, sink Sink) (*Nodes, error) {
	if _, err := node.ParseKey(cfg.Self.String()); err != nil {
		return nil, fmt.Errorf("local node: %w", err)
	}
	cfg.Retry = cmp.Or(cfg.Retry, 5*time.Second)
	cfg.UndoInterval = cmp.Or(cfg.UndoInterval, time.Minute)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	c, err := client.For(v2.SchemeGroupVersion(), v2.AddToScheme)
	if err != nil {
		return nil, err
	}
	return &Nodes{cfg: cfg, client: c, kube: client, sink: sink, synced: make(chan struct{}), trigger: make(chan struct{}, 1)}, nil
}

// Announce sets what is published of the local node.
func (n *Nodes) Announce(local node.Node) error {
	if local.Key() != n.cfg.Self {
		return fmt.Errorf("cannot announce node %v: this is %v", local.Key(), n.cfg.Self)
	}
	n.mu.Lock()
	n.want = &local
	n.mu.Unlock()
	n.touch()
	return nil
}

// Refresh has the local node's object written if it is not as it should be.
func (n *Nodes) Refresh() { n.touch() }

func (n *Nodes) touch() {
	retry.Notify(n.trigger)
}

// WaitSynced waits until the sink was notified of all nodes that existed when Run began.
func (n *Nodes) WaitSynced(ctx context.Context) error {
	select {
	case <-n.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the list of nodes: %w", context.Cause(ctx))
	}
}

// Run follows the nodes and writes the local one's object until ctx ends, and returns nil then. It
// is called once.
func (n *Nodes) Run(ctx context.Context) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var wg sync.WaitGroup
	defer wg.Wait()
	wg.Go(func() { n.write(ctx) })
	return k8s.Follow(ctx, k8s.Kind(n.client, v2.ResourceNodes, ""), k8s.Options[*v2.CiliumNode]{Log: n.cfg.Log}, k8s.Handler[*v2.CiliumNode]{
		Upsert: func(o *v2.CiliumNode) { n.observe(ctx, o) },
		Delete: func(key k8s.Key) { n.gone(ctx, key) },
		Synced: func() {
			if n.sink.WaitApplied(ctx) == nil {
				close(n.synced)
			}
		},
	})
}

func (n *Nodes) observe(ctx context.Context, o *v2.CiliumNode) {
	if o.Name == n.cfg.Self.Name {
		n.mu.Lock()
		n.have = o
		n.mu.Unlock()
		n.touch()
		if n.cfg.Own != nil {
			n.cfg.Own(o)
		}
		return
	}
	other, err := Read(o, n.cfg.Self.Cluster, n.cfg.ClusterID)
	if err == nil {
		err = n.sink.Observe(ctx, other)
	}
	if err != nil && ctx.Err() == nil {
		n.cfg.Log.Warn("ignored an invalid node; its last valid version stays", "node", o.Name, "error", err)
	}
}

func (n *Nodes) gone(ctx context.Context, key k8s.Key) {
	if key.Name == n.cfg.Self.Name {
		n.mu.Lock()
		n.have = nil
		n.mu.Unlock()
		n.touch()
		return
	}
	_ = n.sink.Forget(ctx, node.Key{Cluster: n.cfg.Self.Cluster, Name: key.Name}) // fails at the end only
}

// maxConflicts is how many conflicts in a row are tolerated before they are logged.
const maxConflicts = 3

// write reconciles the local node's object whenever it or the wanted state has changed.
func (n *Nodes) write(ctx context.Context) {
	select {
	case <-n.synced:
	case <-ctx.Done():
		return
	}
	var retry <-chan time.Time
	warned, conflicts := false, 0
	for {
		wait, err := n.syncObject(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			if warned {
				n.cfg.Log.Info("published this node")
			}
			warned, conflicts, retry = false, 0, nil
			if wait > 0 {
				retry = time.After(wait)
			}
		default:
			if errors.Is(err, errConflict) {
				conflicts++
			}
			// The operator writes into an object as soon as it is there: to meet it once or twice
			// is nothing to publish.
			if !warned && (conflicts == 0 || conflicts > maxConflicts) {
				warned = true
				n.cfg.Log.Warn("cannot publish this node yet", "error", err)
			}
			retry = time.After(n.cfg.Retry)
		}
		select {
		case <-ctx.Done():
			return
		case <-n.trigger:
		case <-retry:
		}
	}
}

// syncObject writes the local node's object if it is not as it should be, and may be written now.
// Otherwise it returns how long to wait.
func (n *Nodes) syncObject(ctx context.Context) (wait time.Duration, err error) {
	n.mu.Lock()
	want, have := n.want, n.have
	n.mu.Unlock()
	if want == nil {
		return 0, nil
	}
	ctx, cancel := context.WithTimeout(ctx, k8s.RequestTimeout)
	defer cancel()
	if have == nil {
		return 0, n.create(ctx, *want)
	}
	if have.ResourceVersion != "" && have.ResourceVersion == n.replaced {
		return 0, nil // the watch is behind, and wakes this goroutine when it is not
	}
	o := have.DeepCopy()
	n.fill(o, *want)
	if n.cfg.Fill != nil {
		n.cfg.Fill(o, false)
	}
	if reflect.DeepEqual(o, have) {
		n.published = want
		return 0, nil
	}
	undo := n.published != nil && n.published.Equal(*want) && !saysSame(o, have)
	if wait = time.Until(n.undone.Add(n.cfg.UndoInterval)); undo && wait > 0 {
		if other, err := Read(have, n.cfg.Self.Cluster, n.cfg.ClusterID); err == nil && n.cfg.Namesake != nil {
			n.cfg.Namesake(other)
		}
		return wait, nil
	}
	err = n.client.Put().Resource(v2.ResourceNodes).Name(o.Name).Body(o).Do(ctx).Error()
	if apierrors.IsConflict(err) || apierrors.IsNotFound(err) {
		// The watch shows which write came first, and wakes this goroutine; if it did before this
		// answer, the next attempt sees it.
		return 0, errors.Join(errConflict, err)
	}
	if err != nil {
		return 0, fmt.Errorf("update CiliumNode %s: %w", o.Name, err)
	}
	n.published, n.replaced = want, have.ResourceVersion
	if undo {
		n.undone = time.Now()
	}
	return 0, nil
}

// create makes the local node's object.
func (n *Nodes) create(ctx context.Context, want node.Node) error {
	o := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: n.cfg.Self.Name, Labels: want.Labels}}
	owner, err := n.kube.Kube.CoreV1().Nodes().Get(ctx, n.cfg.Self.Name, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("look at the Kubernetes node %s: %w", n.cfg.Self.Name, err)
	}
	o.OwnerReferences = []metav1.OwnerReference{{APIVersion: "v1", Kind: "Node", Name: owner.Name, UID: owner.UID}}
	n.fill(o, want)
	if n.cfg.Fill != nil {
		n.cfg.Fill(o, true)
	}
	err = n.client.Post().Resource(v2.ResourceNodes).Body(o).Do(ctx).Error()
	if err != nil && !apierrors.IsAlreadyExists(err) { // the watch is behind
		return fmt.Errorf("create CiliumNode %s: %w", o.Name, err)
	}
	return nil
}

// saysSame reports whether two objects say the same of a node, apart from what others than its
// agent write.
func saysSame(a, b *v2.CiliumNode) bool {
	return a.Spec.BootID == b.Spec.BootID && reflect.DeepEqual(a.Spec.Addresses, b.Spec.Addresses) &&
		a.Spec.HealthAddressing == b.Spec.HealthAddressing && a.Spec.IngressAddressing == b.Spec.IngressAddressing
}

var errConflict = errors.New("this node's CiliumNode was changed by another client at the same time")

// annotate gives an object an annotation, if the value is not empty. What o shares with others is
// not changed.
func annotate(o *v2.CiliumNode, name, value string) {
	if value == "" || o.Annotations[name] == value {
		return
	}
	o.Annotations = maps.Clone(o.Annotations)
	if o.Annotations == nil {
		o.Annotations = map[string]string{}
	}
	o.Annotations[name] = value
}

// fill writes this node's data into an object.
func (n *Nodes) fill(o *v2.CiliumNode, local node.Node) {
	o.Spec.Addresses = nil
	for _, a := range local.Addresses {
		o.Spec.Addresses = append(o.Spec.Addresses, v2.NodeAddress{Type: string(a.Type), IP: a.IP.String()})
	}
	text := func(a netip.Addr) string {
		if !a.IsValid() {
			return ""
		}
		return a.String()
	}
	annotate(o, LabelFilterAnnotation, n.cfg.LabelFilter)
	annotate(o, ManagementAnnotation, n.cfg.Management)
	o.Spec.BootID = local.BootID
	o.Spec.Encryption.Key = int(local.EncryptionKey)
	o.Spec.HealthAddressing = v2.NodeServiceAddress{IPv4: text(local.IPv4HealthIP), IPv6: text(local.IPv6HealthIP)}
	o.Spec.IngressAddressing = v2.NodeServiceAddress{IPv4: text(local.IPv4IngressIP), IPv6: text(local.IPv6IngressIP)}
	if n.cfg.WritePodCIDRs {
		o.Spec.IPAM.PodCIDRs = nil
		for _, p := range local.PodCIDRs() {
			o.Spec.IPAM.PodCIDRs = append(o.Spec.IPAM.PodCIDRs, p.String())
		}
	}
}

// Read turns an object into a node of a cluster. It checks the form of what it reads, not whether
// the node makes sense: see [node.Node.Validate].
func Read(o *v2.CiliumNode, cluster string, clusterID uint32) (node.Node, error) {
	n := node.Node{
		Name: o.Name, Cluster: cluster, ClusterID: clusterID, Source: "custom-resource", Labels: o.Labels, BootID: o.Spec.BootID,
	}
	var errs []error
	addr := func(what, text string) netip.Addr {
		if text == "" {
			return netip.Addr{}
		}
		ip, err := netip.ParseAddr(text)
		if err != nil || ip.Zone() != "" {
			errs = append(errs, fmt.Errorf("%s: %q is no address", what, text))
			return netip.Addr{}
		}
		return ip.Unmap()
	}
	for _, a := range o.Spec.Addresses {
		switch t := node.AddressType(a.Type); t {
		case node.InternalIP, node.ExternalIP, node.RouterIP:
			if ip := addr("spec.addresses", a.IP); ip.IsValid() {
				n.Addresses = append(n.Addresses, node.Address{Type: t, IP: ip})
			}
		}
	}
	cidrs := func(what string, list []string) {
		for _, text := range list {
			p, err := netip.ParsePrefix(text)
			if err != nil || p.Addr().Is4In6() {
				errs = append(errs, fmt.Errorf("%s: %q is no CIDR", what, text))
				continue
			}
			to := &n.IPv6PodCIDRs
			if p.Addr().Is4() {
				to = &n.IPv4PodCIDRs
			}
			if p = p.Masked(); !slices.Contains(*to, p) {
				*to = append(*to, p)
			}
		}
	}
	cidrs("spec.ipam.podCIDRs", o.Spec.IPAM.PodCIDRs)
	for _, a := range o.Spec.IPAM.Pools.Allocated {
		cidrs("spec.ipam.pools.allocated", a.CIDRs)
	}
	n.IPv4HealthIP, n.IPv6HealthIP = addr("spec.health.ipv4", o.Spec.HealthAddressing.IPv4), addr("spec.health.ipv6", o.Spec.HealthAddressing.IPv6)
	n.IPv4IngressIP, n.IPv6IngressIP = addr("spec.ingress.ipv4", o.Spec.IngressAddressing.IPv4), addr("spec.ingress.ipv6", o.Spec.IngressAddressing.IPv6)
	if k := o.Spec.Encryption.Key; k > 0 && k <= 255 {
		n.EncryptionKey = uint8(k)
	}
	if len(n.Addresses) == 0 {
		errs = append(errs, errors.New("spec.addresses has no address of the node"))
	}
	return n, errors.Join(errs...)
}
