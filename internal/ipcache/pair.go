package ipcache

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"slices"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
)

// Pair is what a node publishes about an address, in the key-value store.
type Pair struct {
	// Prefix is mostly a single address.
	Prefix netip.Prefix
	// Host is the underlay address of the node, invalid if there is none.
	Host       netip.Addr
	Identity   identity.ID
	EncryptKey uint8
	// Metadata is a remark of the writer.
	Metadata                       string
	Namespace, Pod, ServiceAccount string
	// NamedPorts are, of what is read, only those that a policy can name.
	NamedPorts []NamedPort
}

// wirePair is the JSON of a pair as it stands in the store. A single address has no mask.
type wirePair struct {
	IP                net.IP
	Mask              net.IPMask
	HostIP            net.IP
	ID                uint32
	Key               uint8
	Metadata          string
	K8sNamespace      string      `json:",omitempty"`
	K8sPodName        string      `json:",omitempty"`
	K8sServiceAccount string      `json:",omitempty"`
	NamedPorts        []NamedPort `json:",omitempty"`
}

// Bounds of what is read from the store.
const (
	maxValue      = 64 << 10
	maxNamedPorts = 1024
)

// Key returns the part of the pair's key behind the address space.
func (p Pair) Key() string {
	if p.Prefix.IsSingleIP() {
		return p.Prefix.Addr().String()
	}
	return p.Prefix.String()
}

// MarshalJSON returns the value of the pair's key.
func (p Pair) MarshalJSON() ([]byte, error) {
	w := wirePair{
		ID: uint32(p.Identity), Key: p.EncryptKey, Metadata: p.Metadata,
		K8sNamespace: p.Namespace, K8sPodName: p.Pod, K8sServiceAccount: p.ServiceAccount, NamedPorts: p.NamedPorts,
	}
	if p.Prefix.IsValid() {
		w.IP = p.Prefix.Addr().AsSlice()
		if !p.Prefix.IsSingleIP() {
			w.Mask = net.CIDRMask(p.Prefix.Bits(), p.Prefix.Addr().BitLen())
		}
	}
	if p.Host.IsValid() {
		w.HostIP = p.Host.AsSlice()
	}
	return json.Marshal(w)
}

// UnmarshalJSON reads the value of a pair's key. It checks the form of what it reads, not whether
// it makes sense: see [Pair.Validate].
func (p *Pair) UnmarshalJSON(data []byte) error {
	if len(data) > maxValue {
		return fmt.Errorf("address pair of %d bytes is larger than %d", len(data), maxValue)
	}
	var w wirePair
	if err := json.Unmarshal(data, &w); err != nil {
		return err
	}
	if len(w.NamedPorts) > maxNamedPorts {
		return fmt.Errorf("address pair has %d named ports, more than %d", len(w.NamedPorts), maxNamedPorts)
	}
	r := Pair{
		Identity: identity.ID(w.ID), EncryptKey: w.Key, Metadata: w.Metadata,
		Namespace: w.K8sNamespace, Pod: w.K8sPodName, ServiceAccount: w.K8sServiceAccount, NamedPorts: nameable(w.NamedPorts),
	}
	a, ok := netip.AddrFromSlice(w.IP)
	if !ok {
		return errors.New("address pair has no address")
	}
	a = a.Unmap()
	r.Prefix = Single(a)
	if w.Mask != nil {
		ones, size := w.Mask.Size()
		if size != a.BitLen() || ones == size {
			return fmt.Errorf("%v is not the mask of a network of %v", w.Mask, a)
		}
		r.Prefix = netip.PrefixFrom(a, ones)
	}
	if h, ok := netip.AddrFromSlice(w.HostIP); ok && !h.IsUnspecified() {
		r.Host = h.Unmap()
	}
	*p = r
	return nil
}

// nameable returns the ports that a policy can name: the others would take memory for nothing, and
// as JSON a port may be two bytes. It uses the list that it is given.
func nameable(ports []NamedPort) []NamedPort {
	kept := ports[:0]
	for _, p := range ports {
		proto, err := datapath.ParseProto(p.Protocol)
		if err == nil && datapath.HasPorts(proto) && p.Port != 0 && datapath.ValidPortName(p.Name) {
			kept = append(kept, NamedPort{p.Name, p.Port, datapath.ProtoName(proto)})
		}
	}
	if len(kept) == 0 {
		return nil
	}
	return slices.Clone(kept) // not the room of those left out
}

// Validate reports all that is wrong with a pair.
func (p Pair) Validate() error {
	var errs []error
	if !p.Prefix.IsValid() || p.Prefix != p.Prefix.Masked() || p.Prefix.Addr().Is4In6() {
		errs = append(errs, fmt.Errorf("%v is no network prefix", p.Prefix))
	} else if p.Prefix.Bits() == 0 {
		errs = append(errs, fmt.Errorf("%v is everything: no identity of the store is that of the whole world", p.Prefix))
	}
	if p.Identity == identity.Unknown || p.Identity.IsLocal() {
		// A number that means something on one node only would mean something else on the others.
		errs = append(errs, fmt.Errorf("identity %d of %v is node-local", uint32(p.Identity), p.Prefix))
	}
	if h := p.Host; h.IsValid() && (h.IsUnspecified() || h.IsLoopback() || h.IsMulticast()) {
		errs = append(errs, fmt.Errorf("host %v of %v is no address of a node", h, p.Prefix))
	}
	return errors.Join(errs...)
}

// ParsePair reads a pair from the store: the part of its key behind the address space, and its
// value. The pair must be that of the key, and valid. A node that calls itself "host" is a remote
// node here.
func ParsePair(key string, value []byte) (Pair, error) {
	var p Pair
	if err := p.UnmarshalJSON(value); err != nil {
		return Pair{}, fmt.Errorf("address %q: %w", key, err)
	}
	if p.Key() != key {
		return Pair{}, fmt.Errorf("the key of address %q holds %q", key, p.Key())
	}
	if err := p.Validate(); err != nil {
		return Pair{}, fmt.Errorf("address %q: %w", key, err)
	}
	if p.Identity == identity.Host {
		p.Identity = identity.RemoteNode
	}
	return p, nil
}

// ParseKey returns the prefix that the part of a key behind the address space names.
func ParseKey(key string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(key); err == nil && a.Zone() == "" && !a.Is4In6() && a.String() == key {
		return Single(a), nil
	}
	p, err := netip.ParsePrefix(key)
	if err != nil || p.IsSingleIP() || p != p.Masked() || p.String() != key {
		return netip.Prefix{}, fmt.Errorf("%q is the key of no address", key)
	}
	return p, nil
}

// Claim returns what a pair claims in the name of an owner.
func (p Pair) Claim(source Source, owner string) Claim {
	return Claim{
		Source: source, Owner: owner, Identity: p.Identity, Host: p.Host, EncryptKey: p.EncryptKey,
		Namespace: p.Namespace, Pod: p.Pod, ServiceAccount: p.ServiceAccount, NamedPorts: p.NamedPorts,
	}
}
