package cni

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	current "github.com/containernetworking/cni/pkg/types/100"
	"github.com/containernetworking/cni/pkg/version"
	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/deletequeue"
	"github.com/hawser-net/hawser/internal/testenv"
)

// binDir holds the plugin's binary, if a test needed it, for as long as the tests run.
var binDir string

func TestMain(m *testing.M) {
	code := m.Run()
	if binDir != "" {
		os.RemoveAll(binDir)
	}
	os.Exit(code)
}

// buildPlugin builds the real binary, once a test run, with the steps at which it can be killed.
var buildPlugin = sync.OnceValues(func() (string, error) {
	var err error
	if binDir, err = os.MkdirTemp("", "hawser-cni-test-"); err != nil {
		return "", err
	}
	bin := filepath.Join(binDir, "hawser-cni")
	build := exec.Command("go", "build", "-tags", "faultpoints", "-o", bin, "github.com/hawser-net/hawser/cmd/hawser-cni")
	build.Env = append(os.Environ(), "CGO_ENABLED=0") // as it is shipped: a static binary starts faster
	if out, err := build.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build the plugin: %w: %s", err, out)
	}
	return bin, nil
})

// newNS makes an unnamed network namespace; its path is good for as long as the test runs.
func newNS(t testing.TB) (*podNS, string) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: network namespaces")
	}
	type made struct {
		f   *os.File
		err error
	}
	ch := make(chan made)
	go func() {
		runtime.LockOSThread() // the thread ends with the goroutine
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			ch <- made{err: err}
			return
		}
		f, err := os.Open("/proc/thread-self/ns/net")
		ch <- made{f, err}
	}()
	m := <-ch
	if m.err != nil {
		t.Fatal(m.err)
	}
	path := fmt.Sprintf("/proc/%d/fd/%d", os.Getpid(), m.f.Fd())
	ns, err := enter(path, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.close(); m.f.Close() })
	return ns, path
}

// fixture is a node with a fake agent and one pod.
type fixture struct {
	t       testing.TB
	bin     string
	node    *testNode
	agent   *fakeAgent
	pod     *podNS
	podPath string
	logFile string
}

func setUp(t testing.TB) *fixture {
	t.Helper()
	host, _ := newNS(t)
	bin, err := buildPlugin()
	if err != nil {
		t.Fatal(err)
	}
	f := &fixture{t: t, bin: bin, node: &testNode{ns: host, h: host.h}}
	f.agent = newFakeAgent(t, f.node)
	f.pod, f.podPath = newNS(t)
	f.logFile = filepath.Join(t.TempDir(), "cni.log")
	return f
}

// inNode calls fn on a thread in the node's namespace.
func (f *fixture) inNode(fn func()) {
	f.t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		err := unix.Setns(int(f.node.ns.f.Fd()), unix.CLONE_NEWNET)
		if err == nil {
			fn()
		}
		done <- err
	}()
	if err := <-done; err != nil {
		f.t.Fatal(err)
	}
}

func (f *fixture) conf(extra map[string]any) []byte {
	conf := map[string]any{
		"cniVersion": "1.1.0", "name": "cilium", "type": "hawser-cni",
		"socket-path": f.agent.socket, "log-file": f.logFile, "enable-debug": true,
	}
	for k, v := range extra {
		conf[k] = v
	}
	b, err := json.Marshal(conf)
	if err != nil {
		f.t.Fatal(err)
	}
	return b
}

// run executes the plugin as a runtime does. An error of libcni's type is the plugin's own; other
// errors are the process's.
func (f *fixture) run(command string, stdin []byte, env ...string) ([]byte, error) {
	f.t.Helper()
	cmd := exec.Command(f.bin)
	cmd.Env = append([]string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=cid1", "CNI_NETNS=" + f.podPath, "CNI_IFNAME=eth0",
		"CNI_PATH=" + filepath.Dir(f.bin),
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=ns1;K8S_POD_NAME=pod1;K8S_POD_UID=u1;K8S_POD_INFRA_CONTAINER_ID=x",
	}, env...)
	cmd.Stdin = bytes.NewReader(stdin)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	var err error
	f.inNode(func() { err = cmd.Start() })
	if err != nil {
		f.t.Fatal(err)
	}
	err = cmd.Wait()
	if err != nil {
		var cniErr cnitypes.Error
		if json.Unmarshal(out.Bytes(), &cniErr) == nil && cniErr.Code != 0 {
			return nil, &cniErr
		}
		return nil, fmt.Errorf("%w: %s%s", err, out.Bytes(), stderr.Bytes())
	}
	return out.Bytes(), nil
}

func (f *fixture) must(command string, extra map[string]any, env ...string) []byte {
	f.t.Helper()
	out, err := f.run(command, f.conf(extra), env...)
	if err != nil {
		f.t.Fatalf("%s: %v", command, err)
	}
	return out
}

// clean checks that nothing is left anywhere.
func (f *fixture) clean(what string) {
	f.t.Helper()
	if diff := cmp.Diff([]string{"lo"}, links(f.t, f.node.h)); diff != "" {
		f.t.Errorf("%s: interfaces left on the node:\n%s", what, diff)
	}
	if diff := cmp.Diff([]string{"lo"}, links(f.t, f.pod.h)); diff != "" {
		f.t.Errorf("%s: interfaces left in the pod:\n%s", what, diff)
	}
	if rules, err := f.pod.rules(); err != nil || len(rules) > 0 {
		f.t.Errorf("%s: rules left in the pod: %v, %v", what, rules, err)
	}
	if diff := cmp.Diff("endpoints [], addresses []", f.agent.state()); diff != "" {
		f.t.Errorf("%s: left with the agent:\n%s", what, diff)
	}
}

func code(err error) uint {
	var e *cnitypes.Error
	if errors.As(err, &e) {
		return e.Code
	}
	return 0
}

func (f *fixture) wantError(what string, err error, wantCode uint, wantText string) {
	f.t.Helper()
	if code(err) != wantCode || !strings.Contains(fmt.Sprint(err), wantText) {
		f.t.Errorf("%s: error %v (code %d), want code %d and %q", what, err, code(err), wantCode, wantText)
	}
}

