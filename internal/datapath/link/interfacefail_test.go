package link

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath"
)

// interrupted calls attach after programs were attached, and list before interfaces are listed.
type interrupted struct {
	*fakePrograms
	attach, list func()
}

func (i *interrupted) AttachInterface(ifIndex int, mac net.HardwareAddr) error {
	err := i.fakePrograms.AttachInterface(ifIndex, mac)
	if i.attach != nil {
		i.attach()
	}
	return err
}

func (i *interrupted) Interfaces() ([]int, error) {
	if i.list != nil {
		i.list()
	}
	return i.fakePrograms.Interfaces()
}

// closedHandle is one that the kernel answers nothing.
func closedHandle(t testing.TB) *netlink.Handle {
	t.Helper()
	h, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	must(t, err)
	closed := *h
	h.Close()
	return &closed
}

// TestInterfacesUnlisted: where interfaces, routes or rules cannot be listed, no interface passes
// packets for all that is known.
func TestInterfacesUnlisted(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	n.plug(t, 1)
	j := &interrupted{fakePrograms: newFakePrograms(t, n)}
	i := NewInterfaces(n.Links, j, nil)
	good, closed := n.Links.h, closedHandle(t)
	t.Cleanup(func() { n.Links.h = good })
	one := interfaceAt(1, 5)
	one.MTU = 0
	check := func(what string) {
		t.Helper()
		states, err := i.Set([]datapath.Interface{one, interfaceAt(2, 5)})
		n.Links.h = good
		if err == nil || len(states) != 2 {
			t.Fatalf("%s: %v, %v", what, states, err)
		}
		for _, s := range states {
			if s.Err == nil {
				t.Errorf("%s: interface %s is said to pass packets, with the error %v", what, s.MAC, err)
			}
		}
	}
	n.Links.h = closed
	check("no interface is listed")
	j.attach = func() { n.Links.h = closed }
	check("no route is listed")
}

// TestMasqueradeFailsOnce: networks of the cloud are taken out of masquerading in the end when that
// failed at first.
func TestMasqueradeFailsOnce(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	n.plug(t, 1)
	j := &interrupted{fakePrograms: newFakePrograms(t, n)}
	i := NewInterfaces(n.Links, j, nil)
	want := []datapath.Interface{interfaceAt(1, 5)}
	_, err = i.Set(want)
	must(t, err)
	null, err := os.Open(os.DevNull)
	must(t, err)
	defer null.Close()
	good := n.Links.ns
	t.Cleanup(func() { n.Links.ns = good })
	j.list = func() { n.Links.ns = null }
	want[0].VPCCIDRs = append(want[0].VPCCIDRs, netip.MustParsePrefix("10.40.0.0/16"))
	_, err = i.Set(want)
	n.Links.ns = good
	if err == nil {
		t.Fatal("masquerading in no namespace")
	}
	j.list = nil
	_, err = i.Set(want)
	must(t, err)
	if table := n.output(t, "nft", "list", "ruleset"); !strings.Contains(table, "10.40.0.0/16") {
		t.Errorf("10.40.0.0/16 is masqueraded:\n%s", table)
	}
}

// TestInterfacesFailOnce: what failed in one call of Set is tried again soon, and the outcome
// reported, although it is the one that Run reported last.
func TestInterfacesFailOnce(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	n.plug(t, 1)
	j := newFakePrograms(t, n)
	i := NewInterfaces(n.Links, j, nil)
	ctx, cancel := context.WithCancel(context.Background())
	reported, done := make(chan string, 64), make(chan error, 1)
	go func() {
		done <- i.Run(ctx, func(states []datapath.InterfaceState, err error) { reported <- fmt.Sprint(stateOf(states), " ", err) })
	}()
	defer func() {
		cancel()
		must(t, <-done)
	}()
	want := []datapath.Interface{interfaceAt(1, 5)}
	_, err = i.Set(want)
	must(t, err)
	expect := func(wait time.Duration) {
		t.Helper()
		deadline := time.After(wait)
		for {
			select {
			case got := <-reported:
				if got == "01 ready <nil>" {
					return
				}
			case <-deadline:
				t.Fatalf("not reported within %v that packets pass", wait)
			}
		}
	}
	expect(10 * time.Second)
	ens1 := linkNamed(t, n.h, "ens1").Attrs().Index
	j.refuse(ens1, errors.New("busy"))
	if _, err := i.Set(want); err == nil {
		t.Fatal("no error without programs")
	}
	j.refuse(ens1, nil)
	expect(5 * time.Second)
}

