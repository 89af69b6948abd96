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
	*judges
	attach, list func()
}

func (i *interrupted) AttachInterface(ifIndex int, mac net.HardwareAddr) error {
	err := i.judges.AttachInterface(ifIndex, mac)
	if i.attach != nil {
		i.attach()
	}
	return err
}

func (i *interrupted) Interfaces() ([]int, error) {
	if i.list != nil {
		i.list()
	}
	return i.judges.Interfaces()
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
	j := &interrupted{judges: newJudges(t, n)}
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
	j := &interrupted{judges: newJudges(t, n)}
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

// TestInterfacesFailOnce: what failed in one call of Set is tried again soon, and the outcome told,
// although it is the one that Run told last.
func TestInterfacesFailOnce(t *testing.T) {
	n := newNode(t)
	_, err := n.SetNode(cloudNode())
	must(t, err)
	n.plug(t, 1)
	j := newJudges(t, n)
	i := NewInterfaces(n.Links, j, nil)
	ctx, cancel := context.WithCancel(context.Background())
	told, done := make(chan string, 64), make(chan error, 1)
	go func() {
		done <- i.Run(ctx, func(states []datapath.InterfaceState, err error) { told <- fmt.Sprint(stateOf(states), " ", err) })
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
			case got := <-told:
				if got == "01 ready <nil>" {
					return
				}
			case <-deadline:
				t.Fatalf("not told within %v that packets pass", wait)
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
