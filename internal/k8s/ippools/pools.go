// Package ippools reads CiliumPodIPPools: what they have, and which pod is to have an address of
// which.
//
// [Read] and [Choose] are pure; [Pools] follows the objects for the agent. What is invalid of a
// pool's object is as its last good version said; if there was none, it is not known
// ([Pool.Fault]).
package ippools

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/k8s"
)

// Pools follows the pools. Its methods are safe for concurrent use.
type Pools struct {
	client  *k8s.Client
	changed func()
	log     *slog.Logger
	synced  chan struct{}

	mu    sync.Mutex
	pools map[string]Pool
}

// New returns Pools that know nothing until Run. changed is called from Run's goroutine whenever a
// pool has changed, and when all were observed.
func New(client *k8s.Client, changed func(), log *slog.Logger) *Pools {
	return &Pools{client: client, changed: changed, log: log, synced: make(chan struct{}), pools: map[string]Pool{}}
}

// Run follows the pools until ctx ends, and returns nil then. It is called once.
func (p *Pools) Run(ctx context.Context) error {
	c, err := p.client.For(v2alpha1.SchemeGroupVersion(), v2alpha1.AddToScheme)
	if err != nil {
		return err
	}
	return k8s.Follow(ctx, k8s.Kind(c, v2alpha1.ResourcePodIPPools, ""), k8s.Options[*v2alpha1.CiliumPodIPPool]{Log: p.log}, k8s.Handler[*v2alpha1.CiliumPodIPPool]{
		Upsert: p.observe,
		Delete: func(key k8s.Key) { p.forget(key.Name) },
		Synced: func() {
			close(p.synced)
			p.changed()
		},
	})
}

// Synced is closed when all pools have been observed.
func (p *Pools) Synced() <-chan struct{} { return p.synced }

func (p *Pools) observe(o *v2alpha1.CiliumPodIPPool) {
	pool, ignored, err := Read(o)
	if err != nil {
		p.log.Warn("a pool of addresses is invalid; its last valid version stays in use", "error", err)
	}
	if ignored && pool.Fault == nil {
		p.forget(o.Name)
		return
	}
	p.mu.Lock()
	if old, ok := p.pools[o.Name]; ok && err != nil && old.Fault == nil {
		if pool.Fault != nil {
			pool = old
		} else {
			pool.SkipMasquerade, pool.pods, pool.namespaces = old.SkipMasquerade, old.pods, old.namespaces
		}
	}
	p.pools[o.Name] = pool
	p.mu.Unlock()
	p.changed()
}

func (p *Pools) forget(name string) {
	p.mu.Lock()
	delete(p.pools, name)
	p.mu.Unlock()
	p.changed()
}

// Get returns a pool. synced reports whether all have been observed, so that one that is not there
// does not exist.
func (p *Pools) Get(name string) (pool Pool, ok, synced bool) {
	select {
	case <-p.synced:
		synced = true
	default:
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	pool, ok = p.pools[name]
	return pool, ok, synced
}

// All returns the pools by name.
func (p *Pools) All() []Pool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.SortedFunc(maps.Values(p.pools), func(a, b Pool) int { return strings.Compare(a.Name, b.Name) })
}