func TestAddMakesTheInterface(t *testing.T) {
	f := setUp(t)
	out := f.must("ADD", map[string]any{"args": map[string]any{"cni": map[string]any{"labels": []map[string]string{{"key": "app", "value": "web"}}}}})
	var got current.Result
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	req := f.agent.endpoints["cid1:eth0"]
	hostName := hostIfName("cid1", "eth0")
	if len(hostName) != 15 {
		t.Errorf("host name %s has %d characters", hostName, len(hostName))
	}

	// The request.
	link, err := f.pod.h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	host, err := f.node.h.LinkByName(hostName)
	if err != nil {
		t.Fatal(err)
	}
	want := req // everything not set below is as it is
	want.ContainerID, want.ContainerInterfaceName, want.ContainerNetnsPath = "cid1", "eth0", f.podPath
	want.InterfaceName, want.InterfaceIndex = hostName, host.Attrs().Index
	want.MAC, want.HostMAC = link.Attrs().HardwareAddr.String(), host.Attrs().HardwareAddr.String()
	want.K8SNamespace, want.K8SPodName, want.K8SUid = "ns1", "pod1", "u1"
	want.Labels = []string{"cni:app=web"}
	want.State, want.SyncBuildEndpoint = "waiting-for-identity", new(true)
	want.Addressing.IPv4, want.Addressing.IPv4ExpirationUUID, want.Addressing.IPv4PoolName = "10.1.0.3", "uuid-10.1.0.3", "default"
	want.Addressing.IPv6, want.Addressing.IPv6ExpirationUUID, want.Addressing.IPv6PoolName = "fd00:1::2", "uuid-fd00:1::2", "default"
	want.NetnsCookie = fmt.Sprint(f.pod.cookie)
	want.Properties = map[string]any{"property-skip-masquerade-v6": true}
	if diff := cmp.Diff(want, req); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
	for _, mac := range [][]byte{link.Attrs().HardwareAddr, host.Attrs().HardwareAddr} {
		if mac[0]&3 != 2 {
			t.Errorf("%x is not a locally administered unicast address", mac)
		}
	}

	// The interface.
	for _, l := range []netlink.Link{link, host} {
		a := l.Attrs()
		if a.MTU != 1500 || a.TxQLen != 1000 || a.GSOMaxSize != 98304 || a.GROIPv4MaxSize != 49152 {
			t.Errorf("%s: MTU %d, queue %d, sizes %d %d", a.Name, a.MTU, a.TxQLen, a.GSOMaxSize, a.GROIPv4MaxSize)
		}
	}
	addrs, err := f.pod.h.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		t.Fatal(err)
	}
	var ips []string
	for _, a := range addrs {
		if a.Scope == int(netlink.SCOPE_UNIVERSE) {
			ips = append(ips, a.IPNet.String())
			if a.Flags&unix.IFA_F_TENTATIVE != 0 {
				t.Errorf("%s is tentative", a.IPNet)
			}
		}
	}
	if diff := cmp.Diff([]string{"10.1.0.3/32", "fd00:1::2/128"}, ips); diff != "" {
		t.Errorf("addresses:\n%s", diff)
	}
	routes := map[string]string{}
	for _, fam := range []int{unix.AF_INET, unix.AF_INET6} {
		list, err := f.pod.h.RouteList(link, fam)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list {
			dst := "default"
			if r.Dst != nil && r.Dst.String() != "0.0.0.0/0" && r.Dst.String() != "::/0" {
				dst = r.Dst.String()
			}
			if strings.HasPrefix(dst, "fe80") || r.Dst != nil && dst == "fd00:1::2/128" {
				continue // the kernel's own
			}
			routes[fmt.Sprintf("%d %s", fam, dst)] = fmt.Sprintf("via %v mtu %d", r.Gw, r.MTU)
		}
	}
	if diff := cmp.Diff(map[string]string{
		"2 10.1.0.1/32": "via <nil> mtu 0", "2 default": "via 10.1.0.1 mtu 1450",
		"10 fd00:1::1/128": "via <nil> mtu 0", "10 default": "via fd00:1::1 mtu 1450",
	}, routes); diff != "" {
		t.Errorf("routes (-want +got):\n%s", diff)
	}
	for path, want := range map[string]string{"ip_local_reserved_ports": "8472", "tcp_mtu_probing": "1", "tcp_base_mss": "1024"} {
		var b []byte
		f.pod.visit(func() { b, _ = os.ReadFile("/proc/sys/net/ipv4/" + path) })
		if got := strings.TrimSpace(string(b)); got != want {
			t.Errorf("%s is %q in the pod, want %q", path, got, want)
		}
	}

	// The result.
	if len(got.Interfaces) != 2 || got.Interfaces[0].Name != hostName || got.Interfaces[0].Mac != want.HostMAC ||
		got.Interfaces[1].Name != "eth0" || got.Interfaces[1].Sandbox != f.podPath || got.Interfaces[1].Mac != want.MAC {
		t.Errorf("interfaces: %s", out)
	}
	if len(got.IPs) != 2 || got.IPs[0].Address.String() != "fd00:1::2/128" || got.IPs[1].Address.String() != "10.1.0.3/32" ||
		got.IPs[1].Gateway.String() != "10.1.0.1" || *got.IPs[0].Interface != 1 {
		t.Errorf("addresses: %s", out)
	}
	if len(got.Routes) != 4 {
		t.Errorf("routes: %s", out)
	}

	f.must("DEL", nil)
	f.clean("after DEL")
	f.must("DEL", nil)
}

// TestLogFile: what the plugin did, and with enable-debug each step, is in the configuration's
// file; one that cannot be written keeps no pod from its network.
func TestLogFile(t *testing.T) {
	f := setUp(t)
	lines := func(file string) (levels map[string]int, all string) {
		b, err := os.ReadFile(file)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
		levels = map[string]int{}
		for line := range strings.Lines(string(b)) {
			var entry struct {
				Level string `json:"level"`
				ID    string `json:"container-id"`
			}
			if err := json.Unmarshal([]byte(line), &entry); err != nil || entry.ID != "cid1" {
				t.Errorf("the line %q is no entry of this container: %v", line, err)
			}
			levels[entry.Level]++
		}
		return levels, string(b)
	}
	file := func(name string) string { return filepath.Join(t.TempDir(), name) }
	for debug, want := range map[bool]bool{true: true, false: false} {
		path := file("cni.log")
		conf := map[string]any{"enable-debug": debug, "log-file": path}
		f.must("ADD", conf)
		f.must("DEL", conf)
		levels, all := lines(path)
		if levels["INFO"] != 2 || (levels["DEBUG"] > 0) != want || !strings.Contains(all, "ADD done") || !strings.Contains(all, "DEL done") {
			t.Errorf("enable-debug %v: %v\n%s", debug, levels, all)
		}
		if want && !strings.Contains(all, hostIfName("cid1", "eth0")) {
			t.Errorf("enable-debug does not log the interface:\n%s", all)
		}
	}
	// A failure is reported with its cause.
	path := file("cni.log")
	if _, err := f.run("ADD", f.conf(map[string]any{"log-file": path, "chaining-mode": "aws-cni"})); err == nil {
		t.Error("an unsupported configuration is accepted")
	}
	if levels, all := lines(path); levels["ERROR"] != 1 || !strings.Contains(all, "aws-cni") {
		t.Errorf("after a failure: %v\n%s", levels, all)
	}
	// A large file moves aside.
	if err := os.Truncate(path, maxLogBytes+1); err != nil {
		t.Fatal(err)
	}
	f.must("ADD", map[string]any{"log-file": path})
	if old, err := os.Stat(path + ".1"); err != nil || old.Size() != maxLogBytes+1 {
		t.Errorf("the large file: %v", err)
	}
	if levels, _ := lines(path); levels["INFO"] != 1 {
		t.Errorf("the next file has %v", levels)
	}
	f.must("DEL", map[string]any{"log-file": filepath.Join(path, "no-directory", "cni.log")})
	f.must("ADD", map[string]any{"log-file": "", "enable-debug": true})
	f.must("DEL", nil)
	f.clean("at the end")
}

