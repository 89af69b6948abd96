package sandbox

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/internal/testenv"
)

// machineState lists what a sandbox must not leave: links, namespaces, mounts. Those of other
// tests' sandboxes, which may run at the same time in other processes, are left out.
func machineState(t *testing.T) []string {
	t.Helper()
	all, err := testenv.MachineState("/hawser-sb-")
	if err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(all, func(s string) bool { return !strings.HasPrefix(s, "link ") && !strings.Contains(s, "/hawser-sb-") })
}

// TestUnderlay connects two nodes and probes over the bridge with each protocol and IP version.
func TestUnderlay(t *testing.T) {
	testenv.RequireRoot(t)
	cfg := testConfig(t)
	s := testSandbox(t, cfg)
	before := machineState(t)
	for _, d := range []string{"netns", "logs", "etcd"} {
		if err := os.MkdirAll(s.path(d), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	if err := worldHost().CreateBridge(s.netns(worldName)); err != nil {
		t.Fatal(err)
	}
	for i := 1; i <= 2; i++ {
		n := newNode(i, true)
		if err := n.connect(s.netns(worldName), s.netns(n.Name)); err != nil {
			t.Fatal(err)
		}
	}
	p, err := machine.Daemon{
		Namespace: s.netns("n2"), Log: s.path("logs", "n2.log"), Ready: true, Timeout: 20 * time.Second,
		Argv: append(slices.Clone(cfg.Self), "serve", "--name", "n2", "--port", "80", "--port", "81", "--ready-fd", "3"),
	}.Start()
	if err != nil {
		t.Fatal(err)
	}
	if !p.Alive() {
		t.Fatal("the server is not alive")
	}
	etcd, err := machine.Daemon{
		Namespace: s.netns(worldName), Log: s.path("logs", "etcd.log"), Ready: true, Timeout: 20 * time.Second,
		Argv: append(slices.Clone(cfg.Self), "etcd", "--dir", s.path("etcd"), "--ready-fd", "3", "--listen", "http://10.99.0.1:2379,"+s.EtcdEndpoint()),
	}.Start()
	if err != nil {
		t.Fatal(err)
	}
	if !etcd.Alive() {
		t.Fatal("etcd is not alive")
	}

	ctx := context.Background()
	n2 := newNode(2, true)
	for _, addr := range []netip.Addr{n2.IPv4, n2.IPv6} {
		for _, proto := range []Protocol{TCP, UDP, ICMP} {
			for _, from := range []string{"n1", worldName} {
				if err := probe(ctx, s.netns(from), proto, netip.AddrPortFrom(addr, 81), "n2", 10*time.Second); err != nil {
					t.Errorf("%s from %s to %s: %v", proto, from, addr, err)
				}
			}
		}
		// Whoever answers must be who was asked.
		if err := probe(ctx, s.netns("n1"), TCP, netip.AddrPortFrom(addr, 80), "n3", 10*time.Second); err == nil || errors.Is(err, errNoAnswer) {
			t.Errorf("the answer of another server was accepted: %v", err)
		}
		// A refusal is not silence.
		if err := probe(ctx, s.netns("n1"), TCP, netip.AddrPortFrom(addr, 82), "n2", 10*time.Second); err == nil || errors.Is(err, errNoAnswer) {
			t.Errorf("closed port: %v", err)
		}
	}
	// No host has that address: no packet, no answer, in the time given.
	if err := probe(ctx, s.netns("n1"), UDP, netip.MustParseAddrPort("10.244.200.1:80"), "x", 200*time.Millisecond); !errors.Is(err, errNoAnswer) {
		t.Errorf("no host there: %v", err)
	}

	// etcd answers on its socket from here, and over the underlay from a node.
	err = machine.OnThread(func() error {
		c, err := clientv3.New(clientv3.Config{Endpoints: []string{s.EtcdEndpoint()}, DialTimeout: 10 * time.Second, Logger: zap.NewNop()})
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
		defer cancel()
		_, err = c.Put(ctx, "k", "v")
		return err
	})
	if err != nil {
		t.Errorf("etcd on its socket: %v", err)
	}
	out, err := get(s.netns("n1"), "10.99.0.1:2379", "/version")
	if err != nil || !strings.Contains(out, "etcdserver") {
		t.Errorf("etcd over the underlay: %v: %s", err, out)
	}
	out, err = get(s.netns("n1"), "[fd00:99::12]:80", "/")
	if err != nil || !strings.HasPrefix(out, "n2 says hello to [fd00:99::11]") {
		t.Errorf("HTTP: %v: %s", err, out)
	}

	// There is no state file, as after a crash at an early moment: all goes nevertheless.
	if err := s.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if p.Alive() || etcd.Alive() {
		t.Error("a process is left")
	}
	if _, err := os.Stat(cfg.Root); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", cfg.Root, err)
	}
	if diff := cmp.Diff(before, machineState(t)); diff != "" {
		t.Errorf("the machine before and after (-before +after):\n%s", diff)
	}
	if err := s.Down(ctx); err != nil {
		t.Errorf("down of nothing: %v", err)
	}
}

// get makes an HTTP request from a namespace and returns the body of the answer.
func get(ns, addr, path string) (string, error) {
	var c net.Conn
	err := machine.InNamespace(ns, func() (err error) {
		c, err = net.DialTimeout("tcp", addr, 10*time.Second)
		return err
	})
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(10 * time.Second)); err != nil {
		return "", err
	}
	req, err := http.NewRequest(http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return "", err
	}
	if err := req.Write(c); err != nil {
		return "", err
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), req)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return string(body), err
}

