package link

import (
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
)

func TestWithPorts(t *testing.T) {
	for _, row := range []struct {
		list string
		add  datapath.PortRange
		want string
	}{
		{"", datapath.PortRange{First: 61000, Last: 65535}, "61000-65535"},
		{"61000-65535", datapath.PortRange{First: 61000, Last: 65535}, ""},
		{"8080,9000-9100,60000-65535", datapath.PortRange{First: 61000, Last: 65535}, ""},
		{"8080,61500-61600,9000-9100", datapath.PortRange{First: 61000, Last: 62000}, "8080,9000-9100,61000-62000"},
		{"60999", datapath.PortRange{First: 61000, Last: 61001}, "60999-61001"},
		{"", datapath.PortRange{First: 65535, Last: 65535}, "65535"},
	} {
		if got, err := withPorts(row.list, row.add); got != row.want || err != nil {
			t.Errorf("%q with %s: %q, %v, want %q", row.list, row.add, got, err, row.want)
		}
	}
	if _, err := withPorts("a", datapath.PortRange{First: 1, Last: 2}); err == nil {
		t.Error("a list that is none was taken")
	}
}

// TestReservePorts: no socket of the node's gets one of the ports without asking for it; what
// others have reserved stays.
func TestReservePorts(t *testing.T) {
	n := newNode(t)
	n.in(t, func() error {
		if err := os.WriteFile("/proc/sys/net/ipv4/ip_local_port_range", []byte("61000 61009"), 0); err != nil {
			return err
		}
		return os.WriteFile(reservedPorts, []byte("61009"), 0)
	})
	for range 2 {
		must(t, n.ReservePorts(datapath.PortRange{First: 61001, Last: 61008}))
		if got := n.sysctl(t, "net/ipv4/ip_local_reserved_ports"); got != "61001-61009" {
			t.Errorf("reserved are %q", got)
		}
	}
	n.in(t, func() error {
		var open []net.PacketConn
		for {
			c, err := net.ListenPacket("udp4", ":0")
			if err != nil {
				break // there are no more
			}
			open = append(open, c)
			if port := c.LocalAddr().(*net.UDPAddr).Port; port != 61000 {
				t.Errorf("a socket got port %d", port)
			}
			defer c.Close()
		}
		if len(open) != 1 {
			t.Errorf("%d sockets got a port, want 1", len(open))
		}
		c, err := net.ListenPacket("udp4", ":61005")
		if err != nil {
			return err
		}
		return c.Close()
	})
}

// TestReserveBesideMany: a list that is longer than the kernel gives in small pieces stays whole.
func TestReserveBesideMany(t *testing.T) {
	n := newNode(t)
	var list []string
	for p := 20000; p < 21000; p += 2 {
		list = append(list, strconv.Itoa(p))
	}
	n.in(t, func() error { return os.WriteFile(reservedPorts, []byte(strings.Join(list, ",")), 0) })
	must(t, n.ReservePorts(datapath.PortRange{First: 61000, Last: 65535}))
	n.in(t, func() error {
		got, err := readReserved()
		if want := strings.Join(list, ",") + ",61000-65535"; err == nil && got != want {
			t.Errorf("reserved are %d bytes, %.60s...; want %d bytes", len(got), got, len(want))
		}
		return err
	})
}
