package ui_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp/kb"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/ui"
)

// evaluator is a server that says who may reach whom of the parties of TestPage, in pieces: front
// may reach db, and so may an archive that was never seen, at a port; no other may. By addresses
// of their own kinds of documents it refuses, fails, or answers with more than it was asked for.
type evaluator struct {
	policy.UnimplementedPolicyServer
}

func (evaluator) Matrix(req *policy.MatrixRequest, stream policy.Policy_MatrixServer) error {
	switch {
	case slices.Contains(req.GetNamespaces(), "slow"):
		<-stream.Context().Done()
		return stream.Context().Err()
	case slices.Contains(req.GetNamespaces(), "broken"):
		return status.Error(codes.Internal, "no engine")
	}
	party := func(ns, name string, identity uint32) *policy.Party {
		return &policy.Party{Kind: policy.PartyKind_PARTY_PODS, Namespace: ns, Name: name, Identity: identity}
	}
	side := func(names ...string) *policy.AccessSide {
		out := &policy.AccessSide{Enforced: true}
		for _, n := range names {
			out.Policies = append(out.Policies, &policy.PolicyName{Kind: "CiliumNetworkPolicy", Namespace: "shop", Name: n})
		}
		return out
	}
	if err := stream.Send(&policy.MatrixResponse{NodeName: "prod/n1", Revision: 7, Time: timestamppb.Now(), PartiesLeftOut: uint32(len(req.GetNamespaces())), Parties: []*policy.Party{
		// The labels of a pod need not say the name of its workload: the identity does.
		party("shop", "by-label", 1001), party("shop", "db", 1002), party("shop", "archive", 1009), {Kind: policy.PartyKind_PARTY_ENTITY, Name: "world", Identity: 2},
		party("stats", "collector", 1004), {Kind: policy.PartyKind_PARTY_PODS, Namespace: "shop", Name: "db", Identity: 70001, Cluster: "far"},
	}}); err != nil {
		return err
	}
	return stream.Send(&policy.MatrixResponse{
		Accesses: []*policy.Access{{}, {Verdict: policy.Verdict_ALLOWED, Ingress: side("db-clients")},
			{Verdict: policy.Verdict_PARTIAL, Ports: []*policy.PortRange{{Protocol: "TCP", First: 5432, Last: 5432}}, Ingress: side("db-archive")},
			{Verdict: policy.Verdict_DENIED, Ingress: side("db-clients")}, {Verdict: policy.Verdict_ALLOWED}},
		Rows: []*policy.MatrixRow{
			{Source: 0, Accesses: []uint32{4, 1, 4, 4, 4}}, {Source: 1, Accesses: []uint32{4, 1, 4, 4, 4}}, {Source: 2, Accesses: []uint32{4, 2, 4, 4, 4}},
			{Source: 3, Accesses: []uint32{4, 3, 3, 0, 3}}, {Source: 4, Accesses: []uint32{4, 3, 4, 4, 4}},
		},
	})
}

// suggested is what would let a connection pass.
const suggested = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata:
  name: db-from-collector-tcp-5432
  namespace: shop
spec:
  endpointSelector: {matchLabels: {app: db}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: collector, io.kubernetes.pod.namespace: stats}}]
    toPorts: [{ports: [{port: "5432", protocol: TCP}]}]
