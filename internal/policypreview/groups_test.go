package policypreview

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	policypb "github.com/hawser-net/hawser/api/policy"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/policy"
	"github.com/hawser-net/hawser/internal/policy/oracle"
)

// derivedName is what the operator calls what it derives from the policy withGroups.
const derivedName = "db-togroups-0a1b2c3d-0000-4444-8888-0123456789ab"

// withGroups is a policy with groups as the API server has it.
const withGroups = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata:
  name: db
  namespace: shop
  uid: 0a1b2c3d-0000-4444-8888-0123456789ab
  managedFields: [{manager: kubectl, operation: Update}]
spec:
  endpointSelector: {matchLabels: {app: db}}
  egress:
  - toGroups: [{aws: {securityGroupsIds: [sg-1], region: eu-central-1}}]
    toPorts: [{ports: [{port: "443", protocol: TCP}]}]
status:
  conditions: [{type: Valid, status: "True", lastTransitionTime: "2026-03-01T12:00:00Z"}]
  derivativePolicies:
    ` + derivedName + `: {ok: true, enforcing: true, lastUpdated: "2026-03-01T12:00:00Z"}
`

// members is what the operator derives from it.
const members = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: ` + derivedName + `, namespace: shop}
specs:
- endpointSelector: {matchLabels: {app: db}}
  egress:
  - toCIDRSet: [{cidr: 192.0.2.1/32}]
    toPorts: [{ports: [{port: "443", protocol: TCP}]}]
`

