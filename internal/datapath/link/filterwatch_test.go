package link

import (
	"context"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/testenv"
)

// Whoever takes filters away, in whatever way, is reported with the interface; what ReplaceFilter
// does is not.
func TestWatchFilters(t *testing.T) {
	defer testenv.VerifyNone(t)
	n := newNode(t)
	prog := loadProgram(t)
	ep := n.pod(t, 5)
	attach := func() {
		t.Helper()
		must(t, n.ReplaceFilter(ep.IfIndex, false, prog, "to"))
		must(t, n.ReplaceFilter(ep.IfIndex, true, prog, "from"))
	}
	ctx, cancel := context.WithCancel(context.Background())
	lost, done := make(chan int, 100), make(chan error, 1)
	go func() { done <- n.WatchFilters(ctx, time.Hour, func(ifIndex int) { lost <- ifIndex }) }()
	next := func(what string, want int) {
		t.Helper()
		select {
		case got := <-lost:
			if got != want {
				t.Fatalf("%s: reported interface %d, want %d", what, got, want)
			}
		case <-time.After(20 * time.Second):
			t.Fatalf("%s: not reported", what)
		}
	}
	next("the beginning", 0)
	for _, command := range []string{
		"tc qdisc del dev IF clsact",
		"tc filter del dev IF ingress",
		"tc filter del dev IF egress",
		"tc filter del dev IF ingress prio 1",
		"tc filter del dev IF ingress protocol all prio 1 handle 1 bpf",
		"tc filter add dev IF ingress protocol all prio 1 handle 2 bpf da pinned /nonexistent", // refused: nothing
		"tc qdisc add dev IF root pfifo",                                                       // none of ours
	} {
		attach() // our own change is not reported
		command = strings.ReplaceAll(command, "IF", ep.IfName)
		fields := strings.Fields(command)
		n.in(t, func() error {
			_ = exec.Command(fields[0], fields[1:]...).Run() // some are refused
			return nil
		})
		if strings.Contains(command, " del ") {
			next(command, ep.IfIndex)
		}
	}
	attach()
	must(t, n.DeleteEndpoint(ep.IfName, ep.IfIndex))
	must(t, n.Flush())
	// The last one is reported after all before it.
	other := n.pod(t, 6)
	must(t, n.ReplaceFilter(other.IfIndex, true, prog, "from"))
	n.output(t, "tc", "qdisc", "del", "dev", other.IfName, "clsact")
	next("another interface", other.IfIndex)
	cancel()
	must(t, <-done)
}

// After a period without any message all interfaces are to be looked at.
func TestWatchFiltersPeriod(t *testing.T) {
	defer testenv.VerifyNone(t)
	n := newNode(t)
	ctx, cancel := context.WithCancel(context.Background())
	lost, done := make(chan int), make(chan error, 1)
	go func() { done <- n.WatchFilters(ctx, 10*time.Millisecond, func(ifIndex int) { lost <- ifIndex }) }()
	for range 5 {
		select {
		case got := <-lost:
			if got != 0 {
				t.Errorf("reported interface %d", got)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("not reported")
		}
	}
	go func() {
		for range lost { // what is on its way
		}
	}()
	cancel()
	must(t, <-done)
	close(lost)
}

// A pod's interface that is shut comes up again with EnsureEndpoint, and one that is gone is no
// error.
func TestShutEndpoint(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(tunnelNode())
	must(t, err)
	ep := n.pod(t, 5)
	must(t, n.EnsureEndpoint(ep))
	want := n.output(t, "ip", "route", "show", "dev", ep.IfName)
	must(t, n.ShutEndpoint(ep.IfIndex))
	if linkNamed(t, n.h, ep.IfName).Attrs().RawFlags&1 != 0 {
		t.Error("the interface is up")
	}
	must(t, n.EnsureEndpoint(ep))
	if got := n.output(t, "ip", "route", "show", "dev", ep.IfName); got != want || linkNamed(t, n.h, ep.IfName).Attrs().RawFlags&1 == 0 {
		t.Errorf("routes are %q, were %q", got, want)
	}
	must(t, n.DeleteEndpoint(ep.IfName, ep.IfIndex))
	must(t, n.Flush())
	must(t, n.ShutEndpoint(ep.IfIndex))
}

// A qdisc "ingress" would take the filter of either hook, and ask it about what comes in: it is
// refused, by name.
func TestReplaceFilterBesideAnotherQdisc(t *testing.T) {
	n := newNode(t)
	prog := loadProgram(t)
	ep := n.pod(t, 5)
	n.output(t, "tc", "qdisc", "add", "dev", ep.IfName, "ingress")
	for _, ingress := range []bool{false, true} {
		err := n.ReplaceFilter(ep.IfIndex, ingress, prog, "x")
		if err == nil || !strings.Contains(err.Error(), "tc qdisc del dev "+ep.IfName+" ingress") {
			t.Errorf("ingress %t: error %v", ingress, err)
		}
	}
	if out := n.output(t, "tc", "filter", "show", "dev", ep.IfName, "ingress"); out != "" {
		t.Errorf("there is a filter: %s", out)
	}
	n.output(t, "tc", "qdisc", "del", "dev", ep.IfName, "ingress")
	for range 2 { // the second finds the hooks
		for _, ingress := range []bool{false, true} {
			must(t, n.ReplaceFilter(ep.IfIndex, ingress, prog, "x"))
			if id, err := n.FilterProgram(ep.IfIndex, ingress); id == 0 || err != nil {
				t.Errorf("ingress %t: program %d, %v", ingress, id, err)
			}
		}
	}
}
