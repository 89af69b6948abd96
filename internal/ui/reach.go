package ui

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/policy"
)

const (
	// reachAge is how old an answer about allowed connections may be, reachTimeout how long one may
	// take.
	reachAge     = 10 * time.Second
	reachTimeout = 20 * time.Second
	// maxAnswer is how much of an answer of the server is held, as policy.Read counts it.
	maxAnswer = 16 << 20
	// maxParties is how many parties are compared. A row of them is a row of the answer.
	maxParties = 400
	// maxNamespaces is how many namespaces one may ask for.
	maxNamespaces = 64
)

// Verdicts about pairs, as the page has them.
const (
	mayAll     = "allowed"
	mayNone    = "denied"
	maySome    = "partial"
	mayUnknown = ""
)

// Reach is the connections that the policies in force allow.
type Reach struct {
	// Error is why nothing is known.
	Error string `json:"error,omitempty"`
	// Node computed it.
	Node     string    `json:"node,omitempty"`
	Revision uint64    `json:"revision,omitempty"`
	Time     time.Time `json:"time"`
	LeftOut  uint32    `json:"leftOut,omitempty"`
	// Parties are workloads, entities and prefixes by their IDs, those of Graph where it has seen
	// them.
	Parties []Party `json:"parties"`
	// Accesses are different ones, and Rows has, for each party as a source, the place of what
	// passes to each party as a destination.
	Accesses []Access `json:"accesses"`
	Rows     [][]int  `json:"rows"`
}

// Party is a set of workloads that policies treat alike, as far as the page distinguishes them.
type Party struct {
	ID         string   `json:"id"`
	Namespace  string   `json:"namespace,omitempty"`
	Name       string   `json:"name"`
	Identities []uint32 `json:"identities,omitempty"`
}

// Access is what passes from one party to another, and by whose leave.
type Access struct {
	Verdict   string     `json:"verdict"`
	Ports     []string   `json:"ports,omitempty"`
	Egress    AccessSide `json:"egress"`
	Ingress   AccessSide `json:"ingress"`
	ByAddress bool       `json:"byAddress,omitempty"`
}

// AccessSide is the outcome of the policies of one of the two parties.
type AccessSide struct {
	Enforced bool     `json:"enforced,omitempty"`
	Policies []string `json:"policies,omitempty"`
}

// reachCache is the last answer. The holder of turn may change it.
type reachCache struct {
	turn chan struct{}
	key  string
	at   time.Time
	last Reach
}

// Reach returns the allowed connections of some namespaces, or of all. Answers are cached, so that
// many clients cause few requests to the server.
func (f *Follower) Reach(ctx context.Context, namespaces []string) (Reach, error) {
	if f.Policy == nil {
		return noReach("the server does not compute who may reach whom"), nil
	}
	c := &f.reach
	turn := f.turnOf(&c.turn)
	select {
	case turn <- struct{}{}:
		defer func() { <-turn }()
	case <-ctx.Done():
		return Reach{}, ctx.Err()
	}
	key := strings.Join(namespaces, ",")
	if c.key == key && time.Since(c.at) < reachAge {
		return c.last, nil
	}
	bounded, cancel := context.WithTimeout(ctx, reachTimeout)
	defer cancel()
	res, err := askMatrix(bounded, f.Policy, namespaces)
	switch {
	case ctx.Err() != nil:
		return Reach{}, ctx.Err()
	case status.Code(err) == codes.Unimplemented:
		c.last = noReach("the server does not compute who may reach whom")
	case err != nil:
		c.last = noReach(message(err))
	default:
		c.last = newReach(res, f.Graph.byIdentity())
	}
	c.key, c.at = key, time.Now()
	return c.last, nil
}

// noReach is an answer that knows nothing, and why.
func noReach(why string) Reach {
	return Reach{Error: why, Parties: []Party{}, Accesses: []Access{}, Rows: [][]int{}}
}

// turnOf returns the channel that serves as the cache's lock.
func (f *Follower) turnOf(turn *chan struct{}) chan struct{} {
	f.mu.Lock()
	defer f.mu.Unlock()
	if *turn == nil {
		*turn = make(chan struct{}, 1)
	}
	return *turn
}

// askMatrix puts the pieces of an answer together, of at most so many parties.
func askMatrix(ctx context.Context, client policy.PolicyClient, namespaces []string) (*policy.MatrixResponse, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	stream, err := client.Matrix(ctx, &policy.MatrixRequest{Namespaces: namespaces, Parties: maxParties})
	if err != nil {
		return nil, err
	}
	all, err := policy.Read(stream, maxAnswer)
	if err != nil {
		return nil, err
	}
	if len(all.GetParties()) > maxParties {
		return nil, fmt.Errorf("the server lists more than the %d parties that it was asked for", maxParties)
	}
	return all, nil
}

