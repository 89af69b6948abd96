package agent

import (
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath/link"
)

// nodeFacts are what the agent finds out about its host before it changes anything.
type nodeFacts struct {
	device     string
	ipv4, ipv6 netip.Addr
}

// findNode completes what the configuration says of the node with what the host says.
func findNode(cfg Config) (nodeFacts, error) {
	var f nodeFacts
	if len(cfg.Devices) > 0 {
		f.device = cfg.Devices[0]
	} else {
		var err error
		if f.device, err = link.DefaultDevice(); err != nil {
			return f, fmt.Errorf("find the device of the default route: %w; give --devices", err)
		}
	}
	var addrs []netip.Addr
	if f.device != "" {
		dev, err := net.InterfaceByName(f.device)
		if err != nil {
			return f, fmt.Errorf("--devices: %s: %w", f.device, err)
		}
		list, err := dev.Addrs()
		if err != nil {
			return f, fmt.Errorf("addresses of device %s: %w", f.device, err)
		}
		for _, a := range list {
			if n, ok := a.(*net.IPNet); ok {
				if ip, ok := netip.AddrFromSlice(n.IP); ok && ip.Unmap().IsGlobalUnicast() {
					addrs = append(addrs, ip.Unmap())
				}
			}
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
	f.ipv4, f.ipv6 = pick(cfg.NodeIPv4, true), pick(cfg.NodeIPv6, false)
	if !f.ipv4.IsValid() && !f.ipv6.IsValid() {
		where := "there is no default route"
		if f.device != "" {
			where = "device " + f.device + " has none"
		}
		return f, errors.New("the node has no address: " + where + "; give --devices, --ipv4-node or --ipv6-node")
	}
	return f, nil
}

// suffix is the address by which this node marks its references in the key-value store.
func (f nodeFacts) suffix() string {
	if f.ipv4.IsValid() {
		return f.ipv4.String()
	}
	return f.ipv6.String()
}

// hosts are the addresses under which this node announces its pods.
func (f nodeFacts) hosts() []netip.Addr {
	var out []netip.Addr
	for _, ip := range []netip.Addr{f.ipv4, f.ipv6} {
		if ip.IsValid() {
			out = append(out, ip)
		}
	}
	return out
}

// hostFor is the underlay address to announce for a pod's address: packets of both families travel
// over IPv4 between nodes that have it.
func (f nodeFacts) hostFor(netip.Addr) netip.Addr {
	if f.ipv4.IsValid() {
		return f.ipv4
	}
	return f.ipv6
}

// hostAddresses are all addresses by which this host may speak to its pods: besides those towards
// other nodes, whatever else it has, of any device but loopback.
func (f nodeFacts) hostAddresses(log *slog.Logger) []netip.Addr {
	out := f.hosts()
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
