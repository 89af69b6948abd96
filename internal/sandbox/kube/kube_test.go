package kube

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/internal/sandbox/region"
	"github.com/hawser-net/hawser/internal/testenv"
)

func TestConfigValidate(t *testing.T) {
	good := Defaults()
	if err := good.Validate(); err != nil {
		t.Errorf("defaults: %v", err)
	}
	bad := Config{Name: "-x", Root: "rel", Data: "rel", Mode: "half", Nodes: maxNodes + 1, CNI: "flannel", Store: "disk", InstanceType: "m5.xlarge"}
	err := bad.Validate()
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{
		`cluster name "-x"`, `"rel" is not an absolute path`, `can't be both`, `kubernetes "half": want full or api`, "21 nodes: want 1 to 20",
		`cni "flannel": want hawser, ptp or none`, `store "disk": want etcd, consul or none`,
		"a store of identities is for nodes", "an instance type is for clusters in a cloud", "path is unknown", "start timeout 0s",
	} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("error lacks %q: %v", want, err)
		}
	}
}

// An instance type is one that the cloud has.
func TestInstanceType(t *testing.T) {
	for _, c := range []struct{ cloud, kind, want string }{
		{region.AWS, "", ""}, {region.AWS, "m5.4xlarge", ""}, {region.AWS, "ecs.g7.4xlarge", "want one of"},
		{region.Alibaba, "", ""}, {region.Alibaba, "ecs.g7.4xlarge", ""}, {region.Alibaba, "m5.4xlarge", "want one of"},
		{region.Azure, "", ""}, {region.Azure, "m5.4xlarge", "there is no choice"},
	} {
		cfg := Defaults()
		cfg.Cloud, cfg.InstanceType = c.cloud, c.kind
		err := cfg.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s %q: want %q, got %v", c.cloud, c.kind, c.want, err)
		}
	}
}

// Everything in the plan must fit together: no two hosts or ranges of pods overlap, in all clusters
// that can be connected, and all lie where Kubernetes is configured to expect them.
func TestPlan(t *testing.T) {
	seen := map[netip.Addr]string{}
	var all []netip.Prefix
	for id := range plan(maxClusterID + 1) {
		claim := func(h machine.Host) {
			for _, a := range []netip.Addr{h.IPv4, h.IPv6} {
				if other := seen[a]; other != "" {
					t.Errorf("%s of cluster %d and %s have the address %s", h.Name, id, other, a)
				}
				seen[a] = fmt.Sprintf("%s of cluster %d", h.Name, id)
			}
			under4, under6 := id.underlay()
			if !under4.Contains(h.IPv4) || !under6.Contains(h.IPv6) {
				t.Errorf("%s of cluster %d is at %s and %s", h.Name, id, h.IPv4, h.IPv6)
			}
		}
		claim(id.world())
		claim(id.master())
		text4, text6 := id.pods()
		pods4, pods6 := netip.MustParsePrefix(text4), netip.MustParsePrefix(text6)
		nodes := map[netip.Prefix]bool{}
		for i := 1; i <= maxNodes; i++ {
			n := id.node(i, true)
			claim(n.Host)
			if !pods4.Contains(n.Pods4.Addr()) || !pods6.Contains(n.Pods6.Addr()) || n.Pods4 != n.Pods4.Masked() || n.Pods6 != n.Pods6.Masked() {
				t.Errorf("pods of %s in cluster %d: %s, %s", n.Name, id, n.Pods4, n.Pods6)
			}
			if nodes[n.Pods4] || nodes[n.Pods6] {
				t.Errorf("%s shares addresses of pods with another node", n.Name)
			}
			nodes[n.Pods4], nodes[n.Pods6] = true, true
		}
		text4, text6 = id.services()
		services4, services6 := netip.MustParsePrefix(text4), netip.MustParsePrefix(text6)
		for _, a := range []netip.Addr{id.firstService(), id.dnsService()} {
			if !services4.Contains(a) {
				t.Errorf("%s is not in %s", a, services4)
			}
		}
		if id == 0 {
			continue // nothing of it is visible outside
		}
		under4, under6 := id.underlay()
		all = append(all, pods4, pods6, services4, services6, under4, under6)
	}
	slices.SortFunc(all, func(a, b netip.Prefix) int { return a.Addr().Compare(b.Addr()) })
	for i := 1; i < len(all); i++ { // of ranges that overlap, two are neighbours
		if all[i-1].Overlaps(all[i]) {
			t.Errorf("%s and %s overlap", all[i-1], all[i])
		}
	}
	for id, want := range map[plan]string{0: "clusterIP: 10.96.0.10\n", 7: "clusterIP: 172.20.7.10\n"} {
		if !bytes.Contains(dnsManifest(id), []byte(want)) {
			t.Errorf("CoreDNS of cluster %d does not get the address that kubelets give to pods: %s", id, want)
		}
	}
	if got := plan(0).node(3, false).podCIDRs(); !cmp.Equal(got, []string{"10.244.3.0/24"}) {
		t.Errorf("IPv4 only: %v", got)
	}
	if got := plan(12).node(3, true).podCIDRs(); !cmp.Equal(got, []string{"10.12.3.0/24", "fd00:10:12:3::/64"}) {
		t.Errorf("cluster 12: %v", got)
	}
	if got := plan(0).host("x", 11).HardwareAddr().String(); got != "02:00:0a:63:00:0b" {
		t.Errorf("hardware address %s", got)
	}
}