// TestInterfacesFailBesideOthers: what fails in one call of Set is tried again within a second,
// although something else has failed for so long that it is tried rarely by now.
func TestInterfacesFailBesideOthers(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	n.plug(t, 1)
	n.plug(t, 2)
	ens1, ens2 := linkNamed(t, n.h, "ens1").Attrs().Index, linkNamed(t, n.h, "ens2").Attrs().Index
	rounds := make(chan struct{}, 64)
	j := &interrupted{fakePrograms: newFakePrograms(t, n), list: func() { rounds <- struct{}{} }}
	j.refuse(ens2, errors.New("never"))
	i := NewInterfaces(n.Links, j, nil)
	want := []datapath.Interface{interfaceAt(1, 5), interfaceAt(2, 6)}
	if _, err = i.Set(want); err == nil {
		t.Fatal("no error without programs")
	}
	ctx, cancel := context.WithCancel(context.Background())
	reported, done := make(chan string, 64), make(chan error, 1)
	go func() {
		done <- i.Run(ctx, func(states []datapath.InterfaceState, err error) { reported <- stateOf(states) })
	}()
	defer func() {
		cancel()
		must(t, <-done)
	}()
	// After 4 s in which nothing else caused an attempt the next is in 8 s.
	for last, waited := time.Now(), time.Duration(0); waited < 3500*time.Millisecond; last = time.Now() {
		<-rounds
		waited = time.Since(last)
	}
	j.refuse(ens1, errors.New("busy"))
	if _, err := i.Set(want); err == nil {
		t.Fatal("no error without programs")
	}
	for len(reported) > 0 {
		<-reported // before it failed
	}
	j.refuse(ens1, nil)
	deadline := time.After(4 * time.Second)
	for {
		select {
		case got := <-reported:
			if strings.HasPrefix(got, "01 ready, ") {
				return
			}
		case <-deadline:
			t.Fatal("not reported that packets of the first pass")
		}
	}
}

// TestInterfaceNotForgottenWhileLed: as long as pods' packets may be led to an interface that is
// none of the cloud's any more, it keeps its programs; it is believed nothing.
func TestInterfaceNotForgottenWhileLed(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	n.plug(t, 1)
	n.plug(t, 2)
	ens1 := linkNamed(t, n.h, "ens1").Attrs().Index
	j := &interrupted{fakePrograms: newFakePrograms(t, n)}
	i := NewInterfaces(n.Links, j, nil)
	_, err = i.Set([]datapath.Interface{interfaceAt(1, 5)})
	must(t, err)
	good, closed := n.Links.h, closedHandle(t)
	t.Cleanup(func() { n.Links.h = good })
	j.attach = func() { n.Links.h = closed }
	other := interfaceAt(2, 6)
	other.MTU = 0
	_, err = i.Set([]datapath.Interface{other})
	n.Links.h, j.attach = good, nil
	if err == nil || !strings.Contains(fmt.Sprint(n.ways(t)), "10.20.1.5") {
		t.Fatalf("rules are gone: %v, %v", err, n.ways(t))
	}
	if j.rows[ens1] || !j.bare[ens1] {
		t.Errorf("rules lead to an interface that is believed: %v, or has lost its programs: %v", j.rows[ens1], !j.bare[ens1])
	}
	_, err = i.Set([]datapath.Interface{other})
	must(t, err)
	if strings.Contains(fmt.Sprint(n.ways(t)), "10.20.1.5") || j.rows[ens1] || j.bare[ens1] {
		t.Errorf("left in the end: %v, %v, %v", n.ways(t), j.rows, j.bare)
	}
}
