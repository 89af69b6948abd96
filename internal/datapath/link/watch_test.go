package link

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/testenv"
)

func TestWatch(t *testing.T) {
	defer testenv.VerifyNone(t)
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	ep := n.pod(t, 5)
	must(t, n.EnsureEndpoint(ep))
	_, err = n.SetNode(tunnelNode())
	must(t, err)
	want := settledLines(n.dump(t))

	ctx, cancel := context.WithCancel(context.Background())
	reasons, done := make(chan string, 16), make(chan error, 1)
	go func() { done <- n.Watch(ctx, func(reason string) { reasons <- reason }) }()

	// The watch has begun once it sees something.
	ready := func() bool {
		n.output(t, "ip", "route", "del", "10.3.0.0/24")
		defer n.SetNode(tunnelNode())
		select {
		case <-reasons:
			return true
		case <-time.After(500 * time.Millisecond):
			return false
		}
	}
	for deadline := time.Now().Add(20 * time.Second); !ready(); {
		if time.Now().After(deadline) {
			t.Fatal("the watch sees nothing")
		}
	}

	for _, test := range []struct{ what, command, reason string }{
		{"flushed routes", "ip route flush proto 72", "route was removed"},
		{"an endpoint's route", "ip -6 route del fd00:1::5", "route was removed"},
		{"a device that is down", "ip link set hawser_host down", "hawser_host was shut down"},
		{"a pod's interface that is down", "ip link set " + ep.IfName + " down", "was shut down"},
		{"a router address", "ip addr del 10.1.0.1/32 dev hawser_host", "address of hawser_host"},
	} {
		fields := strings.Fields(test.command)
		n.output(t, fields[0], fields[1:]...)
		select {
		case reason := <-reasons:
			if !strings.Contains(reason, test.reason) && !strings.Contains(reason, "route was removed") {
				t.Errorf("%s: reported as %q, want %q", test.what, reason, test.reason)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: not reported", test.what)
		}
		_, err := n.SetNode(tunnelNode())
		must(t, err)
		must(t, n.EnsureEndpoint(ep))
		// The kernel reports a carrier, and puts what depends on it in order, a moment later.
		diff := cmp.Diff(want, settledLines(n.dump(t)))
		for deadline := time.Now().Add(10 * time.Second); diff != "" && time.Now().Before(deadline); diff = cmp.Diff(want, settledLines(n.dump(t))) {
			time.Sleep(20 * time.Millisecond)
		}
		if diff != "" {
			t.Errorf("%s: not repaired (-want +got):\n%s", test.what, diff)
		}
	}
	// Our own changes, and what is not ours, are not reported.
	desired := tunnelNode()
	desired.Peers = desired.Peers[:1]
	_, err = n.SetNode(desired)
	must(t, err)
	n.output(t, "ip", "route", "add", "198.51.100.0/24", "via", "192.0.2.2")
	n.output(t, "ip", "route", "del", "198.51.100.0/24")
	must(t, n.DeleteEndpoint(ep.IfName, ep.IfIndex))
	must(t, n.Flush())
	select {
	case reason := <-reasons:
		t.Errorf("reported: %s", reason)
	case <-time.After(3 * watchDebounce):
	}
	cancel()
	must(t, <-done)
}

// settledLines is sortedLines without the neighbours that the kernel has learned of by itself.
func settledLines(s string) []string {
	return slices.DeleteFunc(sortedLines(s), func(line string) bool {
		return strings.Contains(line, " lladdr ") && !strings.Contains(line, "PERMANENT")
	})
}

// sortedLines makes dumps comparable in which the kernel lists the same things in another order.
func sortedLines(s string) []string {
	lines := strings.Split(s, "\n")
	slices.Sort(lines)
	return lines
}
