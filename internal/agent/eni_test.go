package agent

import (
	"errors"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/testenv"
)

// assignENI writes into a node's object what the operator does: the interfaces, and then the
// addresses and IPv6 prefixes of them.
func (c *kubeCluster) assignENI(name string, enis map[string]v2.ENI, pool map[string]string) {
	c.t.Helper()
	c.eventually("the interfaces of "+name+" are written", func() bool {
		o, err := c.ciliumNodes().Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		o.Status.ENI.ENIs = enis
		_, err = c.ciliumNodes().UpdateStatus(c.t.Context(), o, metav1.UpdateOptions{})
		return err == nil
	})
	c.eventually("the pool of "+name+" is written", func() bool {
		o, err := c.ciliumNodes().Get(c.t.Context(), name, metav1.GetOptions{})
		if err != nil {
			return false
		}
		o.Spec.IPAM.Pool, o.Spec.IPAM.IPv6Pool = v2.AllocationMap{}, v2.AllocationMap{}
		for ip, eni := range pool {
			if strings.Contains(ip, ":") {
				o.Spec.IPAM.IPv6Pool[ip] = v2.AllocationIP{Resource: eni}
			} else {
				o.Spec.IPAM.Pool[ip] = v2.AllocationIP{Resource: eni}
			}
		}
		_, err = c.ciliumNodes().Update(c.t.Context(), o, metav1.UpdateOptions{})
		return err == nil
	})
}

// eniMachine is a node on AWS, with what is outside of it. The network takes packets only at the
// interface that their address is of, as AWS does.
type eniMachine struct {
	*kubeCluster
	*machineNode
	outside *testenv.NetNS
	own     netip.Addr
	// prefix is what the second interface has of IPv6.
	prefix netip.Prefix
	// Who is outside listens there.
	vpc, world, metadata, vpc6, world6, metadata6 netip.AddrPort
	service                                       *http.Server // the instance metadata
	enis                                          map[string]v2.ENI
}

// secondMAC is the hardware address of the interface that comes and goes.
const secondMAC = "02:00:00:00:00:02"

