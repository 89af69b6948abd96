package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/test/cluster/flows"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

const (
	stage     = "mesh" // the namespace of the pods, in both clusters
	port      = 8080
	timeout   = time.Minute // for what must come about
	probeTime = 1500 * time.Millisecond
)

// roles of pods, one of each on every node: servers let in clients of the other cluster only; open
// ones let in everybody.
var roles = []string{"server", "client", "intruder", "open"}

// side is one cluster.
type side struct {
	*lab.Lab
	nodes    []string
	pods     map[string]*lab.Pod // by "role-node"
	services []netip.Addr
}

// mesh is the stage: pods of both clusters and their servers, whose numbers say which cluster they
// are of.
type mesh struct {
	a, b    *side
	hawser  func(ctx context.Context, out io.Writer, args ...string) error
	out     io.Writer
	began   time.Time
	servers *flows.Servers
	numbers flows.Numbers
	of      map[uint32]*side // whose server has this number
	number  map[string]uint32
}

func (m *mesh) say(format string, args ...any) {
	fmt.Fprintf(m.out, "%7.1fs %s\n", time.Since(m.began).Seconds(), fmt.Sprintf(format, args...))
}

func (m *mesh) sides() []*side { return []*side{m.a, m.b} }

func (m *mesh) other(s *side) *side {
	if s == m.a {
		return m.b
	}
	return m.a
}

// prepare makes pods, policies and a service in both clusters.
func (m *mesh) prepare(ctx context.Context) error {
	for _, s := range m.sides() {
		info, err := s.Info()
		if err != nil {
			return err
		}
		if info.ID == 0 || !info.DualStack {
			return fmt.Errorf("cluster %s has number %d, dual stack %t: both need a number and both families", s.Name, info.ID, info.DualStack)
		}
		if err := s.EnsureNamespace(ctx, stage, nil); err != nil {
			return err
		}
		var pods []*corev1.Pod
		for _, n := range info.Nodes {
			s.nodes = append(s.nodes, n.Name)
			for _, role := range roles {
				pods = append(pods, lab.Pause(stage, role+"-"+n.Name, n.Name, map[string]string{"role": role}))
			}
		}
		policy := fmt.Sprintf(`{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: servers, namespace: %s}, spec: {
  endpointSelector: {matchLabels: {role: server}},
  ingress: [{fromEndpoints: [{matchLabels: {role: client, io.cilium.k8s.policy.cluster: %s}}]}]}}`, stage, m.other(s).Name)
		if _, err := s.Kubectl(ctx, policy, "apply", "-f", "-"); err != nil {
			return err
		}
		service := &corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: stage, Name: "open", Annotations: map[string]string{"service.cilium.io/global": "true"}},
			Spec: corev1.ServiceSpec{
				Selector: map[string]string{"role": "open"}, IPFamilyPolicy: new(corev1.IPFamilyPolicyRequireDualStack),
				Ports: []corev1.ServicePort{{Name: "tcp", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP}},
			},
		}
		for i := range service.Spec.Ports {
			service.Spec.Ports[i].TargetPort.IntVal = port
		}
		if service, err = s.Kube.CoreV1().Services(stage).Create(ctx, service, metav1.CreateOptions{}); err != nil {
			return err
		}
		for _, ip := range service.Spec.ClusterIPs {
			s.services = append(s.services, netip.MustParseAddr(ip))
		}
		if err := s.CreatePods(ctx, 2*time.Minute, pods...); err != nil {
			return err
		}
	}
	return m.enter(ctx)
}

// enter opens the pods and starts their servers.
func (m *mesh) enter(ctx context.Context) error {
	m.servers, m.of, m.number = flows.NewServers(), map[uint32]*side{}, map[string]uint32{}
	var last uint32
	for _, s := range m.sides() {
		pods, err := s.OpenPods(ctx, stage)
		if err != nil {
			return err
		}
		s.pods = map[string]*lab.Pod{}
		for _, p := range pods {
			s.pods[p.Object.Name] = p
		}
		for _, name := range slices.Sorted(maps.Keys(s.pods)) {
			last++
			m.of[last], m.number[s.Name+"/"+name] = s, last
			if err := m.servers.Serve(s.pods[name].Namespace, last, s.pods[name].Addrs, port); err != nil {
				return fmt.Errorf("serve in %s/%s: %w", s.Name, name, err)
			}
		}
	}
	return nil
}

// remove takes the stage away.
func (m *mesh) remove(ctx context.Context) error {
	if m.servers != nil {
		m.servers.Close()
	}
	var errs []error
	for _, s := range m.sides() {
		lab.ClosePods(s.pods)
		errs = append(errs, s.DeleteNamespaces(ctx, stage))
	}
	return errors.Join(errs...)
}

