package policypreview

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	flowpb "github.com/hawser-net/hawser/api/flow"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policy/oracle"
	"github.com/hawser-net/hawser/internal/policydir"
)

func (w *world) server() *Server {
	w.t.Helper()
	s, err := New(Config{Agent: w, Record: w.ring, Node: "c1/n1"})
	if err != nil {
		w.t.Fatal(err)
	}
	return s
}

// preview returns the answer to a preview in one piece.
func (w *world) preview(req *policypb.PreviewRequest) *policypb.PreviewResponse {
	w.t.Helper()
	pieces, err := w.server().previewFor(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	return joined(pieces)
}

func joined(pieces []*policypb.PreviewResponse) *policypb.PreviewResponse {
	out := &policypb.PreviewResponse{}
	for _, p := range pieces {
		out.Changes = append(out.Changes, p.GetChanges()...)
		out.Warnings = append(out.Warnings, p.GetWarnings()...)
		out.Connections = append(out.Connections, p.GetConnections()...)
		out.Parties = append(out.Parties, p.GetParties()...)
		out.Pairs = append(out.Pairs, p.GetPairs()...)
		if p.GetSummary() != nil {
			out.Summary = p.GetSummary()
		}
	}
	return out
}

type seenConnection struct {
	src, dst connectionEnd
	proto    uint8
	port     uint16
}

// is reports whether an answer is about a connection.
func (s *seenConnection) is(c *policypb.Connection) bool {
	of := func(p *policypb.Party, samples []string, e connectionEnd) bool {
		if e.flow.GetID() != 0 {
			return p.GetIdentity() == e.flow.GetIdentity()
		}
		return slices.Contains(samples, e.addr.String())
	}
	return of(c.GetSource(), c.GetSources(), s.src) && of(c.GetDestination(), c.GetDestinations(), s.dst) &&
		c.GetProtocol() == protocolName(s.proto) && c.GetPort() == uint32(s.port)
}

// randomEnd picks a pod or an outside address at random.
func (w *world) randomEnd() connectionEnd {
	if w.rng.IntN(4) == 0 {
		return w.outsideEnd(w.outside[w.rng.IntN(len(w.outside))])
	}
	return w.podEnd(w.pods[w.rng.IntN(len(w.pods))])
}

func (w *world) packet() (uint8, uint16) {
	switch w.rng.IntN(5) {
	case 0:
		return datapath.ProtoUDP, []uint16{53, 80}[w.rng.IntN(2)]
	case 1:
		return datapath.ProtoICMP, []uint16{0, 8}[w.rng.IntN(2)]
	}
	return datapath.ProtoTCP, []uint16{80, 81, 443, 444, 53}[w.rng.IntN(5)]
}

// fill puts some random policies in force and has some connections be seen.
func (w *world) fill(policies, connections int) (seen []seenConnection) {
	for i := range policies {
		name, text, pol := w.random(fmt.Sprint("p", i))
		docs, err := policydir.Documents(text)
		if err != nil {
			w.t.Fatalf("%v\n%s", err, text)
		}
		w.put(ownerOf(name), docs[0].Rules, pol)
	}
	had := map[string]bool{}
	for range connections {
		c := seenConnection{src: w.randomEnd(), dst: w.randomEnd()}
		c.proto, c.port = w.packet()
		key := fmt.Sprint(c.src.addr, c.dst.addr, c.proto, c.port)
		if c.src.flow.GetID() == 0 && c.dst.flow.GetID() == 0 || had[key] {
			continue
		}
		had[key] = true
		w.record(c.src, c.dst, c.proto, c.port)
		seen = append(seen, c)
	}
	return seen
}

// change makes a random change: policies that come, are replaced, and go.
func (w *world) change() (req *policypb.PreviewRequest, then []oracle.Policy, rules []policy.Change) {
	req = &policypb.PreviewRequest{}
	more := map[policy.Owner]oracle.Policy{}
	for i := range 1 + w.rng.IntN(2) {
		name, text, pol := w.random(fmt.Sprint("p", w.rng.IntN(6), "-"[:i%2]))
		more[ownerOf(name)] = pol
		docs, err := policydir.Documents(text)
		if err != nil {
			w.t.Fatalf("%v\n%s", err, text)
		}
		rules = append(rules, policy.Change{Owner: ownerOf(name), Rules: docs[0].Rules})
		req.Documents = append(req.Documents, &policypb.Document{Name: "new.yaml", Content: text})
	}
	var gone []policy.Owner
	for o := range w.policies {
		if _, replaced := more[o]; !replaced && w.rng.IntN(4) == 0 {
			gone = append(gone, o)
			req.Delete = append(req.Delete, nameMessage(o.Policy()))
			rules = append(rules, policy.Change{Owner: o})
		}
	}
	return req, after(w.policies, more, gone...), rules
}

// worlds is how many random clusters are tried.
func worlds(t *testing.T) int {
	if os.Getenv("HAWSER_LONG") != "" {
		return 500
	}
	return 20
}

// What is reported of seen connections and of pairs is what the oracle says, which reads the
// policies before and after for each packet anew.
func TestPreviewAgreesWithOracle(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 1))
	for range worlds(t) {
		w := newWorld(t, rng, 8)
		seen := w.fill(4, 60)
		before := after(w.policies, nil)
		req, then, _ := w.change()
		res := w.preview(req)
		cfg := w.oracleConfig()
		changed := uint64(0)
		for i := range seen {
			c := &seen[i]
			was, why := oracle.Verdict(cfg, before, c.src.end, c.dst.end, c.proto, c.port)
			is, whyNot := oracle.Verdict(cfg, then, c.src.end, c.dst.end, c.proto, c.port)
			reported := slices.ContainsFunc(res.GetConnections(), func(x *policypb.Connection) bool {
				return c.is(x) && x.GetBefore() == verdictOf(was) && x.GetAfter() == verdictOf(is)
			})
			if was != is {
				changed++
			}
			if reported != (was != is) {
				t.Fatalf("%v -> %v %d/%d: before %v (%s), after %v (%s), and reported: %v\n%v\n%s", c.src.addr, c.dst.addr, c.port, c.proto, was, why, is, whyNot, reported, res.GetConnections(), req)
			}
		}
		var counted uint64
		for _, c := range res.GetConnections() {
			counted += c.GetCount()
			if len(c.GetDecision().GetReason()) == 0 {
				t.Errorf("nothing decides %v", c)
			}
		}
		if counted != changed || res.GetSummary().GetFlows() != uint64(len(seen)) || res.GetSummary().GetFlowsNotEvaluated() != 0 {
			t.Fatalf("%d connections are reported to change, want %d; summary %v", counted, changed, res.GetSummary())
		}
		w.comparePairs(res, cfg, before, then)
	}
}