func TestPKI(t *testing.T) {
	dir := t.TempDir()
	nodes := []*node{plan(0).node(1, true)}
	if err := writePKI(dir, &state{Name: "x", Nodes: nodes}, "https://127.0.0.1:7777"); err != nil {
		t.Fatal(err)
	}
	read := func(name string) []byte {
		t.Helper()
		data, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		if info, err := os.Stat(filepath.Join(dir, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has mode %v (%v)", name, info.Mode(), err)
		}
		return data
	}
	roots := map[string]*x509.CertPool{}
	for _, name := range []string{"ca.crt", "front-proxy-ca.crt"} {
		roots[name] = x509.NewCertPool()
		roots[name].AppendCertsFromPEM(read(name))
	}
	for _, tc := range []struct {
		name, ca, subject string
		server            []string // names it must be good for
	}{
		{"apiserver", "ca.crt", "CN=kube-apiserver", []string{"127.0.0.1", "10.99.0.10", "10.96.0.1", "kubernetes.default.svc"}},
		{"apiserver-kubelet", "ca.crt", "CN=kube-apiserver-kubelet-client,O=system:masters", nil},
		{"front-proxy", "front-proxy-ca.crt", "CN=front-proxy-client", nil},
		{"user", "ca.crt", "CN=admin,O=system:masters", nil},
		{"controller-manager", "ca.crt", "CN=system:kube-controller-manager", nil},
		{"scheduler", "ca.crt", "CN=system:kube-scheduler", nil},
		{"kube-proxy", "ca.crt", "CN=system:kube-proxy", nil},
		{"n1", "ca.crt", "CN=system:node:n1,O=system:nodes", []string{"n1", "10.99.0.11", "fd00:99::11"}},
	} {
		pair, err := tls.X509KeyPair(read(tc.name+".crt"), read(tc.name+".key"))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if got := pair.Leaf.Subject.String(); got != tc.subject {
			t.Errorf("%s is for %s, want %s", tc.name, got, tc.subject)
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots[tc.ca], KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}}); err != nil {
			t.Errorf("%s as a client: %v", tc.name, err)
		}
		for _, host := range tc.server {
			if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: roots[tc.ca], DNSName: host}); err != nil {
				t.Errorf("%s as the server %s: %v", tc.name, host, err)
			}
		}
		other := roots["ca.crt"]
		if tc.ca == "ca.crt" {
			other = roots["front-proxy-ca.crt"]
		}
		if _, err := pair.Leaf.Verify(x509.VerifyOptions{Roots: other, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageAny}}); err == nil {
			t.Errorf("%s is good for both authorities", tc.name)
		}
	}

	var config struct {
		Clusters []struct {
			Cluster struct {
				Server string
				CA     []byte `json:"certificate-authority-data"`
			}
		}
		Users []struct {
			User struct {
				Cert []byte `json:"client-certificate-data"`
				Key  []byte `json:"client-key-data"`
			}
		}
	}
	for name, server := range map[string]string{"user": "https://127.0.0.1:7777", "admin": "https://10.99.0.10:6443", "n1": "https://10.99.0.10:6443"} {
		if err := yaml.Unmarshal(read(name+".kubeconfig"), &config); err != nil {
			t.Fatal(err)
		}
		if got := config.Clusters[0].Cluster.Server; got != server {
			t.Errorf("%s.kubeconfig leads to %s, want %s", name, got, server)
		}
		if !bytes.Equal(config.Clusters[0].Cluster.CA, read("ca.crt")) || !bytes.Equal(config.Users[0].User.Key, read(name+".key")) {
			t.Errorf("%s.kubeconfig holds other keys", name)
		}
	}
	if b, _ := pem.Decode(read("accounts.key")); b == nil {
		t.Error("the key of service accounts is not PEM")
	}
}

