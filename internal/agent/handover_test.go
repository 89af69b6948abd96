package agent

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// otherLayout makes the pinned maps those of another layout, as they are for an agent of the next
// release, or removes every pin, as an administrator does who empties the BPF file system.
func (n *machineNode) otherLayout(emptied bool) {
	n.t.Helper()
	dir := n.path("bpf/hawser")
	entries, err := os.ReadDir(dir)
	if err != nil {
		n.t.Fatal(err)
	}
	found := false
	for _, e := range entries {
		found = found || strings.HasPrefix(e.Name(), "maps-")
		switch {
		case !e.IsDir(): // the kernel's own files for people to look at
		case emptied:
			err = os.RemoveAll(filepath.Join(dir, e.Name()))
		case strings.HasPrefix(e.Name(), "maps-"):
			err = os.Rename(filepath.Join(dir, e.Name()), filepath.Join(dir, "maps-v0"))
		}
		if err != nil {
			n.t.Fatal(err)
		}
	}
	if !found {
		n.t.Fatal("no maps are pinned")
	}
}

// layouts are the maps that are pinned.
func (n *machineNode) layouts() (out []string) {
	n.t.Helper()
	entries, err := os.ReadDir(n.path("bpf/hawser"))
	if err != nil {
		n.t.Fatal(err)
	}
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), "maps-") {
			out = append(out, e.Name())
		}
	}
	return out
}

// crossing is the traffic that goes on while an agent takes over.
type crossing struct {
	t                 *testing.T
	allowed, knocking []*flow
	streams           []func() (int, error)
	connecting        []func() (int, []error)
	forbidden         []*echoServer
	web               *machinePod
}

// cross starts traffic of a client that may reach the web pod on port 80, and of one that may not.
// No policy admits port 81.
func cross(t *testing.T, web, client, intruder *machinePod) *crossing {
	t.Helper()
	c := &crossing{t: t, web: web}
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
		c.allowed = append(c.allowed, startFlow(t, "client to web "+to.String(), client.ns, to))
		c.streams = append(c.streams, startStream(t, client.ns, to))
		c.connecting = append(c.connecting, startConnecting(t, client.ns, to))
		c.knocking = append(c.knocking, startFlow(t, "intruder to web "+to.String(), intruder.ns, to))
	}
	for _, to := range web.both(81) {
		c.forbidden = append(c.forbidden, serveEcho(t, web.ns, to))
		c.knocking = append(c.knocking, startFlow(t, "client to web "+to.String(), client.ns, to))
	}
	return c
}

// finish ends the traffic and requires that nothing forbidden has passed and everything allowed
// has.
func (c *crossing) finish() {
	c.t.Helper()
	for _, f := range c.allowed {
		sent, lost := f.finish()
		c.t.Logf("%s: %d datagrams, %d lost", f.name, sent, len(lost))
		if len(lost) > 0 {
			c.t.Errorf("%s: %d of %d datagrams got lost, the first sent at %s", f.name, len(lost), sent, lost[0].UTC().Format("15:04:05.000"))
		}
	}
	for _, finish := range c.streams {
		if k, err := finish(); err != nil || k == 0 {
			c.t.Errorf("the connection broke after %d answers: %v", k, err)
		}
	}
	for _, finish := range c.connecting {
		k, errs := finish()
		c.t.Logf("%d connections", k)
		if len(errs) > 0 {
			c.t.Errorf("%d of %d connections failed: %v", len(errs), k, errors.Join(errs[:min(3, len(errs))]...))
		}
	}
	for _, f := range c.knocking {
		close(f.stop)
		f.sending.Wait()
		f.conn.Close()
		f.done.Wait()
		if sent, got := f.counts(); got > 0 || sent == 0 {
			c.t.Errorf("%s: %d of %d forbidden datagrams were answered", f.name, got, sent)
		}
	}
	for _, s := range c.forbidden {
		if d, k := s.datagrams.Load(), s.connections.Load(); d+k > 0 {
			c.t.Errorf("%d forbidden datagrams and %d connections got through", d, k)
		}
	}
}

// denyIntruder lets everybody but the intruder reach web, and only on port 80.
const denyIntruder = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: web, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: web}}
  ingress:
  - fromEntities: [all]
    toPorts: [{ports: [{port: "80"}]}]
  ingressDeny:
  - fromEndpoints: [{matchLabels: {app: intruder}}]
