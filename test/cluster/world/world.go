// Package world makes random pods in random namespaces of a cluster (package lab), gives it
// random policies of all kinds, and says what the oracle of internal/policy expects of them.
//
// A World is used by one goroutine at a time.
package world

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/netip"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/hawser-net/hawser/internal/policy/oracle"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/testenv/policygen"
	"github.com/hawser-net/hawser/test/cluster/flows"
	"github.com/hawser-net/hawser/test/cluster/invariant"
	"github.com/hawser-net/hawser/test/cluster/lab"
	"github.com/hawser-net/hawser/test/cluster/matrix"
)

// ownerLabel is on every policy of a world, so that a later run finds those of one that was cut
// short.
const ownerLabel = "test.hawser.net/world"

// Ports are what is asked of every target; their numbers are those that policies speak of.
func Ports() []matrix.Port {
	return []matrix.Port{
		{Protocol: matrix.TCP, Number: 80}, {Protocol: matrix.TCP, Number: 81},
		{Protocol: matrix.TCP, Number: 443}, {Protocol: matrix.UDP, Number: 53},
		{Protocol: matrix.UDP, Number: 81}, {Protocol: matrix.ICMP},
	}
}

// World is the pods and the policies of a cluster.
type World struct {
	*lab.Lab
	// Spaces are the namespaces of the pods.
	Spaces []string
	// Pods are those that run, by namespace/name; Parties are what is probed, pods and others.
	Pods    map[string]*lab.Pod
	Parties []*matrix.Party
	// Policies are those in force.
	Policies []Object
	// Refused counts policies that the API server finds invalid; Refusal is its last reason.
	Refused int
	Refusal string

	prefix  string
	config  oracle.Config
	places  []*lab.Namespace // of parties that are no pods
	servers *flows.Servers
	names   int
}

// New returns a world without pods and policies in namespaces called prefix-a and so on. The
// cluster must know the kind ClusterNetworkPolicy: see Prepare.
func New(l *lab.Lab, prefix string) *World {
	return &World{
		Lab: l, prefix: prefix, Spaces: []string{prefix + "-a", prefix + "-b", prefix + "-c"},
		config: oracle.Config{
			Mode: "default", ClusterName: l.Name, AllowLocalhost: true, DefaultLocalCluster: true, AllowNonDefaultDeny: true,
		},
	}
}

// Prepare makes the definition of ClusterNetworkPolicy, as its project publishes it, known to the
// API server, and removes policies that an earlier run with the same prefix left.
func (w *World) Prepare(ctx context.Context) error {
	dir, err := exec.CommandContext(ctx, "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		return fmt.Errorf("find the definition of ClusterNetworkPolicy: %w", err)
	}
	file := filepath.Join(strings.TrimSpace(string(dir)), "config/crd/standard/policy.networking.k8s.io_clusternetworkpolicies.yaml")
	if _, err := w.Kubectl(ctx, "", "apply", "--server-side", "-f", file); err != nil {
		return err
	}
	_, err = w.Kubectl(ctx, "", "wait", "--for=condition=Established", "--timeout=1m", "crd/clusternetworkpolicies.policy.networking.k8s.io")
	if err != nil {
		return err
	}
	const kinds = "networkpolicies,ciliumnetworkpolicies,ciliumclusterwidenetworkpolicies,clusternetworkpolicies"
	_, err = w.Kubectl(ctx, "", "delete", kinds, "-A", "-l", ownerLabel+"="+w.prefix)
	return err
}

// Remove takes away everything that was made.
func (w *World) Remove(ctx context.Context) error {
	w.Leave()
	if _, err := w.Replace(ctx, nil); err != nil {
		return err
	}
	return w.DeleteNamespaces(ctx, w.Spaces...)
}

// Leave ends the servers and gives up the namespaces of pods and other parties.
func (w *World) Leave() {
	if w.servers == nil {
		return
	}
	w.servers.Close()
	lab.ClosePods(w.Pods)
	for _, p := range w.places {
		p.Close()
	}
	w.servers, w.Pods, w.places, w.Parties = nil, nil, nil, nil
}

// RandomLabels returns labels of a pod that policies may select.
func RandomLabels(rng *rand.Rand) map[string]string {
	set := map[string]string{"app": pick(rng, "x", "y", "z")}
	if rng.IntN(2) == 0 {
		set["tier"] = pick(rng, "f", "g")
	}
	return set
}

// RandomNamespaceLabels returns labels of a namespace that policies may select.
func RandomNamespaceLabels(rng *rand.Rand) map[string]string {
	set := map[string]string{}
	if rng.IntN(2) == 0 {
		set["team"] = pick(rng, "red", "blue")
	}
	return set
}

