package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/atomicfile"
)

// AddressFile remembers one address of each family on disk, for the next agent.
type AddressFile struct {
	Path string
	// Write writes a file, whole or not at all.
	Write func(path string, data []byte) error
}

type addressRecord struct {
	IPv4 netip.Addr `json:"ipv4,omitzero"`
	IPv6 netip.Addr `json:"ipv6,omitzero"`
}

// Load returns the addresses that the file has. A file that cannot be read has none.
func (f AddressFile) Load(log *slog.Logger) []netip.Addr {
	var rec addressRecord
	if err := atomicfile.ReadJSON(f.Path, &rec); err != nil {
		log.Warn("cannot read the router's addresses of before; others may be chosen", "file", f.Path, "error", err)
		return nil
	}
	return valid(rec.IPv4, rec.IPv6)
}

// Save writes the file.
func (f AddressFile) Save(v4, v6 netip.Addr) error {
	data, err := json.Marshal(addressRecord{v4, v6})
	if err == nil {
		err = f.Write(f.Path, data)
	}
	if err != nil {
		return fmt.Errorf("store the router's addresses: %w", err)
	}
	return nil
}

// valid returns those of the addresses that are some.
func valid(ips ...netip.Addr) []netip.Addr {
	return slices.DeleteFunc(ips, func(ip netip.Addr) bool { return !ip.IsValid() })
}

// TakeRouters gives the node its own addresses in the pod network: pods have them in their routes,
// so they are those of the agent before if there are pods. The addresses of restored endpoints must
// be taken already.
func (n *Network) TakeRouters() error {
	wanted, preferred := n.preferredRouters(n.routersBefore)
	res, err := n.cfg.Pool.AllocateRouter(preferred...)
	if err != nil {
		return err
	}
	n.mu.Lock()
	if res.IPv4 != nil {
		n.router4 = res.IPv4.IP
	}
	if res.IPv6 != nil {
		n.router6 = res.IPv6.IP
	}
	n.mu.Unlock()
	if err := n.checkRouters(wanted); err != nil {
		return err
	}
	return n.routerFile.Save(n.Routers())
}

// Routers are the node's own addresses in the pod network.
func (n *Network) Routers() (v4, v6 netip.Addr) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.router4, n.router6
}

// RouterAddresses are those of the node's own addresses in the pod network that there are.
func (n *Network) RouterAddresses() []netip.Addr { return valid(n.Routers()) }

// preferredRouters returns the router addresses to prefer. Those of the configuration come first,
// but not before those that pods have as their gateway. Without pods, one of before counts only if
// it could be given out.
func (n *Network) preferredRouters(before []netip.Addr) (wanted, preferred []netip.Addr) {
	for _, text := range []string{n.cfg.RouterIPv4, n.cfg.RouterIPv6} {
		if ip, err := netip.ParseAddr(text); err == nil {
			wanted = append(wanted, ip)
		}
	}
	if len(n.cfg.Registry.List()) > 0 {
		return wanted, slices.Concat(before, wanted)
	}
	// One in a CIDR that gives out nothing any more would keep that the node's for good.
	return wanted, slices.Concat(wanted, slices.DeleteFunc(slices.Clone(before), func(ip netip.Addr) bool { return !n.cfg.Pool.Assignable(ip) }))
}

// checkRouters reports which router addresses of the configuration the node could not have.
func (n *Network) checkRouters(wanted []netip.Addr) error {
	var errs []error
	router4, router6 := n.Routers()
	for _, ip := range wanted {
		flag, got := flagRouter4, router4
		if ip.Is6() {
			flag, got = flagRouter6, router6
		}
		if got == ip {
			continue
		}
		if len(n.cfg.Registry.List()) > 0 {
			n.cfg.Log.Error("the node keeps the router address that its pods have as gateway; delete them and start the agent again for the one of the configuration",
				"configured", ip, "kept", got)
			continue
		}
		errs = append(errs, fmt.Errorf("--%s: the node cannot have %s, which must be a free address of its pod CIDR", flag, ip))
	}
	return errors.Join(errs...)
}