// newENIMachine makes a node whose agent does not run yet.
func newENIMachine(t *testing.T) *eniMachine {
	t.Helper()
	m := &eniMachine{
		kubeCluster: newKubeCluster(t), outside: testenv.NewNetNS(t), prefix: netip.MustParsePrefix("fd00:98:0:1:2::/80"),
		vpc: netip.MustParseAddrPort("10.0.9.9:80"), world: netip.MustParseAddrPort("192.0.2.9:80"), metadata: netip.MustParseAddrPort("169.254.169.254:80"),
		vpc6: netip.MustParseAddrPort("[fd00:98::9]:80"), world6: netip.MustParseAddrPort("[2001:db8:9::9]:80"), metadata6: netip.MustParseAddrPort("[fd00:ec2::254]:80"),
	}
	m.grant("node-status", rbacv1.PolicyRule{APIGroups: []string{"cilium.io"}, Resources: []string{"ciliumnodes/status"}, Verbs: []string{"patch"}})
	cloud := aws.New()
	cloud.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"))
	cloud.AddSubnet("subnet-a", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	cloud.AddGroup("sg-1", "vpc-1", nil)
	var err error
	if m.own, err = cloud.AddInstance("i-n1", "m5.large", "subnet-a", []string{"sg-1"}, nil); err != nil {
		t.Fatal(err)
	}
	primary := cloud.Interfaces()[0].MAC
	vpcOf := v2.ENIVPC{ID: "vpc-1", PrimaryCIDR: "10.0.0.0/16", CIDRs: []string{"100.64.0.0/16"}}
	m.enis = map[string]v2.ENI{
		"eni-0": {ID: "eni-0", MAC: primary, Number: 0, Subnet: v2.ENISubnet{CIDR: "10.0.0.0/24"}, VPC: vpcOf},
		"eni-1": {ID: "eni-1", MAC: secondMAC, Number: 1, Subnet: v2.ENISubnet{CIDR: "100.64.0.0/24"}, VPC: vpcOf, IPv6Prefixes: []string{m.prefix.String()}},
	}

	ns := testenv.NewNetNS(t)
	testenv.Connect(t, ns, "eth0", []string{m.own.String() + "/24", "fd00:99::10/64"}, m.outside, "eth0", []string{"10.0.0.1/24", "fd00:99::1/64"})
	m.machineNode = m.node(ns, "n1")
	m.in(ns, "ip link set eth0 address "+primary)
	m.in(ns, "ip route add default via 10.0.0.1")
	m.in(ns, "ip route add default via fd00:99::1")
	m.in(m.outside, "sysctl -qw net.ipv4.conf.all.rp_filter=1")
	m.in(m.outside, "nft add table ip6 cloud")
	m.in(m.outside, "nft add chain ip6 cloud ports { type filter hook prerouting priority raw ; }")
	m.in(m.outside, "nft add rule ip6 cloud ports iifname eth0 ip6 saddr "+m.prefix.String()+" drop")
	m.in(m.outside, "nft add rule ip6 cloud ports iifname eth1 ip6 saddr != { fe80::/10, "+m.prefix.String()+" } drop")
	for _, at := range []netip.AddrPort{m.vpc, m.world, m.metadata, m.vpc6, m.world6, m.metadata6} {
		add := "ip address add " + at.Addr().String() + " dev lo"
		if at.Addr().Is6() {
			add += " nodad" // on lo, too: no process can listen there before duplicate address detection
		}
		m.in(m.outside, add)
	}
	for _, at := range []netip.AddrPort{m.vpc, m.world, m.vpc6, m.world6} {
		serveEcho(t, m.outside, at)
	}
	m.service = &http.Server{Handler: cloud.Metadata("i-n1"), ReadHeaderTimeout: time.Minute}
	for _, at := range []netip.AddrPort{m.metadata, m.metadata6} {
		var l net.Listener
		m.outside.Must(t, func() (err error) { l, err = net.Listen("tcp", at.String()); return err })
		go func() { _ = m.service.Serve(l) }()
	}
	t.Cleanup(func() { m.service.Close() })
	m.flags = append(m.flags, "--ipam", "eni", "--routing-mode", "native", "--ipam-cilium-node-update-rate", "1s", "--ipam-pre-allocate", "3")
	return m
}

func (m *eniMachine) in(at *testenv.NetNS, line string) {
	m.machineNode.t.Helper()
	at.Must(m.machineNode.t, func() error { f := strings.Fields(line); return run(f[0], f[1:]...) })
}

// plug attaches the second interface, as a cloud does: it is down.
func (m *eniMachine) plug() {
	t, ns := m.machineNode.t, m.ns
	t.Helper()
	testenv.Connect(t, ns, "eth1", nil, m.outside, "eth1", []string{"100.64.0.1/24", "fe80:ec2::1/64"})
	m.in(ns, "ip link set eth1 down")
	m.in(ns, "ip link set eth1 address "+secondMAC)
	// The cloud asks for no host's hardware address, and answers for its router.
	m.in(m.outside, "ip link set eth1 address 02:00:00:00:00:ff")
	m.in(m.outside, "ip neigh replace 100.64.0.10 lladdr "+secondMAC+" dev eth1 nud permanent")
	m.in(m.outside, "ip neigh replace fe80::2 lladdr "+secondMAC+" dev eth1 nud permanent")
	m.in(m.outside, "ip route add "+m.prefix.String()+" via fe80::2 dev eth1")
	m.in(ns, "ip neigh replace 100.64.0.1 lladdr 02:00:00:00:00:ff dev eth1 nud permanent")
}

// assigns has the node's object show its interfaces, with some addresses and prefixes.
func (m *eniMachine) assigns(pool map[string]string) { m.assignENI("n1", m.enis, pool) }

// tries connects from somewhere, and returns why not.
func tries(from namespace, to netip.AddrPort) error {
	return from.Do(func() error {
		c, err := net.DialTimeout("tcp", to.String(), 20*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	})
}

// seenFrom is under which address a pod is seen at one outside.
func (m *eniMachine) seenFrom(p *machinePod, at netip.Addr) (from netip.Addr) {
	t := m.machineNode.t
	t.Helper()
	var l net.Listener
	m.outside.Must(t, func() (err error) { l, err = net.Listen("tcp", netip.AddrPortFrom(at, 82).String()); return err })
	defer l.Close()
	if err := tries(p.ns, netip.AddrPortFrom(at, 82)); err != nil {
		t.Errorf("to %s: %v", at, err)
		return from
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return c.RemoteAddr().(*net.TCPAddr).AddrPort().Addr().Unmap()
}

// reaches has a pod reach the VPC and the world, but no metadata, which the node reaches.
func (m *eniMachine) reaches(when string, p *machinePod) {
	t := m.machineNode.t
	t.Helper()
	for what, to := range map[string]netip.AddrPort{"the VPC": m.vpc, "the world": m.world, "the VPC by IPv6": m.vpc6, "the world by IPv6": m.world6} {
		if err := once(p.ns, to, patient); err != nil {
			t.Errorf("%s: %s: %v", when, what, err)
		}
	}
	for _, at := range []netip.AddrPort{m.metadata, m.metadata6} {
		if err := tries(p.ns, at); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: a pod asks for the instance metadata at %s: %v, want a refusal", when, at, err)
		}
		if err := tries(m.ns, at); err != nil {
			t.Errorf("%s: the node does not reach the instance metadata at %s: %v", when, at, err)
		}
	}
}

// reached has a pod be reached from the VPC.
func (m *eniMachine) reached(when string, p *machinePod) {
	m.machineNode.t.Helper()
	for _, at := range p.both(81) {
		if err := once(m.outside, at, patient); err != nil {
			m.machineNode.t.Errorf("%s: from the VPC to %s: %v", when, at, err)
		}
	}
}

// TestKubernetesENI has pods of a node on AWS have addresses of an interface that comes while the
// node runs, of IPv6 out of its prefix. A pod has its addresses when the interface is there,
// reaches the VPC under them, and the world as the node with IPv4 and under its own with IPv6,
// keeps them over a killed agent and an interface that is unplugged, and does not reach the
// instance metadata.
func TestKubernetesENI(t *testing.T) {
	t.Parallel()
	m := newENIMachine(t)
	ns, prefix := m.ns, m.prefix.String()
	m.launch()
	m.eventually("the node says which instance it is", func() bool {
		o, err := m.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && o.Spec.InstanceID == "i-n1" && o.Spec.ENI.InstanceType == "m5.large" && o.Spec.ENI.VpcID == "vpc-1" && o.Spec.ENI.NodeSubnetID == "subnet-a" && o.Spec.IPAM.PreAllocate == 3
	})
	m.assigns(map[string]string{"10.0.0.10": "eni-0"}) // the node's own
	m.eventually("the agent says that it waits for a prefix", func() bool { return strings.Contains(m.logText(), "a prefix of 80 bits in ipv6-pool") })
	m.assigns(map[string]string{"10.0.0.10": "eni-0", prefix: "eni-1"})
	m.ready()
	m.assigns(map[string]string{"10.0.0.10": "eni-0", "100.64.0.10": "eni-1", prefix: "eni-1"})
	m.object(m.machineNode, "client", map[string]string{"app": "client"})
	client, done := m.newPod("client", nil), make(chan error, 1)
	go func() { done <- client.add() }()
	select {
	case err := <-done:
		t.Fatalf("a pod whose interface is not there: %v, %s", err, client.ip4)
	case <-time.After(2 * time.Second):
	}
	m.plug()
	if err := <-done; err != nil || client.ip4.String() != "100.64.0.10" || !m.prefix.Contains(client.ip6) {
		t.Fatalf("a pod whose interface comes: %v, %s, %s\n%s", err, client.ip4, client.ip6, m.logText())
	}
	for at, want := range map[netip.Addr]netip.Addr{m.vpc.Addr(): client.ip4, m.world.Addr(): m.own, m.vpc6.Addr(): client.ip6, m.world6.Addr(): client.ip6} {
		if got := m.seenFrom(client, at); got != want {
			t.Errorf("%s sees the pod as %s, want %s", at, got, want)
		}
	}
	m.reaches("at first", client)
	// Nothing that can be flushed keeps pods from the metadata.
	m.in(ns, "nft flush ruleset")
	for _, to := range []netip.AddrPort{m.metadata, m.metadata6} {
		if err := tries(client.ns, to); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("a pod asks for the instance metadata at %s after nftables were flushed: %v, want a refusal", to, err)
		}
	}
	for _, at := range client.both(81) {
		serveEcho(t, client.ns, at)
	}
	m.reached("at first", client)

	m.kill()
	m.service.Close() // the instance is known by now
	m.start()
	if got := client.endpoint().Status.Networking.Addressing[0]; got.IPv4 != client.ip4.String() || got.IPv6 != client.ip6.String() {
		t.Errorf("after a restart it has %+v", got)
	}
	for _, to := range []netip.AddrPort{m.vpc, m.vpc6} {
		if err := once(client.ns, to, patient); err != nil {
			t.Errorf("after a restart: %v", err)
		}
	}
	m.reached("after a restart", client)
	m.eventually("the object says who has the IPv6 address", func() bool {
		o, err := m.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return false
		}
		a := o.Status.IPAM.IPv6Used[client.ip6.String()]
		return a.Owner == "default/client" && a.Resource == "eni-1"
	})

	// The interface is detached, and attached again.
	m.in(ns, "ip link del eth1")
	if err := once(client.ns, m.vpc6, time.Second); err == nil {
		t.Error("packets pass without the interface")
	}
	m.plug()
	for what, to := range map[string]netip.AddrPort{"the VPC": m.vpc, "the VPC by IPv6": m.vpc6, "the world by IPv6": m.world6} {
		m.eventually("an interface that comes again leads to "+what, func() bool { return once(client.ns, to, time.Second) == nil })
	}
	m.reached("after the interface was away", client)
	m.answers()

	// The prefix goes: pods keep what they have, and a pod that asks for more gets an error that
	// names what is missing.
	delete(m.enis, "eni-1")
	m.assigns(map[string]string{"10.0.0.10": "eni-0"})
	m.eventually("a request for an IPv6 address fails with what is missing", func() bool {
		code, text := m.call(http.MethodPost, "/ipam?owner=another&family=ipv6", "")
		return code != http.StatusCreated && strings.Contains(text, "no ipv6 address") && strings.Contains(text, "operator-status.error of CiliumNode n1")
	})
	m.reached("without its prefix", client)
	if err := client.del(); err != nil {
		t.Error(err)
	}
	m.eventually("the object says that no pod has the IPv6 address", func() bool {
		o, err := m.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil {
			return false
		}
		_, used := o.Status.IPAM.IPv6Used[client.ip6.String()]
		return !used
	})
}

// answers has a plugin get what there is to know of the interface of an address.
func (m *eniMachine) answers() {
	m.machineNode.t.Helper()
	m.assigns(map[string]string{"10.0.0.10": "eni-0", "100.64.0.10": "eni-1", "100.64.0.11": "eni-1", m.prefix.String(): "eni-1"})
	for family, wants := range map[string][]string{
		"ipv4": {`"gateway":"100.64.0.1"`, `"10.0.0.0/16"`, `"100.64.0.0/16"`, `"ip":"100.64.0.11"`},
		"ipv6": {`"gateway":"fe80:ec2::1"`, `"` + m.prefix.String() + `"`, `"ip":"fd00:98:0:1:2:`},
	} {
		m.eventually("another address is answered with its interface", func() bool {
			code, text := m.call(http.MethodPost, "/ipam?owner=other&family="+family, "")
			if code != http.StatusCreated {
				return false
			}
			for _, want := range append(wants, `"master-mac":"`+secondMAC+`"`, `"interface-number":"1"`) {
				if !strings.Contains(strings.ReplaceAll(text, ": ", ":"), want) {
					m.machineNode.t.Errorf("the answer lacks %s: %s", want, text)
				}
			}
			return true
		})
	}
}
