package agent

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestVerbsOfTheInstalledConfiguration: by the configuration that the agent installs a runtime
// calls STATUS, which fails when the agent has been away for a while, and GC, which removes what a
// sandbox has left that the runtime has no record of.
func TestVerbsOfTheInstalledConfiguration(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	conf := n.path("net.d/05-cilium.conflist")
	n.flags = append(n.flags, "--write-cni-conf-when-ready", conf, "--cni-log-file", n.path("cni.log"))
	n.start()
	var list *libcni.NetworkConfigList
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) { // another process: nothing notifies
		var err error
		if list, err = libcni.NetworkConfFromFile(conf); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal(err)
		}
	}
	runtime := func() *libcni.CNIConfig { return libcni.NewCNIConfigWithCacheDir([]string{n.bin}, t.TempDir(), nil) }
	do := func(what string, fn func(context.Context, *libcni.CNIConfig) error, with *libcni.CNIConfig) {
		t.Helper()
		if err := n.ns.Do(func() error { return fn(t.Context(), with) }); err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	add := func(with *libcni.CNIConfig, container string) *libcni.RuntimeConf {
		t.Helper()
		rt := &libcni.RuntimeConf{ContainerID: container, NetNS: testenv.NewNetNS(t).Path(), IfName: "eth0"}
		do("ADD of "+container, func(ctx context.Context, c *libcni.CNIConfig) error {
			_, err := c.AddNetworkList(ctx, list, rt)
			return err
		}, with)
		return rt
	}
	status := func(ctx context.Context, c *libcni.CNIConfig) error { return c.GetStatusNetworkList(ctx, list) }
	r := runtime()
	do("STATUS", status, r)

	before := n.audit()
	kept := add(r, "kept")
	between := n.audit()
	add(runtime(), "lost") // by a runtime whose records are gone
	keep := []cnitypes.GCAttachment{{ContainerID: kept.ContainerID, IfName: kept.IfName}}
	gc := func(ctx context.Context, c *libcni.CNIConfig) error {
		return c.GCNetworkList(ctx, list, &libcni.GCArgs{ValidAttachments: keep})
	}
	do("GC", gc, r)
	n.sameAudit(between, "GC of a sandbox that was lost")
	do("CHECK", func(ctx context.Context, c *libcni.CNIConfig) error { return c.CheckNetworkList(ctx, list, kept) }, r)
	keep = []cnitypes.GCAttachment{}
	do("GC", gc, r)
	n.sameAudit(before, "GC without any")

	n.stop()
	do("STATUS of an agent that has ended", status, r)
	// As after a reboot: the state directory is empty then.
	if err := os.Remove(deletequeue.Answered(deletequeue.Dir(n.path("run/a.sock")))); err != nil {
		t.Fatal(err)
	}
	var theirs *cnitypes.Error
	if err := n.ns.Do(func() error { return status(t.Context(), r) }); !errors.As(err, &theirs) || theirs.Code != 50 || !strings.Contains(theirs.Msg, "DaemonDown") {
		t.Errorf("STATUS before the agent was ready: %v, want code 50", err)
	}
	n.start()
	do("STATUS of an agent that is back", status, r)
	n.stop()
}

// TestGCOfEndpointWithoutInterfaceName: a client that made an endpoint without the name of the
// container's interface keeps it for as long as the runtime keeps the container.
func TestGCOfEndpointWithoutInterfaceName(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	p := n.newPod("web", nil)
	h := n.ns.Netlink(t)
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.HardwareAddr = "lxcbyhand", net.HardwareAddr{2, 0, 0, 0, 0, 2}
	link := &netlink.Veth{
		LinkAttrs: attrs, PeerName: "eth0", PeerNamespace: netlink.NsFd(p.ns.Fd()), PeerHardwareAddr: net.HardwareAddr{2, 0, 0, 0, 0, 1},
	}
	if err := h.LinkAdd(link); err != nil {
		t.Fatal(err)
	}
	given, err := n.client.AllocateIP(t.Context(), rest.AllocateIPParams{Owner: p.container, Expiration: true})
	if err != nil {
		t.Fatal(err)
	}
	ep, err := n.client.CreateEndpoint(t.Context(), "cilium-local:0", rest.EndpointChangeRequest{
		State: rest.EndpointStateWaitingForIdentity, ContainerID: p.container, ContainerNetnsPath: p.ns.Path(),
		InterfaceName: "lxcbyhand", InterfaceIndex: link.Attrs().Index, MAC: "02:00:00:00:00:01", HostMAC: "02:00:00:00:00:02",
		Addressing: given.Address,
	})
	if err != nil {
		t.Fatal(err)
	}
	if id := ep.Status.ExternalIdentifiers.CNIAttachmentID; id != p.container {
		t.Errorf("the endpoint's attachment is %q, want %q", id, p.container)
	}
	gc := func(valid ...map[string]string) {
		t.Helper()
		n.conf = map[string]any{"cni.dev/valid-attachments": append([]map[string]string{}, valid...)}
		if _, err := p.run("GC"); err != nil {
			t.Fatal(err)
		}
	}
	gc(map[string]string{"containerID": p.container, "ifname": "eth0"})
	for _, id := range []string{"cni-attachment-id:" + p.container, "cni-attachment-id:" + p.container + ":eth0", "container-id:" + p.container} {
		want := ep.ID
		if strings.HasSuffix(id, ":eth0") {
			want = 0 // an attachment of that name is none of this endpoint
		}
		if got, err := n.client.Endpoint(t.Context(), id); got.ID != want || (want == 0) != client.NotFound(err) {
			t.Errorf("%s after the GC of others: endpoint %d, %v; want %d", id, got.ID, err, want)
		}
	}
	gc(map[string]string{"containerID": "another", "ifname": "eth0"})
	if _, err := n.client.Endpoint(t.Context(), fmt.Sprint("cilium-local:", ep.ID)); !client.NotFound(err) {
		t.Errorf("the endpoint of a container that is gone stays after GC: %v", err)
	}
	n.stop()
}

