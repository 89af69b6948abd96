package output

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"
)

func TestPathTemplate(t *testing.T) {
	t.Parallel()
	const doc = `{
		"items": [
			{"id": 1, "status": {"external-identifiers": {"k8s-namespace": "a"}, "state": "ready", "labels": ["x", "y"]}},
			{"id": 2, "status": {"external-identifiers": {"k8s-namespace": "b"}, "state": "not.ready", "labels": []}}
		],
		"big": 18446744073709551615, "less": 9223372036854775807, "real": 0.5, "on": true, "none": null,
		"labels": {"example.com/app": "web", "it's": "odd"},
		"7": "seven"
	}`
	var data any
	dec := json.NewDecoder(strings.NewReader(doc))
	dec.UseNumber()
	if err := dec.Decode(&data); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ template, want string }{
		{`{.items[0].id}`, "1\n"},
		{`.items[0].id`, "1\n"},
		{`{$.items[0].id}`, "1\n"},
		{`{items[0].id}`, "1\n"},
		{`{.items[*].id}`, "1 2\n"},
		{`{.items[-1].id}`, "2\n"},
		{`{.items[0:1].id}`, "1\n"},
		{`{.items[0,1].id}`, "1 2\n"},
		{`{.labels[*]}`, "web odd\n"},
		{`{..state}`, "ready not.ready\n"},
		{`{..k8s-namespace}`, "a b\n"},
		{`{.items[0].status.external-identifiers.k8s-namespace}`, "a\n"},
		{`{.items[0]['status']["state"]}`, "ready\n"},
		{`{.items[?(@.status.external-identifiers.k8s-namespace=="b")].id}`, "2\n"},
		{`{.items[?(@.status.state=='not.ready')].id}`, "2\n"},
		{`{.items[?(@.id > 1.5)].id}`, "2\n"},
		{`{.items[0].status.labels}`, `["x","y"]` + "\n"},
		{`{.items[1].status.labels[*]}`, "\n"},
		{`{.big} {.less} {.real} {.on}{.none}`, "18446744073709551615 9223372036854775807 0.5 true\n"},
		{`{.labels.example\.com/app}`, "web\n"},
		{`{.labels.it\'s}`, "odd\n"},
		{`{.7}`, "seven\n"},
		{`{.nothing.at.all}`, "\n"},
		{`{range .items[*]}{.id}={.status.state}{"\n"}{end}`, "1=ready\n2=not.ready\n"},
		{`{range .items}{.id}{"}"}{end}`, "1}2}\n"},
		{`{range .items[*]}{range .status.labels[*]}<{@}>{end}{'\t'}{end}.`, "<x><y>\t\t.\n"},
		{`a{"\""}b`, "a\"b\n"},
		{`{.items[0].status.external-identifiers}`, `{"k8s-namespace":"a"}` + "\n"},
	} {
		p, err := parsePathTemplate(tt.template)
		if err != nil {
			t.Errorf("%s: %v", tt.template, err)
			continue
		}
		var b bytes.Buffer
		if err := p.execute(&b, data); err != nil {
			t.Errorf("%s: %v", tt.template, err)
		} else if b.String() != tt.want {
			t.Errorf("%s gives %q, want %q", tt.template, b.String(), tt.want)
		}
	}
}

func TestMalformedPathTemplate(t *testing.T) {
	t.Parallel()
	for _, template := range []string{
		"", "{}", "{", "{.a", `{"a`, `{"a}`, "{.a[}", "{.a[?(}", "{range .a}", "{end}", "{range }{end}", "{.a}{end}",
		strings.Repeat("{range .a}", 20) + strings.Repeat("{end}", 20),
	} {
		if _, err := parsePathTemplate(template); err == nil {
			t.Errorf("%q is accepted", template)
		}
	}
}

func FuzzPathTemplate(f *testing.F) {
	for _, seed := range []string{
		`{.items[?(@.status.external-identifiers.k8s-namespace=="b")].id}`, `{range .items[*]}{.id}{"\n"}{end}`,
		`{..a}`, `{.a\.b}`, `{.[`, `{['a']}`, `{$..[?(@.x<1.5)]}`, "{.items[0,1:2:3]}",
	} {
		f.Add(seed)
	}
	data := map[string]any{"items": []any{map[string]any{"id": 1, "status": map[string]any{"state": "ready"}}}, "a.b": nil}
	f.Fuzz(func(t *testing.T, template string) {
		p, err := parsePathTemplate(template)
		if err != nil {
			return
		}
		var b bytes.Buffer
		if err := p.execute(&b, data); err != nil {
			return
		}
		if !strings.HasSuffix(b.String(), "\n") {
			t.Errorf("%q: output %q does not end a line", template, b.String())
		}
	})
}
