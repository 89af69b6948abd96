package policydir

import (
	"bytes"
	"maps"
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"

	"github.com/hawser-net/hawser/internal/policy"
)

const everyKind = `# what may stand before
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: db, namespace: shop}
spec:
  podSelector: {matchLabels: {app: db}}
  ingress:
  - from: [{podSelector: {matchLabels: {app: front}}}]
    ports: [{port: 5432}]
---
{"apiVersion": "cilium.io/v2", "kind": "CiliumNetworkPolicy", "metadata": {"name": "db"},
 "spec": {"endpointSelector": {}, "ingress": [{}]}}
---
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: base}
spec: {endpointSelector: {}, egress: [{toEntities: [all]}]}
---
# nothing
---
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: admin}
spec:
  tier: Admin
  priority: 1
  subject: {namespaces: {}}
  ingress:
  - action: Deny
    from: [{namespaces: {}}]
`

func TestDocumentsReadsEveryKind(t *testing.T) {
	t.Parallel()
	docs, err := Documents([]byte(everyKind))
	if err != nil {
		t.Fatal(err)
	}
	want := []struct {
		name policy.Name
		line int
	}{
		{policy.Name{Kind: "NetworkPolicy", Namespace: "shop", Name: "db"}, 2},
		{policy.Name{Kind: "CiliumNetworkPolicy", Namespace: "default", Name: "db"}, 11},
		{policy.Name{Kind: "CiliumClusterwideNetworkPolicy", Name: "base"}, 14},
		{policy.Name{Kind: "ClusterNetworkPolicy", Name: "admin"}, 21},
	}
	if len(docs) != len(want) {
		t.Fatalf("read %+v", docs)
	}
	for i, d := range docs {
		if d.Name != want[i].name || d.Line != want[i].line || len(d.Rules) == 0 {
			t.Errorf("document %d is %v at line %d with %d rules, want %+v", i, d.Name, d.Line, len(d.Rules), want[i])
		}
	}
}

func TestDocumentsNamesLineAndFault(t *testing.T) {
	t.Parallel()
	for _, row := range []struct{ text, want string }{
		{"apiVersion: v1\nkind: Pod\n", `line 1: "Pod"`},
		{"---\n\n---\nkind: [\n", "line 4: yaml: line 4"},
		{"# a\n\n- 1\n", "line 3: the document is not an object"},
		{strings.Replace(everyKind, "port: 5432", "prot: 5432", 1), "line 2: spec.ingress[0].ports[0].prot: is not a field"},
		{strings.Replace(everyKind, "toEntities: [all]", "toEntities: [unknown]", 1), "line 14: "},
		{strings.Replace(everyKind, "action: Deny", "action: Maybe", 1), "line 21: spec.ingress[0].action"},
		{everyKind + "---\n" + everyKind, "is there already, at line 2"},
		{strings.Repeat("a: &a [x, x]\n", 3), "line "},
	} {
		if _, err := Documents([]byte(row.text)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("the error of %.60q is %v, want %q in it", row.text, err, row.want)
		}
	}
}

// TestLinesOfRules: a rule is found at its line, whatever else its text has; what is not spelt out
// has none.
func TestLinesOfRules(t *testing.T) {
	t.Parallel()
	const text = `# first
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: two}
specs:
- endpointSelector: {}
  ingress:
  - fromEndpoints: [{}]
  # another
  - fromEntities:
    - world
    toPorts: &ports
    - ports: [{port: "80"}]
- endpointSelector: {}
  egress: [
    {toEntities: [world]}, {toEntities: [host],
     toPorts: *ports}]
--- # the next one
apiVersion: cilium.io/v2
kind: CiliumClusterwideNetworkPolicy
metadata: {name: one}
spec: &spec
  endpointSelector: {}
  ingressDeny: [{fromEntities: [world]}]
`
	docs, err := Documents([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	want := []map[string]int{
		{"specs[0]": 6, "specs[0].ingress[0]": 8, "specs[0].ingress[1]": 10, "specs[1]": 14, "specs[1].egress[0]": 16, "specs[1].egress[1]": 16},
		{"spec": 22, "spec.ingressDeny[0]": 24},
	}
	for i, d := range docs {
		if !maps.Equal(d.Lines, want[i]) {
			t.Errorf("lines of %v: %v, want %v", d.Name, d.Lines, want[i])
		}
	}
	objects, err := Decode("a.yaml", []byte(text))
	if err != nil || len(objects) != 2 || !maps.Equal(objects[1].Lines, want[1]) {
		t.Errorf("a file: %+v, %v", objects, err)
	}
	for _, path := range []string{"", ".", "spec[", "spec[0", "spec[0]", "spec[-1]", "spec.ingressDeny[1]", "spec.ingressDeny[0]]", "spec.ingressDeny[0][0]", "nothing"} {
		var root yaml.Node
		if err := yaml.Unmarshal([]byte("spec: {ingressDeny: [{}]}\nloop: &a [*a]\n"), &root); err == nil {
			if n := lineAt(root.Content[0], path); n != 0 && path != "spec.ingressDeny[0]]" {
				t.Errorf("%q is at line %d", path, n)
			}
		}
	}
}

// TestGroupsInDocuments: groups of a cloud provider are read where they allow, as in objects of
// Kubernetes, and allow nobody; rules with other groups are others. In files they are refused.
func TestGroupsInDocuments(t *testing.T) {
	t.Parallel()
	const text = `apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: db}
spec:
  endpointSelector: {}
  egress:
  - toGroups: [{aws: {securityGroupsIds: [sg-1]}}]
`
	read := func(text string) []*policy.Rule {
		docs, err := Documents([]byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return docs[0].Rules
	}
	rules, same := read(text), read(text+"  ingress: [{}]\n")
	c := rules[0].Clauses
	if len(c) != 1 || c[0].AllPeers || len(c[0].Peers) > 0 {
		t.Errorf("the groups allow %+v", c)
	}
	if len(rules[0].Labels) != 1 || !rules[0].Labels.Equal(same[0].Labels) || rules[0].Labels.Equal(read(strings.Replace(text, "sg-1", "sg-2", 1))[0].Labels) {
		t.Errorf("groups are marked %v, beside another entry %v", rules[0].Labels, same[0].Labels)
	}
	if _, err := Documents([]byte(strings.Replace(text, "egress:", "egressDeny:", 1))); err == nil || !strings.Contains(err.Error(), "toGroups") {
		t.Errorf("groups that are denied: %v", err)
	}
	if _, err := Decode("a.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), "spec.egress[0].toGroups: is not supported") {
		t.Errorf("groups in a file: %v", err)
	}
}

func FuzzDocuments(f *testing.F) {
	f.Add([]byte(everyKind))
	f.Add([]byte("a: &a [*a]\n---\n..."))
	f.Fuzz(func(t *testing.T, data []byte) {
		docs, err := Documents(data)
		if err != nil && docs != nil {
			t.Fatalf("documents beside the error %v", err)
		}
		for _, d := range docs {
			if d.Name.Name == "" || len(d.Rules) == 0 || d.Line < 1 {
				t.Fatalf("%+v of %q", d, data)
			}
			for path, line := range d.Lines {
				if line < 1 || line > 2+bytes.Count(data, []byte("\n")) {
					t.Fatalf("%s is at line %d of %q", path, line, data)
				}
			}
		}
	})
}
