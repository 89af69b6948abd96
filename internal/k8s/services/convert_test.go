package services

import (
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"
)

// FuzzSources: ranges that are named restrict, whatever they look like, and those that are
// understood are as the datapath wants them.
func FuzzSources(f *testing.F) {
	for _, s := range []string{"10.0.0.0/8", " 10.0.0.1/8 ,fd00::/8", "::ffff:10.0.0.0/104", "10.0.0.0", "/", "fe80::1%eth0/64", ",", ""} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, text string) {
		list := strings.Split(text, ",")
		restricted, out := sources(list)
		if !restricted {
			t.Fatalf("%q lets everybody in", list)
		}
		if len(out) > len(list) {
			t.Fatalf("%q became %v", list, out)
		}
		for _, p := range out {
			if !p.IsValid() || p != p.Masked() || p.Addr().Is4In6() || p.Addr().Zone() != "" {
				t.Errorf("%q has %v", list, p)
			}
		}
	})
}

func TestSources(t *testing.T) {
	if restricted, out := sources(nil); restricted || out != nil {
		t.Errorf("no ranges restrict to %v", out)
	}
	restricted, out := sources([]string{"nonsense", " 10.1.2.3/8", "fd00::1/16"})
	want := []string{"10.0.0.0/8", "fd00::/16"}
	var got []string
	for _, p := range out {
		got = append(got, p.String())
	}
	if diff := gocmp.Diff(want, got); !restricted || diff != "" {
		t.Errorf("restricted %v (-want +got):\n%s", restricted, diff)
	}
}
