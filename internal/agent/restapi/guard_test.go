package restapi

import (
	"cmp"
	"maps"
	"os"
	"slices"
	"strings"
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
	// The names of Cilium's agent are made of method and path.
	for _, tt := range []struct {
		allowed, operation string
		want               bool
	}{
		{"PutEndpointID", "CreateEndpoint", true}, {"Put*", "CreateEndpoint", true}, {"PutEndpointID", "PatchEndpoint", false},
		{"GetEndpointID*", "GetEndpointHealth", true}, {"GetEndpointID", "ListEndpoints", false}, {"Get*", "ListEndpoints", true},
		{"PostIPAM", "AllocateIP", true}, {"PostIPAMIP", "ReserveIP", true}, {"DeleteIPAMIP", "ReleaseIP", true},
		{"GetIdentityID", "GetIdentity", true}, {"GetIdentityEndpoints", "ListIdentityEndpoints", true}, {"GetIP", "ListIPs", true},
		{"GetNodeIds", "ListNodeIDs", true}, {"GetLRP", "ListLRPs", true}, {"GetBGPRoutePolicies", "ListBGPRoutePolicies", true},
		{"GetCgroupDumpMetadata", "GetCgroupMetadata", true}, {"DeleteEndpointID", "DeleteEndpoint", true}, {"DeleteEndpointID", "DeleteEndpoints", false},
		{"DeleteEndpoint*", "DeleteEndpoints", true}, {"Put*", "PatchEndpoint", false},
	} {
		if got := mayCall([]string{tt.allowed}, tt.operation); got != tt.want {
			t.Errorf("%s with %q: %v", tt.operation, tt.allowed, got)
		}
	}
	for _, good := range [][]string{nil, {"*"}, {"Get*", "CreateEndpoint"}, operations(), {"PutEndpointID", "Post*"}} {
		if err := CheckAccess(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

// TestCiliumNames: the names that Cilium's agent gives to operations are those of their method and
// path, and only operations that are marked as Hawser's own lack one.
func TestCiliumNames(t *testing.T) {
	t.Parallel()
	data, err := os.ReadFile("../../../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	var api struct {
		Paths map[string]map[string]any
	}
	if err := yaml.Unmarshal(data, &api); err != nil {
		t.Fatal(err)
	}
	special := map[string]string{"bgp": "BGP", "id": "ID", "ip": "IP", "ipam": "IPAM", "lrp": "LRP"}
	title := func(word string) string { return cmp.Or(special[word], strings.ToUpper(word[:1])+word[1:]) }
	want := map[string]string{}
	for path, methods := range api.Paths {
		for method, of := range methods {
			op, _ := of.(map[string]any) // or the parameters of all methods
			id, _ := op["operationId"].(string)
			if summary, _ := op["summary"].(string); id == "" || strings.HasPrefix(summary, "Hawser:") {
				continue
			}
			name := title(method)
			for word := range strings.FieldsFuncSeq(path, func(r rune) bool { return strings.ContainsRune("/-{}", r) }) {
				name += title(word)
			}
			want[id] = name
		}
	}
	if !maps.Equal(want, ciliumNames) {
		t.Errorf("names by api/openapi.yaml: %q, those accepted: %q", want, ciliumNames)
	}
}
