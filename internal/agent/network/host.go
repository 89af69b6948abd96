package network

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath/link"
)

// Host is what the agent finds out about its host before it changes anything.
type Host struct {
	// Device is that towards other nodes; empty if there is none.
	Device     string
	IPv4, IPv6 netip.Addr
}

// FindHost completes the options of the node with facts of the host.
func FindHost(cfg Options) (Host, error) {
	var f Host
	if len(cfg.Devices) > 0 {
		f.Device = cfg.Devices[0]
	} else {
		var err error
		if f.Device, err = link.DefaultDevice(); err != nil {
			return f, fmt.Errorf("find the device of the default route: %w; give --devices", err)
		}
	}
	var addrs []netip.Addr
	if f.Device != "" {
		var err error
		if addrs, err = link.DeviceAddresses(f.Device); err != nil {
			return f, fmt.Errorf("--devices: %w", err)
		}
	}
	pick := func(given string, v4 bool) netip.Addr {
		if given != "" {
			return netip.MustParseAddr(given) // Validate has parsed it
		}
		for _, ip := range addrs {
			if ip.Is4() == v4 {
				return ip
			}
		}
		return netip.Addr{}
	}
	f.IPv4, f.IPv6 = pick(cfg.NodeIPv4, true), pick(cfg.NodeIPv6, false)
	if !f.IPv4.IsValid() && !f.IPv6.IsValid() {
		where := "there is no default route"
		if f.Device != "" {
			where = "device " + f.Device + " has none"
		}
		return f, errors.New("the node has no address: " + where + "; give --devices, --ipv4-node or --ipv6-node")
	}
	return f, nil
}

// Suffix is the address by which this node marks its references in the key-value store.
func (f Host) Suffix() string {
	if f.IPv4.IsValid() {
		return f.IPv4.String()
	}
	return f.IPv6.String()
}

// Addresses are the addresses under which this node announces its pods.
func (f Host) Addresses() []netip.Addr {
	return valid(f.IPv4, f.IPv6)
}

// Underlay is the address to announce for pods: packets of both families travel
// over IPv4 between nodes that have it.
func (f Host) Underlay() netip.Addr {
	if f.IPv4.IsValid() {
		return f.IPv4
	}
	return f.IPv6
}

// All are all addresses by which this host may speak to its pods: besides those towards
// other nodes, whatever else it has, of any device but loopback.
func (f Host) All(log *slog.Logger) []netip.Addr {
	out := f.Addresses()
	list, err := net.InterfaceAddrs()
	if err != nil {
		log.Warn("cannot list the host's addresses; only those towards other nodes count as the host's", "error", err)
		return out
	}
	for _, a := range list {
		n, ok := a.(*net.IPNet)
		if !ok {
			continue
		}
		if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap().IsGlobalUnicast() && !slices.Contains(out, ip.Unmap()) {
			out = append(out, ip.Unmap())
		}
	}
	return out
}
