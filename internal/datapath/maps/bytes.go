package maps

import (
	"encoding/binary"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// toKernelAddr returns the 16 bytes of an address, IPv4 in its mapped form; zero if invalid.
func toKernelAddr(a netip.Addr) (k kernelAddr) {
	if a.IsValid() {
		k.B = a.As16()
	}
	return k
}

// fromKernelAddr is the reverse of toKernelAddr.
func fromKernelAddr(k kernelAddr) netip.Addr {
	a := netip.AddrFrom16(k.B)
	if a.IsUnspecified() {
		return netip.Addr{}
	}
	return a.Unmap()
}

// ntohs reads a port that the programs copied from a packet.
func ntohs(v uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], v)
	return binary.BigEndian.Uint16(b[:])
}

// NetworkOrder returns a port as programs read it from a packet.
func NetworkOrder(port uint16) uint16 { return ntohs(port) }

func fromKernelMAC(m [6]uint8) net.HardwareAddr { return net.HardwareAddr(m[:]) }

// TickNanoseconds is the unit of time of conntrack entries: a power of two, so that programs
// shift instead of dividing.
const TickNanoseconds = 1 << 30

// now is the programs' clock, in ticks: the coarse one, which the exact one is ahead of.
func now() (uint32, error) {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC_COARSE, &ts); err != nil {
		return 0, err
	}
	return uint32(uint64(ts.Nano()) / TickNanoseconds), nil
}
