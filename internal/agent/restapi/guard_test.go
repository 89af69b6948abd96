package restapi

import (
	"maps"
	"os"
	"slices"
	"testing"

	"sigs.k8s.io/yaml"
)

// TestGuardedOperations: an operation that changes something waits for the startup gate, unless it
// is listed here as one that changes neither endpoints nor addresses. Both guards go by names, so
// they would miss a new or renamed operation.
func TestGuardedOperations(t *testing.T) {
	t.Parallel()
	elsewhere := []string{"PatchConfig", "DeleteFQDNs", "PatchPrefilter", "DeletePrefilter"}
	data, err := os.ReadFile("../../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var spec struct {
		Paths map[string]map[string]any `json:"paths"`
	}
	if err := yaml.Unmarshal(data, &spec); err != nil {
		t.Fatal(err)
	}
	changing := map[string]bool{}
	for path, methods := range spec.Paths {
		for method, of := range methods {
			operation, ok := of.(map[string]any)
			if !ok || method == "get" {
				continue
			}
			name, ok := operation["operationId"].(string)
			if !ok {
				t.Errorf("%s %s has no operationId", method, path)
			}
			changing[name] = true
		}
	}
	if got, want := slices.Sorted(maps.Keys(changing)), slices.Sorted(slices.Values(slices.Concat(gated, elsewhere))); !slices.Equal(got, want) {
		t.Errorf("operations that change something: %q\nguarded, or known to need no guard: %q", got, want)
	}
	for _, name := range forPods {
		if !slices.Contains(gated, name) {
			t.Errorf("%s attaches pods, and does not wait for the startup gate", name)
		}
	}
}

// TestMayCall: names of operations count, and beginnings of them with a * behind.
func TestMayCall(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		allowed string
		want    bool
	}{
		{"*", true}, {"GetConfig", true}, {"Get*", true}, {"GetConfig*", true}, {"GetConf", false}, {"Patch*", false}, {"*Config", false}, {"", false},
	} {
		if got := mayCall([]string{"DeleteEndpoint", tt.allowed}, "GetConfig"); got != tt.want {
			t.Errorf("with %q: %v", tt.allowed, got)
		}
	}
	for _, good := range [][]string{nil, {"*"}, {"Get*", "CreateEndpoint"}, operations()} {
		if err := CheckAccess(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}
