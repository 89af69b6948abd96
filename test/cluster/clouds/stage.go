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
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/sandbox/region"
	"github.com/hawser-net/hawser/test/cluster/flows"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

const (
	stage       = "clouds" // the namespace of pods that stay
	crowd       = "crowd"  // and of those that come and go
	port        = 8080
	waitTimeout = 2 * time.Minute
	probeTime   = 1500 * time.Millisecond
	worldID     = 1 << 20 // the number of the world's server
)

// roomy are types of instances that hold hundreds of pods, by cloud. Azure's always do.
var roomy = map[string]string{region.AWS: "m5.4xlarge", region.Alibaba: "ecs.g7.4xlarge"}

// perNode is how many pods stay on each node of a type: more than an interface has addresses for.
func perNode(provider, kind string) int {
	if kind == roomy[provider] {
		return 31
	}
	return 16
}

// scene is the cluster, its cloud, and the pods that stay.
type scene struct {
	*lab.Lab
	provider string
	cloud    region.Client
	out      io.Writer
	began    time.Time
	burst    int // pods that come at once
	most     int // pods that come at once in a rush
	perNode  int // pods that stay
	nodes    []string
	ended    map[string]bool     // nodes whose instance ended
	pods     map[string]*lab.Pod // by namespace/name
	names    []string            // of pods, sorted
	number   map[string]uint32
	service  netip.Addr
	world    *lab.Namespace
	worldAt  []netip.Addr // of each family that pods have
	servers  *flows.Servers
	numbers  flows.Numbers
}

func (c *scene) say(format string, args ...any) {
	fmt.Fprintf(c.out, "%7.1fs %s\n", time.Since(c.began).Seconds(), fmt.Sprintf(format, args...))
}

// role is that of the k-th pod of a node.
func role(k int) string {
	if k < 3 {
		return []string{"server", "client", "intruder"}[k]
	}
	return "open"
}

// prepare makes the pods that stay, a policy and a service.
func (c *scene) prepare(ctx context.Context, provider string) error {
	info, err := c.Info()
	if err != nil {
		return err
	}
	if info.Cloud != provider {
		return fmt.Errorf("cluster %s is in the cloud %q, not %s", c.Name, info.Cloud, provider)
	}
	c.provider, c.cloud, c.ended = provider, region.Client{Socket: info.CloudSocket}, map[string]bool{}
	for _, n := range info.Nodes {
		c.nodes = append(c.nodes, n.Name)
	}
	st, err := c.cloud.Status(ctx)
	if err != nil {
		return err
	}
	c.perNode = perNode(provider, st.Instances[0].Type)
	// What is superfluous goes at once, not after three minutes.
	patch := `{"data":{"excess-ip-release-delay":"3"}}`
	if _, err := c.Kubectl(ctx, "", "-n", "kube-system", "patch", "configmap", "cilium-config", "--type=merge", "-p", patch); err != nil {
		return err
	}
	if _, err := c.Kubectl(ctx, "", "-n", "kube-system", "rollout", "restart", "deployment/hawser-operator"); err != nil {
		return err
	}
	for _, ns := range []string{stage, crowd} {
		if err := c.EnsureNamespace(ctx, ns, nil); err != nil {
			return err
		}
	}
	policy := `{apiVersion: networking.k8s.io/v1, kind: NetworkPolicy, metadata: {name: servers, namespace: ` + stage + `}, spec: {
  podSelector: {matchLabels: {role: server}}, ingress: [{from: [{podSelector: {matchLabels: {role: client}}}]}]}}`
	if _, err := c.Kubectl(ctx, policy, "apply", "-f", "-"); err != nil {
		return err
	}
	service := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: stage, Name: "open"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"role": "open"},
		Ports:    []corev1.ServicePort{{Name: "tcp", Port: 80, Protocol: corev1.ProtocolTCP}, {Name: "udp", Port: 80, Protocol: corev1.ProtocolUDP}},
	}}
	for i := range service.Spec.Ports {
		service.Spec.Ports[i].TargetPort.IntVal = port
	}
	if service, err = c.Kube.CoreV1().Services(stage).Create(ctx, service, metav1.CreateOptions{}); err != nil {
		return err
	}
	c.service = netip.MustParseAddr(service.Spec.ClusterIP)
	var pods []*corev1.Pod
	for _, n := range c.nodes {
		for k := range c.perNode {
			pods = append(pods, lab.Pause(stage, fmt.Sprintf("%s-%s-%d", role(k), n, k), n, map[string]string{"role": role(k)}))
		}
	}
	if err := c.CreatePods(ctx, 2*waitTimeout, pods...); err != nil {
		return err
	}
	if c.pods, err = c.OpenPods(ctx, stage); err != nil {
		return err
	}
	c.names = slices.Sorted(maps.Keys(c.pods))
	c.servers, c.number = flows.NewServers(), map[string]uint32{}
	for k, name := range c.names {
		c.number[name] = uint32(k + 1)
		if err := c.servers.Serve(c.pods[name].Namespace, uint32(k+1), c.pods[name].Addrs, port); err != nil {
			return fmt.Errorf("serve in %s: %w", name, err)
		}
	}
	if c.world, err = lab.OpenNamespace(info.World); err != nil {
		return err
	}
	c.worldAt = []netip.Addr{info.WorldIPv4}
	if len(c.pods[c.names[0]].Addrs) > 1 {
		c.worldAt = append(c.worldAt, info.WorldIPv6)
	}
	return c.servers.Serve(c.world, worldID, c.worldAt, port)
}

