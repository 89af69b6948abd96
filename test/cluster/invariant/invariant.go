package invariant

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-net/hawser/api/rest"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// firstIdentity is the lowest ID that the cluster gives to a label set.
const firstIdentity = 256

// healthIdentity is that of the endpoint by which the nodes are probed: each has one.
const healthIdentity = 4

func key(p *corev1.Pod) string { return p.Namespace + "/" + p.Name }

func podAddrs(p *corev1.Pod) (out []string) {
	for _, ip := range p.Status.PodIPs {
		out = append(out, ip.IP)
	}
	slices.Sort(out)
	return out
}

// objectAddrs are the addresses of an endpoint's object, sorted.
func objectAddrs(e *v2.CiliumEndpoint) (out []string) {
	if e.Status.Networking == nil {
		return nil
	}
	for _, a := range e.Status.Networking.Addressing {
		for _, text := range []string{a.IPv4, a.IPv6} {
			if text != "" {
				out = append(out, text)
			}
		}
	}
	slices.Sort(out)
	return out
}

func agentAddrs(e *rest.Endpoint) (out []string) {
	for _, a := range e.Status.Networking.Addressing {
		for _, text := range []string{a.IPv4, a.IPv6} {
			if text != "" {
				out = append(out, text)
			}
		}
	}
	slices.Sort(out)
	return out
}

// IdentityLabels are the labels that an identity's object stands for.
func IdentityLabels(id *v2.CiliumIdentity) labels.Set {
	var out []labels.Label
	for k, v := range id.SecurityLabels {
		source, name, _ := strings.Cut(k, ":")
		out = append(out, labels.New(source, name, v))
	}
	return labels.NewSet(out...)
}

// podsHaveEndpoints: the object, the agent's row and the kernel's row say the same, and what the
// pod's labels demand.
func podsHaveEndpoints(w *World) (wrong []string) {
	bad := func(p *corev1.Pod, format string, args ...any) {
		wrong = append(wrong, fmt.Sprintf("pod %s on %s: %s", key(p), p.Spec.NodeName, fmt.Sprintf(format, args...)))
	}
	objects := map[string]*v2.CiliumEndpoint{}
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		objects[e.Namespace+"/"+e.Name] = e
	}
	identities := map[string]*v2.CiliumIdentity{}
	for i := range w.Identities {
		identities[w.Identities[i].Name] = &w.Identities[i]
	}
	for i := range w.Pods {
		p := &w.Pods[i]
		if !lab.Ready(p) {
			bad(p, "it is not ready")
			continue
		}
		e := objects[key(p)]
		switch {
		case e == nil:
			bad(p, "it has no CiliumEndpoint")
			continue
		case !w.slim && (len(e.OwnerReferences) != 1 || e.OwnerReferences[0].UID != p.UID):
			bad(p, "its CiliumEndpoint belongs to another pod")
			continue
		case e.Status.Identity == nil:
			bad(p, "its CiliumEndpoint has no identity")
			continue
		}
		if got, want := objectAddrs(e), podAddrs(p); !slices.Equal(got, want) {
			bad(p, "its CiliumEndpoint has the addresses %v, the pod has %v", got, want)
		}
		number := e.Status.Identity.ID
		if core := w.Sliced[key(p)]; w.Sliced != nil && (core == nil || core.IdentityID != number) {
			bad(p, "its slice does not say that it has identity %d: %+v", number, core)
		}
		want, err := lab.IdentityLabels(w.Cluster, p, w.Namespaces[p.Namespace])
		if err != nil {
			bad(p, "%v", err)
			continue
		}
		if got, err := labels.ParseSet(e.Status.Identity.Labels); !w.slim && (err != nil || !got.Equal(want)) {
			bad(p, "its CiliumEndpoint has the labels %s (%v), want %s", got, err, want)
		}
		wrong = append(wrong, onNode(w, p, int(number))...)
		if number < firstIdentity {
			continue // the same ID in every cluster, without an object
		}
		if id := identities[strconv.FormatInt(number, 10)]; id == nil {
			bad(p, "there is no CiliumIdentity %d", number)
		} else if got := IdentityLabels(id); !got.Equal(want) {
			bad(p, "identity %d is %s, its labels are %s", number, got, want)
		}
	}
	return wrong
}

