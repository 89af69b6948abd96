package policy

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/api/crds"
	"github.com/hawser-net/hawser/internal/identity"
)

// TestEntitiesOfDefinitions compares the entities that the API server accepts with those
// that rules can have. The two of one family are in rules of files only: the definitions of other
// implementations do not have them, and which definition a cluster has must not matter.
func TestEntitiesOfDefinitions(t *testing.T) {
	t.Parallel()
	var want []string
	for _, e := range identity.Entities() {
		if e != identity.EntityWorldIPv4 && e != identity.EntityWorldIPv6 {
			want = append(want, string(e))
		}
	}
	slices.Sort(want)
	all, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}
	lists := 0
	var look func(of, at string, x any)
	look = func(of, at string, x any) {
		switch x := x.(type) {
		case []any:
			for _, y := range x {
				look(of, at, y)
			}
		case map[string]any:
			if at == "fromEntities" || at == "toEntities" {
				lists++
				items, _ := x["items"].(map[string]any)
				enum, _ := items["enum"].([]any)
				var got []string
				for _, v := range enum {
					got = append(got, v.(string))
				}
				slices.Sort(got)
				if !slices.Equal(got, want) {
					t.Errorf("%s: %s may be %q; rules can have %q", of, at, got, want)
				}
			}
			for k, y := range x {
				look(of, k, y)
			}
		}
	}
	for _, d := range all {
		data, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		var x any
		if err := json.Unmarshal(data, &x); err != nil {
			t.Fatal(err)
		}
		look(d.Name, "", x)
	}
	if lists != 16 { // two kinds of policy, spec and specs, four lists each
		t.Errorf("%d lists of entities were found", lists)
	}
}
