package policypreview

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
)

// serve serves on a socket until the test ends, and returns a client.
func (w *world) serve(s *Server) policypb.PolicyClient {
	w.t.Helper()
	path := filepath.Join(w.t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		w.t.Fatal(err)
	}
	srv := grpc.NewServer()
	policypb.RegisterPolicyServer(srv, s)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	w.t.Cleanup(func() { srv.Stop(); <-done })
	// Small windows: what a client does not read stays with the server.
	conn, err := grpc.NewClient("unix://"+path, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithStaticStreamWindowSize(64<<10), grpc.WithStaticConnWindowSize(1<<20))
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { conn.Close() })
	return policypb.NewPolicyClient(conn)
}

// ask returns the answer to a preview through a client.
func ask(ctx context.Context, c policypb.PolicyClient, req *policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
	stream, err := c.Preview(ctx, req)
	if err != nil {
		return nil, err
	}
	var pieces []*policypb.PreviewResponse
	for {
		p, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return joined(pieces), nil
		}
		if err != nil {
			return nil, err
		}
		pieces = append(pieces, p)
	}
}

func document(text string) *policypb.PreviewRequest {
	return &policypb.PreviewRequest{Documents: []*policypb.Document{{Name: "x.yaml", Content: []byte(text)}}}
}

const denyAll = "apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: a}\nspec: {podSelector: {}}\n"

func TestGarbageIsRefusedByName(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 2)), 4)
	c := w.serve(w.server())
	twice := document(denyAll)
	twice.Documents = append(twice.Documents, &policypb.Document{Name: "y.yaml", Content: []byte(denyAll)})
	for name, row := range map[string]struct {
		req  *policypb.PreviewRequest
		want string
	}{
		"nothing":   {&policypb.PreviewRequest{}, "there is no policy"},
		"bytes":     {document("\x00\xff\xfe"), "x.yaml: line 1"},
		"no policy": {document("\n\napiVersion: v1\nkind: Secret\n"), `x.yaml: line 3: "Secret"`},
		"field":     {document(strings.Replace(denyAll, "podSelector", "podSelectors", 1)), "x.yaml: line 1: spec.podSelectors"},
		"bomb":      {document("a: &a [x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c]\ne: [*d,*d,*d,*d,*d,*d,*d,*d]\n"), "x.yaml: line 1"},
		"huge":      {document(strings.Repeat("# a comment\n", MaxDocuments/10)), "bytes together"},
		"many":      {&policypb.PreviewRequest{Documents: make([]*policypb.Document, maxTexts+1)}, "too many"},
		"twice":     {twice, "is in x.yaml too"},
		"unknown":   {&policypb.PreviewRequest{Delete: []*policypb.PolicyName{{Namespace: "a", Name: "b"}}}, `no policy "a/b" in force`},
	} {
		for i := range row.req.Documents {
			if row.req.Documents[i] == nil {
				row.req.Documents[i] = &policypb.Document{}
			}
		}
		_, err := ask(t.Context(), c, row.req)
		if status.Code(err) != codes.InvalidArgument || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %.300v, want %q", name, err, row.want)
		}
	}
	if _, err := ask(t.Context(), c, document(denyAll)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// A thousand workloads, each with a policy of its own, are compared in seconds and within bounds.
func TestThousandWorkloads(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 3)), 1000)
	w.fillEach()
	for i := range 4000 {
		w.record(w.podEnd(w.pods[i%len(w.pods)]), w.podEnd(w.pods[(i*7+1)%len(w.pods)]), datapath.ProtoTCP, uint16(80+i%2))
	}
	var before, now runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	began := time.Now()
	m := w.matrix(&policypb.MatrixRequest{Parties: maxParties})
	took := time.Since(began)
	runtime.GC()
	runtime.ReadMemStats(&now)
	if n := len(m.GetParties()); n < 1000 || m.GetPartiesLeftOut() != 0 {
		t.Errorf("%d parties, %d left out", n, m.GetPartiesLeftOut())
	}
	t.Logf("matrix of %d: %v, %d accesses, %d KiB kept", len(m.GetParties()), took, len(m.GetAccesses()), (int64(now.HeapAlloc)-int64(before.HeapAlloc))>>10)
	if kept := int64(now.HeapAlloc) - int64(before.HeapAlloc); kept > 64<<20 {
		t.Errorf("an answer takes %d MiB", kept>>20)
	}
	if few := w.matrix(&policypb.MatrixRequest{Parties: 50, Namespaces: []string{"a"}}); len(few.GetParties()) != 50 || few.GetPartiesLeftOut() == 0 {
		t.Errorf("%d parties of 50, %d left out", len(few.GetParties()), few.GetPartiesLeftOut())
	}
	began = time.Now()
	res := w.preview(&policypb.PreviewRequest{Documents: []*policypb.Document{{Name: "deny.yaml", Content: []byte(denyAll)}}, Connections: 10, Pairs: 10})
	t.Logf("preview: %v, %v", time.Since(began), res.GetSummary())
	sum := res.GetSummary()
	if len(res.GetPairs()) != 10 || sum.GetPairsClosed() <= 10 || sum.GetPairsLeftOut()+10 != sum.GetPairsClosed() {
		t.Errorf("%d pairs are reported; summary %v", len(res.GetPairs()), sum)
	}
	if len(res.GetConnections()) != 10 || sum.GetConnectionsLeftOut()+10 != sum.GetRefused() {
		t.Errorf("%d connections are reported; summary %v", len(res.GetConnections()), sum)
	}
}

