package agent

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// The tests of this package that need a node run the real binaries: the agent in a network
// namespace that is the node, the plugin exec'd as a runtime does, pods in namespaces of their own.
// Nothing is faked but the crashes.

// nodeDirPrefix starts the names of the directories that hold a node's state and its BPF
// filesystem. The leak checks of other packages, which may run at the same time, know it.
const nodeDirPrefix = "hawser-netns-agent-"

// binaries holds what was built, for as long as the tests run.
var binaries string

func TestMain(m *testing.M) {
	if to := os.Getenv(askerEnv); to != "" {
		os.Exit(askForEver(to))
	}
	sweepDeadRuns()
	code := servers.Around(m).Run()
	if binaries != "" {
		os.RemoveAll(binaries)
	}
	os.Exit(code)
}

// sweepDeadRuns removes what a test process that was killed has left: its name is in the
// directories' names.
func sweepDeadRuns() {
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), nodeDirPrefix+"*"))
	for _, dir := range dirs {
		owner, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(dir), nodeDirPrefix), "-")
		if pid, err := strconv.Atoi(owner); err == nil && syscall.Kill(pid, 0) == nil {
			continue
		}
		if data, err := os.ReadFile(filepath.Join(dir, "agent.pid")); err == nil {
			pid, _ := strconv.Atoi(string(data))
			cmdline, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
			if pid > 0 && bytes.Contains(cmdline, []byte(dir)) {
				_ = syscall.Kill(pid, syscall.SIGKILL)
			}
		}
		_ = removeNodeDir(dir) // the next run tries again
	}
}

// removeNodeDir removes a node's directory with all that is pinned in it. The agent mounts a BPF
// filesystem at or below bpf.
func removeNodeDir(dir string) error {
	for _, mount := range []string{"bpf/hawser", "bpf"} {
		for unix.Unmount(filepath.Join(dir, mount), unix.MNT_DETACH) == nil {
		}
	}
	return os.RemoveAll(dir)
}

// build compiles the plugin and the agent once, with the steps at which they can be killed; the
// agent also with the race detector.
var build = sync.OnceValues(func() (string, error) {
	var err error
	if binaries, err = os.MkdirTemp("", "hawser-agent-bin-"); err != nil {
		return "", err
	}
	for out, flags := range map[string][]string{
		"hawser-cni": {"./cmd/hawser-cni"}, "hawser-agent": {"./cmd/hawser-agent"}, "hawser-agent-race": {"-race", "./cmd/hawser-agent"},
	} {
		cmd := exec.Command("go", append([]string{"build", "-tags", "faultpoints", "-o", filepath.Join(binaries, out)}, flags...)...)
		cmd.Dir = filepath.Join("..", "..")
		if flags[0] != "-race" {
			cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
		}
		if text, err := cmd.CombinedOutput(); err != nil {
			return "", fmt.Errorf("build %s: %w\n%s", out, err, text)
		}
	}
	return binaries, nil
})

// long reports whether the full counts are wanted.
func long() bool { return os.Getenv("HAWSER_LONG") != "" }

// count is how often to do something: normally, with -short, and at full size.
func count(normal, short, full int) int {
	switch {
	case long():
		return full
	case testing.Short():
		return short
	}
	return normal
}

// machineNode is one node: a namespace with an uplink, and an agent that comes and goes.
type machineNode struct {
	t      testing.TB
	ns     *testenv.NetNS
	name   string
	dir    string
	bin    string
	race   bool
	flags  []string
	env    []string
	client *client.Client
	// conf is what the plugin's configuration has besides what all have.
	conf   map[string]any
	cmd    *exec.Cmd
	log    *os.File
	exited chan struct{}
	pods   atomic.Int64
}

// uplink is where the rest of the world is: the other end of the node's eth0.
const (
	node4, node6       = "192.0.2.1", "2001:db8::1"
	outside4, outside6 = "192.0.2.254", "2001:db8::fe"
	pods4, pods6       = "10.0.1.0/24", "fd00:1::/112"
)

// newNode makes a node with its uplink to a namespace outside the cluster, without an agent.
func newNode(t testing.TB) (*machineNode, *testenv.NetNS) {
	t.Helper()
	testenv.RequireRoot(t)
	ns, outside := testenv.NewNetNS(t), testenv.NewNetNS(t)
	testenv.Connect(t, ns, "eth0", []string{node4 + "/24", node6 + "/64"}, outside, "eth0", []string{outside4 + "/24", outside6 + "/64"})
	return nodeIn(t, ns, "n1", pods4, pods6), outside
}

