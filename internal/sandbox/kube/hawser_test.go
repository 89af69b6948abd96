package kube

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/sandbox/region"
)

const smallManifest = `# Comment.
---
apiVersion: v1
kind: ConfigMap
metadata: {name: cilium-config}
data: {cluster-id: "0", cluster-name: "default", enable-ipv6: "false", ipam: "cluster-pool", kube-proxy-replacement: "false", mtu: "0"}
---
apiVersion: apps/v1
kind: DaemonSet
metadata: {name: agent}
spec:
  template:
    spec:
      initContainers:
        - {name: install}
      containers:
        - {name: agent, env: [{name: A, value: b}]}
      volumes:
        - {name: cgroup, hostPath: {path: /sys/fs/cgroup}}
        - {name: bpf, hostPath: {path: /sys/fs/bpf}}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: operator}
spec:
  template:
    spec:
      containers:
        - {name: operator}
`

func TestAdaptManifest(t *testing.T) {
	got, err := adaptManifest([]byte(smallManifest), &state{Name: "x", DualStack: true})
	if err != nil {
		t.Fatal(err)
	}
	objects := map[string]map[string]any{}
	for doc := range strings.SplitSeq(string(got), "---\n") {
		var o map[string]any
		if err := yaml.Unmarshal([]byte(doc), &o); err != nil {
			t.Fatal(err)
		}
		objects[o["kind"].(string)] = o
	}
	want := map[string]any{"cluster-id": "0", "cluster-name": "x", "enable-ipv6": "true", "ipam": "kubernetes", "kube-proxy-replacement": "true", "mtu": "0"}
	if diff := cmp.Diff(want, at(objects["ConfigMap"], "data")); diff != "" {
		t.Error(diff)
	}
	api := []any{
		map[string]any{"name": "KUBERNETES_SERVICE_HOST", "value": "10.99.0.10"},
		map[string]any{"name": "KUBERNETES_SERVICE_PORT", "value": "6443"},
	}
	pod := func(kind, containers string) map[string]any {
		return at(objects[kind], "spec", "template", "spec", containers).([]any)[0].(map[string]any)
	}
	if diff := cmp.Diff(append([]any{map[string]any{"name": "A", "value": "b"}}, api...), pod("DaemonSet", "containers")["env"]); diff != "" {
		t.Error(diff)
	}
	for _, p := range []map[string]any{pod("DaemonSet", "initContainers"), pod("Deployment", "containers")} {
		if diff := cmp.Diff(api, p["env"]); diff != "" {
			t.Error(diff)
		}
	}
	groups, err := findCgroups()
	if err != nil {
		t.Skipf("no cgroups on this machine: %v", err)
	}
	cgroup := cgroupRoot
	if groups.unified != "" {
		cgroup = groups.unified
	}
	if got := at(pod("DaemonSet", "volumes"), "hostPath", "path"); got != cgroup {
		t.Errorf("the agent's cgroups are at %v, want %s", got, cgroup)
	}

	numbered, err := adaptManifest([]byte(smallManifest), &state{Name: "x", ID: 7, Mode: Full, CNI: Hawser})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`cluster-id: "7"`, "clustermesh-config: /var/lib/cilium/clustermesh", "value: 192.168.7.10", "--kvstore-opt=etcd.config=" + meshStorePath + "/config.yaml",
		"secretName: " + meshStoreSecret, "mountPath: " + meshStorePath,
	} {
		if n := bytes.Count(numbered, []byte(want)); n == 0 || bytes.Contains(got, []byte(want)) {
			t.Errorf("a cluster with a number has %q %d times, one without has it, too: %t", want, n, bytes.Contains(got, []byte(want)))
		}
	}

	shown, err := adaptManifest([]byte(smallManifest), &state{Name: "x", Flows: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`enable-hubble: "true"`, "hubble-listen-address: :4244", "hubble-tls-client-ca-files: " + hubblePath + "/ca.crt", "mountPath: " + hubblePath, "secretName: " + hubbleSecret} {
		if n := bytes.Count(shown, []byte(want)); n != 1 || bytes.Contains(got, []byte(want)) {
			t.Errorf("a cluster that shows flows has %q %d times, one that does not has it, too: %t", want, n, bytes.Contains(got, []byte(want)))
		}
	}

	for store, address := range map[string]string{Etcd: "etcd.address=http://10.99.0.10:2391", Consul: "consul.address=10.99.0.10:2391"} {
		kept, err := adaptManifest([]byte(smallManifest), &state{Name: "x", Store: store})
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"identity-allocation-mode: kvstore", "kvstore: " + store, "kvstore-opt: " + address} {
			if !bytes.Contains(kept, []byte(want)) || bytes.Contains(got, []byte(want)) {
				t.Errorf("a cluster with %s lacks %q, or one without has it", store, want)
			}
		}
	}

	for _, broken := range []struct{ from, to, want string }{
		{`cluster-name: "default", `, "", "no option cluster-name"}, {"kind: ConfigMap", "kind: Secret", "no ConfigMap"}, {"kind: DaemonSet", "kind: Job", "no DaemonSet"},
	} {
		text := strings.Replace(smallManifest, broken.from, broken.to, 1)
		if _, err := adaptManifest([]byte(text), &state{}); err == nil || !strings.Contains(err.Error(), broken.want) {
			t.Errorf("without %q: %v", broken.from, err)
		}
	}
}

