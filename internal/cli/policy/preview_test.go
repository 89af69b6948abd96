package policy

import (
	"bytes"
	"context"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/observe"
	"github.com/hawser-net/hawser/internal/exitcode"
)

// agentTime is when what the server reports was last seen.
var agentTime = time.Date(2026, 3, 1, 12, 30, 0, 0, time.UTC)

// policies answers as an agent would.
type policies struct {
	policypb.UnimplementedPolicyServer
	observer.UnimplementedObserverServer
	asked *policypb.PreviewRequest
}

func (p *policies) Preview(req *policypb.PreviewRequest, stream policypb.Policy_PreviewServer) error {
	p.asked = req
	switch {
	case len(req.GetDelete()) == 1 && req.GetDelete()[0].GetName() == "lies":
		return stream.Send(&policypb.PreviewResponse{Pairs: []*policypb.PairChange{{
			Source: 1, Destination: 1 << 31, Opened: []*policypb.PortRange{{Protocol: "TCP", First: 1, Last: 1}},
		}}})
	case len(req.GetDelete()) == 1 && req.GetDelete()[0].GetName() == "endless":
		for {
			if err := stream.Send(&policypb.PreviewResponse{Warnings: []string{strings.Repeat("x", 3<<20)}}); err != nil {
				return err
			}
		}
	}
	if d := req.GetDelete(); len(d) > 0 && strings.HasPrefix(d[0].GetName(), "bounded") {
		res := &policypb.PreviewResponse{Summary: &policypb.PreviewSummary{Refused: 9, ConnectionsLeftOut: 8, ChangedAtMost: strings.Contains(d[0].GetName(), "twice")}}
		if strings.Contains(d[0].GetName(), "missing") {
			res.Problems = []*policypb.NodeProblem{{NodeName: "n2", Problem: "gone"}}
		}
		return stream.Send(res)
	}
	if d := req.GetDelete(); len(d) > 0 && strings.HasPrefix(d[0].GetName(), "partial") {
		res := &policypb.PreviewResponse{Summary: &policypb.PreviewSummary{Flows: 3}}
		if strings.Contains(d[0].GetName(), "missing") {
			res.Problems = []*policypb.NodeProblem{{NodeName: "n2", Problem: "gone"}, {NodeName: "n3", Problem: "late"}}
		}
		if strings.Contains(d[0].GetName(), "lost") {
			res.Summary.EventsLost = 7
		}
		return stream.Send(res)
	}
	front, db := &policypb.Party{Namespace: "shop", Name: "front", Identity: 1}, &policypb.Party{Namespace: "shop", Name: "db", Identity: 2}
	deny := &policypb.PolicyName{Kind: "NetworkPolicy", Namespace: "shop", Name: "deny"}
	pieces := []*policypb.PreviewResponse{
		{Changes: []*policypb.PolicyChange{{Policy: deny, Action: policypb.ChangeAction_ADDED, Document: "x.yaml", Line: 3}}, Warnings: []string{"x.yaml: odd"}},
		{Parties: []*policypb.Party{front, db}},
		{Pairs: []*policypb.PairChange{{Source: 0, Destination: 1, Closed: []*policypb.PortRange{{Protocol: "TCP", First: 0, Last: 79}}, After: &policypb.Access{Ingress: &policypb.AccessSide{Policies: []*policypb.PolicyName{deny}}}}}},
		{Summary: &policypb.PreviewSummary{Flows: 7, PairsClosed: 4, PairsLeftOut: 3}},
	}
	if len(req.GetDocuments()) > 0 {
		pieces[0].Connections = []*policypb.Connection{{
			Source: front, Destination: db, Protocol: "TCP", Port: 5432, Before: policypb.Verdict_ALLOWED, After: policypb.Verdict_DENIED, Count: 12,
			LastSeen: timestamppb.New(agentTime), Decision: &policypb.Decision{Direction: flow.TrafficDirection_INGRESS, Rules: []*policypb.Rule{{Policy: deny, Path: "spec"}}, Reason: "no rule allows it; enforced"},
		}}
		pieces[3].Summary.Refused, pieces[3].Summary.ChangedAtMost = 1, true
	}
	for _, piece := range pieces {
		if err := stream.Send(piece); err != nil {
			return err
		}
	}
	return nil
}

