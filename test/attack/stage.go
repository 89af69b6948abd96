package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/datapath/link"
	"github.com/hawser-net/hawser/internal/datapath/loader"
	"github.com/hawser-net/hawser/internal/sandbox"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// mode is how the agents of a stage are configured.
type mode struct {
	routing     string // tunnel or native
	replacement bool   // of kube-proxy
}

func (m mode) String() string {
	if m.replacement {
		return m.routing + "+kpr"
	}
	return m.routing
}

func (m mode) tunnel() bool { return m.routing == "tunnel" }

// plain says that the mode has no replacement for kube-proxy. What has nothing to do with services
// is played in such alone.
func (m mode) plain() bool { return !m.replacement }

func modes() []mode {
	return []mode{{"tunnel", false}, {"native", false}, {"tunnel", true}, {"native", true}}
}

// tunnelPort is the port of the encapsulation.
const tunnelPort = 8472

// Sizes of the kernel's maps on a stage: small, so that it takes an adversary seconds to fill them.
const (
	flowEntries     = 1 << 15
	fragmentEntries = 1 << 10
	policyEntries   = 1 << 12
)

// nodePort is where a process of each node listens, at all of its addresses.
const nodePort = 7777

// pair is something of each family.
type pair [2]netip.Addr

func (p pair) of(v6 bool) netip.Addr {
	if v6 {
		return p[1]
	}
	return p[0]
}

// place is a namespace with a device.
type place struct {
	name string
	path string // of the namespace
	addr pair
	ns   *lab.Namespace
	eth  *port
}

// node is a node of the stage; its device is that to the underlay.
type node struct {
	place
	router pair // its addresses in the pod network
	api    string
	dir    string // what the sandbox keeps of it
	server *socket
}

// pod is a pod of the stage.
type pod struct {
	place
	node     *node
	gateway  mac    // of the interface at the other end of its device
	hostName string // of that interface
	identity uint32
}

// stage is a sandbox with everybody in it. Its methods are for one goroutine.
type stage struct {
	mode     mode
	sandbox  *sandbox.Sandbox
	dir      string
	cgroup   string
	world    *place
	external *place // a host on the underlay that is not a node
	nodes    map[string]*node
	pods     map[string]*pod
}

// pods0 are the pods that every row can count on. evil is the adversary's; victim admits friends
// only, web everybody to one port, and closed no one at all; open has no policy.
func pods0() []sandbox.PodSpec {
	pod := func(name, node string) sandbox.PodSpec {
		app := strings.TrimRight(name, "0123456789")
		return sandbox.PodSpec{Name: name, Node: node, Labels: map[string]string{"app": app}, Ports: []uint16{7}}
	}
	return []sandbox.PodSpec{
		pod("evil1", "n1"), pod("victim1", "n1"), pod("friend1", "n1"), pod("open1", "n1"), pod("web1", "n1"), pod("closed1", "n1"),
		pod("victim2", "n2"), pod("friend2", "n2"), pod("open2", "n2"),
		pod("friend3", "n3"),
	}
}

