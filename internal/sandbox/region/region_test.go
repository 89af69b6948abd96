package region

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/internal/testenv"
)

// world is a region of two nodes.
type world struct {
	*testing.T
	spec  Spec
	nodes []*testenv.NetNS
	trust *x509.CertPool
	Client
}

func newWorld(t *testing.T, provider string, change ...func(*Spec)) *world {
	t.Helper()
	router := testenv.NewNetNS(t)
	dir := t.TempDir()
	w := &world{T: t, Client: Client{filepath.Join(dir, "s")}, spec: Spec{
		Provider: provider, Router: router.Path(), Nodes: netip.MustParsePrefix("10.99.0.0/24"), Pods: netip.MustParsePrefix("10.98.0.0/24"),
		Kept: []netip.Addr{netip.MustParseAddr("10.99.0.10")}, API: netip.MustParseAddrPort("10.99.0.1:443"),
		Cert: filepath.Join(dir, "crt"), Key: filepath.Join(dir, "key"), Socket: filepath.Join(dir, "s"),
	}}
	w.certificate()
	router.Must(t, func() error { return os.WriteFile("/proc/sys/net/ipv4/ip_forward", []byte("1"), 0o644) })
	w.must(machine.WithNetlink(router.Path(), func(h *netlink.Handle) error {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = "br0"
		if err := h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
			return err
		}
		return machine.AddressAndUp(h, "br0", netip.MustParsePrefix("10.99.0.1/24"))
	}))
	for k := 1; k <= 2; k++ {
		ns := testenv.NewNetNS(t)
		name, ip := fmt.Sprintf("n%d", k), netip.AddrFrom4([4]byte{10, 99, 0, byte(10 + k)})
		testenv.Connect(t, ns, "eth0", []string{ip.String() + "/24"}, router, name, nil)
		w.must(machine.WithNetlink(ns.Path(), func(h *netlink.Handle) error {
			link, err := h.LinkByName("eth0")
			if err == nil {
				w.spec.Hosts = append(w.spec.Hosts, Host{Name: name, Namespace: ns.Path(), First: name, IPv4: ip, MAC: link.Attrs().HardwareAddr.String()})
				err = machine.AddRoute(h, "eth0", netip.Prefix{}, w.spec.API.Addr())
			}
			return err
		}))
		w.nodes = append(w.nodes, ns)
	}
	for _, f := range change {
		f(&w.spec)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ready, ended := make(chan struct{}), make(chan error, 1)
	go func() {
		ended <- Serve(ctx, w.spec, func() error { close(ready); return nil }, slog.New(slog.DiscardHandler))
	}()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	select {
	case <-ready:
	case err := <-ended:
		ended <- err
		t.Fatal(err)
	}
	return w
}

func (w *world) must(err error) {
	w.Helper()
	if err != nil {
		w.Fatal(err)
	}
}

func (w *world) certificate() {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	w.must(err)
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotAfter: time.Now().Add(time.Hour), IPAddresses: []net.IP{w.spec.API.Addr().AsSlice()}}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	w.must(err)
	text, err := x509.MarshalECPrivateKey(key)
	w.must(err)
	w.must(os.WriteFile(w.spec.Cert, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600))
	w.must(os.WriteFile(w.spec.Key, pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: text}), 0o600))
	cert, err := x509.ParseCertificate(der)
	w.must(err)
	w.trust = x509.NewCertPool()
	w.trust.AddCert(cert)
}

// ask sends a request from a node.
func (w *world) ask(node int, method, to, body string, header ...string) (int, string) {
	w.Helper()
	tr := &http.Transport{DisableKeepAlives: true, TLSClientConfig: &tls.Config{RootCAs: w.trust}, DialContext: func(_ context.Context, network, addr string) (c net.Conn, err error) {
		err = w.nodes[node].Do(func() error { c, err = net.DialTimeout(network, addr, 5*time.Second); return err })
		return c, err
	}}
	req, err := http.NewRequestWithContext(w.Context(), method, to, strings.NewReader(body))
	w.must(err)
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: tr, Timeout: 10 * time.Second}).Do(req)
	w.must(err)
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	w.must(err)
	return resp.StatusCode, string(text)
}

// call is a request to EC2.
func (w *world) call(action string, values ...string) (int, string) {
	w.Helper()
	form := url.Values{"Action": {action}}
	for i := 0; i+1 < len(values); i += 2 {
		form.Set(values[i], values[i+1])
	}
	return w.ask(0, http.MethodPost, "https://"+w.spec.API.String()+"/", form.Encode(), "Authorization", "x", "Content-Type", "application/x-www-form-urlencoded")
}

