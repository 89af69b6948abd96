package policies

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/spf13/pflag"
	"golang.org/x/sync/errgroup"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/client-go/rest"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/diskcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/validate"
	"github.com/hawser-net/hawser/pkg/retry"
)

// KindKubernetes and KindCluster are the kinds of Kubernetes' own policies; those of ours are in
// api/v2.
const (
	KindKubernetes = "NetworkPolicy"
	KindCluster    = "ClusterNetworkPolicy"
)

// Config defines which kinds are followed.
type Config struct {
	// Cilium, CiliumClusterwide and Kubernetes enable CiliumNetworkPolicy,
	// CiliumClusterwideNetworkPolicy and NetworkPolicy.
	Cilium, CiliumClusterwide, Kubernetes bool
	// Cluster enables ClusterNetworkPolicy. It is no part of Kubernetes: it is followed from when
	// its definition is there.
	Cluster bool
	// Look is how often to look whether it is.
	Look time.Duration
	// Gather is how long a change waits for others, so that what comes together is put in force
	// together.
	Gather time.Duration
	// Keep is a directory for copies of policies as they were observed last, for LoadStored; empty
	// keeps none.
	Keep string
	// Unkept, if not nil, is called with why policies cannot be kept there, nil if all are,
	// whenever that changes; it must not block.
	Unkept func(error)
}

// Defaults returns the defaults: every kind.
func Defaults() Config {
	return Config{Cilium: true, CiliumClusterwide: true, Kubernetes: true, Cluster: true, Look: 15 * time.Second, Gather: 2 * time.Millisecond}
}

// Flags registers the options.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.Cilium, "enable-cilium-network-policy", c.Cilium, "enforce CiliumNetworkPolicy objects")
	fs.BoolVar(&c.CiliumClusterwide, "enable-cilium-clusterwide-network-policy", c.CiliumClusterwide, "enforce CiliumClusterwideNetworkPolicy objects")
	fs.BoolVar(&c.Kubernetes, "enable-k8s-networkpolicy", c.Kubernetes, "enforce NetworkPolicy objects of Kubernetes")
	fs.BoolVar(&c.Cluster, "enable-k8s-cluster-network-policy", c.Cluster, "enforce ClusterNetworkPolicy objects of Kubernetes, once their definition exists")
}

// Validate reports all invalid settings.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.If(c.Gather < 0, "policies: the time to gather changes is %v, which is negative", c.Gather)
	errs.If(c.Cluster && c.Look <= 0, "policies: the time between looks for ClusterNetworkPolicy is %v, which is not above 0", c.Look)
	return errs.Err()
}

// Status is what became of an object.
type Status struct {
	Owner policy.Owner
	// Kind, Namespace and Name name the object; a clusterwide one has no namespace.
	Kind, Namespace, Name string
	// Err is the fault of the object, nil if it is in force as it is written.
	Err error
	// InForce reports whether there are rules of it in force: with Err what can be enforced of it.
	InForce bool
	Rules   int
	// Loaded is when it was observed as it is in force; zero if it is not as it is written. Failed
	// is since when the object is faulty.
	Loaded, Failed time.Time

	warnings []string // that were logged
}

// Policies follows policies. Make one with New; it serves one Run. Status and Counts may be called
// from any goroutine.
type Policies struct {
	cfg    Config
	client *k8s.Client
	ours   rest.Interface
	theirs rest.Interface // of ClusterNetworkPolicy
	log    *slog.Logger

	mu      sync.Mutex
	objects map[policy.Owner]*Status
	pending map[policy.Owner][]*policy.Rule // to be put in force; nil rules take away
	changed chan struct{}
	// kept are the rules from before the restart of objects that have not been observed since; nil
	// when all have.
	kept map[policy.Owner][]*policy.Rule

	keeping sync.Mutex // guards what follows
	copies  *diskcache.Cache
	// unkept are the objects whose copies could not be stored.
	unkept   map[policy.Owner]unkept
	reported string // what Unkept was called with last
}

