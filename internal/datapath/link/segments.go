package link

import (
	"errors"
	"fmt"
	"strings"

	"github.com/vishvananda/netlink"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Sizes of packets before segmentation and after reassembly, in bytes.
const (
	// legacySegment is the kernel's default, and the most that a device takes which has not been
	// made for more (GSO_LEGACY_MAX_SIZE).
	legacySegment = 65536
	// bigSegment is what BIG TCP asks for: 192 KiB, as others do.
	bigSegment = 196608
	// jumboOption is the hop-by-hop header that IPv6 packets beyond 64 KiB have inside the kernel
	// (RFC 2675). It is counted with each segment where packets are forwarded, and is gone where
	// they are cut.
	jumboOption = 8
)

// segmentSize is one of a device's limits. Those of IPv4 stand apart (Linux 6.3). That of IPv6
// packets after reassembly is none of them: a pod that was made without BIG TCP asks for segments
// as large as its interface takes, and with the hop-by-hop header the kernel would forward none of
// them to it.
type segmentSize struct {
	v6   bool
	name string
	of   func(*netlink.LinkAttrs) uint32
	set  func(*netlink.Handle, netlink.Link, int) error
}

// segmentSizes returns them all. That of IPv6 comes first: the kernel lowers that of IPv4 with it.
func segmentSizes() []segmentSize {
	return []segmentSize{
		{true, "gso_max_size", func(a *netlink.LinkAttrs) uint32 { return a.GSOMaxSize }, (*netlink.Handle).LinkSetGSOMaxSize},
		{false, "gso_ipv4_max_size", func(a *netlink.LinkAttrs) uint32 { return a.GSOIPv4MaxSize }, (*netlink.Handle).LinkSetGSOIPv4MaxSize},
		{false, "gro_ipv4_max_size", func(a *netlink.LinkAttrs) uint32 { return a.GROIPv4MaxSize }, (*netlink.Handle).LinkSetGROIPv4MaxSize},
	}
}

// put sets the limit of a device, unless it is that already.
func (l *Links) put(s segmentSize, device string, size uint32) error {
	link, err := l.h.LinkByName(device)
	if err == nil && s.of(link.Attrs()) != size {
		err = s.set(l.h, link, int(size))
	}
	if err != nil {
		return fmt.Errorf("set %s of %s to %d: %w", s.name, device, size, err)
	}
	return nil
}

// segments gives the devices the segment sizes that n asks for. Our own devices get them first and
// lose them last, so that after an interruption hawser_host shows that the size of the device
// towards the other nodes is ours: a size that another program set stays.
func (l *Links) segments(n datapath.Node, d *datapath.Devices) error {
	size := uint32(0)
	if n.BigTCP4 || n.BigTCP6 {
		native, err := l.h.LinkByName(n.Device)
		if err != nil {
			return fmt.Errorf("device %s towards other nodes: %w", n.Device, err)
		}
		d.SegmentLimit = int(native.Attrs().TSOMaxSize)
		if limit := min(bigSegment, native.Attrs().TSOMaxSize); limit > legacySegment {
			size = limit
		}
	}
	for _, s := range segmentSizes() {
		host, err := l.h.LinkByName(HostDevice)
		if err != nil {
			return fmt.Errorf("look up %s: %w", HostDevice, err)
		}
		had := s.of(host.Attrs())
		switch asked := s.v6 && n.BigTCP6 || !s.v6 && n.BigTCP4; {
		case asked && size > 0:
			for _, device := range []string{HostDevice, NetDevice, n.Device} {
				if err := l.put(s, device, size); err != nil {
					return err
				}
			}
			if s.v6 {
				if d.RouteMTU = d.DeviceMTU - jumboOption; d.RouteMTU < minMTU {
					return fmt.Errorf("MTU %d less %d for IPv6 packets beyond 64 KiB is below the %d that IPv6 needs", d.DeviceMTU, jumboOption, minMTU)
				}
				d.SegmentSize6 = int(size)
			} else {
				d.SegmentSize4 = int(size)
			}
		case had > legacySegment:
			if err := l.putBack(s, had); err != nil {
				return err
			}
			for _, device := range []string{NetDevice, HostDevice} {
				if err := l.put(s, device, legacySegment); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// putBack gives the kernel's default to all devices of the host that have the limit that we set.
func (l *Links) putBack(s segmentSize, ours uint32) error {
	links, err := l.listLinks()
	if err != nil {
		return err
	}
	var errs []error
	for _, link := range links {
		name := link.Attrs().Name
		if s.of(link.Attrs()) != ours || strings.HasPrefix(name, "hawser_") || isEndpointLink(link) {
			continue
		}
		if err := s.set(l.h, link, legacySegment); err != nil {
			errs = append(errs, fmt.Errorf("set %s of %s back: %w", s.name, name, err))
		}
	}
	return errors.Join(errs...)
}

// forgetSegments puts back what segments did, but for what goes with our devices.
func (l *Links) forgetSegments() error {
	host, err := l.h.LinkByName(HostDevice)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("look up %s: %w", HostDevice, err)
	}
	var errs []error
	for _, s := range segmentSizes() {
		if had := s.of(host.Attrs()); had > legacySegment {
			errs = append(errs, l.putBack(s, had))
		}
	}
	return errors.Join(errs...)
}