// TestAnswersWithoutRouter: ADD ends if the agent's answer has no Cilium internal IP (the node's
// router address) of a family that it gives an address of, and leaves nothing.
func TestAnswersWithoutRouter(t *testing.T) {
	f := setUp(t)
	for name, spoil := range map[string]func(*rest.IPAMResponse){
		"no host addressing": func(r *rest.IPAMResponse) { r.HostAddressing = rest.NodeAddressing{} },
		"no IPv4 router":     func(r *rest.IPAMResponse) { r.HostAddressing.IPv4.IP = "" },
		"no IPv6 router":     func(r *rest.IPAMResponse) { r.HostAddressing.IPv6.IP = "" },
		"of another family":  func(r *rest.IPAMResponse) { r.HostAddressing.IPv4.IP = "fd00:1::1" },
	} {
		f.agent.edit = spoil
		_, err := f.run("ADD", f.conf(nil))
		f.wantError(name, err, cnitypes.ErrInternal, "router address")
		f.clean(name)
	}
}

// TestAddressForms: the agent's answer may have addresses with the length of a prefix. The pod gets
// single addresses either way.
func TestAddressForms(t *testing.T) {
	f := setUp(t)
	f.agent.edit = func(r *rest.IPAMResponse) {
		r.Address.IPv4 += "/24"
		r.Address.IPv6 += "/64"
	}
	out := f.must("ADD", nil)
	var got current.Result
	if err := json.Unmarshal(out, &got); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if len(got.IPs) != 2 || got.IPs[0].Address.String() != "fd00:1::2/128" || got.IPs[1].Address.String() != "10.1.0.3/32" {
		t.Errorf("addresses: %s", out)
	}
	link, err := f.pod.h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := f.pod.h.AddrList(link, netlink.FAMILY_V4)
	if err != nil || len(addrs) != 1 || addrs[0].IPNet.String() != "10.1.0.3/32" {
		t.Errorf("the pod has %v, %v", addrs, err)
	}
	f.must("DEL", nil)
	f.clean("after DEL")
	// What is no address is refused, and given back all the same.
	f.agent.edit = func(r *rest.IPAMResponse) { r.Address.IPv4 = "x/24" }
	_, err = f.run("ADD", f.conf(nil))
	f.wantError("no address", err, cnitypes.ErrInternal, "is not an address")
}

func TestAddResultInEveryVersion(t *testing.T) {
	f := setUp(t)
	for _, v := range version.All.SupportedVersions() {
		out := f.must("ADD", map[string]any{"cniVersion": v})
		generic, err := version.NewResult(v, out)
		if err != nil {
			t.Errorf("version %s: %v: %s", v, err, out)
			continue
		}
		result, err := current.NewResultFromResult(generic)
		if err != nil {
			t.Errorf("version %s: %v", v, err)
		}
		if generic.Version() != v && !(v == "0.1.0" && generic.Version() == "0.2.0") {
			t.Errorf("asked for version %s, got %s", v, generic.Version())
		}
		if len(result.IPs) != 2 {
			t.Errorf("version %s: %d addresses: %s", v, len(result.IPs), out)
		}
		f.must("DEL", map[string]any{"cniVersion": v})
		f.clean("version " + v)
	}
	_, err := f.run("ADD", f.conf(map[string]any{"cniVersion": "9.0.0"}))
	f.wantError("version 9.0.0", err, cnitypes.ErrIncompatibleCNIVersion, "incompatible")
}

func TestVersion(t *testing.T) {
	f := setUp(t)
	out := f.must("VERSION", nil)
	info, err := new(version.PluginDecoder).Decode(out)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(version.All.SupportedVersions(), info.SupportedVersions()); diff != "" {
		t.Error(diff)
	}
}

func TestSingleFamily(t *testing.T) {
	for name, v4 := range map[string]bool{"IPv4": true, "IPv6": false} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			f.agent.ipv4, f.agent.ipv6 = v4, !v4
			var got current.Result
			if err := json.Unmarshal(f.must("ADD", nil), &got); err != nil {
				t.Fatal(err)
			}
			if len(got.IPs) != 1 || (got.IPs[0].Address.IP.To4() != nil) != v4 {
				t.Errorf("addresses %v", got.IPs)
			}
			f.must("DEL", nil)
			f.clean("after DEL")
		})
	}
}

// A runtime that repeats ADD after a crash finds the interfaces of the first attempt; they go.
func TestAddReplacesLeftovers(t *testing.T) {
	f := setUp(t)
	if _, err := f.run("ADD", f.conf(nil), "HAWSER_CNI_CRASH_AT="+StepAddPod); err == nil {
		t.Fatal("the plugin was not killed")
	}
	f.must("ADD", nil)
	f.must("DEL", nil)
	f.agent.expire()
	f.clean("after DEL")

	// A foreign interface is not removed.
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "eth0"
	if err := f.pod.h.LinkAdd(&netlink.Bridge{LinkAttrs: attrs}); err != nil {
		t.Fatal(err)
	}
	_, err := f.run("ADD", f.conf(nil))
	f.wantError("foreign eth0", err, cnitypes.ErrInternal, "not Hawser's")
	f.must("DEL", nil)
	if diff := cmp.Diff([]string{"eth0", "lo"}, links(t, f.pod.h)); diff != "" {
		t.Errorf("interfaces of the pod after DEL:\n%s", diff)
	}
}

// TestAddLeavesOthers: a veth pair of another program that is in the place of the pod's interface,
// wherever its other end is, is in use for all that is known: ADD is refused, and neither it nor a
// DEL removes the pair.
func TestAddLeavesOthers(t *testing.T) {
	third, _ := newNS(t)
	for name, other := range map[string]struct {
		make func(*fixture, *netlink.Veth)
		text string
	}{
		"of a bridge plugin": {func(f *fixture, v *netlink.Veth) {
			v.PeerName, v.PeerNamespace = "veth7c1e4d2a", netlink.NsFd(f.node.ns.f.Fd())
		}, "veth7c1e4d2a"},
		"of another node": {func(_ *fixture, v *netlink.Veth) {
			v.PeerName, v.PeerNamespace = "lxc0123456789ab", netlink.NsFd(third.f.Fd())
		}, "not on the node"},
		"of the pod itself": {func(_ *fixture, v *netlink.Veth) { v.PeerName = "lxc0123456789ab" }, "not on the node"},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			attrs := netlink.NewLinkAttrs()
			attrs.Name = "eth0"
			made := &netlink.Veth{LinkAttrs: attrs}
			other.make(f, made)
			if err := f.pod.h.LinkAdd(made); err != nil {
				t.Fatal(err)
			}
			is, err := f.pod.h.LinkByName("eth0")
			if err != nil {
				t.Fatal(err)
			}
			same := func(when string) {
				t.Helper()
				if now, err := f.pod.h.LinkByName("eth0"); err != nil || now.Attrs().Index != is.Attrs().Index {
					t.Fatalf("%s: the other program's interface is gone: %v, %v", when, now, err)
				}
				if got := f.agent.state(); got != "endpoints [], addresses []" {
					t.Errorf("%s: the agent holds %s", when, got)
				}
			}
			_, err = f.run("ADD", f.conf(nil))
			f.wantError("ADD", err, cnitypes.ErrInternal, "not Hawser's")
			f.wantError("ADD", err, cnitypes.ErrInternal, other.text)
			same("ADD")
			f.must("DEL", nil)
			same("DEL")
			f.agent.stop()
			f.must("DEL", nil)
			same("DEL without an agent")
		})
	}
}