func TestNodeFiles(t *testing.T) {
	n := plan(0).node(2, true)
	var kubelet struct {
		ContainerRuntimeEndpoint, VolumePluginDir string
		FailCgroupV1                              *bool
		EvictionHard                              map[string]string
	}
	data, err := kubeletConfig(plan(0).dnsService())
	if err != nil {
		t.Fatal(err)
	}
	if err := yaml.Unmarshal(data, &kubelet); err != nil {
		t.Fatal(err)
	}
	if kubelet.FailCgroupV1 == nil || *kubelet.FailCgroupV1 || len(kubelet.EvictionHard) != 5 {
		t.Errorf("kubelet: %+v", kubelet)
	}
	for _, path := range []string{strings.TrimPrefix(kubelet.ContainerRuntimeEndpoint, "unix://"), kubelet.VolumePluginDir} {
		if !strings.HasPrefix(path, "/run/") && !strings.HasPrefix(path, "/var/") {
			t.Errorf("the kubelet writes to %s, which is the machine's", path)
		}
	}

	var conf struct {
		Plugins []struct {
			Type string
			IPAM struct {
				Ranges [][]struct{ Subnet string }
				Routes []struct{ Dst string }
			}
		}
	}
	if data, err = ptpConfig(n); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(data, &conf); err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(conf.Plugins[0].IPAM); got != "{[[{10.244.2.0/24}] [{fd00:10:244:2::/64}]] [{0.0.0.0/0} {::/0}]}" {
		t.Errorf("ptp: %s", got)
	}

	text := containerdConfig("/usr/sbin/runc", false)
	for _, want := range []string{`BinaryName = "/usr/sbin/runc"`, "restrict_oom_score_adj = true", `sandbox = "registry.k8s.io/pause:3.10.2"`} {
		if !strings.Contains(text, want) {
			t.Errorf("containerd's configuration lacks %s", want)
		}
	}

	st := &state{Nodes: []*node{plan(0).node(1, false), n}}
	if got := hostsFile(st); !strings.Contains(got, "10.99.0.12 n2\n") || !strings.Contains(got, "10.99.0.10 cp\n") {
		t.Errorf("hosts:\n%s", got)
	}
}

func TestNeeds(t *testing.T) {
	what, packages := missing([]need{{"sh", "dash"}, {"no-such-program", "one two"}, {"/no/such/file", "two three"}})
	if !cmp.Equal(what, []string{"no-such-program", "/no/such/file"}) || !cmp.Equal(packages, []string{"one", "two", "three"}) {
		t.Errorf("missing: %v in %v", what, packages)
	}
	cfg := Defaults()
	own := needs(cfg)
	cfg.CNI = PTP
	if len(needs(cfg)) != len(own)+1 {
		t.Error("the plugins of Debian are needed without ptp")
	}
	cfg.Mode = APIOnly
	if len(needs(cfg)) != 1 {
		t.Error("an API server needs a container runtime")
	}
}

func TestNodeObjectReady(t *testing.T) {
	const text = `{"status": {"conditions": [
		{"type": "MemoryPressure", "status": "False", "lastHeartbeatTime": "2026-01-02T03:04:05Z"},
		{"type": "Ready", "status": %q, "reason": "R", "message": "m", "lastHeartbeatTime": "2026-01-02T03:04:05Z"}]}}`
	started := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for _, tc := range []struct {
		name, status string
		since        time.Time
		want         bool
	}{
		{"yes", "True", time.Time{}, true},
		{"in the same second", "True", started.Add(900 * time.Millisecond), true},
		{"before it was started", "True", started.Add(time.Second), false},
		{"no", "False", time.Time{}, false},
		{"lost", "Unknown", time.Time{}, false},
	} {
		var n nodeObject
		if err := json.Unmarshal(fmt.Appendf(nil, text, tc.status), &n); err != nil {
			t.Fatal(err)
		}
		if got, why := n.ready(tc.since); got != tc.want || why == "" {
			t.Errorf("%s: %t, %q", tc.name, got, why)
		}
	}
}

func TestForward(t *testing.T) {
	testenv.CheckLeaks(t)
	t.Cleanup(func() { // pipes that the kernel copied through are kept for the next connection until they are collected
		runtime.GC()
		runtime.GC()
	})
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan struct{})
	go func() { // says back everything once it has received all
		defer close(served)
		conn, err := server.Accept()
		if err != nil {
			return
		}
		defer conn.Close()
		data, _ := io.ReadAll(conn)
		_, _ = conn.Write(bytes.ToUpper(data))
	}()
	l, err := listen(0)
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	fd, err := unix.Dup(int(l.Fd()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- Forward(ctx, fd, server.Addr().String()) }()
	conn, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", l.port))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := conn.Write([]byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	got, err := io.ReadAll(conn)
	if err != nil || string(got) != "HELLO" {
		t.Errorf("received %q, %v", got, err)
	}
	_ = conn.Close()
	<-served
	_ = server.Close()
	cancel()
	if err := <-done; err != nil {
		t.Errorf("end: %v", err)
	}
}