// comparePairs compares what is reported of pairs of pods with the oracle, packet by packet.
func (w *world) comparePairs(res *policypb.PreviewResponse, cfg oracle.Config, before, then []oracle.Policy) {
	w.t.Helper()
	has := func(list []*policypb.PortRange, proto uint8, port uint16) bool {
		return slices.ContainsFunc(list, func(r *policypb.PortRange) bool {
			return r.GetProtocol() == protocolName(proto) && r.GetFirst() <= uint32(port) && uint32(port) <= r.GetLast()
		})
	}
	for range 100 {
		p, q := w.pods[w.rng.IntN(len(w.pods))], w.pods[w.rng.IntN(len(w.pods))]
		src, dst := w.podEnd(p), w.podEnd(q)
		proto, port := w.packet()
		was, _ := oracle.Verdict(cfg, before, src.end, dst.end, proto, port)
		is, _ := oracle.Verdict(cfg, then, src.end, dst.end, proto, port)
		var opened, closed bool
		for _, c := range res.GetPairs() {
			if res.GetParties()[c.GetSource()].GetIdentity() == uint32(p.id) && res.GetParties()[c.GetDestination()].GetIdentity() == uint32(q.id) {
				opened, closed = has(c.GetOpened(), proto, port), has(c.GetClosed(), proto, port)
			}
		}
		if opened != (is && !was) || closed != (was && !is) {
			w.t.Fatalf("%v -> %v %d/%d: before %v, after %v; reported opened %v, closed %v", p.id, q.id, port, proto, was, is, opened, closed)
		}
	}
}

