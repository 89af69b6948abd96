package maps

import (
	"errors"
	"fmt"
	"net"

	"github.com/cilium/ebpf"

	"github.com/hawser-net/hawser/internal/datapath"
)

// UpsertInterface has the programs believe that an interface joins the nodes, besides the native
// device. mac is its hardware address: what leaves by it under another is not the node's own.
func (m *Maps) UpsertInterface(ifIndex int, mac net.HardwareAddr) error {
	if ifIndex <= 0 || len(mac) != 6 {
		return fmt.Errorf("interface %d with the hardware address %q: both must be known", ifIndex, mac)
	}
	value := kernelInterface{Mac: [6]uint8(mac)}
	if err := m.maps[kernelMapInterfaces].Put(uint32(ifIndex), value); err != nil {
		err = classify(err)
		if errors.Is(err, datapath.ErrFull) {
			return fmt.Errorf("interface %d: %d others join the nodes already: %w", ifIndex, m.maps[kernelMapInterfaces].MaxEntries(), err)
		}
		return fmt.Errorf("interface %d: write its row: %w", ifIndex, err)
	}
	return nil
}

// DeleteInterface undoes UpsertInterface.
func (m *Maps) DeleteInterface(ifIndex int) error {
	if err := m.maps[kernelMapInterfaces].Delete(uint32(ifIndex)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
		return fmt.Errorf("interface %d: remove its row: %w", ifIndex, err)
	}
	return nil
}

// Interfaces lists the interfaces besides the native device that join the nodes, in no order.
func (m *Maps) Interfaces() ([]int, error) {
	var list []int
	err := each(m.maps[kernelMapInterfaces], func(k uint32, _ kernelInterface) bool {
		list = append(list, int(k))
		return true
	})
	if err != nil {
		return nil, fmt.Errorf("interfaces that join the nodes: %w", err)
	}
	return list, nil
}