// fillEach gives every tenth pod a policy of its own.
func (w *world) fillEach() {
	for i, p := range w.pods {
		if i%10 != 0 {
			continue
		}
		l, _ := p.set.Get("num")
		ns, _ := p.set.Get("io.kubernetes.pod.namespace")
		text := fmt.Sprintf("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: p%d, namespace: %s}\nspec: {endpointSelector: {matchLabels: {num: %q}}, ingress: [{fromEndpoints: [{matchLabels: {app: x}}], toPorts: [{ports: [{port: %q}]}]}]}\n",
			i, ns.Value, l.Value, fmt.Sprint(80+i%7))
		docs, err := newChanges(document(text), nil)
		if err != nil {
			w.t.Fatal(err)
		}
		for _, ch := range docs.rules {
			if err := w.engine.SetRules(ch.Owner, ch.Rules); err != nil {
				w.t.Fatal(err)
			}
		}
	}
}

// Whoever asks while another preview is computed is asked to retry; one whose client is gone
// ends, and gives the place free.
func TestOnePreviewAtATime(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 4)), 4)
	s := w.server()
	c := w.serve(s)
	w.mu.Lock() // the live engine is in use: a preview waits
	ctx, gone := context.WithCancel(t.Context())
	first := make(chan error, 1)
	go func() {
		_, err := ask(ctx, c, document(denyAll))
		first <- err
	}()
	for deadline := time.Now().Add(time.Minute); len(s.previewing) == 0 && time.Now().Before(deadline); {
		time.Sleep(time.Millisecond)
	}
	if _, err := ask(t.Context(), c, document(denyAll)); status.Code(err) != codes.ResourceExhausted {
		t.Errorf("the second one: %v", err)
	}
	gone()
	if err := <-first; status.Code(err) != codes.Canceled {
		t.Errorf("the first one: %v", err)
	}
	w.mu.Unlock()
	var err error
	for deadline := time.Now().Add(time.Minute); time.Now().Before(deadline); time.Sleep(10 * time.Millisecond) {
		if _, err = ask(t.Context(), c, document(denyAll)); err == nil {
			return
		}
	}
	t.Fatalf("afterwards: %v", err)
}

// Clients that read nothing are disconnected, and meanwhile the live engine is not locked.
func TestClientsThatStopReading(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 5)), 600)
	s, err := New(Config{Agent: w, Record: w.ring, Node: "c1/n1", Stall: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	c := w.serve(s)
	for range answers {
		if _, err := c.Matrix(t.Context(), &policypb.MatrixRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	held := false
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		w.View(func(*policy.Engine) {})
		held = held || len(s.sending) == answers
		if held && len(s.sending) == 0 {
			break
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d clients that read nothing are still served; all were: %v", len(s.sending), held)
		}
	}
	if _, err := ask(t.Context(), c, document(denyAll)); err != nil {
		t.Errorf("afterwards: %v", err)
	}
}

// Previews see one state of the policies each, whatever changes meanwhile, and change none.
func TestPreviewWhilePoliciesChange(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 6)), 20)
	w.fill(3, 40)
	c := w.serve(w.server())
	ctx, stop := context.WithCancel(t.Context())
	var changing sync.WaitGroup
	changing.Go(func() {
		parsed, err := newChanges(document(denyAll), nil)
		if err != nil {
			t.Error(err)
			return
		}
		for on := true; ctx.Err() == nil; on = !on {
			rules := parsed.rules[0].Rules
			if !on {
				rules = nil
			}
			w.View(func(e *policy.Engine) {
				if err := e.SetRules(parsed.rules[0].Owner, rules); err != nil {
					t.Error(err)
				}
				e.Flush()
			})
		}
	})
	for range 20 {
		res, err := ask(ctx, c, document(denyAll))
		if err != nil {
			t.Error(err)
			break
		}
		// Either it is in force, so that nothing changes, or not.
		if res.GetChanges()[0].GetAction() == policypb.ChangeAction_UNCHANGED && len(res.GetConnections())+len(res.GetPairs()) > 0 {
			t.Errorf("nothing is changed, and reported: %v", res)
		}
	}
	stop()
	changing.Wait()
	w.View(func(e *policy.Engine) {
		if n := len(e.Owners()); n > 4 {
			t.Errorf("the live engine has the rules of %d policies", n)
		}
	})
}

