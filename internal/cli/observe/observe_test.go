package observe

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/clusterhealth"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/node"
	rows "github.com/hawser-net/hawser/internal/table"
)

// agentTime is when the flows of tests begin.
var agentTime = time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)

// run runs hawser observe, with the server of flows that the environment names.
func run(ctx context.Context, stdout, stderr io.Writer, server string, args ...string) int {
	a := &command.App{Getenv: func(key string) string {
		if key == envFlowServer {
			return server
		}
		return ""
	}}
	return command.Run(ctx, command.Root(a, stdout, stderr, "", "", Command(a)), append([]string{"observe"}, args...))
}

// follow runs hawser observe --follow. read waits until it has written a text; interrupt interrupts
// it, which is how it ends well.
func follow(t *testing.T, server string, args ...string) (read func(want string), interrupt func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cancel(); r.Close() })
	code := make(chan int, 1)
	go func() {
		defer w.Close()
		code <- run(ctx, w, os.Stderr, server, append([]string{"--follow"}, args...)...)
	}()
	read = func(want string) {
		t.Helper()
		buf := make([]byte, 4096)
		var got strings.Builder
		for !strings.Contains(got.String(), want) {
			n, err := r.Read(buf)
			if err != nil {
				t.Fatalf("%q, then %v", got.String(), err)
			}
			got.Write(buf[:n])
		}
	}
	return read, func() {
		t.Helper()
		cancel()
		go func() { _, _ = io.Copy(io.Discard, r) }() // what else is written
		if c := <-code; c != exitcode.OK {
			t.Errorf("code %d", c)
		}
	}
}

// serveFlows serves three flows and a loss on a unix socket, and returns what they are kept in.
func serveFlows(t *testing.T) (record *flows.Record, path string) {
	t.Helper()
	record, err := flows.NewRecord(16, agentTime)
	if err != nil {
		t.Fatal(err)
	}
	srv, err := flowserver.New(flowserver.Config{
		Record: record, Nodes: rows.New[node.Key](node.Node.Equal), Self: node.Key{Cluster: "prod", Name: "n1"},
		Services: func(s grpc.ServiceRegistrar) {
			health.RegisterNodeHealthServer(s, &clusterhealth.Service{Self: "prod/n1", Statuses: func() ([]clusterhealth.Status, time.Duration) {
				well := clusterhealth.Connectivity{Probed: agentTime, Since: agentTime, Latency: 1234 * time.Microsecond}
				cut := clusterhealth.Connectivity{Probed: agentTime, Since: agentTime, Err: "no \x1banswer"}
				at := netip.MustParseAddr("192.0.2.2")
				return []clusterhealth.Status{
					{Name: "prod/n2", Node: []clusterhealth.Path{{Addr: at, ICMP: well, HTTP: well}}, Endpoint: []clusterhealth.Path{{Addr: at.Next(), ICMP: cut, HTTP: well}}},
					{Name: "prod/n3", Node: []clusterhealth.Path{{Addr: at, ICMP: well, HTTP: well}}}, {Name: "prod/n4"},
				}, time.Minute
			}})
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	dir, err := os.MkdirTemp("", "hawser-cli") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path = filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l, nil) }()
	t.Cleanup(func() { cancel(); <-done })
	tcp := func(from, to uint32, flags *flow.TCPFlags) *flow.Layer4 {
		return &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: from, DestinationPort: to, Flags: flags}}}
	}
	front := &flow.Endpoint{ID: 7, Identity: 16384, Namespace: "shop", PodName: "front-1", Labels: []string{"k8s:app=front"}}
	db := &flow.Endpoint{Identity: 16385, Namespace: "shop", PodName: "db-0", ClusterName: "other", Labels: []string{"k8s:app=db"}}
	world := &flow.Endpoint{Identity: 9, Labels: []string{"reserved:world-ipv4"}} // as where there are both families
	add := func(second int, f *flow.Flow) {
		f.Time, f.NodeName, f.Type = timestamppb.New(agentTime.Add(time.Duration(second)*time.Second)), "prod/n1", flow.FlowType_L3_L4
		record.Add(f, netip.MustParseAddr(f.IP.Source), netip.MustParseAddr(f.IP.Destination), time.Now())
	}
	add(1, &flow.Flow{
		Uuid: "u1", Verdict: flow.Verdict_FORWARDED, Source: front, Destination: db, L4: tcp(40000, 5432, &flow.TCPFlags{SYN: true}),
		IP: &flow.IP{Source: "10.0.1.7", Destination: "10.0.2.9", IpVersion: flow.IPVersion_IPv4}, EventType: &flow.CiliumEventType{Type: flows.EventVerdict},
		TrafficDirection: flow.TrafficDirection_EGRESS, IsReply: wrapperspb.Bool(false), EgressAllowedBy: []*flow.Policy{{Namespace: "shop", Name: "front"}},
	})
	record.Lose(flow.LostEventSource_PERF_EVENT_RING_BUFFER, 42, agentTime.Add(2*time.Second))
	add(3, &flow.Flow{
		Uuid: "u2", Verdict: flow.Verdict_DROPPED, DropReason: 133, DropReasonDesc: flow.DropReason_POLICY_DENIED, Source: world, Destination: db,
		L4: tcp(50000, 5432, &flow.TCPFlags{SYN: true}), IP: &flow.IP{Source: "192.0.2.1", Destination: "10.0.2.9", IpVersion: flow.IPVersion_IPv4},
		EventType: &flow.CiliumEventType{Type: flows.EventDrop, SubType: 133}, TrafficDirection: flow.TrafficDirection_INGRESS, Interface: &flow.NetworkInterface{Index: 2, Name: "eth0"},
	})
	add(4, &flow.Flow{
		Uuid: "u3", Verdict: flow.Verdict_FORWARDED, Source: db, Destination: front, L4: tcp(5432, 40000, &flow.TCPFlags{SYN: true, ACK: true}),
		IP: &flow.IP{Source: "fd00::9", Destination: "fd00::7", IpVersion: flow.IPVersion_IPv6}, EventType: &flow.CiliumEventType{Type: flows.EventTrace},
		TraceObservationPoint: flow.TraceObservationPoint_TO_ENDPOINT, TrafficDirection: flow.TrafficDirection_EGRESS, IsReply: wrapperspb.Bool(true),
	})
	return record, path
}

