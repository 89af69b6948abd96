package output

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/ohler55/ojg/jp"
)

// pathTemplate is a JSONPath template as kubectl takes it: text with expressions in braces,
// {.field}, {.list[*].field}, {.list[?(@.field=="x")].other}, {..field}, {"\n"}, and
// {range .list[*]}...{end}. Field names may hold hyphens without being quoted.
type pathTemplate struct{ nodes []pathNode }

// pathNode is a piece of text, an expression, or a range with a body.
type pathNode struct {
	text string
	path jp.Expr
	body []pathNode
	loop bool
}

// parsePathTemplate compiles a template. A template without braces is one expression.
func parsePathTemplate(text string) (*pathTemplate, error) {
	if text == "" {
		return nil, errors.New("jsonpath: the template is empty; an example is jsonpath='{.status.state}'")
	}
	if !strings.Contains(text, "{") {
		text = "{" + text + "}"
	}
	p := &pathParser{rest: text}
	nodes, err := p.nodes(false)
	if err != nil {
		return nil, fmt.Errorf("jsonpath: %w", err)
	}
	return &pathTemplate{nodes}, nil
}

// maxRanges bounds how deep ranges nest.
const maxRanges = 16

type pathParser struct {
	rest  string
	depth int
}

func (p *pathParser) nodes(inRange bool) ([]pathNode, error) {
	var out []pathNode
	for p.rest != "" {
		text, after, found := strings.Cut(p.rest, "{")
		if text != "" {
			out = append(out, pathNode{text: text})
		}
		if !found {
			p.rest = ""
			break
		}
		action, rest, err := cutAction(after)
		if err != nil {
			return nil, err
		}
		p.rest = rest
		switch {
		case action == "end":
			if !inRange {
				return nil, errors.New("{end} without {range}")
			}
			p.depth--
			return out, nil
		case strings.HasPrefix(action, "range "):
			if p.depth++; p.depth > maxRanges {
				return nil, fmt.Errorf("more than %d ranges inside each other", maxRanges)
			}
			path, err := parsePath(strings.TrimSpace(strings.TrimPrefix(action, "range ")))
			if err != nil {
				return nil, err
			}
			body, err := p.nodes(true)
			if err != nil {
				return nil, err
			}
			out = append(out, pathNode{path: path, body: body, loop: true})
		case strings.HasPrefix(action, `"`) || strings.HasPrefix(action, "'"):
			text, err := unquote(action)
			if err != nil {
				return nil, err
			}
			out = append(out, pathNode{text: text})
		default:
			path, err := parsePath(action)
			if err != nil {
				return nil, err
			}
			out = append(out, pathNode{path: path})
		}
	}
	if inRange {
		return nil, errors.New("{range} without {end}")
	}
	return out, nil
}

// cutAction splits after the closing brace of an action, which is not one inside quotes.
func cutAction(s string) (action, rest string, err error) {
	var quote byte
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '\\':
			i++
		case quote != 0:
			if c == quote {
				quote = 0
			}
		case c == '"' || c == '\'':
			quote = c
		case c == '}':
			return strings.TrimSpace(s[:i]), s[i+1:], nil
		}
	}
	return "", "", fmt.Errorf("no closing brace after {%s", s)
}

func unquote(s string) (string, error) {
	if strings.HasPrefix(s, "'") && strings.HasSuffix(s, "'") && len(s) > 1 {
		s = `"` + strings.ReplaceAll(s[1:len(s)-1], `"`, `\"`) + `"`
	}
	out, err := strconv.Unquote(s)
	if err != nil {
		return "", fmt.Errorf("malformed text %s", s)
	}
	return out, nil
}

// parsePath compiles one expression. It is given to the library with every field name in
// brackets, because unbracketed ones may not hold hyphens there.
func parsePath(text string) (expr jp.Expr, err error) {
	switch {
	case text == "":
		return nil, errors.New("empty expression {}")
	case text[0] == '.' || text[0] == '[':
		if text == "." {
			text = ""
		}
		text = "$" + text
	case text[0] != '$' && text[0] != '@':
		text = "$." + text
	}
	// The library is not ours to trust with arbitrary text.
	defer func() {
		if r := recover(); r != nil {
			expr, err = nil, fmt.Errorf("malformed expression {%s}", text)
		}
	}()
	expr, err = jp.ParseString(bracketNames(text))
	if err != nil {
		return nil, fmt.Errorf("malformed expression {%s}: %w", text, err)
	}
	return expr, nil
}

