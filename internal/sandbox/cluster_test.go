package sandbox

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/ui"
)

// buildPrograms compiles the agent and the plugin as they are now.
func buildPrograms(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	args := append([]string{"build"}, buildFlags(t)...)
	cmd := exec.Command("go", append(args, "-o", dir+"/", "./cmd/hawser", "./cmd/hawser-agent", "./cmd/hawser-cni", "./cmd/hawser-relay")...)
	cmd.Dir = "../.."
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("build the programs: %v\n%s", err, out)
	}
	return dir
}

// TestCluster is the whole product on one machine: the demo comes up, the network does what the
// policies say and follows them when they change, keeps doing so with the agents killed, and
// nothing is left afterwards.
func TestCluster(t *testing.T) {
	testenv.RequireRoot(t)
	bin := buildPrograms(t)
	for _, mode := range []string{"tunnel", "native"} {
		t.Run(mode, func(t *testing.T) { testCluster(t, bin, mode) })
	}
	t.Run("flows", func(t *testing.T) { testFlows(t, bin) })
}

// pageOfFlows checks that the page has what the pods did just now, asked from the machine itself: a
// connection that goes from one node to another is one, whichever nodes report it.
func pageOfFlows(t *testing.T, s *Sandbox) {
	t.Helper()
	if !ui.Built() {
		t.Log("the page is not built: make web")
		return
	}
	st, err := s.running()
	if err != nil {
		t.Fatal(err)
	}
	server, token, ok := strings.Cut(st.PageURL, "/#token=")
	if !ok {
		t.Fatalf("the page is at %q: %s", st.PageURL, machine.LastLines(s.pageLog(), 5))
	}
	var got ui.Snapshot
	deadline := time.Now().Add(30 * time.Second)
	for {
		req, err := http.NewRequest(http.MethodGet, server+"/api/map", nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Authorization", "Bearer "+token)
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		err = json.NewDecoder(res.Body).Decode(&got)
		res.Body.Close()
		if err != nil {
			t.Fatalf("%s: %v", res.Status, err)
		}
		edges := map[string]ui.Edge{}
		for _, e := range got.Edges {
			edges[e.ID] = e
		}
		let, refused := edges["default/front>default/api>TCP/8080"], edges["default/front>default/db>TCP/5432"]
		if let.Forwarded > 0 && let.Dropped == 0 && refused.Dropped > 0 && refused.Forwarded == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("front to api %+v, front to db %+v, of %d edges", let, refused, len(edges))
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// flowsOfAllNodes checks that the relay sends what the pods did just now, on each node, in the
// order of time.
func flowsOfAllNodes(ctx context.Context, t *testing.T, s *Sandbox) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+s.relaySocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	controllers.Eventually(t, time.Minute, func() string { // an agent records flows soon, not at once
		stream, err := observer.NewObserverClient(conn).GetFlows(ctx, &observer.GetFlowsRequest{Number: 2000, Whitelist: []*flow.FlowFilter{
			{SourcePod: []string{"default/front-"}}, {DestinationPod: []string{"default/db-"}},
		}})
		if err != nil {
			return err.Error()
		}
		var last time.Time
		nodes, verdicts := map[string]int{}, map[flow.Verdict]int{}
		for {
			res, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				break
			}
			if err != nil {
				return err.Error()
			}
			if res.GetFlow() == nil {
				continue
			}
			if at := res.GetTime().AsTime(); at.Before(last) {
				return fmt.Sprintf("a flow of %v after one of %v", at, last)
			} else {
				last = at
			}
			nodes[res.GetNodeName()]++
			verdicts[res.GetFlow().GetVerdict()]++
		}
		if nodes["default/n1"] == 0 || nodes["default/n2"] == 0 || len(nodes) != 2 || verdicts[flow.Verdict_DROPPED] == 0 || verdicts[flow.Verdict_FORWARDED] == 0 {
			return fmt.Sprintf("flows by node %v, by verdict %v", nodes, verdicts)
		}
		return ""
	})
}

// demoTalks checks that the demo makes traffic by itself: what the policies allow and what they
// refuse, among pods and with the outside.
func demoTalks(ctx context.Context, t *testing.T, s *Sandbox) {
	t.Helper()
	conn, err := grpc.NewClient("unix://"+s.relaySocket(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	stream, err := observer.NewObserverClient(conn).GetFlows(ctx, &observer.GetFlowsRequest{Follow: true, Since: timestamppb.Now()})
	if err != nil {
		t.Fatal(err)
	}
	wanted := map[string]bool{
		"front to api:8080 FORWARDED": true, "front to db:5432 DROPPED": true, "api to db:5432 FORWARDED": true, "api to world:80 DROPPED": true, "world to front:80 FORWARDED": true,
	}
	tier := func(e *flow.Endpoint) string { return strings.SplitN(cmp.Or(e.GetPodName(), worldName), "-", 2)[0] }
	for len(wanted) > 0 {
		res, err := stream.Recv()
		if err != nil {
			t.Fatalf("%v; not seen: %v", err, slices.Sorted(maps.Keys(wanted)))
		}
		f := res.GetFlow()
		delete(wanted, fmt.Sprintf("%s to %s:%d %v", tier(f.GetSource()), tier(f.GetDestination()), f.GetL4().GetTCP().GetDestinationPort(), f.GetVerdict()))
	}
}

func testCluster(t *testing.T, bin, mode string) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	cfg := testConfig(t)
	cfg.BinDir, cfg.RoutingMode, cfg.Demo = bin, mode, true
	s := testSandbox(t, cfg)
	before := machineState(t)
	defer func() {
		if t.Failed() {
			logs, _ := filepath.Glob(s.path("logs", "n*.log"))
			for _, l := range logs {
				t.Logf("%s:\n  %s", l, machine.LastLines(l, 30))
			}
		}
	}()

	if err := s.Up(ctx); err != nil {
		t.Fatal(err)
	}
	st, err := s.Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if !st.Healthy() || len(st.Nodes) != 2 || len(st.Pods) != 6 {
		t.Fatalf("status after up: %+v", st)
	}

	var again bytes.Buffer
	s2, err := New(cfg, &again, false)
	if err != nil {
		t.Fatal(err)
	}
	if err := s2.Up(ctx); err != nil || !strings.Contains(again.String(), "already running") {
		t.Fatalf("second up: %v: %s", err, &again)
	}

	m := reachAsExpected(t, ctx, s, "after up")
	// The oracle could be wrong together with the product; these are written by hand.
	wantReached(t, m, TCP, "world front-1", "world front-2", "front-1 api-1", "front-1 api-2", "front-2 api-1",
		"front-2 api-2", "api-1 db-1", "api-1 db-2")
	wantReached(t, m, ICMP, "front-1 api-1", "front-1 api-2", "front-2 api-1", "front-2 api-2")
	wantReached(t, m, UDP)

	// The commands, as people and scripts use them.
	if out := command(t, cfg, "exec", "front-1", "--", "bash", "-c", "exec 3<>/dev/tcp/api-2/8080; echo hello >&3; head -n 1 <&3"); out != "api-2 hello\n" {
		t.Errorf("exec in a pod: %q", out)
	}
	if out := command(t, cfg, "exec", "n1", "--", "sh", "-c", "ls /sys/class/net; ls /sys/fs/bpf; command -v hawser-agent; echo $CILIUM_SOCK"); !strings.Contains(out, "lxc") ||
		!strings.Contains(out, bin+"/hawser-agent") || !strings.Contains(out, s.socket("n1")) {
		t.Errorf("exec on a node: %q", out)
	}
	var parsed struct{ Unexpected, Reached int }
	if err := json.Unmarshal([]byte(command(t, cfg, "reach", "-o", "json", "--from", "world", "--protocol", "tcp")), &parsed); err != nil || parsed.Reached != 4 || parsed.Unexpected != 0 {
		t.Errorf("reach as JSON: %v, %+v", err, parsed)
	}
	if out := command(t, cfg, "status"); !strings.Contains(out, "front-1") || strings.Contains(out, "not running") {
		t.Errorf("status:\n%s", out)
	}

	flowsOfAllNodes(ctx, t, s)
	pageOfFlows(t, s)
	demoTalks(ctx, t, s)

	// A pod that carries the label of a tier is of that tier.
	if _, err := s.Run(ctx, PodSpec{Name: "guest", Labels: map[string]string{"tier": "front"}, Ports: []uint16{80}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Run(ctx, PodSpec{Name: "guest"}); err == nil {
		t.Error("a second pod of the same name was accepted")
	}
	m = reachAsExpected(t, ctx, s, "with a guest")
	if !reached(m, TCP, "guest", "api-1") || reached(m, TCP, "guest", "db-1") || !reached(m, TCP, "world", "guest") {
		t.Error("the guest is not treated as a front")
	}

	// The agents follow the policies. How soon is not promised, so the matrix is taken until it
	// fits.
	db := filepath.Join(s.PolicyDir(), "40-db.yaml")
	data, err := os.ReadFile(db)
	if err != nil {
		t.Fatal(err)
	}
	allow, _, found := strings.Cut(string(data), "  ingressDeny:")
	if !found {
		t.Fatal("the demo has no deny rule")
	}
	writePolicy(t, db, allow)
	reachEventually(t, ctx, s, func(m *Matrix) bool { return reached(m, TCP, "api-2", "db-1") })
	writePolicy(t, db, string(data))
	reachEventually(t, ctx, s, func(m *Matrix) bool { return !reached(m, TCP, "api-2", "db-1") })

	// The kernel goes on without the agents, and they take up where they were.
	for _, n := range st.Nodes {
		if err := unix.Kill(n.AgentPID, unix.SIGKILL); err != nil {
			t.Fatal(err)
		}
	}
	for _, n := range st.Nodes { // they are this process's children
		if _, err := unix.Wait4(n.AgentPID, nil, 0, nil); err != nil {
			t.Fatal(err)
		}
	}
	reachAsExpected(t, ctx, s, "without agents")
	if st, err := s.Status(ctx); err != nil || st.Healthy() {
		t.Errorf("status with dead agents: %v, %v", st, err)
	}
	if err := s.Up(ctx); err != nil {
		t.Fatal(err)
	}
	reachAsExpected(t, ctx, s, "with the agents back")

	if err := s.Remove(ctx, "guest"); err != nil {
		t.Fatal(err)
	}
	if err := s.Remove(ctx, "guest"); err == nil {
		t.Error("a pod that is not there was removed")
	}
	reachAsExpected(t, ctx, s, "without the guest")

	if err := s.Down(ctx); err != nil {
		t.Fatal(err)
	}
	if diff := gocmp.Diff(before, machineState(t)); diff != "" {
		t.Errorf("the machine before and after (-before +after):\n%s", diff)
	}
	commands, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range commands {
		if line, err := os.ReadFile(c); err == nil && bytes.Contains(line, []byte(cfg.Root)) {
			t.Errorf("a process is left: %q", line)
		}
	}
	if _, err := os.Stat(cfg.Root); err == nil {
		t.Errorf("%s is left", cfg.Root)
	}
}

// command runs a subcommand of the sandbox as a process of its own and returns its output.
func command(t *testing.T, cfg Config, args ...string) string {
	t.Helper()
	cmd := helperCommand(cfg, args...)
	out, err := cmd.Output()
	if err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			t.Errorf("%v: %v\n%s", args, err, exit.Stderr)
		} else {
			t.Errorf("%v: %v", args, err)
		}
	}
	return string(out)
}

func helperCommand(cfg Config, args ...string) *exec.Cmd {
	argv := append(slices.Clone(cfg.Self), args[0], "--name", cfg.Name, "--root-dir", cfg.Root, "--bin-dir", cfg.BinDir)
	argv = append(argv, args[1:]...)
	return exec.Command(argv[0], argv[1:]...)
}

func reachAsExpected(t *testing.T, ctx context.Context, s *Sandbox, when string) *Matrix {
	t.Helper()
	m, err := s.Reach(ctx, ReachOptions{})
	if err != nil {
		t.Fatalf("%s: %v", when, err)
	}
	if m.Unexpected > 0 {
		var out bytes.Buffer
		m.Print(&out, false)
		t.Fatalf("%s:%s", when, &out)
	}
	return m
}

// reachEventually probes until the matrix is as the policies say and ok agrees.
func reachEventually(t *testing.T, ctx context.Context, s *Sandbox, ok func(*Matrix) bool) {
	t.Helper()
	deadline := time.Now().Add(30 * time.Second)
	for {
		m, err := s.Reach(ctx, ReachOptions{Protocols: []Protocol{TCP}})
		if err != nil {
			t.Fatal(err)
		}
		if m.Unexpected == 0 && ok(m) {
			return
		}
		if time.Now().After(deadline) {
			var out bytes.Buffer
			m.Print(&out, false)
			t.Fatalf("the change of the policy does not show:%s", &out)
		}
	}
}

func reached(m *Matrix, proto Protocol, from, to string) bool {
	any := false
	for _, p := range m.Probes {
		if p.From == from && p.To == to && p.Protocol == proto {
			if !p.Reached {
				return false
			}
			any = true
		}
	}
	return any
}

// wantReached demands that exactly these "from to" pairs got through.
func wantReached(t *testing.T, m *Matrix, proto Protocol, pairs ...string) {
	t.Helper()
	var got []string
	for _, from := range m.Sources {
		for _, to := range m.Targets {
			if from != to && reached(m, proto, from, to) {
				got = append(got, from+" "+to)
			}
		}
	}
	slices.Sort(got)
	slices.Sort(pairs)
	if !slices.Equal(got, pairs) {
		t.Errorf("%s (-want +got):\n%s", proto, gocmp.Diff(pairs, got))
	}
}

// writePolicy replaces a policy file in one step, as the agents read it at any moment.
func writePolicy(t *testing.T, file, content string) {
	t.Helper()
	if err := os.WriteFile(file+".new", []byte(content), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Rename(file+".new", file); err != nil {
		t.Fatal(err)
	}
}

// TestUpFailsCleanly: what Up made before it failed is gone.
func TestUpFailsCleanly(t *testing.T) {
	testenv.RequireRoot(t)
	cfg := testConfig(t)
	cfg.BinDir = t.TempDir()
	before := machineState(t)
	var out bytes.Buffer
	s, err := New(cfg, &out, false)
	if err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	if err := s.Up(ctx); err == nil || !strings.Contains(err.Error(), "hawser-agent is not in") {
		t.Errorf("up without programs: %v", err)
	}
	for _, p := range []string{"hawser-agent", "hawser-cni"} {
		if err := os.WriteFile(filepath.Join(cfg.BinDir, p), []byte("#!/bin/sh\necho this agent is broken\nexit 1\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Up(ctx); err == nil || !strings.Contains(err.Error(), "this agent is broken") {
		t.Errorf("up with a broken agent: %v", err)
	}
	if diff := gocmp.Diff(before, machineState(t)); diff != "" {
		t.Errorf("the machine before and after (-before +after):\n%s", diff)
	}
	if _, err := os.Stat(cfg.Root); err == nil {
		t.Errorf("%s is left", cfg.Root)
	}
}

// TestDownAfterCrash kills Up in the middle and then removes what it had made.
func TestDownAfterCrash(t *testing.T) {
	testenv.RequireRoot(t)
	cfg := testConfig(t)
	cfg.BinDir = t.TempDir()
	for _, p := range []string{"hawser-agent", "hawser-cni"} {
		if err := os.WriteFile(filepath.Join(cfg.BinDir, p), []byte("#!/bin/sh\nexec sleep 3600\n"), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	s := testSandbox(t, cfg)
	before := machineState(t)
	up := helperCommand(cfg, "up", "--demo")
	up.Stdout, up.Stderr = t.Output(), t.Output()
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	var st *state
	for deadline := time.Now().Add(time.Minute); ; {
		var err error
		if st, err = loadState(s.stateFile()); err == nil && len(st.Nodes) == 2 && st.Nodes[1].Agent.PID > 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("up does not get to its agents: %v", err)
		}
		time.Sleep(5 * time.Millisecond)
	}
	if err := up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = up.Wait() // killed
	if err := s.Down(context.Background()); err != nil {
		t.Fatal(err)
	}
	for _, p := range []machine.Process{st.Etcd, st.World, st.Nodes[0].Agent, st.Nodes[1].Agent} {
		if p.Alive() {
			t.Errorf("process %d is left", p.PID)
		}
	}
	if diff := gocmp.Diff(before, machineState(t)); diff != "" {
		t.Errorf("the machine before and after (-before +after):\n%s", diff)
	}
	if _, err := os.Stat(cfg.Root); err == nil {
		t.Errorf("%s is left", cfg.Root)
	}
}
