package policy

import (
	"strings"
	"testing"
)

func slash(protocol, ports string) string { return ports + "/" + protocol }

// TestPortsText: a pair that opens or closes wholly, or but for a few ports, reads so.
func TestPortsText(t *testing.T) {
	t.Parallel()
	whole := func(protocols ...string) (out []*PortRange) {
		for _, p := range protocols {
			out = append(out, &PortRange{Protocol: p, Last: 65535})
		}
		return out
	}
	http := &PortRange{Protocol: "TCP", First: 80, Last: 80}
	notHTTP := append(whole("UDP", "SCTP", "ICMPv4", "ICMPv6", "ANY"), &PortRange{Protocol: "TCP", Last: 79}, &PortRange{Protocol: "TCP", First: 81, Last: 65535})
	for _, row := range []struct {
		list []*PortRange
		want string
	}{
		{whole(protocols...), "everything"},
		{[]*PortRange{http}, "80/TCP"},
		{append(whole("UDP"), http, &PortRange{Protocol: "TCP", First: 8000, Last: 8999}), "all UDP ports, 80/TCP, 8000-8999/TCP"},
		{whole("ICMPv4", "ANY"), "ICMPv4, other protocols"},
		{notHTTP, "everything but 80/TCP"},
		{[]*PortRange{{Protocol: "TCP", First: 70000, Last: 1 << 31}}, "70000-2147483648/TCP"}, // a server that lies
	} {
		if got := strings.Join(PortsText(row.list, slash), ", "); got != row.want {
			t.Errorf("%v: %q, want %q", row.list, got, row.want)
		}
	}
	all, some, none := &Access{Verdict: Verdict_ALLOWED}, &Access{Verdict: Verdict_PARTIAL, Ports: []*PortRange{http}}, &Access{Verdict: Verdict_DENIED}
	for _, row := range []struct {
		pair           *PairChange
		opened, closed string
	}{
		{&PairChange{Before: none, After: all, Opened: whole(protocols...)}, "everything", ""},
		{&PairChange{Before: some, After: all, Opened: notHTTP}, "everything else", ""},
		{&PairChange{Before: none, After: some, Opened: []*PortRange{http}}, "80/TCP", ""},
		{&PairChange{Before: all, After: none, Closed: whole(protocols...)}, "", "everything"},
		{&PairChange{Before: all, After: some, Closed: notHTTP}, "", "everything but 80/TCP"},
		{&PairChange{Before: some, After: none, Closed: []*PortRange{http}}, "", "80/TCP"},
	} {
		if row.opened != "" {
			if got := strings.Join(row.pair.OpenedText(slash), ", "); got != row.opened {
				t.Errorf("opened %q, want %q", got, row.opened)
			}
		}
		if row.closed != "" {
			if got := strings.Join(row.pair.ClosedText(slash), ", "); got != row.closed {
				t.Errorf("closed %q, want %q", got, row.closed)
			}
		}
	}
}
