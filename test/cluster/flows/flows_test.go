package flows

import (
	"context"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

func TestParse(t *testing.T) {
	m := message{7, 1 << 40}
	if got, ok := parse(m.bytes()); !ok || got != m {
		t.Errorf("%v came back as %v (%t)", m, got, ok)
	}
	for _, bad := range [][]byte{nil, m.bytes()[:messageLn-1], make([]byte, messageLn)} {
		if _, ok := parse(bad); ok {
			t.Errorf("%x was taken for a message", bad)
		}
	}
}

// own is the namespace of the test itself.
func own(t *testing.T) *lab.Namespace {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root: it enters a network namespace")
	}
	ns, err := lab.OpenNamespace("/proc/self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ns.Close)
	return ns
}

var loopback = netip.MustParseAddr("127.0.0.1")

const port, silent = 45871, 45872

// Flows that arrive are counted as answered, those without a server as lost, and one that arrives
// although it is forbidden as wrong.
func TestCounting(t *testing.T) {
	ns := own(t)
	servers := NewServers()
	defer servers.Close()
	if err := servers.Serve(ns, 3, []netip.Addr{loopback}, port); err != nil {
		t.Fatal(err)
	}
	var flows []Flow
	for _, kind := range []Kind{TCPEstablished, UDPEstablished, TCPNew, UDPNew} {
		flows = append(flows, Flow{Name: string(kind), Kind: kind, From: ns, To: netip.AddrPortFrom(loopback, port), Allowed: true})
	}
	flows = append(flows, Flow{Name: "denied", Kind: TCPNew, From: ns, To: netip.AddrPortFrom(loopback, silent)})
	var numbers Numbers
	traffic, err := Start(t.Context(), servers, &numbers, flows)
	if err != nil {
		t.Fatal(err)
	}
	deadline := time.Now().Add(20 * time.Second)
	for servers.Arrived(3) < 5 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	// What the policies forbid now gets through: the server is there.
	if err := servers.Serve(ns, 4, []netip.Addr{loopback}, silent); err != nil {
		t.Fatal(err)
	}
	for servers.Arrived(5) < 1 && time.Now().Before(deadline) {
		time.Sleep(10 * time.Millisecond)
	}
	results := traffic.Stop()
	for _, r := range results[:4] {
		if r.Sent == 0 || r.Bad() {
			t.Errorf("%s: %+v", r.Name, r)
		}
	}
	if r := results[4]; r.Wrong == 0 || !r.Bad() || len(r.Why) == 0 {
		t.Errorf("%s: %+v", r.Name, r)
	}
}

// A server that goes away takes answers with it: what is lost is counted, by both kinds of flow.
func TestLoss(t *testing.T) {
	ns := own(t)
	servers := NewServers()
	if err := servers.Serve(ns, 1, []netip.Addr{loopback}, port+2); err != nil {
		t.Fatal(err)
	}
	var flows []Flow
	for _, kind := range []Kind{TCPEstablished, UDPEstablished, TCPNew} {
		flows = append(flows, Flow{Name: string(kind), Kind: kind, From: ns, To: netip.AddrPortFrom(loopback, port+2), Allowed: true, Within: 2 * time.Second})
	}
	var numbers Numbers
	traffic, err := Start(t.Context(), servers, &numbers, flows)
	if err != nil {
		t.Fatal(err)
	}
	servers.Close()
	time.Sleep(5 * newEvery) // so long there is no server
	for _, r := range traffic.Stop() {
		if r.Lost == 0 || len(r.Why) == 0 {
			t.Errorf("%s: %+v", r.Name, r)
		}
	}
}

func TestStartFails(t *testing.T) {
	ns := own(t)
	servers := NewServers()
	defer servers.Close()
	var numbers Numbers
	_, err := Start(context.Background(), servers, &numbers, []Flow{
		{Name: "x", Kind: TCPNew, From: ns, To: netip.AddrPortFrom(loopback, silent+1), Allowed: true, Within: time.Second},
	})
	if err == nil {
		t.Error("a flow without a server starts")
	}
}

func TestAsk(t *testing.T) {
	ns := own(t)
	servers := NewServers()
	defer servers.Close()
	at := netip.AddrPortFrom(loopback, port+4)
	if err := servers.Serve(ns, 9, []netip.Addr{loopback}, at.Port()); err != nil {
		t.Fatal(err)
	}
	for _, network := range []string{"tcp", "udp"} {
		if err := Ask(ns, network, at, 9, 5*time.Second); err != nil {
			t.Errorf("%s: %v", network, err)
		}
		if err := Ask(ns, network, at, 10, 5*time.Second); err == nil {
			t.Errorf("%s: the answer of another server is taken", network)
		}
	}
}
