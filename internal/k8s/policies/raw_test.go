package policies

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy"
)

// TestRawRefuses: what the types have no place for is a fault, not nothing.
func TestRawRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"spec":{"endpointSelector":{},"ingress":[{"fromPlanets":["mars"]}]}}`: `spec.ingress[0]: unknown field "fromPlanets"`,
		`{"specs":[{"endpointSelector":{},"ingress":[{}],"Egress":[]}]}`:        `specs[0].Egress: unknown field "Egress"`,
		`{"spec":{"endpointSelector":{},"ingress":[{"fromEndpoints":null}]}}`:   "spec.ingress[0].fromEndpoints: is null",
		`{"spec":null}`:                        "spec: is null",
		`{"spec":{"endpointSelector":[]}}`:     "spec.endpointSelector: ",
		`{"specz":{}}`:                         "specz: is not a field",
		`{"spec":{"description":1}}`:           "spec.description: ",
		`{"metadata":{"name":"x"},"kind":[1]}`: "",
	} {
		r := &raw{}
		err := json.Unmarshal([]byte(text), r)
		if err == nil {
			_, err = r.parse("CiliumNetworkPolicy")
		}
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v, want %q", text, err, want)
		}
	}
	r := &raw{}
	good := `{"kind":"CiliumNetworkPolicy","metadata":{"name":"x","namespace":"y","managedFields":[{"manager":"m"}]},"spec":{"endpointSelector":{},"ingress":[{"fromEndpoints":[]}]},"status":{"conditions":null}}`
	if err := json.Unmarshal([]byte(good), r); err != nil || r.Name != "x" || r.Namespace != "y" {
		t.Fatalf("%+v, %v", r, err)
	}
	copied := r.DeepCopyObject().(*raw)
	r.text[0] = 'X'
	spec, specs, faults := copied.rules(t)
	if len(faults) > 0 || specs != nil || spec.Ingress[0].FromEndpoints == nil {
		t.Errorf("%+v, %+v, %v", spec, specs, faults)
	}
}

// rules reads spec and specs.
func (r *raw) rules(t *testing.T) (*v2.Rule, []*v2.Rule, []*policy.FieldError) {
	t.Helper()
	fields, faults, err := r.fields("spec", "specs")
	if err != nil {
		t.Fatal(err)
	}
	spec, specs, more := readRules(fields)
	return spec, specs, append(faults, more...)
}

// TestRawIsolates: a policy that cannot be read isolates its namespace's pods, one entry that
// cannot be read is not granted.
func TestRawIsolates(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"spec":{"endpointSelector":{"matchLabels":{"a":"b"}},"ingress":[{"fromPlanets":["mars"]},{"fromEntities":["world"]}]}}`:        "{any:a=b}@x [true false] none entity:world",
		`{"spec":{"endpointSelector":{"matchLabels":{"a":"b"}},"ingress":[{"fromEntities":["world"]}],"egress":"none"}}`:                 "{any:a=b}@x [true true] entity:world none",
		`{"spec":{"endpointSelector":{"matchLabels":{"a":"b"}},"ingress":[{"fromEndpoints":null,"toPorts":[{"ports":[{"port":80}]}]}]}}`: "{any:a=b}@x [true false] none",
		`{"spec":{"endpointSelector":{"matchLabels":{"a":"b"}},"egressDeny":[{"toPorts":[{"ports":[{"port":80}]}]}]}}`:                   "{any:a=b}@x [false true] all",
		`{"spec":{"endpointSelector":[],"ingress":[{"fromEntities":["world"]}]}}`:                                                        "{}@x [true false] none",
		`{"spec":7}`:   "{}@x [true true]",
		`{"specs":{}}`: "{}@x [true true]",
		`{"spec":{"endpointSelector":{},"when":"always","egress":[{"toEntities":["world"]}]}}`: "{}@x [false true] none",
	} {
		r := &raw{}
		if err := json.Unmarshal([]byte(text), r); err != nil {
			t.Fatal(err)
		}
		r.Name, r.Namespace = "p", "x"
		rules, err := r.parse("CiliumNetworkPolicy")
		if err == nil || len(rules) != 1 || len(rules[0].Faults) == 0 {
			t.Errorf("%s: %+v, %v", text, rules, err)
			continue
		}
		got := fmt.Sprint(rules[0].Subject, " ", rules[0].DefaultDeny)
		for _, c := range rules[0].Clauses {
			who := "none"
			switch {
			case c.AllPeers:
				who = "all"
			case len(c.Peers) > 0:
				who = fmt.Sprint(c.Peers[0])
			}
			got += " " + who
		}
		if got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
}

// FuzzRaw: nothing that a server sends crashes the decoder.
func FuzzRaw(f *testing.F) {
	f.Add(`{"spec":{"endpointSelector":{},"ingress":[{"fromEndpoints":[]}]}}`)
	f.Add(`{"specs":[{"egress":[{"icmps":[{"fields":[{"type":8}]}]}]}, null]}`)
	f.Fuzz(func(t *testing.T, text string) {
		r := &raw{}
		if err := json.Unmarshal([]byte(text), r); err != nil {
			return
		}
		_, _ = r.parse("CiliumNetworkPolicy")
		_, _ = r.parse("ClusterNetworkPolicy")
		fields, faults, err := r.fields("spec", "specs")
		if err != nil || len(faults) > 0 {
			return
		}
		spec, specs, faults := readRules(fields)
		if len(faults) > 0 {
			return
		}
		// Whatever is accepted is all that there is: written out and read again it is the same.
		again := &raw{}
		out, err := json.Marshal(map[string]any{"spec": spec, "specs": specs})
		if err != nil {
			t.Fatal(err)
		}
		out = []byte(strings.NewReplacer(`"spec":null,`, "", `,"specs":null`, "", `"specs":null`, "").Replace(string(out)))
		if err := json.Unmarshal(out, again); err != nil {
			t.Fatal(err)
		}
		if _, _, faults := again.rules(t); len(faults) > 0 && !strings.Contains(faults[0].Error(), "is null") {
			t.Errorf("%s is accepted, but not %s: %v", text, out, faults)
		}
	})
}
