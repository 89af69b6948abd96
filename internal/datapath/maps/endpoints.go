package maps

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// Flags of rows, as in bpf/lib/maps.h.
const (
	endpointLocked = 1 << 0 // ENDPOINT_LOCKED
	endpointAudit  = 1 << 1 // ENDPOINT_AUDIT
)

// UpsertEndpoint implements datapath.Maps. An address that another interface's row holds is taken
// over.
func (m *Maps) UpsertEndpoint(ep datapath.Endpoint) error {
	if err := ep.Validate(); err != nil {
		return err
	}
	row := kernelEndpoint{
		Ip4:         toKernelAddr(ep.IPv4),
		Ip6:         toKernelAddr(ep.IPv6),
		Ifindex:     uint32(ep.IfIndex),
		Identity:    ep.Identity,
		Incarnation: ep.Incarnation,
		RuleSet:     uint32(ep.RuleSet),
		Generation:  ep.PolicyGeneration,
		Id:          ep.ID,
		Mac:         [6]uint8(ep.MAC),
		HostMac:     [6]uint8(ep.HostMAC),
	}
	if ep.Locked {
		row.Flags |= endpointLocked
	}
	if ep.Audit {
		row.Flags |= endpointAudit
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	var old kernelEndpoint
	err := m.maps[kernelMapEndpoints].Lookup(row.Ifindex, &old)
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("endpoint %d: read its row: %w", ep.ID, err)
	}
	known := err == nil
	// The interface's row first: it is the one by which the row is found again for removal.
	if err := m.maps[kernelMapEndpoints].Put(row.Ifindex, row); err != nil {
		return fmt.Errorf("endpoint %d: write the row of interface %d: %w", ep.ID, ep.IfIndex, classify(err))
	}
	for _, a := range ep.Addresses() {
		if err := m.maps[kernelMapAddresses].Put(toKernelAddr(a), row); err != nil {
			return fmt.Errorf("endpoint %d: write the row of %s: %w", ep.ID, a, classify(err))
		}
	}
	// Also if an earlier attempt has failed half-way, or the row was another endpoint's.
	if !known || old.Id != row.Id || old.Incarnation != row.Incarnation {
		if err := m.openAccount(ep.ID); err != nil {
			return err
		}
	}
	if !known {
		return nil
	}
	for _, a := range []kernelAddr{old.Ip4, old.Ip6} {
		if a == row.Ip4 || a == row.Ip6 {
			continue
		}
		if err := m.deleteAddress(a, row.Ifindex); err != nil {
			return fmt.Errorf("endpoint %d: %w", ep.ID, err)
		}
	}
	return nil
}

// deleteAddress removes the row of an address if it belongs to the interface.
func (m *Maps) deleteAddress(a kernelAddr, ifIndex uint32) error {
	if a == (kernelAddr{}) {
		return nil
	}
	var row kernelEndpoint
	err := m.maps[kernelMapAddresses].Lookup(a, &row)
	if errors.Is(err, ebpf.ErrKeyNotExist) || (err == nil && row.Ifindex != ifIndex) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the row of %s: %w", fromKernelAddr(a), err)
	}
	if err := m.maps[kernelMapAddresses].Delete(a); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove the row of %s: %w", fromKernelAddr(a), err)
	}
	return nil
}

// DeleteEndpoint implements datapath.Maps.
func (m *Maps) DeleteEndpoint(ifIndex int) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	var row kernelEndpoint
	err := m.maps[kernelMapEndpoints].Lookup(uint32(ifIndex), &row)
	if errors.Is(err, ebpf.ErrKeyNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the row of interface %d: %w", ifIndex, err)
	}
	for _, a := range []kernelAddr{row.Ip4, row.Ip6} {
		if err := m.deleteAddress(a, row.Ifindex); err != nil {
			return err
		}
	}
	err = m.maps[kernelMapEndpoints].Delete(uint32(ifIndex))
	if err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("remove the row of interface %d: %w", ifIndex, err)
	}
	return nil
}

// Endpoints implements datapath.Maps.
func (m *Maps) Endpoints() ([]datapath.Endpoint, error) {
	var eps []datapath.Endpoint
	err := each(m.maps[kernelMapEndpoints], func(_ uint32, row kernelEndpoint) bool {
		eps = append(eps, datapath.Endpoint{
			ID:               row.Id,
			IfIndex:          int(row.Ifindex),
			MAC:              fromKernelMAC(row.Mac),
			HostMAC:          fromKernelMAC(row.HostMac),
			IPv4:             fromKernelAddr(row.Ip4),
			IPv6:             fromKernelAddr(row.Ip6),
			Identity:         row.Identity,
			Incarnation:      row.Incarnation,
			RuleSet:          datapath.RuleSetID(row.RuleSet),
			PolicyGeneration: row.Generation,
			Locked:           row.Flags&endpointLocked != 0,
			Audit:            row.Flags&endpointAudit != 0,
		})
		return true
	})
	return eps, err
}
