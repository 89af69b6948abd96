package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/hawser-net/hawser/internal/policy/oracle"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/internal/testenv/policygen"
	"github.com/hawser-net/hawser/test/cluster/flows"
	"github.com/hawser-net/hawser/test/cluster/lab"
	"github.com/hawser-net/hawser/test/cluster/matrix"
)

// spaces are the namespaces of the pods.
var spaces = []string{"oracle-a", "oracle-b", "oracle-c"}

// probed is what is asked of every target; the ports are those that policies speak of.
var probed = []matrix.Port{
	{Protocol: matrix.TCP, Number: 80}, {Protocol: matrix.TCP, Number: 81}, {Protocol: matrix.TCP, Number: 443}, {Protocol: matrix.UDP, Number: 53},
	{Protocol: matrix.UDP, Number: 81}, {Protocol: matrix.ICMP},
}

// rounds compares worlds, each of some pods and one set of policies after the other.
type rounds struct {
	*lab.Lab
	options
	out    io.Writer
	began  time.Time
	result result

	config  oracle.Config
	pods    map[string]*lab.Pod
	parties []*matrix.Party
	places  []*lab.Namespace // of parties that are no pods
	servers *flows.Servers
	current []object
	names   int
	refusal string // the last one
}

func (r *rounds) run(ctx context.Context) error {
	r.config = oracle.Config{Mode: "default", ClusterName: r.Name, AllowLocalhost: true, DefaultLocalCluster: true, AllowNonDefaultDeny: true}
	if err := defineTiers(ctx, r.Lab); err != nil {
		return err
	}
	for world := uint64(0); ; world++ {
		seed := r.seed + world
		rng := rand.New(rand.NewPCG(seed, 0))
		if err := r.populate(ctx, rng); err != nil {
			return fmt.Errorf("world of seed %d: %w", seed, err)
		}
		r.result.Worlds++
		gen := &policygen.Generator{Rand: rng, Words: r.words()}
		for round := range r.each {
			if err := r.round(ctx, gen, fmt.Sprintf("seed %d, set %d", seed, round)); err != nil {
				return fmt.Errorf("seed %d, set %d: %w", seed, round, err)
			}
			if r.rounds > 0 && r.result.Rounds >= r.rounds || r.rounds == 0 && time.Since(r.began) > r.lasts || len(r.result.Differences) >= 5 {
				return nil
			}
		}
	}
}

// remove takes away everything that was made.
func (r *rounds) remove(ctx context.Context) error {
	r.leave()
	if _, err := r.replace(ctx, nil); err != nil {
		return err
	}
	return r.DeleteNamespaces(ctx, spaces...)
}

func (r *rounds) leave() {
	if r.servers == nil {
		return
	}
	r.servers.Close()
	lab.ClosePods(r.pods)
	for _, p := range r.places {
		p.Close()
	}
	r.servers, r.pods, r.places, r.parties = nil, nil, nil, nil
}

// populate makes new namespaces with new pods, and starts their servers.
func (r *rounds) populate(ctx context.Context, rng *rand.Rand) error {
	r.leave()
	if _, err := r.replace(ctx, nil); err != nil {
		return err
	}
	info, err := r.Info()
	if err != nil {
		return err
	}
	if !info.DualStack {
		return fmt.Errorf("cluster %q has one family of addresses; the oracle wants both", r.Name)
	}
	pick := func(list ...string) string { return list[rng.IntN(len(list))] }
	for _, ns := range spaces {
		set := map[string]string{}
		if rng.IntN(2) == 0 {
			set["team"] = pick("red", "blue")
		}
		if err := r.Relabel(ctx, ns, set); err != nil {
			return err
		}
	}
	var pods []*corev1.Pod
	for i := range r.options.pods {
		set := map[string]string{"app": pick("x", "y", "z")}
		if rng.IntN(2) == 0 {
			set["tier"] = pick("f", "g")
		}
		p := lab.Pause(pick(spaces...), fmt.Sprintf("pod-%d", i), info.Nodes[rng.IntN(len(info.Nodes))].Name, set)
		for _, name := range []string{"http", "dns"} {
			if rng.IntN(2) == 0 {
				p.Spec.Containers[0].Ports = append(p.Spec.Containers[0].Ports, corev1.ContainerPort{
					Name: name, ContainerPort: []int32{53, 80, 81}[rng.IntN(3)], Protocol: corev1.Protocol(pick("TCP", "UDP")),
				})
			}
		}
		pods = append(pods, p)
	}
	if err := r.CreatePods(ctx, 2*time.Minute, pods...); err != nil {
		return err
	}
	return r.enter(ctx, info)
}