// onNode checks a pod's rows in the agent and in the kernel.
func onNode(w *World, p *corev1.Pod, identity int) (wrong []string) {
	n := w.Nodes[p.Spec.NodeName]
	if n == nil {
		return []string{fmt.Sprintf("pod %s is on a node %q that is not there", key(p), p.Spec.NodeName)}
	}
	var rows []*rest.Endpoint
	for i := range n.Endpoints {
		if n.Endpoints[i].Status.ExternalIdentifiers.PodName == key(p) {
			rows = append(rows, &n.Endpoints[i])
		}
	}
	if len(rows) != 1 {
		return []string{fmt.Sprintf("pod %s: the agent of %s has %d endpoints of it", key(p), n.Info.Name, len(rows))}
	}
	e := rows[0]
	if e.Status.State != rest.EndpointStateReady || e.Status.Identity.ID != identity || !slices.Equal(agentAddrs(e), podAddrs(p)) {
		wrong = append(wrong, fmt.Sprintf("pod %s: the agent of %s says it is %s, identity %d, addresses %v; want ready, %d, %v",
			key(p), n.Info.Name, e.Status.State, e.Status.Identity.ID, agentAddrs(e), identity, podAddrs(p)))
	}
	i := slices.IndexFunc(n.Kernel, func(k rest.MapEndpoint) bool { return k.ID == e.ID })
	if i < 0 {
		return append(wrong, fmt.Sprintf("pod %s: the kernel of %s has no row for endpoint %d", key(p), n.Info.Name, e.ID))
	}
	row := n.Kernel[i]
	if row.Identity != identity || row.Locked || row.InterfaceName != e.Status.Networking.InterfaceName || row.RuleSet != 0 && !n.RuleSets[row.RuleSet] {
		wrong = append(wrong, fmt.Sprintf("pod %s: the row of the kernel of %s is wrong: %+v", key(p), n.Info.Name, row))
	}
	return wrong
}

// nodesKnowPods: the kernel of every node leads every pod's address to its identity and, elsewhere,
// to its node; no other address of a pod's range leads anywhere.
func nodesKnowPods(w *World) (wrong []string) {
	type place struct {
		identity int
		node     string
	}
	want := map[netip.Addr]place{}
	for i := range w.Endpoints {
		e := &w.Endpoints[i]
		if e.Status.Identity == nil || e.Status.Networking == nil {
			continue // podsHaveEndpoints reports it
		}
		for _, text := range objectAddrs(e) {
			if a, err := netip.ParseAddr(text); err == nil {
				want[a] = place{int(e.Status.Identity.ID), e.Status.Networking.NodeIP}
			}
		}
	}
	for _, n := range w.sortedNodes() {
		have := map[netip.Addr]bool{}
		for _, row := range n.IPCache {
			prefix, err := netip.ParsePrefix(row.Prefix)
			if err != nil {
				wrong = append(wrong, fmt.Sprintf("%s: prefix %q", n.Info.Name, row.Prefix))
				continue
			}
			if !prefix.IsSingleIP() {
				continue
			}
			have[prefix.Addr()] = true
			p, known := want[prefix.Addr()]
			if !known {
				if row.Identity >= firstIdentity && row.Identity < 1<<24 {
					wrong = append(wrong, fmt.Sprintf("%s: %s leads to identity %d, but no pod has it", n.Info.Name, prefix.Addr(), row.Identity))
				}
				continue
			}
			remote := p.node != n.Info.IPv4.String()
			if row.Identity != p.identity || remote && row.TunnelEndpoint != p.node || !remote && row.TunnelEndpoint != "" {
				wrong = append(wrong, fmt.Sprintf("%s: %s leads to identity %d by %q, want %d at %s", n.Info.Name, prefix.Addr(), row.Identity, row.TunnelEndpoint, p.identity, p.node))
			}
		}
		for a := range want {
			if !have[a] {
				wrong = append(wrong, fmt.Sprintf("%s does not know %s", n.Info.Name, a))
			}
		}
	}
	return wrong
}

