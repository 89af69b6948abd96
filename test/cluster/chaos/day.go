package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy/oracle"
	"github.com/hawser-net/hawser/internal/sandbox/kube"
	"github.com/hawser-net/hawser/pkg/retry"
	"github.com/hawser-net/hawser/test/cluster/flows"
	"github.com/hawser-net/hawser/test/cluster/invariant"
	"github.com/hawser-net/hawser/test/cluster/lab"
	"github.com/hawser-net/hawser/test/cluster/matrix"
)

const (
	stage      = "bad-days" // the namespace of the traffic
	openPort   = 8080       // of servers, for clients
	backPort   = 8081       // of servers, for clients by way of a service only: see service
	closedPort = 9090       // of servers, closed to all
)

// roles of pods; one of each on every node.
var roles = []string{"server", "client", "intruder", "prisoner", "open"}

// policies of the stage, one of each kind of object.
const policies = `
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: servers, namespace: bad-days}
spec:
  podSelector: {matchLabels: {role: server}}
  policyTypes: [Ingress]
  ingress:
  - from: [{podSelector: {matchLabels: {role: client}}}]
    ports: [{protocol: TCP, port: 8080, endPort: 8081}, {protocol: UDP, port: 8080, endPort: 8081}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: prisoners, namespace: bad-days}
spec:
  endpointSelector: {matchLabels: {role: prisoner}}
  egress:
  - toEndpoints: [{matchLabels: {role: client}}]
    toPorts: [{ports: [{port: "8080", protocol: TCP}]}]
`

// day is the stage: pods on every node, their servers, policies, and what the oracle says of them.
type day struct {
	*lab.Lab
	out       io.Writer
	began     time.Time
	nodes     []kube.NodeInfo
	numbers   flows.Numbers
	evaluator matrix.Evaluator

	pods     map[string]*lab.Pod // by "role-node"
	services map[string][]netip.Addr
	servers  *flows.Servers
	notes    []string
	undo     []func() error // what the scenario has done to the cluster, see undoing
}

func newDay(l *lab.Lab, out io.Writer) *day {
	return &day{Lab: l, out: out, began: time.Now(), services: map[string][]netip.Addr{}}
}

func (d *day) say(format string, args ...any) {
	fmt.Fprintf(d.out, "%7.1fs %s\n", time.Since(d.began).Seconds(), fmt.Sprintf(format, args...))
}

// note adds a figure to the outcome.
func (d *day) note(format string, args ...any) {
	text := fmt.Sprintf(format, args...)
	d.notes = append(d.notes, text)
	d.say("  %s", text)
}

// prepare makes the stage.
func (d *day) prepare(ctx context.Context) error {
	info, err := d.Info()
	if err != nil {
		return err
	}
	if d.nodes = info.Nodes; len(d.nodes) < 3 || !info.DualStack {
		return fmt.Errorf("cluster %q has %d nodes, dual stack %t: chaos needs three nodes, one to lose, and both families", d.Name, len(d.nodes), info.DualStack)
	}
	if err := d.readPolicies(); err != nil {
		return err
	}
	if err := d.remove(ctx); err != nil {
		return err
	}
	d.say("making %d pods on %d nodes", len(d.nodes)*len(roles), len(d.nodes))
	if err := d.EnsureNamespace(ctx, stage, map[string]string{"stage": "yes"}); err != nil {
		return err
	}
	if _, err := d.Kubectl(ctx, policies, "apply", "-f", "-"); err != nil {
		return err
	}
	var pods []*corev1.Pod
	for _, n := range d.nodes {
		for _, role := range roles {
			pods = append(pods, d.pod(role, n.Name))
		}
		if err := d.service(ctx, n.Name); err != nil {
			return err
		}
	}
	return d.CreatePods(ctx, 2*time.Minute, pods...)
}

func (d *day) pod(role, node string) *corev1.Pod {
	return lab.Pause(stage, role+"-"+node, node, map[string]string{"role": role, "on": node})
}

// service leads to the server of one node, so that flows by it stay where they are when another
// node is lost. It leads to a port of its own: a client that has a connection to a backend by a
// service, and opens one to the same port of the backend directly, may by chance get the same port
// on its side for both.
func (d *day) service(ctx context.Context, node string) error {
	object := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: stage, Name: "server-" + node},
		Spec: corev1.ServiceSpec{
			// Kubernetes calls every pod of a node that does not report unready. The flows
			// are to show what the network does.
			PublishNotReadyAddresses: true,
			Selector:                 map[string]string{"role": "server", "on": node}, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
			Ports: []corev1.ServicePort{{Name: "tcp", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP}},
		},
	}
	for i := range object.Spec.Ports {
		object.Spec.Ports[i].TargetPort.IntVal = backPort
	}
	object, err := d.Kube.CoreV1().Services(stage).Create(ctx, object, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	d.services[node] = nil
	for _, ip := range object.Spec.ClusterIPs {
		d.services[node] = append(d.services[node], netip.MustParseAddr(ip))
	}
	return nil
}