// enter opens the pods and the other places, and starts servers in all of them.
func (r *rounds) enter(ctx context.Context, info *kube.Info) (err error) {
	r.servers = flows.NewServers()
	if r.pods, err = r.OpenPods(ctx, spaces...); err != nil {
		return err
	}
	for _, name := range slices.Sorted(maps.Keys(r.pods)) {
		p := r.pods[name]
		party := &matrix.Party{Name: name, Node: p.Node(), Namespace: p.Namespace, Addrs: p.Addrs, Labels: p.Labels}
		for _, port := range p.Object.Spec.Containers[0].Ports {
			party.NamedPorts = append(party.NamedPorts, fmt.Sprintf("%s/%s/%d", port.Name, port.Protocol, port.ContainerPort))
		}
		r.parties = append(r.parties, party)
	}
	for _, p := range r.parties {
		for _, q := range r.parties {
			if p.Labels.Equal(q.Labels) {
				p.PeerPorts = append(p.PeerPorts, q.NamedPorts...)
			}
		}
	}
	if err := r.place(&matrix.Party{Name: "world", Node: "none", Addrs: []netip.Addr{info.WorldIPv4, info.WorldIPv6}}, info.World); err != nil {
		return err
	}
	for _, n := range info.Nodes {
		// To pods a node speaks from the first address of its own range of pods.
		source := []netip.Addr{n.Pods4.Addr().Next(), n.Pods6.Addr().Next()}
		if err := r.place(&matrix.Party{Name: n.Name, Node: n.Name, IsNode: true, Addrs: []netip.Addr{n.IPv4, n.IPv6}, SourceAddrs: source}, n.Netns); err != nil {
			return err
		}
	}
	for i, p := range r.parties {
		p.Number = uint32(i + 1)
		if err := r.servers.Serve(p.Namespace, p.Number, p.Addrs, 80, 81, 443, 53); err != nil {
			return fmt.Errorf("serve in %s: %w", p.Name, err)
		}
	}
	return nil
}

func (r *rounds) place(p *matrix.Party, path string) error {
	ns, err := lab.OpenNamespace(path)
	if err != nil {
		return err
	}
	p.Namespace = ns
	r.places, r.parties = append(r.places, ns), append(r.parties, p)
	return nil
}

// words are those that mean something in this cluster; some are addresses of pods.
func (r *rounds) words() policygen.Words {
	var four, six []string
	for _, name := range slices.Sorted(maps.Keys(r.pods))[:min(2, len(r.pods))] {
		four = append(four, r.pods[name].Addr(false).String()+"/32")
		six = append(six, r.pods[name].Addr(true).String()+"/128")
	}
	return policygen.Words{
		Namespaces: spaces, Clusters: []string{r.Name, "elsewhere"},
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

// round compares one set of policies.
func (r *rounds) round(ctx context.Context, gen *policygen.Generator, name string) error {
	var objects []object
	for i := range 1 + gen.Rand.IntN(6) {
		objects = append(objects, random(gen, fmt.Sprintf("p%d", i)))
	}
	began := time.Now()
	kept, err := r.replace(ctx, objects)
	if err != nil {
		return err
	}
	r.result.Rounds++
	r.result.Policies += len(kept)
	probes := matrix.Plan(r.parties, probed, r.judge(kept))
	wrong, err := matrix.Measure(ctx, probes, r.settle)
	if err != nil {
		return err
	}
	r.count(probes)
	fmt.Fprintf(r.out, "%6.0fs %s: %d policies, %s, %d not as the oracle says (%.1f s)\n",
		time.Since(r.began).Seconds(), name, len(kept), matrix.Summary(probes), len(wrong), time.Since(began).Seconds())
	if r.refusal != "" {
		fmt.Fprintf(r.out, "        the API server refused a policy: %s\n", r.refusal)
		r.refusal = ""
	}
	if len(wrong) == 0 {
		return nil
	}
	for i, p := range wrong {
		if i == 10 {
			fmt.Fprintf(r.out, "        and %d more\n", len(wrong)-i)
			break
		}
		fmt.Fprintf(r.out, "        %s\n", p)
	}
	text, err := r.smallest(ctx, kept, wrong[0])
	if err != nil {
		return err
	}
	r.result.Differences = append(r.result.Differences, name+": "+text)
	fmt.Fprintf(r.out, "%s\n", text)
	return nil
}

func (r *rounds) judge(objects []object) matrix.Judge {
	j := matrix.Judge{Config: r.config}
	for _, o := range objects {
		j.Policies = append(j.Policies, o.policy())
	}
	return j
}

func (r *rounds) count(probes []*matrix.Probe) {
	for _, p := range probes {
		r.result.Probes++
		if p.Reached {
			r.result.Reached++
		} else {
			r.result.Denied++
		}
		if p.Addr.Is4() {
			r.result.Kinds.IPv4++
		} else {
			r.result.Kinds.IPv6++
		}
		switch p.Port.Protocol {
		case matrix.TCP:
			r.result.Kinds.TCP++
		case matrix.UDP:
			r.result.Kinds.UDP++
		case matrix.ICMP:
			r.result.Kinds.ICMP++
		}
	}
}

// smallest takes away what does not matter for a probe that came out wrong, and describes what is left.
func (r *rounds) smallest(ctx context.Context, objects []object, wrong *matrix.Probe) (string, error) {
	began, last := time.Now(), *wrong
	differs := func(objects []object) (bool, error) {
		kept, err := r.replace(ctx, objects)
		if err != nil || len(kept) < len(objects) {
			return false, err
		}
		p := *wrong
		r.judge(kept).Expect(&p)
		found, err := matrix.Measure(ctx, []*matrix.Probe{&p}, 2*time.Second)
		if len(found) > 0 {
			last = p
		}
		return len(found) > 0, err
	}
	objects, tries, err := shrink(objects, func(o []object) (bool, error) {
		if time.Since(began) > 4*time.Minute {
			return false, nil // small enough
		}
		return differs(o)
	})
	if err != nil {
		return "", err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n", last.String())
	for _, p := range []*matrix.Party{wrong.From, wrong.To} {
		fmt.Fprintf(&b, "  %s on %s, %v, ports %v: %s\n", p.Name, p.Node, p.Addrs, p.NamedPorts, p.Labels)
	}
	fmt.Fprintf(&b, "  policies, after %d tries to make them smaller:\n", tries)
	for _, o := range objects {
		fmt.Fprintf(&b, "---\n%s", o.text())
	}
	return b.String(), nil
}