func pick(rng *rand.Rand, list ...string) string { return list[rng.IntN(len(list))] }

// RandomPod returns the object of a pod with random labels and named ports, on a random node.
func (w *World) RandomPod(rng *rand.Rand, name string, nodes []kube.NodeInfo) *corev1.Pod {
	set := RandomLabels(rng)
	p := lab.Pause(pick(rng, w.Spaces...), name, nodes[rng.IntN(len(nodes))].Name, set)
	for _, port := range []string{"http", "dns"} {
		if rng.IntN(2) == 0 {
			p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{
				Name: port, ContainerPort: []int32{53, 80, 81}[rng.IntN(3)], Protocol: corev1.Protocol(pick(rng, "TCP", "UDP")),
			})
		}
	}
	return p
}

// Populate makes new namespaces with new pods, and starts their servers.
func (w *World) Populate(ctx context.Context, rng *rand.Rand, pods int) error {
	w.Leave()
	if _, err := w.Replace(ctx, nil); err != nil {
		return err
	}
	info, err := w.Info()
	if err != nil {
		return err
	}
	if !info.DualStack {
		return fmt.Errorf("cluster %q has one family of addresses; the oracle wants both", w.Name)
	}
	for _, ns := range w.Spaces {
		if err := w.Relabel(ctx, ns, RandomNamespaceLabels(rng)); err != nil {
			return err
		}
	}
	var objects []*corev1.Pod
	for i := range pods {
		objects = append(objects, w.RandomPod(rng, fmt.Sprintf("pod-%d", i), info.Nodes))
	}
	if err := w.CreatePods(ctx, 2*time.Minute, objects...); err != nil {
		return err
	}
	return w.Enter(ctx)
}

// Enter opens the pods as they are now and the other places, and starts servers in all of them.
func (w *World) Enter(ctx context.Context) (err error) {
	w.Leave()
	info, err := w.Info()
	if err != nil {
		return err
	}
	w.servers = flows.NewServers()
	if w.Pods, err = w.OpenPods(ctx, w.Spaces...); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(w.Pods)) {
		p := w.Pods[name]
		party := &matrix.Party{Name: name, Node: p.Node(), Namespace: p.Namespace, Addrs: p.Addrs, Labels: p.Labels}
		for _, port := range p.Object.Spec.Containers[0].Ports {
			party.NamedPorts = append(party.NamedPorts, fmt.Sprintf("%s/%s/%d", port.Name, port.Protocol, port.ContainerPort))
		}
		w.Parties = append(w.Parties, party)
	}
	w.nameResolved()
	world := &matrix.Party{Name: "world", Node: "none", Addrs: []netip.Addr{info.WorldIPv4, info.WorldIPv6}}
	if err := w.place(world, info.World); err != nil {
		return err
	}
	for _, n := range info.Nodes {
		// To pods a node speaks from the first address of its own range of pods.
		source := []netip.Addr{n.Pods4.Addr().Next(), n.Pods6.Addr().Next()}
		node := &matrix.Party{Name: n.Name, Node: n.Name, IsNode: true, Addrs: []netip.Addr{n.IPv4, n.IPv6}, SourceAddrs: source}
		if err := w.place(node, n.Netns); err != nil {
			return err
		}
	}
	for i, p := range w.Parties {
		p.Number = uint32(i + 1)
		if err := w.servers.Serve(p.Namespace, p.Number, p.Addrs, 80, 81, 443, 53); err != nil {
			return fmt.Errorf("serve in %s: %w", p.Name, err)
		}
	}
	return nil
}

// nameResolved sets what a name of a port in an egress rule means at each pod.
func (w *World) nameResolved() {
	for _, p := range w.Parties {
		p.PeerPorts = nil
		for _, q := range w.Parties {
			if p.Labels != nil && p.Labels.Equal(q.Labels) {
				p.PeerPorts = append(p.PeerPorts, q.NamedPorts...)
			}
		}
	}
}

func (w *World) place(p *matrix.Party, path string) error {
	ns, err := lab.OpenNamespace(path)
	if err != nil {
		return err
	}
	p.Namespace = ns
	w.places, w.Parties = append(w.places, ns), append(w.Parties, p)
	return nil
}

