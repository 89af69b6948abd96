package link

import (
	"cmp"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

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

// DeviceAddresses returns the addresses of global scope that a device has in the network namespace
// of the process. First come those by which others should know the node, as they stay: not
// deprecated ones, nor temporary ones (RFC 8981), nor single ones of no network (/32, /128), which
// a VIP is that moves from node to node; and of several the one that is there longest.
func DeviceAddresses(name string) ([]netip.Addr, error) {
	dev, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("device %s: %w", name, err)
	}
	list, err := netdump.List(func() ([]netlink.Addr, error) { return netlink.AddrList(dev, netlink.FAMILY_ALL) })
	if err != nil {
		return nil, fmt.Errorf("addresses of device %s: %w", name, err)
	}
	type address struct {
		ip             netip.Addr
		passing, place int
	}
	var addrs []address
	for i, a := range list {
		ip, ok := netip.AddrFromSlice(a.IP)
		if ip = ip.Unmap(); !ok || !ip.IsGlobalUnicast() || a.Flags&unix.IFA_F_DADFAILED != 0 {
			continue
		}
		at := address{ip: ip, place: i}
		if ip.Is6() { // the kernel lists the latest first, but of IPv4 last
			at.place = -i
		}
		if a.Flags&unix.IFA_F_DEPRECATED != 0 {
			at.passing += 4
		}
		if a.Flags&unix.IFA_F_TEMPORARY != 0 { // of IPv4, one that goes with another
			at.passing += 2
		}
		if ones, bits := a.Mask.Size(); ones == bits {
			at.passing++
		}
		addrs = append(addrs, at)
	}
	slices.SortFunc(addrs, func(a, b address) int {
		return cmp.Or(cmp.Compare(a.passing, b.passing), cmp.Compare(a.place, b.place))
	})
	out := make([]netip.Addr, len(addrs))
	for i, at := range addrs {
		out[i] = at.ip
	}
	return out, nil
}
