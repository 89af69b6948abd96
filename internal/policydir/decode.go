package policydir

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy"
)

// Bounds on one file.
const (
	// MaxFileSize is the size in bytes beyond which a file is refused.
	MaxFileSize = 4 << 20
	maxDocs     = 10_000
)

// Object is one policy of a file. Exactly one of Namespaced and Clusterwide is set.
type Object struct {
	// Owner is "file/namespace/name", or "file/name" for a clusterwide policy.
	Owner       policy.Owner
	Namespaced  *v2.CiliumNetworkPolicy
	Clusterwide *v2.CiliumClusterwideNetworkPolicy
	// Rules is what policy.Parse made of it.
	Rules []*policy.Rule
	// Lines has the lines of the file at which rules and their entries begin, by path; those that
	// are known.
	Lines map[string]int
}

// Decode reads the content of a file; name is used in owners. All faults are reported: unknown and
// unsupported fields, wrong types and nulls by their path. No objects are returned with an error.
func Decode(name string, data []byte) ([]Object, error) {
	objects, err := decode(name, data)
	if err != nil {
		return nil, err
	}
	return objects, nil
}

// decode is Decode, but returns the objects, as far as they can be enforced, with an error, too.
func decode(name string, data []byte) ([]Object, error) {
	if len(data) > MaxFileSize {
		return nil, fmt.Errorf("the file is larger than %d bytes", MaxFileSize)
	}
	docs := split(data)
	if len(docs) > maxDocs {
		return nil, fmt.Errorf("the file holds more than %d documents", maxDocs)
	}
	var out []Object
	var errs []error
	seen := map[policy.Owner]bool{}
	for _, doc := range docs {
		obj, err := decodeOne(name, doc.data, false)
		if err == nil && obj == nil {
			continue // nothing but comments
		}
		if err == nil && seen[obj.Owner] {
			err = fmt.Errorf("policy %q is listed twice", obj.Owner)
		}
		if err != nil {
			if len(docs) > 1 {
				err = fmt.Errorf("document at line %d: %w", doc.line, err)
			}
			errs = append(errs, err)
			if obj == nil || seen[obj.Owner] {
				continue
			}
		}
		seen[obj.Owner] = true
		obj.Lines = linesOf(doc, obj.Rules)
		out = append(out, *obj)
	}
	if len(errs) > 0 {
		return out, errors.Join(errs...)
	}
	if len(out) == 0 {
		return nil, errors.New("the file holds no policy; remove the file to remove its policies")
	}
	return out, nil
}

type document struct {
	line int // of its first line, from 1
	data []byte
}

// split cuts a YAML stream at its document markers, which stand at the start of a line.
func split(data []byte) []document {
	docs := []document{{line: 1}}
	line := 0
	for len(data) > 0 {
		line++
		n := bytes.IndexByte(data, '\n') + 1
		if n == 0 {
			n = len(data)
		}
		text := data[:n]
		data = data[n:]
		mark := bytes.TrimRight(text, " \t\r\n")
		rest, isStart := bytes.CutPrefix(mark, []byte("---"))
		if isStart && (len(rest) == 0 || rest[0] == ' ' || rest[0] == '\t') {
			// What follows on the marker's line belongs to the document.
			docs = append(docs, document{line: line, data: append(bytes.Clone(rest), '\n')})
			continue
		}
		if bytes.Equal(mark, []byte("...")) {
			docs = append(docs, document{line: line + 1})
			continue
		}
		last := &docs[len(docs)-1]
		last.data = append(last.data, text...)
	}
	return slices.DeleteFunc(docs, func(d document) bool { return len(bytes.TrimSpace(d.data)) == 0 })
}

// decodeOne reads one document; nil if it holds nothing. With an error it returns the object if
// some of it can be enforced. groups accepts groups of a cloud provider, as agents do in objects of
// Kubernetes.
func decodeOne(file string, data []byte, groups bool) (*Object, error) {
	// Duplicate keys are refused here, before a map hides them.
	raw, err := yaml.YAMLToJSONStrict(data)
	if err != nil {
		return nil, errors.New(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "))
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return nil, err
	}
	if tree == nil {
		return nil, nil
	}
	fields, ok := tree.(map[string]any)
	if !ok {
		return nil, errors.New("the document is not an object")
	}
	apiVersion, _ := fields["apiVersion"].(string)
	kind, _ := fields["kind"].(string)
	if apiVersion != v2.APIVersion {
		return nil, fmt.Errorf("apiVersion: %q is not %s", clip(apiVersion), v2.APIVersion)
	}
	options := func(faults []*policy.FieldError, spec *v2.Rule, specs []*v2.Rule) []policy.Option {
		out := []policy.Option{policy.WithFaults(faults)}
		if groups {
			v2.MarkGroups(append([]*v2.Rule{spec}, specs...)...)
			out = append(out, policy.WithGroups())
		}
		return out
	}
	switch kind {
	case v2.KindNetworkPolicy:
		var p v2.CiliumNetworkPolicy
		faults, err := decodeStrict(tree, raw, &p)
		if err != nil {
			return nil, err
		}
		p.Namespace = cmp.Or(p.Namespace, "default")
		rules, err := policy.Parse(&p, options(faults, p.Spec, p.Specs)...)
		if p.Name == "" || len(rules) == 0 {
			return nil, err
		}
		owner := policy.Owner(file + "/" + p.Namespace + "/" + p.Name)
		return &Object{Owner: owner, Namespaced: &p, Rules: rules}, err
	case v2.KindClusterwideNetworkPolicy:
		var p v2.CiliumClusterwideNetworkPolicy
		faults, err := decodeStrict(tree, raw, &p)
		if err != nil {
			return nil, err
		}
		rules, err := policy.ParseClusterwide(&p, options(faults, p.Spec, p.Specs)...)
		if p.Name == "" || len(rules) == 0 {
			return nil, err
		}
		return &Object{Owner: policy.Owner(file + "/" + p.Name), Clusterwide: &p, Rules: rules}, err
	}
	return nil, fmt.Errorf("kind: %q is neither %s nor %s", clip(kind), v2.KindNetworkPolicy, v2.KindClusterwideNetworkPolicy)
}

func clip(s string) string {
	if len(s) > 80 {
		return s[:80] + "..."
	}
	return s
}