// storeFlags are the options of a node that is alone, and of one with an etcd.
func storeFlags() map[string]func(testing.TB) []string {
	return map[string]func(testing.TB) []string{
		"alone": func(testing.TB) []string { return nil },
		"etcd": func(t testing.TB) []string {
			return []string{"--kvstore", "etcd", "--kvstore-opt", "etcd.address=" + kvstoretest.StartEtcd(t).Endpoint()}
		},
	}
}

// nodesWithStore returns two nodes on one network that share an etcd, with further flags. They are
// not started yet.
func nodesWithStore(t testing.TB, flags ...string) (store *kvstoretest.Etcd, n1, n2 *machineNode) {
	t.Helper()
	testenv.RequireRoot(t)
	store = kvstoretest.StartEtcd(t)
	ns1, ns2 := twoNamespaces(t)
	n1, n2 = nodeIn(t, ns1, "n1", "10.0.1.0/24", "fd00:1::/112"), nodeIn(t, ns2, "n2", "10.0.2.0/24", "fd00:2::/112")
	for _, n := range []*machineNode{n1, n2} {
		n.flags = append(append(n.flags, "--kvstore", "etcd", "--kvstore-opt", "etcd.address="+store.Endpoint()), flags...)
	}
	return store, n1, n2
}

// nodeIn makes a namespace that has an eth0 a node.
func nodeIn(t testing.TB, ns *testenv.NetNS, name, range4, range6 string) *machineNode {
	t.Helper()
	bin, err := build()
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", fmt.Sprintf("%s%d-", nodeDirPrefix, os.Getpid()))
	if err != nil {
		t.Fatal(err)
	}
	n := &machineNode{t: t, ns: ns, name: name, dir: dir, bin: bin}
	t.Cleanup(func() {
		if err := removeNodeDir(dir); err != nil {
			t.Error(err)
		}
	})
	for _, d := range []string{"bpf", "run", "policy", "config"} {
		if err := os.Mkdir(filepath.Join(dir, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	n.flags = []string{
		"--devices", "eth0", "--node-name", name, "--ipv4-range", range4, "--ipv6-range", range6,
		"--state-dir", n.path("run"), "--socket-path", n.path("run/a.sock"), "--bpf-root", n.path("bpf"),
		"--static-cnp-path", n.path("policy"), "--config-dir", n.path("config"), "--debug",
		"--enable-health-checking=false", // the node's own endpoint is in the way of tests that count; those of health switch it on
	}
	if n.client, err = client.New(n.path("run/a.sock")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(n.client.Close)
	if n.log, err = os.Create(n.path("agent.log")); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		n.kill()
		n.log.Close()
		text, _ := os.ReadFile(n.path("agent.log"))
		if i := bytes.Index(text, []byte("DATA RACE")); i >= 0 {
			t.Errorf("the race detector spoke in the agent:\n%s", clipText(text[max(0, i-80):], 6000))
		}
		if i := bytes.Index(text, []byte("panic:")); i >= 0 {
			t.Errorf("the agent panicked:\n%s", clipText(text[i:], 6000))
		}
		if t.Failed() {
			t.Logf("log of agent %s, what went wrong and its end:\n%s\n...\n%s", name, warnings(text, 6000), text[max(0, len(text)-6000):])
		}
	})
	return n
}

// warnings returns the first n bytes of the lines that are no routine, one of each text.
func warnings(log []byte, n int) []byte {
	var out []byte
	seen := map[string]bool{}
	for line := range bytes.Lines(log) {
		_, rest, ok := bytes.Cut(line, []byte("level=WARN msg="))
		if !ok {
			_, rest, ok = bytes.Cut(line, []byte("level=ERROR msg="))
		}
		if text := string(rest[:min(len(rest), 30)]); ok && !seen[text] {
			seen[text] = true
			out = append(out, line...)
		}
	}
	return clipText(out, n)
}

func clipText(b []byte, n int) []byte { return b[:min(len(b), n)] }

func (n *machineNode) path(p string) string { return filepath.Join(n.dir, p) }

// logText is what the agents of the node have logged so far.
func (n *machineNode) logText() string {
	n.t.Helper()
	text, err := os.ReadFile(n.path("agent.log"))
	if err != nil {
		n.t.Fatal(err)
	}
	return string(text)
}

// launch starts an agent and does not wait for it.
func (n *machineNode) launch(env ...string) {
	n.t.Helper()
	if n.cmd != nil {
		n.t.Fatal("the agent runs already")
	}
	bin := "hawser-agent"
	if n.race {
		bin = "hawser-agent-race"
	}
	cmd := exec.Command(filepath.Join(n.bin, bin), n.flags...)
	cmd.Env = append(append(os.Environ(), n.env...), env...)
	cmd.Stdout, cmd.Stderr = n.log, n.log
	n.ns.Must(n.t, cmd.Start)
	if err := os.WriteFile(n.path("agent.pid"), []byte(strconv.Itoa(cmd.Process.Pid)), 0o600); err != nil {
		n.t.Fatal(err)
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	n.cmd, n.exited = cmd, exited
}

// start starts an agent and returns when it lets endpoint requests in.
func (n *machineNode) start(env ...string) {
	n.t.Helper()
	n.launch(env...)
	n.ready()
}

// ready waits until the agent serves endpoint requests and has observed everything.
func (n *machineNode) ready() { n.t.Helper(); n.serving(true) }

// serving waits until the agent serves endpoint requests, and has observed everything if it shall.
func (n *machineNode) serving(all bool) {
	n.t.Helper()
	deadline := time.Now().Add(60 * time.Second)
	for {
		st, err := n.client.Health(context.Background(), false)
		synced := slices.ContainsFunc(st.Parts, func(p rest.PartStatus) bool { return p.Name == partSync && p.State == rest.StateOk })
		// The release of an address that no pod has is refused as unknown once the startup gate is
		// open.
		open := false
		if rerr := n.client.ReleaseIP(context.Background(), "192.0.2.77", ""); rerr != nil {
			code := client.StatusCode(rerr)
			open = code != 0 && code != http.StatusServiceUnavailable
		}
		if err == nil && (synced || !all) && open {
			return
		}
		select {
		case <-n.exited:
			n.t.Fatalf("the agent ended: %v", n.cmd.ProcessState)
		case <-time.After(5 * time.Millisecond): // another process: nothing notifies this one
		}
		if time.Now().After(deadline) {
			n.t.Fatalf("the agent is not ready after a minute: %v", err)
		}
	}
}

// kill ends the agent as a crash does. Killing one that is gone is fine.
func (n *machineNode) kill() {
	if n.cmd != nil {
		_ = n.cmd.Process.Signal(syscall.SIGKILL)
		<-n.exited
		n.cmd = nil
	}
}

// stop asks the agent to end and requires that it does so at once and with success.
func (n *machineNode) stop() {
	n.t.Helper()
	began := time.Now()
	if err := n.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		n.t.Fatal(err)
	}
	select {
	case <-n.exited:
	case <-time.After(10 * time.Second):
		n.t.Fatal("the agent still runs 10 s after SIGTERM")
	}
	// A second on an idle machine; on a busy one the race detector needs several.
	if took := time.Since(began); took > 7*time.Second {
		n.t.Errorf("the agent needed %v to end", took)
	}
	if code := n.cmd.ProcessState.ExitCode(); code != 0 {
		n.t.Errorf("the agent ended with code %d (%v)", code, n.cmd.ProcessState)
	}
	n.cmd = nil
}

// died waits for an agent that kills itself.
func (n *machineNode) died() {
	n.t.Helper()
	select {
	case <-n.exited:
		n.cmd = nil
	case <-time.After(time.Minute):
		n.t.Fatal("the agent did not reach its crash")
	}
}

// policy writes a policy file the way editors do: beside, and moved into place. An empty text
// removes it.
func (n *machineNode) policy(file, text string) {
	n.t.Helper()
	path := filepath.Join(n.dir, "policy", file)
	if text == "" {
		if err := os.Remove(path); err != nil {
			n.t.Fatal(err)
		}
		return
	}
	tmp := filepath.Join(n.dir, file+".tmp")
	if err := os.WriteFile(tmp, []byte(text), 0o644); err != nil {
		n.t.Fatal(err)
	}
	if err := os.Rename(tmp, path); err != nil {
		n.t.Fatal(err)
	}
}

// call makes a raw request and returns code and body.
func (n *machineNode) call(method, path, body string, header ...string) (int, string) {
	n.t.Helper()
	tr := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", n.path("run/a.sock"))
	}, DisableKeepAlives: true}
	req, err := http.NewRequest(method, "http://agent/v1"+path, strings.NewReader(body))
	if err != nil {
		n.t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := (&http.Client{Transport: tr, Timeout: 30 * time.Second}).Do(req)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, path, err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		n.t.Fatalf("%s %s: %v", method, path, err)
	}
	return resp.StatusCode, strings.TrimSpace(string(text))
}

