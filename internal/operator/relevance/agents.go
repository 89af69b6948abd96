package relevance

import (
	"context"
	"fmt"
	"slices"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	k8skeys "github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/operator/kube"
)

// leases calls f with the Lease of each agent, as the server has it. begin is called before the
// first, and again when the list restarts.
func (c *Controller) leases(ctx context.Context, begin func(), f func(*coordinationv1.Lease)) error {
	err := kube.EachPage(ctx, c.live, func() *coordinationv1.LeaseList { return &coordinationv1.LeaseList{} }, begin, func(page *coordinationv1.LeaseList) error {
		for i := range page.Items {
			f(&page.Items[i])
		}
		return nil
	}, client.InNamespace(c.namespace), client.MatchingLabels{k8skeys.LeaseLabel: k8skeys.LeaseLabelValue})
	if err != nil {
		return fmt.Errorf("list of agents' Leases: %w", err)
	}
	return nil
}

// answers returns the answers of agents, by node, and deletes superseded ones.
func (c *Controller) answers(ctx context.Context) (map[string]k8skeys.Answer, error) {
	given := map[string]map[k8skeys.Answer]*coordinationv1.Lease{} // by node
	err := c.leases(ctx, func() { clear(given) }, func(o *coordinationv1.Lease) {
		node, a := k8skeys.ReadLease(o)
		if node == "" {
			return
		}
		if given[node] == nil {
			given[node] = map[k8skeys.Answer]*coordinationv1.Lease{}
		}
		given[node][a] = o
	})
	if err != nil {
		return nil, err
	}
	out := map[string]k8skeys.Answer{}
	for node, list := range given {
		for a, o := range list {
			out[node] = out[node].Join(a)
			if !superseded(a, list) {
				continue
			}
			if err := client.IgnoreNotFound(c.client.Delete(ctx, o)); err != nil {
				return nil, fmt.Errorf("delete Lease %s: %w", o.Name, err)
			}
		}
	}
	return out, nil
}

// superseded reports whether another answer of a node says at least what a says. Two that are
// higher together do not count: each would supersede the other.
func superseded(a k8skeys.Answer, list map[k8skeys.Answer]*coordinationv1.Lease) bool {
	for b := range list {
		if b != a && b.Made >= a.Made && b.Enforced >= a.Enforced {
			return true
		}
	}
	return false
}

// noteAbsent remembers since when nodes are not known to Kubernetes whose agents have answered.
func (c *Controller) noteAbsent(answers map[string]k8skeys.Answer, here map[string]bool, now time.Time) {
	absent := map[string]time.Time{}
	for node := range answers {
		if _, known := here[node]; known {
			continue
		}
		absent[node] = now
		if since, before := c.absent[node]; before {
			absent[node] = since
		}
	}
	c.absent = absent
}

// survey returns the answer of every agent that may have to give one, and of the nodes that there
// are whether they count. It notes which others are absent.
func (c *Controller) survey(ctx context.Context) (answers map[string]k8skeys.Answer, here map[string]bool, err error) {
	if answers, err = c.answers(ctx); err != nil {
		return nil, nil, err
	}
	var joined v2.CiliumNodeList
	if err := c.client.List(ctx, &joined, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list of CiliumNodes: %w", err)
	}
	var all corev1.NodeList
	if err := c.client.List(ctx, &all, client.UnsafeDisableDeepCopy); err != nil {
		return nil, nil, fmt.Errorf("list of Nodes: %w", err)
	}
	here = map[string]bool{}
	for i := range joined.Items {
		name := joined.Items[i].Name
		here[name] = true
		if _, asked := answers[name]; !asked {
			answers[name] = k8skeys.Answer{}
		}
	}
	for i := range all.Items {
		here[all.Items[i].Name] = !c.lost(&all.Items[i], time.Now())
	}
	c.noteAbsent(answers, here, time.Now())
	return answers, here, nil
}

// gone reports whether a node has been absent for so long that its agent is not waited for.
func (c *Controller) gone(node string) bool {
	since, absent := c.absent[node]
	return absent && time.Since(since) > c.cfg.Lost
}

// sweep notes which nodes are absent, and deletes the answers of those that are gone, in time for a
// leader that begins later. Nothing may be waited for: an agent that is there after all confirms
// the next generation, and none twice.
func (c *Controller) sweep(ctx context.Context) error {
	if time.Since(c.swept) < c.cfg.Lost/5 {
		return nil
	}
	c.swept = time.Now()
	answers, _, err := c.survey(ctx)
	if err != nil {
		return err
	}
	for node := range answers {
		if c.gone(node) {
			return c.forget(ctx, c.gone)
		}
	}
	return nil
}

// maxNamed bounds how many nodes are named as those that are waited for.
const maxNamed = 10

// behind returns the nodes whose agents have not confirmed a generation yet: that they make
// identities by it, and that they enforce nothing else. Every agent that has ever answered counts,
// and every node with a CiliumNode, so that an agent that does not take part holds up the change. A
// node that was not ready for Config.Lost does not count, nor does one that has had neither Node
// nor CiliumNode for that long; before, it may be that of an agent that has just started.
func (c *Controller) behind(ctx context.Context, generation uint64) (made, enforced []string, err error) {
	answers, here, err := c.survey(ctx)
	if err != nil {
		return nil, nil, err
	}
	for node, a := range answers {
		if counts, known := here[node]; known && !counts || c.gone(node) {
			continue
		}
		if a.Made < generation {
			made = append(made, node)
		}
		if a.Enforced < generation {
			enforced = append(enforced, node)
		}
	}
	return named(made), named(enforced), nil
}

// named returns a sorted list that is not too long to be shown.
func named(nodes []string) []string {
	slices.Sort(nodes)
	for i, n := range nodes {
		nodes[i] = "the agent of node " + n
	}
	if len(nodes) > maxNamed {
		nodes = append(nodes[:maxNamed:maxNamed], fmt.Sprintf("the agents of %d more nodes", len(nodes)-maxNamed))
	}
	return nodes
}

// lost reports whether Kubernetes has given up a node.
func (c *Controller) lost(n *corev1.Node, now time.Time) bool {
	for _, cond := range n.Status.Conditions {
		if cond.Type == corev1.NodeReady {
			return cond.Status != corev1.ConditionTrue && !cond.LastTransitionTime.IsZero() && now.Sub(cond.LastTransitionTime.Time) > c.cfg.Lost
		}
	}
	return false
}

// forget deletes the answers of nodes.
func (c *Controller) forget(ctx context.Context, which func(node string) bool) error {
	var list []*coordinationv1.Lease
	err := c.leases(ctx, func() { list = nil }, func(o *coordinationv1.Lease) {
		if node, _ := k8skeys.ReadLease(o); which(node) {
			list = append(list, o)
		}
	})
	if err != nil {
		return err
	}
	for _, o := range list {
		if err := client.IgnoreNotFound(c.client.Delete(ctx, o)); err != nil {
			return fmt.Errorf("delete Lease %s: %w", o.Name, err)
		}
	}
	return nil
}
