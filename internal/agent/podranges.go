package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/nodes"
	"github.com/hawser-net/hawser/internal/node"
)

// podRanges returns the ranges of this node's pods: those of the configuration; else those of
// before, if there are endpoints that use them; else what Kubernetes says, for which it waits. It
// logs what it waits for.
func (k *kube) podRanges(ctx context.Context, facts nodeFacts) (v4, v6 string, err error) {
	if k.rangesGiven() {
		return k.cfg.IPv4Range, k.cfg.IPv6Range, nil
	}
	if k.cfg.IPAM == ipamMultiPool {
		return "", "", k.awaitPools(ctx, facts)
	}
	state := filepath.Join(k.cfg.StateDir, "state")
	path := filepath.Join(state, "podcidrs.json")
	saved, err := loadRanges(path)
	if err != nil {
		k.log.Warn("cannot read the pod CIDRs of before", "file", path, "error", err)
	}
	store, err := endpoint.NewStore(state)
	if err != nil {
		return "", "", err
	}
	if rows, err := store.Load(); err == nil && len(rows) > 0 && k.enough(saved) == nil {
		k.log.Info("this node keeps its pod CIDRs", "ipv4", saved.V4, "ipv6", saved.V6)
		return saved.V4, saved.V6, nil
	}
	got, err := k.awaitRanges(ctx, facts)
	if err != nil {
		return "", "", err
	}
	data, err := json.Marshal(got)
	if err == nil {
		err = writeState(path, data)
	}
	if err != nil {
		return "", "", fmt.Errorf("store the pod CIDRs: %w", err)
	}
	k.log.Info("this node's pod CIDRs", "ipv4", got.V4, "ipv6", got.V6)
	return got.V4, got.V6, nil
}

// rangesGiven says whether the configuration names the ranges.
func (k *kube) rangesGiven() bool { return k.enough(ranges{k.cfg.IPv4Range, k.cfg.IPv6Range}) == nil }

// ranges are a pod CIDR of each family; "" is none.
type ranges struct {
	V4 string `json:"ipv4,omitempty"`
	V6 string `json:"ipv6,omitempty"`
}

func loadRanges(path string) (ranges, error) {
	var r ranges
	data, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return r, nil
	}
	if err == nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// readRanges takes the first CIDR of each enabled family from a list. What is no CIDR is left out.
func (k *kube) readRanges(list []string) ranges {
	var r ranges
	for _, text := range list {
		p, err := netip.ParsePrefix(text)
		switch {
		case err != nil || p.Addr().Is4In6():
		case p.Addr().Is4() && r.V4 == "" && k.cfg.EnableIPv4:
			r.V4 = p.Masked().String()
		case p.Addr().Is6() && r.V6 == "" && k.cfg.EnableIPv6:
			r.V6 = p.Masked().String()
		}
	}
	return r
}

// enough tells which family's range is missing.
func (k *kube) enough(r ranges) error {
	var missing []string
	if k.cfg.EnableIPv4 && r.V4 == "" {
		missing = append(missing, "IPv4")
	}
	if k.cfg.EnableIPv6 && r.V6 == "" {
		missing = append(missing, "IPv6")
	}
	if len(missing) == 0 {
		return nil
	}
	return errors.New(strings.Join(missing, " and "))
}

// rangesRemind is how often the log says what is waited for.
const rangesRemind = 15 * time.Second

// awaitRanges waits until Kubernetes says which addresses this node's pods get.
func (k *kube) awaitRanges(ctx context.Context, facts nodeFacts) (ranges, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	found := make(chan ranges, 1)
	var mu sync.Mutex
	missing := "the object"
	heard := func(list []string) {
		r := k.readRanges(list)
		mu.Lock()
		defer mu.Unlock()
		if err := k.enough(r); err != nil {
			missing = err.Error()
			return
		}
		select {
		case found <- r:
		default: // it was found before
		}
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	where := "spec.podCIDRs of Node " + k.cfg.NodeName + ", which the controller manager fills in (--allocate-node-cidrs)"
	follow := func() error {
		return k8s.Follow(ctx, k8s.Kind(k.client.Kube.CoreV1().RESTClient(), "nodes", ""), k8s.Options[*corev1.Node]{
			Log: k.log, FieldSelector: "metadata.name=" + k.cfg.NodeName,
		}, k8s.Handler[*corev1.Node]{Upsert: func(n *corev1.Node) { heard(n.Spec.PodCIDRs) }, Delete: func(k8s.Key) {}})
	}
	if k.cfg.IPAM == ipamClusterPool {
		where = "spec.ipam.podCIDRs of CiliumNode " + k.cfg.NodeName + ", which the operator fills in"
		follow = func() error {
			return k.askOperator(ctx, facts, func(o *v2.CiliumNode) { heard(o.Spec.IPAM.PodCIDRs) }, nil)
		}
	}
	wg.Go(func() {
		if err := follow(); err != nil {
			cancel(err)
		}
	})
	remind := time.NewTicker(rangesRemind)
	defer remind.Stop()
	said := time.After(2 * time.Second) // usually it is there
	for {
		select {
		case r := <-found:
			return r, nil
		case <-ctx.Done():
			return ranges{}, context.Cause(ctx)
		case <-said:
		case <-remind.C:
		}
		mu.Lock()
		k.log.Warn("waiting for the range of this node's pods", "missing", missing, "in", where)
		mu.Unlock()
	}
}

// askOperator makes this node's CiliumNode, if need be, with what fill writes into it, and tells
// heard of it until ctx ends.
func (k *kube) askOperator(ctx context.Context, facts nodeFacts, heard func(*v2.CiliumNode), fill func(o *v2.CiliumNode, made bool)) error {
	if err := k.client.WaitForKinds(ctx, k.cfg.CRDWait, k.log, v2.Resource(v2.ResourceNodes)); err != nil {
		return err
	}
	asking, err := nodes.New(nodes.Config{
		Self: k.self(), ClusterID: k.cfg.ClusterID, Own: heard, Fill: fill, Log: k.log,
	}, k.client, deafNodes{})
	if err != nil {
		return err
	}
	self := node.Node{Name: k.cfg.NodeName, Cluster: k.cfg.ClusterName, ClusterID: k.cfg.ClusterID, Source: node.SourceLocal}
	for _, ip := range facts.hosts() {
		self.Addresses = append(self.Addresses, node.Address{Type: node.InternalIP, IP: ip})
	}
	if err := asking.Announce(self); err != nil {
		return err
	}
	return asking.Run(ctx)
}

// checkRanges is told of this node's CiliumNode: a node cannot change its ranges while pods have
// addresses from them.
func (k *kube) checkRanges(o *v2.CiliumNode) {
	if k.cfg.IPAM != ipamClusterPool || k.rangesGiven() || len(o.Spec.IPAM.PodCIDRs) == 0 {
		return
	}
	var used []string
	for _, p := range k.a.selfNode(k.facts).PodCIDRs() {
		used = append(used, p.String())
	}
	if missing := slices.DeleteFunc(used, func(p string) bool { return slices.Contains(o.Spec.IPAM.PodCIDRs, p) }); len(missing) > 0 {
		err := fmt.Errorf("pods of this node use %s, but the operator has assigned %s; delete the node's pods and restart the agent",
			strings.Join(missing, ", "), strings.Join(o.Spec.IPAM.PodCIDRs, ", "))
		k.log.Error("the node's pod CIDRs have changed", "error", err)
		k.a.components.Report("pod-cidrs", err, "")
		return
	}
	k.a.components.Report("pod-cidrs", nil, "as assigned")
}