// The matrix says of each pair what the oracle says of each packet between them.
func TestMatrixAgreesWithOracle(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 2))
	for range worlds(t) {
		w := newWorld(t, rng, 10)
		w.fill(5, 0)
		m := w.matrix(&policypb.MatrixRequest{})
		cfg, policies := w.oracleConfig(), after(w.policies, nil)
		index := map[uint32]int{}
		for i, p := range m.GetParties() {
			index[p.GetIdentity()] = i
		}
		for range 200 {
			p, q := w.pods[rng.IntN(len(w.pods))], w.pods[rng.IntN(len(w.pods))]
			proto, port := w.packet()
			want, why := oracle.Verdict(cfg, policies, w.podEnd(p).end, w.podEnd(q).end, proto, port)
			a := m.GetAccesses()[m.GetRows()[index[uint32(p.id)]].GetAccesses()[index[uint32(q.id)]]]
			got := a.GetVerdict() == policypb.Verdict_ALLOWED
			for _, r := range a.GetPorts() {
				got = got || r.GetProtocol() == protocolName(proto) && r.GetFirst() <= uint32(port) && uint32(port) <= r.GetLast()
			}
			if got != want {
				t.Fatalf("%v -> %v %d/%d passes: %v, by the oracle %v (%s)\n%v", p.set, q.set, port, proto, got, want, why, a)
			}
		}
	}
}

// matrix is the answer in one piece.
func (w *world) matrix(req *policypb.MatrixRequest) *policypb.MatrixResponse {
	w.t.Helper()
	pieces, err := w.server().matrixFor(w.t.Context(), req)
	if err != nil {
		w.t.Fatal(err)
	}
	out := &policypb.MatrixResponse{}
	for _, p := range pieces {
		out.Parties, out.Accesses, out.Rows = append(out.Parties, p.GetParties()...), append(out.Accesses, p.GetAccesses()...), append(out.Rows, p.GetRows()...)
		out.PartiesLeftOut += p.GetPartiesLeftOut()
	}
	for i, row := range out.Rows {
		if int(row.GetSource()) != i || len(row.GetAccesses()) != len(out.Parties) {
			w.t.Fatalf("row %d is of %d and has %d of %d parties", i, row.GetSource(), len(row.GetAccesses()), len(out.Parties))
		}
	}
	return out
}

// What is suggested lets a refused packet pass, and explains it by the verdict of the oracle.
func TestSuggestionsAllowThePacket(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 3))
	suggested := 0
	for range worlds(t) {
		w := newWorld(t, rng, 8)
		seen := w.fill(4, 10)
		s, cfg, policies := w.server(), w.oracleConfig(), after(w.policies, nil)
		for _, c := range seen {
			want, why := oracle.Verdict(cfg, policies, c.src.end, c.dst.end, c.proto, c.port)
			res, err := s.Explain(t.Context(), &policypb.ExplainRequest{Flow: flowBetween(c.src, c.dst, c.proto, c.port)})
			if err != nil {
				t.Fatal(err)
			}
			if res.GetVerdict() != verdictOf(want) || want != (len(res.GetSuggestions()) == 0) {
				t.Fatalf("%v -> %v %d/%d is explained as %v, by the oracle %v (%s)", c.src.addr, c.dst.addr, c.port, c.proto, res, want, why)
			}
			req := &policypb.PreviewRequest{}
			for i, x := range res.GetSuggestions() {
				if x.GetDocument() == "" {
					req = nil // a rule denies it
					break
				}
				req.Documents = append(req.Documents, &policypb.Document{Name: fmt.Sprint("suggestion ", i), Content: []byte(x.GetDocument())})
			}
			if want || req == nil {
				continue
			}
			suggested++
			answer := w.preview(req)
			if !slices.ContainsFunc(answer.GetConnections(), func(x *policypb.Connection) bool {
				return c.is(x) && x.GetAfter() == policypb.Verdict_ALLOWED
			}) {
				t.Fatalf("%v -> %v %d/%d is still refused with\n%s%v", c.src.addr, c.dst.addr, c.port, c.proto, res.GetSuggestions(), answer)
			}
			if slices.ContainsFunc(answer.GetConnections(), func(x *policypb.Connection) bool { return x.GetAfter() == policypb.Verdict_DENIED }) {
				t.Fatalf("what is suggested refuses something else:\n%s", res.GetSuggestions())
			}
		}
	}
	if suggested == 0 {
		t.Fatal("nothing was ever suggested")
	}
}

func TestRepliesAndRefusalsAreCountedOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), 0)
	front := w.podEnd(w.addPod(podSet(t, "shop", map[string]string{"app": "front"}), w.addr(1)))
	db := w.podEnd(w.addPod(podSet(t, "shop", map[string]string{"app": "db"}), w.addr(2)))
	add := func(change func(*flowpb.Flow), reply bool) {
		src, dst := front, db
		if reply {
			src, dst = db, front
		}
		f := flowBetween(src, dst, datapath.ProtoTCP, 5432)
		change(f)
		w.ring.Add(f, src.addr, dst.addr, f.GetTime().AsTime())
	}
	add(func(*flowpb.Flow) {}, false)
	add(func(f *flowpb.Flow) { f.TrafficDirection = flowpb.TrafficDirection_INGRESS }, false)
	add(func(f *flowpb.Flow) { // a sample of the answer
		f.IsReply.Value, f.EventType.Type = true, 4
		f.GetL4().GetTCP().SourcePort, f.GetL4().GetTCP().DestinationPort = 5432, 40000
	}, true)
	add(func(f *flowpb.Flow) { f.GetL4().GetTCP().Flags = &flowpb.TCPFlags{ACK: true} }, false) // evaluated again
	add(func(f *flowpb.Flow) { f.Verdict = flowpb.Verdict_DROPPED }, false)
	add(func(f *flowpb.Flow) { // the same packet
		f.Verdict, f.EventType.Type, f.DropReasonDesc = flowpb.Verdict_DROPPED, 1, flowpb.DropReason_POLICY_DENIED
	}, false)
	add(func(f *flowpb.Flow) { // for another reason
		f.Verdict, f.EventType.Type, f.DropReasonDesc = flowpb.Verdict_DROPPED, 1, flowpb.DropReason_TTL_EXCEEDED
	}, false)
	add(func(f *flowpb.Flow) { f.IsReply = nil }, false)
	w.ring.Lose(flowpb.LostEventSource_PERF_EVENT_RING_BUFFER, 42, time.Now())
	res := w.preview(&policypb.PreviewRequest{Documents: []*policypb.Document{{Name: "deny.yaml", Content: []byte(`
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: deny, namespace: shop}
spec: {podSelector: {matchLabels: {app: db}}, policyTypes: [Ingress]}
`)}}})
	if len(res.GetConnections()) != 1 {
		t.Fatalf("reported: %v", res)
	}
	c := res.GetConnections()[0]
	if c.GetEgress() != 2 || c.GetIngress() != 1 || c.GetCount() != 2 || c.GetPort() != 5432 || c.GetAfter() != policypb.Verdict_DENIED {
		t.Errorf("reported: %v", c)
	}
	if r := c.GetDecision().GetRules(); len(r) != 1 || r[0].GetPolicy().GetName() != "deny" || r[0].GetPath() != "spec" ||
		r[0].GetDocument() != "deny.yaml" || r[0].GetLine() != 5 ||
		c.GetDecision().GetDirection() != flowpb.TrafficDirection_INGRESS {
		t.Errorf("decided by %v", c.GetDecision())
	}
	if sum := res.GetSummary(); sum.GetFlows() != 5 || sum.GetFlowsNotEvaluated() != 1 || sum.GetRefused() != 1 || sum.GetAllowed() != 0 || sum.GetEventsLost() != 42 {
		t.Errorf("summary: %v", sum)
	}
	if ch := res.GetChanges(); len(ch) != 1 || ch[0].GetAction() != policypb.ChangeAction_ADDED || ch[0].GetLine() != 2 {
		t.Errorf("changes: %v", ch)
	}
}

// TestLinesOfFilesOfTheNode: what a policy in a file of the node says is explained with its file
// and line.
func TestLinesOfFilesOfTheNode(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), 0)
	front := w.podEnd(w.addPod(podSet(t, "shop", map[string]string{"app": "front"}), w.addr(1)))
	db := w.podEnd(w.addPod(podSet(t, "shop", map[string]string{"app": "db"}), w.addr(2)))
	objects, err := policydir.Decode("node.yaml", []byte(`{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: guard, namespace: shop},
spec: {endpointSelector: {matchLabels: {app: db}}, ingressDeny: [{fromEntities: [all]}]}}`))
	if err != nil {
		t.Fatal(err)
	}
	w.inFile = objects[0].Owner
	w.put(w.inFile, objects[0].Rules, oracle.FromObject(objects[0].Namespaced))
	res, err := w.server().Explain(t.Context(), &policypb.ExplainRequest{Flow: flowBetween(front, db, datapath.ProtoTCP, 80)})
	if err != nil || len(res.GetIngress().GetSteps()) != 1 {
		t.Fatalf("%v, %v", res, err)
	}
	path := "spec.ingressDeny[0]"
	if r := res.GetIngress().GetSteps()[0].GetRule(); r.GetPath() != path || r.GetDocument() != "node.yaml" || int(r.GetLine()) != len(path) {
		t.Errorf("explained by %v", r)
	}
}

