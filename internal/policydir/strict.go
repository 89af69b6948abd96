package policydir

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math"
	"reflect"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/policy"
)

// decodeStrict decodes raw, of which tree is the generic form, into dst, which points at a struct.
// The standard decoder would match names without regard to case, and would not report where a fault
// is; so the tree is checked against the type first.
//
// What is at fault is returned by fields; the rest is in dst then. With an error dst is of no use.
func decodeStrict(tree any, raw []byte, dst any) ([]*policy.FieldError, error) {
	c := checker{}
	c.check("", tree, reflect.TypeOf(dst).Elem())
	err := json.Unmarshal(raw, dst)
	switch {
	case len(c.errs) >= maxFaults:
		return nil, errors.New("has too many faults: " + c.errs[0].Error() + ", and others")
	case len(c.errs) > 0:
		return c.errs, nil
	}
	return nil, err
}

type checker struct{ errs []*policy.FieldError }

// maxFaults bounds how many faults of one document are listed.
const maxFaults = 20

func (c *checker) fail(path, format string, args ...any) {
	if len(c.errs) < maxFaults {
		c.errs = append(c.errs, &policy.FieldError{Field: path, Problem: fmt.Sprintf(format, args...)})
	}
}

// check walks v along the type t.
func (c *checker) check(path string, v any, t reflect.Type) {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if v == nil {
		// A null is an absent field to the decoder, and absent peers are all peers: commenting out
		// the items of a list must not allow everything.
		c.fail(path, "is null; remove the field or give it a value")
		return
	}
	if readsItself(t) {
		return
	}
	switch t.Kind() {
	case reflect.Struct:
		m, ok := v.(map[string]any)
		if !ok {
			c.fail(path, "want an object, found %s", describe(v))
			return
		}
		fields := jsonFields(t)
		for _, k := range slices.Sorted(maps.Keys(m)) {
			ft, ok := fields[k]
			if !ok {
				c.fail(join(path, clip(k)), "is not a field")
				continue
			}
			c.check(join(path, k), m[k], ft)
		}
	case reflect.Slice:
		list, ok := v.([]any)
		if !ok {
			c.fail(path, "want a list, found %s", describe(v))
			return
		}
		for i, item := range list {
			c.check(fmt.Sprintf("%s[%d]", path, i), item, t.Elem())
		}
	case reflect.Map:
		m, ok := v.(map[string]any)
		if !ok {
			c.fail(path, "want an object, found %s", describe(v))
			return
		}
		for _, k := range slices.Sorted(maps.Keys(m)) {
			c.check(path+"["+clip(k)+"]", m[k], t.Elem())
		}
	case reflect.String:
		if _, ok := v.(string); !ok {
			c.fail(path, "want a string, found %s; write it in quotes", describe(v))
		}
	case reflect.Bool:
		if _, ok := v.(bool); !ok {
			c.fail(path, "want true or false, found %s", describe(v))
		}
	case reflect.Int32, reflect.Int64:
		// Beyond 32 bits there is only what servers write, which needs no better answer than the
		// decoder's.
		f, ok := v.(float64)
		if !ok || f != math.Trunc(f) || t.Kind() == reflect.Int32 && (f < math.MinInt32 || f > math.MaxInt32) {
			c.fail(path, "want an integer, found %s", describe(v))
		}
	default:
		c.fail(path, "cannot be read") // no such field in the types; the tests walk them all
	}
}

// readsItself reports whether what is below a value of type t is left to the decoder: types with
// a method for it, and metadata, which in manifests that a server wrote out carries fields of other
// versions and nulls, none of which changes what the object means.
func readsItself(t reflect.Type) bool {
	return t == reflect.TypeFor[metav1.ObjectMeta]() || reflect.PointerTo(t).Implements(reflect.TypeFor[json.Unmarshaler]())
}

func join(path, field string) string {
	if path == "" {
		return field
	}
	return path + "." + field
}

// jsonFields returns the fields of a struct by their JSON names, those of embedded structs too.
func jsonFields(t reflect.Type) map[string]reflect.Type {
	out := map[string]reflect.Type{}
	for i := range t.NumField() {
		f := t.Field(i)
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			maps.Copy(out, jsonFields(f.Type))
		case name != "" && name != "-":
			out[name] = f.Type
		}
	}
	return out
}

func describe(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("the string %q", clip(v))
	case bool:
		return fmt.Sprintf("%t", v)
	case float64:
		return fmt.Sprintf("the number %v", v)
	case []any:
		return "a list"
	}
	return "an object"
}