`

func (evaluator) Explain(_ context.Context, req *policy.ExplainRequest) (*policy.ExplainResponse, error) {
	f := req.GetFlow()
	if f.GetNodeName() != "prod/n1" || f.GetIP().GetDestination() == "" || f.GetSource().GetIdentity() == 0 || f.GetL4().GetTCP() == nil || f.GetIsReply() == nil {
		return nil, status.Error(codes.InvalidArgument, "the flow says too little")
	}
	name := &policy.PolicyName{Kind: "CiliumNetworkPolicy", Namespace: "shop", Name: "db-clients"}
	side := &policy.ExplainSide{Verdict: policy.Verdict_DENIED, Enforced: true, Reason: "enforced by CiliumNetworkPolicy shop/db-clients spec",
		EnforcedBy: []*policy.Rule{{Policy: name, Path: "spec", Document: "db.yaml", Line: 5}},
		Steps:      []*policy.ExplainStep{{Rule: &policy.Rule{Policy: name, Path: "spec.ingress[0]", Document: "db.yaml", Line: 8}, Reason: "allow app=front, but <b>the peer</b> does not match"}}}
	if f.GetSource().GetIdentity() == 1004 {
		side.Steps[0].Reason = "allow app=front, but the peer does not match"
	}
	out := &policy.ExplainResponse{Verdict: policy.Verdict_DENIED, Egress: &policy.ExplainSide{Verdict: policy.Verdict_ALLOWED}, Ingress: side,
		Suggestions: []*policy.Suggestion{{Text: "let shop/db receive from stats/collector on 5432/TCP", Document: suggested}}}
	if f.GetSource().GetIdentity() == 2 {
		side.Steps = append(side.Steps, &policy.ExplainStep{Rule: &policy.Rule{Policy: name, Path: "spec.ingressDeny[0]"}, Effect: policy.Effect_DENY, Decides: true, Reason: "deny world on ANY"})
		out.Suggestions = []*policy.Suggestion{{Text: "change or remove CiliumNetworkPolicy shop/db-clients spec.ingressDeny[0]: what it denies no other rule can allow"}}
	}
	return out, nil
}

func (evaluator) Preview(req *policy.PreviewRequest, stream policy.Policy_PreviewServer) error {
	content := string(req.GetDocuments()[0].GetContent())
	party := func(name string) *policy.Party { return &policy.Party{Namespace: "shop", Name: name} }
	connection := func(to string, after policy.Verdict) *policy.Connection {
		reason := "no rule allows it"
		if after == policy.Verdict_ALLOWED {
			reason = ""
		}
		return &policy.Connection{Source: party("front"), Destination: party(to), Protocol: "TCP", Port: 5432, After: after, Count: 40, LastSeen: timestamppb.Now(),
			Decision: &policy.Decision{Reason: reason, Rules: []*policy.Rule{{Policy: &policy.PolicyName{Namespace: "shop", Name: "strict"}, Path: "spec"}}}}
	}
	switch {
	case strings.Contains(content, "no policy"):
		return status.Error(codes.InvalidArgument, "what if, line 1: <b>no policy</b>")
	case strings.Contains(content, "busy"):
		return status.Error(codes.ResourceExhausted, "another is being evaluated")
	case strings.Contains(content, "lies"):
		return stream.Send(&policy.PreviewResponse{Pairs: []*policy.PairChange{{Source: 1 << 31}}})
	case strings.Contains(content, "huge"):
		for range 5 {
			res := &policy.PreviewResponse{Parties: []*policy.Party{party("front")}}
			for range 1000 {
				res.Connections = append(res.Connections, connection("db", policy.Verdict_DENIED))
				res.Pairs = append(res.Pairs, &policy.PairChange{})
				res.Warnings = append(res.Warnings, "w")
			}
			if err := stream.Send(res); err != nil {
				return err
			}
		}
		return nil
	}
	if strings.Contains(content, "bounded") {
		res := &policy.PreviewResponse{Summary: &policy.PreviewSummary{Refused: 3, Allowed: 2, Unchanged: 7, ChangedAtMost: !strings.Contains(content, "once"), PairsOpened: 4, PartiesLeftOut: 1,
			ConnectionsLeftOut: 6, EventsLost: uint64(strings.Count(content, "lost"))}}
		if strings.Contains(content, "gone") {
			res.Problems = []*policy.NodeProblem{{NodeName: "n2", Problem: "it does not answer"}}
		}
		return stream.Send(res)
	}
	other, warnings := "<i>cache</i>", []string{"the selector matches <b>no pod</b>"}
	if strings.Contains(content, "name: strict") {
		other, warnings = "cache", nil
	}
	if err := stream.Send(&policy.PreviewResponse{
		NodeName: "prod/n1", Changes: []*policy.PolicyChange{{Policy: &policy.PolicyName{Kind: "CiliumNetworkPolicy", Namespace: "shop", Name: "strict"}, Action: policy.ChangeAction_ADDED, Line: 1}},
		Connections: []*policy.Connection{connection("db", policy.Verdict_DENIED), connection(other, policy.Verdict_ALLOWED)}, Warnings: warnings,
	}); err != nil {
		return err
	}
	return stream.Send(&policy.PreviewResponse{
		Parties: []*policy.Party{party("front"), party("db")},
		Pairs: []*policy.PairChange{{Source: 0, Destination: 1, Before: &policy.Access{Verdict: policy.Verdict_ALLOWED}, After: &policy.Access{Verdict: policy.Verdict_DENIED},
			Closed: []*policy.PortRange{{Protocol: "ANY", Last: 65535}}}},
		Summary: &policy.PreviewSummary{Flows: 90, Refused: 1, Allowed: 1, Unchanged: 4, PairsClosed: 1, FlowsNotEvaluated: 2},
	})
}

// TestReach: what policies allow is listed by workloads, as flows name them.
func TestReach(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	s.add(endpoint("shop", "front", 1001), endpoint("shop", "db", 1002), 5432, true, "")
	far := endpoint("shop", "db", 70001)
	far.ClusterName = "far"
	s.add(endpoint("shop", "front", 1001), far, 80, true, "")
	s.eventually("the flows", func() bool { return len(s.graph.Snapshot(time.Time{}, time.Time{}).Edges) == 2 })
	r := fetch[ui.Reach](t, s.client(), s.http.URL+"/api/reach")
	at := func(id string) int { return slices.IndexFunc(r.Parties, func(p ui.Party) bool { return p.ID == id }) }
	for pair, want := range map[[2]string]string{
		{"shop/front", "shop/db"}: "allowed", {"shop/archive", "shop/db"}: "partial", {":world", "shop/db"}: "denied", {":world", ":world"}: "", {"shop/db", "far/shop/db"}: "", {"stats/collector", "shop/db"}: "denied",
	} {
		from, to := at(pair[0]), at(pair[1])
		if from < 0 || to < 0 || r.Accesses[r.Rows[from][to]].Verdict != want {
			t.Fatalf("%v is not %q: %+v", pair, want, r)
		}
	}
	// An identity of another cluster is no other party once flows have shown it.
	if p := r.Parties[at("far/shop/db")]; p.Name != "db of far" || !slices.Equal(p.Identities, []uint32{70001}) || !slices.Equal(r.Parties[at("shop/db")].Identities, []uint32{1002}) {
		t.Errorf("db of two clusters: %+v", r.Parties)
	}
	if a := r.Accesses[r.Rows[at("shop/archive")][at("shop/db")]]; !slices.Equal(a.Ports, []string{"TCP 5432"}) || !slices.Equal(a.Ingress.Policies, []string{"shop/db-archive"}) {
		t.Errorf("archive to db: %+v", a)
	}
}

// TestReachUnknown: an answer that says why nothing is known has no less lists than others.
func TestReachUnknown(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	if r := fetch[ui.Reach](t, s.client(), s.http.URL+"/api/reach?ns=broken"); r.Error != "no engine" || r.Parties == nil || r.Accesses == nil || r.Rows == nil {
		t.Errorf("what policies allow is not known: %+v", r)
	}
}

// TestPreviewRequests: a document is evaluated for who has the token and sends it as one, however
// large it is and whatever the server answers.
func TestPreviewRequests(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	send := func(c *http.Client, method, kind, host, body string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.http.URL+"/api/preview", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", kind)
		if host != "" {
			req.Host = host
		}
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		text, err := io.ReadAll(io.LimitReader(res.Body, 4<<20))
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(text)
	}
	const yaml = "application/yaml"
	for _, c := range []struct {
		what, method, kind, host, body string
		client                         *http.Client
		want                           int
		says                           string
	}{
		{"a policy", "POST", yaml, "", "kind: x", s.client(), 200, `"refused":1`},
		{"without a token", "POST", yaml, "", "kind: x", http.DefaultClient, 401, "token"},
		{"of another name", "POST", yaml, "evil.example", "kind: x", s.client(), 421, "no name"},
		{"as a form", "POST", "application/x-www-form-urlencoded", "", "kind: x", s.client(), 415, yaml},
		{"as text", "POST", "text/plain", "", "kind: x", s.client(), 415, yaml},
		{"by GET", "GET", yaml, "", "", s.client(), 405, "POST"},
		{"by PUT", "PUT", yaml, "", "kind: x", s.client(), 405, "GET"},
		{"too large", "POST", yaml, "", strings.Repeat("#", 401<<10), s.client(), 413, "KiB"},
		{"no policy", "POST", yaml, "", "no policy", s.client(), 200, `"error":"what if, line 1`},
		{"of a server that lies", "POST", yaml, "", "lies", s.client(), 200, `"error":"the server's answer refers to entries that it does not contain`},
		{"while another is evaluated", "POST", yaml, "", "busy", s.client(), 200, `"error":"another`},
	} {
		if code, text := send(c.client, c.method, c.kind, c.host, c.body); code != c.want || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %.200s, want %d and %q", c.what, code, text, c.want, c.says)
		}
	}
	if code, text := send(s.client(), "POST", yaml, "", "huge"); code != 200 || len(text) > 1<<20 || bytes.Count([]byte(text), []byte(`"refused":true`)) != 600 {
		t.Errorf("more than was asked for: %d, %d bytes", code, len(text))
	}
}

