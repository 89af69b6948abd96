package bench

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/atomicfile"
)

// Client, balancers and backends have addresses of one network, whose switch is a bridge: both
// balancers send packets on by the device that they came by. The backends are addresses of one
// machine, sixteen of them, so that neither way of translating lacks ports for the connections of a
// round.
const (
	lbClient    = "192.0.2.10"
	lbRouter    = "192.0.2.2" // translates by the kernel alone
	lbBackends  = 16
	lbVIP       = "198.51.100.1" // led to the node
	lbRouterVIP = "198.51.100.2" // led to the router
)

func lbBackend(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(100 + i)}) }

// balancer measures what a client notices of a node that sends its packets on to backends, and has
// the answers come back through itself.
func (b *bencher) balancer(ctx context.Context, r *testbed) (err error) {
	if _, err := exec.LookPath("nft"); err != nil {
		return errors.New("needs nft for the baseline: install the package nftables")
	}
	var all []*namespace
	defer func() {
		for _, n := range all {
			err = errors.Join(err, n.remove())
		}
	}()
	fabric, node := r.spare, r.nodes[0]
	plug := func(name string, prefixes ...string) (*namespace, error) {
		n, err := b.newNamespace("lb-" + name)
		if err != nil {
			return nil, err
		}
		all = append(all, n)
		err = errors.Join(veth(fabric, name, n, "eth0"), fabric.up(name), n.up("eth0", prefixes...))
		return n, err
	}
	client, err1 := plug("client", lbClient+"/24")
	router, err2 := plug("router", lbRouter+"/24")
	var backends []string
	for i := range lbBackends {
		backends = append(backends, lbBackend(i).String()+"/24")
	}
	server, err3 := plug("server", backends...)
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	err = errors.Join(bridge(fabric, "eth0", "client", "router", "server"),
		client.route(lbVIP+"/32", "192.0.2.1"), client.route(lbRouterVIP+"/32", lbRouter),
		translateByNft(router))
	if err != nil {
		return err
	}
	services := node.path("services.yaml")
	if err := atomicfile.Write(services, []byte(lbServices()), 0o600, atomicfile.Process); err != nil {
		return err
	}
	// A balancer has little else to do with its ports.
	err = node.start("--datapath-mode", "lb-only", "--lb-state-file", services, "--snat-port-range", "34000-65535", "--bpf-nat-global-max", "524288")
	if err != nil {
		return err
	}
	if err := node.waitReady(ctx); err != nil {
		return err
	}
	to := func(vip string) path {
		return path{client: client, server: server, to: netip.IPv4Unspecified(), service: netip.MustParseAddr(vip)}
	}
	ours, theirs := to(lbVIP), to(lbRouterVIP)
	if err := errors.Join(ours.answers(ctx), theirs.answers(ctx)); err != nil {
		return err
	}
	return b.measureFlows(ctx, "lb", "", "a router that translates by nftables and conntrack, no BPF", ours, theirs,
		flowGoals{rr: [2]float64{1, 0.9}, crr: [2]float64{1, 0.8}, stream: [2]float64{1, 1.1}}, false)
}

// bridge joins links of a namespace by a bridge.
func bridge(n *namespace, links ...string) error {
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "br0"
	br := &netlink.Bridge{LinkAttrs: attrs}
	if err := n.h.LinkAdd(br); err != nil {
		return fmt.Errorf("bridge in %s: %w", n.name, err)
	}
	errs := []error{n.up("br0")}
	for _, name := range links {
		l, err := n.h.LinkByName(name)
		if err == nil {
			err = n.h.LinkSetMaster(l, br)
		}
		errs = append(errs, err)
	}
	return errors.Join(errs...)
}

// translateByNft has a namespace lead clients of its service to a backend by lot, in its own name.
func translateByNft(n *namespace) error {
	var choices []string
	for i := range lbBackends {
		choices = append(choices, fmt.Sprintf("%d : %s", i, lbBackend(i)))
	}
	rules := fmt.Sprintf(`table ip lb {
	chain in { type nat hook prerouting priority dstnat; ip daddr %s tcp dport %d dnat to numgen random mod %d map { %s }; }
	chain out { type nat hook postrouting priority srcnat; ct status dnat masquerade; }
}`, lbRouterVIP, flowPort, lbBackends, strings.Join(choices, ", "))
	err := n.do(func() error {
		cmd := exec.Command("nft", "-f", "-")
		cmd.Stdin = strings.NewReader(rules)
		if out, err := cmd.CombinedOutput(); err != nil {
			return fmt.Errorf("nft: %w: %s", err, out)
		}
		// The client is to go on asking the router, although the backends are its neighbours.
		return errors.Join(
			os.WriteFile("/proc/sys/net/ipv4/conf/all/send_redirects", []byte("0"), 0o644),
			os.WriteFile("/proc/sys/net/ipv4/conf/eth0/send_redirects", []byte("0"), 0o644))
	})
	return errors.Join(err, n.forward())
}

// lbServices is the file of services of the node.
func lbServices() string {
	var s strings.Builder
	fmt.Fprintf(&s, `services:
- metadata: {namespace: default, name: server}
  spec: {type: LoadBalancer, clusterIP: 10.96.0.1, ports: [{port: %d}]}
  status: {loadBalancer: {ingress: [{ip: %s}]}}
endpoints:
- metadata: {namespace: default, name: server, labels: {kubernetes.io/service-name: server}}
  addressType: IPv4
  ports: [{port: %d}]
  endpoints:
`, flowPort, lbVIP, flowPort)
	for i := range lbBackends {
		fmt.Fprintf(&s, "  - addresses: [%s]\n", lbBackend(i))
	}
	return s.String()
}