// probe is a question of a pod to another one.
type probe struct {
	from, to *side
	src, dst string // pods
	allowed  bool
	// refused: a router on the way may refuse it, too.
	refused bool
}

// ask tries all probes, by TCP and UDP and both families, and returns how many there were and what
// was wrong.
func (m *mesh) ask(probes []probe) (asked int, err error) {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, 32)
	for _, p := range probes {
		for _, addr := range p.to.pods[p.dst].Addrs {
			for _, network := range []string{"tcp", "udp"} {
				asked++
				wg.Go(func() {
					slots <- struct{}{}
					defer func() { <-slots }()
					within := probeTime
					if p.allowed {
						within = 10 * time.Second // what is measured is not the load of the machine
					}
					err := flows.Ask(p.from.pods[p.src].Namespace, network, netip.AddrPortFrom(addr, port), m.number[p.to.Name+"/"+p.dst], within)
					what := ""
					switch {
					case p.allowed && err != nil:
						what = fmt.Sprintf("is denied: %v", err)
					case !p.allowed && err == nil:
						what = "gets through"
					case !p.allowed && !p.refused && !errors.Is(err, os.ErrDeadlineExceeded):
						what = fmt.Sprintf("is not dropped, but ends with %v", err)
					default:
						return
					}
					mu.Lock()
					defer mu.Unlock()
					errs = append(errs, fmt.Errorf("%s/%s -> %s/%s by %s at %s %s", p.from.Name, p.src, p.to.Name, p.dst, network, addr, what))
				})
			}
		}
	}
	wg.Wait()
	if n := len(errs); n > 4 {
		errs = append(errs[:4], fmt.Errorf("and %d more of %d", n-4, asked))
	}
	return asked, errors.Join(errs...)
}

// converge asks until nothing is wrong, and returns after how long that was.
func (m *mesh) converge(ctx context.Context, probes []probe) (asked int, took time.Duration, err error) {
	began := time.Now()
	err = lab.Eventually(ctx, timeout, func(context.Context) (err error) {
		asked, err = m.ask(probes)
		took = time.Since(began)
		return err
	})
	return asked, took, err
}

// pairs are the probes of a role in one cluster to another role in the same or the other one,
// between all nodes.
func pairs(from, to *side, src, dst string, allowed bool) (out []probe) {
	for _, n := range from.nodes {
		for _, o := range to.nodes {
			out = append(out, probe{from: from, to: to, src: src + "-" + n, dst: dst + "-" + o, allowed: allowed})
		}
	}
	return out
}

// status is what the agent of a node says of other clusters.
func (s *side) status(ctx context.Context, node string) (rest.ClusterMeshStatus, error) {
	var st rest.ClusterMeshStatus
	text, err := s.Exec(ctx, node, "hawser", "clustermesh", "status", "-o", "json")
	if jsonErr := json.Unmarshal([]byte(text), &st); jsonErr != nil {
		return st, errors.Join(err, jsonErr)
	}
	return st, nil // it fails where a cluster is away
}

// remote is what the agent of a node says of one other cluster.
func (s *side) remote(ctx context.Context, node, name string) (rest.RemoteCluster, error) {
	st, err := s.status(ctx, node)
	if err != nil {
		return rest.RemoteCluster{}, err
	}
	for _, r := range st.Clusters {
		if r.Name == name {
			return r, nil
		}
	}
	return rest.RemoteCluster{}, fmt.Errorf("agent %s/%s does not know %s", s.Name, node, name)
}

// label gives a pod another role.
func (s *side) label(ctx context.Context, pod, role string) error {
	patch := fmt.Sprintf(`{"metadata":{"labels":{"role":%q}}}`, role)
	_, err := s.Kube.CoreV1().Pods(stage).Patch(ctx, pod, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// annotate says which backends of the service are preferred.
func (s *side) annotate(ctx context.Context, affinity string) error {
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"service.cilium.io/affinity":%q}}}`, affinity)
	_, err := s.Kube.CoreV1().Services(stage).Patch(ctx, "open", types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	return err
}

// count asks the service from each node's client, and counts the answers by cluster.
func (m *mesh) count(s *side, each int) (own, others int, err error) {
	for _, n := range s.nodes {
		for _, vip := range s.services {
			for i := range each {
				network := []string{"tcp", "udp"}[i%2]
				who, err := flows.Who(s.pods["client-"+n].Namespace, network, netip.AddrPortFrom(vip, 80), 10*time.Second)
				if err != nil {
					return own, others, fmt.Errorf("client-%s of %s asks the service at %s by %s: %w", n, s.Name, vip, network, err)
				}
				if m.of[who] == s {
					own++
				} else {
					others++
				}
			}
		}
	}
	return own, others, nil
}

func join(texts []string) string { return strings.Join(texts, ", ") }