func (p *policies) Matrix(req *policypb.MatrixRequest, stream policypb.Policy_MatrixServer) error {
	if len(req.GetNamespaces()) > 0 {
		return stream.Send(&policypb.MatrixResponse{Rows: []*policypb.MatrixRow{{Source: 7, Accesses: []uint32{0, 1 << 31}}}})
	}
	return stream.Send(&policypb.MatrixResponse{
		Parties: []*policypb.Party{{Name: "world"}, {Namespace: "shop", Name: "db"}},
		Accesses: []*policypb.Access{{}, {Verdict: policypb.Verdict_ALLOWED}, {
			Verdict: policypb.Verdict_PARTIAL, Ports: []*policypb.PortRange{{Protocol: "TCP", First: 80, Last: 80}},
			Ingress: &policypb.AccessSide{Policies: []*policypb.PolicyName{{Namespace: "shop", Name: "db"}}},
		}},
		Rows:           []*policypb.MatrixRow{{Source: 0, Accesses: []uint32{0, 2}}, {Source: 1, Accesses: []uint32{1, 1}}},
		PartiesLeftOut: 5,
	})
}

func (p *policies) GetFlows(_ *observer.GetFlowsRequest, stream observer.Observer_GetFlowsServer) error {
	for range 2 {
		err := stream.Send(&observer.GetFlowsResponse{Time: timestamppb.New(agentTime), ResponseTypes: &observer.GetFlowsResponse_Flow{Flow: &flow.Flow{
			Verdict: flow.Verdict_DROPPED, DropReasonDesc: flow.DropReason_POLICY_DENIED, Source: &flow.Endpoint{Identity: 2}, Destination: &flow.Endpoint{Identity: 3},
		}}})
		if err != nil {
			return err
		}
	}
	return nil
}

func (p *policies) Explain(context.Context, *policypb.ExplainRequest) (*policypb.ExplainResponse, error) {
	return &policypb.ExplainResponse{
		Verdict: policypb.Verdict_DENIED,
		Egress:  &policypb.ExplainSide{Verdict: policypb.Verdict_ALLOWED},
		Ingress: &policypb.ExplainSide{Verdict: policypb.Verdict_DENIED, Reason: "enforced by CiliumNetworkPolicy shop/db spec", EnforcedBy: []*policypb.Rule{{Policy: &policypb.PolicyName{Namespace: "shop", Name: "db"}, Path: "spec", Document: "db.yaml", Line: 4}}, Steps: []*policypb.ExplainStep{
			{Rule: &policypb.Rule{Policy: &policypb.PolicyName{Namespace: "shop", Name: "db"}, Path: "spec.ingress[0]", Document: "db.yaml", Line: 7}, Reason: "allow front\x1b, but the peer does not match"},
		}},
		Suggestions: []*policypb.Suggestion{{Text: "let shop/db receive from world", Document: "kind: X\n"}},
	}, nil
}