// An answer is seen as it leaves for the client, from the address and port of the Service that was
// asked: a policy of what is behind the Service does not refuse it.
func TestRepliesOfServicesAreNotEvaluated(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 7)), 0)
	front := w.podEnd(w.addPod(podSet(t, "shop", map[string]string{"app": "front"}), w.addr(1)))
	web := w.podEnd(w.addPod(podSet(t, "shop", map[string]string{"app": "web"}), w.addr(2)))
	w.record(front, web, datapath.ProtoTCP, 8080)
	vip := netip.MustParseAddr("10.96.0.9")
	f := flowBetween(web, front, datapath.ProtoTCP, 40000)
	f.IsReply.Value, f.EventType.Type, f.TrafficDirection = true, flows.EventTrace, flowpb.TrafficDirection_INGRESS
	f.IP.Source, f.GetL4().GetTCP().SourcePort, f.GetL4().GetTCP().Flags = vip.String(), 80, &flowpb.TCPFlags{SYN: true, ACK: true}
	w.ring.Add(f, vip, front.addr, f.GetTime().AsTime())
	for port, refused := range map[int]uint64{8080: 0, 80: 1} {
		res := w.preview(document(fmt.Sprintf("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: web, namespace: shop}\n"+
			"spec: {podSelector: {matchLabels: {app: web}}, ingress: [{ports: [{port: %d}]}]}\n", port)))
		if sum := res.GetSummary(); sum.GetRefused() != refused || sum.GetFlows() != 1 || sum.GetFlowsNotEvaluated() != 0 {
			t.Errorf("with port %d allowed: %v, %v", port, sum, res.GetConnections())
		}
	}
}

// suggestions returns what is suggested for a packet.
func (w *world) suggestions(src, dst connectionEnd, proto uint8, port uint16) []*policypb.Document {
	w.t.Helper()
	res, err := w.server().Explain(w.t.Context(), &policypb.ExplainRequest{Flow: flowBetween(src, dst, proto, port)})
	if err != nil || len(res.GetSuggestions()) == 0 {
		w.t.Fatalf("%v, %v", res, err)
	}
	var out []*policypb.Document
	for _, x := range res.GetSuggestions() {
		out = append(out, &policypb.Document{Name: fmt.Sprint(src.addr, dst.addr, proto, port), Content: []byte(x.GetDocument())})
	}
	return out
}

// What is suggested for several packets can all be put in force, and each of them passes: pods of
// one name in several namespaces and clusters, addresses, and protocols are told apart.
func TestSuggestionsGoTogether(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 8)), 0)
	front := map[string]string{"app": "front"}
	elsewhere, err := labels.PodLabels(labels.Pod{Namespace: "shop", Cluster: "c2", Labels: front})
	if err != nil {
		t.Fatal(err)
	}
	web := w.podEnd(w.addPod(podSet(t, "shop", map[string]string{"app": "web"}), w.addr(1)))
	all := &policypb.PreviewRequest{}
	docs, err := policydir.Documents([]byte("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: shop}\nspec: {podSelector: {}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	w.put(ownerOf(docs[0].Name), docs[0].Rules, oracle.Policy{})
	n := uint64(0)
	for _, src := range []connectionEnd{
		w.podEnd(w.addPod(podSet(t, "shop", front), w.addr(2))), w.podEnd(w.addPod(podSet(t, "a", front), w.addr(3))), w.podEnd(w.addPod(elsewhere, w.addr(4))),
		w.outsideEnd(netip.MustParseAddr("192.0.2.1")), w.outsideEnd(netip.MustParseAddr("192.0.2.2")),
	} {
		for _, proto := range []uint8{datapath.ProtoTCP, datapath.ProtoUDP} {
			w.record(src, web, proto, 53)
			all.Documents = append(all.Documents, w.suggestions(src, web, proto, 53)...)
			n++
		}
	}
	if sum := w.preview(all).GetSummary(); sum.GetAllowed() != n || sum.GetUnchanged() != 0 {
		t.Errorf("of %d packets: %v\n%s", n, sum, all.GetDocuments())
	}
}

// Pieces have everything once, in order, and are no larger than one message.
func TestPieces(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(seed(t), 4))
	for range 100 {
		var list, got []int
		for range rng.IntN(300) {
			list = append(list, rng.IntN([]int{2, maxPiece / 10, maxPiece * 2}[rng.IntN(3)]))
		}
		for part := range pieces(list, func(n int) int { return n }) {
			sum := 0
			for _, n := range part {
				sum += n
			}
			if len(part) == 0 || len(part) > 64 || sum > maxPiece && len(part) > 1 {
				t.Fatalf("a piece of %v", part)
			}
			got = append(got, part...)
		}
		if !slices.Equal(got, list) {
			t.Fatalf("%v became %v", list, got)
		}
	}
}

