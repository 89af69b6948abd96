package ui

import (
	"context"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/hawser-net/hawser/api/flow"
	"github.com/hawser-net/hawser/api/policy"
)

const (
	// explainAge is how old an explanation may be, explainTimeout how long one may take.
	explainAge     = 10 * time.Second
	explainTimeout = 10 * time.Second
	// maxExplained is how many explanations are remembered.
	maxExplained = 64
	// maxNear is how many rules are named that select a side and do not match.
	maxNear = 3
	// maxRules is how many rules are named that refuse.
	maxRules = 16
	// maxSuggested is how long a policy may be that is suggested, in bytes.
	maxSuggested = 16 << 10
)

// Explanation is why policy denies a connection, and what would allow it, by the current policies.
type Explanation struct {
	// Error is why nothing is explained.
	Error string `json:"error,omitempty"`
	// Refused is false of what would pass by now.
	Refused bool `json:"refused"`
	// Sides are those that refuse it.
	Sides []ExplainedSide `json:"sides"`
	// Suggestions would let it pass, all of them together.
	Suggestions []Suggestion `json:"suggestions"`
}

// ExplainedSide is a side whose policies refuse a connection.
type ExplainedSide struct {
	Whose string `json:"whose"` // sender or receiver
	// Denied means that a rule denies it; else no rule allows it.
	Denied bool `json:"denied"`
	// Rules are those that deny it, or by which what no rule allows is dropped.
	Rules  []string `json:"rules"`
	Reason string   `json:"reason"`
	// Near are rules that select the side and do not match, and why.
	Near []string `json:"near"`
}

// Suggestion is what would let a connection pass.
type Suggestion struct {
	Text string `json:"text"`
	// Document is a policy, YAML; empty where none can.
	Document string `json:"document,omitempty"`
}

// explainCache has the last explanations, by the ID of their edge. The holder of turn may change
// it.
type explainCache struct {
	turn  chan struct{}
	known map[string]explained
}

type explained struct {
	Explanation
	at time.Time
}

// Explain returns why policy denies the connection of an edge's last denied flow. Answers are
// cached, so that many clients cause few requests to the server.
func (f *Follower) Explain(ctx context.Context, edge string) (Explanation, error) {
	refused := f.Graph.refused(edge)
	switch {
	case refused == nil:
		return Explanation{Error: "no refusal by policy is kept of this connection"}, nil
	case f.Policy == nil:
		return Explanation{Error: noExplanation}, nil
	}
	turn := f.turnOf(&f.explains.turn)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return Explanation{}, ctx.Err()
	}
	if have, ok := f.explains.known[edge]; ok && time.Since(have.at) < explainAge {
		return have.Explanation, nil
	}
	bounded, cancel := context.WithTimeout(ctx, explainTimeout)
	defer cancel()
	res, err := f.Policy.Explain(bounded, &policy.ExplainRequest{Flow: refused})
	var out Explanation
	switch {
	case ctx.Err() != nil:
		return Explanation{}, ctx.Err()
	case status.Code(err) == codes.Unimplemented:
		out.Error = noExplanation
	case err != nil:
		out.Error = message(err)
	default:
		out = newExplanation(res)
	}
	if f.explains.known == nil || len(f.explains.known) >= maxExplained {
		f.explains.known = map[string]explained{}
	}
	f.explains.known[edge] = explained{out, time.Now()}
	return out, nil
}

const noExplanation = "the server does not explain refusals"

func newExplanation(res *policy.ExplainResponse) Explanation {
	out := Explanation{Refused: res.GetVerdict() != policy.Verdict_ALLOWED}
	for _, x := range []struct {
		whose string
		side  *policy.ExplainSide
	}{{"sender", res.GetEgress()}, {"receiver", res.GetIngress()}} {
		if x.side == nil || x.side.GetVerdict() == policy.Verdict_ALLOWED {
			continue
		}
		one := ExplainedSide{Whose: x.whose, Reason: cut(x.side.GetReason())}
		for _, s := range first(x.side.GetSteps(), maxRules) {
			switch {
			case s.GetDecides() && s.GetEffect() == policy.Effect_DENY:
				one.Denied = true
				one.Rules = append(one.Rules, cut(s.GetRule().Text()))
			case len(one.Near) < maxNear:
				one.Near = append(one.Near, cut(s.GetRule().Text()+": "+s.GetReason()))
			}
		}
		if one.Denied {
			one.Near = nil
		} else {
			for _, r := range first(x.side.GetEnforcedBy(), maxRules) {
				one.Rules = append(one.Rules, cut(r.Text()))
			}
		}
		out.Sides = append(out.Sides, one)
	}
	for _, s := range first(res.GetSuggestions(), 2) { // one for each side
		one := Suggestion{Text: cut(s.GetText())}
		if len(s.GetDocument()) <= maxSuggested {
			one.Document = s.GetDocument()
		}
		out.Suggestions = append(out.Suggestions, one)
	}
	return out
}

// question is what a server must know of a refused flow to explain it, and not more: there is one
// for each edge.
func question(f *flow.Flow) *flow.Flow {
	end := func(e *flow.Endpoint) *flow.Endpoint { return &flow.Endpoint{ID: e.GetID(), Identity: e.GetIdentity()} }
	out := &flow.Flow{
		NodeName: cut(f.GetNodeName()), IP: &flow.IP{Source: cut(f.GetIP().GetSource()), Destination: cut(f.GetIP().GetDestination())},
		Source: end(f.GetSource()), Destination: end(f.GetDestination()), TrafficDirection: f.GetTrafficDirection(),
	}
	if l4 := f.GetL4(); proto.Size(l4) <= maxName {
		out.L4 = l4
	}
	if f.GetIsReply() != nil {
		out.IsReply = f.GetIsReply()
	}
	return out
}

// refused returns the last flow of an edge that policy has refused; nil if there is none.
func (g *Graph) refused(edge string) *flow.Flow {
	g.mu.Lock()
	defer g.mu.Unlock()
	if e := g.edges[edge]; e != nil {
		return e.refused
	}
	return nil
}
