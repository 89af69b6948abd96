package agent

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	flowpb "github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/observer"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// previewOf asks an agent what would be otherwise.
func previewOf(ctx context.Context, c policypb.PolicyClient, req *policypb.PreviewRequest) (*policypb.PreviewResponse, error) {
	stream, err := c.Preview(ctx, req)
	if err != nil {
		return nil, err
	}
	out := &policypb.PreviewResponse{}
	for {
		piece, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		proto.Merge(out, piece)
	}
}

// TestPreviewWithinShares: a policy whose prefixes would take those of another one out of force has
// no preview that says otherwise, nor has the removal of one by which another comes in force again.
func TestPreviewWithinShares(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"), "--policy-namespace-prefix-max", "4")
	n.start()
	n.attached("web", map[string]string{"app": "web"})
	document := func(name string, prefixes ...string) string {
		return "{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: " + name + ", namespace: default}, " +
			"spec: {endpointSelector: {}, egress: [{toCIDR: [" + strings.Join(prefixes, ", ") + "]}]}}\n"
	}
	large := document("large", "192.0.2.0/24", "198.51.100.0/25", "198.51.100.128/25")
	small := document("small", "203.0.113.0/26", "203.0.113.64/26")
	n.policy("large.yaml", large)
	// allowed waits until the pod may reach what only the large policy allows, or may not.
	allowed := func(want bool) {
		t.Helper()
		controllers.Eventually(t, time.Minute, func() string {
			_, text := n.call("GET", "/policy/trace?from=cep-name:default/web&to=198.51.100.1&dport=80&proto=tcp", "")
			if got := strings.HasSuffix(strings.TrimSpace(text), `"verdict":"allowed"}`); got != want || !strings.Contains(text, "default/large") {
				return fmt.Sprintf("allowed: %v, want %v by the policy large: %s", got, want, text)
			}
			return ""
		})
	}
	allowed(true)
	client := policypb.NewPolicyClient(n.flowConn(n.path("run/hubble.sock")))
	of := func(texts ...string) *policypb.PreviewRequest {
		req := &policypb.PreviewRequest{}
		for _, text := range texts {
			req.Documents = append(req.Documents, &policypb.Document{Content: []byte(text)})
		}
		return req
	}
	asks := func(req *policypb.PreviewRequest, code codes.Code, want string) {
		t.Helper()
		if _, err := previewOf(t.Context(), client, req); status.Code(err) != code || !strings.Contains(fmt.Sprint(err), want) {
			t.Errorf("%v, want %v, %q", err, code, want)
		}
	}
	asks(of(small), codes.FailedPrecondition, "CiliumNetworkPolicy default/large would allow nothing")
	asks(of(document("small", "203.0.113.0/26")), codes.OK, "")
	allowed(true)
	n.policy("small.yaml", small)
	allowed(false)
	without := &policypb.PreviewRequest{Delete: []*policypb.PolicyName{{Namespace: "default", Name: "small"}}}
	asks(without, codes.FailedPrecondition, "CiliumNetworkPolicy default/large would count again")
	without.Documents = of(large).GetDocuments()
	asks(without, codes.OK, "")
}

