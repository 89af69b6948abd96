package agent

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/internal/testenv"
)

// denyWeb lets only front reach web, and only on port 80.
const denyWeb = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: web, namespace: default}
spec:
  description: front to web
  endpointSelector: {matchLabels: {app: web}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: front}}]
    toPorts: [{ports: [{port: "80", protocol: ANY}]}]
`

// answers is what a request must be answered with.
type answers struct {
	method, path, body string
	header             []string
	code               int
	text               string // part of the body
}

func (n *machineNode) expect(list []answers) {
	n.t.Helper()
	for _, a := range list {
		code, body := n.call(a.method, a.path, a.body, a.header...)
		if code != a.code || !strings.Contains(body, a.text) {
			n.t.Errorf("%s %s %s: %d %s; want %d with %q", a.method, a.path, clipText([]byte(a.body), 200), code, clipText([]byte(body), 400), a.code, a.text)
		}
		var v any
		if body != "" && json.Unmarshal([]byte(body), &v) != nil {
			n.t.Errorf("%s %s: the body is not JSON: %s", a.method, a.path, clipText([]byte(body), 200))
		}
		if _, isText := v.(string); code >= 400 && !isText {
			n.t.Errorf("%s %s: an error's body is a JSON string, got %s", a.method, a.path, clipText([]byte(body), 200))
		}
	}
}

func jsonOf(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestREST asks the real agent on its real socket what clients ask, rightly and wrongly.
func TestREST(t *testing.T) {
	t.Parallel()
	node, _ := newNode(t)
	node.race = true
	node.flags = append(node.flags, "--ipv4-range", "10.0.1.0/28", "--ipam-expiration", "2s")
	node.policy("web.yaml", denyWeb)
	node.start()
	if st, err := os.Stat(node.path("run/a.sock")); err != nil || st.Mode().Perm() != 0o660 {
		t.Errorf("the socket has mode %v, %v; want 0660", st.Mode(), err)
	}
	n := &askedNode{machineNode: node, web: node.attached("web", map[string]string{"app": "web"}), front: node.attached("front", map[string]string{"app": "front"})}
	n.ep = n.web.endpoint()
	n.id = fmt.Sprint(n.ep.ID)
	for _, row := range []struct {
		name string
		test func(*testing.T, *askedNode)
	}{
		{"endpoint ids", askEndpointIDs},
		{"create", askCreate},
		{"labels", askLabels},
		{"log", askLog},
		{"what other agents have", askOthersFeatures},
		{"ipam", askIPAM},
		{"config", askConfig},
		{"policy", askPolicy},
		{"monitor", askMonitor},
		{"delete", askDelete},
	} {
		t.Run(row.name, func(t *testing.T) {
			n.t = t
			row.test(t, n)
		})
	}
	n.t = t
	n.stop()
}

// askedNode is the node of TestREST.
type askedNode struct {
	*machineNode
	web, front *machinePod
	ep         rest.Endpoint // of web, as it began
	id         string        // its ID
}

func askEndpointIDs(t *testing.T, n *askedNode) {
	ctx := t.Context()
	for _, good := range []string{
		n.id, "cilium-local:" + n.id, "cni-attachment-id:" + n.web.container + ":eth0", "cni-attachment-id:" + n.web.container,
		"cep-name:default/web", "pod-name:default/web", "ipv4:" + n.web.ip4.String(), "ipv6:" + n.web.ip6.String(), "container-id:" + n.web.container,
	} {
		if got, err := n.client.Endpoint(ctx, good); err != nil || got.ID != n.ep.ID {
			t.Errorf("%s: endpoint %d, %v; want %d", good, got.ID, err, n.ep.ID)
		}
	}
	n.expect([]answers{
		{method: "GET", path: "/endpoint/60000", code: 404},
		{method: "GET", path: "/endpoint/65536", code: 400},
		{method: "GET", path: "/endpoint/banana", code: 400},
		{method: "GET", path: "/endpoint/what:ever", code: 400, text: "what"},
		{method: "GET", path: "/endpoint/ipv4:nonsense", code: 400},
		{method: "GET", path: "/endpoint/ipv4:10.0.1.99", code: 404},
		{method: "GET", path: "/endpoint/docker-endpoint:x", code: 404},
		{method: "GET", path: "/endpoint/container-name:x", code: 404},
		{method: "GET", path: "/endpoint/cilium-global:c:n:1", code: 404},
		{method: "DELETE", path: "/endpoint/60000", code: 404},
		{method: "DELETE", path: "/endpoint/x:y", code: 400},
		{method: "GET", path: "/endpoint/60000/healthz", code: 404},
		{method: "GET", path: "/endpoint/60000/log", code: 404},
		{method: "GET", path: "/endpoint/60000/labels", code: 404},
		{method: "GET", path: "/endpoint/60000/config", code: 404},
		{method: "GET", path: "/endpoint/" + n.id + "/healthz", code: 200, text: `"overallHealth":"OK"`},
		{method: "GET", path: "/endpoint/" + n.id + "/log", code: 200, text: "ready"},
		{method: "GET", path: "/endpoint/" + n.id + "/labels", code: 200, text: "k8s:app=web"},
		{method: "GET", path: "/endpoint/" + n.id + "/config", code: 200},
		{method: "GET", path: "/endpoint", code: 200, text: n.web.container},
		{method: "GET", path: "/endpoint", body: `["k8s:app=web"]`, code: 200, text: n.web.container},
		{method: "GET", path: "/endpoint", body: `["k8s:app=none"]`, code: 404},
		{method: "GET", path: "/endpoint", body: `{"not": "a list"}`, code: 400},
	})
}

func askCreate(t *testing.T, n *askedNode) {
	request := func(change func(*rest.EndpointChangeRequest)) string {
		r := rest.EndpointChangeRequest{
			State: rest.EndpointStateWaitingForIdentity, ContainerID: "other", ContainerInterfaceName: "eth0",
			InterfaceName: "lxcother", InterfaceIndex: 4711, MAC: "02:00:00:00:00:01", HostMAC: "02:00:00:00:00:02",
			Addressing: rest.AddressPair{IPv4: "10.0.1.14"},
		}
		change(&r)
		return jsonOf(t, r)
	}
	type R = rest.EndpointChangeRequest
	before := n.audit()
	var list []answers
	for text, change := range map[string]func(*R){
		"mac":             func(r *R) { r.MAC = "nonsense" },
		"host-mac":        func(r *R) { r.HostMAC = "" },
		"addressing":      func(r *R) { r.Addressing.IPv4 = "" },
		"ipv4":            func(r *R) { r.Addressing.IPv4 = "fd00:1::9" },
		"interface":       func(r *R) { r.InterfaceName, r.InterfaceIndex = "", 0 },
		"state":           func(r *R) { r.State = rest.EndpointStateReady },
		"reserved":        func(r *R) { r.Labels = []string{"reserved:host"} },
		"labels":          func(r *R) { r.Labels = []string{"k8s:" + strings.Repeat("x", 5000)} },
		"k8s-namespace":   func(r *R) { r.K8SPodName = "alone" },
		"id:":             func(r *R) { r.ID = 70000 },
		"CNI attachment":  func(r *R) { r.ContainerID = n.web.container },
		"10.0.1":          func(r *R) { r.Addressing.IPv4 = n.web.ip4.String() },
		"ID " + n.id:      func(r *R) { r.ID = n.ep.ID },
		"sync-build":      func(r *R) { r.SyncBuildEndpoint = new(bool) },
		"lxc":             func(r *R) { r.InterfaceName = n.ep.Status.Networking.InterfaceName },
		"pod CIDR":        func(r *R) { r.Addressing.IPv4 = "10.9.9.9" },
		"cannot be a pod": func(r *R) { r.Addressing.IPv4 = "127.0.0.1" },
		"router":          func(r *R) { r.Addressing.IPv4 = n.ep.Status.Networking.HostAddressing.IPv4.IP },
	} {
		list = append(list, answers{method: "PUT", path: "/endpoint/cilium-local:0", body: request(change), code: 400, text: text})
	}
	// With neither interface nor programs to attach, a creation fails at that, and is undone.
	list = append(list,
		answers{method: "PUT", path: "/endpoint/0", body: request(func(*R) {}), code: 500, text: "lxcother"},
		answers{method: "GET", path: "/endpoint/container-id:other/log", code: 200, text: `"state":"invalid"`},
		answers{method: "GET", path: "/endpoint/container-id:other", code: 404},
		answers{method: "PUT", path: "/endpoint/0", body: "", code: 400},
		answers{method: "PUT", path: "/endpoint/0", body: "{", code: 400},
		answers{method: "PUT", path: "/endpoint/0", body: `{"state": 7}`, code: 400},
		answers{method: "PUT", path: "/endpoint/0", body: `{"container-id": "` + strings.Repeat("x", 2<<20) + `"}`, code: 413},
		answers{method: "PUT", path: "/endpoint/what:ever", body: request(func(*R) {}), code: 400},
		answers{method: "POST", path: "/endpoint/0", body: "{}", code: 405},
		answers{method: "GET", path: "/nowhere", code: 404},
	)
	n.expect(list)
	// The address that a failed creation named is still the caller's: no one's, here.
	n.call("DELETE", "/ipam/10.0.1.14", "")
	n.sameAudit(before, "after refused creations")
}

func askLabels(t *testing.T, n *askedNode) {
	ctx := t.Context()
	was := n.ep.Status.Identity.ID
	n.expect([]answers{
		{method: "PATCH", path: "/endpoint/" + n.id + "/labels", body: `{"user": ["k8s:tier=x"]}`, code: 200},
		{method: "PATCH", path: "/endpoint/" + n.id + "/labels", body: `{"user": ["reserved:host"]}`, code: 400},
		{method: "PATCH", path: "/endpoint/" + n.id + "/labels", body: `{"user": ["block:10.0.0.0/8"]}`, code: 400},
		{method: "PATCH", path: "/endpoint/" + n.id + "/labels", body: `{"user": ["k8s:io.kubernetes.pod.namespace=kube-system"]}`, code: 400},
		{method: "PATCH", path: "/endpoint/" + n.id + "/labels", body: `{"user": "text"}`, code: 400},
		{method: "PATCH", path: "/endpoint/60000/labels", body: `{"user": ["k8s:tier=x"]}`, code: 404},
		{method: "GET", path: "/endpoint/" + n.id + "/labels", code: 200, text: "k8s:tier=x"},
	})
	now := n.web.endpoint().Status.Identity
	if now.ID == was || !slices.Contains(now.Labels, "k8s:tier=x") {
		t.Errorf("identity %d %v after the labels changed, before %d", now.ID, now.Labels, was)
	}
	// Kernel and address list follow.
	m, err := n.client.Map(ctx, "endpoints")
	if err != nil || !slices.ContainsFunc(m.Cache, func(e rest.BPFMapEntry) bool { return e.Endpoint.ID == n.ep.ID && e.Endpoint.Identity == now.ID }) {
		t.Errorf("the kernel does not have identity %d: %+v, %v", now.ID, m, err)
	}
	ips, err := n.client.IPs(ctx, n.web.ip4.String()+"/32", nil)
	if err != nil || len(ips) != 1 || ips[0].Identity != now.ID || ips[0].Metadata.Name != "web" {
		t.Errorf("GET /ip: %+v, %v", ips, err)
	}
	n.expect([]answers{{method: "PATCH", path: "/endpoint/" + n.id, body: `{"state": "ready", "labels": []}`, code: 200}, {method: "PATCH", path: "/endpoint/" + n.id, body: `{"state": "disconnected"}`, code: 400},
		{method: "PATCH", path: "/endpoint/" + n.id, body: `{"state": "", "container-id": "another"}`, code: 400},
		{method: "PATCH", path: "/endpoint/" + n.id + "/config", body: `{"options": {"Debug": "true"}}`, code: 400, text: "Debug"},
		{method: "PATCH", path: "/endpoint/" + n.id + "/labels", body: `{"user": []}`, code: 200}})
	if back := n.web.endpoint().Status.Identity.ID; back != was {
		t.Errorf("without the label the identity is %d, want %d again", back, was)
	}
}

func askLog(t *testing.T, n *askedNode) {
	ctx := t.Context()
	states := func(id string) (out []rest.EndpointState) {
		log, err := n.client.EndpointLog(ctx, id)
		if err != nil {
			t.Fatalf("log of %s: %v", id, err)
		}
		for i, e := range log { // newest first
			if i > 0 && e.Timestamp > log[i-1].Timestamp {
				t.Errorf("%s: entry %d is newer than the one before", id, i)
			}
			if len(out) == 0 || out[len(out)-1] != e.State {
				out = append(out, e.State)
			}
		}
		slices.Reverse(out)
		return out
	}
	brief := n.attached("brief", map[string]string{"app": "brief"})
	made := []rest.EndpointState{"creating", "waiting-for-identity", "waiting-to-regenerate", "regenerating", "ready"}
	name := fmt.Sprint(brief.endpoint().ID)
	if diff := cmp.Diff(made, states(name)); diff != "" {
		t.Errorf("the states of a new endpoint (-want +got):\n%s", diff)
	}
	if err := n.client.PatchEndpointLabels(ctx, name, []string{"k8s:tier=x"}); err != nil {
		t.Fatal(err)
	}
	if err := brief.del(); err != nil {
		t.Fatal(err)
	}
	want := slices.Concat(made, made[1:], []rest.EndpointState{"disconnecting", "disconnected"})
	for _, id := range []string{name, "cep-name:default/brief", "container-id:" + brief.container} {
		if diff := cmp.Diff(want, states(id)); diff != "" {
			t.Errorf("the states of %s, which is gone (-want +got):\n%s", id, diff)
		}
	}
}

func askOthersFeatures(t *testing.T, n *askedNode) {
	ctx := t.Context()
	n.expect([]answers{
		{method: "GET", path: "/lrp", code: 200, text: "[]"},
		{method: "GET", path: "/cgroup-dump-metadata", code: 200, text: "{"},
		{method: "GET", path: "/map/endpoints/events", code: 404, text: "GET /map/endpoints"},
		{method: "GET", path: "/fqdn/cache", code: 404},
		{method: "DELETE", path: "/fqdn/cache", code: 200},
		{method: "GET", path: "/fqdn/cache/" + n.id, code: 404},
		{method: "GET", path: "/fqdn/names", code: 200, text: "{"},
		{method: "GET", path: "/prefilter", code: 500, text: "no prefilter"},
		{method: "PATCH", path: "/prefilter", body: `{"deny": ["192.0.2.0/24"]}`, code: 500, text: "no prefilter"},
		{method: "DELETE", path: "/prefilter", code: 500, text: "no prefilter"},
		{method: "GET", path: "/bgp/peers", code: 501, text: "BGP"},
		{method: "GET", path: "/bgp/routes", code: 501, text: "BGP"},
		{method: "GET", path: "/bgp/route-policies", code: 501, text: "BGP"},
		{method: "GET", path: "/cluster/health", code: 501, text: "--enable-health-checking"},
		{method: "GET", path: "/metrics", code: 200, text: `"cilium_endpoint_state"`},
		{method: "GET", path: "/debuginfo", code: 200, text: n.web.container},
	})
	if strings.Contains(n.logText(), "no prefilter") {
		t.Error("a feature that is not there is logged as a fault of the agent")
	}
	st, err := n.client.Health(ctx, false)
	if err != nil || st.Encryption.Mode != "Disabled" || st.HostFirewall.Mode != "Disabled" || st.Hubble.State != rest.StateDisabled ||
		st.AuthCertificateProvider.State != rest.StateDisabled || st.KubeProxyReplacement.Mode != "False" {
		t.Errorf("the status of features that are off: %+v, %v", st, err)
	}
	_, body := n.call("GET", "/debuginfo", "")
	var info rest.DebugInfo
	if err := json.Unmarshal([]byte(body), &info); err != nil {
		t.Fatal(err)
	}
	if len(info.EndpointList) != 2 || info.KernelVersion == "" || info.CiliumStatus.Cilium.State != rest.StateOk || !strings.Contains(info.Policy.Policy, "front to web") ||
		!strings.Contains(info.Subsystem["identities"], "k8s:app=web") || !strings.Contains(info.Subsystem["addresses"], n.web.ip4.String()) ||
		!slices.Contains(info.EnvironmentVariables, "ipam-expiration:2s") {
		t.Errorf("%.2000s", body)
	}
	if slices.ContainsFunc(info.EnvironmentVariables, func(s string) bool { return strings.HasPrefix(s, "kvstore-opt") }) {
		t.Error("the options of the key-value store, which may hold passwords, are shown")
	}
}

func askIPAM(t *testing.T, n *askedNode) {
	ctx := t.Context()
	res, err := n.client.AllocateIP(ctx, rest.AllocateIPParams{Owner: "default/x"})
	if err != nil || res.Address.IPv4 == "" || res.Address.IPv6 == "" || res.IPv4.ExpirationUUID != "" || res.HostAddressing.IPv4.IP == "" || !res.HostAddressing.IPv4.Enabled {
		t.Fatalf("%+v, %v", res, err)
	}
	only6, err := n.client.AllocateIP(ctx, rest.AllocateIPParams{Owner: "default/x", Family: "ipv6"})
	if err != nil || only6.Address.IPv4 != "" || only6.Address.IPv6 == "" {
		t.Errorf("family ipv6: %+v, %v", only6.Address, err)
	}
	n.expect([]answers{
		{method: "DELETE", path: "/ipam/" + res.Address.IPv4 + "?pool=default", code: 200},
		{method: "DELETE", path: "/ipam/" + res.Address.IPv4 + "?pool=default", code: 404},
		{method: "DELETE", path: "/ipam/" + res.Address.IPv6, code: 200},
		{method: "DELETE", path: "/ipam/" + only6.Address.IPv6, code: 200},
		{method: "DELETE", path: "/ipam/" + n.web.ip4.String() + "?pool=default", code: 500, text: "endpoint " + n.id},
		{method: "DELETE", path: "/ipam/" + res.HostAddressing.IPv4.IP, code: 500},
		{method: "DELETE", path: "/ipam/nonsense", code: 400},
		{method: "DELETE", path: "/ipam/10.9.9.9", code: 400},
		{method: "POST", path: "/ipam/10.0.1.13?owner=x", code: 200},
		{method: "POST", path: "/ipam/10.0.1.13?owner=y", code: 409},
		{method: "POST", path: "/ipam/10.9.9.9?owner=y", code: 400},
		{method: "POST", path: "/ipam/10.0.1.13?owner=y&pool=other", code: 400},
		{method: "POST", path: "/ipam/banana", code: 400},
		{method: "DELETE", path: "/ipam/10.0.1.13", code: 200},
		{method: "POST", path: "/ipam?family=ipv5", code: 400},
	})
	// Addresses without an endpoint come back by themselves, all of them.
	free := len(n.addresses())
	var taken []string
	for {
		code, body := n.call("POST", "/ipam?owner=default/greedy&family=ipv4", "", "expiration", "true")
		if code == 201 {
			taken = append(taken, body)
			continue
		}
		if code != 502 || !strings.Contains(body, "10.0.1.0/28") {
			t.Errorf("with all addresses taken: %d %s; want 502 and the name of the range", code, body)
		}
		break
	}
	if len(taken) < 5 || len(taken) > 13 {
		t.Errorf("%d addresses of a /28 were given", len(taken))
	}
	if err := n.newPod("late", nil).add(); err == nil || !strings.Contains(err.Error(), "allocated") {
		t.Errorf("ADD without a free address: %v", err)
	}
	for deadline := time.Now().Add(30 * time.Second); len(n.addresses()) != free; time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("addresses did not expire: %v", n.addresses())
		}
	}
}

func askConfig(t *testing.T, n *askedNode) {
	ctx := t.Context()
	cfg, err := n.client.Config(ctx)
	if err != nil || cfg.Status.DeviceMTU == 0 || cfg.Status.RouteMTU >= cfg.Status.DeviceMTU || cfg.Status.DatapathMode != rest.DatapathModeVeth || cfg.Status.Addressing.IPv4.IP == "" {
		t.Errorf("%+v, %v", cfg, err)
	}
	n.expect([]answers{
		{method: "PATCH", path: "/config", body: `{"policy-enforcement": "always"}`, code: 200},
		{method: "GET", path: "/config", code: 200, text: `"policy-enforcement":"always"`},
		{method: "PATCH", path: "/config", body: `{"policy-enforcement": "sometimes"}`, code: 400},
		{method: "PATCH", path: "/config", body: `{"options": {"Debug": "Enabled"}}`, code: 400, text: "Debug"},
		{method: "PATCH", path: "/config", body: `[]`, code: 400},
		{method: "PATCH", path: "/config", body: `{"policy-enforcement": "default"}`, code: 200},
	})
}

func askPolicy(t *testing.T, n *askedNode) {
	ctx := t.Context()
	n.expect([]answers{
		{method: "GET", path: "/policy", code: 200, text: "front to web"},
		{method: "GET", path: "/policy/selectors", code: 200, text: "front"},
		{method: "GET", path: "/policy/subject-selectors", code: 200, text: "web"},
		{method: "GET", path: "/policy/files", code: 200, text: "web.yaml"},
		{method: "GET", path: "/policy/trace?from=cep-name:default/front&to=cep-name:default/web&dport=80&proto=tcp", code: 200, text: `"verdict":"allowed"`},
		{method: "GET", path: "/policy/trace?from=cep-name:default/front&to=cep-name:default/web&dport=81&proto=tcp", code: 200, text: `"verdict":"denied"`},
		{method: "GET", path: "/policy/trace?from=192.0.2.254&to=" + n.web.ip4.String() + "&dport=80&proto=udp", code: 200, text: `"verdict":"denied"`},
		{method: "GET", path: "/policy/trace?from=labels:k8s:app=front%3Bk8s:io.kubernetes.pod.namespace=default&to=cep-name:default/web&dport=80&proto=tcp", code: 200},
		{method: "GET", path: "/policy/trace?from=&to=", code: 400},
		{method: "GET", path: "/policy/trace?from=60000&to=" + n.id, code: 404},
		{method: "GET", path: "/policy/trace?from=identity:1&to=" + n.id + "&dport=99999&proto=tcp", code: 400},
		{method: "GET", path: "/identity", code: 200, text: "reserved:host"},
		{method: "GET", path: "/identity/1", code: 200, text: "reserved:host"},
		{method: "GET", path: "/identity/60001", code: 404},
		{method: "GET", path: "/identity/banana", code: 400},
		{method: "GET", path: "/identity/endpoints", code: 200, text: "k8s:app=web"},
		{method: "GET", path: "/ip", code: 200, text: n.web.ip6.String()},
		{method: "GET", path: "/ip?cidr=nonsense", code: 400},
		{method: "GET", path: "/node/ids", code: 200},
		{method: "GET", path: "/cluster/nodes", code: 200, text: "default/n1"},
		{method: "GET", path: "/map", code: 200, text: "ipcache"},
		{method: "GET", path: "/map/endpoints", code: 200, text: n.web.ip4.String()},
		{method: "GET", path: "/map/policy", code: 200, text: "ruleset"},
		{method: "GET", path: "/map/ipcache", code: 200, text: n.web.ip4.String()},
		{method: "GET", path: "/map/ct", code: 200},
		{method: "GET", path: "/map/metrics", code: 200},
		{method: "GET", path: "/map/banana", code: 404, text: "ipcache"},
		{method: "GET", path: "/healthz", code: 200, text: `"endpoints"`},
		{method: "GET", path: "/healthz", header: []string{"brief", "true"}, code: 200, text: `"Ok"`},
	})
	// A client of /cluster/nodes gets it once.
	first, err := n.client.ClusterNodes(ctx, 0)
	if err != nil || len(first.NodesAdded) != 1 {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := n.client.ClusterNodes(ctx, first.ClientID); err != nil || len(again.NodesAdded)+len(again.NodesRemoved) != 0 || again.ClientID != first.ClientID {
		t.Errorf("%+v, %v", again, err)
	}
}

func askMonitor(t *testing.T, n *askedNode) {
	n.expect([]answers{{method: "GET", path: "/monitor?type=nonsense", code: 400, text: "nonsense"}})
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	seen := map[rest.MonitorEventType]rest.MonitorEvent{}
	ended := make(chan struct{})
	go func() { // packets, until everything was seen
		defer close(ended)
		server := listenUDP(t, n.web.ns, netip.AddrPortFrom(n.web.ip4, 80))
		defer server.Close()
		good, bad := dialUDP(t, n.front.ns, netip.AddrPortFrom(n.web.ip4, 80)), dialUDP(t, n.front.ns, netip.AddrPortFrom(n.web.ip4, 81))
		defer good.Close()
		defer bad.Close()
		for ctx.Err() == nil {
			_, _ = good.Write([]byte("good"))
			_, _ = bad.Write([]byte("bad"))
			time.Sleep(20 * time.Millisecond)
			// A new flow each time: verdicts are given once a flow.
			good.Close()
			good = dialUDP(t, n.front.ns, netip.AddrPortFrom(n.web.ip4, 80))
		}
	}()
	err := n.client.Monitor(ctx, nil, func(ev rest.MonitorEvent) error {
		if ev.Proto == "udp" && ev.Source == n.front.ip4.String() {
			if _, dup := seen[ev.Type]; !dup || ev.Verdict == rest.PolicyVerdictDenied {
				seen[ev.Type] = ev
			}
		}
		if len(seen) == 3 {
			cancel()
		}
		return nil
	})
	<-ended
	drop := seen[rest.MonitorEventTypeDrop]
	if len(seen) != 3 || drop.DestinationPort != 81 || drop.Reason == "" || !slices.Contains(drop.SourceLabels, "k8s:app=front") || drop.DestinationIdentity == 0 {
		t.Errorf("seen %+v, %v; want a drop, a verdict and a trace", seen, err)
	}
}

func askDelete(t *testing.T, n *askedNode) {
	n.expect([]answers{
		{method: "DELETE", path: "/endpoint", body: `{}`, code: 400},
		{method: "DELETE", path: "/endpoint", body: `{"container-id": "none"}`, code: 404},
		{method: "DELETE", path: "/endpoint", body: `{"container-id": "` + n.front.container + `"}`, code: 200},
		{method: "DELETE", path: "/endpoint/" + n.id, code: 200},
		{method: "DELETE", path: "/endpoint/" + n.id, code: 404},
	})
	if err := n.web.del(); err != nil {
		t.Errorf("DEL of what is gone: %v", err)
	}
}

func (n *machineNode) addresses() map[string]string {
	n.t.Helper()
	st, err := n.client.Health(context.Background(), false)
	if err != nil {
		n.t.Fatal(err)
	}
	return st.IPAM.Allocations
}

// TestStartupGate: what changes endpoints is refused until the queue of deletions is done; DEL is
// not lost meanwhile.
func TestStartupGate(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.race = true
	n.start()
	before := n.audit()
	gone := n.attached("gone", nil)
	stays := n.attached("stays", nil)
	n.kill()
	if err := gone.del(); err != nil {
		t.Fatalf("DEL without an agent: %v", err)
	}
	held, err := deletequeue.Hold(t.Context(), deletequeue.Dir(n.path("run/a.sock")))
	if err != nil {
		t.Fatal(err)
	}
	n.launch()
	for { // until the socket answers
		if _, err := n.client.Health(t.Context(), true); err == nil {
			break
		}
		time.Sleep(5 * time.Millisecond)
	}
	n.expect([]answers{
		{method: "PUT", path: "/endpoint/0", body: `{"state": "waiting-for-identity"}`, code: 503},
		{method: "DELETE", path: "/endpoint/1", code: 503},
		{method: "POST", path: "/ipam", code: 503},
		{method: "GET", path: "/endpoint", code: 200},
		{method: "GET", path: "/config", code: 200},
	})
	held.Close()
	n.ready()
	if _, err := n.client.Endpoint(t.Context(), gone.id()); !client.NotFound(err) {
		t.Errorf("the queued deletion was not done: %v", err)
	}
	if ep := stays.endpoint(); ep.Status.State != rest.EndpointStateReady {
		t.Errorf("the other endpoint is %s", ep.Status.State)
	}
	if err := stays.del(); err != nil {
		t.Error(err)
	}
	n.sameAudit(before, "after both are gone")
}

// TestDeletionOfFormerEndpoint: the runtime deletes an attachment while the agent does not answer,
// and makes it again when it does. What it asked for before counts no more, also after a restart.
func TestDeletionOfFormerEndpoint(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	before := n.audit()
	p := n.attached("p", nil)
	if err := n.cmd.Process.Signal(syscall.SIGSTOP); err != nil {
		t.Fatal(err)
	}
	err := p.del()
	if err := n.cmd.Process.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if err != nil {
		t.Fatalf("DEL while the agent does not answer: %v", err)
	}
	testenv.Eventually(t, 20*time.Second, func() string {
		if _, err := n.client.Endpoint(t.Context(), p.id()); !client.NotFound(err) {
			return fmt.Sprintf("the endpoint is not deleted: %v", err)
		}
		return ""
	})
	// As a plugin does that comes to write it only now.
	queue, err := deletequeue.Hold(t.Context(), deletequeue.Dir(n.path("run/a.sock")))
	if err != nil {
		t.Fatal(err)
	}
	if err := queue.Add(deletequeue.Entry{EndpointID: p.id()}); err != nil {
		t.Fatal(err)
	}
	queue.Close()
	if err := p.add(); err != nil { // the same container
		t.Fatal(err)
	}
	n.stop()
	n.start()
	if ep := p.endpoint(); ep.Status.State != rest.EndpointStateReady {
		t.Errorf("the endpoint is %s", ep.Status.State)
	}
	if links := p.ns.LinkNames(t); len(links) != 2 {
		t.Errorf("the pod has the interfaces %q", links)
	}
	if err := p.del(); err != nil {
		t.Error(err)
	}
	n.sameAudit(before, "after DEL")
}

// TestSecondAgent: a node has one agent.
func TestSecondAgent(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.start()
	first, exited := n.cmd, n.exited
	n.cmd = nil
	n.launch()
	select {
	case <-n.exited:
		if n.cmd.ProcessState.ExitCode() == 0 {
			t.Error("a second agent on the same state ended with success")
		}
	case <-time.After(time.Minute):
		t.Error("a second agent runs on the same state")
	}
	n.kill()
	n.cmd, n.exited = first, exited
	if _, err := n.client.Health(t.Context(), true); err != nil {
		t.Errorf("the first agent no longer answers: %v", err)
	}
	n.stop()
}

func listenUDP(t testing.TB, ns namespace, at netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	if err := ns.Do(func() (err error) { c, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(at)); return err }); err != nil {
		t.Error(err)
		return nil
	}
	return c
}

func dialUDP(t testing.TB, ns namespace, to netip.AddrPort) *net.UDPConn {
	t.Helper()
	var c *net.UDPConn
	if err := ns.Do(func() (err error) { c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(to)); return err }); err != nil {
		t.Error(err)
		return nil
	}
	return c
}

type namespace interface{ Do(func() error) error }
