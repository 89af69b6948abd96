package sandbox

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strings"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// Protocol of a probe.
type Protocol string

// The protocols that are probed.
const (
	TCP  Protocol = "tcp"
	UDP  Protocol = "udp"
	ICMP Protocol = "icmp" // echo request; ICMPv6 to an IPv6 address
)

// errNoAnswer is a probe's result when nothing came back: how a drop looks from the outside.
var errNoAnswer = errors.New("no answer")

// probe sends real packets from the namespace kept at path to addr and waits for the answer of the
// server called name. It returns errNoAnswer if there is none, and any other error if the answer
// is not what a working network would give.
func probe(ctx context.Context, path string, proto Protocol, addr netip.AddrPort, name string, timeout time.Duration) error {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	deadline, _ := ctx.Deadline()
	var err error
	switch proto {
	case TCP:
		err = probeTCP(ctx, path, addr, name, deadline)
	case UDP:
		err = probeUDP(path, addr, name, deadline)
	case ICMP:
		err = probeICMP(path, addr.Addr(), deadline)
	default:
		return fmt.Errorf("probe: unknown protocol %q", proto)
	}
	var timedOut net.Error
	if errors.Is(err, os.ErrDeadlineExceeded) || errors.Is(err, context.DeadlineExceeded) ||
		errors.As(err, &timedOut) && timedOut.Timeout() {
		return errNoAnswer
	}
	return err
}

func probeTCP(ctx context.Context, path string, addr netip.AddrPort, name string, deadline time.Time) error {
	var c net.Conn
	// A dial to an address is done by the goroutine that asks for it, so in the namespace.
	err := machine.InNamespace(path, func() (err error) {
		c, err = (&net.Dialer{}).DialContext(ctx, "tcp", addr.String())
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	if err := c.SetDeadline(deadline); err != nil {
		return err
	}
	token := fmt.Sprintf("%x", rand.Uint64())
	if _, err := fmt.Fprintln(c, token); err != nil {
		return err
	}
	line, err := bufio.NewReader(c).ReadString('\n')
	if err != nil {
		return err
	}
	return checkAnswer(line, name, token)
}

func probeUDP(path string, addr netip.AddrPort, name string, deadline time.Time) error {
	var c *net.UDPConn
	err := machine.InNamespace(path, func() (err error) {
		c, err = net.DialUDP("udp", nil, net.UDPAddrFromAddrPort(addr))
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	buf := make([]byte, maxLine)
	token := fmt.Sprintf("%x", rand.Uint64())
	return resend(deadline, c, func() error {
		_, err := c.Write([]byte(token))
		return err
	}, func() (bool, error) {
		n, err := c.Read(buf)
		if err != nil {
			return false, err
		}
		return true, checkAnswer(string(buf[:n]), name, token)
	})
}

func probeICMP(path string, addr netip.Addr, deadline time.Time) error {
	network, listen, proto := "ip4:icmp", "0.0.0.0", 1
	var request icmp.Type = ipv4.ICMPTypeEcho
	var reply icmp.Type = ipv4.ICMPTypeEchoReply
	if addr.Is6() {
		network, listen, proto = "ip6:ipv6-icmp", "::", 58
		request, reply = ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	var c *icmp.PacketConn
	err := machine.InNamespace(path, func() (err error) {
		c, err = icmp.ListenPacket(network, listen)
		return err
	})
	if err != nil {
		return err
	}
	defer c.Close()
	id, seq := int(rand.Uint32()&0xffff), 0
	buf := make([]byte, maxLine)
	return resend(deadline, c, func() error {
		seq++
		b, err := (&icmp.Message{Type: request, Body: &icmp.Echo{ID: id, Seq: seq, Data: []byte("hawser")}}).Marshal(nil)
		if err != nil {
			return err
		}
		_, err = c.WriteTo(b, &net.IPAddr{IP: addr.AsSlice()})
		return err
	}, func() (bool, error) {
		n, from, err := c.ReadFrom(buf)
		if err != nil {
			return false, err
		}
		m, err := icmp.ParseMessage(proto, buf[:n])
		if err != nil || m.Type != reply {
			return false, nil // something else: a raw socket receives everything
		}
		echo, ok := m.Body.(*icmp.Echo)
		peer, isAddr := from.(*net.IPAddr)
		return ok && isAddr && echo.ID == id && peer.IP.Equal(addr.AsSlice()), nil
	})
}

// resend sends until an answer came or the deadline passed. Datagrams may get lost without any
// policy, for instance while the kernel looks for the next hop.
func resend(deadline time.Time, c interface{ SetReadDeadline(time.Time) error }, send func() error, receive func() (bool, error)) error {
	wait := 100 * time.Millisecond
	for {
		if err := send(); err != nil {
			return err
		}
		until := time.Now().Add(wait)
		if until.After(deadline) {
			until = deadline
		}
		if err := c.SetReadDeadline(until); err != nil {
			return err
		}
		for {
			done, err := receive()
			if err == nil && done {
				return nil
			}
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
		}
		if !time.Now().Before(deadline) {
			return errNoAnswer
		}
		wait *= 2
	}
}

// checkAnswer sees that the answer is to this very probe and from the right server.
func checkAnswer(got, name, token string) error {
	if want := name + " " + token; strings.TrimSpace(got) != want {
		return fmt.Errorf("answer %q, want that of %s", strings.TrimSpace(got), name)
	}
	return nil
}
