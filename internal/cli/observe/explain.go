package observe

import (
	"context"
	"fmt"
	"io"
	"strings"

	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/observer"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/flows"
)

// explainRefusals has each flow that policy refused be followed by why.
func explainRefusals(ctx context.Context, a *command.App, writer *flowWriter, client policypb.PolicyClient, w io.Writer) {
	e := &explainer{client: client, known: map[string]*policypb.ExplainResponse{}}
	write := writer.write
	writer.write = func(res *observer.GetFlowsResponse) error {
		if err := write(res); err != nil || !flows.RefusedByPolicy(res.GetFlow()) {
			return err
		}
		text := ""
		why, err := e.explain(ctx, &policypb.ExplainRequest{Flow: res.GetFlow()})
		switch {
		case err == nil:
			text = explanation(a, why)
		case ctx.Err() != nil:
			return nil
		default:
			text = "    not explained: " + output.Printable(status.Convert(err).Message()) + "\n"
		}
		_, err = io.WriteString(w, text)
		return err
	}
}

// explainer asks why flows were refused, each sort once.
type explainer struct {
	client policypb.PolicyClient
	known  map[string]*policypb.ExplainResponse
}

// maxExplained is how many answers are remembered.
const maxExplained = 1024

func (e *explainer) explain(ctx context.Context, req *policypb.ExplainRequest) (*policypb.ExplainResponse, error) {
	f := req.GetFlow()
	l4, err := proto.MarshalOptions{Deterministic: true}.Marshal(f.GetL4())
	if err != nil {
		return nil, err
	}
	key := fmt.Sprint(f.GetNodeName(), f.GetIP().GetSource(), f.GetIP().GetDestination(), f.GetSource().GetIdentity(), f.GetDestination().GetIdentity(), string(l4))
	if res := e.known[key]; res != nil {
		return res, nil
	}
	res, err := e.client.Explain(ctx, req)
	if err != nil {
		return nil, err
	}
	if len(e.known) >= maxExplained {
		clear(e.known)
	}
	e.known[key] = res
	return res, nil
}

// explanation describes in a few lines why a flow was refused.
func explanation(a *command.App, res *policypb.ExplainResponse) string {
	var b strings.Builder
	for _, x := range []struct {
		name string
		side *policypb.ExplainSide
	}{{"egress of the sender", res.GetEgress()}, {"ingress of the receiver", res.GetIngress()}} {
		if x.side.GetVerdict() == policypb.Verdict_ALLOWED {
			continue
		}
		denied := false
		for _, s := range x.side.GetSteps() {
			if s.GetDecides() && s.GetEffect() == policypb.Effect_DENY {
				fmt.Fprintf(&b, "    %s: %s: %s\n", x.name, a.Paint(output.Bad, output.Printable(s.GetRule().Text())), output.Printable(s.GetReason()))
				denied = true
			}
		}
		if denied {
			continue
		}
		why := x.side.GetReason()
		if by := x.side.GetEnforcedBy(); len(by) > 0 {
			var rules []string
			for _, r := range by {
				rules = append(rules, r.Text())
			}
			why = strings.Join(rules, ", ")
		}
		fmt.Fprintf(&b, "    %s: %s (%s)\n", x.name, a.Paint(output.Bad, "no rule allows it"), output.Printable(why))
		for i, s := range x.side.GetSteps() {
			if i == 3 {
				break
			}
			fmt.Fprintf(&b, "      %s: %s\n", output.Printable(s.GetRule().Text()), output.Printable(s.GetReason()))
		}
	}
	if res.GetVerdict() == policypb.Verdict_ALLOWED {
		b.WriteString("    by the policies of now it would pass\n")
	}
	for _, s := range res.GetSuggestions() {
		fmt.Fprintf(&b, "    %s\n", output.Printable(s.GetText()))
		for line := range strings.Lines(s.GetDocument()) {
			b.WriteString("      " + output.Printable(strings.TrimSuffix(line, "\n")) + "\n")
		}
	}
	return b.String()
}
