package policies

import (
	"bytes"
	"encoding/json"
	"errors"
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

// raw is a policy of our own kinds, or a ClusterNetworkPolicy, as the server sent it. It is decoded here and not by the client, which would drop fields that it does not know.
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

// Parse reads an object of one of our own kinds, or a ClusterNetworkPolicy, as the server sent it, in JSON, exactly as agents do: what it returns for it is
// what nodes enforce, and an error is why they do not. Groups are accepted and match nothing: the operator makes policies of their members.
func Parse(kind string, text []byte) ([]*policy.Rule, error) {
	r := &raw{}
	if err := json.Unmarshal(text, r); err != nil {
		return nil, err
	}
	return r.parse(kind)
}

// parse makes rules of the object.
func (r *raw) parse(kind string) ([]*policy.Rule, error) {
	if kind == KindCluster {
		return r.parseCluster()
	}
	spec, specs, err := r.rules()
	if err != nil {
		return nil, err
	}
	switch kind {
	case v2.KindNetworkPolicy:
		return policy.Parse(&v2.CiliumNetworkPolicy{ObjectMeta: r.ObjectMeta, Spec: spec, Specs: specs}, policy.WithGroups())
	case v2.KindClusterwideNetworkPolicy:
		return policy.ParseClusterwide(&v2.CiliumClusterwideNetworkPolicy{ObjectMeta: r.ObjectMeta, Spec: spec, Specs: specs}, policy.WithGroups())
	}
	return nil, fmt.Errorf("%q is no kind of policy", kind)
}

// rules decodes spec and specs.
func (r *raw) rules() (spec *v2.Rule, specs []*v2.Rule, err error) {
	err = r.decode(map[string]any{"spec": &spec, "specs": &specs})
	return spec, specs, err
}

// decode reads fields of the object into what they are to be read into, and refuses others.
func (r *raw) decode(into map[string]any) error {
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(r.text, &fields); err != nil {
		return err
	}
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(fields)) {
		switch dst, wanted := into[name]; {
		case wanted:
			errs = append(errs, decode(name, fields[name], dst))
		case slices.Contains([]string{"apiVersion", "kind", "metadata", "status"}, name):
		default:
			errs = append(errs, fmt.Errorf("%s: is not a field that is known here", name))
		}
	}
	return errors.Join(errs...)
}

// decode reads a field of the object, and refuses what the types have no place for.
func decode(name string, text []byte, dst any) error {
	var tree any
	if err := json.Unmarshal(text, &tree); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	if at, found := findNull(name, tree); found {
		return fmt.Errorf("%s: is null; remove the field or give it a value", at)
	}
	strict, err := sigsjson.UnmarshalStrict(text, dst)
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	var errs []error
	for _, err := range strict {
		errs = append(errs, fmt.Errorf("%s: %s; this version of the agent cannot enforce it", name, strings.TrimPrefix(err.Error(), "strict decoding error: ")))
	}
	return errors.Join(errs...)
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
