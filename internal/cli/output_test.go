package cli

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"
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

func TestTable(t *testing.T) {
	t.Parallel()
	a := &app{colour: true}
	tab := a.table("A", "LONG\nHEADER", "C")
	tab.row("x", cell{"naïve", good}, 1)
	tab.row("", []string{"two", "lines"}, "")
	tab.row("only one")
	var b bytes.Buffer
	if err := tab.write(&b); err != nil {
		t.Fatal(err)
	}
	plain := strings.NewReplacer("\x1b[1m", "", "\x1b[32m", "", "\x1b[0m", "").Replace(b.String())
	want := strings.Join([]string{
		"A          LONG     C",
		"           HEADER",
		"x          naïve    1",
		"           two",
		"           lines",
		"only one",
		"",
	}, "\n")
	if plain != want {
		t.Errorf("got\n%s\nwant\n%s", plain, want)
	}
	if !strings.Contains(b.String(), "\x1b[32mnaïve\x1b[0m") {
		t.Error("the cell has no colour")
	}
}

func FuzzPrintable(f *testing.F) {
	f.Add("k8s:app=web")
	f.Add("\x1b]0;title\x07")
	f.Add("\u202e\u0085\xff")
	f.Fuzz(func(t *testing.T, s string) {
		out := printable(s)
		if !utf8.ValidString(out) || strings.IndexFunc(out, unprintable) >= 0 {
			t.Errorf("printable(%q) = %q", s, out)
		}
		if strings.IndexFunc(s, unprintable) < 0 && out != s {
			t.Errorf("printable(%q) changes it to %q", s, out)
		}
	})
}

func TestPortText(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		port, bits int
		want       string
	}{{0, 0, "any"}, {80, 16, "80"}, {1024, 6, "1024-2047"}, {8080, 15, "8080-8081"}, {0, 1, "0-32767"}, {32768, 1, "32768-65535"}} {
		if got := portText(tt.port, tt.bits); got != tt.want {
			t.Errorf("portText(%d, %d) = %s, want %s", tt.port, tt.bits, got, tt.want)
		}
	}
}

func TestCompareAddresses(t *testing.T) {
	t.Parallel()
	sorted := []string{"0.0.0.0/0", "9.0.0.1", "10.0.0.0/8", "10.0.0.0/24", "10.0.0.2/32", "10.0.0.10", "::/0", "fd00::2", "fd00::10", "", "nonsense"}
	got := slices.Clone(sorted)
	slices.Reverse(got)
	slices.SortFunc(got, compareAddresses)
	if !slices.Equal(got, sorted) {
		t.Errorf("got %q", got)
	}
}