// readPolicies hands the oracle the policies as they are written above.
func (d *day) readPolicies() error {
	first, second, _ := strings.Cut(policies, "\n---\n")
	var network networkingv1.NetworkPolicy
	if err := yaml.UnmarshalStrict([]byte(first), &network); err != nil {
		return err
	}
	var custom v2.CiliumNetworkPolicy
	if err := yaml.UnmarshalStrict([]byte(second), &custom); err != nil {
		return err
	}
	d.evaluator = matrix.Evaluator{
		Config:   oracle.Config{Mode: "default", ClusterName: d.Name, AllowLocalhost: true, DefaultLocalCluster: true, AllowNonDefaultDeny: true},
		Policies: []oracle.Policy{oracle.FromNetworkPolicy(&network), oracle.FromObject(&custom)},
	}
	return nil
}

// remove takes away the stage, and what a scenario that failed left.
func (d *day) remove(ctx context.Context) error {
	d.leave()
	list, err := d.Kube.CoreV1().Namespaces().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	var ours []string
	for _, n := range list.Items {
		if strings.HasPrefix(n.Name, stage) {
			ours = append(ours, n.Name)
		}
	}
	return d.DeleteNamespaces(ctx, ours...)
}

// enter opens the pods as they are now and starts their servers.
func (d *day) enter(ctx context.Context) error {
	d.leave()
	pods, err := d.OpenPods(ctx, stage)
	if err != nil {
		return err
	}
	d.servers, d.pods = flows.NewServers(), map[string]*lab.Pod{}
	for _, p := range pods {
		d.pods[p.Object.Name] = p
	}
	if len(d.pods) != len(d.nodes)*len(roles) {
		return fmt.Errorf("%d pods of %d run", len(d.pods), len(d.nodes)*len(roles))
	}
	for i, name := range slices.Sorted(maps.Keys(d.pods)) {
		p := d.pods[name]
		if err := d.servers.Serve(p.Namespace, uint32(i+1), p.Addrs, openPort, backPort, closedPort); err != nil {
			return fmt.Errorf("serve in pod %s: %w", name, err)
		}
	}
	return nil
}

// leave ends the servers and closes the pods.
func (d *day) leave() {
	if d.servers != nil {
		d.servers.Close()
		lab.ClosePods(d.pods)
		d.servers, d.pods = nil, nil
	}
}

// check waits until all invariants hold, and measures the matrix.
func (d *day) check(ctx context.Context, out *outcome, when string) {
	fault := func(err error) { out.Faults = append(out.Faults, fmt.Sprintf("%s: %v", when, err)) }
	began := time.Now()
	if err := invariant.Hold(ctx, d.Lab, 90*time.Second); err != nil {
		fault(err)
	}
	if took := time.Since(began); took > 2*time.Second {
		d.note("%s: the invariants hold after %.1f s", when, took.Seconds())
	}
	if err := d.enter(ctx); err != nil {
		fault(err)
		return
	}
	var parties []*matrix.Party
	for i, name := range slices.Sorted(maps.Keys(d.pods)) {
		p := d.pods[name]
		parties = append(parties, &matrix.Party{Name: name, Node: p.Node(), Namespace: p.Namespace, Addrs: p.Addrs, Labels: p.Labels, Number: uint32(i + 1)})
	}
	probes := matrix.Plan(parties, []matrix.Port{{Protocol: matrix.TCP, Number: openPort}, {Protocol: matrix.UDP, Number: openPort},
		{Protocol: matrix.TCP, Number: closedPort}, {Protocol: matrix.ICMP}}, d.evaluator)
	wrong, err := matrix.Measure(ctx, probes, 10*time.Second)
	if err != nil {
		fault(err)
	}
	for i, p := range wrong {
		if i == 5 {
			fault(fmt.Errorf("and %d more probes of %d", len(wrong)-i, len(probes)))
			break
		}
		fault(fmt.Errorf("%s", p))
	}
	out.Probes += len(probes)
}

// undoTimeout bounds how long it takes to undo one thing that a scenario has done: at most the
// programs of a cluster are started again.
const undoTimeout = 5 * time.Minute

// undoing has f undo what the scenario does next to the cluster, such as freezing or killing a
// program that nothing starts again, however the scenario ends: one that fails halfway must not
// fail all after it. The scenario calls now when it is time, and f is not called again. f has a
// context that outlives the scenario's, and must bear that there is nothing to undo.
func (d *day) undoing(ctx context.Context, f func(context.Context) error) (now func() error) {
	done := false
	now = func() error {
		if done {
			return nil
		}
		done = true
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), undoTimeout)
		defer cancel()
		return f(ctx)
	}
	d.undo = append(d.undo, now)
	return now
}

