package cni

import (
	"fmt"
	"net"
	"sync/atomic"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/testenv"
)

// TestParentInterfaceAmongOthers: the interface of a cloud is found while those of other pods come
// and go, which has the kernel mark its listings as incomplete.
func TestParentInterfaceAmongOthers(t *testing.T) {
	const mac = "02:00:00:00:00:07"
	ns := testenv.NewNetNS(t)
	other := func(name string) *netlink.Bridge {
		attrs := netlink.NewLinkAttrs()
		attrs.Name = name
		return &netlink.Bridge{LinkAttrs: attrs}
	}
	ns.Must(t, func() error {
		for i := range 100 { // more than one message of the kernel holds
			if err := netlink.LinkAdd(other(fmt.Sprintf("other%d", i))); err != nil {
				return err
			}
		}
		attrs := netlink.NewLinkAttrs()
		attrs.Name, attrs.HardwareAddr = "eth1", net.HardwareAddr{2, 0, 0, 0, 0, 7}
		return netlink.LinkAdd(&netlink.Veth{LinkAttrs: attrs, PeerName: "peer"})
	})
	var stop atomic.Bool
	ended := make(chan error, 1)
	go func() {
		ended <- ns.Do(func() error {
			for !stop.Load() {
				if err := netlink.LinkAdd(other("pod")); err != nil {
					return err
				}
				if err := netlink.LinkDel(other("pod")); err != nil {
					return err
				}
			}
			return nil
		})
	}()
	err := ns.Do(func() error {
		for range 300 {
			if _, err := parentInterface(mac); err != nil {
				return err
			}
		}
		return nil
	})
	stop.Store(true)
	if churn := <-ended; churn != nil {
		t.Error(churn)
	}
	if err != nil {
		t.Errorf("the interface is there all the time: %v", err)
	}
}
