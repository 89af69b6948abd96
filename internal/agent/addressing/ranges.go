package addressing

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/k8s"
)

// Ranges are a pod CIDR of each family; "" is none.
type Ranges struct {
	V4 string `json:"ipv4,omitempty"`
	V6 string `json:"ipv6,omitempty"`
}

// Found is the source of the pods' addresses of a node: fixed ranges, or one of the others.
type Found struct {
	Ranges  Ranges
	Pools   *Pools
	Singles *Singles
}

// Await returns the ranges of this node's pods: those of the configuration; else the former ones,
// if there are endpoints that use them; else those of Kubernetes, for which it waits until ctx
// ends. It logs what it waits for. In a mode in which a node's addresses change while it runs it
// returns what follows them instead, which has addresses for the node itself by then.
func Await(ctx context.Context, cfg Config, client *k8s.Client) (Found, error) {
	switch {
	case Single(cfg.Mode):
		s, err := NewSingles(cfg, client)
		if err != nil {
			return Found{}, err
		}
		used, err := cfg.endpointAddresses()
		if err == nil {
			err = s.await(ctx, len(used) > 0)
		}
		return Found{Singles: s}, err
	case cfg.Fixed():
		return Found{Ranges: cfg.Given}, nil
	case cfg.Mode == MultiPool:
		p, err := NewPools(cfg, client)
		if err == nil {
			err = p.await(ctx)
		}
		return Found{Pools: p}, err
	}
	r, err := cfg.ranges(ctx, client)
	return Found{Ranges: r}, err
}

// endpoints returns the former endpoints. A damaged record is skipped: the restoration reports
// it, and its pod has no network any more.
func (c *Config) endpoints() ([]endpoint.Endpoint, error) {
	store, err := endpoint.NewStore(c.Dir)
	if err != nil {
		return nil, err
	}
	rows, _, err := store.Load()
	return rows, err
}

// endpointAddresses are those of endpoints of before.
func (c *Config) endpointAddresses() ([]netip.Addr, error) {
	rows, err := c.endpoints()
	var out []netip.Addr
	for _, row := range rows {
		out = append(out, row.Addresses()...)
	}
	return out, err
}

// ranges is Await where a node keeps its ranges.
func (c *Config) ranges(ctx context.Context, client *k8s.Client) (Ranges, error) {
	path := filepath.Join(c.Dir, rangesFile)
	saved, err := loadRanges(path)
	if err != nil {
		c.Log.Warn("cannot read the stored pod CIDRs", "file", path, "error", err)
	}
	rows, err := c.endpoints()
	if err != nil {
		return Ranges{}, err
	}
	if len(rows) > 0 && c.lacks(saved) == nil {
		c.Log.Info("this node keeps its pod CIDRs", "ipv4", saved.V4, "ipv6", saved.V6)
		return saved, nil
	}
	got, err := c.awaitRanges(ctx, client)
	if err != nil {
		return Ranges{}, err
	}
	data, err := json.Marshal(got)
	if err == nil {
		err = c.Save(path, data)
	}
	if err != nil {
		return Ranges{}, fmt.Errorf("store the pod CIDRs: %w", err)
	}
	c.Log.Info("this node's pod CIDRs", "ipv4", got.V4, "ipv6", got.V6)
	return got, nil
}

// Fixed reports whether the configuration names the ranges.
func (c *Config) Fixed() bool { return c.lacks(c.Given) == nil }

// rangesFile is where the ranges are kept for the next agent.
const rangesFile = "podcidrs.json"

func loadRanges(path string) (Ranges, error) {
	var r Ranges
	err := atomicfile.ReadJSON(path, &r)
	return r, err
}

// readRanges takes the first CIDR of each enabled family from a list. What is no CIDR is left out.
func (c *Config) readRanges(list []string) Ranges {
	var r Ranges
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().Is4In6():
		case p.Addr().Is4() && r.V4 == "" && c.Families&ipam.IPv4 != 0:
			r.V4 = p.Masked().String()
		case p.Addr().Is6() && r.V6 == "" && c.Families&ipam.IPv6 != 0:
			r.V6 = p.Masked().String()
		}
	}
	return r
}

