package bpf_test

import (
	"os"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
)

// TestReasons keeps the two lists of drop reasons, in C and in Go, in step with each other and with
// the page that says to people what to do.
func TestReasons(t *testing.T) {
	source, err := os.ReadFile("lib/reason.h")
	if err != nil {
		t.Fatal(err)
	}
	page, err := os.ReadFile("../docs/user/nodes.md")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]string{ // where the name in C is not the one shown, in capitals
		"POLICY_DENY": "policy-deny-rule", "MALFORMED": "malformed-packet", "CT_FULL": "conntrack-full",
		"NO_TUNNEL": "no-tunnel-endpoint", "ENCAP_FAILED": "encapsulation-failed",
		"UNSUPPORTED_NDP": "unsupported-neighbour-discovery", "UNKNOWN_RELATED": "unknown-related-icmp",
		"INVALID_SOURCE_MAC": "invalid-source-mac",
	}
	matches := regexp.MustCompile(`(?m)^\t(?:DROP_)?(\w+) = ([1-9]\d*),`).FindAllStringSubmatch(string(source), -1)
	limit := matches[len(matches)-1]
	matches = matches[:len(matches)-1]
	if most, _ := strconv.Atoi(limit[2]); limit[1] != "REASON_MAX" || most <= len(matches) {
		t.Errorf("%s is %d with %d reasons: packets dropped for the last ones are not counted; raise REASON_MAX", limit[1], most, len(matches))
	}
	for i, m := range matches {
		number, _ := strconv.Atoi(m[2])
		if number != i+1 {
			t.Errorf("DROP_%s is %d, want %d: numbers are never reused or left out", m[1], number, i+1)
		}
		want := names[m[1]]
		if want == "" {
			want = strings.ToLower(strings.ReplaceAll(m[1], "_", "-"))
		}
		if got := datapath.DropReason(number).String(); got != want {
			t.Errorf("reason %d is %q in Go, DROP_%s in C", number, got, m[1])
		}
		if !strings.Contains(string(page), "`"+want+"`") {
			t.Errorf("docs/user/nodes.md does not say what to do about %s", want)
		}
	}
	if last := datapath.DropReason(len(matches) + 1).String(); !strings.HasPrefix(last, "reason-") {
		t.Errorf("%s is known in Go only", last)
	}
}