// newReach makes an answer for the page: of workloads, where policies evaluate identities. A
// workload may have several, and some an identity in common.
func newReach(res *policy.MatrixResponse, known map[uint32][]Workload) Reach {
	out := Reach{
		Node: res.GetNodeName(), Revision: res.GetRevision(), Time: res.GetTime().AsTime(), LeftOut: res.GetPartiesLeftOut(),
		Parties: []Party{}, Accesses: []Access{}, Rows: [][]int{},
	}
	place := map[string]int{}
	of := make([][]int, 0, maxParties) // places of the parties of a place
	for i, p := range res.GetParties() {
		one := Workload{ID: p.GetNamespace() + "/" + p.GetName(), Namespace: p.GetNamespace(), Name: p.GetName()}
		if one.Namespace == "" {
			one.ID = ":" + one.Name
		}
		as := []Workload{one.of(p.GetCluster())}
		if ws := known[p.GetIdentity()]; p.GetKind() == policy.PartyKind_PARTY_PODS && len(ws) > 0 {
			as = ws
		}
		for _, w := range as {
			at, ok := place[w.ID]
			if !ok {
				if len(out.Parties) == 2*maxParties {
					out.LeftOut++
					continue
				}
				at = len(out.Parties)
				place[w.ID] = at
				out.Parties = append(out.Parties, Party{ID: w.ID, Namespace: w.Namespace, Name: w.Name})
				of = append(of, nil)
			}
			out.Parties[at].Identities = append(out.Parties[at].Identities, p.GetIdentity())
			of[at] = append(of[at], i)
		}
	}
	rows := make(map[int][]uint32, len(res.GetRows()))
	for _, r := range res.GetRows() {
		rows[int(r.GetSource())] = r.GetAccesses()
	}
	merged := map[string]int{}
	merge := func(from, to []int) int {
		var which []uint32
		for _, a := range from {
			for _, b := range to {
				if row := rows[a]; b < len(row) && int(row[b]) < len(res.GetAccesses()) {
					which = append(which, row[b])
				}
			}
		}
		slices.Sort(which)
		which = slices.Compact(which)
		key := fmt.Sprint(which)
		at, ok := merged[key]
		if !ok {
			at = len(out.Accesses)
			merged[key] = at
			var all []*policy.Access
			for _, i := range which {
				all = append(all, res.GetAccesses()[i])
			}
			out.Accesses = append(out.Accesses, newAccess(all...))
		}
		return at
	}
	for _, from := range of {
		row := make([]int, 0, len(of))
		for _, to := range of {
			row = append(row, merge(from, to))
		}
		out.Rows = append(out.Rows, row)
	}
	return out
}

// newAccess combines several outcomes: partial where they differ.
func newAccess(all ...*policy.Access) (out Access) {
	verdicts, ports := map[string]bool{}, map[string]bool{}
	names := [2]map[string]bool{{}, {}}
	for _, a := range all {
		verdicts[verdictName(a.GetVerdict())] = true
		if len(a.GetPorts()) > 0 {
			for _, p := range policy.PortsText(a.GetPorts(), portOf) {
				ports[p] = true
			}
		}
		out.ByAddress = out.ByAddress || a.GetByAddress()
		out.Egress.Enforced = out.Egress.Enforced || a.GetEgress().GetEnforced()
		out.Ingress.Enforced = out.Ingress.Enforced || a.GetIngress().GetEnforced()
		for i, s := range []*policy.AccessSide{a.GetEgress(), a.GetIngress()} {
			for _, p := range s.GetPolicies() {
				names[i][p.Text()] = true
			}
		}
	}
	delete(verdicts, mayUnknown)
	switch {
	case len(verdicts) > 1:
		out.Verdict = maySome
	case len(verdicts) == 1:
		for v := range verdicts {
			out.Verdict = v
		}
	}
	out.Ports, out.Egress.Policies, out.Ingress.Policies = sorted(ports), sorted(names[0]), sorted(names[1])
	return out
}

func sorted(set map[string]bool) (out []string) {
	for s := range set {
		out = append(out, s)
	}
	slices.Sort(out)
	return out
}

func verdictName(v policy.Verdict) string {
	switch v {
	case policy.Verdict_ALLOWED:
		return mayAll
	case policy.Verdict_DENIED:
		return mayNone
	case policy.Verdict_PARTIAL:
		return maySome
	}
	return mayUnknown
}

// portOf writes ports as flows have them here.
func portOf(protocol, ports string) string { return protocol + " " + ports }