// TestEndAllInsists ends a process that ignores SIGTERM, and one outside stays alone.
func TestEndAllInsists(t *testing.T) {
	testenv.RequireRoot(t)
	t.Parallel()
	ns := testenv.NewNetNS(t)
	log := filepath.Join(t.TempDir(), "log")
	outside := exec.Command("sleep", "600")
	if err := outside.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = outside.Process.Kill(); _ = outside.Wait() }()
	p, err := machine.Daemon{
		Namespace: ns.Path(), Log: log, Ready: true, Timeout: 20 * time.Second,
		Argv: []string{"sh", "-c", `trap "" TERM; echo ready >&3; exec 3>&-; while :; do sleep 600; done`},
	}.Start()
	if err != nil {
		t.Fatal(err)
	}
	id, err := machine.NamespaceID(ns.Path())
	if err != nil {
		t.Fatal(err)
	}
	ended, err := machine.EndAll(map[machine.Inode]bool{id: true}, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	if p.Alive() || ended < 1 {
		t.Errorf("alive %v after ending %d", p.Alive(), ended)
	}
	if start, _, err := machine.ReadStat(outside.Process.Pid); err != nil || !(machine.Process{PID: outside.Process.Pid, Start: start}).Alive() {
		t.Error("a process outside of the namespace was ended")
	}
}

func TestDaemonThatFailsIsReported(t *testing.T) {
	testenv.RequireRoot(t)
	t.Parallel()
	ns := testenv.NewNetNS(t)
	_, err := machine.Daemon{
		Namespace: ns.Path(), Log: filepath.Join(t.TempDir(), "log"), Ready: true, Timeout: 20 * time.Second,
		Argv: []string{"sh", "-c", "echo no port is free; exit 3"},
	}.Start()
	if err == nil || !strings.Contains(err.Error(), "no port is free") {
		t.Errorf("got %v, want the end of the log", err)
	}
}