// An agent that has not received everything yet does not answer as if there were nothing.
func TestNoAnswersBeforeEverythingIsSynced(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 9)), 4)
	w.unsynced = true
	c := w.serve(w.server())
	_, preview := ask(t.Context(), c, document(denyAll))
	_, explain := c.Explain(t.Context(), &policypb.ExplainRequest{Flow: flowBetween(w.podEnd(w.pods[0]), w.podEnd(w.pods[1]), datapath.ProtoTCP, 80)})
	stream, matrix := c.Matrix(t.Context(), &policypb.MatrixRequest{})
	if matrix == nil {
		_, matrix = stream.Recv()
	}
	for what, err := range map[string]error{"preview": preview, "explain": explain, "matrix": matrix} {
		if status.Code(err) != codes.Unavailable || !strings.Contains(err.Error(), "not received") {
			t.Errorf("%s: %v", what, err)
		}
	}
}

// A policy that selects by a label that identities do not have is not reported to select no pod.
func TestLabelsThatDoNotCount(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 10)), 4)
	keys := labels.KeysOf("app")
	w.policyLabels = &keys
	c := w.serve(w.server())
	for name, row := range map[string]struct{ spec, want string }{
		"none":    {"podSelector: {}", ""},
		"counts":  {"podSelector: {matchLabels: {app: x}}", ""},
		"subject": {"podSelector: {matchLabels: {tier: f, app: x}}", "select by tier, and"},
		"peer":    {"podSelector: {}, ingress: [{from: [{podSelector: {matchExpressions: [{key: tier, operator: DoesNotExist}]}}]}]", "select by tier, and"},
		"port":    {"podSelector: {}, egress: [{ports: [{port: web}]}]", "all labels"},
	} {
		_, err := ask(t.Context(), c, document(strings.Replace(denyAll, "podSelector: {}", row.spec, 1)))
		want := codes.OK
		if row.want != "" {
			want = codes.FailedPrecondition
		}
		if status.Code(err) != want || !strings.Contains(fmt.Sprint(err), row.want) {
			t.Errorf("%s: %v, want %q", name, err, row.want)
		}
	}
}

// Policies that put the prefixes of others out of force, or in force again, have no preview: it
// would be about other rules.
func TestSharesOfPrefixes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 10)), 4)
	c := w.serve(w.server())
	for _, tt := range []struct {
		beyond, back []policy.Owner
		code         codes.Code
		want         string
	}{
		{nil, nil, codes.OK, ""},
		{[]policy.Owner{"k8s/CiliumNetworkPolicy/shop/large"}, nil, codes.FailedPrecondition, "prefixes of CiliumNetworkPolicy shop/large would allow nothing"},
		{nil, []policy.Owner{"k8s/NetworkPolicy/shop/a", "k8s/NetworkPolicy/shop/b"}, codes.FailedPrecondition, "prefixes of NetworkPolicy shop/a, NetworkPolicy shop/b would count again"},
	} {
		w.beyond, w.back = tt.beyond, tt.back
		if _, err := ask(t.Context(), c, document(denyAll)); status.Code(err) != tt.code || !strings.Contains(fmt.Sprint(err), tt.want) {
			t.Errorf("%v, want %v, %q", err, tt.code, tt.want)
		}
	}
}

// manyPorts is a policy of everybody with as many ports of certain peers: 40 in each entry.
func manyPorts(entries int, protocol string) string {
	var b strings.Builder
	b.WriteString("{apiVersion: cilium.io/v2, kind: CiliumClusterwideNetworkPolicy, metadata: {name: many}, spec: {endpointSelector: {}, ingress: [")
	for i := range entries {
		b.WriteString("{fromEndpoints: [{}], toPorts: [{ports: [")
		for k := range 40 {
			fmt.Fprintf(&b, "{port: '%d'%s},", 1+2*(i*40+k), protocol)
		}
		b.WriteString("]}]},")
	}
	b.WriteString("]}}\n")
	return b.String()
}