func TestObserve(t *testing.T) {
	_, path := serveFlows(t)
	stamp := func(second int) string {
		return agentTime.Add(time.Duration(second) * time.Second).Local().Format("Jan _2 15:04:05.000")
	}
	lines := map[string]string{
		"u1":   stamp(1) + ": shop/front-1:40000 (ID:16384) -> shop/db-0:5432 (ID:16385) policy-verdict egress FORWARDED (TCP SYN) by shop/front",
		"lost": stamp(2) + ": lost 42 events: more came than the kernel could store",
		"u2":   stamp(3) + ": 192.0.2.1:50000 (world-ipv4) <> shop/db-0:5432 (ID:16385) drop DROPPED POLICY_DENIED (TCP SYN)",
		"u3":   stamp(4) + ": shop/front-1:40000 (ID:16384) <- shop/db-0:5432 (ID:16385) to-endpoint FORWARDED (TCP SYN,ACK)",
	}
	ask := func(args ...string) (code int, out, errs string) {
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		code = run(ctx, &stdout, &stderr, path, args...)
		return code, stdout.String(), stderr.String()
	}
	for _, row := range []struct{ args, want string }{
		{"", "u1 lost u2 u3"},
		{"--last 1", "u3"},
		{"--first 1", "u1"},
		{"--all --verdict DROPPED", "lost u2"},
		{"--verdict dropped,forwarded --last 2", "u2 u3"},
		{"--type drop", "lost u2"}, {"--type policy-verdict --type trace --all", "u1 lost u3"},
		{"--pod shop/front", "u1 lost u3"}, {"--from-pod shop/front", "u1 lost"}, {"--to-pod shop/front-1", "lost u3"},
		{"-n shop --pod db-0 --from-ip 192.0.2.0/24", "lost u2"}, {"--to-namespace shop --from-identity world", "lost u2"},
		{"--from-identity world-ipv4", "lost u2"}, {"--from-identity world-ipv6", "lost"}, {"--from-identity 2", "lost"},
		{"--namespace default", "lost"}, {"-l app=front,!old --to-port 5432", "u1 lost"}, {"--from-label app=db", "lost u3"},
		{"--to-port 5432 --all", "u1 lost u2"}, {"--port 50000", "lost u2"}, {"--identity 16384", "u1 lost u3"},
		{"--protocol udp", "lost"}, {"--tcp-flags SYN,ack", "lost u3"}, {"-6", "lost u3"}, {"--reply", "lost u3"}, {"--no-reply", "u1 lost u2"}, {"-n shop,other --pod shop/db-0 --to-port 40000", "lost u3"}, {"--traffic-direction ingress", "lost u2"},
		{"--drop-reason-desc auth-required,policy_denied", "lost u2"}, {"--interface eth0,eth1", "lost u2"}, {"--cluster other", "u1 lost u2 u3"}, {"--from-cluster other", "lost u3"}, {"--to-cluster prod", "lost"},
		{"--node-name prod/n* --last 1", "u3"}, {"--uuid u2", "lost u2"},
		{"--since 2026-03-01T12:30:02Z", "lost u2 u3"}, {"--since 2026-03-01T12:30:02Z --until 2026-03-01T12:30:03Z", "lost u2"},
		{"--follow --since 2026-03-01T12:30:02Z --until 2026-03-01T12:30:03Z", "lost u2"}, // it ends when that has passed
	} {
		code, out, errs := ask(strings.Fields(row.args)...)
		var want strings.Builder
		for _, name := range strings.Fields(row.want) {
			want.WriteString(lines[name] + "\n")
		}
		// A loss is shown wherever flows behind the first one that is wanted may be missing for it.
		if code != exitcode.OK || errs != "" || out != want.String() {
			t.Errorf("%s: code %d, %s\ngot\n%swant\n%s", row.args, code, errs, out, want.String())
		}
	}
	for _, row := range []struct {
		args string
		code int
		text string
	}{
		{"--verdict maybe", exitcode.Usage, "maybe"}, {"--type l7", exitcode.Usage, "l7"}, {"--drop-reason-desc bad-luck", exitcode.Usage, "bad-luck"}, {"--cluster a --to-cluster b", exitcode.Usage, "--to-cluster"}, {"--from-ip 10.0.0.0/99", exitcode.Usage, "source_ip"}, {"--tcp-flags XYZ", exitcode.Usage, "XYZ"},
		{"--since yesterday", exitcode.Usage, "yesterday"}, {"--pod a --from-pod b", exitcode.Usage, "--from-pod"}, {"--first 2 --last 3", exitcode.Usage, "last"}, {"-o yaml", exitcode.Usage, "yaml"},
		{"--namespace prod --pod dev/x", exitcode.Usage, "dev/x"}, {"--to-namespace prod --to-service dev/x", exitcode.Usage, "dev/x"},
		{"--follow -o table", exitcode.Usage, "table"}, {"--tcp-flags NS", exitcode.Usage, "NS"}, {"--protocol http", exitcode.Usage, "http"}, {"--node-name (.*)+x", exitcode.Usage, "node_name"}, {"--server nowhere", exitcode.Usage, "nowhere"},
		{"--server /nonexistent/socket", exitcode.Unreachable, "--enable-hubble"}, {"--tls", exitcode.Usage, "TLS"}, {"--identity unheard", exitcode.Usage, "unheard"}, {"one", exitcode.Usage, "one"},
	} {
		if code, _, errs := ask(strings.Fields(row.args)...); code != row.code || !strings.Contains(errs, row.text) {
			t.Errorf("%s: code %d, %s", row.args, code, errs)
		}
	}

	_, out, _ := ask("-o", "json", "--uuid", "u2", "--last", "1")
	var got struct {
		Flow struct {
			Verdict        string
			DropReasonDesc string `json:"drop_reason_desc"`
			Destination    struct {
				PodName string `json:"pod_name"`
			}
		}
		NodeName string `json:"node_name"`
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || got.Flow.Verdict != "DROPPED" || got.Flow.DropReasonDesc != "POLICY_DENIED" ||
		got.Flow.Destination.PodName != "db-0" || got.NodeName != "prod/n1" || strings.Count(out, "\n") != 1 {
		t.Errorf("JSON: %s (%v)", out, err)
	}
	if _, out, _ := ask("-o", "dict", "--last", "1", "--uuid", "u1"); !strings.Contains(out, "Policies:") || !strings.Contains(out, "shop/front") || !strings.Contains(out, "k8s:app=db") {
		t.Errorf("dict:\n%s", out)
	}
	if _, out, _ := ask("--print-node-name", "--last", "1"); out != strings.Replace(lines["u3"], ": ", " [prod/n1]: ", 1)+"\n" {
		t.Errorf("with the node: %s", out)
	}
	if code, out, errs := ask("nodes"); code != exitcode.OK || !strings.Contains(out, "prod/n1") || !strings.Contains(out, "connected") || !strings.Contains(out, "4/16") {
		t.Errorf("nodes: %d\n%s%s", code, out, errs)
	}
	if code, out, errs := ask("health"); code != exitcode.OK || strings.Contains(out, "\x1b") ||
		!regexp.MustCompile(`prod/n1 +1 of 3 +0 +1.23ms +1 not probed yet \(a round takes 1m0s\)\n\nFROM +TO +SINCE.*\n`+
			`prod/n1 +prod/n2 +`+agentTime.UTC().Format(time.RFC3339)+` +endpoint icmp 192\.0\.2\.3: no .*answer\n$`).MatchString(out) {
		t.Errorf("health: %d\n%s%s", code, out, errs)
	}
	if code, out, errs := ask("status"); code != exitcode.OK || !strings.Contains(out, "Flows:") || strings.Contains(out, "Nodes:") {
		t.Errorf("status: %d\n%s%s", code, out, errs)
	}
	if code, out, errs := ask("namespaces", "-o", "json"); code != exitcode.OK || !strings.Contains(out, `"shop"`) {
		t.Errorf("namespaces: %d\n%s%s", code, out, errs)
	}
	if code, _, errs := ask("nodes", "-o", "dict"); code != exitcode.Usage || !strings.Contains(errs, "dict") {
		t.Errorf("nodes in a format that there is not: %d, %s", code, errs)
	}
	if _, out, _ := ask("-o", "table"); !strings.HasPrefix(out, "TIME") || strings.Count(out, "\n") != 5 || !strings.Contains(out, "DROPPED POLICY_DENIED") {
		t.Errorf("table:\n%s", out)
	}
}

// TestObserveFollowsUntilInterrupted: what comes is shown when it comes, and being interrupted is
// how that ends well.
func TestObserveFollowsUntilInterrupted(t *testing.T) {
	record, path := serveFlows(t)
	read, interrupt := follow(t, "", "--server", "unix://"+path, "--last", "1")
	read("to-endpoint")
	record.Add(&flow.Flow{Time: timestamppb.Now(), NodeName: "prod/n1", Source: &flow.Endpoint{Namespace: "shop", PodName: "evil\x1b[31m"}}, netip.Addr{}, netip.Addr{}, time.Now())
	read(`shop/evil\x1b[31m`)
	interrupt()
}

// relayAnswers is a relay that answers with what it is given.
type relayAnswers struct {
	observer.UnimplementedObserverServer
	answers []*observer.GetFlowsResponse
	status  *observer.ServerStatusResponse
	nodes   []*observer.Node
	err     error
}

func (r relayAnswers) GetFlows(_ *observer.GetFlowsRequest, stream observer.Observer_GetFlowsServer) error {
	for _, res := range r.answers {
		if err := stream.Send(res); err != nil {
			return err
		}
	}
	return r.err
}

func (r relayAnswers) ServerStatus(context.Context, *observer.ServerStatusRequest) (*observer.ServerStatusResponse, error) {
	return r.status, r.err
}

func (r relayAnswers) GetNodes(context.Context, *observer.GetNodesRequest) (*observer.GetNodesResponse, error) {
	return &observer.GetNodesResponse{Nodes: r.nodes}, r.err
}

// TestErrorsOfServers: what a server says in an error does not change the terminal.
func TestErrorsOfServers(t *testing.T) {
	for _, code := range []codes.Code{codes.Internal, codes.InvalidArgument, codes.Unavailable} {
		path := filepath.Join(t.TempDir(), "s")
		l, err := net.Listen("unix", path)
		if err != nil {
			t.Fatal(err)
		}
		srv := grpc.NewServer(grpc.WaitForHandlers(true))
		observer.RegisterObserverServer(srv, relayAnswers{err: status.Error(code, "no\x1b[2J\u009b31m\u202e one\nline")})
		done := make(chan error, 1)
		go func() { done <- srv.Serve(l) }()
		t.Cleanup(func() { srv.Stop(); <-done })
		for _, args := range [][]string{{}, {"status"}} {
			var stdout, stderr bytes.Buffer
			if run(t.Context(), &stdout, &stderr, path, args...) == exitcode.OK {
				t.Errorf("%v, %v: success", code, args)
			}
			if want := `no\x1b[2J\u009b31m\u202e one\nline`; !strings.Contains(stderr.String(), want) {
				t.Errorf("%v, %v: %q, want %q", code, args, &stderr, want)
			}
		}
	}
}

// TestObserveShowsNodes: of a relay, every line says which node it is of, and nodes that cannot be
// asked are shown.
func TestObserveShowsNodes(t *testing.T) {
	dir, err := os.MkdirTemp("", "hawser-cli")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	path := filepath.Join(dir, "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	at := timestamppb.New(agentTime)
	state := func(s relay.NodeState, message string, names ...string) *observer.GetFlowsResponse {
		return &observer.GetFlowsResponse{Time: at, ResponseTypes: &observer.GetFlowsResponse_NodeStatus{
			NodeStatus: &relay.NodeStatusEvent{StateChange: s, NodeNames: names, Message: message}}}
	}
	srv := grpc.NewServer(grpc.WaitForHandlers(true))
	observer.RegisterObserverServer(srv, relayAnswers{
		answers: []*observer.GetFlowsResponse{
			state(relay.NodeState_NODE_CONNECTED, "", "prod/n1", "prod/n2"),
			state(relay.NodeState_NODE_UNAVAILABLE, "no answer\x1b[31m", "prod/n3"),
			{Time: at, NodeName: "prod/n2", ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: &flow.Flow{
				Time: at, NodeName: "prod/n2", Source: &flow.Endpoint{Namespace: "shop", PodName: "a"}, Destination: &flow.Endpoint{Namespace: "shop", PodName: "b"}}}},
			state(relay.NodeState_NODE_CONNECTED, "", "prod/n3"),
		},
		nodes:  []*observer.Node{{Name: "prod/n1"}, {Name: "prod/n2"}},
		status: &observer.ServerStatusResponse{NumConnectedNodes: wrapperspb.UInt32(2), NumUnavailableNodes: wrapperspb.UInt32(1), UnavailableNodes: []string{"prod/n3"}},
	})
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	ask := func(args ...string) string {
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if code := run(ctx, &stdout, &stderr, "", args...); code != exitcode.OK {
			t.Errorf("%v: %d, %s", args, code, &stderr)
		}
		return stdout.String()
	}
	when := agentTime.Local().Format("Jan _2 15:04:05.000")
	want := when + `: NODE_UNAVAILABLE: prod/n3 no answer\x1b[31m` + "\n" +
		when + " [prod/n2]: shop/a (ID:0) <> shop/b (ID:0) event 0 VERDICT_UNKNOWN\n" +
		when + ": NODE_CONNECTED: prod/n3\n"
	if got := ask("--server", path); got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if got := ask("--server", path, "-o", "table"); !strings.Contains(got, "prod/n2") || !strings.Contains(got, "NODE_UNAVAILABLE") {
		t.Errorf("table:\n%s", got)
	}
	var completions, stderr bytes.Buffer
	a := &command.App{Getenv: func(string) string { return "" }}
	code := command.Run(t.Context(), command.Root(a, &completions, &stderr, "", "", Command(a)), []string{"__complete", "observe", "--server", path, "--node-name", "prod/"})
	if want := "prod/n1\nprod/n2\n:4\n"; code != exitcode.OK || completions.String() != want {
		t.Errorf("completions of nodes: %d, %q, want %q", code, &completions, want)
	}
	if got := ask("status", "--server", path); !strings.Contains(got, "2 connected, 1 unavailable") || !strings.Contains(got, "at least 0 of 0") || !strings.Contains(got, "prod/n3") {
		t.Errorf("status:\n%s", got)
	}
}
