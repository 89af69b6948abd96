package output

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestTable(t *testing.T) {
	t.Parallel()
	tab := Terminal{Colour: true}.Table("A", "LONG\nHEADER", "C")
	tab.Row("x", Good.Cell("naïve"), 1)
	tab.Row("", []string{"two", "lines"}, "")
	tab.Row("only one")
	var b bytes.Buffer
	if err := tab.Write(&b); err != nil {
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
		out := Printable(s)
		if !utf8.ValidString(out) || strings.IndexFunc(out, unprintable) >= 0 {
			t.Errorf("Printable(%q) = %q", s, out)
		}
		if strings.IndexFunc(s, unprintable) < 0 && out != s {
			t.Errorf("Printable(%q) changes it to %q", s, out)
		}
	})
}
