package groups

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/policy"
)

func rules(t testing.TB, text string) []*v2.Rule {
	t.Helper()
	var out []*v2.Rule
	if err := json.Unmarshal([]byte(text), &out); err != nil {
		t.Fatal(err)
	}
	return out
}

func group(id string) v2.Group { return v2.Group{AWS: &v2.AWSGroup{SecurityGroupsIDs: []string{id}}} }

// TestDerive: only entries with groups are there, as addresses; a group that fails or is empty is
// present and has no addresses.
func TestDerive(t *testing.T) {
	t.Parallel()
	const sg = `{"aws":{"securityGroupsIds":["%"]}}`
	in := func(id string) string { return strings.Replace(sg, "%", id, 1) }
	find := func(g v2.Group) (Members, error) {
		switch g.AWS.SecurityGroupsIDs[0] {
		case "a":
			return addrs("10.0.0.1", "2001:db8::1"), nil
		case "b":
			return addrs("10.0.0.1", "10.0.0.2"), nil
		case "many":
			return make(Members, maxMembers+1), nil
		case "bad":
			return nil, errors.New("no answer")
		}
		return nil, nil
	}
	var many strings.Builder // the first is one that has members, as has the last, which is not looked up
	many.WriteString(in("a") + ",")
	for i := range maxGroups {
		many.WriteString(in(fmt.Sprint("none-", i)) + ",")
	}
	many.WriteString(in("b"))
	for _, tt := range []struct{ name, in, want, fault string }{
		{"no groups", `[{"endpointSelector":{},"egress":[{"toCIDR":["10.0.0.0/8"]}]}]`, `null`, ""},
		{"entries with groups alone", `[{"endpointSelector":{"matchLabels":{"a":"b"}},"description":"d","enableDefaultDeny":{"egress":false},
			"egress":[{"toCIDR":["10.0.0.0/8"]},{"toGroups":[` + in("a") + `,` + in("b") + `],"toPorts":[{"ports":[{"port":"80"}]}]}],
			"ingress":[{"fromEntities":["host"]}]}, {"endpointSelector":{},"ingress":[{}]}]`,
			`[{"endpointSelector":{"matchLabels":{"a":"b"}},"description":"d","enableDefaultDeny":{"egress":false},
			"egress":[{"toCIDRSet":[{"cidr":"10.0.0.1/32"},{"cidr":"10.0.0.2/32"},{"cidr":"2001:db8::1/128"}],"toPorts":[{"ports":[{"port":"80"}]}]}]}]`, ""},
		{"empty", `[{"endpointSelector":{},"ingress":[{"fromGroups":[` + in("none") + `]}]}]`, `[{"endpointSelector":{},"ingress":[{"fromCIDRSet":[]}]}]`, ""},
		{"no group", `[{"endpointSelector":{},"ingress":[{"fromGroups":[]}]}]`, `[{"endpointSelector":{},"ingress":[{"fromCIDRSet":[]}]}]`, ""},
		{"one fails", `[{"endpointSelector":{},"egress":[{"toGroups":[` + in("bad") + `]},{"toGroups":[` + in("a") + `]}]}]`,
			`[{"endpointSelector":{},"egress":[{"toCIDRSet":[]},{"toCIDRSet":[{"cidr":"10.0.0.1/32"},{"cidr":"2001:db8::1/128"}]}]}]`,
			"rule 0: egress[0].toGroups[0]: no answer"},
		{"too many groups", `[{"endpointSelector":{},"egress":[{"toGroups":[` + many.String() + `]},{"toGroups":[` + in("a") + `]}]}]`,
			`[{"endpointSelector":{},"egress":[{"toCIDRSet":[{"cidr":"10.0.0.1/32"},{"cidr":"2001:db8::1/128"}]},{"toCIDRSet":[{"cidr":"10.0.0.1/32"},{"cidr":"2001:db8::1/128"}]}]}]`,
			"a policy may name 64 groups, this one names 66; those beyond are allowed nothing"},
		{"too many", `[{"endpointSelector":{},"ingress":[{"fromGroups":[` + in("many") + `]}]}]`, "", ""},
	} {
		if tt.name == "too many" {
			find = func(v2.Group) (Members, error) {
				out := make(Members, maxMembers+1)
				for i := range out {
					out[i] = addrs("10.0.0.0")[0]
					for range i % 3 {
						out[i] = out[i].Next()
					}
				}
				return out, nil // the same three again and again: fine
			}
			tt.want = `[{"endpointSelector":{},"ingress":[{"fromCIDRSet":[{"cidr":"10.0.0.0/32"},{"cidr":"10.0.0.1/32"},{"cidr":"10.0.0.2/32"}]}]}]`
		}
		got, err := derive(rules(t, tt.in), find)
		if tt.fault == "" && err != nil || tt.fault != "" && (err == nil || err.Error() != tt.fault) {
			t.Errorf("%s: fault %v, want %q", tt.name, err, tt.fault)
		}
		text, jerr := json.Marshal(got)
		if jerr != nil {
			t.Fatal(jerr)
		}
		var g, w any
		_ = json.Unmarshal(text, &g)
		if err := json.Unmarshal([]byte(tt.want), &w); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(w, g); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	next := addrs("10.0.0.0")[0]
	got, err := derive(rules(t, `[{"endpointSelector":{},"ingress":[{"fromGroups":[`+in("x")+`]}]}]`), func(v2.Group) (Members, error) {
		out := make(Members, maxMembers+1)
		for i := range out {
			out[i], next = next, next.Next()
		}
		return out, nil
	})
	if err == nil || len(got) != 1 || len(got[0].Ingress[0].FromCIDRSet) != 0 || got[0].Ingress[0].FromCIDRSet == nil {
		t.Errorf("too many members: %v", err)
	}
}

type fakeProvider struct {
	asked   int
	members Members
	err     error
}

func (f *fakeProvider) Members(context.Context, v2.Group) (Members, error) {
	f.asked++
	return f.members, f.err
}

// TestCache: many policies cost one look; a failing provider does not cost a policy the members
// that were known.
func TestCache(t *testing.T) {
	t.Parallel()
	f := &fakeProvider{members: addrs("10.0.0.1")}
	b := newCache(f, time.Minute)
	now := time.Unix(0, 0)
	b.now = func() time.Time { return now }
	look := func(g v2.Group, wantAsked int, wantKnown bool, wantFault bool) {
		t.Helper()
		m, known, err := b.find(t.Context(), g)
		if f.asked != wantAsked || known != wantKnown || (err != nil) != wantFault || known && len(m) != 1 {
			t.Errorf("members %v, known %t, %v, asked %d times; want known %t, fault %t, %d times", m, known, err, f.asked, wantKnown, wantFault, wantAsked)
		}
	}
	two := v2.Group{AWS: &v2.AWSGroup{SecurityGroupsIDs: []string{"a", "b"}}}
	look(two, 1, true, false)
	look(v2.Group{AWS: &v2.AWSGroup{SecurityGroupsIDs: []string{"b", "a"}}}, 1, true, false)
	now = now.Add(time.Minute)
	f.err, f.members = errors.New("away"), nil
	look(two, 2, true, true)
	look(two, 2, true, true) // other policies with the group do not wait for it again
	look(group("new"), 3, false, true)
	now = now.Add(time.Minute / 12)
	look(two, 4, true, true)
	now = now.Add(time.Minute / 12 * 99 / 100) // the pause is longer, and random in its upper half
	look(two, 4, true, true)
	now = now.Add(5 * time.Minute)
	f.err, f.members = nil, addrs("10.0.0.2")
	look(group("new"), 5, true, false)
	if len(b.groups) != 1 {
		t.Errorf("%d groups are remembered, want the one that is asked for", len(b.groups))
	}

	// A policy whose time is over says nothing of a group.
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, known, err := b.find(ctx, group("next")); known || !errors.Is(err, errLater) || f.asked != 5 {
		t.Errorf("known %t, %v, asked %d times", known, err, f.asked)
	}
	f.err = errLater
	look(group("next"), 6, false, true)
	f.err = nil
	look(group("next"), 7, true, false)
}

// TestUnderstood: what of a policy is wrong takes the groups from the entries that it concerns, and
// from no other.
func TestUnderstood(t *testing.T) {
	t.Parallel()
	const groups = `"toGroups":[{"aws":{"securityGroupsIds":["sg-1"]}}]`
	for spec, want := range map[string]string{
		`{"endpointSelector":{},"egress":[{` + groups + `},{"toEntities":["host"]}]}`:                                                               "spec.egress[0]",
		`{"endpointSelector":{},"egress":[{"toFQDNs":[{"matchName":"x.y"}]},{` + groups + `}]}`:                                                     "spec.egress[1]",
		`{"endpointSelector":{},"egress":[{` + groups + `,"authentication":{"mode":"required"}},{` + groups + `}]}`:                                 "spec.egress[1]",
		`{"endpointSelector":{},"egress":[{` + groups + `,"toPorts":[{"ports":[{"port":"80"}],"rules":{"http":[{}]}},{"ports":[{"port":"81"}]}]}]}`: "",
		`{"endpointSelector":{},"egress":[{` + groups + `,"unheardOf":1}]}`:                                                                         "",
		`{"endpointSelector":{"matchLabels":{":":"x"}},"egress":[{` + groups + `}]}`:                                                                "",
		`{"endpointSelector":{},"unheardOf":1,"egress":[{` + groups + `}]}`:                                                                         "",
		`{"egress":[{` + groups + `}]}`: "",
		`{"endpointSelector":{},"ingressDeny":[{"fromNodes":[{}]}],"egress":[{` + groups + `}]}`: "spec.egress[0]",
	} {
		text := fmt.Sprintf(`{"metadata":{"name":"p","namespace":"default"},"spec":%s}`, spec)
		_, refused := policies.Parse(v2.KindNetworkPolicy, []byte(text))
		var p parent
		if err := json.Unmarshal([]byte(text), &p); err != nil {
			t.Fatal(err)
		}
		whole := understood(refused)
		var got []string
		for i, e := range p.Spec.Egress {
			if at := fmt.Sprintf("spec.egress[%d]", i); e.ToGroups != nil && whole("spec", at) {
				got = append(got, at)
			}
		}
		if strings.Join(got, " ") != want {
			t.Errorf("%s (%v): derived is %q, not %q", spec, refused, got, want)
		}
		rules, left := p.rules(refused)
		if named(rules) != (want != "") || (refused == nil) && left != nil {
			t.Errorf("%s: groups are named: %t; left out: %v", spec, named(rules), left)
		}
	}
	if _, ok := faultyFields(errors.Join(&policy.FieldError{Field: "spec.egress[0]"}, errors.New("no field"))); ok {
		t.Error("a fault without a field is overlooked")
	}
}