func TestRollBack(t *testing.T) {
	refuse := func(call string, code int) func(*fakeAgent) {
		return func(a *fakeAgent) {
			a.fault = func(c string, w http.ResponseWriter, _ *http.Request) bool {
				if c != call {
					return false
				}
				answer(w, code, "injected fault")
				return true
			}
		}
	}
	drop := func(call string) func(*fakeAgent) {
		return func(a *fakeAgent) {
			a.fault = func(c string, w http.ResponseWriter, _ *http.Request) bool {
				if c == call {
					hangUp(w)
				}
				return c == call
			}
		}
	}
	dropAfter := func(call string) func(*fakeAgent) {
		return func(a *fakeAgent) { a.after = func(c string) bool { return c == call } }
	}
	const put, ipam = "PUT /v1/endpoint/{id}", "POST /v1/ipam"
	for name, test := range map[string]struct {
		inject func(*fakeAgent)
		code   uint
		text   string
		leaks  bool // addresses that only expiry gives back
	}{
		"configuration refused":          {refuse("GET /v1/config", 500), cnitypes.ErrInternal, "injected fault", false},
		"netkit":                         {func(a *fakeAgent) { a.config.DatapathMode = "netkit" }, cnitypes.ErrInternal, "netkit", false},
		"addresses refused":              {refuse(ipam, 502), cnitypes.ErrInternal, "injected fault", false},
		"no answer to addresses":         {drop(ipam), cnitypes.ErrTryAgainLater, "cannot reach", false},
		"addresses given without answer": {dropAfter(ipam), cnitypes.ErrTryAgainLater, "cannot reach", true},
		"no family":                      {func(a *fakeAgent) { a.ipv4, a.ipv6 = false, false }, cnitypes.ErrInternal, "neither", false},
		"MTU the kernel refuses":         {func(a *fakeAgent) { a.config.DeviceMTU = 7 }, cnitypes.ErrInternal, "interface", false},
		"endpoint refused":               {refuse(put, 500), cnitypes.ErrInternal, "injected fault", false},
		"endpoint exists":                {refuse(put, 400), cnitypes.ErrInternal, "injected fault", false},
		"no answer to endpoint":          {drop(put), cnitypes.ErrTryAgainLater, "cannot reach", false},
		"endpoint made without answer":   {dropAfter(put), cnitypes.ErrTryAgainLater, "cannot reach", false},
	} {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			test.inject(f.agent)
			_, err := f.run("ADD", f.conf(nil))
			f.wantError("ADD", err, test.code, test.text)
			if test.leaks {
				f.agent.expire()
			}
			f.clean("after the failed ADD")
			f.agent.fault, f.agent.after = nil, nil
			f.must("DEL", nil) // the runtime's duty after a failed ADD
			f.clean("after DEL")
		})
	}
}

// TestRepeatedADD: a runtime asks again for an attachment that is there, with the pod's own
// namespace or with another. It is refused, and the pod's network stays as it is.
func TestRepeatedADD(t *testing.T) {
	f := setUp(t)
	f.must("ADD", nil)
	hostLink := func() int {
		t.Helper()
		l, err := f.node.h.LinkByName(hostIfName("cid1", "eth0"))
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Index
	}
	index, pod := hostLink(), links(t, f.pod.h)
	other, otherPath := newNS(t)
	for name, env := range map[string][]string{"the same namespace": nil, "another namespace": {"CNI_NETNS=" + otherPath}} {
		_, err := f.run("ADD", f.conf(nil), env...)
		f.wantError("ADD again, "+name, err, cnitypes.ErrInternal, "has interface eth0 already")
		if got := f.agent.state(); got != "endpoints [cid1:eth0], addresses []" {
			t.Errorf("%s: the agent holds %s", name, got)
		}
		if now := hostLink(); now != index {
			t.Errorf("%s: the host's interface was made anew", name)
		}
		if diff := cmp.Diff(pod, links(t, f.pod.h)); diff != "" {
			t.Errorf("%s: the pod's interfaces: %s", name, diff)
		}
		if diff := cmp.Diff([]string{"lo"}, links(t, other.h)); diff != "" {
			t.Errorf("%s: %s", name, diff)
		}
	}
	// An agent that does not say whether the attachment lives keeps it alive.
	f.agent.fault = func(call string, w http.ResponseWriter, _ *http.Request) bool {
		if call != "GET /v1/endpoint/{id}/healthz" {
			return false
		}
		answer(w, 500, "injected fault")
		return true
	}
	_, err := f.run("ADD", f.conf(nil))
	f.wantError("ADD again, and the agent does not say", err, cnitypes.ErrInternal, "injected fault")
	if now := hostLink(); now != index {
		t.Error("the host's interface was made anew although it may be in use")
	}
	f.agent.fault = nil
	f.must("DEL", nil)
	f.clean("after DEL")
}

func TestAgentThatStarts(t *testing.T) {
	f := setUp(t)
	f.agent.stop()
	os.Remove(f.agent.socket)
	go func() {
		time.Sleep(150 * time.Millisecond) // the plugin has begun to wait
		f.agent.start()
	}()
	busy := 3
	f.agent.fault = func(call string, w http.ResponseWriter, _ *http.Request) bool {
		f.agent.mu.Lock()
		defer f.agent.mu.Unlock()
		if call == "PUT /v1/endpoint/{id}" && busy > 0 {
			busy--
			answer(w, 503, "not yet")
			return true
		}
		return false
	}
	f.must("ADD", nil)
	f.must("DEL", nil)
	f.clean("after DEL")
}

func TestCrashAtEveryStep(t *testing.T) {
	for _, step := range Steps() {
		t.Run(step, func(t *testing.T) {
			f := setUp(t)
			command := "ADD"
			if strings.HasPrefix(step, "del-") {
				f.must("ADD", nil)
				command = "DEL"
			}
			_, err := f.run(command, f.conf(nil), "HAWSER_CNI_CRASH_AT="+step)
			if err == nil || !strings.Contains(err.Error(), "killed") {
				t.Fatalf("the plugin was not killed: %v", err)
			}
			f.must("DEL", nil)
			f.agent.expire()
			f.clean("after DEL")
			f.must("ADD", nil)
			f.must("DEL", nil)
			f.clean("after another ADD and DEL")
		})
	}
}

func TestDel(t *testing.T) {
	f := setUp(t)
	f.must("DEL", nil)                           // never added
	f.must("DEL", nil, "CNI_NETNS=")             // no namespace
	f.must("DEL", nil, "CNI_NETNS=/nonexistent") // a namespace that is gone
	f.must("DEL", nil, "CNI_NETNS="+f.logFile)   // one that was unmounted: the file is left
	f.must("ADD", nil)
	f.must("DEL", nil, "CNI_NETNS=/nonexistent")
	f.clean("namespace gone")

	f.must("ADD", nil)
	f.agent.fault = func(call string, w http.ResponseWriter, _ *http.Request) bool {
		answer(w, 500, "injected fault")
		return true
	}
	_, err := f.run("DEL", f.conf(nil))
	f.wantError("agent refuses", err, cnitypes.ErrInternal, "injected fault")
	f.agent.fault = nil
	f.must("DEL", nil)
	f.clean("after DEL")
}