// Words are those that mean something in this cluster; some are addresses of pods.
func (w *World) Words() policygen.Words {
	var four, six []string
	for _, name := range slices.Sorted(maps.Keys(w.Pods))[:min(2, len(w.Pods))] {
		four = append(four, w.Pods[name].Addr(false).String()+"/32")
		six = append(six, w.Pods[name].Addr(true).String()+"/128")
	}
	return policygen.Words{
		Namespaces: w.Spaces, Clusters: []string{w.Name, "elsewhere"},
		CIDRs: []string{"0.0.0.0/0", "::/0", "10.0.0.0/8", "10.99.0.0/24", "10.99.0.1/32", "10.244.0.0/16", "10.244.1.0/24", "192.0.2.0/24",
			"fd00::/8", "fd00:99::/64", "fd00:99::1/128", "2001:db8::/32"},
		Wide4: []string{"0.0.0.0/0", "10.0.0.0/8"}, Except4: []string{"10.99.0.0/16", "10.244.0.0/16", "10.99.0.1/32", "10.0.0.0/9"},
		Wide6: []string{"::/0", "fd00::/8"}, Except6: []string{"fd00:99::/64", "fd00:99::1/128", "fd00:10:244::/48"},
		Blocks4: []string{"0.0.0.0/0", "10.0.0.0/8"}, BlockExcept4: append([]string{"10.244.1.0/24", "10.99.0.0/24", "10.244.2.0/25"}, four...),
		Exact4:  append([]string{"10.244.0.0/16", "10.99.0.1/32"}, four...),
		Blocks6: []string{"::/0", "fd00::/8"}, BlockExcept6: append([]string{"fd00:10:244:1::/64", "fd00:99::1/128"}, six...),
		Networks: append([]string{"0.0.0.0/0", "10.0.0.0/8", "10.244.0.0/16", "10.99.0.1/32", "::/0", "fd00:99::/64", "fd00:10:244:1::/64"}, append(four, six...)...),
	}
}

// Evaluator says what the oracle expects under policies.
func (w *World) Evaluator(policies []Object) matrix.Evaluator {
	j := matrix.Evaluator{Config: w.config}
	for _, o := range policies {
		j.Policies = append(j.Policies, o.Policy())
	}
	return j
}

// Add hands a policy to the API server, under a name that was not used before: what an agent still
// has of an earlier policy must not pass for this one. One that the API server finds invalid is
// left out, and added is false. It does not wait for the agents.
func (w *World) Add(ctx context.Context, o Object) (added bool, err error) {
	w.names++
	o = o.Copy()
	o.Meta().Name = fmt.Sprintf("random-%d", w.names)
	o.Meta().Labels = map[string]string{ownerLabel: w.prefix}
	if err := o.Create(ctx, w.Lab); apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) {
		w.Refused++
		w.Refusal = err.Error()
		return false, nil
	} else if err != nil {
		return false, fmt.Errorf("create %s: %w", o.Text(), err)
	}
	w.Policies = append(slices.Clone(w.Policies), o)
	return true, nil
}

// Drop removes the policy of this index. It does not wait for the agents.
func (w *World) Drop(ctx context.Context, i int) error {
	if err := w.Policies[i].Remove(ctx, w.Lab); err != nil {
		return err
	}
	w.Policies = without(w.Policies, i)
	return nil
}

// Replace puts policies in the place of those that are there, and waits until every agent has them.
// It returns those that the API server took.
func (w *World) Replace(ctx context.Context, objects []Object) (kept []Object, err error) {
	old := w.Policies
	w.Policies = nil
	for _, o := range objects {
		if _, err := w.Add(ctx, o); err != nil {
			w.Policies = append(w.Policies, old...)
			return nil, err
		}
	}
	kept = w.Policies
	for i, o := range old {
		if err := o.Remove(ctx, w.Lab); err != nil {
			w.Policies = append(slices.Clone(kept), old[i:]...)
			return kept, err
		}
	}
	return kept, w.Arrived(ctx, time.Minute)
}

// Arrived waits until every agent has exactly the policies in force.
func (w *World) Arrived(ctx context.Context, timeout time.Duration) error {
	info, err := w.Info()
	if err != nil {
		return err
	}
	var want []string
	for _, o := range w.Policies {
		want = append(want, o.Meta().Name)
	}
	slices.Sort(want)
	return lab.Eventually(ctx, timeout, func(ctx context.Context) error {
		for _, n := range info.Nodes {
			c, err := invariant.Agent(n)
			if err != nil {
				return err
			}
			files, err := c.Policy(ctx)
			c.Close()
			if err != nil {
				return err
			}
			if got := names(files.Policy); !slices.Equal(got, want) {
				return fmt.Errorf("the agent of %s has the policies %v, want %v", n.Name, got, want)
			}
		}
		return nil
	})
}

// names returns the names of the policies in what an agent says of its rules, sorted.
func names(text string) (out []string) {
	var rules []struct{ Owner string }
	if err := json.Unmarshal([]byte(text), &rules); err != nil {
		return []string{err.Error()}
	}
	for _, r := range rules {
		out = append(out, r.Owner[strings.LastIndexByte(r.Owner, '/')+1:])
	}
	slices.Sort(out)
	return slices.Compact(out)
}
