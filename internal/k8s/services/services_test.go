package services_test

import (
	"cmp"
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/datapath/fake"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/services"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// ptr returns a pointer to a copy of v.
func ptr[T any](v T) *T { return &v }

// cluster is an API server and the part under test on a kernel's table.
type cluster struct {
	t      *testing.T
	server *kubeapi.Server
	client *k8s.Client
	kernel *fake.Node
	part   *services.Services
	// healthListen opens health check ports; nil for none.
	healthListen func(port uint16) (net.Listener, error)
	sockets      service.Sockets
	observed     func(context.Context) error
	report       func(error)
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{t: t, server: kubeapi.Start(t), kernel: fake.New()}
	var err error
	c.client, err = k8s.New(c.server.Config)
	c.must(err)
	return c
}

func (c *cluster) must(err error) {
	c.t.Helper()
	if err != nil {
		c.t.Fatal(err)
	}
}

// run starts the part; stop ends it and waits.
func (c *cluster) run() (synced <-chan struct{}, stop func()) {
	c.t.Helper()
	var err error
	c.part, err = services.New(services.Config{
		NodeName: "n1", NodeAddrs: []netip.Addr{netip.MustParseAddr("192.168.0.1")}, Kernel: c.kernel.Maps, Log: slog.New(slog.DiscardHandler),
		PerService: true, HealthListen: c.healthListen, Sockets: c.sockets, WaitSynced: c.observed, Report: c.report,
	}, c.client)
	c.must(err)
	ctx, cancel := context.WithCancel(c.t.Context())
	done, ready := make(chan error, 1), make(chan struct{})
	go func() { done <- c.part.Run(ctx, func() { close(ready) }) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			c.t.Errorf("run: %v", err)
		}
	}
	c.t.Cleanup(stop)
	return ready, stop
}

func (c *cluster) wait(what string, ch <-chan struct{}) {
	c.t.Helper()
	select {
	case <-ch:
	case <-time.After(30 * time.Second):
		c.t.Fatalf("%s took longer than 30 s", what)
	}
}

// rows describes the kernel's table, one line a row.
func (c *cluster) rows() []string {
	list, err := c.kernel.Maps.Services()
	c.must(err)
	slices.SortFunc(list, func(a, b datapath.Service) int { return cmp.Or(a.Compare(b.ServiceFrontend)) })
	var out []string
	for _, s := range list {
		if s.Addr.Addr() == netip.MustParseAddr("10.96.0.1") {
			continue // the server's own
		}
		line := fmt.Sprintf("%s %v", s.ServiceFrontend, s.Backends)
		if s.Affinity > 0 {
			line += " for " + s.Affinity.String()
		}
		if s.RemoteOnly {
			line += " elsewhere"
		}
		if s.DSR {
			line += " direct"
		}
		if s.LimitSources {
			line += fmt.Sprint(" from ", s.Sources)
		}
		out = append(out, line)
	}
	return out
}

func (c *cluster) expect(what string, want ...string) {
	c.t.Helper()
	var diff string
	for range 300 {
		if diff = gocmp.Diff(want, c.rows()); diff == "" {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	c.t.Fatalf("%s (-want +got):\n%s", what, diff)
}

func (c *cluster) service(name, ip string, change func(*corev1.Service)) {
	c.t.Helper()
	s := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Spec: corev1.ServiceSpec{
		ClusterIP: ip, Ports: []corev1.ServicePort{{Name: "http", Port: 80}, {Name: "dns", Port: 53, Protocol: corev1.ProtocolUDP}},
	}}
	if change != nil {
		change(s)
	}
	_, err := c.client.Kube.CoreV1().Services("default").Create(c.t.Context(), s, metav1.CreateOptions{})
	c.must(err)
}

func (c *cluster) slice(name, service string, endpoints ...discoveryv1.Endpoint) {
	c.t.Helper()
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: service}},
		AddressType: discoveryv1.AddressTypeIPv4, Endpoints: endpoints,
		Ports: []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080))}, {Name: ptr("dns"), Port: ptr(int32(5353)), Protocol: ptr(corev1.ProtocolUDP)}},
	}
	api := c.client.Kube.DiscoveryV1().EndpointSlices("default")
	if old, err := api.Get(c.t.Context(), name, metav1.GetOptions{}); err == nil {
		s.ResourceVersion = old.ResourceVersion
		_, err = api.Update(c.t.Context(), s, metav1.UpdateOptions{})
		c.must(err)
		return
	}
	_, err := api.Create(c.t.Context(), s, metav1.CreateOptions{})
	c.must(err)
}