// TestPreviewIsWhatHappens has connections be made in the kernel, asks what a policy would refuse
// of them, puts it in force, and makes them again: those that the preview named are refused, and no
// other. What is suggested about one that was refused lets that one pass again, and no other.
func TestPreviewIsWhatHappens(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"))
	n.start()
	pods := map[string]*machinePod{}
	for _, name := range []string{"web", "front", "intruder"} {
		pods[name] = n.attached(name, map[string]string{"app": name})
		serveEcho(t, pods[name].ns, netip.AddrPortFrom(pods[name].ip4, 80))
	}
	serveEcho(t, pods["web"].ns, netip.AddrPortFrom(pods["web"].ip4, 81))
	type attempt struct {
		from, to string
		port     uint16
	}
	attempts := []attempt{{"front", "web", 80}, {"front", "web", 81}, {"intruder", "web", 80}, {"web", "front", 80}, {"front", "intruder", 80}}
	try := func(x attempt, timeout time.Duration) error {
		return once(pods[x.from].ns, netip.AddrPortFrom(pods[x.to].ip4, x.port), timeout)
	}
	for _, x := range attempts {
		controllers.Eventually(t, time.Minute, func() string {
			if err := try(x, 5*time.Second); err != nil {
				return fmt.Sprint(x, ": ", err)
			}
			return ""
		})
	}
	conn := n.flowConn(n.path("run/hubble.sock"))
	client := policypb.NewPolicyClient(conn)
	named := func(res *policypb.PreviewResponse, after policypb.Verdict) map[attempt]bool {
		out := map[attempt]bool{}
		for _, c := range res.GetConnections() {
			if c.GetAfter() == after && c.GetProtocol() == "TCP" {
				out[attempt{c.GetSource().GetName(), c.GetDestination().GetName(), uint16(c.GetPort())}] = true
			}
		}
		return out
	}
	// happens compares what becomes of all attempts with what was said.
	happens := func(refused map[attempt]bool) {
		t.Helper()
		controllers.Eventually(t, time.Minute, func() string {
			for _, x := range attempts {
				timeout := 10 * time.Second
				if refused[x] {
					timeout = 200 * time.Millisecond
				}
				if err := try(x, timeout); (err != nil) != refused[x] {
					return fmt.Sprintf("%v: %v; to be refused: %v", x, err, refused[x])
				}
			}
			return ""
		})
	}

	deny := &policypb.PreviewRequest{Documents: []*policypb.Document{{Name: "web.yaml", Content: []byte(denyWeb)}}}
	var refused map[attempt]bool
	controllers.Eventually(t, time.Minute, func() string { // flows are reported a little later
		res, err := previewOf(t.Context(), client, deny)
		if err != nil {
			return err.Error()
		}
		if refused = named(res, policypb.Verdict_DENIED); len(refused) < 2 || res.GetSummary().GetPairsClosed() == 0 {
			return fmt.Sprint("would be refused: ", res)
		}
		return ""
	})
	if want := (map[attempt]bool{attempts[1]: true, attempts[2]: true}); !maps.Equal(refused, want) {
		t.Fatalf("would be refused: %v, want %v", refused, want)
	}
	happens(nil) // a preview changes nothing
	n.policy("web.yaml", denyWeb)
	happens(refused)

	gone, err := previewOf(t.Context(), client, &policypb.PreviewRequest{Delete: []*policypb.PolicyName{{Namespace: "default", Name: "web"}}})
	if err != nil {
		t.Fatal(err)
	}
	if allowed := named(gone, policypb.Verdict_ALLOWED); !maps.Equal(allowed, refused) {
		t.Errorf("without the policy would be allowed: %v, want %v", allowed, refused)
	}

	// Why was the intruder refused, and what would let it in?
	var drop *flowpb.Flow
	stream, err := observer.NewObserverClient(conn).GetFlows(t.Context(), &observer.GetFlowsRequest{
		Whitelist: []*flowpb.FlowFilter{{Verdict: []flowpb.Verdict{flowpb.Verdict_DROPPED}, SourcePod: []string{"default/intruder"}}},
	})
	if err != nil {
		t.Fatal(err)
	}
	for {
		res, err := stream.Recv()
		if err != nil {
			break
		}
		if f := res.GetFlow(); f.GetL4().GetTCP().GetDestinationPort() == 80 {
			drop = f
		}
	}
	why, err := client.Explain(t.Context(), &policypb.ExplainRequest{Flow: drop})
	if err != nil {
		t.Fatal(err)
	}
	side := why.GetIngress()
	if why.GetVerdict() != policypb.Verdict_DENIED || side.GetVerdict() != policypb.Verdict_DENIED || len(why.GetSuggestions()) != 1 ||
		!slices.ContainsFunc(side.GetSteps(), func(s *policypb.ExplainStep) bool {
			return s.GetRule().GetPolicy().GetName() == "web" && s.GetRule().GetPath() == "spec.ingress[0]" && s.GetEffect() == policypb.Effect_NONE
		}) {
		t.Fatalf("explained as %v", why)
	}
	n.policy("suggested.yaml", why.GetSuggestions()[0].GetDocument())
	delete(refused, attempts[2])
	happens(refused)
}