// TestNamespaceOfAnother: of two containers that were given one namespace, one after the other, a
// late DEL or a new ADD of the former leaves the interface of the latter, which is in use.
func TestNamespaceOfAnother(t *testing.T) {
	f := setUp(t)
	former, latter := "CNI_CONTAINERID=former", "CNI_CONTAINERID=latter"
	f.must("ADD", nil, former)
	f.must("DEL", nil, former)
	f.must("ADD", nil, latter)
	same := func(when string) {
		t.Helper()
		if diff := cmp.Diff([]string{"eth0", "lo"}, links(t, f.pod.h)); diff != "" {
			t.Errorf("%s: interfaces of the pod:\n%s", when, diff)
		}
		if diff := cmp.Diff("endpoints [latter:eth0], addresses []", f.agent.state()); diff != "" {
			t.Errorf("%s: the agent holds:\n%s", when, diff)
		}
	}
	f.must("DEL", nil, former)
	same("after another DEL")
	_, err := f.run("ADD", f.conf(nil), former)
	f.wantError("ADD", err, cnitypes.ErrInternal, "attachment latter:eth0: DEL that first")
	same("after ADD")
	f.agent.stop()
	f.must("DEL", nil, former)
	f.agent.start()
	same("after a DEL without an agent")
	f.must("DEL", nil, latter)
	f.clean("after DEL")

	// What is unused is in no one's way.
	if _, err := f.run("ADD", f.conf(nil), latter, "HAWSER_CNI_CRASH_AT="+StepAddPod); err == nil {
		t.Fatal("the plugin was not killed")
	}
	f.must("ADD", nil, former)
	f.must("DEL", nil, former)
	f.agent.expire()
	f.clean("after the interface that was left")
}

func TestDelWithoutAgent(t *testing.T) {
	down := map[string]func(*fixture){
		"socket gone":   func(f *fixture) { f.agent.stop(); os.Remove(f.agent.socket) },
		"not listening": func(f *fixture) { f.agent.stop() },
		"not ready": func(f *fixture) {
			f.agent.fault = func(_ string, w http.ResponseWriter, _ *http.Request) bool {
				answer(w, 503, "not yet")
				return true
			}
		},
	}
	for name, takeDown := range down {
		t.Run(name, func(t *testing.T) {
			f := setUp(t)
			f.must("ADD", nil)
			takeDown(f)
			for range 2 {
				f.must("DEL", nil)
			}
			if diff := cmp.Diff([]string{"lo"}, links(t, f.node.h)); diff != "" {
				t.Errorf("interfaces left:\n%s", diff)
			}
			var got []deletequeue.Entry
			_, err := deletequeue.Replay(t.Context(), deletequeue.Dir(f.agent.socket), func(_ context.Context, e deletequeue.Entry) error {
				got = append(got, e)
				return nil
			}, nil)
			if err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff([]deletequeue.Entry{{EndpointID: "cni-attachment-id:cid1:eth0"}}, got); diff != "" {
				t.Errorf("queue:\n%s", diff)
			}
		})
	}
	t.Run("queue full", func(t *testing.T) {
		f := setUp(t)
		f.agent.stop()
		w, err := deletequeue.Hold(t.Context(), deletequeue.Dir(f.agent.socket))
		if err != nil {
			t.Fatal(err)
		}
		for i := range deletequeue.MaxFiles {
			if err := w.Add(deletequeue.Entry{EndpointID: fmt.Sprint("x:", i)}); err != nil {
				t.Fatal(err)
			}
		}
		w.Close()
		_, err = f.run("DEL", f.conf(nil))
		f.wantError("DEL", err, cnitypes.ErrTryAgainLater, "full")
	})
}

// TestDelWithoutAgentDiskFull: a deletion that cannot be queued is one that the runtime is to try
// again, and nothing of it counts afterwards but what is whole.
func TestDelWithoutAgentDiskFull(t *testing.T) {
	for _, tt := range []struct {
		name        string
		spoil, mend func(*testenv.SmallDisk)
		want        string
	}{
		{"full", (*testenv.SmallDisk).Fill, (*testenv.SmallDisk).Free, "no space left on device"},
		{"read-only", (*testenv.SmallDisk).ReadOnly, (*testenv.SmallDisk).Writable, "read-only file system"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			f, disk := setUp(t), testenv.NewSmallDisk(t)
			f.agent.stop()
			f.agent.socket = filepath.Join(disk.Path, "agent.sock")
			f.agent.start()
			f.must("ADD", nil)
			f.agent.stop()
			queue := deletequeue.Dir(f.agent.socket)
			tt.spoil(disk)
			for range 2 {
				_, err := f.run("DEL", f.conf(nil))
				f.wantError("DEL", err, cnitypes.ErrTryAgainLater, tt.want)
				f.wantError("DEL", err, cnitypes.ErrTryAgainLater, queue)
			}
			tt.mend(disk)
			replay := func(when string, want ...deletequeue.Entry) {
				t.Helper()
				var got []deletequeue.Entry
				_, err := deletequeue.Replay(t.Context(), queue, func(_ context.Context, e deletequeue.Entry) error {
					got = append(got, e)
					return nil
				}, nil)
				if err != nil {
					t.Errorf("%s: %v", when, err)
				}
				if diff := cmp.Diff(want, got); diff != "" {
					t.Errorf("%s: queue:\n%s", when, diff)
				}
			}
			replay("nothing was queued")
			f.must("DEL", nil)
			replay("with room", deletequeue.Entry{EndpointID: "cni-attachment-id:cid1:eth0"})
		})
	}
}

func TestCheck(t *testing.T) {
	f := setUp(t)
	var result map[string]any
	if err := json.Unmarshal(f.must("ADD", nil), &result); err != nil {
		t.Fatal(err)
	}
	prev := map[string]any{"prevResult": result}
	check := func(env ...string) error { _, err := f.run("CHECK", f.conf(prev), env...); return err }
	f.must("CHECK", prev)

	_, err := f.run("CHECK", f.conf(nil))
	f.wantError("no prevResult", err, cnitypes.ErrInvalidNetworkConfig, "prevResult")
	f.wantError("bad arguments", check("CNI_ARGS=x"), cnitypes.ErrInvalidNetworkConfig, "InvalidArgs")
	f.wantError("unknown endpoint", check("CNI_CONTAINERID=other"), codeHealthzFailed, "HealthzFailed")
	f.agent.health.OverallHealth = "Failure"
	f.wantError("unhealthy", check(), codeUnhealthy, "Unhealthy")
	f.agent.health.OverallHealth = "OK"

	link, err := f.pod.h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	for _, family := range []int{netlink.FAMILY_V4, netlink.FAMILY_V6} {
		routes, err := f.pod.h.RouteList(link, family)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range routes {
			if r.Gw == nil {
				continue
			}
			if err := f.pod.h.RouteDel(&r); err != nil {
				t.Fatal(err)
			}
			f.wantError("route gone", check(), cnitypes.ErrInternal, "lacks its route to "+r.Dst.String())
			if err := f.pod.h.RouteAdd(&r); err != nil {
				t.Fatal(err)
			}
			f.must("CHECK", prev)
		}
	}
	addr, err := netlink.ParseAddr("10.1.0.3/32")
	if err != nil {
		t.Fatal(err)
	}
	if err := f.pod.h.AddrDel(link, addr); err != nil {
		t.Fatal(err)
	}
	f.wantError("address gone", check(), cnitypes.ErrInternal, "lacks address 10.1.0.3")
	if err := f.pod.h.LinkSetDown(link); err != nil {
		t.Fatal(err)
	}
	if err := f.pod.h.LinkSetName(link, "eth9"); err != nil {
		t.Fatal(err)
	}
	f.wantError("interface gone", check(), cnitypes.ErrInternal, "eth0")
	f.agent.stop()
	f.wantError("agent down", check(), cnitypes.ErrTryAgainLater, "DaemonDown")
}