// TestTwoInterfaces: a container has two of Hawser's interfaces. Either address is reached, and
// reaches others, by its own interface, which alone may send from it, whatever becomes of the
// agent and of the other interface.
func TestTwoInterfaces(t *testing.T) {
	t.Parallel()
	n, outside := newNode(t)
	n.start()
	peer := n.attached("peer", nil)
	before := n.audit()
	for _, to := range peer.both(80) {
		serveEcho(t, peer.ns, to)
	}
	world := []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr(outside4), 80), netip.AddrPortFrom(netip.MustParseAddr(outside6), 80)}
	for _, to := range world {
		serveEcho(t, outside, to)
	}
	p := n.newPod("two", nil)
	have, results := map[string][]netip.Addr{}, map[string]json.RawMessage{}
	add := func(ifName string) {
		t.Helper()
		out, err := p.run("ADD", "CNI_IFNAME="+ifName)
		if err != nil {
			t.Fatal(err)
		}
		var result struct {
			IPs []struct{ Address netip.Prefix }
		}
		if err := json.Unmarshal(out, &result); err != nil {
			t.Fatal(err)
		}
		have[ifName], results[ifName] = nil, out
		for _, ip := range result.IPs {
			have[ifName] = append(have[ifName], ip.Address.Addr())
		}
	}
	del := func(ifName string) {
		t.Helper()
		if err := p.del("CNI_IFNAME=" + ifName); err != nil {
			t.Fatal(err)
		}
		delete(have, ifName)
	}
	works := func(when string) {
		t.Helper()
		for _, ifName := range slices.Sorted(maps.Keys(have)) {
			if n.cmd != nil { // there is an agent to ask
				n.conf = map[string]any{"prevResult": results[ifName]}
				if _, err := p.run("CHECK", "CNI_IFNAME="+ifName); err != nil {
					t.Errorf("%s: %v", when, err)
				}
				n.conf = nil
			}
			for _, from := range have[ifName] {
				if err := ping(t, peer.ns, from, 5*time.Second); err != nil {
					t.Errorf("%s: %s of %s from another pod: %v", when, from, ifName, err)
				}
				for _, to := range append(peer.both(80), world...) {
					if to.Addr().Is4() != from.Is4() {
						continue
					}
					if err := askFrom(p.ns, from, to); err != nil {
						t.Errorf("%s: %s of %s to %s: %v", when, from, ifName, to, err)
					}
				}
			}
		}
	}
	add("eth0")
	add("net1")
	works("two interfaces")
	n.kill()
	works("without an agent")
	n.start()
	works("the agent is back")
	del("net1")
	works("without net1")
	rules, err := p.ns.Netlink(t).RuleList(netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range rules {
		if r.Src != nil {
			t.Errorf("net1 is gone, and the pod has rule %v", r)
		}
	}
	add("net1")
	works("net1 again")
	del("eth0")
	works("without eth0")
	add("eth0")
	works("eth0 again")
	del("eth0")
	del("net1")
	n.sameAudit(before, "all interfaces are gone")
	if diff := cmp.Diff([]string{"lo"}, p.ns.LinkNames(t)); diff != "" {
		t.Errorf("interfaces left in the pod:\n%s", diff)
	}
	n.stop()
}

// askFrom has an echo server answer what is sent from an address.
func askFrom(ns namespace, from netip.Addr, to netip.AddrPort) error {
	var c *net.UDPConn
	if err := ns.Do(func() (err error) {
		c, err = net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(from, 0)), net.UDPAddrFromAddrPort(to))
		return err
	}); err != nil {
		return err
	}
	defer c.Close()
	var err error
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end); {
		if err = asks(c, "hawser", 200*time.Millisecond); err == nil {
			return nil
		}
	}
	return err
}
