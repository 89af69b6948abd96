package labels

import (
	"go/ast"
	"go/parser"
	"go/token"
	"strconv"
	"strings"
	"testing"
)

// sources reads the constants of sources from the code, so that none is forgotten here.
func sources(t *testing.T) (out []string) {
	t.Helper()
	file, err := parser.ParseFile(token.NewFileSet(), "label.go", nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(file, func(n ast.Node) bool {
		v, ok := n.(*ast.ValueSpec)
		if !ok || !strings.HasPrefix(v.Names[0].Name, "Source") {
			return true
		}
		text, err := strconv.Unquote(v.Values[0].(*ast.BasicLit).Value)
		if err != nil {
			t.Fatal(err)
		}
		out = append(out, text)
		return true
	})
	return out
}

// TestGivers: of every source there is it is said who gives its labels, and both checks follow from
// that.
func TestGivers(t *testing.T) {
	t.Parallel()
	want := map[string]Giver{
		"unspec": GivenByAnyone, "any": GivenByAnyone, "k8s": GivenByAnyone, "cni": GivenByAnyone, "container": GivenByAnyone, "": GivenByAnyone,
		"gen":      GivenByAgent,
		"reserved": GivenByNetwork, "cidr": GivenByNetwork, "cidrgroup": GivenByNetwork, "block": GivenByNetwork, "node": GivenByNetwork, "fqdn": GivenByNetwork, "directory": GivenByNetwork,
	}
	for _, s := range sources(t) {
		if _, ok := want[s]; !ok {
			t.Errorf("source %q: this test does not say who gives its labels", s)
		}
	}
	for source, giver := range want {
		set := NewSet(New(source, "a", "b"))
		if got := GiverOf(source); got != giver {
			t.Errorf("source %q: %d, not %d", source, got, giver)
		}
		if err := CheckGiven(set); (err == nil) != (giver == GivenByAnyone) {
			t.Errorf("source %q as a user's: %v", source, err)
		}
		if err := CheckIdentity(set); (err == nil) != (giver != GivenByNetwork) {
			t.Errorf("source %q in an identity: %v", source, err)
		}
	}
	for _, key := range []string{KeyNamespace, KeyServiceAccount, KeyCluster, KeyNamespaceLabels + ".team", KeyNamedPorts, "io.kubernetes.pod.name"} {
		if CheckGiven(NewSet(New(SourceK8s, key, "x"))) == nil {
			t.Errorf("%s can be given", key)
		}
	}
	if err := CheckGiven(NewSet(New(SourceK8s, KeyFixedIdentity, "x"))); err != nil {
		t.Error(err)
	}
}
