package ui_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/timestamppb"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/health"
	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/table"
	"github.com/hawser-net/hawser/internal/ui"
)

// stand is a server of flows, as an agent has it, and the page of it.
type stand struct {
	t      testing.TB
	record *flows.Record
	socket string
	end    func()
	graph  *ui.Graph
	status func() ui.Status
	http   *httptest.Server
	url    string // with the token
	added  atomic.Int64
}

// services adds what a relay sends beside flows: of three nodes, of which two do not reach each
// other, and one says nothing.
func (s *stand) services(r grpc.ServiceRegistrar) {
	health.RegisterNodeHealthServer(r, nodesHealth{})
	policy.RegisterPolicyServer(r, evaluator{})
}

type nodesHealth struct {
	health.UnimplementedNodeHealthServer
}

func (nodesHealth) Get(context.Context, *health.GetRequest) (*health.GetResponse, error) {
	since := timestamppb.New(time.Now().Add(-10 * time.Minute))
	cut := func(from, to string) *health.Failure {
		return &health.Failure{From: from, To: to, Since: since, Ways: []*health.Way{{Kind: "icmp", Address: "192.0.2.9", Problem: "<b>no answer</b>", Since: since}}}
	}
	view := func(name string, bad uint32) *health.NodeView {
		return &health.NodeView{Name: name, Reachable: 3 - bad, Unreachable: bad, UnreachedBy: bad, Latency: durationpb.New(420 * time.Microsecond)}
	}
	return &health.GetResponse{
		Nodes:    []*health.NodeView{view("prod/n1", 1), view("prod/n2", 1), {Name: "prod/n3", Problem: "no answer to the relay"}},
		Failures: []*health.Failure{cut("prod/n1", "prod/n2"), cut("prod/n2", "prod/n1")},
		Slowest:  []*health.Latency{{From: "prod/n1", To: "prod/n3", Latency: durationpb.New(12345 * time.Microsecond)}},
	}, nil
}

func newStand(t testing.TB) *stand {
	t.Helper()
	dir, err := os.MkdirTemp("", "hawser-ui") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	s := &stand{t: t, socket: filepath.Join(dir, "s")}
	if s.record, err = flows.NewRecord(65535, time.Now()); err != nil {
		t.Fatal(err)
	}
	s.serve()
	t.Cleanup(func() { s.end() })
	s.page()
	return s
}

// newPageOf returns the page of a server that is there, without a record of its own.
func newPageOf(t testing.TB, socket string) *stand {
	t.Helper()
	s := &stand{t: t, socket: socket}
	s.page()
	return s
}

// page starts the page of the server at the socket.
func (s *stand) page() {
	s.t.Helper()
	t := s.t
	conn, err := grpc.NewClient("unix://"+s.socket, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	follower := &ui.Follower{Client: observer.NewObserverClient(conn), Nodes: health.NewNodeHealthClient(conn), Policy: policy.NewPolicyClient(conn), Graph: ui.NewGraph(ui.DefaultLimits())}
	page := ui.NewServer(follower, "hawser.example")
	s.graph, s.status, s.http = follower.Graph, follower.Status, httptest.NewServer(page)
	s.url = page.URL(s.http.Listener.Addr())
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); follower.Run(ctx) }()
	t.Cleanup(func() { s.http.Close(); cancel(); <-done })
}

// serve starts the server of flows.
func (s *stand) serve() {
	s.t.Helper()
	srv, err := flowserver.New(flowserver.Config{Services: s.services, Record: s.record, Nodes: table.New[node.Key](node.Node.Equal), Self: node.Key{Cluster: "prod", Name: "n1"}})
	if err != nil {
		s.t.Fatal(err)
	}
	l, err := net.Listen("unix", s.socket)
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- srv.Serve(ctx, l, nil) }()
	s.end = func() { cancel(); <-done; done <- nil }
}

func endpoint(namespace, workload string, identity uint32) *flow.Endpoint {
	return &flow.Endpoint{
		ID: identity, Namespace: namespace, PodName: workload + "-0", Identity: identity, Labels: []string{"k8s:app=" + workload},
		Workloads: []*flow.Workload{{Name: workload, Kind: "Deployment"}},
	}
}