func endpoint(ip string) discoveryv1.Endpoint {
	return discoveryv1.Endpoint{Addresses: []string{ip}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(true)}}
}

func TestFollow(t *testing.T) {
	testenv.CheckLeaks(t)
	c := newCluster(t)
	c.service("web", "10.96.1.1", nil)
	c.slice("web-1", "web", endpoint("10.0.0.1"))
	c.service("headless", corev1.ClusterIPNone, nil)
	c.slice("headless-1", "headless", endpoint("10.0.0.9"))
	c.service("elsewhere", "", func(s *corev1.Service) {
		s.Spec = corev1.ServiceSpec{Type: corev1.ServiceTypeExternalName, ExternalName: "example.org"}
	})
	c.service("other-proxy", "10.96.1.9", func(s *corev1.Service) {
		s.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "other"}
	})
	// What an earlier agent left.
	stale := datapath.Service{ServiceFrontend: datapath.ServiceFrontend{Addr: netip.MustParseAddrPort("10.96.7.7:7"), Proto: 6}}
	c.must(c.kernel.Maps.UpsertService(stale))
	synced, stop := c.run()
	c.wait("hearing everything", synced)
	web := []string{"10.96.1.1:53/UDP [10.0.0.1:5353]", "10.96.1.1:80/TCP [10.0.0.1:8080]"}
	if diff := gocmp.Diff(web, c.rows()); diff != "" {
		t.Fatalf("when it says that all is in force (-want +got):\n%s", diff)
	}

	c.slice("web-2", "web", endpoint("10.0.0.2"), discoveryv1.Endpoint{
		Addresses: []string{"10.0.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(true), Terminating: ptr(true)},
	})
	c.expect("a second slice", "10.96.1.1:53/UDP [10.0.0.1:5353 10.0.0.2:5353]", "10.96.1.1:80/TCP [10.0.0.1:8080 10.0.0.2:8080]")
	c.slice("web-1", "web")
	c.slice("web-2", "web", discoveryv1.Endpoint{
		Addresses: []string{"10.0.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(true), Terminating: ptr(true)},
	})
	c.expect("one on its way out is all there is", "10.96.1.1:53/UDP [10.0.0.3:5353]", "10.96.1.1:80/TCP [10.0.0.3:8080]")
	// Its flows: a datagram's and an unanswered connection's choose anew, an answered connection
	// goes on.
	flow := datapath.ServiceFlow{
		Client: netip.MustParseAddrPort("10.0.0.7:4000"), Frontend: netip.MustParseAddrPort("10.96.1.1:80"), Proto: 6,
		Backend: netip.MustParseAddrPort("10.0.0.3:8080"), Answered: true,
	}
	unanswered, datagrams, other := flow, flow, flow
	unanswered.Answered = false
	datagrams.Proto, datagrams.Frontend, datagrams.Backend = 17, netip.MustParseAddrPort("10.96.1.1:53"), netip.MustParseAddrPort("10.0.0.3:5353")
	other.Frontend, other.Backend, other.Answered = netip.MustParseAddrPort("1.1.1.1:80"), netip.AddrPort{}, false
	c.kernel.Maps.SetServiceFlows([]datapath.ServiceFlow{flow, unanswered, datagrams, other})
	c.slice("web-2", "web", endpoint("10.0.0.4"))
	c.expect("another", "10.96.1.1:53/UDP [10.0.0.4:5353]", "10.96.1.1:80/TCP [10.0.0.4:8080]")
	for range 100 {
		if len(c.kernel.Maps.ServiceFlows()) == 2 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	if got := c.kernel.Maps.ServiceFlows(); !slices.Equal(got, []datapath.ServiceFlow{flow, other}) {
		t.Errorf("flows left: %+v", got)
	}

	// The agent is away while things change; on its return it touches what differs.
	stop()
	c.must(c.client.Kube.CoreV1().Services("default").Delete(t.Context(), "other-proxy", metav1.DeleteOptions{}))
	c.service("new", "10.96.1.2", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeNodePort, []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30080}}
		s.Spec.SessionAffinity = corev1.ServiceAffinityClientIP
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	here := endpoint("10.0.0.6")
	here.NodeName = ptr("n1")
	c.slice("new-1", "new", endpoint("10.0.0.5"), here)
	calls := len(c.kernel.Ops())
	synced, stop = c.run()
	c.wait("hearing everything again", synced)
	c.expect("after a restart",
		"0.0.0.0:30080/TCP from other-node [10.0.0.5:8080 10.0.0.6:8080] for 3h0m0s",
		"10.96.1.1:53/UDP [10.0.0.4:5353]", "10.96.1.1:80/TCP [10.0.0.4:8080]", "10.96.1.2:80/TCP [10.0.0.5:8080 10.0.0.6:8080] for 3h0m0s",
		"127.0.0.1:30080/TCP from node [10.0.0.5:8080 10.0.0.6:8080] for 3h0m0s",
		"192.168.0.1:30080/TCP [10.0.0.5:8080 10.0.0.6:8080] for 3h0m0s", "192.168.0.1:30080/TCP from outside [10.0.0.6:8080] for 3h0m0s")
	if ops := c.kernel.Ops()[calls:]; slices.Contains(ops, "Maps.DeleteService") {
		t.Errorf("rows that stayed were deleted: %v", ops)
	}
	c.must(c.client.Kube.CoreV1().Services("default").Delete(t.Context(), "new", metav1.DeleteOptions{}))
	c.expect("a service goes", "10.96.1.1:53/UDP [10.0.0.4:5353]", "10.96.1.1:80/TCP [10.0.0.4:8080]")

	// A server that is away changes nothing.
	c.server.Stop()
	time.Sleep(time.Second)
	c.expect("without a server", "10.96.1.1:53/UDP [10.0.0.4:5353]", "10.96.1.1:80/TCP [10.0.0.4:8080]")
	stop()
}

// TestKinds: every kind of frontend leads where Kubernetes says, and those without backends are
// told apart.
func TestKinds(t *testing.T) {
	testenv.CheckLeaks(t)
	c := newCluster(t)
	there := endpoint("10.0.0.5")
	there.NodeName = ptr("n2")
	c.slice("lb-1", "lb", there)
	c.service("lb", "10.96.2.1", func(s *corev1.Service) {
		s.Spec.Type, s.Spec.Ports = corev1.ServiceTypeLoadBalancer, []corev1.ServicePort{{Name: "http", Port: 80, NodePort: 30081}}
		s.Spec.LoadBalancerSourceRanges = []string{"10.0.0.0/8", "172.16.0.0/12", "fd00::/8"}
		s.Spec.ExternalIPs = []string{"1.2.3.4"}
		s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	})
	api := c.client.Kube.CoreV1().Services("default")
	lb, err := api.Get(t.Context(), "lb", metav1.GetOptions{})
	c.must(err)
	lb.Status.LoadBalancer.Ingress = []corev1.LoadBalancerIngress{{IP: "5.6.7.8"}, {IP: "5.6.7.9", IPMode: ptr(corev1.LoadBalancerIPModeProxy)}}
	_, err = api.UpdateStatus(t.Context(), lb, metav1.UpdateOptions{})
	c.must(err)
	c.service("local", "10.96.2.2", func(s *corev1.Service) {
		s.Spec.Ports = s.Spec.Ports[:1]
		s.Spec.InternalTrafficPolicy = ptr(corev1.ServiceInternalTrafficPolicyLocal)
	})
	c.slice("local-1", "local", there)
	c.service("empty", "10.96.2.3", func(s *corev1.Service) { s.Spec.Ports = s.Spec.Ports[:1] })
	c.service("direct", "10.96.2.4", func(s *corev1.Service) {
		s.Annotations = map[string]string{service.AnnotationForwarding: "dsr"}
		s.Spec.Ports, s.Spec.ExternalIPs = s.Spec.Ports[:1], []string{"1.2.3.5"}
	})
	c.slice("direct-1", "direct", there)
	synced, stop := c.run()
	c.wait("hearing everything", synced)
	c.expect("all kinds",
		"0.0.0.0:30081/TCP from other-node [10.0.0.5:8080]",
		"1.2.3.4:80/TCP [10.0.0.5:8080]", "1.2.3.4:80/TCP from outside [] elsewhere",
		"1.2.3.5:80/TCP [10.0.0.5:8080]", "1.2.3.5:80/TCP from outside [10.0.0.5:8080] direct",
		"5.6.7.8:80/TCP [10.0.0.5:8080] from [10.0.0.0/8 172.16.0.0/12]", "5.6.7.8:80/TCP from outside [] elsewhere from [10.0.0.0/8 172.16.0.0/12]",
		"10.96.2.1:80/TCP [10.0.0.5:8080]", "10.96.2.2:80/TCP [] elsewhere", "10.96.2.3:80/TCP []", "10.96.2.4:80/TCP [10.0.0.5:8080]",
		"127.0.0.1:30081/TCP from node [10.0.0.5:8080]",
		"192.168.0.1:30081/TCP [10.0.0.5:8080]", "192.168.0.1:30081/TCP from outside [] elsewhere")
	stop()
}

// TestRefusedHostPort: a host port whose address cannot be read is served nowhere, and the report
// names it until its pod is gone.
func TestRefusedHostPort(t *testing.T) {
	testenv.CheckLeaks(t)
	c := newCluster(t)
	var last atomic.Value
	c.report = func(err error) { last.Store(fmt.Sprint(err)) }
	api := c.client.Kube.CoreV1().Pods("default")
	pod := func(name, hostIP string, port int32, ip string) {
		t.Helper()
		o, err := api.Create(t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
			Spec: corev1.PodSpec{
				NodeName: "n1", ServiceAccountName: "default", AutomountServiceAccountToken: new(bool),
				Containers: []corev1.Container{{Name: "c", Image: "none", Ports: []corev1.ContainerPort{{ContainerPort: 80, HostPort: port, HostIP: hostIP}}}},
			},
		}, metav1.CreateOptions{})
		c.must(err)
		o.Status.Phase, o.Status.PodIP, o.Status.PodIPs = corev1.PodRunning, ip, []corev1.PodIP{{IP: ip}}
		_, err = api.UpdateStatus(t.Context(), o, metav1.UpdateOptions{})
		c.must(err)
	}
	pod("faulty", "127.0.0.300", 8080, "10.0.0.1")
	pod("local", "127.0.0.1", 8081, "10.0.0.2")
	synced, stop := c.run()
	c.wait("hearing everything", synced)
	c.expect("only what can be read", "127.0.0.1:8081/TCP from node [10.0.0.2:80]")
	said := func(what string, ok func(string) bool) {
		t.Helper()
		controllers.Eventually(t, 2*time.Minute, func() string {
			if text, _ := last.Load().(string); !ok(text) {
				return what + ": " + text
			}
			return ""
		})
	}
	said("it is reported", func(text string) bool {
		return strings.Contains(text, "host port 8080") && strings.Contains(text, "default/faulty") && strings.Contains(text, "127.0.0.300")
	})
	c.must(api.Delete(t.Context(), "faulty", metav1.DeleteOptions{GracePeriodSeconds: ptr(int64(0))}))
	said("nothing is refused", func(text string) bool { return text == "<nil>" })
	stop()
}