`

// TestNewLayoutUnderTraffic: an agent whose maps are new takes over from the programs and maps of
// the one before while traffic goes on. Nothing that is denied passes, and nothing that is allowed
// gets lost.
func TestNewLayoutUnderTraffic(t *testing.T) {
	for name, flags := range storeFlags() {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, _ := newNode(t)
			n.flags = append(n.flags, flags(t)...)
			n.policy("web.yaml", denyIntruder)
			n.start()
			web := n.attached("web", map[string]string{"app": "web"})
			c := cross(t, web, n.attached("client", map[string]string{"app": "client"}), n.attached("intruder", map[string]string{"app": "intruder"}))
			for i := range count(4, 2, 40) {
				n.kill()
				n.otherLayout(i%2 == 1)
				n.start()
				if got := n.layouts(); len(got) != 1 || got[0] == "maps-v0" {
					t.Errorf("the agent has observed everything, and the maps %v are pinned", got)
				}
			}
			c.finish()
			n.stop()
		})
	}
}

// TestNewLayoutWithoutAPIServer: as long as the API server is away the programs and maps of the
// agent before stay in charge, through any number of restarts; when it is back the new ones take
// over.
func TestNewLayoutWithoutAPIServer(t *testing.T) {
	for name, change := range map[string]func(*machineNode){
		"the same maps":  func(*machineNode) {},
		"another layout": func(n *machineNode) { n.otherLayout(false) },
		"no pins":        func(n *machineNode) { n.otherLayout(true) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c := newKubeCluster(t)
			ns := testenv.NewNetNS(t)
			outside := testenv.NewNetNS(t)
			testenv.Connect(t, ns, "eth0", []string{"192.0.2.1/24", "2001:db8::1/64"}, outside, "eth0", []string{"192.0.2.254/24", "2001:db8::fe/64"})
			n := c.node(ns, "n1", pods4, pods6)
			n.flags = append(n.flags, "--ipv4-range", pods4, "--ipv6-range", pods6)
			c.network("web", "web", fromApps("client"))
			n.start()
			web := c.pod(n, "web", map[string]string{"app": "web"})
			client, intruder := c.pod(n, "client", map[string]string{"app": "client"}), c.pod(n, "intruder", map[string]string{"app": "intruder"})
			traffic := cross80(t, web, client, intruder)
			n.kill()
			c.Stop()
			change(n)
			before := n.layouts()
			for range 2 {
				n.launch()
				n.serving(false)
				// Its former policies are in force, as people see them; by now it has had every
				// opportunity to do wrong.
				c.eventually("the policies of the last run are restored", func() bool {
					files, err := n.client.PolicyFiles(t.Context())
					return err == nil && slices.ContainsFunc(files, func(f rest.PolicyFile) bool {
						return f.Path == "k8s/NetworkPolicy/default/web" && f.InForce
					}) && strings.Contains(n.logText(), "the stored policies are in force")
				})
				for _, name := range before {
					if !slices.Contains(n.layouts(), name) {
						t.Errorf("the maps of before are not pinned any more: %v", n.layouts())
					}
				}
				n.kill()
			}
			n.launch()
			c.Start()
			n.ready()
			if got := n.layouts(); len(got) != 1 || got[0] == "maps-v0" {
				t.Errorf("the agent has observed everything, and the maps %v are pinned", got)
			}
			traffic.finish()
			n.stop()
		})
	}
}

// cross80 is cross when policies say nothing of ports.
func cross80(t *testing.T, web, client, intruder *machinePod) *crossing {
	t.Helper()
	c := &crossing{t: t, web: web}
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
		c.allowed = append(c.allowed, startFlow(t, "client to web "+to.String(), client.ns, to))
		c.streams = append(c.streams, startStream(t, client.ns, to))
		c.connecting = append(c.connecting, startConnecting(t, client.ns, to))
	}
	for _, to := range web.both(81) {
		c.forbidden = append(c.forbidden, serveEcho(t, web.ns, to))
		c.knocking = append(c.knocking, startFlow(t, "intruder to web "+to.String(), intruder.ns, to))
	}
	return c
}

// fromApps admits pods by their label app.
func fromApps(apps ...string) func(*networkingv1.NetworkPolicySpec) {
	return func(s *networkingv1.NetworkPolicySpec) {
		s.PolicyTypes = []networkingv1.PolicyType{networkingv1.PolicyTypeIngress}
		for _, app := range apps {
			s.Ingress = append(s.Ingress, networkingv1.NetworkPolicyIngressRule{From: []networkingv1.NetworkPolicyPeer{
				{PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"app": app}}},
			}})
		}
	}
}

// TestFullPrefixMap: the kernel has no room for a prefix that a pod must not reach. The pod is
// locked, so that it does not reach it, and says so; when other policies go it has the rest of the
// network again.
func TestFullPrefixMap(t *testing.T) {
	t.Parallel()
	n, outside := newNode(t)
	n.flags = append(n.flags, "--bpf-ipcache-prefix-max", "4")
	var fill strings.Builder
	fill.WriteString("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: fill, namespace: default}\nspec:\n  endpointSelector: {matchLabels: {app: none}}\n  egress:\n  - toCIDR: [203.0.113.0/24")
	for i := range 8 {
		fmt.Fprintf(&fill, ", 198.51.100.%d/28", 16*i)
	}
	fill.WriteString("]\n")
	n.policy("fill.yaml", fill.String())
	n.start()
	web, peer := n.attached("web", map[string]string{"app": "web"}), n.attached("peer", map[string]string{"app": "peer"})
	away, near := netip.AddrPortFrom(netip.MustParseAddr(outside4), 80), peer.both(80)[0]
	serveEcho(t, outside, away)
	serveEcho(t, peer.ns, near)
	until := func(what string, to netip.AddrPort, want bool) {
		t.Helper()
		for end := time.Now().Add(60 * time.Second); ; {
			err := ask(t, web.ns, to, 64, false, 250*time.Millisecond)
			if (err == nil) == want {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("%s: %v", what, err)
			}
		}
	}
	// A kubelet must not start an agent again that has no room: the next one would have none
	// either.
	probes := func(ready int) {
		t.Helper()
		for path, want := range map[string]int{"/healthz": http.StatusOK, "/livez": http.StatusOK, "/readyz": ready} {
			resp, err := n.get("http://127.0.0.1:9879" + path)
			if err != nil {
				t.Fatal(err)
			}
			resp.Body.Close()
			if resp.StatusCode != want {
				t.Errorf("%s: %s, want %d", path, resp.Status, want)
			}
		}
	}
	until("before there is a policy", away, true)
	n.policy("web.yaml", `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: web, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: web}}
  egress: [{toEntities: [all]}]
  egressDeny: [{toCIDR: [192.0.2.128/25]}]