// machinePod is a pod: a namespace, and what the plugin said.
type machinePod struct {
	node      *machineNode
	ns        *testenv.NetNS
	container string
	name      string
	labels    map[string]string
	ip4, ip6  netip.Addr
}

// newPod makes a pod that is not attached yet.
func (n *machineNode) newPod(name string, labels map[string]string) *machinePod {
	n.t.Helper()
	p := &machinePod{node: n, ns: testenv.NewNetNS(n.t), name: name, labels: labels}
	p.renew()
	return p
}

// renew gives the pod another container, as after a deletion.
func (p *machinePod) renew() { p.container = fmt.Sprintf("%s-%d", p.name, p.node.pods.Add(1)) }

// attached makes a pod and attaches it.
func (n *machineNode) attached(name string, labels map[string]string) *machinePod {
	n.t.Helper()
	p := n.newPod(name, labels)
	if err := p.add(); err != nil {
		n.t.Fatalf("ADD of %s: %v", name, err)
	}
	return p
}

// run executes the plugin. A plugin that was killed gives errKilled.
func (p *machinePod) run(command string, env ...string) ([]byte, error) {
	type kv struct {
		Key   string `json:"key"`
		Value string `json:"value"`
	}
	lbls := []kv{}
	for k, v := range p.labels {
		lbls = append(lbls, kv{k, v})
	}
	keys := map[string]any{
		"cniVersion": "1.1.0", "name": "cilium", "type": "hawser-cni", "socket-path": p.node.path("run/a.sock"),
		"log-file": p.node.path("cni.log"), "args": map[string]any{"cni": map[string]any{"labels": lbls}},
	}
	maps.Copy(keys, p.node.conf)
	conf, err := json.Marshal(keys)
	if err != nil {
		return nil, err
	}
	cmd := exec.Command(filepath.Join(p.node.bin, "hawser-cni"))
	cmd.Env = append([]string{
		"CNI_COMMAND=" + command, "CNI_CONTAINERID=" + p.container, "CNI_NETNS=" + p.ns.Path(), "CNI_IFNAME=eth0", "CNI_PATH=" + p.node.bin,
		"CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=default;K8S_POD_NAME=" + p.name,
	}, env...)
	cmd.Stdin = bytes.NewReader(conf)
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := p.node.ns.Do(cmd.Start); err != nil {
		return nil, err
	}
	if err := cmd.Wait(); err != nil {
		if ws, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signal() == syscall.SIGKILL {
			return nil, errKilled
		}
		return nil, fmt.Errorf("%s of %s: %w: %s%s", command, p.name, err, out.Bytes(), stderr.Bytes())
	}
	return out.Bytes(), nil
}