// someSockets are connected sockets, by backend, of one frontend.
type someSockets struct {
	frontend netip.AddrPort
	mu       sync.Mutex
	looked   int
	left     []netip.AddrPort
}

func (s *someSockets) EndSockets(end func(frontend, backend netip.AddrPort) bool) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.looked++
	before := len(s.left)
	s.left = slices.DeleteFunc(s.left, func(b netip.AddrPort) bool { return end(s.frontend, b) })
	return before - len(s.left), nil
}

func (s *someSockets) state() (looked int, left []netip.AddrPort) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.looked, slices.Clone(s.left)
}

// TestSocketsOfOtherClusters: after a restart, sockets with backends in other clusters are left
// alone until these have been observed. Then those end whose backend is none any more.
func TestSocketsOfOtherClusters(t *testing.T) {
	testenv.CheckLeaks(t)
	c := newCluster(t)
	here, there, gone := netip.MustParseAddrPort("10.0.0.1:5353"), netip.MustParseAddrPort("10.7.0.1:5353"), netip.MustParseAddrPort("10.7.0.2:5353")
	sockets := &someSockets{frontend: netip.MustParseAddrPort("10.96.1.1:53"), left: []netip.AddrPort{here, there, gone}}
	observed := make(chan struct{})
	c.sockets = sockets
	c.observed = func(ctx context.Context) error {
		select {
		case <-observed:
			return nil
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	c.service("web", "10.96.1.1", func(s *corev1.Service) { s.Annotations = map[string]string{"service.cilium.io/global": "true"} })
	c.slice("web-1", "web", endpoint("10.0.0.1"))
	synced, stop := c.run()
	c.wait("hearing everything", synced)
	// The second look through the flows comes after all of the first.
	flow := datapath.ServiceFlow{
		Client: netip.MustParseAddrPort("10.0.0.7:4000"), Frontend: sockets.frontend, Proto: 17, Backend: netip.MustParseAddrPort("10.0.0.99:5353"),
	}
	for i := range 2 {
		c.kernel.Maps.SetServiceFlows([]datapath.ServiceFlow{flow})
		c.slice("web-2", "web", endpoint(fmt.Sprintf("10.0.0.%d", 20+i)))
		controllers.Eventually(t, time.Minute, func() string {
			if flows := c.kernel.Maps.ServiceFlows(); len(flows) > 0 {
				return fmt.Sprintf("flows to a former backend go on: %v", flows)
			}
			return ""
		})
	}
	if looked, left := sockets.state(); looked > 0 {
		t.Errorf("before other clusters were observed, sockets were looked at %d times; those of %v are left", looked, left)
	}
	c.part.Engine().SetShared(service.Shared{
		Cluster: "c7", Name: service.Name{Namespace: "default", Name: "web"}, Offered: true,
		Backends: map[netip.Addr]map[string]service.SharedPort{there.Addr(): {"dns": {Proto: 17, Port: 5353}}},
	})
	close(observed)
	controllers.Eventually(t, time.Minute, func() string {
		if looked, left := sockets.state(); !slices.Equal(left, []netip.AddrPort{here, there}) {
			return fmt.Sprintf("after %d looks the sockets of %v are left", looked, left)
		}
		return ""
	})
	stop()
}

// TestServiceBeyondBounds: of a service that asks for more than one can have, a part is served, and
// the status names it for as long as that lasts.
func TestServiceBeyondBounds(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	var mu sync.Mutex
	said := ""
	c.report = func(err error) {
		mu.Lock()
		defer mu.Unlock()
		said = fmt.Sprint(err)
	}
	until := func(what string, ok func(string) bool) {
		t.Helper()
		testenv.Eventually(t, time.Minute, func() string {
			mu.Lock()
			defer mu.Unlock()
			if !ok(said) {
				return what + ": the status says " + said
			}
			return ""
		})
	}
	flood := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "flood", Namespace: "default"}}
	serves := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "flood", Namespace: "default", Labels: map[string]string{discoveryv1.LabelServiceName: "flood"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range 1000 {
		serves.Endpoints = append(serves.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", i/250, 1+i%250)}})
	}
	for i := range 300 {
		p := corev1.ServicePort{Name: fmt.Sprintf("p%d", i), Port: int32(1000 + i), Protocol: corev1.ProtocolTCP}
		flood.Spec.Ports = append(flood.Spec.Ports, p)
		serves.Ports = append(serves.Ports, discoveryv1.EndpointPort{Name: &p.Name, Port: &p.Port, Protocol: &p.Protocol})
	}
	flood, err := c.client.Kube.CoreV1().Services("default").Create(t.Context(), flood, metav1.CreateOptions{})
	c.must(err)
	_, err = c.client.Kube.DiscoveryV1().EndpointSlices("default").Create(t.Context(), serves, metav1.CreateOptions{})
	c.must(err)
	synced, stop := c.run()
	c.wait("the first list", synced)
	until("too many backends", func(s string) bool {
		return strings.Contains(s, "default/flood") && strings.Contains(s, "served in part")
	})
	flood.Spec.Ports = flood.Spec.Ports[:10]
	_, err = c.client.Kube.CoreV1().Services("default").Update(t.Context(), flood, metav1.UpdateOptions{})
	c.must(err)
	until("few backends", func(s string) bool { return s == "<nil>" })
	stop()
}
