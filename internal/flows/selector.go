package flows

import (
	"fmt"
	"slices"
	"strings"
)

// selector is a list of requirements on labels, all of which must hold: those of Kubernetes, such
// as "app=web,tier!=db,!old" and "app in (a, b)", on keys that may begin with their source, such as
// "k8s:app" or "reserved:host". A key without one is of any.
type selector []requirement

// requirement is on one key.
type requirement struct {
	source, key string
	// values the label must have one of; none if any will do.
	values []string
	not    bool
}

// match reports whether labels, each "source:key=value" or "source:key", are selected.
func (s selector) match(labels []string) bool {
	for _, r := range s {
		if slices.ContainsFunc(labels, r.holds) == r.not {
			return false
		}
	}
	return true
}

// holds reports whether a label is one that the requirement is about.
func (r requirement) holds(label string) bool {
	source, rest, found := strings.Cut(label, ":")
	if !found {
		source, rest = "", label
	}
	if r.source != "" && r.source != source {
		return false
	}
	key, value, _ := strings.Cut(rest, "=")
	return key == r.key && (r.values == nil || slices.Contains(r.values, value))
}

// parseSelector reads a selector.
func parseSelector(text string) (selector, error) {
	var out selector
	rest := strings.TrimSpace(text)
	if rest == "" {
		return nil, fmt.Errorf("%q selects nothing in particular", text)
	}
	for {
		var item string
		item, rest = cutItem(rest)
		r, err := parseRequirement(strings.TrimSpace(item))
		if err != nil {
			return nil, fmt.Errorf("%q: %w", text, err)
		}
		out = append(out, r)
		if rest == "" {
			return out, nil
		}
		rest = rest[1:]
	}
}

// cutItem returns the text up to a comma that is in no parentheses, and what follows with the
// comma.
func cutItem(text string) (item, rest string) {
	depth := 0
	for i, r := range text {
		switch {
		case r == '(':
			depth++
		case r == ')':
			depth--
		case r == ',' && depth <= 0:
			return text[:i], text[i:]
		}
	}
	return text, ""
}

func parseRequirement(item string) (requirement, error) {
	var r requirement
	key := item
	fields := strings.Fields(item)
	switch i := strings.Index(item, "="); {
	case len(fields) > 1 && (fields[1] == "in" || strings.HasPrefix(fields[1], "in(") || fields[1] == "notin" || strings.HasPrefix(fields[1], "notin(")):
		key = fields[0]
		list := strings.TrimSpace(strings.TrimPrefix(item, key))
		r.not = strings.HasPrefix(list, "notin")
		list = strings.TrimSpace(strings.TrimPrefix(strings.TrimPrefix(list, "not"), "in"))
		inner, ok := strings.CutPrefix(list, "(")
		if ok {
			inner, ok = strings.CutSuffix(inner, ")")
		}
		if !ok || strings.ContainsAny(inner, "()") {
			return r, fmt.Errorf("%q: want values in parentheses", item)
		}
		for v := range strings.SplitSeq(inner, ",") {
			r.values = append(r.values, strings.TrimSpace(v))
		}
	case i > 0 && item[i-1] == '!':
		key = item[:i-1]
		r.not, r.values = true, []string{strings.TrimSpace(item[i+1:])}
	case i >= 0:
		key = item[:i]
		r.values = []string{strings.TrimSpace(strings.TrimPrefix(item[i+1:], "="))}
	case strings.HasPrefix(item, "!"):
		key, r.not = item[1:], true
	}
	key = strings.TrimSpace(key)
	if source, rest, found := strings.Cut(key, ":"); found {
		r.source, key = source, rest
		if r.source == "any" {
			r.source = ""
		}
	}
	r.key = key
	if key == "" || strings.ContainsFunc(r.source+key+strings.Join(r.values, ""), func(c rune) bool { return c <= ' ' || strings.ContainsRune("=!(),:", c) }) {
		return r, fmt.Errorf("%q is not of the form key, !key, key=value, key!=value or key in (values)", item)
	}
	return r, nil
}