// TestExplain: for a denied flow the page shows which rules deny it, where they are and what would
// allow it; for one that no policy denied it shows nothing.
func TestExplain(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	stats, db, world := endpoint("stats", "collector", 1004), endpoint("shop", "db", 1002), &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}
	s.add(stats, db, 5432, false, "")
	s.add(world, db, 5432, false, "db-clients")
	s.add(stats, db, 9100, true, "")
	s.eventually("the flows", func() bool { return len(s.graph.Snapshot(time.Time{}, time.Time{}).Edges) == 3 })
	explain := func(edge string) ui.Explanation {
		return fetch[ui.Explanation](t, s.client(), s.http.URL+"/api/explain?edge="+url.QueryEscape(edge))
	}
	got := explain("stats/collector>shop/db>TCP/5432")
	want := ui.Explanation{Refused: true, Sides: []ui.ExplainedSide{{
		Whose: "receiver", Rules: []string{"shop/db-clients spec (db.yaml:5)"}, Reason: "enforced by CiliumNetworkPolicy shop/db-clients spec",
		Near: []string{"shop/db-clients spec.ingress[0] (db.yaml:8): allow app=front, but the peer does not match"},
	}}, Suggestions: []ui.Suggestion{{Text: "let shop/db receive from stats/collector on 5432/TCP", Document: suggested}}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("no rule allows it (-want +got):\n%s", diff)
	}
	if got := explain(":world>shop/db>TCP/5432"); len(got.Sides) != 1 || !got.Sides[0].Denied || !slices.Equal(got.Sides[0].Rules, []string{"shop/db-clients spec.ingressDeny[0]"}) || got.Suggestions[0].Document != "" {
		t.Errorf("a rule denies it: %+v", got)
	}
	for _, edge := range []string{"stats/collector>shop/db>TCP/9100", "unknown>unknown>TCP/1", ""} {
		if got := explain(edge); got.Error == "" || got.Refused {
			t.Errorf("%q: %+v", edge, got)
		}
	}
}

