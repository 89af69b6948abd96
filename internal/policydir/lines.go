package policydir

import (
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/hawser-net/hawser/internal/policy"
)

// linesOf returns at which lines of a text the rules of one of its documents begin, and their
// entries, by their paths, such as "spec" and "spec.ingress[0]". A path that the text does not
// spell out, as where a merge key brings it in, has none.
func linesOf(doc document, rules []*policy.Rule) map[string]int {
	var root yaml.Node
	if err := yaml.Unmarshal(doc.data, &root); err != nil || len(root.Content) != 1 {
		return nil
	}
	out := map[string]int{}
	add := func(path string) {
		if n := lineAt(root.Content[0], path); n > 0 {
			out[path] = n + doc.line - 1
		}
	}
	for _, r := range rules {
		add(r.Path)
		for _, c := range r.Clauses {
			add(r.Path + "." + c.Path)
		}
	}
	return out
}

// lineAt returns the line in a document at which what a path names begins: that of the key, or of
// the entry of a list; 0 if it is not there.
func lineAt(n *yaml.Node, path string) int {
	line := 0
	for part := range strings.SplitSeq(path, ".") {
		name, rest, indexed := strings.Cut(part, "[")
		key, value := member(n, name)
		if key == nil {
			return 0
		}
		line, n = key.Line, value
		for indexed {
			var index string
			if index, rest, indexed = strings.Cut(rest, "]"); !indexed {
				return 0
			}
			i, err := strconv.Atoi(index)
			n = resolve(n)
			if err != nil || n == nil || n.Kind != yaml.SequenceNode || i < 0 || i >= len(n.Content) {
				return 0
			}
			n = n.Content[i]
			line = n.Line
			rest, indexed = strings.CutPrefix(rest, "[")
		}
	}
	return line
}

// resolve follows an alias to what it stands for.
func resolve(n *yaml.Node) *yaml.Node {
	for range 8 { // an alias may name another, but not itself for ever
		if n == nil || n.Kind != yaml.AliasNode {
			return n
		}
		n = n.Alias
	}
	return nil
}

// member returns a member of an object, nil if it has none of the name.
func member(n *yaml.Node, name string) (key, value *yaml.Node) {
	n = resolve(n)
	if n == nil || n.Kind != yaml.MappingNode {
		return nil, nil
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == name {
			return n.Content[i], n.Content[i+1]
		}
	}
	return nil, nil
}
