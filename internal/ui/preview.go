package ui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime"
	"net/http"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/policy"
)

const (
	// maxDocument is the size of the policies that may be asked about, in bytes: what a server of
	// flows takes.
	maxDocument = 256 << 10
	// previewTimeout is how long an answer may take.
	previewTimeout = 45 * time.Second
	// maxPreview is how many connections of each sort, and how many pairs, are listed.
	maxPreview = 300
	// documentType is what a document is sent as. No form of a page can send it.
	documentType = "application/yaml"
	noPreview    = "the server does not preview policies"
)

// Preview is what other policies would change.
type Preview struct {
	// Error is why nothing was evaluated, such as the line that is no policy.
	Error    string    `json:"error,omitempty"`
	Node     string    `json:"node"`
	Time     time.Time `json:"time"`
	Changes  []Change  `json:"changes"`
	Warnings []string  `json:"warnings"`
	// Problems are nodes whose connections are missing.
	Problems []string `json:"problems"`
	// Connections that were seen and would be evaluated otherwise, those to be refused first.
	Connections []Connection `json:"connections"`
	Pairs       []PairChange `json:"pairs"`
	// Counts of all there is, also of what is left out.
	Refused      uint64 `json:"refused"`
	Allowed      uint64 `json:"allowed"`
	Unchanged    uint64 `json:"unchanged"`
	Opened       uint64 `json:"opened"`
	Closed       uint64 `json:"closed"`
	Flows        uint64 `json:"flows"`
	NotEvaluated uint64 `json:"notEvaluated"`
	Oldest       string `json:"oldest,omitempty"`
	PairsOut     uint64 `json:"pairsLeftOut"`
	PartiesOut   uint32 `json:"partiesLeftOut"`
	ConnectsOut  uint64 `json:"connectionsLeftOut"`
	// ChangedAtMost is whether Refused and Allowed may count connections twice, UnchangedAtMost the
	// same of Unchanged. EventsLost are lost events: counts are at least so many.
	ChangedAtMost   bool   `json:"changedAtMost,omitempty"`
	UnchangedAtMost bool   `json:"unchangedAtMost,omitempty"`
	EventsLost      uint64 `json:"eventsLost,omitempty"`
}

// Change is a policy that would be otherwise.
type Change struct {
	Action string `json:"action"`
	Kind   string `json:"kind"`
	Policy string `json:"policy"`
	Line   uint32 `json:"line,omitempty"`
}

// Connection is what was seen from one party to another.
type Connection struct {
	Source      string    `json:"source"`
	Destination string    `json:"destination"`
	Port        string    `json:"port"`
	Refused     bool      `json:"refused"` // and not allowed
	Count       uint64    `json:"count"`
	Seen        time.Time `json:"seen"`
	// Why names the rules that decide.
	Why string `json:"why"`
}

// PairChange is a pair between which something else would pass.
type PairChange struct {
	Source      string   `json:"source"`
	Destination string   `json:"destination"`
	Before      string   `json:"before"`
	After       string   `json:"after"`
	Opened      []string `json:"opened,omitempty"`
	Closed      []string `json:"closed,omitempty"`
	Policies    []string `json:"policies,omitempty"`
}

// servePreview answers what other policies would change. Nothing is applied, here or there.
func (s *Server) servePreview(w http.ResponseWriter, r *http.Request) {
	if kind, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || kind != documentType {
		http.Error(w, "send policies as "+documentType, http.StatusUnsupportedMediaType)
		return
	}
	content, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxDocument))
	var large *http.MaxBytesError
	switch {
	case errors.As(err, &large):
		http.Error(w, fmt.Sprintf("the policies are larger than %d KiB", maxDocument>>10), http.StatusRequestEntityTooLarge)
		return
	case err != nil:
		http.Error(w, "the policies did not arrive whole", http.StatusBadRequest)
		return
	}
	if s.follower.Policy == nil {
		answer(w, r, Preview{Error: noPreview})
		return
	}
	ctx, cancel := context.WithTimeout(r.Context(), previewTimeout)
	defer cancel()
	out, err := askPreview(ctx, s.follower.Policy, content)
	if err == nil {
		answer(w, r, out)
		return
	}
	text := message(err)
	if status.Code(err) == codes.Unimplemented {
		text = noPreview
	}
	answer(w, r, Preview{Error: text})
}