// add records that policy has evaluated a connection; a policy has a name or is "".
func (s *stand) add(src, dst *flow.Endpoint, port uint32, allowed bool, policy string) {
	n := s.added.Add(1)
	f := &flow.Flow{
		Time: timestamppb.Now(), NodeName: "prod/n1", Source: src, Destination: dst, Type: flow.FlowType_L3_L4, IsReply: wrapperspb.Bool(false),
		IP:        &flow.IP{Source: "10.0.0.1", Destination: "10.0.0.2", IpVersion: flow.IPVersion_IPv4},
		L4:        &flow.Layer4{Protocol: &flow.Layer4_TCP{TCP: &flow.TCP{SourcePort: 1024 + uint32(n%60000), DestinationPort: port}}},
		EventType: &flow.CiliumEventType{Type: 5}, TrafficDirection: flow.TrafficDirection_INGRESS, Verdict: flow.Verdict_FORWARDED,
	}
	var by []*flow.Policy
	if policy != "" {
		by = []*flow.Policy{{Name: policy, Namespace: dst.GetNamespace()}}
	}
	if allowed {
		f.IngressAllowedBy = by
	} else {
		f.Verdict, f.DropReasonDesc, f.DropReason, f.IngressDeniedBy = flow.Verdict_DROPPED, flow.DropReason_POLICY_DENIED, 133, by
	}
	s.record.Add(f, netip.MustParseAddr(f.IP.Source), netip.MustParseAddr(f.IP.Destination), time.Now())
}

// eventually waits until something holds.
func (s *stand) eventually(what string, holds func() bool) {
	s.t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !holds(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(deadline) {
			s.t.Fatalf("not within a minute: %s", what)
		}
	}
}

// client sends the token that the page's address has.
func (s *stand) client() *http.Client {
	s.t.Helper()
	_, token, ok := strings.Cut(s.url, "#token=")
	if !ok {
		s.t.Fatalf("no token in %s", s.url)
	}
	return &http.Client{Transport: withToken(token)}
}

type withToken string

func (t withToken) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+string(t))
	return http.DefaultTransport.RoundTrip(r)
}

func fetch[T any](t testing.TB, c *http.Client, url string) (out T) {
	t.Helper()
	res, err := c.Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v %s", url, res.Status, err, body)
	}
	if err := json.Unmarshal(body, &out); err != nil {
		t.Fatalf("%s: %v", url, err)
	}
	return out
}

// TestServerShowsFlows: what a node records is in the answers, also what it recorded before; a
// server that goes and comes back is followed again, and nothing is counted twice.
func TestServerShowsFlows(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	front, db := endpoint("shop", "front", 1001), endpoint("shop", "db", 1002)
	s.add(front, db, 5432, true, "db")
	s.add(front, db, 22, false, "no-ssh")
	c := s.client()
	forwarded := func() (n uint64) {
		for _, e := range fetch[ui.Snapshot](t, c, s.http.URL+"/api/map").Edges {
			n += e.Forwarded
		}
		return n
	}
	s.eventually("one connection", func() bool { return forwarded() == 1 })
	s.eventually("the node", func() bool {
		st := fetch[ui.Status](t, c, s.http.URL+"/api/status")
		return st.Connected && len(st.Nodes) == 1 && st.Nodes[0].Name == "prod/n1" && st.Nodes[0].State == "connected"
	})
	// One whose clock is ahead: later flows of others are not waited for until then.
	ahead := &flow.Flow{Time: timestamppb.New(time.Now().Add(time.Hour)), NodeName: "prod/n2", Source: front, Destination: db}
	s.record.Add(ahead, netip.Addr{}, netip.Addr{}, time.Now())
	s.end()
	s.eventually("the loss of the server", func() bool { return !s.status().Connected && s.status().Error != "" })
	s.add(front, db, 5432, true, "db")
	s.serve()
	s.eventually("what came meanwhile", func() bool { return forwarded() == 2 })
	s.add(front, db, 5432, true, "db")
	s.eventually("what came since", func() bool { return forwarded() == 3 })

	refused := fetch[[]ui.Flow](t, c, s.http.URL+"/api/flows?verdict=DROPPED&workload="+url.QueryEscape("shop/db"))
	if len(refused) != 1 || refused[0].Destination != "shop/db-0:22" || refused[0].Reason != "POLICY_DENIED" || refused[0].DeniedBy[0] != "shop/no-ssh" {
		t.Errorf("refused: %+v", refused)
	}
	both := url.Values{"edge": {refused[0].Edge, strings.Replace(refused[0].Edge, "/22", "/5432", 1)}}
	if of := fetch[[]ui.Flow](t, c, s.http.URL+"/api/flows?"+both.Encode()); len(of) != 4 || !slices.ContainsFunc(of, func(f ui.Flow) bool { return f.Edge == both["edge"][1] }) {
		t.Errorf("flows of two edges: %+v", of)
	}
	if all := fetch[[]ui.Flow](t, c, s.http.URL+"/api/flows?limit=2"); len(all) != 2 {
		t.Errorf("%d flows of two", len(all))
	}
}