// peak runs f and returns by how much the heap was larger meanwhile, as far as is seen.
func peak(f func()) int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	before, most := m.HeapAlloc, m.HeapAlloc
	done := make(chan struct{})
	go func() { defer close(done); f() }()
	for {
		select {
		case <-done:
			return int64(most) - int64(before)
		case <-time.After(10 * time.Millisecond):
			runtime.ReadMemStats(&m)
			most = max(most, m.HeapAlloc)
		}
	}
}

// One document takes neither the memory nor the time of all agents: what would is refused, what
// would not is answered, and of both the place is free when the client is gone.
func TestDocumentsOfManyEntries(t *testing.T) {
	w := newWorld(t, rand.New(rand.NewPCG(1, 11)), 1000)
	s := w.server()
	c := w.serve(s)
	selectors := "apiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: x}\nspec: {endpointSelector: {}, ingress: [{fromEndpoints: ["
	fits := ""
	values := selectors + "{matchExpressions: [{key: num, operator: NotIn, values: ["
	prefixes := strings.Replace(selectors, "fromEndpoints", "fromCIDR", 1)
	for i := range 5000 {
		if i == 200 {
			fits = selectors + "]}]}\n"
		}
		if i < 4000 {
			selectors += fmt.Sprintf("{matchExpressions: [{key: n%d, operator: DoesNotExist}]},", i)
		}
		values += fmt.Sprintf("'%d',", i)
		prefixes += fmt.Sprintf("10.1.%d.%d/32,", i/256, i%256)
	}
	// Each endpoint has a rule set of its own, with many ports of all peers and one of one of them.
	var split strings.Builder
	split.WriteString(manyPorts(20, ", protocol: TCP"))
	split.WriteString("---\n{apiVersion: cilium.io/v2, kind: CiliumClusterwideNetworkPolicy, metadata: {name: split}, specs: [")
	for i := range 300 {
		fmt.Fprintf(&split, "{endpointSelector: {matchLabels: {num: '%d'}}, ingress: [{fromEndpoints: [{matchLabels: {num: '%d'}}], toPorts: [{ports: [{port: '%d', protocol: TCP}]}]}]},", i, i+1, 40000+2*i)
	}
	split.WriteString("]}\n")
	for name, row := range map[string]struct{ text, want string }{
		"ports":     {manyPorts(380, ""), "45600 ports"},
		"peers":     {manyPorts(100, ", protocol: TCP"), ""},
		"fit":       {fits, ""},
		"selectors": {selectors + "]}]}\n", "4000 selectors"},
		"values":    {values + "]}]}]}]}\n", "5000 selectors"},
		"prefixes":  {prefixes + "]}]}\n", "5000 selectors"},
		"rule sets": {split.String(), ""},
		"ranges":    {strings.ReplaceAll(manyPorts(60, ""), "'},", "', endPort: 65534},"), "ports and ranges"},
	} {
		if len(row.text) > MaxDocuments {
			t.Fatalf("%s: %d bytes", name, len(row.text))
		}
		began := time.Now()
		var err error
		grew := peak(func() { _, err = ask(t.Context(), c, document(row.text)) })
		t.Logf("%s: %d bytes, %v, %d MiB: %.150v", name, len(row.text), time.Since(began), grew>>20, err)
		want := codes.InvalidArgument
		if row.want == "" {
			want = codes.OK
		}
		if status.Code(err) != want || !strings.Contains(fmt.Sprint(err), row.want) {
			t.Errorf("%s: %.300v, want %q", name, err, row.want)
		}
		if grew > 512<<20 {
			t.Errorf("%s: it took %d MiB", name, grew>>20)
		}
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan struct{})
		go func() { defer close(gone); _, _ = ask(ctx, c, document(row.text)) }()
		for deadline := time.Now().Add(100 * time.Millisecond); len(s.previewing) == 0 && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
		cancel()
		<-gone
		began = time.Now()
		for len(s.previewing) > 0 && time.Since(began) < time.Minute {
			time.Sleep(time.Millisecond)
		}
		t.Logf("%s: free after %v", name, time.Since(began))
		if took := time.Since(began); took > 30*time.Second { // a fraction of a second where nothing else runs
			t.Errorf("%s: the place is free after %v", name, took)
		}
	}
	s.timeout = time.Millisecond
	if _, err := ask(t.Context(), c, document(denyAll)); status.Code(err) != codes.DeadlineExceeded || !strings.Contains(err.Error(), "fewer policies") {
		t.Errorf("one that takes too long: %v", err)
	}
}