func TestPolicyPreview(t *testing.T) {
	dir, err := os.MkdirTemp("", "hawser-cli") // t.TempDir may be too long for a socket
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	p := &policies{}
	srv := grpc.NewServer()
	policypb.RegisterPolicyServer(srv, p)
	observer.RegisterObserverServer(srv, p)
	done := make(chan error, 1)
	go func() { done <- srv.Serve(l) }()
	t.Cleanup(func() { srv.Stop(); <-done })
	for _, name := range []string{"a.yaml", "b.json", "c.txt"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("policy "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, row := range []struct {
		args string
		code int
		want []string
	}{
		{"policy preview " + dir + " --delete old --delete shop/db,NetworkPolicy/shop/x", exitcode.Refused, []string{
			"added NetworkPolicy shop/deny (x.yaml, line 3)", "warning: x.yaml: odd", "7 flows evaluated", "Seen, and would be refused: at most 1",
			"shop/front   shop/db", "5432/TCP   12", "ingress: shop/deny spec (no rule allows it)", "Seen, and would be allowed: 0",
			"Pairs that close: 4", "0-79/TCP", "3 more pairs are not shown",
		}},
		{"policy preview --delete old -o json", exitcode.OK, []string{`"pairs_closed": "4"`}},
		{"policy preview", exitcode.Usage, []string{"name files with policies"}},
		{"policy preview --delete a/b/c/d", exitcode.Usage, []string{"--delete"}},
		{"policy preview -o yaml --delete old", exitcode.Usage, []string{"neither table nor json"}},
		{"policy preview " + dir + "/none.yaml", exitcode.Failure, []string{"none.yaml"}},
		{"policy matrix", exitcode.OK, []string{"80/TCP   shop/db", "2 more pairs pass without any policy", "5 identities are too many"}},
		{"policy preview --delete lies", exitcode.Failure, []string{"refers to entries that it does not contain"}},
		{"policy preview --delete bounded", exitcode.Refused, []string{"refused: 9", "\n8 more are not shown"}},
		{"policy preview --delete bounded-missing", exitcode.Refused, []string{"refused: at least 9", "\nat least 8 more are not shown"}},
		{"policy preview --delete bounded-twice", exitcode.Refused, []string{"refused: at most 9", "\nat most 8 more are not shown"}},
		{"policy preview --delete bounded-missing-twice", exitcode.Refused, []string{"refused: about 9", "\nabout 8 more are not shown"}},
		{"policy preview --delete partial-missing", exitcode.Incomplete, []string{"refused: at least 0", "nothing of n2: gone", "hawser: the answer is incomplete: what n2 recorded is missing (2 in all)"}},
		{"policy preview --delete partial-missing-lost -o json", exitcode.Incomplete, []string{`"node_name": "n2"`, "hawser: the answer is incomplete"}},
		{"policy preview --delete partial-lost", exitcode.OK, []string{"refused: at least 0", "7 events are lost"}},
		{"policy preview --delete endless", exitcode.Failure, []string{"larger than 32 MiB"}},
		{"policy matrix -n lies", exitcode.Failure, []string{"refers to entries that it does not contain"}},
		{"observe --explain", exitcode.OK, []string{"ingress of the receiver: no rule allows it (shop/db spec (db.yaml:4))", "shop/db spec.ingress[0] (db.yaml:7): allow front", "    let shop/db receive from world\n", "      kind: X"}},
		{"observe --explain -o json", exitcode.Usage, []string{"--explain"}},
	} {
		var stdout, stderr bytes.Buffer
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		a := &command.App{Getenv: func(key string) string {
			if key == "HUBBLE_SERVER" {
				return filepath.Join(dir, "s")
			}
			return ""
		}}
		code := command.Run(ctx, command.Root(a, &stdout, &stderr, "", "", Command(a), observe.Command(a)), strings.Fields(row.args))
		cancel()
		text := stdout.String() + stderr.String()
		if code != row.code || strings.ContainsRune(text, '\x1b') {
			t.Errorf("%s: code %d\n%s", row.args, code, text)
		}
		for _, want := range row.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s: no %q in\n%s", row.args, want, text)
			}
		}
		if strings.HasSuffix(row.args, "shop/x") {
			if d := p.asked.GetDocuments(); len(d) != 2 || string(d[1].GetContent()) != "policy b.json" {
				t.Errorf("asked about %v", d)
			}
			if d := p.asked.GetDelete(); len(d) != 3 || d[0].GetNamespace() != "" || d[1].GetNamespace() != "shop" || d[2].GetKind() != "NetworkPolicy" {
				t.Errorf("asked to delete %v", d)
			}
		}
	}
}
