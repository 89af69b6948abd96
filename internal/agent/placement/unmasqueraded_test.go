package placement

import (
	"log/slog"
	"net/http"
	"net/netip"
	"testing"

	"github.com/hawser-net/hawser/internal/endpoint"
)

// TestUnmasqueradedIndex: an address is whose it was given to last.
func TestUnmasqueradedIndex(t *testing.T) {
	t.Parallel()
	var applied []netip.Addr
	calls := 0
	fail := error(nil)
	u := NewUnmasqueraded(func(ips []netip.Addr) error { calls++; applied = ips; return fail }, slog.New(slog.DiscardHandler))
	row := func(id uint16, four, six bool) (r endpoint.Endpoint) {
		r.ID, r.PlainIPv4, r.PlainIPv6 = id, four, six
		r.IPv4, r.IPv6 = netip.MustParseAddr("10.0.1.7"), netip.MustParseAddr("fd00:1::7")
		return r
	}
	expect := func(what string, wantCalls, wantApplied int, err error) {
		t.Helper()
		if err != nil || calls != wantCalls || len(applied) != wantApplied {
			t.Errorf("%s: %v, applied %v in call %d; want %d in call %d", what, err, applied, calls, wantApplied, wantCalls)
		}
	}
	expect("nothing asked", 0, 0, u.set(row(1, false, false)))
	expect("both", 1, 2, u.set(row(1, true, true)))
	expect("again", 1, 2, u.set(row(1, true, true)))
	expect("of another endpoint", 1, 2, u.set(row(2, true, true)))
	u.remove(row(1, true, true))
	expect("the first one goes late", 1, 2, nil)
	expect("another one that asks for IPv6 alone", 2, 1, u.set(row(3, false, true)))
	u.remove(row(3, false, true))
	expect("it goes", 3, 0, nil)
	fail = http.ErrServerClosed
	if err := u.set(row(4, true, false)); err == nil {
		t.Error("what the kernel refuses is no error")
	}
	if err := u.set(row(4, true, false)); err == nil {
		t.Error("what the kernel has refused is taken for done")
	}
	fail = nil
	expect("the kernel takes it", 6, 1, u.set(row(4, true, false)))
	fail = http.ErrServerClosed
	u.remove(row(4, true, false))
	fail = nil
	expect("the next owner, who asks nothing", 8, 0, u.set(row(5, false, false)))
	expect("once more", 8, 0, u.set(row(5, false, false)))
}