// lacks reports which family's range is missing.
func (c *Config) lacks(r Ranges) error {
	var missing []string
	if c.Families&ipam.IPv4 != 0 && r.V4 == "" {
		missing = append(missing, "IPv4")
	}
	if c.Families&ipam.IPv6 != 0 && r.V6 == "" {
		missing = append(missing, "IPv6")
	}
	if len(missing) == 0 {
		return nil
	}
	return errors.New(strings.Join(missing, " and "))
}

// awaitRanges waits until Kubernetes has the addresses of this node's pods.
func (c *Config) awaitRanges(ctx context.Context, client *k8s.Client) (Ranges, error) {
	var mu sync.Mutex
	var found Ranges
	missing := "the object"
	observed := func(list []string) bool {
		r := c.readRanges(list)
		mu.Lock()
		defer mu.Unlock()
		if err := c.lacks(r); err != nil {
			missing = err.Error()
			return false
		}
		found = r
		return true
	}
	where := "spec.podCIDRs of Node " + c.Self.Name + ", which the controller manager fills in (--allocate-node-cidrs)"
	follow := func(ctx context.Context, done func()) error {
		return k8s.Follow(ctx, k8s.Kind(client.Kube.CoreV1().RESTClient(), "nodes", ""), k8s.Options[*corev1.Node]{
			Log: c.Log, FieldSelector: "metadata.name=" + c.Self.Name,
		}, k8s.Handler[*corev1.Node]{Upsert: func(n *corev1.Node) {
			if observed(n.Spec.PodCIDRs) {
				done()
			}
		}, Delete: func(k8s.Key) {}})
	}
	if c.Mode == ClusterPool {
		where = "spec.ipam.podCIDRs of CiliumNode " + c.Self.Name + ", which the operator fills in"
		follow = func(ctx context.Context, done func()) error {
			return c.askOperator(ctx, client, func(o *v2.CiliumNode) {
				if observed(o.Spec.IPAM.PodCIDRs) {
					done()
				}
			}, nil)
		}
	}
	err := until(ctx, follow, func() bool {
		mu.Lock()
		defer mu.Unlock()
		c.Log.Warn("waiting for the range of this node's pods", "missing", missing, "in", where)
		return false
	})
	mu.Lock()
	defer mu.Unlock()
	return found, err
}

// remindFirst and remindEvery are when the log reports what is waited for. Usually no wait is
// needed.
const (
	remindFirst = 2 * time.Second
	remindEvery = 15 * time.Second
)

// until has follow listen until it calls done, and returns nil then; else why it ended. remind is
// called periodically meanwhile, and reports whether there is nothing left to wait for. No
// goroutine of it is left when it returns.
func until(ctx context.Context, follow func(ctx context.Context, done func()) error, remind func() bool) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	found := make(chan struct{})
	ended := make(chan error, 1)
	go func() { ended <- follow(ctx, sync.OnceFunc(func() { close(found) })) }()
	timer := time.NewTimer(remindFirst)
	defer timer.Stop()
	for {
		select {
		case <-found:
			cancel(nil)
			<-ended
			return nil
		case err := <-ended:
			if err == nil {
				err = context.Cause(ctx)
			}
			return err
		case <-timer.C:
			if remind() {
				cancel(nil)
				<-ended
				return nil
			}
			timer.Reset(remindEvery)
		}
	}
}

// Changed reports that pods use CIDRs which the operator does not assign any more (ClusterPool): a
// node cannot change its ranges while pods have addresses from them. says is false if the object
// contains nothing about it.
func (c *Config) Changed(o *v2.CiliumNode, used []netip.Prefix) (says bool, err error) {
	if c.Mode != ClusterPool || c.Fixed() || len(o.Spec.IPAM.PodCIDRs) == 0 {
		return false, nil
	}
	missing := lacking(o.Spec.IPAM.PodCIDRs, used)
	if len(missing) == 0 {
		return true, nil
	}
	return true, fmt.Errorf("pods of this node use %s, but the operator has assigned %s; delete the node's pods and restart the agent",
		joinPrefixes(missing), strings.Join(o.Spec.IPAM.PodCIDRs, ", "))
}
