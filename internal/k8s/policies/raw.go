package policies

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	sigsjson "sigs.k8s.io/json"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy"
)

// raw is a policy of our own kinds, or a ClusterNetworkPolicy, as the server sent it. It is decoded
// here and not by the client, which would drop fields that it does not know.
type raw struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	text []byte
}

// rawList is a list of them.
type rawList struct {
	metav1.TypeMeta `json:",inline"`
	metav1.ListMeta `json:"metadata"`
	Items           []raw `json:"items"`
}

// UnmarshalJSON keeps the text and reads the metadata.
func (r *raw) UnmarshalJSON(text []byte) error {
	var meta metav1.PartialObjectMetadata
	if err := json.Unmarshal(text, &meta); err != nil {
		return err
	}
	r.TypeMeta, r.ObjectMeta, r.text = meta.TypeMeta, meta.ObjectMeta, bytes.Clone(text)
	return nil
}

// DeepCopyObject implements runtime.Object.
func (r *raw) DeepCopyObject() runtime.Object {
	return &raw{r.TypeMeta, *r.ObjectMeta.DeepCopy(), bytes.Clone(r.text)}
}

// DeepCopyObject implements runtime.Object.
func (l *rawList) DeepCopyObject() runtime.Object {
	out := &rawList{TypeMeta: l.TypeMeta, ListMeta: *l.ListMeta.DeepCopy(), Items: make([]raw, len(l.Items))}
	for i := range l.Items {
		out.Items[i] = *l.Items[i].DeepCopyObject().(*raw)
	}
	return out
}

// addRaw makes kinds known to a scheme as raw.
func addRaw(gv schema.GroupVersion, kinds ...string) func(*runtime.Scheme) error {
	return func(s *runtime.Scheme) error {
		for _, kind := range kinds {
			s.AddKnownTypeWithName(gv.WithKind(kind), &raw{})
			s.AddKnownTypeWithName(gv.WithKind(kind+"List"), &rawList{})
		}
		metav1.AddToGroupVersion(s, gv)
		return nil
	}
}

// Parse reads an object of one of our own kinds, or a ClusterNetworkPolicy, as the server sent it,
// in JSON, exactly as agents do: what it returns for it is what nodes enforce, and an error is why
// that is not all that is written. Groups are accepted and match nothing: the operator makes
// policies of their members.
func Parse(kind string, text []byte) ([]*policy.Rule, error) {
	r := &raw{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	return r.parse(kind)
}

// parse makes rules of the object. As with [policy.Parse] rules are returned with an error, too.
func (r *raw) parse(kind string) ([]*policy.Rule, error) {
	fields, faults, err := r.fields("spec", "specs")
	if err != nil {
		return nil, err
	}
	if kind == KindCluster {
		return r.parseCluster(fields, faults)
	}
	spec, specs, more := readRules(fields)
	v2.MarkGroups(append([]*v2.Rule{spec}, specs...)...)
	opts := []policy.Option{policy.WithGroups(), policy.WithFaults(append(faults, more...))}
	switch kind {
	case v2.KindNetworkPolicy:
		return policy.Parse(&v2.CiliumNetworkPolicy{ObjectMeta: r.ObjectMeta, Spec: spec, Specs: specs}, opts...)
	case v2.KindClusterwideNetworkPolicy:
		return policy.ParseClusterwide(&v2.CiliumClusterwideNetworkPolicy{ObjectMeta: r.ObjectMeta, Spec: spec, Specs: specs}, opts...)
	}
	return nil, fmt.Errorf("%q is no kind of policy", kind)
}

// fields returns the parts of the object that are known here, and a fault for each that is not.
func (r *raw) fields(known ...string) (map[string]json.RawMessage, []*policy.FieldError, error) {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(r.text, &fields); err != nil {
		return nil, nil, err
	}
	var faults []*policy.FieldError
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch {
		case slices.Contains(known, name), slices.Contains([]string{"apiVersion", "kind", "metadata", "status"}, name):
		default:
			faults = append(faults, &policy.FieldError{Field: name, Problem: "is not a field that is known here"})
		}
	}
	return fields, faults, nil
}

