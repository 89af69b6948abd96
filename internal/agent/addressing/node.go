package addressing

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-net/hawser/internal/k8s"
)

// OfNode reports whether the ranges of this node's pods are those of its Node.
func (c *Config) OfNode() bool {
	return (c.Mode == Kubernetes || c.Mode == Delegated) && !c.Fixed()
}

// FollowNode calls report with why nothing of the ranges in use may be given to pods, nil if it
// may, whenever the Node has changed, until ctx ends. A Node keeps its ranges for life. One that is
// deleted and made again gets others, and those of before may be another node's by then.
func (c *Config) FollowNode(ctx context.Context, client *k8s.Client, used func() []netip.Prefix, report func(error)) error {
	seen := false // all calls come from one goroutine
	gone := func() {
		report(fmt.Errorf("the Node %s does not exist: its pod CIDRs (%s) may be another node's; no pod gets an address until the Node is there again",
			c.Self.Name, joinPrefixes(used())))
	}
	return k8s.Follow(ctx, k8s.Kind(client.Kube.CoreV1().RESTClient(), "nodes", ""), k8s.Options[*corev1.Node]{
		Log: c.Log, FieldSelector: "metadata.name=" + c.Self.Name,
	}, k8s.Handler[*corev1.Node]{
		Upsert: func(n *corev1.Node) {
			seen = true
			report(c.reassigned(n.Spec.PodCIDRs, used()))
		},
		Delete: func(k8s.Key) { gone() },
		Synced: func() {
			if !seen {
				gone()
			}
		},
	})
}

// reassigned reports that pods use CIDRs that their Node does not have.
func (c *Config) reassigned(has []string, used []netip.Prefix) error {
	missing := lacking(has, used)
	if len(missing) == 0 {
		return nil
	}
	now := "none yet"
	if len(has) > 0 {
		now = strings.Join(has, ", ")
	}
	return fmt.Errorf("this node uses %s, but spec.podCIDRs of Node %s has %s: the Node was deleted and made again, and its former CIDRs may be another node's; "+
		"no pod gets an address: delete the node's pods and restart the agent", joinPrefixes(missing), c.Self.Name, now)
}

// lacking returns the prefixes in use that are not in a list, however they are spelled there.
func lacking(list []string, used []netip.Prefix) (out []netip.Prefix) {
	has := map[netip.Prefix]bool{}
	for _, text := range list {
		if p, err := netip.ParsePrefix(text); err == nil {
			has[p.Masked()] = true
		}
	}
	for _, p := range used {
		if !has[p] {
			out = append(out, p)
		}
	}
	return out
}

func joinPrefixes(list []netip.Prefix) string {
	var out []string
	for _, p := range list {
		out = append(out, p.String())
	}
	return strings.Join(out, ", ")
}
