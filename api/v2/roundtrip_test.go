package v2_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
)

func newScheme(t testing.TB) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v2.AddToScheme, v2alpha1.AddToScheme} {
		if err := add(s); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// kinds returns an empty object of each kind of ours, without lists.
func kinds(s *runtime.Scheme) []runtime.Object {
	var out []runtime.Object
	for gvk := range s.AllKnownTypes() {
		obj, err := s.New(gvk)
		if err != nil || !strings.HasPrefix(gvk.Kind, "Cilium") || strings.HasSuffix(gvk.Kind, "List") {
			continue
		}
		obj.GetObjectKind().SetGroupVersionKind(gvk)
		out = append(out, obj)
	}
	return out
}

// filler gives every field a value of its own.
type filler struct {
	n     int
	empty bool // make lists of policies that are there but empty
}

func (f *filler) fill(v reflect.Value) {
	f.n++
	switch v.Interface().(type) {
	case metav1.TypeMeta:
		return // known already
	case metav1.ObjectMeta:
		v.Set(reflect.ValueOf(metav1.ObjectMeta{Name: fmt.Sprint("name-", f.n), Namespace: "ns", Labels: map[string]string{"a": "b"}}))
		return
	case v2.IntOrString:
		v.Set(reflect.ValueOf(v2.IntOrString{Text: []string{"word", fmt.Sprint(f.n)}[f.n%2]}))
		return
	case metav1.Time:
		v.Set(reflect.ValueOf(metav1.Unix(int64(f.n)*1000, 0).Rfc3339Copy()))
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		f.fill(v.Elem())
	case reflect.Struct:
		for i := range v.NumField() {
			field, sf := v.Field(i), v.Type().Field(i)
			if f.empty && field.Kind() == reflect.Slice && strings.HasSuffix(sf.Tag.Get("json"), ",omitzero") && v.Type() != reflect.TypeFor[v2.Rule]() {
				field.Set(reflect.MakeSlice(field.Type(), 0, 0))
				continue
			}
			f.fill(field)
		}
	case reflect.Slice:
		v.Set(reflect.MakeSlice(v.Type(), 2, 2))
		f.fill(v.Index(0))
		f.fill(v.Index(1))
	case reflect.Map:
		v.Set(reflect.MakeMap(v.Type()))
		elem := reflect.New(v.Type().Elem()).Elem()
		f.fill(elem)
		v.SetMapIndex(reflect.ValueOf(fmt.Sprint("key-", f.n)), elem)
	case reflect.String:
		v.SetString(fmt.Sprint("text-", f.n))
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(f.n))
	default:
		panic(fmt.Sprintf("%v is not known to the filler", v.Type()))
	}
}

// ways are the ways by which an object travels through the machinery of the API.
func ways(t *testing.T, s *runtime.Scheme) map[string]func(in, out runtime.Object) error {
	codecs := serializer.NewCodecFactory(s, serializer.EnableStrict)
	info, ok := runtime.SerializerInfoForMediaType(codecs.SupportedMediaTypes(), runtime.ContentTypeJSON)
	if !ok {
		t.Fatal("no serializer for JSON")
	}
	return map[string]func(in, out runtime.Object) error{
		"serializer": func(in, out runtime.Object) error {
			data, err := runtime.Encode(info.Serializer, in)
			if err != nil {
				return err
			}
			return runtime.DecodeInto(info.StrictSerializer, data, out)
		},
		"converter": func(in, out runtime.Object) error {
			u, err := runtime.DefaultUnstructuredConverter.ToUnstructured(in)
			if err != nil {
				return err
			}
			// What a dynamic client would send.
			data, err := json.Marshal(u)
			if err != nil {
				return err
			}
			var back map[string]any
			dec := json.NewDecoder(bytes.NewReader(data))
			dec.UseNumber()
			if err := dec.Decode(&back); err != nil {
				return err
			}
			return runtime.DefaultUnstructuredConverter.FromUnstructured(numbers(back).(map[string]any), out)
		},
		"deep copy": func(in, out runtime.Object) error {
			reflect.ValueOf(out).Elem().Set(reflect.ValueOf(in.DeepCopyObject()).Elem())
			return nil
		},
	}
}

// numbers makes integers of what the decoder kept as text, as Kubernetes' own decoder does.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case json.Number:
		n, _ := v.Int64()
		return n
	}
	return v
}

func TestEveryFieldTravels(t *testing.T) {
	t.Parallel()
	s := newScheme(t)
	all := kinds(s)
	if len(all) != 7 {
		t.Fatalf("%d kinds, want 7", len(all))
	}
	for _, obj := range all {
		for _, empty := range []bool{false, true} {
			in := obj.DeepCopyObject()
			f := &filler{empty: empty}
			f.fill(reflect.ValueOf(in).Elem())
			for name, way := range ways(t, s) {
				out := reflect.New(reflect.TypeOf(in).Elem()).Interface().(runtime.Object)
				if err := way(in, out); err != nil {
					t.Errorf("%T by %s: %v", in, name, err)
					continue
				}
				// cmp tells an absent list from an empty one.
				if diff := cmp.Diff(in, out); diff != "" {
					t.Errorf("%T by %s (-sent +received):\n%s", in, name, diff)
				}
			}
		}
	}
}

