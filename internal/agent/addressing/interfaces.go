package addressing

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/ipam"
)

// Interface is a network interface of the node's machine, as the node's CiliumNode shows it.
type Interface struct {
	// ID is how spec.ipam.pool names it.
	ID  string `json:"id"`
	MAC string `json:"mac"`
	// Number is its place on the machine.
	Number int `json:"number"`
	// Subnet is where its addresses are from, and Gateway is the cloud's router there.
	Subnet  netip.Prefix `json:"subnet"`
	Gateway netip.Addr   `json:"gateway"`
	// Networks are the CIDRs within which the cloud leads packets to the addresses of pods.
	Networks []netip.Prefix `json:"networks"`
	// Prefixes are what the interface has of IPv6, each as a whole, in their order.
	Prefixes []netip.Prefix `json:"ipv6-prefixes,omitempty"`
	// Kept is set if the object does not show it so any more: it is as it was before, for addresses
	// that pods have, and no other address of it is given.
	Kept bool `json:"kept,omitempty"`
}

// Bounds of what is accepted from a CiliumNode's status: a writer of it must not be able to
// overload the agent, nor to exempt the whole world from masquerading.
const (
	maxNetworks    = 64
	maxAllNetworks = 256 // of all interfaces, as not all clouds show those of the VPC
	// maxRules is for how many rules of the kernel, which it asks one after the other, addresses
	// are taken that no pod has: with five networks of a VPC for 2,700 addresses.
	maxRules = 16384
	minBits  = 8 // of a network; no cloud gives a VPC a larger one
	// maxPrefixes is for all interfaces: a node needs one, and has a bitmap of 8 KiB for each.
	maxPrefixes = 32
	maxFaults   = 4 // that are shown; the others are counted
)

// interfacesOf reads the interfaces that an object shows, in the order of their numbers, and what
// of them is invalid: that is left out. Those of needed are there in any case, as they were if
// the object does not show them: pods have addresses of them. Prefixes count only with IPv6.
func interfacesOf(mode string, families ipam.Families, o *v2.CiliumNode, needed []Interface) ([]Interface, error) {
	var all []shownInterface
	switch mode {
	case ENI:
		for id, e := range o.Status.ENI.ENIs {
			all = append(all, shownInterface{id: id, mac: e.MAC, number: e.Number, subnet: e.Subnet.CIDR, gateway: firstAddress,
				networks: append([]string{e.VPC.PrimaryCIDR}, e.VPC.CIDRs...), prefixes: e.IPv6Prefixes})
		}
	case Azure:
		// Azure numbers no interfaces. They are there from the start, so their order stays.
		list := slices.SortedFunc(slices.Values(o.Status.Azure.Interfaces), func(a, b v2.AzureInterface) int { return strings.Compare(a.ID, b.ID) })
		for n, i := range list {
			cidr := cmp.Or(i.Subnet.CIDR, i.CIDR)
			all = append(all, shownInterface{id: i.ID, mac: i.MAC, number: n, subnet: cidr, gateway: namedAddress(i.Gateway), networks: []string{cidr}})
		}
	case AlibabaCloud:
		for id, e := range o.Status.AlibabaCloud.ENIs {
			n, err := strconv.Atoi(e.Tags[alibabaNumberTag])
			if err != nil && e.Type != "Primary" {
				n = -1
			}
			all = append(all, shownInterface{id: id, mac: e.MACAddress, number: n, subnet: e.VSwitch.CIDR, gateway: thirdLastAddress,
				networks: append([]string{e.VPC.CIDR}, e.VPC.SecondaryCIDRs...)})
		}
	}
	slices.SortFunc(all, func(a, b shownInterface) int {
		return cmp.Or(cmp.Compare(a.number, b.number), strings.Compare(a.id, b.id))
	})
	read, faulty := map[string]Interface{}, map[string]error{}
	for _, s := range all {
		i, err := s.read()
		if _, twice := read[s.id]; err == nil && twice {
			err = errors.New("it is shown twice")
		}
		if err != nil {
			faulty[s.id] = err
			continue
		}
		read[s.id] = i
	}
	out := keep(needed, read, faulty)
	taken, networks := map[string]bool{}, networksOf(out)
	for _, i := range out {
		taken[i.ID] = true
	}
	var faults []error
	for _, s := range all {
		i, ok := read[s.id]
		err := faulty[s.id]
		if ok && err == nil && !taken[s.id] {
			with := maps.Clone(networks)
			for _, p := range i.Networks {
				with[p] = true
			}
			switch err = conflict(out, i); {
			case err != nil:
			case len(out) >= datapath.MaxInterfaces:
				err = fmt.Errorf("there are %d others", len(out))
			case len(with) > maxAllNetworks:
				err = fmt.Errorf("all interfaces have more than %d networks with it", maxAllNetworks)
			default:
				out, networks = append(out, i), with
			}
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("the CiliumNode's status of network interface %.200q is invalid, its addresses are assigned to no pod: %w", s.id, err))
		}
	}
	if families&ipam.IPv6 != 0 {
		prefixes := map[string][]string{}
		for _, s := range all {
			prefixes[s.id] = s.prefixes
		}
		faults = append(faults, addPrefixes(out, prefixes, needed)...)
	}
	slices.SortFunc(out, func(a, b Interface) int { return cmp.Compare(a.Number, b.Number) })
	return out, few(faults)
}

