package kvstore_test

import (
	"slices"
	"testing"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

func TestLayout(t *testing.T) {
	t.Parallel()
	const text, encoded = "k8s:app=x;", "azhzOmFwcD14Ow=="
	for _, tt := range []struct {
		layout kvstore.Layout
		forms  []string
		reads  map[string]string
		lock   string
	}{
		{kvstore.LayoutEtcd, []string{text}, map[string]string{text: text, encoded: encoded}, ""},
		{kvstore.LayoutConsul, []string{encoded, text}, map[string]string{text: text, encoded: text, "": ""}, "locks/" + encoded + ".lock"},
		{kvstore.LayoutConsulPlain, []string{text, encoded}, map[string]string{text: text, encoded: text, "": ""}, "locks/" + encoded + ".lock"},
	} {
		if got := tt.layout.Encodings(text); !slices.Equal(got, tt.forms) || tt.layout.Encode(text) != tt.forms[0] {
			t.Errorf("layout %d: forms %q, writes %q, want %q", tt.layout, got, tt.layout.Encode(text), tt.forms)
		}
		for stored, want := range tt.reads {
			if got := tt.layout.Decode(stored); got != want {
				t.Errorf("layout %d: %q is %q, want %q", tt.layout, stored, got, want)
			}
		}
		if got, ok := tt.layout.LockKey("locks/", text); got != tt.lock || ok != (tt.lock != "") {
			t.Errorf("layout %d: lock %q, want %q", tt.layout, got, tt.lock)
		}
	}
}

// FuzzLayout: a text that is written is read back, and what anybody wrote is read as something.
func FuzzLayout(f *testing.F) {
	f.Add("k8s:app=x;")
	f.Add("azhzOmFwcD14Ow==")
	f.Fuzz(func(t *testing.T, text string) {
		if got := kvstore.LayoutConsul.Decode(kvstore.LayoutConsul.Encode(text)); got != text {
			t.Errorf("%q is read back as %q", text, got)
		}
		for _, l := range []kvstore.Layout{kvstore.LayoutEtcd, kvstore.LayoutConsul, kvstore.LayoutConsulPlain} {
			if again := l.Decode(text); l == kvstore.LayoutEtcd && again != text {
				t.Errorf("%q is read as %q", text, again)
			}
		}
	})
}