// deficiencies are matrices of how colours look without one kind of cones, of linear RGB (Viénot,
// Brettel and Mollon 1999; the last is theirs of 1997, for one plane).
const colours = `(() => {
	const css = getComputedStyle(document.documentElement);
	const lin = v => { v /= 255; return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; };
	const rgb = name => { const h = css.getPropertyValue("--" + name).trim().slice(1), x = h.length === 3 ? [...h].map(c => c + c).join("") : h;
		return [0, 2, 4].map(i => lin(parseInt(x.slice(i, i + 2), 16))); };
	const light = c => 0.2126 * c[0] + 0.7152 * c[1] + 0.0722 * c[2];
	const contrast = (a, b) => { const [x, y] = [light(a), light(b)]; return (Math.max(x, y) + 0.05) / (Math.min(x, y) + 0.05); };
	const kinds = { normal: [[1,0,0],[0,1,0],[0,0,1]], protanopia: [[0.11238,0.88762,0],[0.11238,0.88762,0],[0.00401,-0.00401,1]],
		deuteranopia: [[0.29275,0.70725,0],[0.29275,0.70725,0],[-0.02234,0.02234,1]], tritanopia: [[1,0.14461,-0.14461],[0,0.85924,0.14076],[0,0.85924,0.14076]] };
	const bad = [], cube = v => Math.cbrt(Math.max(0, v));
	for (const [kind, m] of Object.entries(kinds)) {
		const see = name => m.map(r => r[0] * rgb(name)[0] + r[1] * rgb(name)[1] + r[2] * rgb(name)[2]);
		// Oklab: about 0.02 is a difference that is just seen.
		const lab = c => { const l = cube(0.4122 * c[0] + 0.5363 * c[1] + 0.0514 * c[2]), m = cube(0.2119 * c[0] + 0.6807 * c[1] + 0.1074 * c[2]), s = cube(0.0883 * c[0] + 0.2817 * c[1] + 0.63 * c[2]);
			return [0.2105 * l + 0.7936 * m - 0.0041 * s, 1.978 * l - 2.4286 * m + 0.4506 * s, 0.0259 * l + 0.7828 * m - 0.8087 * s]; };
		const far = (a, b) => Math.hypot(...lab(see(a)).map((v, i) => v - lab(see(b))[i]));
		if (far("forwarded", "dropped") < 0.1) bad.push(kind + ": let in and refused " + far("forwarded", "dropped").toFixed(3));
		for (const c of ["forwarded", "dropped", "audited", "faint", "text"]) for (const back of ["back", "raised"])
			if (contrast(see(c), see(back)) < 4.5) bad.push(kind + ": " + c + " on " + back + " " + contrast(see(c), see(back)).toFixed(2));
	}
	return bad.join("; ");
})()`