// TestFrozenServerIsNoticed: a server that takes connections and answers nothing is not called
// connected, and one that has no flows is.
func TestFrozenServerIsNoticed(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.eventually("a server without flows", func() bool { return s.status().Connected })
	s.end()
	l, err := net.Listen("unix", s.socket) // and never accepts
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	s.eventually("one that is frozen", func() bool { return !s.status().Connected && s.status().Error != "" })
}

// TestServerRefuses: clients without the token, other methods, other names and bad parameters, each
// with a reason.
func TestServerRefuses(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	c := s.client()
	ask := func(c *http.Client, method, path, host string) (int, http.Header, string) {
		t.Helper()
		req, err := http.NewRequest(method, s.http.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if host != "" {
			req.Host = host
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		body, _ := io.ReadAll(res.Body)
		return res.StatusCode, res.Header, string(body)
	}
	for name, client := range map[string]*http.Client{
		"a client without a token": http.DefaultClient, "with another server's": newStand(t).client(), "with an empty one": {Transport: withToken("")},
	} {
		for _, path := range []string{"/api/map", "/api/flows", "/api/status", "/api/", "/api/map?token=x"} {
			if code, _, body := ask(client, "GET", path, ""); code != http.StatusUnauthorized || !strings.Contains(body, "token") {
				t.Errorf("%s gets %d at %s: %s", name, code, path, body)
			}
		}
	}
	for host, want := range map[string]int{
		"evil.example": http.StatusMisdirectedRequest, "evil.example:80": http.StatusMisdirectedRequest, "localhost.evil.example": http.StatusMisdirectedRequest,
		"localhost:1": http.StatusOK, "127.0.0.1": http.StatusOK, "[::1]:80": http.StatusOK, "Hawser.example": http.StatusOK,
	} {
		if code, _, body := ask(c, "GET", "/api/status", host); code != want {
			t.Errorf("by the name %s: %d %s", host, code, body)
		}
	}
	for _, method := range []string{"POST", "PUT", "DELETE", "OPTIONS"} {
		if code, _, _ := ask(c, method, "/api/map", ""); code != http.StatusMethodNotAllowed {
			t.Errorf("%s gets %d", method, code)
		}
	}
	for _, path := range []string{"/api/map?span=x", "/api/map?span=901", "/api/map?until=-1", "/api/map?until=99999999999999999999", "/api/flows?limit=0", "/api/flows?limit=501", "/api/flows?limit=x"} {
		if code, _, body := ask(c, "GET", path, ""); code != http.StatusBadRequest || !strings.Contains(body, "=") {
			t.Errorf("%s: %d %s", path, code, body)
		}
	}
	if !ui.Built() {
		t.Skip("the page is not built: make web")
	}
	code, h, body := ask(c, "GET", "/", "")
	if code != http.StatusOK || !strings.Contains(body, "app.js") {
		t.Fatalf("the page: %d %s (was it built? make web)", code, body)
	}
	for name, want := range map[string]string{
		"Content-Security-Policy": "default-src 'none'", "X-Content-Type-Options": "nosniff", "Referrer-Policy": "no-referrer", "Cache-Control": "no-store",
	} {
		if !strings.Contains(h.Get(name), want) {
			t.Errorf("%s: %q", name, h.Get(name))
		}
	}
	if code, _, _ := ask(c, "GET", "/../server.go", ""); code != http.StatusNotFound {
		t.Errorf("a file outside of the page: %d", code)
	}
}

// TestSetToken: a token that others have made counts instead of the page's own, unless it could be
// guessed.
func TestSetToken(t *testing.T) {
	t.Parallel()
	const token = "0123456789abcdef"
	s := ui.NewServer(&ui.Follower{Graph: ui.NewGraph(ui.DefaultLimits())}, "")
	for _, bad := range []string{"", token[1:], token + " ", token + "\n", "pässword-pässword"} {
		if s.SetToken(bad) == nil {
			t.Errorf("the token %q is taken", bad)
		}
	}
	if err := s.SetToken(token); err != nil {
		t.Fatal(err)
	}
	for given, want := range map[string]int{token: http.StatusOK, token[1:]: http.StatusUnauthorized, "": http.StatusUnauthorized} {
		r := httptest.NewRequest("GET", "http://localhost/api/map", nil)
		r.Header.Set("Authorization", "Bearer "+given)
		w := httptest.NewRecorder()
		s.ServeHTTP(w, r)
		if w.Code != want {
			t.Errorf("with the token %q: %d, want %d", given, w.Code, want)
		}
	}
}

func workloadName(i int) string { return fmt.Sprintf("work-%03d", i) }