// remove gives up what the process has of the stage. Its objects go with the cluster, or with it.
func (c *scene) remove(ctx context.Context) error {
	if c.servers != nil {
		c.servers.Close()
	}
	lab.ClosePods(c.pods)
	if c.world != nil {
		c.world.Close()
	}
	if len(c.ended) > 0 {
		return nil // pods of a node that is away do not go
	}
	return c.DeleteNamespaces(ctx, stage, crowd)
}

// probe is a question, and whether there must be an answer. Server 0 is any.
type probe struct {
	name    string
	from    *lab.Namespace
	to      netip.AddrPort
	server  uint32
	allowed bool
}

// here are the names of pods whose instance has not ended.
func (c *scene) here() (out []string) {
	for _, name := range c.names {
		if !c.ended[c.pods[name].Node()] {
			out = append(out, name)
		}
	}
	return out
}

// everyone is a probe of each pod to each, to the service and to the world, and of the world to
// each pod.
func (c *scene) everyone() (out []probe) {
	for _, from := range c.here() {
		p := c.pods[from]
		for _, to := range c.here() {
			q := c.pods[to]
			if p == q {
				continue
			}
			may := q.Object.Labels["role"] != "server" || p.Object.Labels["role"] == "client"
			for _, ip := range q.Addrs {
				out = append(out, probe{from + " -> " + to, p.Namespace, netip.AddrPortFrom(ip, port), c.number[to], may})
			}
		}
		out = append(out, probe{from + " -> service", p.Namespace, netip.AddrPortFrom(c.service, 80), 0, true})
		for _, ip := range c.worldAt {
			out = append(out, probe{from + " -> world", p.Namespace, netip.AddrPortFrom(ip, port), worldID, true})
		}
		for _, ip := range p.Addrs {
			out = append(out, probe{"world -> " + from, c.world, netip.AddrPortFrom(ip, port), c.number[from], p.Object.Labels["role"] != "server"})
		}
	}
	return out
}

// ask tries all probes by TCP and UDP, and says what was wrong.
func (c *scene) ask(probes []probe) error {
	var mu sync.Mutex
	var errs []error
	var wg sync.WaitGroup
	slots := make(chan struct{}, 48)
	for _, p := range probes {
		for _, network := range []string{"tcp", "udp"} {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				within := probeTime
				if p.allowed {
					within = 10 * time.Second
				}
				who, err := flows.Who(p.from, network, p.to, within)
				switch {
				case p.allowed && err == nil && (p.server == 0 || who == p.server), !p.allowed && err != nil:
					return
				case err == nil && p.allowed:
					err = fmt.Errorf("server %d answers, not %d", who, p.server)
				case err == nil:
					err = errors.New("gets through, although it is forbidden")
				}
				mu.Lock()
				defer mu.Unlock()
				errs = append(errs, fmt.Errorf("%s by %s: %w", p.name, network, err))
			})
		}
	}
	wg.Wait()
	if n := len(errs); n > 4 {
		errs = append(errs[:4], fmt.Errorf("and %d more of %d", n-4, 2*len(probes)))
	}
	return errors.Join(errs...)
}

// traffic has flows between the first and last pods of all nodes, which are on different
// interfaces, while something happens. None of their messages may be lost, or arrive elsewhere.
func (c *scene) traffic(ctx context.Context, during func() error) error {
	var plan []flows.Flow
	var ends []string
	for _, n := range c.nodes {
		ends = append(ends, fmt.Sprintf("%s/client-%s-1", stage, n), fmt.Sprintf("%s/open-%s-%d", stage, n, c.perNode-1))
	}
	for _, from := range ends {
		for _, to := range ends {
			if from == to || strings.Contains(to, "client") && strings.Contains(from, "client") {
				continue
			}
			for _, kind := range []flows.Kind{flows.TCPEstablished, flows.UDPEstablished, flows.TCPNew} {
				plan = append(plan, flows.Flow{
					Name: fmt.Sprintf("%s %s -> %s", kind, from, to), From: c.pods[from].Namespace, To: netip.AddrPortFrom(c.pods[to].Addrs[0], port), Kind: kind, Allowed: true,
				})
			}
		}
	}
	running, err := flows.Start(ctx, c.servers, &c.numbers, plan)
	if err != nil {
		return err
	}
	err = during()
	sent, lost, wrong, why := 0, 0, 0, ""
	for _, r := range running.Stop() {
		sent, lost, wrong = sent+r.Sent, lost+r.Lost, wrong+r.Wrong
		switch {
		case r.Bad():
			why = r.Name + ": " + strings.Join(r.Why, ", ")
		case r.Sent == 0:
			err = errors.Join(err, fmt.Errorf("%s: nothing was sent", r.Name))
		}
	}
	c.say("  %d flows, %d messages, %d lost, %d answered by others", len(plan), sent, lost, wrong)
	if lost > 0 || wrong > 0 {
		err = errors.Join(err, fmt.Errorf("%d messages were lost and %d answered by others, such as of %s", lost, wrong, why))
	}
	return err
}