// TestPolicyPage: the matrix of who may reach whom beside who does, and what other policies would
// change, by mouse and by keyboard; colours can be told apart with every kind of colour vision.
func TestPolicyPage(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	front, db, stats := endpoint("shop", "front", 1001), endpoint("shop", "db", 1002), endpoint("stats", "collector", 1004)
	for range 5 {
		s.add(front, db, 5432, false, "")
		s.add(stats, db, 9100, true, "scrape")
	}
	b := newBrowser(t, s)
	b.size(1280, 800)
	b.run("the page", navigate(s.url))
	b.until("all connections", `document.body.dataset.edges === "2"`)
	b.key("2")
	cell := func(from, to string) string {
		return fmt.Sprintf("document.querySelector(`#matrix button[title^=\"%s → %s:\"]`)", from, to)
	}
	b.until("refused, and allowed", cell("shop/front", "shop/db")+`?.title.endsWith(": refused, policies allow it")`)
	b.until("let in, and refused", cell("stats/collector", "shop/db")+`?.title.endsWith(": let in, policies refuse it")`)
	b.until("never seen", cell("shop/archive", "shop/db")+`?.textContent === "◌" && `+cell("world", "shop/db")+`.textContent === "·"`)
	b.until("what differs is framed", `document.querySelectorAll("#matrix td.differs").length === 2`)
	b.until("drops first", `document.querySelector("#matrix tbody th").textContent === "shop/front" && document.querySelector("#matrix thead th:nth-child(2)").textContent === "shop/db"`)
	b.picture("may")
	b.key("m")
	b.until("differences", `document.querySelector("#matrix [data-mode=differences]").getAttribute("aria-pressed") === "true" && location.hash.includes("matrix=differences") && !`+cell("world", "shop/db")+` && !!`+cell("shop/front", "shop/db"))
	b.key("m")
	b.until("all again", `!location.hash.includes("matrix=")`)
	b.run("one cell", focus(`#matrix td button`))
	b.key(kb.ArrowDown)
	b.until("the next cell by its arrow", `document.activeElement.dataset.pair?.endsWith(">shop/db") && document.activeElement !== document.querySelector("#matrix td button")`)
	b.run("a pair", click(`#matrix button[data-pair="shop/archive>shop/db"]`))
	b.until("why, of a pair that was never seen", `["shop/archive → shop/db", "Not seen", "allow some of it", "TCP 5432", "shop/db-archive"].every(x => document.getElementById("panel").textContent.includes(x))`)
	b.until("the pair in the address", `location.hash.includes("selected=p%3Ashop%2Farchive")`)
	b.key(kb.Escape)

	b.run("a refused pair", click(`#matrix button[data-pair="shop/front>shop/db"]`))
	b.until("why it is refused", `["Why TCP 5432 is refused", "receiver: no rule allows it", "shop/db-clients spec (db.yaml:5)", "but <b>the peer</b> does not match", "Let shop/db receive from"].every(x => document.getElementById("panel").textContent.includes(x))`)
	b.run("its suggestion", click("#panel .try"))
	b.until("is evaluated", `document.getElementById("document").value.includes("db-from-collector") && !document.getElementById("whatif").hidden && !!document.querySelector("#preview .verdict")`)
	// What the user typed stays, however many suggestions are tried beside it; they do not pile up.
	b.run("what the user types", evaluate(`document.getElementById("document").value = "typed"; document.activeElement.blur(); location.hash = "#view=matrix"`))
	for range 2 {
		b.until("the pair again", `!!document.querySelector("#matrix button[data-pair='shop/front>shop/db']")`)
		b.run("the pair", click(`#matrix button[data-pair="shop/front>shop/db"]`))
		b.until("its suggestion", `!!document.querySelector("#panel .try")`)
		b.run("its suggestion", click("#panel .try"))
		b.until("beside what was typed", `/^typed\n---\n[^]*db-from-collector/.test(document.getElementById("document").value) && document.getElementById("document").value.split("---").length === 2`)
		b.run("back", evaluate(`document.activeElement.blur(); location.hash = "#view=matrix"`))
	}
	b.run("another page", evaluate(`document.getElementById("document").value = ""; document.activeElement.blur()`))
	b.key("2")
	b.key("5")
	b.until("the field", `document.activeElement.id === "document"`)
	b.key("2")
	b.until("keys are text there", `document.activeElement.value.includes("2") && !document.getElementById("whatif").hidden`)
	b.run("evaluate", click("#evaluate"))
	b.until("what would be refused", `document.querySelector("#preview .verdict")?.textContent.includes("1 of the kinds") && document.querySelectorAll("#preview .connections tbody tr").length === 2 &&
		document.querySelector("#preview .connections tbody tr").textContent.includes("✕ refusedshop/frontshop/dbTCP 543240")`)
	b.until("names as text", `document.getElementById("preview").textContent.includes("shop/<i>cache</i>") && document.getElementById("preview").textContent.includes("matches <b>no pod</b>")`)
	b.until("pairs", `document.querySelector("#preview .pairs tbody")?.textContent === "shop/frontshop/dballoweddenied− everything"`)
	b.picture("whatif")
	b.run("an error", evaluate(`document.getElementById("document").value = "no policy"`))
	b.run("evaluate", click("#evaluate"))
	b.until("why", `document.querySelector("#preview [role=alert]")?.textContent === "what if, line 1: <b>no policy</b>"`)
	b.run("numbers that are bounded", evaluate(`document.getElementById("document").value = "bounded"`))
	b.run("evaluate", click("#evaluate"))
	b.until("at most, at least", `["At most 3 of the kinds", "at most 2 that were refused", "7 stay", "at least 4 would be opened", "and at most 6 more"].every(x => document.getElementById("preview").textContent.includes(x))`)
	b.run("and some are missing", evaluate(`document.getElementById("document").value = "bounded, lost"`))
	b.run("evaluate", click("#evaluate"))
	b.until("about", `["About 3 of the kinds", "at least 7 stay", "1 events were lost", "and about 6 more"].every(x => document.getElementById("preview").textContent.includes(x))`)
	b.run("a node is missing", evaluate(`document.getElementById("document").value = "bounded once, gone"`))
	b.run("evaluate", click("#evaluate"))
	b.until("at least", `["At least 3 of the kinds", "and at least 6 more"].every(x => document.getElementById("preview").textContent.includes(x))`)
	// A server that does not answer about what may be does not hold up what is seen.
	b.run("a matrix that never comes", evaluate(`location.hash = "#view=matrix&ns=shop&ns=slow"`))
	b.until("what was seen", `document.body.dataset.edges === "2" && !document.getElementById("matrix").hidden`)
	for port := range uint32(3) {
		s.add(front, db, 7000+port, true, "")
		b.until("what comes", fmt.Sprintf(`document.body.dataset.edges === "%d"`, 3+port))
	}
	b.until("told apart by all, in light", colours+` === ""`)
	b.dark()
	b.until("told apart by all, in dark", colours+` === ""`)
	b.picture("whatif-dark")
	b.run("what if", evaluate(`location.hash = "#view=whatif"`))
	b.until("what if", `!document.getElementById("whatif").hidden`)
	b.print()
	b.until("as much as there is, in dark on light", `document.getElementById("preview").clientHeight > 100 && document.getElementById("preview").getBoundingClientRect().bottom <= document.documentElement.scrollHeight && getComputedStyle(document.body).backgroundColor === "rgb(255, 255, 255)" && document.getElementById("timeline").clientHeight === 0`)
	b.picture("whatif-print")
	b.run("the matrix", evaluate(`location.hash = "#view=matrix"`))
	b.until("the matrix", `!!`+cell("shop/front", "shop/db"))
	b.picture("matrix-print")
	b.run("the map", evaluate(`location.hash = "#view=map&selected=p:shop/front>shop/db"`))
	b.until("the map", `!document.getElementById("panel").hidden && getComputedStyle(document.getElementById("panel")).overflow === "visible"`)
	b.picture("map-print")
	b.dark()
	b.size(800, 600)
	b.run("the matrix", evaluate(`location.hash = "#view=matrix"`))
	b.until("the matrix", `!!`+cell("shop/front", "shop/db"))
	b.picture("may-800")
	b.key("1")
	b.picture("map-800")
}