// TestCheckBothEnds: an interface that took the place of the pod's or of the host's fails CHECK,
// even with the name, the addresses and the routes of the former one.
func TestCheckBothEnds(t *testing.T) {
	t.Parallel()
	for name, swap := range map[string]func(*fixture) (want string){
		// The pod's end is put away, and one end of another pair is in its place.
		"pod": func(f *fixture) string {
			f.impostor(f.pod.h, "eth0", "other")
			return "not the other end"
		},
		// The other end is on the host, as that of an attachment would be.
		"pod, other end on the host": func(f *fixture) string {
			f.impostor(f.pod.h, "eth0", "")
			return "not the other end"
		},
		// The whole pair is another one.
		"host": func(f *fixture) string {
			side := hostIfName("cid1", "eth0")
			link, err := f.node.h.LinkByName(side)
			if err != nil {
				f.t.Fatal(err)
			}
			if err := f.node.h.LinkSetDown(link); err != nil {
				f.t.Fatal(err)
			}
			if err := f.node.h.LinkSetName(link, "aside"); err != nil {
				f.t.Fatal(err)
			}
			if err := f.node.h.LinkSetUp(link); err != nil {
				f.t.Fatal(err)
			}
			f.impostorPair(side)
			return "has index"
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := setUp(t)
			var result map[string]any
			if err := json.Unmarshal(f.must("ADD", nil), &result); err != nil {
				t.Fatal(err)
			}
			prev := map[string]any{"prevResult": result}
			f.must("CHECK", prev)
			want := swap(f)
			_, err := f.run("CHECK", f.conf(prev))
			f.wantError(name, err, cnitypes.ErrInternal, want)
		})
	}
}

// impostor renames the interface of a pod and makes another in its place, with its addresses and
// routes. The other end is in the pod by a name, or on the host if that is empty.
func (f *fixture) impostor(pod *netlink.Handle, name, otherEnd string) {
	f.t.Helper()
	must := func(err error) {
		f.t.Helper()
		if err != nil {
			f.t.Fatal(err)
		}
	}
	link, err := pod.LinkByName(name)
	must(err)
	addrs, err := pod.AddrList(link, netlink.FAMILY_ALL)
	must(err)
	routes, err := pod.RouteList(link, netlink.FAMILY_ALL)
	must(err)
	must(pod.LinkSetDown(link))
	must(pod.LinkSetName(link, "aside"))
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	made := &netlink.Veth{LinkAttrs: attrs, PeerName: otherEnd}
	if otherEnd == "" {
		made.PeerName, made.PeerNamespace = "lxc0123456789ab", netlink.NsFd(f.node.ns.f.Fd())
	}
	must(pod.LinkAdd(made))
	must(pod.LinkSetUp(made))
	for _, a := range addrs {
		if a.IP.IsLinkLocalUnicast() {
			continue
		}
		must(pod.AddrAdd(made, &netlink.Addr{IPNet: a.IPNet, Flags: unix.IFA_F_NODAD}))
	}
	slices.SortStableFunc(routes, func(a, b netlink.Route) int { return len(a.Gw) - len(b.Gw) })
	for _, r := range routes {
		if r.Dst != nil && r.Dst.IP.IsLinkLocalUnicast() || r.Protocol == unix.RTPROT_KERNEL {
			continue
		}
		r.LinkIndex = made.Attrs().Index
		must(pod.RouteAdd(&r))
	}
}

// impostorPair makes a pair in the node's namespace of which one end has a name.
func (f *fixture) impostorPair(name string) {
	f.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	made := &netlink.Veth{LinkAttrs: attrs, PeerName: "peer"}
	if err := f.node.h.LinkAdd(made); err != nil {
		f.t.Fatal(err)
	}
	if err := f.node.h.LinkSetUp(made); err != nil {
		f.t.Fatal(err)
	}
}

func TestStatus(t *testing.T) {
	f := setUp(t)
	f.must("STATUS", nil)
	_, err := f.run("STATUS", f.conf(map[string]any{"ipam": map[string]any{"type": "host-local"}}))
	f.wantError("the agent gives the addresses", err, cnitypes.ErrInvalidNetworkConfig, "host-local")
	for mode, text := range map[rest.DatapathMode]string{rest.DatapathModeLbOnly: "no pods", "netkit": "veth pairs"} {
		f.agent.config.DatapathMode = mode
		_, err = f.run("STATUS", f.conf(nil))
		f.wantError("a node on which every ADD fails", err, codeNotAvailable, text)
		_, err = f.run("ADD", f.conf(nil))
		f.wantError("ADD there", err, cnitypes.ErrInternal, text)
	}
	f.agent.config.DatapathMode = rest.DatapathModeVeth
	f.agent.fault = func(_ string, w http.ResponseWriter, _ *http.Request) bool { answer(w, 500, "ill"); return true }
	_, err = f.run("STATUS", f.conf(nil))
	f.wantError("agent ill", err, codeNotAvailable, "DaemonHealthzFailed")
	f.agent.stop()
	_, err = f.run("STATUS", f.conf(nil))
	f.wantError("agent down", err, codeNotAvailable, "DaemonDown")
}

// TestStatusOfAnAgentThatIsAway: STATUS fails until the agent was ready once, and for what it would
// refuse again. That it is away, or ill, does not make a node NotReady whose pods work.
func TestStatusOfAnAgentThatIsAway(t *testing.T) {
	f := setUp(t)
	ill := func(_ string, w http.ResponseWriter, _ *http.Request) bool { answer(w, 500, "ill"); return true }
	f.agent.fault = ill
	_, err := f.run("STATUS", f.conf(nil))
	f.wantError("it was never ready", err, codeNotAvailable, "DaemonHealthzFailed")
	f.agent.fault = nil
	f.must("STATUS", nil)

	for range 2 {
		f.agent.stop()
		f.must("STATUS", nil)
		f.agent.start()
		f.must("STATUS", nil)
		f.agent.fault = ill
		f.must("STATUS", nil)
		f.agent.fault = nil
	}
	// What an agent that answers has refused it would refuse again.
	f.agent.config.DatapathMode = rest.DatapathModeLbOnly
	_, err = f.run("STATUS", f.conf(nil))
	f.wantError("no pods there", err, codeNotAvailable, "no pods")
	f.agent.stop()
	_, err = f.run("STATUS", f.conf(nil))
	f.wantError("no pods there, and away", err, codeNotAvailable, "DaemonDown")
}

