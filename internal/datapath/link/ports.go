package link

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/hawser-net/hawser/internal/datapath"
)

// reservedPorts is a kernel parameter of the network namespace: ports that no socket gets without
// asking for one, for TCP, UDP and SCTP of both families (Documentation/networking/ip-sysctl.rst).
const reservedPorts = "/proc/sys/net/ipv4/ip_local_reserved_ports"

// ReservePorts keeps the kernel from choosing ports of a range for the node's own sockets, in
// addition to those already reserved. A process may still ask for one. A reservation is never
// undone: others may rely on the same ports, and they are few.
func (l *Links) ReservePorts(r datapath.PortRange) error {
	return l.inNS(func() error {
		have, err := readReserved()
		if err != nil {
			return fmt.Errorf("read the ports that are reserved: %w", err)
		}
		want, err := withPorts(have, r)
		if err != nil || want == "" {
			return err
		}
		if err := os.WriteFile(reservedPorts, []byte(want), 0o644); err != nil {
			return fmt.Errorf("reserve ports %s: %w", r, err)
		}
		return nil
	})
}

// maxReserved is longer than a list of all ports can be, one by one.
const maxReserved = 1 << 19

// readReserved reads the whole list at once: the kernel gives what fits into the first read, and
// nothing afterwards (proc_do_large_bitmap). A list that was cut off would take ports from who
// reserved them.
func readReserved() (string, error) {
	f, err := os.Open(reservedPorts)
	if err != nil {
		return "", err
	}
	defer f.Close()
	buf := make([]byte, maxReserved)
	n, err := f.Read(buf)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	list, whole := strings.CutSuffix(string(buf[:n]), "\n")
	if n > 0 && !whole {
		return "", fmt.Errorf("the list in %s does not end after %d bytes", reservedPorts, n)
	}
	return strings.TrimSpace(list), nil
}

// withPorts is pure: a list of ports with those of a range added, in the kernel's form; empty if
// they are in it.
func withPorts(list string, add datapath.PortRange) (string, error) {
	var in [1 << 16]bool
	for item := range strings.SplitSeq(list, ",") {
		if item == "" {
			continue
		}
		r, err := datapath.ParsePortRange(item)
		if err != nil {
			return "", fmt.Errorf("ports that are reserved %q: %w", list, err)
		}
		for p := int(r.First); p <= int(r.Last); p++ {
			in[p] = true
		}
	}
	missing := false
	for p := int(add.First); p <= int(add.Last); p++ {
		missing = missing || !in[p]
		in[p] = true
	}
	if !missing {
		return "", nil
	}
	var out []string
	for first := 0; first < len(in); first++ {
		if !in[first] {
			continue
		}
		last := first
		for last+1 < len(in) && in[last+1] {
			last++
		}
		out = append(out, datapath.PortRange{First: uint16(first), Last: uint16(last)}.String())
		first = last
	}
	return strings.Join(out, ","), nil
}