// addPrefixes gives interfaces the prefixes that are shown of them, but those that are invalid,
// and those that another has: of two the one that pods have addresses of. It returns what is wrong.
func addPrefixes(list []Interface, shown map[string][]string, needed []Interface) (faults []error) {
	owner := map[netip.Prefix]string{}
	for _, i := range list {
		if i.Kept {
			for _, p := range i.Prefixes {
				owner[p] = i.ID
			}
		}
	}
	for _, had := range []bool{true, false} {
		for k, i := range list {
			if i.Kept {
				continue
			}
			was := slices.IndexFunc(needed, func(n Interface) bool { return n.ID == i.ID })
			for _, text := range shown[i.ID] {
				p, err := prefixOf(text)
				if before := was >= 0 && slices.Contains(needed[was].Prefixes, p); before != had || err == nil && owner[p] == i.ID {
					continue
				}
				switch {
				case err != nil:
				case owner[p] != "":
					err = fmt.Errorf("%s is that of %.100q", p, owner[p])
				case len(owner) >= maxPrefixes:
					err = fmt.Errorf("all interfaces have more than %d", maxPrefixes)
				default:
					owner[p] = i.ID
					list[k].Prefixes = append(list[k].Prefixes, p)
				}
				if err != nil {
					faults = append(faults, fmt.Errorf("IPv6 prefix of network interface %.200q in the CiliumNode's status is not used: %w", i.ID, err))
				}
			}
		}
	}
	for k := range list {
		slices.SortFunc(list[k].Prefixes, netip.Prefix.Compare)
	}
	return faults
}

// prefixBits is the length of what EC2 assigns to an interface of IPv6 (Amazon EC2 User Guide,
// "Prefix delegation for Amazon EC2 network interfaces").
const prefixBits = 80

// awsServices is where machines of AWS find metadata, name server and clock.
var awsServices = netip.MustParsePrefix("fd00:ec2::/32")

// prefixOf reads an IPv6 prefix of an interface.
func prefixOf(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil || !p.Addr().Is6() || p.Addr().Is4In6() || p.String() != text || p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%.100q is no IPv6 prefix", text)
	case p.Bits() != prefixBits:
		return netip.Prefix{}, fmt.Errorf("%s is not one of %d bits, as interfaces have", p, prefixBits)
	case !p.Addr().IsGlobalUnicast() || p.Overlaps(awsServices):
		return netip.Prefix{}, fmt.Errorf("%s cannot be pods'", p)
	}
	return p, nil
}

// keep returns those of needed: as they are shown now, or else as they were. If what is shown of
// them does not fit together, those whose number or hardware address is another stay as they were;
// if they have too many networks, those that have others than before as well.
func keep(needed []Interface, shown map[string]Interface, faulty map[string]error) []Interface {
	pick := func(may func(was, is Interface) bool) (out []Interface, err error) {
		for _, was := range needed {
			is, ok := shown[was.ID]
			if !ok || faulty[was.ID] != nil || !may(was, is) {
				is = was
				is.Kept = true
			}
			err = cmp.Or(err, conflict(out, is))
			out = append(out, is)
		}
		return out, err
	}
	out, err := pick(func(Interface, Interface) bool { return true })
	tooMany := len(networksOf(out)) > maxAllNetworks
	if err == nil && !tooMany {
		return out
	}
	out, _ = pick(func(was, is Interface) bool {
		moved := was.Number != is.Number || was.MAC != is.MAC
		grown := tooMany && slices.ContainsFunc(is.Networks, func(p netip.Prefix) bool { return !slices.Contains(was.Networks, p) })
		switch {
		case !moved && !grown:
			return true
		case moved && err != nil:
			faulty[is.ID] = fmt.Errorf("others have number %d or hardware address %s", is.Number, is.MAC)
		default:
			faulty[is.ID] = fmt.Errorf("all interfaces that pods have addresses of have more than %d networks", maxAllNetworks)
		}
		return false
	})
	return out
}

// networksOf are the networks of some interfaces.
func networksOf(list []Interface) map[netip.Prefix]bool {
	out := map[netip.Prefix]bool{}
	for _, i := range list {
		for _, p := range i.Networks {
			out[p] = true
		}
	}
	return out
}

// misplaced reports why an address, or a prefix, cannot be pods' on an interface, or nothing.
func (i Interface) misplaced(p netip.Prefix) string {
	if !p.IsSingleIP() {
		if !slices.Contains(i.Prefixes, p) {
			return "not one of its IPv6 prefixes"
		}
		return ""
	}
	ip, first := p.Addr(), i.Subnet.Addr()
	host := ip.BitLen() - i.Subnet.Bits()
	switch {
	case !i.Subnet.Contains(ip):
		return "not within its subnet"
	case ip == i.Gateway:
		return "that of the cloud's router"
	case host > 1 && (ip == first || ip.Is4() && ip == lastAddress(i.Subnet)):
		return "that of the subnet itself"
	}
	return ""
}