const isolated = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: isolated, namespace: shop}
spec: {endpointSelector: {matchLabels: {app: db}}, egress: [{}]}
`

// TestGroups: what the operator allows the members of groups stays as long as their policy names
// the same ones. What it will allow when they change is not known, so that it counts as refused and
// a warning says so: a pipeline must not take such a change for one that refuses nothing.
func TestGroups(t *testing.T) {
	t.Parallel()
	other := strings.Replace(withGroups, "name: db\n", "name: front\n", 1)
	const ungrouped = "toCIDR: [203.0.113.0/24]"
	groups := "toGroups: [{aws: {securityGroupsIds: [sg-1], region: eu-central-1}}]"
	for _, row := range []struct {
		name     string
		texts    []string
		delete   string
		refused  uint64
		changes  []string
		warnings []string
	}{
		{"unchanged", []string{withGroups}, "", 0, []string{"UNCHANGED db"}, nil},
		{"other groups", []string{strings.Replace(withGroups, "sg-1", "sg-2", 1)}, "", 1, []string{"REPLACED db"},
			[]string{"0.yaml: line 1: the members of groups are not looked up: what they will be allowed counts as refused", "what CiliumNetworkPolicy shop/" + derivedName + " allows their members now counts as refused"}},
		{"other ports", []string{strings.Replace(withGroups, "443", "444", 1)}, "", 1, []string{"REPLACED db"}, []string{"not looked up", derivedName}},
		{"other endpoints", []string{strings.Replace(withGroups, "{matchLabels: {app: db}}", "{}", 1)}, "", 2, []string{"REPLACED db"}, []string{"not looked up", derivedName}},
		{"another entry beside the groups", []string{strings.Replace(withGroups, "  egress:\n", "  ingress: [{}]\n  egress:\n", 1)}, "", 0, []string{"REPLACED db"}, nil},
		{"no groups any more", []string{strings.Replace(withGroups, groups, ungrouped, 1)}, "", 1, []string{"REPLACED db", "DELETED " + derivedName}, nil},
		{"other groups, and what is derived is given", []string{strings.Replace(withGroups, "sg-1", "sg-2", 1), members}, "", 0, []string{"REPLACED db", "UNCHANGED " + derivedName}, []string{"not looked up"}},
		{"deleted", nil, "db", 0, []string{"DELETED db", "DELETED " + derivedName}, nil},
		{"deleted, and another policy isolates", []string{isolated}, "db", 1, []string{"ADDED isolated", "DELETED db", "DELETED " + derivedName}, nil},
		{"both deleted", nil, "db " + derivedName, 0, []string{"DELETED db", "DELETED " + derivedName}, nil},
		{"nothing is derived yet", []string{strings.ReplaceAll(other, "app: db", "app: front")}, "", 1, []string{"ADDED front"}, []string{"not looked up"}},
	} {
		w := newWorld(t, rand.New(rand.NewPCG(1, 2)), 0)
		for i, app := range []string{"db", "front"} {
			p := w.addPod(podSet(t, "shop", map[string]string{"app": app}), w.addr(byte(1+i)))
			w.record(w.podEnd(p), w.outsideEnd(w.outside[2*i]), datapath.ProtoTCP, 443)
		}
		for name, text := range map[string]string{"db": withGroups, derivedName: members} {
			object, err := yaml.YAMLToJSON([]byte(text))
			if err != nil {
				t.Fatal(err)
			}
			rules, err := policies.Parse(v2.KindNetworkPolicy, object) // as nodes do
			if err != nil {
				t.Fatal(err)
			}
			w.put(ownerOf(policy.Name{Kind: v2.KindNetworkPolicy, Namespace: "shop", Name: name}), rules, oracle.Policy{})
		}
		req := &policypb.PreviewRequest{}
		for i, text := range row.texts {
			req.Documents = append(req.Documents, &policypb.Document{Name: fmt.Sprint(i, ".yaml"), Content: []byte(text)})
		}
		for name := range strings.FieldsSeq(row.delete) {
			req.Delete = append(req.Delete, &policypb.PolicyName{Namespace: "shop", Name: name})
		}
		res := w.preview(req)
		var changes []string
		for _, c := range res.GetChanges() {
			changes = append(changes, c.GetAction().String()+" "+c.GetPolicy().GetName())
		}
		if !slices.Equal(changes, row.changes) || res.GetSummary().GetRefused() != row.refused || len(res.GetWarnings()) != len(row.warnings) {
			t.Errorf("%s: %q, %d refused, warnings %q; want %q, %d and %q", row.name, changes, res.GetSummary().GetRefused(), res.GetWarnings(), row.changes, row.refused, row.warnings)
			continue
		}
		for i, want := range row.warnings {
			if !strings.Contains(res.GetWarnings()[i], want) {
				t.Errorf("%s: the warning %q does not say %q", row.name, res.GetWarnings()[i], want)
			}
		}
	}
}

// TestGroupsInFiles: nodes refuse groups in files, and so does a preview of such a policy.
func TestGroupsInFiles(t *testing.T) {
	t.Parallel()
	changes, err := newChanges(document(isolated), nil)
	if err != nil {
		t.Fatal(err)
	}
	inForce := map[policy.Owner][]*policy.Rule{"node.yaml/shop/db": changes.rules[0].Rules}
	if _, err := newChanges(document(withGroups), inForce); err == nil || !strings.Contains(err.Error(), "line 1: CiliumNetworkPolicy shop/db is in a file of the nodes, where fromGroups and toGroups are not supported") {
		t.Errorf("groups in a file: %v", err)
	}
}

// TestDerivedNames: names are cut where the operator cuts them.
func TestDerivedNames(t *testing.T) {
	t.Parallel()
	const tail = "-togroups-0a1b2c3d-0000-4444-8888-0123456789ab"
	for _, row := range []struct {
		of, made string
		is       bool
	}{
		{"db", "db" + tail, true}, {"db", "dbs" + tail, false}, {"db", "db" + tail[:len(tail)-1], false},
		{strings.Repeat("x", 253), strings.Repeat("x", 207) + tail, true},
		{strings.Repeat("x", 206) + ".yyy", strings.Repeat("x", 206) + tail, true},
	} {
		of := policy.Name{Kind: v2.KindNetworkPolicy, Namespace: "shop", Name: row.of}
		made := policy.Name{Kind: of.Kind, Namespace: of.Namespace, Name: row.made}
		c := &changes{groups: []regrouped{{name: of}}}
		c.deleteDerived(map[policy.Name][]policy.Owner{of: {ownerOf(of)}, made: {ownerOf(made)}}, nil)
		if is := len(c.rules) == 1 && c.rules[0].Owner == ownerOf(made); is != row.is {
			t.Errorf("with %q goes %q: %v", row.of, row.made, is)
		}
	}
}
