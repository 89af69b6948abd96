package agent

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	"github.com/hawser-net/hawser/internal/sandbox/cloud/aws"
	"github.com/hawser-net/hawser/internal/sandbox/fabric"
	"github.com/hawser-net/hawser/internal/testenv"
)

// awsNodes are nodes in a VPC of this machine, whose interfaces an operator looks after.
type awsNodes struct {
	*kubeCluster
	cloud *aws.Cloud
	nodes []*machineNode
}

// newAWSNodes makes two instances in a VPC with both families, and the network between them, which
// follows the cloud until the test ends. No agent runs yet.
func newAWSNodes(t *testing.T) *awsNodes {
	t.Helper()
	a := &awsNodes{kubeCluster: newKubeCluster(t), cloud: aws.New()}
	a.grant("node-status", rbacv1.PolicyRule{APIGroups: []string{"cilium.io"}, Resources: []string{"ciliumnodes/status"}, Verbs: []string{"patch"}})
	a.cloud.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"), netip.MustParsePrefix("100.64.0.0/16"))
	a.cloud.AddVPCIPv6("vpc-1", netip.MustParsePrefix("fd00:99::/56"))
	a.cloud.AddSubnet("subnet-n", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	a.cloud.AddSubnet("subnet-p", "vpc-1", "eu-test-1a", netip.MustParsePrefix("100.64.0.0/24"), map[string]string{"for": "pods"})
	a.cloud.AddSubnetIPv6("subnet-n", netip.MustParsePrefix("fd00:99::/64"))
	a.cloud.AddSubnetIPv6("subnet-p", netip.MustParsePrefix("fd00:99:0:98::/64"))
	a.cloud.AddGroup("sg-1", "vpc-1", nil)

	router := testenv.NewNetNS(t)
	in := func(at *testenv.NetNS, line string) {
		t.Helper()
		at.Must(t, func() error { f := strings.Fields(line); return run(f[0], f[1:]...) })
	}
	in(router, "sysctl -qw net.ipv4.ip_forward=1 net.ipv6.conf.all.forwarding=1 net.ipv4.conf.all.rp_filter=0")
	in(router, "ip address add 10.0.0.1 dev lo")
	in(router, "ip address add 169.254.169.254 dev lo")
	f := &fabric.Fabric{Router: router.Path(), Gateway: func(p netip.Prefix) netip.Addr { return p.Addr().Next() }}
	for k := range 2 {
		name := fmt.Sprint("n", k+1)
		ip4, err := a.cloud.AddInstance("i-"+name, "m5.large", "subnet-n", []string{"sg-1"}, nil)
		if err != nil {
			t.Fatal(err)
		}
		ip6 := netip.MustParseAddr(fmt.Sprintf("fd00:99::%d", 11+k))
		a.cloud.PlaceIPv6("i-"+name, ip6)
		first := slices.IndexFunc(a.cloud.Interfaces(), func(i aws.Interface) bool { return i.Instance == "i-"+name })
		ns := testenv.NewNetNS(t)
		testenv.Connect(t, ns, "eth0", nil, router, name, nil)
		in(ns, "ip link set eth0 address "+a.cloud.Interfaces()[first].MAC)
		in(ns, "ip address add "+ip4.String()+"/24 dev eth0")
		in(ns, "ip address add "+ip6.String()+"/128 dev eth0 nodad")
		in(ns, "ip route add default via 10.0.0.1")
		in(ns, "ip -6 route add default via fe80:ec2::1 dev eth0")
		f.Hosts = append(f.Hosts, fabric.Host{Name: name, Instance: "i-" + name, Namespace: ns.Path(), First: name})
		at := netip.AddrPortFrom(netip.MustParseAddr("169.254.169.254"), uint16(81+k))
		a.metadata(t, router, at, "i-"+name)
		n := a.node(ns, name)
		n.flags = append(n.flags, "--ipam", "eni", "--routing-mode", "native", "--ipam-cilium-node-update-rate", "1s", "--ipam-pre-allocate", "3",
			"--eni-subnet-tags", "for=pods", "--eni-first-interface-index", "1", "--instance-metadata-endpoint", "http://"+at.String())
		a.nodes = append(a.nodes, n)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil {
			if err := f.Apply(a.cloud.View()); err != nil && ctx.Err() == nil {
				t.Logf("the network of the cloud: %v", err)
			}
			time.Sleep(100 * time.Millisecond) // attaching takes seconds in a cloud
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	return a
}

// metadata serves the metadata of an instance.
func (a *awsNodes) metadata(t *testing.T, router *testenv.NetNS, at netip.AddrPort, instance string) {
	t.Helper()
	var l net.Listener
	router.Must(t, func() (err error) { l, err = net.Listen("tcp", at.String()); return err })
	s := &http.Server{Handler: a.cloud.Metadata(instance), ReadHeaderTimeout: time.Minute}
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { s.Close() })
}

// operator starts hawser-operator, as a process that finds the cloud as every user of its SDK does.
func (a *awsNodes) operator(t *testing.T) *exec.Cmd {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(bin, "hawser-operator")
	compile := exec.Command("go", "build", "-o", program, "./cmd/hawser-operator")
	compile.Dir = filepath.Join("..", "..")
	compile.Env = append(os.Environ(), "CGO_ENABLED=0")
	if text, err := compile.CombinedOutput(); err != nil {
		t.Fatalf("build the operator: %v\n%s", err, text)
	}
	endpoint := httptest.NewServer(a.cloud)
	t.Cleanup(endpoint.Close)
	kubeconfig := filepath.Join(t.TempDir(), "kubeconfig")
	if err := clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: a.Config.Host, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: a.Config.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, kubeconfig); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "--k8s-kubeconfig-path="+kubeconfig, "--identity-allocation-mode=crd", "--operator-api-serve-addr=127.0.0.1:0",
		"--ipam=eni", "--limit-ipam-api-qps=100", "--limit-ipam-api-burst=100", "--nodes-gc-interval=1h")
	cmd.Env = append(os.Environ(), "AWS_ENDPOINT_URL="+endpoint.URL, "AWS_REGION=eu-test-1", "AWS_ACCESS_KEY_ID=id", "AWS_SECRET_ACCESS_KEY=secret",
		"AWS_CONFIG_FILE=/dev/null", "AWS_SHARED_CREDENTIALS_FILE=/dev/null", "AWS_EC2_METADATA_DISABLED=true")
	var log bytes.Buffer
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if text := log.String(); t.Failed() {
			t.Logf("log of the operator:\n%s", text[max(0, len(text)-6000):])
		}
	})
	return cmd
}