func TestGC(t *testing.T) {
	f := setUp(t)
	paths := map[string]string{}
	for _, id := range []string{"a", "b", "c"} {
		_, paths[id] = newNS(t)
		f.must("ADD", nil, "CNI_CONTAINERID="+id, "CNI_NETNS="+paths[id])
	}
	// A link of an ADD that crashed, and things that only look like one.
	if _, err := f.run("ADD", f.conf(nil), "HAWSER_CNI_CRASH_AT="+StepAddLink); err == nil {
		t.Fatal("the plugin was not killed")
	}
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "lxc_health"
	if err := f.node.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "lxcother"}); err != nil {
		t.Fatal(err)
	}
	_, err := f.run("GC", f.conf(nil))
	f.wantError("no list", err, cnitypes.ErrInvalidNetworkConfig, "valid-attachments")
	f.must("GC", map[string]any{"cni.dev/valid-attachments": []map[string]string{{"containerID": "b", "ifname": "eth0"}}})
	f.agent.expire()
	if got := f.agent.state(); got != "endpoints [b:eth0], addresses []" {
		t.Errorf("agent holds %s", got)
	}
	if diff := cmp.Diff([]string{"lo", hostIfName("b", "eth0"), "lxc_health", "lxcother"}, links(t, f.node.h)); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	f.must("GC", map[string]any{"cni.dev/valid-attachments": []map[string]string{}})
	if got := f.agent.state(); got != "endpoints [], addresses []" {
		t.Errorf("agent holds %s", got)
	}
	f.agent.stop()
	_, err = f.run("GC", f.conf(map[string]any{"cni.dev/valid-attachments": []map[string]string{}}))
	f.wantError("agent down", err, cnitypes.ErrTryAgainLater, "cannot reach")
}

// TestGCOfOneNetwork: a GC says what is to stay of its own network, and nothing of others that the
// plugin serves on the same node; nor does one release addresses for another.
func TestGCOfOneNetwork(t *testing.T) {
	f := setUp(t)
	name := func(network string) map[string]any { return map[string]any{"name": network} }
	for id, network := range map[string]string{"a": "cilium", "b": "second", "c": "second"} {
		_, path := newNS(t)
		f.must("ADD", name(network), "CNI_CONTAINERID="+id, "CNI_NETNS="+path)
	}
	// An interface of the other network that has no endpoint yet.
	if _, err := f.run("ADD", f.conf(name("second")), "HAWSER_CNI_CRASH_AT="+StepAddLink); err == nil {
		t.Fatal("the plugin was not killed")
	}
	gc := func(network, want string, valid ...map[string]string) {
		t.Helper()
		f.must("GC", map[string]any{"name": network, "cni.dev/valid-attachments": append([]map[string]string{}, valid...)})
		f.agent.expire()
		if got := f.agent.state(); got != want {
			t.Errorf("after the GC of %s the agent holds %s, want %s", network, got, want)
		}
	}
	gc("cilium", "endpoints [a:eth0 b:eth0 c:eth0], addresses []", map[string]string{"containerID": "a", "ifname": "eth0"})
	gc("cilium", "endpoints [b:eth0 c:eth0], addresses []")
	left := []string{"lo", hostIfName("b", "eth0"), hostIfName("c", "eth0"), hostIfName("cid1", "eth0")}
	slices.Sort(left[1:])
	if diff := cmp.Diff(left, links(t, f.node.h)); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	gc("second", "endpoints [c:eth0], addresses []", map[string]string{"containerID": "c", "ifname": "eth0"})
	if diff := cmp.Diff([]string{"lo", hostIfName("c", "eth0")}, links(t, f.node.h)); diff != "" {
		t.Errorf("interfaces (-want +got):\n%s", diff)
	}
	// An interface that another network plugin has made stays, with a name like ours.
	attrs := netlink.NewLinkAttrs()
	attrs.Name = "lxc0123456789ab"
	if err := f.node.h.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "theirs"}); err != nil {
		t.Fatal(err)
	}
	// An endpoint whose interface names no network is any's.
	old, err := f.node.h.LinkByName(hostIfName("c", "eth0"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.node.h.LinkSetAlias(old, ""); err != nil {
		t.Fatal(err)
	}
	gc("cilium", "endpoints [], addresses []")
	if _, err := f.node.h.LinkByName(attrs.Name); err != nil {
		t.Errorf("another plugin's interface: %v", err)
	}
}

// A runtime reaches the plugin through libcni: ADD, CHECK, GC and DEL with its own cache.
func TestThroughLibcni(t *testing.T) {
	f := setUp(t)
	list, err := libcni.NetworkConfFromBytes(fmt.Appendf(nil, `{"cniVersion":"1.1.0","name":"cilium","plugins":[%s]}`, f.conf(nil)))
	if err != nil {
		t.Fatal(err)
	}
	f.inNode(func() {
		ctx := context.Background()
		c := libcni.NewCNIConfigWithCacheDir([]string{filepath.Dir(f.bin)}, t.TempDir(), nil)
		rt := &libcni.RuntimeConf{ContainerID: "cid1", NetNS: f.podPath, IfName: "eth0", Args: [][2]string{{"K8S_POD_NAME", "p"}, {"K8S_POD_NAMESPACE", "n"}}}
		if _, err := c.ValidateNetworkList(ctx, list); err != nil {
			t.Error(err)
		}
		if err := c.GetStatusNetworkList(ctx, list); err != nil {
			t.Error(err)
		}
		if _, err := c.AddNetworkList(ctx, list, rt); err != nil {
			t.Error(err)
		}
		if err := c.CheckNetworkList(ctx, list, rt); err != nil {
			t.Error(err)
		}
		keep := &libcni.GCArgs{ValidAttachments: []cnitypes.GCAttachment{{ContainerID: "cid1", IfName: "eth0"}}}
		if err := c.GCNetworkList(ctx, list, keep); err != nil {
			t.Error(err)
		}
		if err := c.CheckNetworkList(ctx, list, rt); err != nil {
			t.Error(err)
		}
		for range 2 {
			if err := c.DelNetworkList(ctx, list, rt); err != nil {
				t.Error(err)
			}
		}
	})
	f.clean("after DEL")
}

// Runtimes turn IPv6 off in new namespaces unless the result says that the pod's network has it.
func TestIPv6SwitchedOffInThePod(t *testing.T) {
	f := setUp(t)
	const all = "/proc/sys/net/ipv6/conf/all/disable_ipv6"
	var err error
	f.pod.visit(func() { err = os.WriteFile(all, []byte("1"), 0) })
	if err != nil {
		t.Fatal(err)
	}
	f.must("ADD", nil)
	link, err := f.pod.h.LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	addrs, err := f.pod.h.AddrList(link, unix.AF_INET6)
	if err != nil || len(addrs) == 0 {
		t.Errorf("addresses %v, %v", addrs, err)
	}
	f.must("DEL", nil)
	f.clean("after DEL")
}

// A runtime that times out sends SIGTERM: what was begun is undone at once.
func TestSigtermRollsBack(t *testing.T) {
	f := setUp(t)
	waiting := make(chan struct{})
	f.agent.fault = func(call string, w http.ResponseWriter, r *http.Request) bool {
		if call != "PUT /v1/endpoint/{id}" {
			return false
		}
		close(waiting)
		<-r.Context().Done()
		return true
	}
	cmd := exec.Command(f.bin)
	cmd.Env = []string{"CNI_COMMAND=ADD", "CNI_CONTAINERID=cid1", "CNI_NETNS=" + f.podPath, "CNI_IFNAME=eth0", "CNI_PATH=/"}
	cmd.Stdin = bytes.NewReader(f.conf(nil))
	var err error
	f.inNode(func() { err = cmd.Start() })
	if err != nil {
		t.Fatal(err)
	}
	<-waiting
	cmd.Process.Signal(unix.SIGTERM)
	if err := cmd.Wait(); err == nil {
		t.Error("the interrupted ADD succeeded")
	}
	f.clean("after SIGTERM")
}

func TestManyAtOnce(t *testing.T) {
	f := setUp(t)
	const pods = 16
	paths := make([]string, pods)
	for i := range paths {
		_, paths[i] = newNS(t)
	}
	for _, command := range []string{"ADD", "DEL"} {
		var wg sync.WaitGroup
		for i, path := range paths {
			wg.Go(func() {
				if _, err := f.run(command, f.conf(nil), fmt.Sprint("CNI_CONTAINERID=c", i), "CNI_NETNS="+path); err != nil {
					t.Errorf("%s of pod %d: %v", command, i, err)
				}
			})
		}
		wg.Wait()
		if command == "ADD" && len(f.agent.endpoints) != pods {
			t.Errorf("%d endpoints, want %d", len(f.agent.endpoints), pods)
		}
	}
	f.clean("after DEL")
}

func TestRefusals(t *testing.T) {
	f := setUp(t)
	for name, test := range map[string]struct {
		stdin []byte
		env   []string
		code  uint
		text  string
	}{
		"chained":        {f.conf(map[string]any{"prevResult": map[string]any{"cniVersion": "1.1.0"}}), nil, cnitypes.ErrInvalidNetworkConfig, "can't be chained"},
		"chaining mode":  {f.conf(map[string]any{"chaining-mode": "aws-cni"}), nil, cnitypes.ErrInvalidNetworkConfig, "aws-cni"},
		"delegated IPAM": {f.conf(map[string]any{"ipam": map[string]any{"type": "host-local"}}), nil, cnitypes.ErrInvalidNetworkConfig, "host-local"},
		"socket":         {f.conf(map[string]any{"socket-path": "ftp://x"}), nil, cnitypes.ErrInvalidNetworkConfig, "ftp"},
		"no JSON":        {[]byte("{"), nil, cnitypes.ErrDecodingFailure, ""},
		"wrong types":    {f.conf(map[string]any{"enable-debug": "yes"}), nil, cnitypes.ErrDecodingFailure, "malformed"},
		"arguments":      {f.conf(nil), []string{"CNI_ARGS=K8S_POD_NAME=a/b;K8S_POD_NAMESPACE=x"}, cnitypes.ErrInvalidEnvironmentVariables, "K8S_POD_NAME"},
		"host namespace": {f.conf(nil), []string{"CNI_NETNS=/proc/self/ns/net"}, cnitypes.ErrInvalidNetNS, "host"},
		"no namespace":   {f.conf(nil), []string{"CNI_NETNS=/nonexistent"}, cnitypes.ErrInternal, "does not exist"},
		"a file":         {f.conf(nil), []string{"CNI_NETNS=/etc/hostname"}, cnitypes.ErrInternal, "not a network namespace"},
		"reserved label": {f.conf(map[string]any{"args": map[string]any{"cni": map[string]any{"labels": []map[string]string{{"key": "io.kubernetes.pod.namespace", "value": "x"}}}}}), nil, cnitypes.ErrInvalidNetworkConfig, "reserved"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := f.run("ADD", test.stdin, test.env...)
			f.t = t
			f.wantError("ADD", err, test.code, test.text)
			f.clean(name)
		})
	}
}

