package policies

import (
	"encoding/json"
	"strings"
	"testing"
)

// TestRawRefuses: what the types have no place for is a fault, not nothing.
func TestRawRefuses(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		`{"spec":{"endpointSelector":{},"ingress":[{"fromPlanets":["mars"]}]}}`: `spec: unknown field "ingress[0].fromPlanets"`,
		`{"specs":[{"endpointSelector":{},"ingress":[{}],"Egress":[]}]}`:        `unknown field "[0].Egress"`,
		`{"spec":{"endpointSelector":{},"ingress":[{"fromEndpoints":null}]}}`:   "spec.ingress[0].fromEndpoints: is null",
		`{"spec":null}`:                        "spec: is null",
		`{"spec":{"endpointSelector":[]}}`:     "spec: ",
		`{"specz":{}}`:                         "specz: is not a field",
		`{"spec":{"description":1}}`:           "spec: ",
		`{"metadata":{"name":"x"},"kind":[1]}`: "",
	} {
		r := &raw{}
		err := json.Unmarshal([]byte(text), r)
		if err == nil {
			_, _, err = r.rules()
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
	spec, specs, err := copied.rules()
	if err != nil || specs != nil || spec.Ingress[0].FromEndpoints == nil {
		t.Errorf("%+v, %+v, %v", spec, specs, err)
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
		spec, specs, err := r.rules()
		if err != nil {
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
		if _, _, err := again.rules(); err != nil && !strings.Contains(err.Error(), "is null") {
			t.Errorf("%s is accepted, but not %s: %v", text, out, err)
		}
	})
}