// TestLongNames: of many labels a name has a few, and the identity, so that the name is unique.
func TestLongNames(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), 0)
	for n := range 4 {
		own := map[string]string{}
		for i := range 20 {
			own[fmt.Sprintf("label-%02d", i)] = "v"
		}
		own["z"] = fmt.Sprint(n)
		w.addPod(podSet(t, "nameless", own), w.addr(byte(1+n)))
		own["app"] = "shop"
		for i := range 20 {
			own[fmt.Sprintf("label-%02d", i)] = fmt.Sprint(n / 2)
		}
		w.addPod(podSet(t, "shop", own), w.addr(byte(11+n)))
	}
	names := map[string]bool{}
	for _, p := range w.matrix(&policypb.MatrixRequest{Namespaces: []string{"shop", "nameless"}}).Parties {
		if ns := p.GetNamespace(); ns != "shop" && ns != "nameless" {
			continue
		}
		names[p.Text()] = true
		if n := strings.Count(p.GetName(), "="); n > 4 || n < 3 || p.GetNamespace() == "shop" && !strings.Contains(p.GetName(), fmt.Sprintf(", …, identity %d)", p.GetIdentity())) {
			t.Errorf("a name is %q", p.GetName())
		}
	}
	if len(names) != 8 {
		t.Errorf("of 8 identities there are %d names: %v", len(names), names)
	}
}

// TestNamesakes: pods that labels call alike are told apart by the labels that differ, in the
// matrix, in previews and in suggestions; others keep their name.
func TestNamesakes(t *testing.T) {
	t.Parallel()
	w := newWorld(t, rand.New(rand.NewPCG(1, 1)), 0)
	add := func(n byte, ns string, own map[string]string) connectionEnd {
		return w.podEnd(w.addPod(podSet(t, ns, own), w.addr(n)))
	}
	front := add(1, "shop", map[string]string{"app": "shop", "tier": "front"})
	db := add(2, "shop", map[string]string{"app": "shop", "tier": "db"})
	add(3, "shop", map[string]string{"app": "shop"})
	add(4, "stats", map[string]string{"app": "shop", "tier": "db"})
	var names []string
	for _, p := range w.matrix(&policypb.MatrixRequest{Namespaces: []string{"shop", "stats"}}).Parties {
		if p.GetKind() == policypb.PartyKind_PARTY_PODS && p.GetNamespace() != "kube-system" {
			names = append(names, p.Text())
		}
	}
	if want := []string{"shop/shop", "shop/shop (tier=db)", "shop/shop (tier=front)", "stats/shop"}; !slices.Equal(names, want) {
		t.Errorf("the matrix is of %q, want %q", names, want)
	}
	docs, err := policydir.Documents([]byte("apiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: deny, namespace: shop}\nspec: {podSelector: {}}\n"))
	if err != nil {
		t.Fatal(err)
	}
	w.put(ownerOf(docs[0].Name), docs[0].Rules, oracle.Policy{})
	res, err := w.server().Explain(t.Context(), &policypb.ExplainRequest{Flow: flowBetween(front, db, datapath.ProtoTCP, 80)})
	if err != nil {
		t.Fatal(err)
	}
	if s := res.GetSuggestions(); len(s) != 1 || s[0].GetText() != "let shop/shop (tier=db) receive from shop/shop (tier=front) on 80/TCP" {
		t.Errorf("suggested is %v", s)
	}
	in := res.GetIngress()
	if by := in.GetEnforcedBy(); in.GetReason() != "enforced by NetworkPolicy shop/deny spec" || len(by) != 1 || by[0].Text() != "shop/deny spec" {
		t.Errorf("it is refused by %q, %v", in.GetReason(), by)
	}
}