var errKilled = errors.New("the plugin was killed")

func (p *machinePod) add(env ...string) error {
	out, err := p.run("ADD", env...)
	if err != nil {
		return err
	}
	var result struct {
		IPs []struct{ Address netip.Prefix }
	}
	if err := json.Unmarshal(out, &result); err != nil {
		return err
	}
	p.ip4, p.ip6 = netip.Addr{}, netip.Addr{}
	for _, ip := range result.IPs {
		if a := ip.Address.Addr(); a.Is4() {
			p.ip4 = a
		} else {
			p.ip6 = a
		}
	}
	return nil
}

func (p *machinePod) del(env ...string) error {
	_, err := p.run("DEL", env...)
	return err
}

// id is what the plugin calls the pod's endpoint.
func (p *machinePod) id() string { return "cni-attachment-id:" + p.container + ":eth0" }

// endpoint returns the pod's endpoint as the API shows it.
func (p *machinePod) endpoint() rest.Endpoint {
	p.node.t.Helper()
	ep, err := p.node.client.Endpoint(context.Background(), p.id())
	if err != nil {
		p.node.t.Fatal(err)
	}
	return ep
}

// audit lists everything on the node that a pod may leave behind, sorted: interfaces, routes,
// neighbours, map entries, pins, addresses, identities, records and queued deletions.
func (n *machineNode) audit() []string {
	n.t.Helper()
	var out []string
	add := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	ctx := context.Background()
	for _, name := range n.ns.LinkNames(n.t) {
		add("link %s", name)
	}
	h := n.ns.Netlink(n.t)
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := h.RouteList(nil, family)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, r := range routes {
			add("route %v", r)
		}
	}
	neighs, err := h.NeighList(0, 0)
	if err != nil {
		n.t.Fatal(err)
	}
	for _, ne := range neighs {
		if ne.State&unix.NUD_PERMANENT != 0 {
			add("neighbour %v on %d", ne.IP, ne.LinkIndex)
		}
	}
	h.Close()
	for _, name := range []string{"endpoints", "policy", "ipcache"} {
		m, err := n.client.Map(ctx, name)
		if err != nil {
			n.t.Fatal(err)
		}
		for _, e := range m.Cache {
			if name == "policy" { // a rule set is another one after another pod was here
				add("policy %+v", e.Policy.Direction)
				continue
			}
			add("map %s: %s", name, e.Key)
		}
	}
	for _, d := range []string{"bpf", "run/state", "run/deleteQueue"} {
		err := filepath.WalkDir(n.path(d), func(path string, _ fs.DirEntry, err error) error {
			if strings.HasSuffix(path, ".tmp") {
				// It is written at the moment, unless it has been left.
				for end := time.Now().Add(2 * time.Second); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
					if _, err := os.Stat(path); err != nil {
						return nil
					}
				}
			}
			if err == nil && !strings.HasSuffix(path, "deleteQueue") && !strings.HasSuffix(path, "lockfile") {
				add("file %s", strings.TrimPrefix(path, n.dir))
			}
			return nil
		})
		if err != nil {
			n.t.Fatal(err)
		}
	}
	st, err := n.client.Health(ctx, false)
	if err != nil {
		n.t.Fatal(err)
	}
	for ip, owner := range st.IPAM.Allocations {
		add("address %s of %s", ip, owner)
	}
	used, err := n.client.IdentityEndpoints(ctx)
	if err != nil && !client.NotFound(err) {
		n.t.Fatal(err)
	}
	for _, u := range used {
		add("identity %v used %d times", u.Identity.Labels, u.RefCount)
	}
	slices.Sort(out)
	return out
}