// New returns a Policies that has observed nothing. It makes no request.
func New(cfg Config, client *k8s.Client, log *slog.Logger) (*Policies, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if client == nil {
		return nil, errors.New("policies: a client is needed")
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	ours, err := client.For(v2.SchemeGroupVersion(), addRaw(v2.SchemeGroupVersion(), v2.KindNetworkPolicy, v2.KindClusterwideNetworkPolicy))
	if err != nil {
		return nil, err
	}
	theirs, err := client.For(clusterVersion(), addRaw(clusterVersion(), KindCluster))
	if err != nil {
		return nil, err
	}
	return &Policies{
		cfg: cfg, client: client, ours: ours, theirs: theirs, log: log,
		objects: map[policy.Owner]*Status{}, pending: map[policy.Owner][]*policy.Rule{}, changed: make(chan struct{}, 1),
		kept: map[policy.Owner][]*policy.Rule{}, copies: diskcache.New(cfg.Keep),
		unkept: map[policy.Owner]unkept{},
	}, nil
}

// ownerOf returns the owner of an object's rules: "k8s/Kind/namespace/name", or "k8s/Kind/name".
func ownerOf(kind string, key k8s.Key) policy.Owner {
	if key.Namespace == "" {
		return policy.Owner("k8s/" + kind + "/" + key.Name)
	}
	return policy.Owner("k8s/" + kind + "/" + key.Namespace + "/" + key.Name)
}

// Run follows Kubernetes and calls apply with everything there is, then with what changes, until
// ctx ends; then it returns nil. The first call happens when every kind has been observed, even if
// there is nothing to apply. Calls do not overlap, and changes are sorted by owner.
func (p *Policies) Run(ctx context.Context, apply func([]policy.Change)) error {
	follow := p.followers()
	group, ctx := errgroup.WithContext(ctx)
	synced := make(chan struct{}, len(follow))
	for _, f := range follow {
		group.Go(func() error { return f(ctx, func() { synced <- struct{}{} }) })
	}
	group.Go(func() error {
		p.deliver(ctx, len(follow), synced, apply)
		return nil
	})
	group.Go(func() error {
		for retry.Sleep(ctx, keepAgain) {
			p.keepUnkept()
		}
		return nil
	})
	if err := group.Wait(); err != nil {
		return fmt.Errorf("policies of Kubernetes: %w", err)
	}
	return nil
}

// deliver hands on what is pending, from the moment that all kinds have been observed.
func (p *Policies) deliver(ctx context.Context, kinds int, synced <-chan struct{}, apply func([]policy.Change)) {
	for range kinds {
		select {
		case <-synced:
		case <-ctx.Done():
			return
		}
	}
	p.dropStale()
	first := p.take()
	apply(first)
	ok, faulty := p.Counts()
	p.log.Info("policies of Kubernetes are in force", "policies", ok, "faulty", faulty)
	for {
		select {
		case <-p.changed:
		case <-ctx.Done():
			return
		}
		if p.cfg.Gather > 0 {
			if !retry.Sleep(ctx, p.cfg.Gather) {
				return
			}
		}
		if changes := p.take(); len(changes) > 0 {
			apply(changes)
		}
	}
}

// take returns what is pending, sorted by owner.
func (p *Policies) take() []policy.Change {
	p.mu.Lock()
	defer p.mu.Unlock()
	changes := sortedChanges(p.pending)
	clear(p.pending)
	return changes
}

func sortedChanges(rules map[policy.Owner][]*policy.Rule) []policy.Change {
	changes := make([]policy.Change, 0, len(rules))
	for _, o := range slices.Sorted(maps.Keys(rules)) {
		changes = append(changes, policy.Change{Owner: o, Rules: rules[o]})
	}
	return changes
}

type follower func(ctx context.Context, synced func()) error

func (p *Policies) followers() (out []follower) {
	if p.cfg.Cilium {
		out = append(out, p.followRaw(p.ours, "ciliumnetworkpolicies", v2.KindNetworkPolicy))
	}
	if p.cfg.CiliumClusterwide {
		out = append(out, p.followRaw(p.ours, "ciliumclusterwidenetworkpolicies", v2.KindClusterwideNetworkPolicy))
	}
	if p.cfg.Kubernetes {
		out = append(out, p.followKubernetes)
	}
	if p.cfg.Cluster {
		out = append(out, p.followCluster)
	}
	return out
}

func (p *Policies) followRaw(from rest.Interface, resource, kind string) follower {
	return func(ctx context.Context, synced func()) error {
		return k8s.Follow(ctx, k8s.Kind(from, resource, ""), k8s.Options[*raw]{Log: p.log}, k8s.Handler[*raw]{
			Upsert: func(r *raw) {
				rules, err := r.parse(kind)
				p.upsert(kind, k8s.KeyOf(r), rules, err, func() ([]byte, error) { return r.text, nil })
			},
			Delete: func(key k8s.Key) { p.remove(kind, key) },
			Synced: synced,
		})
	}
}

func (p *Policies) followKubernetes(ctx context.Context, synced func()) error {
	return k8s.Follow(ctx, k8s.Kind(p.client.Kube.NetworkingV1().RESTClient(), "networkpolicies", ""), k8s.Options[*networkingv1.NetworkPolicy]{
		Log: p.log,
		Transform: func(o *networkingv1.NetworkPolicy) *networkingv1.NetworkPolicy {
			o.Annotations, o.Labels, o.OwnerReferences = nil, nil, nil
			return o
		},
	}, k8s.Handler[*networkingv1.NetworkPolicy]{
		Upsert: func(o *networkingv1.NetworkPolicy) {
			rules, err := policy.ParseNetworkPolicy(o)
			p.upsert(KindKubernetes, k8s.KeyOf(o), rules, err, func() ([]byte, error) { return json.Marshal(o) })
		},
		Delete: func(key k8s.Key) { p.remove(KindKubernetes, key) },
		Synced: synced,
	})
}

// upsert notes an object as it is now, and keeps its text if something of it is in force.
func (p *Policies) upsert(kind string, key k8s.Key, rules []*policy.Rule, fault error, text func() ([]byte, error)) {
	owner := ownerOf(kind, key)
	if len(rules) > 0 {
		p.keep(owner, kind, text)
	} else {
		p.forget(owner)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.kept, owner)
	s := p.objects[owner]
	if s == nil {
		s = &Status{Owner: owner, Kind: kind, Namespace: key.Namespace, Name: key.Name}
		p.objects[owner] = s
	}
	now := time.Now()
	switch {
	case fault == nil && s.Err != nil:
		p.log.Info("policy is valid again", "policy", owner)
	case fault != nil && s.Err == nil:
		s.Failed = now
	}
	if fault != nil && (s.Err == nil || s.Err.Error() != fault.Error()) {
		p.log.Warn("policy is not fully enforced; the pods that it selects are isolated, and its invalid parts allow nothing", "policy", owner, "rules", len(rules), "error", validate.Brief(fault, validate.MaxLogged))
	}
	warnings := validate.Few(policy.Warnings(rules))
	if !slices.Equal(warnings, s.warnings) { // the object also comes when its status was written
		for _, w := range warnings {
			p.log.Warn("policy may mean something else than it seems", "policy", owner, "warning", w)
		}
	}
	s.warnings = warnings
	if s.Err = fault; fault == nil {
		s.Failed = time.Time{}
	}
	// Of a faulty policy what can be enforced is; what an earlier version granted is not.
	if len(rules) > 0 || s.InForce {
		p.note(owner, rules)
	}
	s.InForce, s.Rules, s.Loaded = len(rules) > 0, len(rules), now
	if fault != nil {
		s.Loaded = time.Time{}
	}
}

// remove notes that an object is gone.
func (p *Policies) remove(kind string, key k8s.Key) {
	owner := ownerOf(kind, key)
	p.forget(owner)
	p.mu.Lock()
	defer p.mu.Unlock()
	s := p.objects[owner]
	delete(p.objects, owner)
	delete(p.kept, owner)
	if s != nil && s.InForce {
		p.note(owner, nil)
	}
}

// removeKind notes that all objects of a kind are gone.
func (p *Policies) removeKind(kind string) {
	for _, s := range p.Status() {
		if s.Kind == kind {
			p.remove(kind, k8s.Key{Namespace: s.Namespace, Name: s.Name})
		}
	}
}

// note has mu held.
func (p *Policies) note(owner policy.Owner, rules []*policy.Rule) {
	p.pending[owner] = rules
	retry.Notify(p.changed)
}

// Status returns what became of each object, sorted by owner.
func (p *Policies) Status() []Status {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Status, 0, len(p.objects))
	for _, o := range slices.Sorted(maps.Keys(p.objects)) {
		out = append(out, *p.objects[o])
	}
	return out
}

// Counts returns how many objects are in force as they are, and how many are faulty.
func (p *Policies) Counts() (ok, faulty int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, s := range p.objects {
		if s.Err != nil {
			faulty++
		}
	}
	return len(p.objects) - faulty, faulty
}