// readRules reads spec and specs.
func readRules(fields map[string]json.RawMessage) (spec *v2.Rule, specs []*v2.Rule, faults []*policy.FieldError) {
	if text, ok := fields["spec"]; ok {
		spec, faults = readRule("spec", text)
	}
	if text, ok := fields["specs"]; ok {
		var list []json.RawMessage
		if err := json.Unmarshal(text, &list); err != nil || list == nil {
			// Whatever it is: a rule of which nothing is known.
			return spec, []*v2.Rule{{}}, append(faults, &policy.FieldError{Field: "specs[0]", Problem: "specs is not a list of rules"})
		}
		specs = []*v2.Rule{}
		for i, text := range list {
			rule, more := readRule(fmt.Sprintf("specs[%d]", i), text)
			specs, faults = append(specs, rule), append(faults, more...)
		}
	}
	return spec, specs, faults
}

// readRule reads a rule; if it can't be read as a whole, part by part, so that a fault concerns the
// entry that it stands in and no other.
func readRule(at string, text []byte) (*v2.Rule, []*policy.FieldError) {
	rule := &v2.Rule{}
	if len(decode(at, text, rule)) == 0 {
		return rule, nil
	}
	rule = &v2.Rule{}
	var parts map[string]json.RawMessage
	if err := json.Unmarshal(text, &parts); err != nil || parts == nil {
		return rule, decode(at, text, rule)
	}
	var faults []*policy.FieldError
	for _, name := range slices.Sorted(maps.Keys(parts)) {
		field, part := at+"."+name, parts[name]
		var more []*policy.FieldError
		switch name {
		case "ingress":
			rule.Ingress, more = readEntries[v2.IngressRule](field, part)
		case "ingressDeny":
			rule.IngressDeny, more = readEntries[v2.IngressDenyRule](field, part)
		case "egress":
			rule.Egress, more = readEntries[v2.EgressRule](field, part)
		case "egressDeny":
			rule.EgressDeny, more = readEntries[v2.EgressDenyRule](field, part)
		default:
			alone, _ := json.Marshal(map[string]json.RawMessage{name: part})
			if more = decode(field, alone, &v2.Rule{}); len(more) == 0 {
				_ = json.Unmarshal(alone, rule) // as it just was
			}
		}
		faults = append(faults, more...)
	}
	return rule, faults
}

// readEntries reads a list of entries. One that can't be read is there as far as it could, with a
// fault.
func readEntries[T any](at string, text []byte) ([]T, []*policy.FieldError) {
	var list []json.RawMessage
	if err := json.Unmarshal(text, &list); err != nil || list == nil {
		return make([]T, 1), decode(at+"[0]", text, new(T))
	}
	out := make([]T, len(list))
	var faults []*policy.FieldError
	for i, entry := range list {
		more := decode(fmt.Sprintf("%s[%d]", at, i), entry, &out[i])
		faults = append(faults, more...)
	}
	return out, faults
}

// decode reads the text of a field, and finds faults with what the types have no place for.
func decode(at string, text []byte, dst any) []*policy.FieldError {
	fault := func(field, format string, args ...any) []*policy.FieldError {
		return []*policy.FieldError{{Field: field, Problem: fmt.Sprintf(format, args...)}}
	}
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return fault(at, "%v", err)
	}
	strict, err := sigsjson.UnmarshalStrict(text, dst)
	if where, found := findNull(at, tree); found {
		return fault(where, "is null; remove the field or give it a value")
	}
	if err != nil {
		return fault(at, "%v", err)
	}
	var faults []*policy.FieldError
	for _, err := range strict {
		faults = append(faults, fault(at, "%s; this version of the agent cannot enforce it", strings.TrimPrefix(err.Error(), "strict decoding error: "))...)
	}
	return faults
}

// findNull looks for a null: to the decoder it is an absent field, and absent peers are all peers.
func findNull(at string, v any) (string, bool) {
	switch v := v.(type) {
	case nil:
		return at, true
	case map[string]any:
		for _, k := range slices.Sorted(maps.Keys(v)) {
			if where, found := findNull(at+"."+k, v[k]); found {
				return where, true
			}
		}
	case []any:
		for i := range v {
			if where, found := findNull(fmt.Sprintf("%s[%d]", at, i), v[i]); found {
				return where, true
			}
		}
	}
	return "", false
}