func (w *world) eventually(what string, ok func() bool) {
	w.Helper()
	for deadline := time.Now().Add(20 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(deadline) {
			w.Fatal(what)
		}
	}
}

// TestAWS: an interface that is attached by the API is plugged into the node, and unplugged when
// the instance ends; people see it, and have the cloud refuse, run dry and throttle.
func TestAWS(t *testing.T) {
	t.Parallel()
	w := newWorld(t, AWS)
	code, made := w.call("CreateNetworkInterface", "SubnetId", PodsSubnet, "SecurityGroupId.1", groupName, "SecondaryPrivateIpAddressCount", "3")
	id := regexp.MustCompile(`eni-[0-9a-f]+`).FindString(made)
	if code != 200 || id == "" {
		t.Fatalf("an interface is not made: %d %s", code, made)
	}
	if code, text := w.call("AttachNetworkInterface", "NetworkInterfaceId", id, "InstanceId", InstanceID(AWS, "n2"), "DeviceIndex", "1"); code != 200 {
		t.Fatalf("it is not attached: %d %s", code, text)
	}
	has := func() bool { return slices.Contains(w.nodes[1].LinkNames(t), "eth1") }
	w.eventually("the interface is not plugged into its node", has)
	st, err := w.Status(t.Context())
	w.must(err)
	if len(st.Instances) != 2 || len(st.Interfaces) != 3 || len(st.Subnets) != 2 || st.Calls["AttachNetworkInterface"] != 1 {
		t.Errorf("the status is %+v", st)
	}
	order := func(o Order) Status {
		t.Helper()
		st, err := w.Order(t.Context(), o)
		w.must(err)
		return st
	}
	if st := order(Order{Do: "fail", Reason: "quota", Times: 1}); len(st.Disturbances) != 1 {
		t.Errorf("disturbances are %v", st.Disturbances)
	}
	for _, want := range []string{"NetworkInterfaceLimitExceeded", "eni-"} {
		if _, text := w.call("CreateNetworkInterface", "SubnetId", nodesName, "SecurityGroupId.1", groupName); !strings.Contains(text, want) {
			t.Errorf("want %s, got %s", want, text)
		}
	}
	order(Order{Do: "fill", Subnet: PodsSubnet, Free: 2})
	if _, text := w.call("AssignPrivateIpAddresses", "NetworkInterfaceId", id, "SecondaryPrivateIpAddressCount", "3"); !strings.Contains(text, "InsufficientFreeAddressesInSubnet") {
		t.Errorf("a full subnet gives addresses: %s", text)
	}
	order(Order{Do: "throttle", Rate: 0.01})
	if code, text := w.call("DescribeSubnets"); code != 503 || !strings.Contains(text, "RequestLimitExceeded") {
		t.Errorf("throttled: %d %s", code, text)
	}
	if st := order(Order{Do: "calm"}); len(st.Disturbances) != 0 {
		t.Errorf("after calm: %v", st.Disturbances)
	}
	if code, text := w.call("AssignPrivateIpAddresses", "NetworkInterfaceId", id, "SecondaryPrivateIpAddressCount", "3"); code != 200 {
		t.Errorf("after calm: %d %s", code, text)
	}
	st = order(Order{Do: "allocate", Tags: map[string]string{"for": "edge"}})
	if len(st.StaticIPs) != 1 || st.StaticIPs[0].Tags["for"] != "edge" || st.StaticIPs[0].Interface != "" {
		t.Fatalf("elastic IPs are %+v", st.StaticIPs)
	}
	if code, text := w.call("AssociateAddress", "AllocationId", st.StaticIPs[0].ID, "NetworkInterfaceId", id); code != 200 {
		t.Errorf("an elastic IP is not associated: %d %s", code, text)
	}
	if st, err = w.Status(t.Context()); err != nil || st.StaticIPs[0].Interface != id || !st.StaticIPs[0].Private.IsValid() {
		t.Errorf("after it was associated: %+v, %v", st.StaticIPs, err)
	}
	for _, bad := range []Order{{Do: "fail", Reason: "mood"}, {Do: "fill", Subnet: "none"}, {Do: "terminate", Instance: "i-none"}, {Do: "dance"}} {
		if _, err := w.Order(t.Context(), bad); err == nil {
			t.Errorf("%+v is obeyed", bad)
		}
	}
	order(Order{Do: "terminate", Instance: InstanceID(AWS, "n2")})
	w.eventually("an interface of an instance that ended is still plugged in", func() bool { return !has() })
}