`)
	until("what is denied passes", away, false)
	until("the pod is not locked", near, false)
	st, err := n.client.Health(t.Context(), false)
	if err != nil || !slices.ContainsFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == "addresses" && p.State == rest.StateFailure }) {
		t.Errorf("nothing is said of the full map: %+v, %v", st.Parts, err)
	}
	probes(http.StatusServiceUnavailable)
	n.policy("fill.yaml", "")
	until("there is room again", near, true)
	if err := ask(t, web.ns, away, 64, false, 250*time.Millisecond); err == nil {
		t.Error("what is denied passes when there is room again")
	}
	st, err = n.client.Health(t.Context(), false)
	if err != nil || slices.ContainsFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == "addresses" && p.State == rest.StateFailure }) {
		t.Errorf("a map with room is reported as full: %+v, %v", st.Parts, err)
	}
	probes(http.StatusOK)
	n.stop()
}

// TestNewPrefixesBeforeSynced: an agent starts again while the store is away, so that pods keep the
// rule sets of before, and finds policies that name parts of what these deny and allow. The parts
// stay denied and allowed as before, and when the store is back, too.
func TestNewPrefixesBeforeSynced(t *testing.T) {
	t.Parallel()
	n, outside := newNode(t)
	store := kvstoretest.StartEtcd(t)
	n.flags = append(n.flags, "--kvstore", "etcd", "--kvstore-opt", "etcd.address="+store.Endpoint())
	n.policy("before.yaml", `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: denied, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: denied}}
  egress: [{toEntities: [all]}]
  egressDeny: [{toCIDR: [192.0.2.0/24]}]
---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: allowed, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: allowed}}
  egress: [{toCIDR: [192.0.2.0/24]}]
`)
	n.start()
	to := netip.AddrPortFrom(netip.MustParseAddr(outside4), 80)
	serveEcho(t, outside, to)
	passes := map[string]bool{"denied": false, "allowed": true}
	pods := map[string]*machinePod{}
	for app := range passes {
		pods[app] = n.attached(app, map[string]string{"app": app})
	}
	asBefore := func(when string) {
		t.Helper()
		for app, want := range passes {
			wait := 10 * time.Second
			if !want {
				wait = 500 * time.Millisecond
			}
			if err := ask(t, pods[app].ns, to, 64, false, wait); (err == nil) != want {
				t.Errorf("%s: %s to %s: %v", when, app, to, err)
			}
		}
	}
	asBefore("before")
	store.Stop()
	n.kill()
	n.policy("after.yaml", `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: other, namespace: default}
spec:
  endpointSelector: {matchLabels: {app: other}}
  egress: [{toCIDR: [192.0.2.128/25, `+outside4+`/32]}]
`)
	n.launch()
	n.serving(false)
	asBefore("started without a store")
	store.Start()
	n.ready()
	asBefore("the store is back")
	n.stop()
}