const strict = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: strict, namespace: shop}
spec:
  endpointSelector: {matchLabels: {app: db}}
  ingress:
  - fromEndpoints: [{matchLabels: {app: archive}}]
`

// TestManual takes the pictures of the manual, which `make pictures` keeps, and goes the way that
// the manual describes.
func TestManual(t *testing.T) {
	t.Parallel()
	s := newStand(t)
	front, db, cache := endpoint("shop", "front", 1001), endpoint("shop", "db", 1002), endpoint("shop", "cache", 1003)
	stats, dns := endpoint("stats", "collector", 1004), endpoint("kube-system", "coredns", 1005)
	world := &flow.Endpoint{Identity: 2, Labels: []string{"reserved:world"}}
	for range 5 {
		s.add(world, front, 443, true, "front")
		s.add(front, db, 5432, true, "db-clients")
		s.add(front, cache, 6379, true, "cache")
		s.add(front, dns, 53, true, "dns")
		s.add(stats, db, 9100, true, "scrape")
		s.add(stats, db, 5432, false, "")
		s.add(world, db, 5432, false, "db-clients")
	}
	s.changed("db-clients", time.Now().Add(-4*time.Minute))
	b := newBrowser(t, s)
	b.size(1280, 720)
	b.run("the page", navigate(s.url))
	b.until("all connections", `document.body.dataset.edges === "7"`)
	b.until("a change", `document.querySelectorAll("#marks button").length === 1`)
	b.run("one that is refused", click(`#list .row[data-edge^="stats/collector"]`))
	b.until("who refused", `["isolated by", "shop/db-clients spec (db.yaml:5)", "Let shop/db receive from"].every(x => document.getElementById("panel").textContent.includes(x)) && document.querySelectorAll("#panel .last tbody tr").length === 5`)
	b.picture("observe-connection")
	b.key(kb.Escape)
	b.picture("observe-map")
	b.key("2")
	b.until("who may", `!!document.querySelector("#matrix button[data-pair='shop/archive>shop/db']")`)
	b.picture("observe-matrix")
	b.key("5")
	b.run("a policy", evaluate(fmt.Sprintf(`document.getElementById("document").value = %q`, strict)))
	b.run("evaluate", click("#evaluate"))
	b.until("what would be", `document.querySelectorAll("#preview .connections tbody tr").length === 2`)
	b.picture("observe-whatif")
}