// TestAWSIPv6: a prefix that is delegated by the API is led to the node's interface, beside the
// node's own address; there is IPv6 in no other cloud.
func TestAWSIPv6(t *testing.T) {
	t.Parallel()
	all, nodes, pods := netip.MustParsePrefix("2001:db8::/56"), netip.MustParsePrefix("2001:db8:0:1::/64"), netip.MustParsePrefix("2001:db8:0:2::/64")
	w := newWorld(t, AWS, func(s *Spec) {
		s.IPv6, s.NodesIPv6, s.PodsIPv6 = all, nodes, pods
		for k := range s.Hosts {
			s.Hosts[k].IPv6 = netip.MustParseAddr(fmt.Sprintf("2001:db8:0:1::%d", 11+k))
		}
		for _, provider := range []string{Azure, Alibaba} {
			other := *s
			if other.Provider = provider; other.validate() == nil {
				t.Errorf("IPv6 in %s", provider)
			}
		}
		if err := s.validate(); err != nil {
			t.Error(err)
		}
	})
	st, err := w.Status(t.Context())
	w.must(err)
	first := st.Interfaces[slices.IndexFunc(st.Interfaces, func(i cloud.Interface) bool { return i.Instance == InstanceID(AWS, "n1") })]
	if len(first.IPv6) != 1 || first.IPv6[0] != w.spec.Hosts[0].IPv6 {
		t.Errorf("the first interface of n1 is %+v", first)
	}
	code, text := w.call("AssignIpv6Addresses", "NetworkInterfaceId", first.ID, "Ipv6PrefixCount", "1")
	prefix := regexp.MustCompile(`<item>(2001:db8:0:1:[0-9a-f:]+/80)</item>`).FindStringSubmatch(text)
	if code != 200 || len(prefix) != 2 {
		t.Fatalf("no prefix is delegated: %d %s", code, text)
	}
	p := netip.MustParsePrefix(prefix[1])
	w.eventually("the prefix is not led to the node", func() bool {
		var out string
		w.must(machine.WithNetlink(w.spec.Router, func(h *netlink.Handle) error {
			link, err := h.LinkByName("n1")
			if err != nil {
				return err
			}
			for _, ip := range []netip.Addr{p.Addr().Next(), w.spec.Hosts[0].IPv6} {
				routes, err := h.RouteGet(ip.AsSlice())
				if err != nil || len(routes) != 1 || routes[0].LinkIndex != link.Attrs().Index {
					out += fmt.Sprint(routes, err)
				}
			}
			return nil
		}))
		return out == ""
	})
}

// TestMetadata: each node gets its own instance, in each cloud, by its own protocol.
func TestMetadata(t *testing.T) {
	t.Parallel()
	for _, provider := range Providers() {
		t.Run(provider, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, provider)
			for k, h := range w.spec.Hosts {
				// A host gets no packets from the service's address but its replies.
				w.must(machine.InNamespace(w.spec.Router, func() error {
					c, err := net.Dial("udp", netip.AddrPortFrom(h.IPv4, 9).String())
					if err != nil {
						return err
					}
					defer c.Close()
					if from := c.LocalAddr().(*net.UDPAddr).AddrPort().Addr(); from != w.spec.API.Addr() {
						t.Errorf("the router speaks to %s under %s", h.Name, from)
					}
					return nil
				}))
				var text string
				switch provider {
				case Azure:
					_, text = w.ask(k, http.MethodGet, "http://169.254.169.254/metadata/instance?api-version=2021-02-01", "", "Metadata", "true")
				case AWS:
					_, token := w.ask(k, http.MethodPut, "http://169.254.169.254/latest/api/token", "", "X-aws-ec2-metadata-token-ttl-seconds", "60")
					_, text = w.ask(k, http.MethodGet, "http://169.254.169.254/latest/meta-data/instance-id", "", "X-aws-ec2-metadata-token", token)
				case Alibaba:
					_, token := w.ask(k, http.MethodPut, "http://100.100.100.200/latest/api/token", "", "X-aliyun-ecs-metadata-token-ttl-seconds", "60")
					_, text = w.ask(k, http.MethodGet, "http://100.100.100.200/latest/meta-data/instance-id", "", "X-aliyun-ecs-metadata-token", token)
				}
				if !strings.Contains(text, InstanceID(provider, h.Name)) {
					t.Errorf("%s gets %s", h.Name, text)
				}
			}
			st, err := w.Status(t.Context())
			w.must(err)
			for k, i := range st.Interfaces {
				if i.Primary != w.spec.Hosts[k].IPv4 || i.MAC != w.spec.Hosts[k].MAC {
					t.Errorf("the first interface of %s is %+v", w.spec.Hosts[k].Name, i)
				}
			}
		})
	}
}
