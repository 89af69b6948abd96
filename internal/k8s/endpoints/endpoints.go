package endpoints

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/pods"
	"github.com/hawser-net/hawser/pkg/retry"
)

// Config is what [Endpoints] is made from.
type Config struct {
	// Hosts are this node's addresses. The first is published as the node of its pods; objects that
	// name any of them are this node's.
	Hosts []netip.Addr
	// Slices has other nodes' pods taken from CiliumEndpointSlices.
	Slices bool
	// Shared means that the operator writes status.identity of this node's objects too. Then an
	// identity is written when the endpoint has got it, and what the operator makes of that later
	// stands.
	Shared bool
	// Silent has no object written for this node's pods, and none read: the operator makes
	// slices without them, or a key-value store does without both.
	Silent bool
	// Accept reports whether a pod of another node may have an identity.
	Accept func(identity.ID) error
	// OnPublished, if not nil, is called with a pod of this node when its object was observed from
	// the API server, or Set changed it; see Known. It must neither block nor call back.
	OnPublished func(k8s.Key)
	// Observed, if not nil, is called once, when everything was observed that existed when Run
	// began, and before anything is written. It returns at once when ctx ends.
	Observed func(ctx context.Context)
	// OnIdentity, if not nil, is called with how long ago a pod was created that has got its first
	// identity here, see latency.go.
	OnIdentity func(age time.Duration)
	// Interval is how often this node's objects are compared with what they should be, 10
	// seconds by default.
	Interval time.Duration
	// Log receives what is worth knowing; nil discards it.
	Log *slog.Logger
}

// Endpoints is described with the package. Its methods are safe for concurrent use.
type Endpoints struct {
	cfg   Config
	alpha rest.Interface // cilium.io/v2alpha1
	// urgent are the requests that pods wait for, limited all others.
	urgent, limited requests
	index           *index
	began           time.Time
	synced          chan struct{}
	// reached is up to where the objects were observed that describe other nodes' pods.
	reached atomic.Uint64

	mu     sync.Mutex
	locals map[k8s.Key][]Local // this node's endpoints of a name, in the order in which they came
	want   map[k8s.Key]Local   // of each, the one that the object describes
	exists map[k8s.Key]string  // UID of the pod of a name, read from the API server when two were known
	// mirrors are the UIDs of the objects of static pods.
	mirrors map[staticPod]string
	have    map[k8s.Key]object // this node's objects, as the watch delivered them
	said    map[k8s.Key]word
	made    map[k8s.Key]creation
	lost    map[k8s.Key]string // UID of the pod whose object another client deleted
	counted map[k8s.Key]string // UID of the pod with which OnIdentity was called
	ended   map[k8s.Key]bool   // its endpoint was here, and is gone; until the object is gone, too
	// relabelled are the labels last written to an object, and when.
	relabelled map[k8s.Key]relabelling
	// published is what objects say of pods of this node, wanted or not, by the object: a slice, or
	// "" for the pod's CiliumEndpoint.
	published map[k8s.Key]map[string]publication
	sliced    map[string][]pods.Address // what slices say of this node's pods, by slice
	dirty     map[k8s.Key]bool
	trigger   chan struct{}
}

// New returns Endpoints that do nothing until Run.
func New(cfg Config, client *k8s.Client, cache Cache) (*Endpoints, error) {
	if len(cfg.Hosts) == 0 {
		return nil, errors.New("endpoints: this node has no address to publish")
	}
	if cfg.Accept == nil {
		return nil, errors.New("endpoints: Accept is not set")
	}
	cfg.Interval = cmp.Or(cfg.Interval, 10*time.Second)
	cfg.Log = cmp.Or(cfg.Log, slog.New(slog.DiscardHandler))
	alpha, err := client.For(v2alpha1.SchemeGroupVersion(), v2alpha1.AddToScheme)
	if err != nil {
		return nil, err
	}
	return &Endpoints{
		cfg: cfg, alpha: alpha, urgent: requests{client.UrgentV2, client.Urgent.CoreV1()}, limited: requests{client.V2, client.Kube.CoreV1()},
		index: newIndex(cache, cfg.Log), began: time.Now(), synced: make(chan struct{}),
		locals: map[k8s.Key][]Local{}, want: map[k8s.Key]Local{}, exists: map[k8s.Key]string{}, mirrors: map[staticPod]string{}, have: map[k8s.Key]object{}, said: map[k8s.Key]word{},
		made: map[k8s.Key]creation{}, lost: map[k8s.Key]string{}, counted: map[k8s.Key]string{}, ended: map[k8s.Key]bool{}, relabelled: map[k8s.Key]relabelling{}, published: map[k8s.Key]map[string]publication{},
		sliced: map[string][]pods.Address{}, dirty: map[k8s.Key]bool{}, trigger: make(chan struct{}, 1),
	}, nil
}

