package policydir

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"

	networkingv1 "k8s.io/api/networking/v1"
	policyv1alpha2 "sigs.k8s.io/network-policy-api/apis/v1alpha2"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/policy"
)

// Document is one policy of a text, of any kind that is enforced.
type Document struct {
	// Line is that of its first line in the text, from 1.
	Line  int
	Name  policy.Name
	Rules []*policy.Rule
	// Lines has the lines at which rules and their entries begin, by path; those that are known.
	Lines map[string]int
}

// Documents reads policies of all kinds, as agents read objects of Kubernetes: those that may be in
// files of the directory, with groups of a cloud provider too, NetworkPolicy and
// ClusterNetworkPolicy. Every fault is reported with the line at which its document begins, or with
// its own where the text is no YAML; there are no documents then.
func Documents(data []byte) ([]Document, error) {
	if len(data) > MaxFileSize {
		return nil, fmt.Errorf("the text is larger than %d bytes", MaxFileSize)
	}
	docs := split(data)
	if len(docs) > maxDocs {
		return nil, fmt.Errorf("the text holds more than %d documents", maxDocs)
	}
	var out []Document
	var errs []error
	seen := map[policy.Name]int{}
	for _, doc := range docs {
		line := doc.line + leadingBlank(doc.data)
		name, rules, err := decodeAny(doc)
		if err == nil && name == (policy.Name{}) {
			continue // nothing but comments
		}
		if before := seen[name]; err == nil && before > 0 {
			err = fmt.Errorf("%s is there already, at line %d", name, before)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("line %d: %w", line, err))
			continue
		}
		seen[name] = line
		out = append(out, Document{Line: line, Name: name, Rules: rules, Lines: linesOf(doc, rules)})
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	return out, nil
}

// leadingBlank counts the blank lines before a document's first line.
func leadingBlank(data []byte) int {
	n := 0
	for line := range strings.Lines(string(data)) {
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "#") {
			return n
		}
		n++
	}
	return 0
}

var yamlLine = regexp.MustCompile(`\bline (\d+)\b`)

// decodeAny reads one document of any kind; its name is empty if it holds nothing.
func decodeAny(doc document) (policy.Name, []*policy.Rule, error) {
	none := policy.Name{}
	raw, err := yaml.YAMLToJSONStrict(doc.data)
	if err != nil {
		// Its lines are those of the document.
		return none, nil, errors.New(yamlLine.ReplaceAllStringFunc(strings.TrimPrefix(err.Error(), "error converting YAML to JSON: "), func(s string) string {
			n, _ := strconv.Atoi(strings.TrimPrefix(s, "line "))
			return fmt.Sprintf("line %d", n+doc.line-1)
		}))
	}
	var tree any
	if err := json.Unmarshal(raw, &tree); err != nil {
		return none, nil, err
	}
	if tree == nil {
		return none, nil, nil
	}
	fields, ok := tree.(map[string]any)
	if !ok {
		return none, nil, errors.New("the document is not an object")
	}
	delete(fields, "status") // which servers write, and which has no meaning here
	apiVersion, _ := fields["apiVersion"].(string)
	kind, _ := fields["kind"].(string)
	switch {
	case apiVersion == networkingv1.SchemeGroupVersion.String() && kind == "NetworkPolicy":
		var p networkingv1.NetworkPolicy
		if err := readStrict(tree, raw, &p); err != nil {
			return none, nil, err
		}
		p.Namespace = cmp.Or(p.Namespace, "default")
		rules, err := policy.ParseNetworkPolicy(&p)
		return policy.Name{Kind: kind, Namespace: p.Namespace, Name: p.Name}, rules, err
	case apiVersion == policyv1alpha2.GroupVersion.String() && kind == "ClusterNetworkPolicy":
		var p policyv1alpha2.ClusterNetworkPolicy
		if err := readStrict(tree, raw, &p); err != nil {
			return none, nil, err
		}
		rules, err := policy.ParseClusterNetworkPolicy(&p)
		return policy.Name{Kind: kind, Name: p.Name}, rules, err
	case apiVersion != v2.APIVersion:
		return none, nil, fmt.Errorf("%q of apiVersion %q is no kind of policy that is enforced", clip(kind), clip(apiVersion))
	}
	obj, err := decodeOne("text", doc.data, true)
	if err != nil || obj == nil {
		return none, nil, err
	}
	return obj.Owner.Policy(), obj.Rules, nil
}

// readStrict is decodeStrict for kinds of which nothing is enforced that is at fault.
func readStrict(tree any, raw []byte, dst any) error {
	faults, err := decodeStrict(tree, raw, dst)
	if err != nil {
		return err
	}
	var errs []error
	for _, f := range faults {
		errs = append(errs, f)
	}
	return errors.Join(errs...)
}
