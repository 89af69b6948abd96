package maps

import (
	"fmt"

	"github.com/hawser-net/hawser/internal/datapath"
)

// monitorBits is how many bits the kinds of event take, as in bpf/lib/maps.h.
const monitorBits = 4

// Metrics implements datapath.Maps. Counters that are 0 are left out.
func (m *Maps) Metrics() ([]datapath.Metric, error) {
	km := m.maps[kernelMapMetrics]
	var list []datapath.Metric
	for i := range km.MaxEntries() {
		var cpus []kernelMetric
		if err := km.Lookup(i, &cpus); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
		sum := datapath.Metric{Reason: datapath.DropReason(i / 2), Direction: datapath.Direction(i % 2)}
		for _, c := range cpus {
			sum.Packets += c.Packets
			sum.Bytes += c.Bytes
		}
		if sum.Packets > 0 {
			list = append(list, sum)
		}
	}
	return list, nil
}

// SetMonitor implements datapath.Maps.
func (m *Maps) SetMonitor(flags datapath.MonitorFlags) error {
	now, err := now()
	if err != nil {
		return fmt.Errorf("switch events: read the clock: %w", err)
	}
	var request uint32
	if flags != 0 {
		until := now + uint32(datapath.MonitorLifetime/TickNanoseconds)
		request = until<<monitorBits | uint32(flags)
	}
	if err := m.maps[kernelMapMonitor].Put(uint32(0), request); err != nil {
		return fmt.Errorf("switch events: %w", err)
	}
	return nil
}

// EventsLost returns how many events of a kind found no room since the maps were made.
func (m *Maps) EventsLost(kind datapath.EventType) (uint64, error) {
	var cpus []uint64
	if err := m.maps[kernelMapEventsLost].Lookup(uint32(kind-1), &cpus); err != nil {
		return 0, fmt.Errorf("events: read the count of lost ones of the kind %s: %w", kind, err)
	}
	var sum uint64
	for _, c := range cpus {
		sum += c
	}
	return sum, nil
}