func TestCommandsWithoutACluster(t *testing.T) {
	cfg := Defaults()
	cfg.Root, cfg.Data = filepath.Join(t.TempDir(), "r"), filepath.Join(t.TempDir(), "d")
	var out bytes.Buffer
	c, err := New(cfg, &out, false)
	if err != nil {
		t.Fatal(err)
	}
	if Exists(cfg.Root, cfg.Name) {
		t.Error("it exists")
	}
	if _, err := c.Status(t.Context()); err == nil || !strings.Contains(err.Error(), "sandbox up --kubernetes") {
		t.Errorf("status: %v", err)
	}
	if err := RunNode(t.Context(), "/", false); err == nil {
		t.Error("this process became a node")
	}
	testenv.RequireRoot(t)
	if err := c.Down(t.Context()); err != nil || !strings.Contains(out.String(), "nothing to remove") {
		t.Errorf("down: %v, %q", err, &out)
	}
	if _, err := os.Stat(cfg.Root); err == nil {
		t.Error("down made a directory and left it")
	}
}

func TestCgroups(t *testing.T) {
	testenv.RequireRoot(t)
	groups, err := findCgroups()
	if err != nil {
		t.Fatal(err)
	}
	cluster := fmt.Sprintf("test-%d", os.Getpid())
	path := nodeCgroup(cluster, "n1")
	t.Cleanup(func() {
		if err := groups.remove(filepath.Dir(path)); err != nil {
			t.Error(err)
		}
	})
	for range 2 { // what is there is no fault
		if err := groups.create(path); err != nil {
			t.Fatal(err)
		}
	}
	for _, dir := range groups.dirs {
		at := filepath.Join(dir, path)
		if _, err := os.Stat(at); err != nil {
			t.Error(err)
		}
		if cpus, err := os.ReadFile(filepath.Join(at, "cpuset.cpus")); err == nil && dir != cgroupRoot && len(bytes.TrimSpace(cpus)) == 0 {
			t.Errorf("%s has no processors: no process could be in it", at)
		}
	}
	if err := os.Mkdir(filepath.Join(groups.dirs[0], path, "pod"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := groups.remove(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range groups.dirs {
		if _, err := os.Stat(filepath.Join(dir, filepath.Dir(path))); err == nil {
			t.Errorf("%s is left", filepath.Join(dir, path))
		}
	}
}

func TestParseCgroupMounts(t *testing.T) {
	const text = `30 23 0:26 / /sys/fs/cgroup rw,relatime - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,release_agent=/lib/systemd/systemd-cgroups-agent,name=systemd
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
34 23 0:30 / /sys/fs/bpf rw - bpf bpf rw
35 23 0:31 / /sys/fs/cgroups rw - tmpfs tmpfs rw
`
	want := []hierarchy{
		{"/sys/fs/cgroup", "tmpfs", "mode=755"}, {"/sys/fs/cgroup/cpu,cpuacct", "cgroup", "cpu,cpuacct"},
		{"/sys/fs/cgroup/systemd", "cgroup", "name=systemd"}, {"/sys/fs/cgroup/unified", "cgroup2", ""},
	}
	if diff := cmp.Diff(want, parseCgroupMounts(text), cmp.AllowUnexported(hierarchy{})); diff != "" {
		t.Error(diff)
	}
	pure := parseCgroupMounts("30 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate\n")
	if diff := cmp.Diff([]hierarchy{{"/sys/fs/cgroup", "cgroup2", ""}}, pure, cmp.AllowUnexported(hierarchy{})); diff != "" {
		t.Error(diff)
	}
}

func TestEnviron(t *testing.T) {
	t.Setenv("KUBECONFIG", "/of/the/user")
	t.Setenv("KUBECONFIG_OTHER", "kept")
	var got []string
	for _, kv := range environ("KUBECONFIG=/ours") {
		if strings.HasPrefix(kv, "KUBECONFIG") {
			got = append(got, kv)
		}
	}
	if diff := cmp.Diff([]string{"KUBECONFIG_OTHER=kept", "KUBECONFIG=/ours"}, got); diff != "" {
		t.Error(diff)
	}
}
