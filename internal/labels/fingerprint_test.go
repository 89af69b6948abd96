package labels

import (
	"strings"
	"testing"
)

// TestFingerprint: filters that differ in any rule, or in what their rules are about, have
// different fingerprints; the order of rules does not matter.
func TestFingerprint(t *testing.T) {
	t.Parallel()
	filter := func(file string, entries ...string) *Filter {
		t.Helper()
		var data []byte
		if file != "" {
			data = []byte(file)
		}
		f, err := NewFilter(entries, data)
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if a, b := filter("", "k8s:!zone", "k8s:!tier").Fingerprint(), filter("", "k8s:!tier", "k8s:!zone").Fingerprint(); a != b {
		t.Errorf("two orders of the same rules: %s and %s", a, b)
	}
	if a, b := DefaultFilter().Fingerprint(), DefaultFilter().Narrow(KeysOf("app")).Fingerprint(); a != b {
		t.Errorf("a narrowed filter: %s and %s", a, b)
	}
	const file = `{"version":1,"valid-prefixes":[{"source":"k8s","prefix":"app"}]}`
	seen := map[string]int{}
	for i, f := range []*Filter{
		filter(""), filter("", "k8s:!zone"), filter("", "!zone"), filter("", "k8s:zone"), filter("", "k8s:!tier"), filter("", "k8s:!zone", "k8s:!zone"),
		filter(file), filter(file, "k8s:!zone"), filter(strings.Replace(file, "k8s", "any", 1)),
	} {
		sum := f.Fingerprint()
		if j, ok := seen[sum]; ok || sum == "" {
			t.Errorf("filters %d and %d have the same fingerprint %q", i, j, sum)
		}
		seen[sum] = i
	}
}