const policies = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: victim, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: victim}}
  ingress:
    - fromEndpoints: [{matchLabels: {app: friend}}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: web, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress:
    - fromEntities: [all]
      toPorts: [{ports: [{port: "80", protocol: UDP}, {port: "80", protocol: TCP}]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: closed, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: closed}}
  ingress:
    - fromEndpoints: [{matchLabels: {app: absent}}]
`

// newStage starts a sandbox. What it has made when it fails is gone.
func newStage(ctx context.Context, m mode, name, bin string, out io.Writer) (s *stage, err error) {
	cfg := sandbox.Defaults()
	exe, err := os.Executable()
	if err != nil {
		return nil, err
	}
	if cfg.BinDir, err = filepath.Abs(bin); err != nil {
		return nil, err
	}
	cfg.Name, cfg.Nodes, cfg.RoutingMode, cfg.Self = name, 3, m.routing, []string{exe, helperSandbox}
	cfg.AgentArgs = []string{
		fmt.Sprintf("--bpf-ct-max=%d", flowEntries), fmt.Sprintf("--bpf-fragments-map-max=%d", fragmentEntries),
		fmt.Sprintf("--bpf-policy-map-max=%d", policyEntries),
	}
	s = &stage{mode: m, nodes: map[string]*node{}, pods: map[string]*pod{}}
	defer func() {
		if err != nil {
			err = errors.Join(err, s.close(context.WithoutCancel(ctx)))
		}
	}()
	if m.replacement {
		if s.cgroup, err = newCgroup(name); err != nil {
			return s, err
		}
		cfg.AgentArgs = append(cfg.AgentArgs, "--kube-proxy-replacement", "--cgroup-root="+s.cgroup)
	}
	sb, err := sandbox.New(cfg, out, false)
	if err != nil {
		return s, err
	}
	// One of an earlier run that was killed is in the way.
	if err := sb.Down(ctx); err != nil {
		return s, err
	}
	s.sandbox = sb
	if err := sb.Up(ctx); err != nil {
		return s, err
	}
	s.dir = filepath.Dir(sb.PolicyDir())
	if err := s.writePolicy("stage", policies); err != nil {
		return s, err
	}
	for _, spec := range pods0() {
		if _, err := sb.Run(ctx, spec); err != nil {
			return s, err
		}
	}
	return s, s.open(ctx)
}

// newCgroup makes a cgroup without processes: the agents' hooks for the node's own sockets must not
// meet the machine's.
func newCgroup(name string) (string, error) {
	root, err := loader.FindCgroup()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(root, "hawser-"+name)
	if err := os.Mkdir(dir, 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return "", err
	}
	return dir, nil
}

// close removes everything. It may be called at any time.
func (s *stage) close(ctx context.Context) error {
	for _, p := range s.pods {
		p.shut()
	}
	for _, n := range s.nodes {
		if n.server != nil {
			n.server.close()
		}
		n.shut()
	}
	for _, p := range []*place{s.world, s.external} {
		if p != nil {
			p.shut()
		}
	}
	var errs []error
	if s.sandbox != nil {
		errs = append(errs, s.sandbox.Down(ctx))
	}
	if s.cgroup != "" {
		errs = append(errs, os.Remove(s.cgroup))
	}
	return errors.Join(errs...)
}

// writePolicy puts a file into the directory that the agents follow, in one step.
func (s *stage) writePolicy(name, text string) error {
	return atomicfile.Write(filepath.Join(s.sandbox.PolicyDir(), name+".yaml"), []byte(text), 0o644, atomicfile.Process)
}

func (s *stage) removePolicy(name string) error {
	return os.Remove(filepath.Join(s.sandbox.PolicyDir(), name+".yaml"))
}

// netns is the path of a namespace of the sandbox.
func (s *stage) netns(name string) string { return filepath.Join(s.dir, "netns", name) }

// open enters all namespaces of the sandbox and opens their devices.
func (s *stage) open(ctx context.Context) error {
	st, err := s.sandbox.Status(ctx)
	if err != nil {
		return err
	}
	for _, ns := range st.Nodes {
		n := &node{place: place{name: ns.Name, path: s.netns(ns.Name)}, api: ns.Socket, dir: filepath.Join(s.dir, "nodes", ns.Name)}
		if err := n.open("eth0"); err != nil {
			return err
		}
		s.nodes[n.name] = n
		if n.router, err = addresses(n.path, link.HostDevice); err != nil {
			return err
		}
		if err := n.believeAnySource(); err != nil {
			return err
		}
		if n.server, err = openSocket(n.ns, netip.AddrPortFrom(netip.IPv6Unspecified(), nodePort)); err != nil {
			return err
		}
	}
	s.world = &place{name: "world", path: s.netns("world")}
	if err := s.world.open("br0"); err != nil {
		return err
	}
	if err := s.addExternal(); err != nil {
		return err
	}
	for _, p := range st.Pods {
		if err := s.openPod(ctx, p); err != nil {
			return fmt.Errorf("pod %s: %w", p.Name, err)
		}
	}
	return nil
}

// believeAnySource turns reverse path filters off: no row may be won by them.
func (n *node) believeAnySource() error {
	return machine.InNamespace(n.path, func() error {
		files, err := filepath.Glob("/proc/sys/net/ipv4/conf/*/rp_filter")
		for _, f := range files {
			err = errors.Join(err, os.WriteFile(f, []byte("0"), 0o644))
		}
		return err
	})
}

// addExternal makes a host on the underlay that is not a node.
func (s *stage) addExternal() error {
	p := &place{name: "external", path: s.netns("external")}
	if err := machine.CreateNamespace(p.path); err != nil {
		return err
	}
	f, err := os.Open(p.path)
	if err != nil {
		return err
	}
	defer f.Close()
	err = machine.WithNetlink(s.world.path, func(h *netlink.Handle) error {
		bridge, err := h.LinkByName("br0")
		if err != nil {
			return err
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.MasterIndex = "external", bridge.Attrs().Index
		pair := &netlink.Veth{LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(int(f.Fd()))}
		if err := h.LinkAdd(pair); err != nil {
			return err
		}
		return h.LinkSetUp(pair)
	})
	if err != nil {
		return fmt.Errorf("link of the external host: %w", err)
	}
	err = machine.WithNetlink(p.path, func(h *netlink.Handle) error {
		return machine.AddressAndUp(h, "eth0", netip.MustParsePrefix("10.99.0.66/24"), netip.MustParsePrefix("fd00:99::66/64"))
	})
	if err != nil {
		return err
	}
	s.external = p
	return p.open("eth0")
}

// openPod enters a pod that the sandbox runs.
func (s *stage) openPod(ctx context.Context, st sandbox.PodStatus) error {
	p := &pod{place: place{name: st.Name, path: s.netns("pod-" + st.Name)}, node: s.nodes[st.Node]}
	if err := p.open("eth0"); err != nil {
		return err
	}
	s.pods[p.name] = p
	p.addr = pair{st.IPv4, st.IPv6} // without the address that the kernel makes
	var peer int
	err := machine.WithNetlink(p.path, func(h *netlink.Handle) error {
		l, err := h.LinkByName("eth0")
		if err == nil {
			peer = l.Attrs().ParentIndex
		}
		return err
	})
	if err != nil {
		return err
	}
	err = machine.WithNetlink(p.node.path, func(h *netlink.Handle) error {
		l, err := h.LinkByIndex(peer)
		if err == nil {
			p.gateway, p.hostName = mac(l.Attrs().HardwareAddr), l.Attrs().Name
		}
		return err
	})
	if err != nil {
		return err
	}
	var all []rest.Endpoint
	if err := p.node.get(ctx, "/v1/endpoint", &all); err != nil {
		return err
	}
	for _, e := range all {
		for _, a := range e.Status.Networking.Addressing {
			if a.IPv4 == st.IPv4.String() {
				p.identity = uint32(e.Status.Identity.ID)
			}
		}
	}
	if p.identity == 0 {
		return errors.New("the agent knows no identity of it")
	}
	return nil
}

// run starts a further pod.
func (s *stage) run(ctx context.Context, spec sandbox.PodSpec) (*pod, error) {
	if _, err := s.sandbox.Run(ctx, spec); err != nil {
		return nil, err
	}
	st, err := s.sandbox.Status(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range st.Pods {
		if p.Name == spec.Name {
			if err := s.openPod(ctx, p); err != nil {
				return nil, err
			}
			return s.pods[p.Name], nil
		}
	}
	return nil, fmt.Errorf("pod %s vanished", spec.Name)
}

// remove ends a pod.
func (s *stage) remove(ctx context.Context, p *pod) error {
	p.shut()
	delete(s.pods, p.name)
	return s.sandbox.Remove(ctx, p.name)
}

// open enters the place and opens its device.
func (p *place) open(device string) error {
	ns, err := lab.OpenNamespace(p.path)
	if err != nil {
		return err
	}
	p.ns = ns
	if p.addr, err = addresses(p.path, device); err != nil {
		return err
	}
	return machine.WithNetlink(p.path, func(h *netlink.Handle) error {
		l, err := h.LinkByName(device)
		if err != nil {
			return err
		}
		p.eth, err = openPort(ns, p.name, l.Attrs().Index, mac(l.Attrs().HardwareAddr))
		return err
	})
}

func (p *place) shut() {
	if p.eth != nil {
		p.eth.close()
		p.eth = nil
	}
	if p.ns != nil {
		p.ns.Close()
		p.ns = nil
	}
}

// addresses returns the global addresses of a device.
func addresses(path, device string) (out pair, err error) {
	err = machine.WithNetlink(path, func(h *netlink.Handle) error {
		l, err := h.LinkByName(device)
		if err != nil {
			return fmt.Errorf("find %s: %w", device, err)
		}
		list, err := h.AddrList(l, netlink.FAMILY_ALL)
		for _, a := range list {
			ip, _ := netip.AddrFromSlice(a.IP)
			if ip = ip.Unmap(); ip.Is4() {
				out[0] = ip
			} else if !ip.IsLinkLocalUnicast() {
				out[1] = ip
			}
		}
		return err
	})
	return out, err
}

// get asks the node's agent for something.
func (n *node) get(ctx context.Context, path string, into any) error {
	resp, err := n.request(ctx, http.MethodGet, path)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return json.NewDecoder(resp.Body).Decode(into)
}

// request sends a request without a body to the node's agent. The answer is that of a success.
func (n *node) request(ctx context.Context, method, path string) (*http.Response, error) {
	client := http.Client{Timeout: timeout, Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", n.api)
	}, DisableKeepAlives: true}}
	req, err := http.NewRequestWithContext(ctx, method, "http://agent"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode/100 != 2 {
		return nil, errors.Join(fmt.Errorf("agent of %s: %s %s: %s", n.name, method, path, resp.Status), resp.Body.Close())
	}
	return resp, nil
}

// mapDir is where a node's maps are pinned.
func (s *stage) mapDir(n *node) string { return filepath.Join(n.dir, "bpf", "hawser") }