// askPreview asks the server, and keeps no more of the answer than was asked for.
func askPreview(ctx context.Context, client policy.PolicyClient, content []byte) (*Preview, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Preview(ctx, &policy.PreviewRequest{
		Documents: []*policy.Document{{Name: "document", Content: content}}, Connections: maxPreview, Pairs: maxPreview,
	})
	if err != nil {
		return nil, err
	}
	res, err := policy.Read(stream, maxAnswer)
	if err != nil {
		return nil, err
	}
	out := &Preview{
		Node: res.GetNodeName(), Time: res.GetTime().AsTime(),
		Changes: []Change{}, Warnings: []string{}, Problems: []string{}, Connections: []Connection{}, Pairs: []PairChange{},
	}
	for _, c := range first(res.GetChanges(), maxPreview) {
		out.Changes = append(out.Changes, Change{actionName(c.GetAction()), c.GetPolicy().GetKind(), c.GetPolicy().Text(), c.GetLine()})
	}
	out.Warnings = append(out.Warnings, first(res.GetWarnings(), maxPreview)...)
	for _, p := range first(res.GetProblems(), maxPreview) {
		out.Problems = append(out.Problems, p.GetNodeName()+": "+p.GetProblem())
	}
	for _, c := range first(res.GetConnections(), 2*maxPreview) { // of each sort
		out.Connections = append(out.Connections, newConnection(c))
	}
	for _, p := range first(res.GetPairs(), maxPreview) {
		after := newAccess(p.GetAfter())
		one := PairChange{
			Source: res.GetParties()[p.GetSource()].Text(), Destination: res.GetParties()[p.GetDestination()].Text(),
			Before: verdictName(p.GetBefore().GetVerdict()), After: after.Verdict,
			Policies: append(after.Egress.Policies, after.Ingress.Policies...),
		}
		if len(p.GetOpened()) > 0 {
			one.Opened = p.OpenedText(portOf)
		}
		if len(p.GetClosed()) > 0 {
			one.Closed = p.ClosedText(portOf)
		}
		out.Pairs = append(out.Pairs, one)
	}
	out.count(res.GetSummary())
	return out, nil
}

// first returns as many of a list.
func first[T any](list []T, most int) []T { return list[:min(len(list), most)] }

func (p *Preview) count(s *policy.PreviewSummary) {
	if s == nil {
		return
	}
	p.Refused, p.Allowed, p.Unchanged = s.GetRefused(), s.GetAllowed(), s.GetUnchanged()
	p.Opened, p.Closed, p.Flows, p.NotEvaluated = s.GetPairsOpened(), s.GetPairsClosed(), s.GetFlows(), s.GetFlowsNotEvaluated()
	p.PairsOut, p.PartiesOut, p.ConnectsOut = s.GetPairsLeftOut(), s.GetPartiesLeftOut(), s.GetConnectionsLeftOut()
	p.ChangedAtMost, p.UnchangedAtMost, p.EventsLost = s.GetChangedAtMost(), s.GetUnchangedAtMost(), s.GetEventsLost()
	if s.GetOldest() != nil {
		p.Oldest = s.GetOldest().AsTime().Format(time.RFC3339)
	}
}

func newConnection(c *policy.Connection) Connection {
	out := Connection{
		Source: c.GetSource().Text(), Destination: c.GetDestination().Text(), Port: c.GetProtocol(), Refused: c.GetAfter() == policy.Verdict_DENIED,
		Count: c.GetCount(), Seen: c.GetLastSeen().AsTime(), Why: c.GetDecision().Text(),
	}
	if c.GetPort() != 0 {
		out.Port = portOf(c.GetProtocol(), fmt.Sprint(c.GetPort()))
	}
	return out
}

func actionName(a policy.ChangeAction) string {
	switch a {
	case policy.ChangeAction_ADDED:
		return "added"
	case policy.ChangeAction_REPLACED:
		return "replaced"
	case policy.ChangeAction_DELETED:
		return "deleted"
	}
	return "unchanged"
}
