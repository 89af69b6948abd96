package policydir

import (
	"strings"
	"testing"

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
		{strings.Replace(everyKind, "toEntities: [all]", "toEntities: [nobody]", 1), "line 14: "},
		{strings.Replace(everyKind, "action: Deny", "action: Maybe", 1), "line 21: spec.ingress[0].action"},
		{everyKind + "---\n" + everyKind, "is there already, at line 2"},
		{strings.Repeat("a: &a [x, x]\n", 3), "line "},
	} {
		if _, err := Documents([]byte(row.text)); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("the error of %.60q is %v, want %q in it", row.text, err, row.want)
		}
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
		}
	})
}