// TestAbsentIsNotEmpty: absent peers are all peers, an empty list is no peer. Nothing on the way
// may make one of the other.
func TestAbsentIsNotEmpty(t *testing.T) {
	t.Parallel()
	s := newScheme(t)
	for _, typ := range []reflect.Type{
		reflect.TypeFor[v2.IngressRule](), reflect.TypeFor[v2.IngressDenyRule](), reflect.TypeFor[v2.EgressRule](), reflect.TypeFor[v2.EgressDenyRule](),
		reflect.TypeFor[v2.PortRule](), reflect.TypeFor[v2.PortDenyRule](), reflect.TypeFor[v2.ICMPRule](), reflect.TypeFor[v2.L7Rules](), reflect.TypeFor[v2.Rule](),
	} {
		for i := range typ.NumField() {
			f := typ.Field(i)
			name, tail, _ := strings.Cut(f.Tag.Get("json"), ",")
			if f.Type.Kind() != reflect.Slice || typ == reflect.TypeFor[v2.Rule]() && name == "labels" {
				continue
			}
			if tail != "omitzero" {
				t.Errorf("%v.%s is written as if empty were absent: its tag must say omitzero", typ, f.Name)
			}
			v := reflect.New(typ)
			if data, err := json.Marshal(v.Interface()); err != nil || strings.Contains(string(data), `"`+name+`"`) {
				t.Errorf("%v without %s is written as %s, %v", typ, f.Name, data, err)
			}
			v.Elem().Field(i).Set(reflect.MakeSlice(f.Type, 0, 0))
			data, err := json.Marshal(v.Interface())
			if want := `{"` + name + `":[]}`; err != nil || string(data) != want {
				t.Errorf("%v with an empty %s is written as %s, %v; want %s", typ, f.Name, data, err, want)
			}
		}
	}
	empty := &v2.CiliumNetworkPolicy{
		TypeMeta: metav1.TypeMeta{APIVersion: v2.APIVersion, Kind: v2.KindNetworkPolicy},
		Spec:     &v2.Rule{EndpointSelector: &v2.LabelSelector{}, Ingress: []v2.IngressRule{{FromEndpoints: []v2.LabelSelector{}}, {}}, Egress: []v2.EgressRule{}},
	}
	for name, way := range ways(t, s) {
		out := &v2.CiliumNetworkPolicy{}
		if err := way(empty, out); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		r := out.Spec
		if r.Ingress[0].FromEndpoints == nil || r.Ingress[1].FromEndpoints != nil || r.Egress == nil || r.EgressDeny != nil {
			t.Errorf("%s: absent and empty are mixed up: %+v", name, r)
		}
	}
}

func TestDenyEntryKeepsAbsent(t *testing.T) {
	t.Parallel()
	in := v2.IngressDenyRule{}
	f := &filler{}
	f.fill(reflect.ValueOf(&in).Elem())
	sameFields(t, in, in.Entry())
	out := v2.EgressDenyRule{}
	f.fill(reflect.ValueOf(&out).Elem())
	sameFields(t, out, out.Entry())
	none, no := (&v2.IngressDenyRule{ToPorts: []v2.PortDenyRule{}}).Entry(), (&v2.EgressDenyRule{}).Entry()
	if none.ToPorts == nil || none.FromEndpoints != nil || no.ToPorts != nil {
		t.Error("absent and empty are mixed up")
	}
}

// sameFields compares what both say in JSON.
func sameFields(t *testing.T, a, b any) {
	t.Helper()
	x, errX := json.Marshal(a)
	y, errY := json.Marshal(b)
	if errX != nil || errY != nil || string(x) == "{}" {
		t.Fatal(errX, errY)
	}
	var m, n map[string]any
	_, _ = json.Unmarshal(x, &m), json.Unmarshal(y, &n)
	if diff := cmp.Diff(m, n); diff != "" {
		t.Errorf("(-deny +entry):\n%s", diff)
	}
}

func TestIntOrString(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{`8`: "8", `"8"`: "8", `"EchoReply"`: "EchoReply", `"08"`: "08", `1.5`: "1.5", `1e100`: "1e100"} {
		var v v2.IntOrString
		if err := json.Unmarshal([]byte(text), &v); err != nil || v.Text != want {
			t.Errorf("%s is read as %q, %v", text, v, err)
		}
	}
	for _, text := range []string{`true`, `{}`, `[1]`} {
		var v v2.IntOrString
		if err := json.Unmarshal([]byte(text), &v); err == nil {
			t.Errorf("%s is read as %q", text, v)
		}
	}
	if data, err := json.Marshal([]v2.IntOrString{{Text: "8"}, {Text: "08"}, {Text: "x"}}); err != nil || string(data) != `[8,"08","x"]` {
		t.Errorf("%s, %v", data, err)
	}
}