// sameAudit waits until the audit is what it was: interfaces go a moment after their endpoint.
func (n *machineNode) sameAudit(want []string, when string) {
	n.t.Helper()
	for deadline := time.Now().Add(40 * time.Second); ; {
		began := time.Now()
		diff := cmp.Diff(want, n.audit())
		if diff == "" {
			return
		}
		if time.Now().After(deadline) {
			n.t.Errorf("%s (-before +after):\n%s", when, diff)
			return
		}
		time.Sleep(testenv.Breath(began))
	}
}

// noDoubles checks that no two endpoints share an address and that every kernel row is an
// endpoint's and every endpoint has one.
func (n *machineNode) noDoubles(when string) {
	n.t.Helper()
	ctx := context.Background()
	eps, err := n.client.Endpoints(ctx, nil)
	if err != nil && !client.NotFound(err) {
		n.t.Fatal(err)
	}
	m, err := n.client.Map(ctx, "endpoints")
	if err != nil {
		n.t.Fatal(err)
	}
	owner := map[string]int{}
	for _, e := range m.Cache {
		for _, ip := range []string{e.Endpoint.IPv4, e.Endpoint.IPv6} {
			if other, taken := owner[ip]; taken && ip != "" {
				n.t.Errorf("%s: endpoints %d and %d both have %s in the kernel", when, other, e.Endpoint.ID, ip)
			}
			owner[ip] = e.Endpoint.ID
		}
	}
	for _, ep := range eps {
		for _, pair := range ep.Status.Networking.Addressing {
			for _, ip := range []string{pair.IPv4, pair.IPv6} {
				if ip != "" && owner[ip] != ep.ID {
					n.t.Errorf("%s: %s of endpoint %d is endpoint %d's in the kernel", when, ip, ep.ID, owner[ip])
				}
			}
		}
	}
	if len(m.Cache) != len(eps) {
		n.t.Errorf("%s: %d kernel rows for %d endpoints", when, len(m.Cache), len(eps))
	}
}