// Set records that this node has an endpoint, or that it has changed. An endpoint that is no pod's
// has no object.
func (e *Endpoints) Set(l Local) {
	if err := l.Validate(); err != nil {
		e.cfg.Log.Debug("an endpoint is not published to other nodes", "reason", err)
		return
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	key := l.Key()
	l.runtime = l.UID
	if uid, ok := e.mirrors[staticPod{key, l.UID}]; ok {
		l.UID = uid
	}
	list := e.locals[key]
	if i := slices.IndexFunc(list, l.sameEndpoint); i >= 0 {
		list[i] = l
	} else {
		if !slices.ContainsFunc(list, func(o Local) bool { return o.UID == l.UID }) {
			delete(e.exists, key) // the answer is older than this pod
		}
		list = append(list, l)
	}
	e.locals[key] = list
	e.choose(key)
	if e.cfg.OnPublished != nil {
		e.cfg.OnPublished(key)
	}
}

// staticPod is a static pod by its name and the UID by which the runtime knows it.
type staticPod struct {
	key     k8s.Key
	runtime string
}

// Mirror records that the object of the static pod of a name, which the runtime knows by a UID, has
// another UID. The kubelet recreates it when it is deleted, while the pod goes on. It has no effect
// on a regular pod, whose UIDs are the same, and on pods of other names.
func (e *Endpoints) Mirror(key k8s.Key, runtime, uid string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	static := staticPod{key, runtime}
	if runtime == uid || e.mirrors[static] == uid {
		return
	}
	e.mirrors[static] = uid
	list, moved := e.locals[key], false
	for i := range list {
		if list[i].runtime == runtime {
			list[i].UID, moved = uid, true
		}
	}
	if moved {
		delete(e.exists, key)
		e.choose(key)
	}
}

// Remove records that an endpoint is gone. Another one of its pod, or of a pod of the same name, is
// published instead.
func (e *Endpoints) Remove(l Local) {
	e.mu.Lock()
	defer e.mu.Unlock()
	key := l.Key()
	list := slices.DeleteFunc(e.locals[key], func(o Local) bool { return o.Number == l.Number })
	if !slices.ContainsFunc(list, func(o Local) bool { return o.runtime == l.UID }) {
		delete(e.mirrors, staticPod{key, l.UID})
	}
	if e.locals[key] = list; len(list) == 0 {
		delete(e.locals, key)
		delete(e.exists, key)
	}
	e.choose(key)
}

// choose decides which of the endpoints of a name the object describes: of the pod that exists
// according to the API server, if it was asked, else of the pod that came last, and of its
// interfaces the one with the lowest ID. It must be called with mu held.
func (e *Endpoints) choose(key k8s.Key) {
	list := e.locals[key]
	if len(list) == 0 {
		if _, ok := e.want[key]; ok {
			delete(e.want, key)
			delete(e.relabelled, key)
			delete(e.made, key)
			delete(e.lost, key)
			delete(e.counted, key)
			if !e.cfg.Silent {
				e.ended[key] = true
			}
			e.touch(key)
		}
		return
	}
	uid := list[len(list)-1].UID
	if known := e.exists[key]; slices.ContainsFunc(list, func(l Local) bool { return l.UID == known }) {
		uid = known
	}
	var best Local
	for _, l := range list {
		if l.UID == uid && (best.UID == "" || l.Number < best.Number) {
			best = l
		}
	}
	e.want[key] = best
	delete(e.ended, key)
	e.touch(key)
}

// touch has a key looked at soon. It must be called with mu held.
func (e *Endpoints) touch(key k8s.Key) {
	e.dirty[key] = true
	retry.Notify(e.trigger)
}

// WaitSynced waits until everything was observed that existed when Run began.
func (e *Endpoints) WaitSynced(ctx context.Context) error {
	select {
	case <-e.synced:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("waiting for the endpoints of other nodes: %w", context.Cause(ctx))
	}
}

// Workload returns what made a pod of another node that has an address, as far as it follows from
// the labels of its CiliumEndpoint; otherwise the zero value. Slices have no labels.
func (e *Endpoints) Workload(at netip.Addr, pod k8s.Key) pods.Workload {
	return e.index.workloadAt(at, pod)
}

// Reached returns up to which resource version the cache observed other nodes' pods, of
// CiliumEndpointSlices if these are followed, else of CiliumEndpoints; 0 for none.
func (e *Endpoints) Reached() uint64 { return e.reached.Load() }

func (e *Endpoints) advance(version string) { k8s.Advance(&e.reached, version) }

// Run follows the objects and writes this node's until ctx ends, and returns nil then. It is called
// once, when Set was called for the endpoints from before the agent's start: objects of this node
// that are not wanted are deleted, unless their pods run here all the same.
func (e *Endpoints) Run(ctx context.Context) error {
	group, ctx := errgroup.WithContext(ctx)
	listed := make(chan struct{})
	follow := func() error {
		opts := k8s.Options[*v2.CiliumEndpoint]{Log: e.cfg.Log, Transform: slim}
		if e.cfg.Slices {
			opts.FieldSelector = e.ownSelector(ctx)
		}
		return k8s.Follow(ctx, k8s.Kind(e.limited.objects, v2.ResourceEndpoints, ""), opts, e.objects(func() { close(listed) }))
	}
	if e.cfg.Slices {
		group.Go(func() error {
			return k8s.Follow(ctx, k8s.Kind(e.alpha, v2alpha1.ResourceEndpointSlices, ""), k8s.Options[*v2alpha1.CiliumEndpointSlice]{Log: e.cfg.Log},
				e.slices(func() { close(e.synced) }))
		})
	}
	if e.cfg.Silent {
		close(listed)
	} else {
		group.Go(follow)
	}
	group.Go(func() error {
		select {
		case <-listed:
		case <-ctx.Done():
			return nil
		}
		if !e.cfg.Slices {
			close(e.synced)
		}
		if e.WaitSynced(ctx) != nil {
			return nil
		}
		if e.cfg.Observed != nil {
			e.cfg.Observed(ctx)
		}
		if e.cfg.Silent {
			<-ctx.Done()
			return nil
		}
		return e.write(ctx)
	})
	return group.Wait()
}

// slim drops what neither claims nor this node's own objects need.
func slim(o *v2.CiliumEndpoint) *v2.CiliumEndpoint {
	created, said := o.Annotations[CreatedAnnotation]
	o.Annotations = nil
	if said {
		o.Annotations = map[string]string{CreatedAnnotation: created}
	}
	o.Status.Controllers, o.Status.Health, o.Status.Log, o.Status.Policy = nil, nil, nil, nil
	return o
}

// own reports whether an object is this node's.
func (e *Endpoints) own(n *v2.EndpointNetworking) bool {
	if n == nil {
		return false
	}
	host, err := netip.ParseAddr(n.NodeIP)
	return err == nil && slices.Contains(e.cfg.Hosts, host.Unmap())
}

// objects returns the handler of CiliumEndpoints.
func (e *Endpoints) objects(synced func()) k8s.Handler[*v2.CiliumEndpoint] {
	h := k8s.Handler[*v2.CiliumEndpoint]{Upsert: e.observe, Delete: e.gone, Synced: synced}
	if !e.cfg.Slices {
		h.Listing, h.Listed, h.Reached = e.index.beginList, func(string) { e.index.endList() }, e.advance
	}
	return h
}

// observe is called with every node's objects.
func (e *Endpoints) observe(o *v2.CiliumEndpoint) {
	key := k8s.KeyOf(o)
	who := "endpoint/" + key.String()
	own := e.own(o.Status.Networking)
	e.mu.Lock()
	_, wanted := e.want[key]
	if own || wanted {
		e.have[key] = seen(o, own)
		e.touch(key)
	} else {
		delete(e.have, key)
	}
	e.mu.Unlock()
	switch {
	case e.cfg.Slices:
	case own:
		var id int64
		if o.Status.Identity != nil {
			id = o.Status.Identity.ID
		}
		e.observePublished(key, "", id, o.Status.Networking)
	default:
		e.withdrawn(key, "")
	}
	if own || e.cfg.Slices || o.Status.Networking == nil || o.Status.Identity == nil {
		e.index.remove(who)
		return
	}
	e.measure(who, o)
	e.learn(who, remote{
		key: key, identity: o.Status.Identity.ID, networking: o.Status.Networking, ports: o.Status.NamedPorts, account: o.Status.ServiceAccount,
		workload: pods.WorkloadByLabels(key.Name, o.Labels), encryptKey: o.Status.Encryption.Key, version: k8s.VersionOf(o),
	})
}

func (e *Endpoints) gone(key k8s.Key) {
	e.mu.Lock()
	delete(e.have, key)
	delete(e.said, key)
	delete(e.ended, key)
	// Deleted by another client, or to make room. One that is deleted repeatedly is written again
	// by the next resync.
	if want, wanted := e.want[key]; wanted {
		e.lost[key] = want.UID
		if !e.made[key].recent(want.UID, e.cfg.Interval) {
			e.touch(key)
		}
	}
	e.mu.Unlock()
	e.withdrawn(key, "")
	e.index.remove("endpoint/" + key.String())
}

func (e *Endpoints) learn(who string, r remote) {
	s, err := r.statement(e.cfg.Accept)
	if err != nil {
		e.cfg.Log.Warn("ignored another node's claim about a pod", "pod", r.key, "error", err)
		e.index.remove(who)
		return
	}
	e.index.set(who, s)
}

// slices returns the handler of slices. An endpoint that moves from one to another is in both for a
// while.
func (e *Endpoints) slices(synced func()) k8s.Handler[*v2alpha1.CiliumEndpointSlice] {
	members := map[string]map[string]bool{} // of other nodes, by slice
	ours := map[string]map[k8s.Key]bool{}   // pods of this node, by slice
	who := func(slice string, key k8s.Key) string { return "slice/" + slice + "/" + key.String() }
	return k8s.Handler[*v2alpha1.CiliumEndpointSlice]{
		Upsert: func(s *v2alpha1.CiliumEndpointSlice) {
			now, own := make(map[string]bool, len(s.Endpoints)), map[k8s.Key]bool{}
			var addresses []pods.Address
			for _, ep := range s.Endpoints {
				key := k8s.Key{Namespace: s.Namespace, Name: ep.Name}
				if e.own(ep.Networking) {
					own[key] = true
					addresses = append(addresses, addressesOf(key, ep.PodUID, ep.Networking)...)
					e.measureOwn(key, ep.IdentityID)
					e.observePublished(key, s.Name, ep.IdentityID, ep.Networking)
					continue
				}
				if ep.Networking == nil {
					continue
				}
				w := who(s.Name, key)
				now[w] = true
				e.learn(w, remote{
					key: key, identity: ep.IdentityID, networking: ep.Networking, ports: ep.NamedPorts, account: ep.ServiceAccount, uid: ep.PodUID,
					encryptKey: ep.Encryption.Key, version: k8s.VersionOf(s),
				})
			}
			for w := range members[s.Name] {
				if !now[w] {
					e.index.remove(w)
				}
			}
			members[s.Name] = now
			for key := range ours[s.Name] {
				if !own[key] {
					e.withdrawn(key, s.Name)
				}
			}
			ours[s.Name] = own
			e.noteSlice(s.Name, addresses)
		},
		Delete: func(key k8s.Key) {
			for pod := range ours[key.Name] {
				e.withdrawn(pod, key.Name)
			}
			delete(ours, key.Name)
			e.noteSlice(key.Name, nil)
			for w := range members[key.Name] {
				e.index.remove(w)
			}
			delete(members, key.Name)
		},
		Synced: synced, Listing: e.index.beginList, Listed: func(string) { e.index.endList() }, Reached: e.advance,
	}
}
