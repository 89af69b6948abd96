package policydir

import (
	"reflect"
	"strings"
	"testing"

	v2 "github.com/hawser-net/hawser/api/v2"
)

func TestDecodeFaults(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, yaml, want string
	}{
		{"empty", "# nothing\n", "holds no policy"},
		{"version", "apiVersion: v1\nkind: Pod\n", `apiVersion: "v1"`},
		{"kind", "apiVersion: cilium.io/v2\nkind: CiliumNode\n", `kind: "CiliumNode"`},
		{"list", "- a\n", "not an object"},
		{"duplicate key", cnp("a", "x") + "spec: {}\n", `already set`},
		{"unknown field", header + "metadata: {name: a}\nspec: {endpointSelector: {}, ingress: [{fromEndpoint: []}]}", "spec.ingress[0].fromEndpoint: is not a field"},
		{"wrong case", header + "metadata: {name: a}\nspec: {endpointSelector: {}, Ingress: [{}]}", "spec.Ingress: is not a field"},
		{"null peers", header + "metadata: {name: a}\nspec:\n  endpointSelector: {}\n  ingress:\n  - fromEndpoints:\n    # - {}\n", "spec.ingress[0].fromEndpoints: is null"},
		{"number as port", header + "metadata: {name: a}\nspec: {endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: 80}]}]}]}", "spec.ingress[0].toPorts[0].ports[0].port: want a string, found the number 80"},
		{"string as endPort", header + "metadata: {name: a}\nspec: {endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: '80', endPort: '90'}]}]}]}", "endPort: want an integer"},
		{"unsupported", header + "metadata: {name: a}\nspec: {endpointSelector: {}, egress: [{toPorts: [{ports: [{port: '80'}]}, {ports: [{port: '80'}], rules: {http: [{path: /}]}}]}]}", "spec.egress[0].toPorts[1].rules.http: is not supported"},
		{"second document", cnp("a", "x") + "---\nkind: x\n", "document at line 8"},
		{"twice", cnp("a", "x") + "---\n" + cnp("a", "w"), "is listed twice"},
		{"too large", "#" + strings.Repeat("x", MaxFileSize), "larger than"},
		{"bomb", "a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: &g [*f,*f,*f,*f,*f,*f,*f,*f,*f]\nh: [*g,*g,*g,*g,*g,*g,*g,*g,*g]\n", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			objects, err := Decode("f.yaml", []byte(tt.yaml))
			if err == nil {
				t.Fatalf("accepted as %+v", objects)
			}
			if !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error is %q, want it to hold %q", err, tt.want)
			}
		})
	}
}

func TestDecode(t *testing.T) {
	t.Parallel()
	text := "---\n# a file\n" + cnp("a", "x") + "---\n" + `{"apiVersion": "cilium.io/v2", "kind": "CiliumClusterwideNetworkPolicy",
  "metadata": {"name": "b", "uid": "1", "creationTimestamp": null, "resourceVersion": "7", "managedFields": [{"a": 1}]},
  "specs": [{"endpointSelector": {}, "egress": [{"toEntities": ["world"], "icmps": [{"fields": [{"type": 8}, {"type": "EchoReply", "family": "IPv6"}]}]}]}],
  "status": {"conditions": [{"type": "Valid", "status": "True"}]}}
...
--- # the last
` + cnp("c", "x")
	objects, err := Decode("f.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range objects {
		got = append(got, string(o.Owner))
		if len(o.Rules) != 1 || (o.Namespaced == nil) == (o.Clusterwide == nil) {
			t.Errorf("%s is incomplete", o.Owner)
		}
	}
	if want := "f.yaml/default/a f.yaml/b f.yaml/default/c"; strings.Join(got, " ") != want {
		t.Errorf("owners %q, want %q", got, want)
	}
}

// TestTypesCanBeChecked: the checker knows every type that the policy kinds are made of.
func TestTypesCanBeChecked(t *testing.T) {
	t.Parallel()
	seen := map[reflect.Type]bool{}
	var walk func(path string, typ reflect.Type)
	walk = func(path string, typ reflect.Type) {
		for typ.Kind() == reflect.Pointer {
			typ = typ.Elem()
		}
		if seen[typ] || readsItself(typ) {
			return
		}
		seen[typ] = true
		switch typ.Kind() {
		case reflect.Struct:
			for name, ft := range jsonFields(typ) {
				walk(path+"."+name, ft)
			}
			if len(jsonFields(typ)) == 0 {
				t.Errorf("%s: %v has no fields", path, typ)
			}
		case reflect.Slice, reflect.Map:
			walk(path+"[]", typ.Elem())
		case reflect.String, reflect.Bool, reflect.Int32, reflect.Int64:
		default:
			t.Errorf("%s: %v is not known to the checker", path, typ)
		}
	}
	walk("", reflect.TypeFor[v2.CiliumNetworkPolicy]())
	walk("", reflect.TypeFor[v2.CiliumClusterwideNetworkPolicy]())
}

// FuzzDecode: no file crashes the decoder, and what is accepted is complete.
func FuzzDecode(f *testing.F) {
	f.Add([]byte(cnp("a", "x")))
	f.Add([]byte(cnp("a", "x") + "---\n" + cnp("b", "w")))
	f.Add([]byte(header + "metadata: {name: a}\nspec: {endpointSelector: {}, egress: [{toCIDRSet: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}]}, {toPorts: [{ports: [{port: '1', endPort: 65535, protocol: ANY}]}]}]}"))
	f.Add([]byte(header + "metadata: {name: a}\nspec: {endpointSelector: {matchExpressions: [{key: a, operator: In, values: [b]}]}, ingressDeny: [{icmps: [{fields: [{type: 8}]}]}]}"))
	f.Add([]byte("apiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: a}\nspecs: [{endpointSelector: {}, ingress: [{fromEntities: [all, host]}], enableDefaultDeny: {ingress: false}, labels: [{key: a, value: b}]}]"))
	f.Fuzz(func(t *testing.T, data []byte) {
		objects, err := Decode("f", data)
		if err != nil {
			if objects != nil {
				t.Fatal("objects beside an error")
			}
			_ = err.Error()
			return
		}
		for _, o := range objects {
			if o.Owner == "" || len(o.Rules) == 0 {
				t.Fatalf("incomplete object %+v", o)
			}
		}
	})
}