// act runs a scenario and undoes what it has left undone, the last first.
func (d *day) act(ctx context.Context, s scenario) (err error) {
	defer func() {
		for _, undo := range slices.Backward(d.undo) {
			if undoErr := undo(); undoErr != nil {
				err = errors.Join(err, fmt.Errorf("undo %s: %w", s.name, undoErr))
			}
		}
		d.undo = nil
	}()
	return s.run(ctx, d)
}

// play runs one scenario with traffic around it.
func (d *day) play(ctx context.Context, s scenario) (out outcome) {
	out = outcome{Scenario: s.name}
	d.notes = nil
	began := time.Now()
	d.say("%s: %s", s.name, s.about)
	defer func() {
		out.Took = time.Since(began)
		out.Notes = d.notes
		out.Passed = len(out.Faults) == 0 && out.Lost == 0 && out.Wrong == 0 && out.Flows > 0
		if out.Passed {
			d.say("%s: ok, %d messages, none lost; %d forbidden ones, none arrived", s.name, out.Sent, out.Forbidden)
		} else {
			d.say("%s: FAILED, %d lost, %d wrong, %d faults", s.name, out.Lost, out.Wrong, len(out.Faults))
		}
	}()
	if d.check(ctx, &out, "before"); len(out.Faults) > 0 {
		return out
	}
	var away string
	if s.away != nil {
		away = s.away(d)
	}
	traffic, err := flows.Start(ctx, d.servers, &d.numbers, d.plan(away))
	if err != nil {
		out.Faults = append(out.Faults, err.Error())
		return out
	}
	retry.Sleep(ctx, 2*time.Second) // so that what follows happens to flows that are well under way
	if err := d.act(ctx, s); err != nil {
		out.Faults = append(out.Faults, err.Error())
	}
	// The traffic goes on until the cluster has settled, and a little more.
	if err := invariant.Hold(ctx, d.Lab, 2*time.Minute); err != nil {
		out.Faults = append(out.Faults, fmt.Sprintf("under traffic: %v", err))
	}
	retry.Sleep(ctx, 2*time.Second)
	out.add(traffic.Stop())
	if ctx.Err() == nil {
		d.check(ctx, &out, "after")
	}
	return out
}

// plan lists the flows: on each node and from each to the next, directly by both families and by a
// service, allowed ones and forbidden ones. None of them touches the node that is away.
func (d *day) plan(away string) []flows.Flow {
	var out []flows.Flow
	var names []string
	for _, n := range d.nodes {
		if n.Name != away {
			names = append(names, n.Name)
		}
	}
	for i, from := range names {
		for _, to := range []string{from, names[(i+1)%len(names)]} {
			for _, six := range []bool{false, true} {
				out = append(out, d.between(from, to, six)...)
			}
		}
	}
	return out
}

func (d *day) between(from, to string, six bool) []flows.Flow {
	server, client := d.pods["server-"+to], d.pods["client-"+from]
	family := 4
	if six {
		family = 6
	}
	flow := func(kind flows.Kind, who, whom *lab.Pod, port uint16, allowed bool) flows.Flow {
		return flows.Flow{
			Name: fmt.Sprintf("%s %s -> %s:%d IPv%d", kind, who.Object.Name, whom.Object.Name, port, family),
			Kind: kind, From: who.Namespace, To: netip.AddrPortFrom(whom.Addr(six), port), Allowed: allowed,
		}
	}
	out := []flows.Flow{
		flow(flows.TCPEstablished, client, server, openPort, true), flow(flows.UDPEstablished, client, server, openPort, true),
		flow(flows.TCPNew, client, server, openPort, true), flow(flows.UDPNew, client, server, openPort, true),
		flow(flows.TCPNew, d.pods["intruder-"+from], server, openPort, false), flow(flows.UDPNew, d.pods["intruder-"+from], server, openPort, false),
		flow(flows.TCPNew, client, server, closedPort, false), flow(flows.UDPNew, d.pods["prisoner-"+from], d.pods["open-"+to], openPort, false),
	}
	for _, a := range d.services[to] {
		if a.Is6() != six {
			continue
		}
		for _, kind := range []flows.Kind{flows.TCPEstablished, flows.TCPNew} {
			f := flow(kind, client, server, backPort, true)
			f.Name, f.To = strings.Replace(f.Name, "-> ", "-> service of ", 1), netip.AddrPortFrom(a, 80)
			out = append(out, f)
		}
	}
	return out
}
