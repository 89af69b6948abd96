package link

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/datapath/link/netdump"
)

// DefaultDevice returns the name of the device by which the default route of the network namespace
// of the process leads: the one of IPv4 if there is one, else that of IPv6, and of several the one
// of the least metric. It is empty if there is none.
func DefaultDevice() (string, error) {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		routes, err := netdump.List(func() ([]netlink.Route, error) {
			return netlink.RouteListFiltered(family, &netlink.Route{Table: unix.RT_TABLE_MAIN}, netlink.RT_FILTER_TABLE)
		})
		if errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.EOPNOTSUPP) {
			continue // the kernel has no IPv6
		}
		if err != nil {
			return "", fmt.Errorf("list routes: %w", err)
		}
		index, metric := 0, 0
		for _, r := range routes {
			if !isDefault(r.Dst) || r.Type != unix.RTN_UNICAST {
				continue
			}
			to := r.LinkIndex
			if to == 0 && len(r.MultiPath) > 0 {
				to = r.MultiPath[0].LinkIndex
			}
			if to != 0 && (index == 0 || r.Priority < metric) {
				index, metric = to, r.Priority
			}
		}
		if index == 0 {
			continue
		}
		dev, err := net.InterfaceByIndex(index)
		if err != nil {
			return "", fmt.Errorf("the device of the default route: %w", err)
		}
		return dev.Name, nil
	}
	return "", nil
}

func isDefault(dst *net.IPNet) bool {
	if dst == nil {
		return true
	}
	ones, _ := dst.Mask.Size()
	return ones == 0 && dst.IP.IsUnspecified()
}