func TestProcessNumbersAreNotTrusted(t *testing.T) {
	t.Parallel()
	start, _, err := machine.ReadStat(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if !(machine.Process{PID: os.Getpid(), Start: start}).Alive() {
		t.Error("this very process is not alive")
	}
	if (machine.Process{PID: os.Getpid(), Start: start + 1}).Alive() {
		t.Error("another process of the same number is taken for ours")
	}
	if (machine.Process{}).Alive() {
		t.Error("no process is alive")
	}
}

func TestLockIsExclusiveAndSurvivesRemoval(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "lock")
	unlock, err := machine.Lock(file)
	if err != nil {
		t.Fatal(err)
	}
	got := make(chan error, 1)
	go func() {
		u, err := machine.Lock(file) // waits, then finds its file removed
		if err == nil {
			if _, statErr := os.Stat(file); statErr != nil {
				err = errors.New("the lock is held on a removed file")
			}
			u(true)
		}
		got <- err
	}()
	select {
	case <-got:
		t.Fatal("two hold the lock")
	case <-time.After(50 * time.Millisecond):
	}
	unlock(true)
	if err := <-got; err != nil {
		t.Fatal(err)
	}
}

func TestStateSurvivesTheFile(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "state.json")
	if _, err := loadState(file); !errors.Is(err, errNotRunning) {
		t.Errorf("no file: %v", err)
	}
	want := &state{
		Name: "x", Created: time.Now().Round(0).UTC(), Complete: true, Self: []string{"/bin/x"},
		Nodes: []*node{newNode(1, true), newNode(2, false)},
		Pods:  []*pod{{Name: "a", Labels: map[string]string{"k": "v"}, Ports: []uint16{1}, IPv4: netip.MustParseAddr("10.244.1.2")}},
	}
	if err := want.save(file); err != nil {
		t.Fatal(err)
	}
	got, err := loadState(file)
	if err != nil {
		t.Fatal(err)
	}
	cmpAddr := cmp.Comparer(func(a, b netip.Addr) bool { return a == b })
	cmpPrefix := cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })
	if diff := cmp.Diff(want, got, cmpAddr, cmpPrefix); diff != "" {
		t.Error(diff)
	}
	if err := os.WriteFile(file, []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := loadState(file); err == nil || errors.Is(err, errNotRunning) {
		t.Errorf("half a file: %v", err)
	}
}

func TestWithLabels(t *testing.T) {
	t.Parallel()
	got, err := withLabels([]byte(`{"cniVersion":"1.0.0","name":"n","plugins":[{"type":"hawser-cni"}]}`), map[string]string{"b": "2", "a": "1"})
	if err != nil {
		t.Fatal(err)
	}
	want := `{"cniVersion":"1.0.0","name":"n","plugins":[{"args":{"cni":{"labels":[{"key":"a","value":"1"},{"key":"b","value":"2"}]}},"type":"hawser-cni"}]}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Error(diff)
	}
	for _, bad := range []string{"", "[]", "{}", `{"plugins":3}`} {
		if _, err := withLabels([]byte(bad), nil); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

func TestNewPodRefusesWhatCannotRun(t *testing.T) {
	t.Parallel()
	st := &state{Nodes: []*node{newNode(1, true), newNode(2, true)}, Pods: []*pod{{Name: "a", Node: "n1"}}}
	p, err := newPod(st, PodSpec{Name: "b"})
	if err != nil || p.Node != "n2" || p.Namespace != "default" || !slices.Equal(p.Ports, []uint16{80}) {
		t.Errorf("%+v, %v: want the emptier node and the defaults", p, err)
	}
	for _, spec := range []PodSpec{
		{}, {Name: "a"}, {Name: "n1"}, {Name: "world"}, {Name: "../x"}, {Name: "c", Node: "n3"},
		{Name: "c", Namespace: "no/way"}, {Name: "c", Ports: []uint16{0}},
	} {
		if _, err := newPod(st, spec); err == nil {
			t.Errorf("%+v was accepted", spec)
		}
	}
}

func TestConfigValidate(t *testing.T) {
	t.Parallel()
	good := Defaults()
	if err := good.Validate(); err != nil {
		t.Fatalf("defaults: %v", err)
	}
	bad := Config{Name: "No", Root: "run", Nodes: 10, RoutingMode: "x", EnablePolicy: "y"}
	err := bad.Validate()
	for _, want := range []string{"name", "directory", "nodes", "routing mode", "enable-policy", "program", "timeout"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("no complaint about the %s: %v", want, err)
		}
	}
}

func TestMatrixPrint(t *testing.T) {
	t.Parallel()
	v4, v6 := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("fd00::1")
	m := &Matrix{Sources: []string{"a", "world"}, Targets: []string{"a", "b"}, Reached: 3, Denied: 4, Unexpected: 3, Took: Duration(time.Second)}
	add := func(from, to string, proto Protocol, addr netip.Addr, port uint16, reached, expected bool) {
		m.Probes = append(m.Probes, Probe{From: from, To: to, Protocol: proto, Address: addr, Port: port, Reached: reached, Expected: expected})
	}
	add("a", "b", TCP, v4, 80, true, true)
	add("a", "b", TCP, v6, 80, true, true)
	add("a", "b", UDP, v4, 80, false, false)
	add("a", "b", ICMP, v6, 0, true, true)
	add("a", "b", ICMP, v4, 0, false, true)
	add("world", "b", TCP, v4, 80, true, false)
	add("world", "b", UDP, v4, 80, false, false)
	m.Probes[4].Rule = "policy x"
	m.Probes[6].Error = "connection refused"
	var out bytes.Buffer
	m.Print(&out, false)
	want := `
  from \ to  a  b:80
  a          -  T·I6!
  world         T!·!

  ● reached by TCP, UDP, ICMP echo (4 or 6: only over that IP version)   · denied   ! not as the policies say
  7 probes in 1.00 s: 3 reached, 4 denied, 3 not as the policies say:
    a -> b icmp 10.0.0.1: was denied, the policies say allowed (policy x)
    world -> b tcp 10.0.0.1 port 80: got through, the policies say denied
    world -> b udp 10.0.0.1 port 80: got through (connection refused), the policies say denied
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Error(diff)
	}
	var colour bytes.Buffer
	m.Print(&colour, true)
	if !strings.Contains(colour.String(), "\x1b[") {
		t.Error("no colour where it was asked for")
	}
	data, err := json.Marshal(m)
	if err != nil || !strings.Contains(string(data), `"took":"1s"`) || !strings.Contains(string(data), `"address":"10.0.0.1"`) {
		t.Errorf("JSON: %v: %s", err, data)
	}
}

