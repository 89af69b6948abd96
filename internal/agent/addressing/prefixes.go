package addressing

import (
	"encoding/json"
	"errors"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
)

// byPrefix has something for addresses, each as a prefix of full length, and for prefixes. They do
// not overlap. In JSON an address is written as such.
type byPrefix[V any] map[netip.Prefix]V

// of returns what there is for the address or the prefix that it is of.
func (m byPrefix[V]) of(ip netip.Addr) (v V, ok bool) {
	if v, ok = m[single(ip)]; !ok && ip.Is6() {
		p, _ := ip.Prefix(prefixBits) // it fails for IPv4 alone
		v, ok = m[p]
	}
	return v, ok
}

// MarshalJSON implements json.Marshaler.
func (m byPrefix[V]) MarshalJSON() ([]byte, error) {
	out := make(map[string]V, len(m))
	for p, v := range m {
		out[datapath.SpellPods(p)] = v
	}
	return json.Marshal(out)
}

// UnmarshalJSON implements json.Unmarshaler.
func (m *byPrefix[V]) UnmarshalJSON(data []byte) error {
	var in map[string]V
	if err := json.Unmarshal(data, &in); err != nil {
		return err
	}
	*m = make(byPrefix[V], len(in))
	for text, v := range in {
		p, err := netip.ParsePrefix(text)
		if ip, e := netip.ParseAddr(text); e == nil {
			p, err = single(ip), nil
		}
		if err != nil {
			return err
		}
		(*m)[p] = v
	}
	return nil
}

// single is an address as a prefix.
func single(ip netip.Addr) netip.Prefix { return netip.PrefixFrom(ip, ip.BitLen()) }

// parse reads what a pool of the object names: an address, or with ENI an IPv6 prefix.
func (s *Singles) parse(text string) (netip.Prefix, error) {
	ip, err := netip.ParseAddr(text)
	switch {
	case err == nil && !ip.Is4In6() && ip.Zone() == "":
		return single(ip), nil
	case s.cfg.Mode == ENI:
		return prefixOf(text)
	}
	return netip.Prefix{}, errors.New("an IP address is needed")
}

// placed are the prefixes of the pool that the interface which the pool names is shown to have. mu
// is held.
func (s *Singles) placed() map[netip.Prefix]bool {
	misplaced, out := s.misplaced(), map[netip.Prefix]bool{}
	for p, id := range s.state.Pool {
		shown := slices.ContainsFunc(s.state.Interfaces, func(i Interface) bool { return i.ID == id && !i.Kept })
		if !p.IsSingleIP() && shown && misplaced[p] == "" {
			out[p] = true
		}
	}
	return out
}

// anyOf reports whether one of some addresses is of a prefix.
func anyOf(addrs map[netip.Addr]bool, p netip.Prefix) bool {
	if p.IsSingleIP() {
		return addrs[p.Addr()]
	}
	for ip := range addrs {
		if p.Contains(ip) {
			return true
		}
	}
	return false
}