// gateway6 is AWS's router in every subnet (Amazon VPC User Guide, "Subnet CIDR blocks": besides
// its link-local address by EUI-64).
var gateway6 = netip.MustParseAddr("fe80:ec2::1")

// of is the interface as it is for one address: with the router and the networks of its family.
func (i Interface) of(ip netip.Addr) Interface {
	if ip.Is6() && len(i.Prefixes) > 0 {
		i.Gateway, i.Networks = gateway6, i.Prefixes
	}
	return i
}

// conflict reports why an interface conflicts with others.
func conflict(others []Interface, i Interface) error {
	for _, other := range others {
		switch {
		case other.Number == i.Number:
			return fmt.Errorf("its number %d is that of %.100q", i.Number, other.ID)
		case other.MAC == i.MAC:
			return fmt.Errorf("its hardware address is that of %.100q", other.ID)
		}
	}
	return nil
}

// few joins the first of many errors.
func few(errs []error) error {
	if len(errs) > maxFaults {
		errs = append(errs[:maxFaults:maxFaults], fmt.Errorf("and %d more", len(errs)-maxFaults))
	}
	return errors.Join(errs...)
}

// alibabaNumberTag has the place of an interface of Alibaba Cloud, which the cloud does not report.
const alibabaNumberTag = "cilium-eni-index"

// shownInterface is an interface as an object has it.
type shownInterface struct {
	id, mac  string
	number   int
	subnet   string
	gateway  func(netip.Prefix) netip.Addr
	networks []string
	prefixes []string // of IPv6
}

func (s shownInterface) read() (Interface, error) {
	i := Interface{ID: s.id, Number: s.number}
	mac, err := net.ParseMAC(s.mac)
	if err != nil || len(mac) != 6 || mac[0]&1 != 0 || slices.Equal(mac, make(net.HardwareAddr, 6)) {
		return i, fmt.Errorf("%.100q is no hardware address of an interface", s.mac)
	}
	i.MAC = mac.String()
	if s.number < 0 || s.number >= datapath.MaxInterfaces {
		return i, fmt.Errorf("its number %d is not within 0 to %d", s.number, datapath.MaxInterfaces-1)
	}
	if i.Subnet, err = networkOf(s.subnet); err != nil {
		return i, fmt.Errorf("subnet: %w", err)
	}
	if i.Gateway = s.gateway(i.Subnet); !i.Subnet.Contains(i.Gateway) {
		return i, fmt.Errorf("its subnet %s has no gateway", i.Subnet)
	}
	networks := map[netip.Prefix]bool{i.Subnet: true}
	for _, text := range s.networks {
		if text == "" {
			continue
		}
		p, err := networkOf(text)
		if err != nil {
			return i, fmt.Errorf("network of the VPC: %w", err)
		}
		if networks[p] = true; len(networks) > maxNetworks {
			return i, fmt.Errorf("its VPC has more than %d networks", maxNetworks)
		}
	}
	i.Networks = slices.SortedFunc(maps.Keys(networks), netip.Prefix.Compare)
	return i, nil
}

// networkOf reads a network in which pods can be.
func networkOf(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(text)
	a := p.Addr()
	switch {
	case err != nil || a.Is4In6() || a.Zone() != "":
		return p, fmt.Errorf("%.100q is no CIDR", text)
	case p.Bits() < minBits:
		return p, fmt.Errorf("%s is too large: no cloud has networks with fewer than %d bits", p, minBits)
	case a.IsLoopback() || a.IsMulticast() || a.IsUnspecified() || a.IsLinkLocalUnicast():
		return p, fmt.Errorf("%s is no network of a cloud", p)
	}
	return p.Masked(), nil
}

// firstAddress is the first behind that of the network itself, which is AWS's router (Amazon VPC
// User Guide, "Subnet CIDR blocks") and Azure's ("Azure Virtual Network FAQ").
func firstAddress(p netip.Prefix) netip.Addr { return p.Addr().Next() }

// thirdLastAddress is Alibaba Cloud's router (VPC, "VPCs and vSwitches": the last three addresses
// of a vSwitch are the cloud's).
func thirdLastAddress(p netip.Prefix) netip.Addr { return lastAddress(p).Prev().Prev() }

func lastAddress(p netip.Prefix) netip.Addr {
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < 8*len(b); bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return last
}

// namedAddress is the one that the object names, the first if it names none.
func namedAddress(text string) func(netip.Prefix) netip.Addr {
	return func(p netip.Prefix) netip.Addr {
		if text == "" {
			return firstAddress(p)
		}
		ip, _ := netip.ParseAddr(text) // one that is none is not within p
		return ip
	}
}