// TestDemoPolicies: what the oracle reads out of the demo's files is what the demo promises.
func TestDemoPolicies(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	names, err := demoPolicies.ReadDir("demo")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		data, err := demoPolicies.ReadFile("demo/" + n.Name())
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, n.Name()), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	parties := []party{{name: worldName, ports: []uint16{worldPort}}}
	for _, p := range demoPods(2) {
		parties = append(parties, party{name: p.Name, namespace: "default", labels: p.Labels, ports: p.Ports})
	}
	j, err := newExpectations(dir, "default", parties)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, from := range parties {
		for _, to := range parties {
			for _, proto := range []Protocol{TCP, UDP, ICMP} {
				for _, addr := range []string{"10.0.0.1", "fd00::1"} {
					if ok, _ := j.expect(from, to, proto, netip.MustParseAddr(addr), to.ports[0]); ok && from.name != to.name {
						got = append(got, from.name+" "+to.name+" "+string(proto))
					}
				}
			}
		}
	}
	slices.Sort(got)
	var want []string
	for _, p := range []string{
		"world front-1 tcp", "world front-2 tcp", "front-1 api-1 tcp", "front-1 api-2 tcp", "front-2 api-1 tcp", "front-2 api-2 tcp",
		"front-1 api-1 icmp", "front-1 api-2 icmp", "front-2 api-1 icmp", "front-2 api-2 icmp", "api-1 db-1 tcp", "api-1 db-2 tcp",
	} {
		want = append(want, p, p) // both IP versions
	}
	slices.Sort(want)
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}

	if err := os.WriteFile(filepath.Join(dir, "bad.yaml"), []byte("kind: CiliumNetworkPolicy\nspec: {l7: true}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := newExpectations(dir, "default", parties); err == nil || !strings.Contains(err.Error(), "bad.yaml") {
		t.Errorf("a policy that is refused: %v", err)
	}
}