// TestCloudManifest looks what a cloud makes of the checkout's own manifest: the agent may write
// which addresses it uses, and no other account may more than before.
func TestCloudManifest(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "..", manifestOfAgent))
	if err != nil {
		t.Fatal(err)
	}
	const rule = "ciliumnodes/status"
	for cloud, want := range map[string]int{"": 1, region.AWS: 2, region.Azure: 2, region.Alibaba: 2} {
		got, err := adaptManifest(data, &state{Name: "x", Cloud: cloud})
		if err != nil {
			t.Fatal(err)
		}
		if n := bytes.Count(got, []byte(rule)); n != want {
			t.Errorf("cloud %q: %d rules for %s, want %d", cloud, n, rule, want)
		}
		if n := bytes.Count(got, []byte("SSL_CERT_FILE")); n != want-1 {
			t.Errorf("cloud %q: %d containers have the authority of its certificate, want %d", cloud, n, want-1)
		}
	}
}

// TestCloudIPv6: a cloud has IPv6 if it is AWS; agents and operator then have it by one option.
func TestCloudIPv6(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("..", "..", "..", manifestOfAgent))
	if err != nil {
		t.Fatal(err)
	}
	for _, dual := range []bool{false, true} {
		got, err := adaptManifest(data, &state{Name: "x", Cloud: region.AWS, DualStack: dual})
		if err != nil {
			t.Fatal(err)
		}
		if !bytes.Contains(got, fmt.Appendf(nil, "enable-ipv6: %q", fmt.Sprint(dual))) || bytes.Contains(got, []byte("ipv6-native-routing-cidr: fd00:99::/56")) != dual {
			t.Errorf("IPv6 %v: %s", dual, got)
		}
	}
	for cloud, ok := range map[string]bool{region.AWS: true, region.Azure: false, region.Alibaba: false} {
		c := Config{Mode: Full, CNI: Hawser, Cloud: cloud, DualStack: true}
		if err := c.validateCloud(); (err == nil) != ok {
			t.Errorf("IPv6 in %s: %v", cloud, err)
		}
	}
	all, nodes, pods := cloudIPv6()
	for _, p := range []netip.Prefix{nodes, pods} {
		if !all.Contains(p.Addr()) || p.Bits() != 64 {
			t.Errorf("subnet %s of %s", p, all)
		}
	}
	if ip := (plan(0)).node(1, true).IPv6; !nodes.Contains(ip) {
		t.Errorf("node %s is not in %s", ip, nodes)
	}
}

// What the product's own manifest calls things is what this package looks for.
func TestOwnManifest(t *testing.T) {
	data, err := os.ReadFile(filepath.Join("../../..", manifestOfAgent))
	if errors.Is(err, fs.ErrNotExist) {
		t.Skip("there is no manifest in this checkout")
	}
	if err != nil {
		t.Fatal(err)
	}
	got, err := adaptManifest(data, &state{Name: "x"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"ipam: kubernetes", "name: KUBERNETES_SERVICE_HOST", "image: " + hawserImage[strings.LastIndexByte(hawserImage, '/')+1:]} {
		if !bytes.Contains(got, []byte(want)) {
			t.Errorf("the adapted manifest lacks %q", want)
		}
	}
	for _, name := range []string{"hawser-agent", "hawser-cni", "hawser-operator"} {
		if !bytes.Contains(got, []byte("- "+name+"\n")) {
			t.Errorf("the manifest does not run %s", name)
		}
	}
}

func TestHawserImage(t *testing.T) {
	cfg := Defaults()
	cfg.Root, cfg.Data, cfg.BinDir = t.TempDir(), t.TempDir(), t.TempDir()
	c, err := New(cfg, t.Output(), false)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.makeHawserImage(); err == nil || !strings.Contains(err.Error(), "hawser is not in "+cfg.BinDir) {
		t.Errorf("without programs: %v", err)
	}
	for _, name := range hawserPrograms {
		if err := os.WriteFile(filepath.Join(cfg.BinDir, name), []byte(name), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for i, want := range []bool{true, false, true} {
		if i == 2 {
			later := time.Now().Add(time.Minute)
			if err := os.Chtimes(filepath.Join(cfg.BinDir, "hawser-cni"), later, later); err != nil {
				t.Fatal(err)
			}
		}
		if made, err := c.makeHawserImage(); err != nil || made != want {
			t.Errorf("time %d: made %t, %v; want %t", i, made, err, want)
		}
	}
}

// TestManifestIsKept removes the file that a cluster was made from: what it runs can be installed
// again all the same.
func TestManifestIsKept(t *testing.T) {
	cfg := Defaults()
	cfg.Root, cfg.Data, cfg.BinDir = t.TempDir(), t.TempDir(), t.TempDir()
	cfg.Manifest = filepath.Join(t.TempDir(), "rendered.yaml")
	c, err := New(cfg, t.Output(), false)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Mkdir(c.dir(), 0o700); err != nil {
		t.Fatal(err)
	}
	if _, err := c.keepManifest(); err == nil || !strings.Contains(err.Error(), cfg.Manifest) {
		t.Errorf("a manifest that is not there: %v; want an error that names it", err)
	}
	if err := os.WriteFile(cfg.Manifest, []byte(smallManifest), 0o644); err != nil {
		t.Fatal(err)
	}
	kept, err := c.keepManifest()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(cfg.Manifest); err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile(kept); err != nil || string(got) != smallManifest {
		t.Errorf("the copy: %q, %v", got, err)
	}
}
