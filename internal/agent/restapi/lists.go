package restapi

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/cniconf"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
)

// nodeElements lists the nodes for the API, by name.
func (a *API) nodeElements() []rest.NodeElement {
	var out []rest.NodeElement
	for _, n := range a.Nodes.Table().All() {
		el := rest.NodeElement{Name: n.Key().String(), Source: cmp.Or(n.Source, "kvstore")}
		if n.Name == a.Options.NodeName && n.Cluster == a.Options.ClusterName {
			el.Source = "local"
		}
		family := func(ip netip.Addr, cidrs []netip.Prefix) rest.NodeAddressingElement {
			e := rest.NodeAddressingElement{}
			if ip.IsValid() {
				e.Enabled, e.IP, e.AddressType = true, ip.String(), string(node.InternalIP)
			}
			if len(cidrs) > 0 {
				e.Enabled, e.AllocRange = true, cidrs[0].String()
			}
			return e
		}
		if ips := n.HealthIPs(); len(ips) > 0 {
			el.HealthEndpointAddress.IPv4, el.HealthEndpointAddress.IPv6 = healthElement(ips, true), healthElement(ips, false)
		}
		el.PrimaryAddress = rest.NodeAddressing{IPv4: family(n.UnderlayIPv4(), n.IPv4PodCIDRs), IPv6: family(n.UnderlayIPv6(), n.IPv6PodCIDRs)}
		for _, ip := range n.RouterIPs() {
			el.SecondaryAddresses = append(el.SecondaryAddresses, rest.NodeAddressingElement{Enabled: true, IP: ip.String(), AddressType: string(node.RouterIP)})
		}
		out = append(out, el)
	}
	slices.SortFunc(out, func(x, y rest.NodeElement) int { return cmp.Compare(x.Name, y.Name) })
	return out
}

// nodeIDs lists the local numbers of the other nodes.
func (a *API) nodeIDs() []rest.NodeID {
	out := []rest.NodeID{}
	for _, id := range a.Nodes.IDs() {
		n := rest.NodeID{ID: int(id.ID), IPs: []string{}}
		for _, ip := range id.IPs {
			n.IPs = append(n.IPs, ip.String())
		}
		out = append(out, n)
	}
	return out
}

// ipList lists addresses with their identities, all or those inside a prefix.
func (a *API) ipList(within string) ([]rest.IPListEntry, error) {
	var inside netip.Prefix
	if within != "" {
		p, err := netip.ParsePrefix(within)
		if err != nil {
			ip, aerr := netip.ParseAddr(within)
			if aerr != nil {
				return nil, fmt.Errorf("cidr: %q is neither a CIDR nor an address", within)
			}
			p = ipcache.Single(ip)
		}
		inside = p.Masked()
	}
	out := []rest.IPListEntry{}
	for p, e := range a.Addresses.All() {
		if inside.IsValid() && (!inside.Contains(p.Addr()) || p.Bits() < inside.Bits()) {
			continue
		}
		ns, name := e.Pod()
		entry := rest.IPListEntry{
			CIDR: p.String(), Identity: int(e.Identity), EncryptKey: int(e.EncryptKey),
			Metadata: rest.IPListEntryMetadata{Source: e.Source.String(), Namespace: ns, Name: name},
		}
		if h := e.Host(); h.IsValid() {
			entry.HostIP = h.String()
		}
		out = append(out, entry)
	}
	slices.SortFunc(out, func(x, y rest.IPListEntry) int { return strings.Compare(x.CIDR, y.CIDR) })
	return out, nil
}

// identityAt is the identity of an address; without a claim it is outside.
func (a *API) identityAt(ip netip.Addr) identity.ID {
	if _, e, ok := a.Addresses.Lookup(ip.Unmap()); ok {
		return e.Identity
	}
	return a.Outside(ip)
}

// cniStatus reports whether the CNI configuration is in place.
func (a *API) cniStatus() rest.Status {
	path, err := a.CNI.Status()
	switch {
	case errors.Is(err, cniconf.ErrMissing):
		return rest.Status{State: rest.StateFailure, Msg: err.Error()}
	case err != nil: // pods start by what is there
		return rest.Status{State: rest.StateWarning, Msg: err.Error()}
	case path == "":
		return rest.Status{State: rest.StateDisabled, Msg: "not written by the agent"}
	}
	return rest.Status{State: rest.StateOk, Msg: path}
}
