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
// addresses of them.
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
		o.Spec.IPAM.Pool = v2.AllocationMap{}
		for ip, eni := range pool {
			o.Spec.IPAM.Pool[ip] = v2.AllocationIP{Resource: eni}
		}
		_, err = c.ciliumNodes().Update(c.t.Context(), o, metav1.UpdateOptions{})
		return err == nil
	})
}

// TestKubernetesENI has pods of a node on AWS have addresses of an interface that comes while the
// node runs. The network takes packets only at the interface that their address is of, as AWS does.
// A pod has its address when the interface is there, reaches the VPC under it and the world as the
// node, keeps both over a killed agent, and does not reach the instance metadata.
func TestKubernetesENI(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	c.grant("node-status", rbacv1.PolicyRule{APIGroups: []string{"cilium.io"}, Resources: []string{"ciliumnodes/status"}, Verbs: []string{"patch"}})
	cloud := aws.New()
	cloud.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"))
	cloud.AddSubnet("subnet-a", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	cloud.AddGroup("sg-1", "vpc-1", nil)
	own, err := cloud.AddInstance("i-n1", "m5.large", "subnet-a", []string{"sg-1"}, nil)
	if err != nil {
		t.Fatal(err)
	}
	primary := cloud.Interfaces()[0].MAC
	const second = "02:00:00:00:00:02"
	vpc, world, metadata := netip.MustParseAddrPort("10.0.9.9:80"), netip.MustParseAddrPort("192.0.2.9:80"), netip.MustParseAddrPort("169.254.169.254:80")

	ns, outside := testenv.NewNetNS(t), testenv.NewNetNS(t)
	testenv.Connect(t, ns, "eth0", []string{own.String() + "/24"}, outside, "eth0", []string{"10.0.0.1/24"})
	in := func(at *testenv.NetNS, line string) {
		t.Helper()
		at.Must(t, func() error { f := strings.Fields(line); return run(f[0], f[1:]...) })
	}
	in(ns, "ip link set eth0 address "+primary)
	in(ns, "ip route add default via 10.0.0.1")
	in(outside, "sysctl -qw net.ipv4.conf.all.rp_filter=1")
	for _, at := range []netip.AddrPort{vpc, world, metadata} {
		in(outside, "ip address add "+at.Addr().String()+"/32 dev lo")
	}
	serveEcho(t, outside, vpc)
	serveEcho(t, outside, world)
	var l net.Listener
	outside.Must(t, func() (err error) { l, err = net.Listen("tcp", metadata.String()); return err })
	service := &http.Server{Handler: cloud.Metadata("i-n1"), ReadHeaderTimeout: time.Minute}
	go func() { _ = service.Serve(l) }()
	t.Cleanup(func() { service.Close() })

	n := c.node(ns, "n1")
	n.flags = append(n.flags, "--enable-ipv6=false", "--ipam", "eni", "--routing-mode", "native", "--ipam-cilium-node-update-rate", "1s", "--ipam-pre-allocate", "3")
	n.launch()
	c.eventually("the node says which instance it is", func() bool {
		o, err := c.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		return err == nil && o.Spec.InstanceID == "i-n1" && o.Spec.ENI.InstanceType == "m5.large" && o.Spec.ENI.VpcID == "vpc-1" && o.Spec.ENI.NodeSubnetID == "subnet-a" && o.Spec.IPAM.PreAllocate == 3
	})
	vpcOf := v2.ENIVPC{ID: "vpc-1", PrimaryCIDR: "10.0.0.0/16", CIDRs: []string{"100.64.0.0/16"}}
	enis := map[string]v2.ENI{
		"eni-0": {ID: "eni-0", MAC: primary, Number: 0, Subnet: v2.ENISubnet{CIDR: "10.0.0.0/24"}, VPC: vpcOf},
		"eni-1": {ID: "eni-1", MAC: second, Number: 1, Subnet: v2.ENISubnet{CIDR: "100.64.0.0/24"}, VPC: vpcOf},
	}
	c.assignENI("n1", enis, map[string]string{"10.0.0.10": "eni-0"}) // the node's own
	n.ready()
	c.assignENI("n1", enis, map[string]string{"10.0.0.10": "eni-0", "100.64.0.10": "eni-1"})
	c.object(n, "client", map[string]string{"app": "client"})
	client, done := n.newPod("client", nil), make(chan error, 1)
	go func() { done <- client.add() }()
	select {
	case err := <-done:
		t.Fatalf("a pod whose interface is not there: %v, %s", err, client.ip4)
	case <-time.After(2 * time.Second):
	}
	testenv.Connect(t, ns, "eth1", nil, outside, "eth1", []string{"100.64.0.1/24"})
	in(ns, "ip link set eth1 address "+second)
	// The cloud asks for nobody's hardware address, and answers for its router.
	in(outside, "ip link set eth1 address 02:00:00:00:00:ff")
	in(outside, "ip neigh replace 100.64.0.10 lladdr "+second+" dev eth1 nud permanent")
	in(ns, "ip neigh replace 100.64.0.1 lladdr 02:00:00:00:00:ff dev eth1 nud permanent")
	if err := <-done; err != nil || client.ip4.String() != "100.64.0.10" {
		t.Fatalf("a pod whose interface comes: %v, %s\n%s", err, client.ip4, n.logText())
	}
	check := func(when string) {
		t.Helper()
		for what, to := range map[string]netip.AddrPort{"the VPC": vpc, "the world": world} {
			if err := once(client.ns, to, patient); err != nil {
				t.Errorf("%s: %s: %v", when, what, err)
			}
		}
		for _, asks := range []struct {
			who   string
			at    namespace
			finds bool
		}{{"a pod", client.ns, false}, {"the node", ns, true}} {
			err := asks.at.Do(func() error {
				c, err := net.DialTimeout("tcp", metadata.String(), 2*time.Second)
				if err == nil {
					c.Close()
				}
				return err
			})
			if (err == nil) != asks.finds {
				t.Errorf("%s: %s asks for the instance metadata: %v", when, asks.who, err)
			}
		}
	}
	check("at first")
	// Nothing that somebody can flush keeps pods from the metadata.
	in(ns, "nft flush ruleset")
	if err := client.ns.Do(func() error {
		c, err := net.DialTimeout("tcp", metadata.String(), 2*time.Second)
		if err == nil {
			c.Close()
		}
		return err
	}); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("a pod asks for the instance metadata after nftables were flushed: %v, want a refusal", err)
	}
	at := netip.AddrPortFrom(client.ip4, 81)
	serveEcho(t, client.ns, at)
	if err := once(outside, at, patient); err != nil {
		t.Errorf("from the VPC: %v", err)
	}

	n.kill()
	l.Close() // the instance is known by now
	n.start()
	if got := client.endpoint().Status.Networking.Addressing[0].IPv4; got != client.ip4.String() {
		t.Errorf("after a restart it has %s", got)
	}
	if err := once(client.ns, vpc, patient); err != nil {
		t.Errorf("after a restart: %v", err)
	}

	// What a plugin gets of the interface.
	c.assignENI("n1", enis, map[string]string{"10.0.0.10": "eni-0", "100.64.0.10": "eni-1", "100.64.0.11": "eni-1"})
	c.eventually("another address is answered with its interface", func() bool {
		code, text := n.call(http.MethodPost, "/ipam?owner=other&family=ipv4", "")
		if code != http.StatusCreated {
			return false
		}
		for _, want := range []string{`"master-mac":"` + second + `"`, `"interface-number":"1"`, `"gateway":"100.64.0.1"`, `"10.0.0.0/16"`, `"100.64.0.0/16"`, `"ip":"100.64.0.11"`} {
			if !strings.Contains(strings.ReplaceAll(text, ": ", ":"), want) {
				t.Errorf("the answer lacks %s: %s", want, text)
			}
		}
		return true
	})
}