// TestAddThroughInterfaceOfACloud: the agent gets by which of the node's interfaces the packets
// of the pod's address leave, and a pod whose interface is not there gets nothing and leaves
// nothing.
func TestAddThroughInterfaceOfACloud(t *testing.T) {
	f := setUp(t)
	mac, err := net.ParseMAC("02:00:00:00:00:77")
	if err != nil {
		t.Fatal(err)
	}
	eni := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "eni1", HardwareAddr: mac}, PeerName: "cloud1"}
	if err := f.node.h.LinkAdd(eni); err != nil {
		t.Fatal(err)
	}
	f.agent.config.IPAMMode = "eni"
	f.agent.edit = func(r *rest.IPAMResponse) {
		r.IPv4.MasterMAC, r.IPv4.InterfaceNumber, r.IPv4.Gateway, r.IPv4.Cidrs = "02:00:00:00:00:77", "1", "10.1.0.1", []string{"10.1.0.0/16"}
	}
	conf := map[string]any{"eni": map[string]any{"subnet-tags": map[string]string{"for": "pods"}}, "ipam": map[string]any{"pre-allocate": 4}}
	f.must("ADD", conf)
	link, err := f.node.h.LinkByName("eni1")
	if err != nil {
		t.Fatal(err)
	}
	if got := f.agent.endpoints["cid1:eth0"].ParentInterfaceIndex; got != link.Attrs().Index {
		t.Errorf("the agent gets interface %d, the address is of %d", got, link.Attrs().Index)
	}
	f.must("DEL", conf)
	if err := f.node.h.LinkDel(link); err != nil {
		t.Fatal(err)
	}
	for mac, want := range map[string]string{"02:00:00:00:00:77": "is not on this node", "eth0": `names network interface "eth0"`} {
		f.agent.edit = func(r *rest.IPAMResponse) { r.IPv4.MasterMAC = mac }
		_, err = f.run("ADD", f.conf(conf))
		f.wantError(mac, err, cnitypes.ErrTryAgainLater, want)
		f.clean(mac)
	}
	f.agent.config.IPAMMode = "cluster-pool"
	_, err = f.run("ADD", f.conf(conf))
	f.wantError("another mode", err, cnitypes.ErrInvalidNetworkConfig, "eni is not supported")
	f.clean("another mode")
}

// TestAddTwiceAtOnce: of two ADDs for one attachment that are under way at the same time the second
// succeeds, and the first, undoing what it did, leaves the second's interface.
func TestAddTwiceAtOnce(t *testing.T) {
	f := setUp(t)
	var second error
	f.agent.fault = func(call string, _ http.ResponseWriter, _ *http.Request) bool {
		if call == "PUT /v1/endpoint/{id}" {
			f.agent.mu.Lock()
			f.agent.fault = nil
			f.agent.mu.Unlock()
			_, second = f.run("ADD", f.conf(nil))
		}
		return false
	}
	_, first := f.run("ADD", f.conf(nil))
	if first == nil || second != nil {
		t.Fatalf("the first ADD ends with %v, the second with %v", first, second)
	}
	host, err := f.node.h.LinkByName(hostIfName("cid1", "eth0"))
	if err != nil || host.Attrs().Index != f.agent.endpoints["cid1:eth0"].InterfaceIndex {
		t.Errorf("the endpoint's interface on the host: %v, %v", host, err)
	}
	if diff := cmp.Diff([]string{"eth0", "lo"}, links(t, f.pod.h)); diff != "" {
		t.Errorf("interfaces of the pod:\n%s", diff)
	}
	if diff := cmp.Diff("endpoints [cid1:eth0], addresses []", f.agent.state()); diff != "" {
		t.Errorf("left with the agent:\n%s", diff)
	}
	f.must("DEL", nil)
	f.clean("after DEL")
}