// bracketNames rewrites .name to ['name'] outside quotes. A backslash takes the next character
// into the name, as in .metadata.labels.example\.com/app.
func bracketNames(s string) string {
	var b strings.Builder
	var quote byte
	for i := 0; i < len(s); i++ {
		c := s[i]
		if quote != 0 {
			b.WriteByte(c)
			if c == '\\' && i+1 < len(s) {
				i++
				b.WriteByte(s[i])
			} else if c == quote {
				quote = 0
			}
			continue
		}
		if c == '"' || c == '\'' {
			quote = c
		}
		digitBefore := i > 0 && s[i-1] >= '0' && s[i-1] <= '9' && !inName(s, i-1)
		if c != '.' || i+1 == len(s) || !nameByte(s[i+1]) && s[i+1] != '\\' || digitBefore {
			b.WriteByte(c)
			continue
		}
		if i > 0 && s[i-1] == '.' { // the second dot of ..name
			b.WriteByte('.')
		}
		b.WriteString("['")
		for i++; i < len(s) && (nameByte(s[i]) || s[i] == '\\'); i++ {
			if s[i] == '\\' {
				if i++; i == len(s) {
					break
				}
			}
			if s[i] == '\'' || s[i] == '\\' {
				b.WriteByte('\\')
			}
			b.WriteByte(s[i])
		}
		i--
		b.WriteString("']")
	}
	return b.String()
}

// inName reports whether the digit at i ends a name rather than a number.
func inName(s string, i int) bool {
	for ; i >= 0 && nameByte(s[i]); i-- {
		if s[i] < '0' || s[i] > '9' {
			return true
		}
	}
	return i >= 0 && s[i] == '.'
}

func nameByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '/' || c >= 0x80
}

// execute writes the template filled from data, which is seen as its JSON is. A path that leads
// nowhere writes nothing; several results are separated by blanks. The output ends with a newline
// unless the template brings its own.
func (t *pathTemplate) execute(w io.Writer, data any) error {
	raw, err := json.Marshal(data)
	if err != nil {
		return err
	}
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var tree any
	if err := dec.Decode(&tree); err != nil {
		return err
	}
	var b bytes.Buffer
	if err := fill(&b, t.nodes, numbers(tree)); err != nil {
		return err
	}
	if !bytes.HasSuffix(b.Bytes(), []byte("\n")) {
		b.WriteByte('\n')
	}
	_, err = b.WriteTo(w)
	return err
}

func fill(b *bytes.Buffer, nodes []pathNode, data any) error {
	for _, n := range nodes {
		if n.path == nil {
			b.WriteString(n.text)
			continue
		}
		results := n.path.Get(data)
		if n.loop {
			// {range .list} goes over the elements, like {range .list[*]}.
			if len(results) == 1 {
				if list, ok := results[0].([]any); ok {
					results = list
				}
			}
			for _, r := range results {
				if err := fill(b, n.body, r); err != nil {
					return err
				}
			}
			continue
		}
		for i, r := range results {
			if i > 0 {
				b.WriteByte(' ')
			}
			switch r := r.(type) {
			case string:
				b.WriteString(r)
			case nil:
			default:
				text, err := json.Marshal(r)
				if err != nil {
					return err
				}
				b.Write(text)
			}
		}
	}
	return nil
}

// object is a JSON object whose members the library visits in the order of their names, so that a
// template always gives the same output.
type object map[string]any

var _ jp.Keyed = object{}

// ValueForKey, SetValueForKey, RemoveValueForKey and Keys implement jp.Keyed.
func (o object) ValueForKey(key string) (any, bool) { v, ok := o[key]; return v, ok }

func (o object) SetValueForKey(key string, value any) { o[key] = value }

func (o object) RemoveValueForKey(key string) { delete(o, key) }

func (o object) Keys() []string { return slices.Sorted(maps.Keys(o)) }

// numbers readies a decoded tree for the library: objects become ordered, and a json.Number becomes
// what is compared, int64 where it fits, else float64; larger integers stay text, so that no digit
// is lost.
func numbers(v any) any {
	switch v := v.(type) {
	case map[string]any:
		for k := range v {
			v[k] = numbers(v[k])
		}
		return object(v)
	case []any:
		for i := range v {
			v[i] = numbers(v[i])
		}
	case json.Number:
		if n, err := v.Int64(); err == nil {
			return n
		}
		if _, err := strconv.ParseUint(v.String(), 10, 64); err == nil {
			return v
		}
		if f, err := v.Float64(); err == nil && !math.IsInf(f, 0) {
			return f
		}
	}
	return v
}