// nothingLeft: objects, addresses, rows, links and rule sets are those of pods that are there.
func nothingLeft(w *World) (wrong []string) {
	pods := map[string]*corev1.Pod{}
	used := map[string]bool{}
	for i := range w.Pods {
		p := &w.Pods[i]
		pods[key(p)] = p
		for _, a := range podAddrs(p) {
			used[a] = true
		}
	}
	for i := range w.Endpoints {
		if e := &w.Endpoints[i]; pods[e.Namespace+"/"+e.Name] == nil {
			wrong = append(wrong, fmt.Sprintf("CiliumEndpoint %s/%s without a pod", e.Namespace, e.Name))
		}
	}
	for _, n := range w.sortedNodes() {
		bad := func(format string, args ...any) { wrong = append(wrong, n.Info.Name+": "+fmt.Sprintf(format, args...)) }
		ids, links := map[int]bool{}, map[string]bool{}
		for i := range n.Endpoints {
			e := &n.Endpoints[i]
			ids[e.ID], links[e.Status.Networking.InterfaceName] = true, true
			if e.Status.Identity.ID == healthIdentity {
				continue // the node's own
			}
			if pods[e.Status.ExternalIdentifiers.PodName] == nil {
				bad("endpoint %d of %s, which is gone", e.ID, e.Status.ExternalIdentifiers.PodName)
			}
		}
		for a, owner := range n.Allocations {
			if owner != "router" && owner != "health" && !used[a] {
				bad("address %s is given to %s, which is gone", a, owner)
			}
		}
		referred := map[int]bool{}
		for _, row := range n.Kernel {
			referred[row.RuleSet] = true
			if !ids[row.ID] {
				bad("the kernel has a row for endpoint %d, which is gone", row.ID)
			}
		}
		for _, link := range n.Links {
			if !links[link] {
				bad("link %s of no endpoint", link)
			}
		}
		for _, id := range slices.Sorted(maps.Keys(n.RuleSets)) {
			if !referred[id] {
				bad("rule set %d of no endpoint", id)
			}
		}
	}
	return wrong
}

// used are the IDs that pods have.
func (w *World) used() map[string]bool {
	used := map[string]bool{}
	for i := range w.Endpoints {
		if id := w.Endpoints[i].Status.Identity; id != nil {
			used[strconv.FormatInt(id.ID, 10)] = true
		}
	}
	return used
}

// numbersMeanOne: every agent takes an ID that pods have for the labels that it stands for, and
// none for others.
func numbersMeanOne(w *World) (wrong []string) {
	used := w.used()
	for i := range w.Identities {
		id := &w.Identities[i]
		number, err := strconv.Atoi(id.Name)
		if err != nil || len(id.SecurityLabels) == 0 {
			continue // in quarantine
		}
		for _, n := range w.sortedNodes() {
			got, known := n.Identities[number]
			if want := IdentityLabels(id); known && !got.Equal(want) || !known && used[id.Name] {
				wrong = append(wrong, fmt.Sprintf("%s takes identity %s for %q (known: %t), it is %s", n.Info.Name, id.Name, got, known, want))
			}
		}
	}
	return wrong
}

// identitiesAreUnique: two IDs for one label set would evaluate the same pods differently. In a
// store an ID that was put back by an old copy stays until its references have run out, as long as
// no pod has it.
func identitiesAreUnique(w *World) (wrong []string) {
	used := w.used()
	seen := map[string]string{}
	for i := range w.Identities {
		id := &w.Identities[i]
		if len(id.SecurityLabels) == 0 || w.shared && !used[id.Name] {
			continue // in quarantine, or unused
		}
		text := IdentityLabels(id).String()
		if other := seen[text]; other != "" {
			wrong = append(wrong, fmt.Sprintf("%s and %s both are %s", other, id.Name, text))
		}
		seen[text] = id.Name
	}
	return wrong
}