// isAssigned reports whether the cloud leads an address to an interface of an instance.
func (a *awsNodes) isAssigned(instance string, ip netip.Addr) bool {
	return slices.ContainsFunc(a.cloud.Interfaces(), func(i aws.Interface) bool {
		return i.Instance == instance && i.Index > 0 && (slices.Contains(i.Addresses, ip) || slices.ContainsFunc(i.IPv6Prefixes, func(p netip.Prefix) bool { return p.Contains(ip) }))
	})
}

// TestENIOfOperator has two nodes on AWS get everything from an operator that is a process of its
// own: interfaces, IPv4 addresses and IPv6 prefixes. Their pods reach each other by policy under
// the addresses that the cloud leads to their interfaces, through a network that leads by nothing
// else, also after an agent was killed.
func TestENIOfOperator(t *testing.T) {
	t.Parallel()
	a := newAWSNodes(t)
	a.operator(t)
	for _, n := range a.nodes {
		n.launch()
	}
	for _, n := range a.nodes {
		n.ready()
	}
	n1, n2 := a.nodes[0], a.nodes[1]
	client := a.pod(n1, "client", map[string]string{"app": "client"})
	other := a.pod(n1, "other", map[string]string{"app": "other"})
	server := a.pod(n2, "server", map[string]string{"app": "server"})
	for p, instance := range map[*machinePod]string{client: "i-n1", other: "i-n1", server: "i-n2"} {
		for _, at := range p.both(81) {
			if !a.isAssigned(instance, at.Addr()) {
				t.Errorf("%s has %s, which the cloud does not lead to it", p.name, at.Addr())
			}
			serveEcho(t, p.ns, at)
		}
	}
	reach := func(when string) {
		t.Helper()
		for k, family := range []string{"IPv4", "IPv6"} {
			a.passing(when+": from n1 to n2 by "+family, client, server.both(81)[k])
			a.passing(when+": from n2 to n1 by "+family, server, client.both(81)[k])
			a.passing(when+": inside of n1 by "+family, client, other.both(81)[k])
		}
	}
	reach("at first")

	a.network("server", "server", func(s *networkingv1.NetworkPolicySpec) {
		s.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": "client"}}}}}}
	})
	for _, at := range server.both(81) {
		a.eventually("the policy counts for "+at.String(), func() bool { return ask(t, other.ns, at, 64, false, impatient) != nil })
		a.blocked("a pod that policy refuses", other, at)
		a.passing("a pod that policy lets in", client, at)
	}
	n1.kill()
	n1.start()
	reach("after a restart")
	for _, at := range server.both(81) {
		a.blocked("a pod that policy refuses, after a restart", other, at)
	}
	a.eventually("the object says which IPv6 addresses are used", func() bool {
		o, err := a.ciliumNodes().Get(t.Context(), "n1", metav1.GetOptions{})
		if err != nil || len(o.Spec.IPAM.IPv6Pool) != 1 {
			return false
		}
		for text, of := range o.Spec.IPAM.IPv6Pool {
			used := o.Status.IPAM.IPv6Used[client.ip6.String()]
			if p, err := netip.ParsePrefix(text); err != nil || !p.Contains(client.ip6) || used.Owner != "default/client" || used.Resource != of.Resource {
				return false
			}
		}
		return true
	})
}
