package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// What becomes of an attack.
const (
	dropped = "dropped"
	arrived = "arrived"
)

const (
	// timeout is how long what must work may take: a busy machine is no firewall.
	timeout = 20 * time.Second
	// grace is how much later than a control an attack may arrive that was sent before it. Both
	// take the same way, so the order is kept but for processors that pass packets to each other.
	grace = 60 * time.Millisecond
)

// scene is a stage and the family of addresses that a row is played in.
type scene struct {
	*stage
	ctx context.Context
	v6  bool
}

// is returns the address of the scene's family.
func (s *scene) is(p pair) netip.Addr { return p.of(s.v6) }

// at is an address of the scene's family with a port.
func (s *scene) at(p pair, port uint16) netip.AddrPort { return netip.AddrPortFrom(p.of(s.v6), port) }

// shot is one packet, or a sequence of them, that carries a token.
type shot struct {
	from   *port
	frames func(token) [][]byte
}

// control is a shot that must arrive. It shows that the way, the packet and the witness are what
// they are taken for, and after an attack that everything sent before it is through.
type control struct {
	what string
	shot shot
	at   witness
}

// errControl says that nothing was learnt: what had to work did not.
var errControl = errors.New("control")

// check sends a control until it arrives.
func (s *scene) check(c control) error {
	deadline := time.Now().Add(timeout)
	for {
		k := newToken()
		c.at.watch(k)
		if err := c.shot.from.send(c.shot.frames(k)...); err != nil {
			return err
		}
		for until := time.Now().Add(250 * time.Millisecond); time.Now().Before(until); {
			if c.at.of(k).count > 0 {
				c.at.forget(k)
				return nil
			}
			if err := s.ctx.Err(); err != nil {
				return err
			}
			time.Sleep(time.Millisecond) // another goroutine receives it
		}
		c.at.forget(k)
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: %s does not arrive", errControl, c.what)
		}
	}
}

// strike sees whether an attack gets to a witness, between controls that do.
func (s *scene) strike(at witness, attack shot, controls ...control) (string, error) {
	if len(controls) == 0 {
		return "", errors.New("an attack without a control shows nothing")
	}
	for _, c := range controls {
		if err := s.check(c); err != nil {
			return "", err
		}
	}
	if p, ok := at.(*port); ok {
		p.lost() // what was missed earlier does not matter
	}
	k := newToken()
	at.watch(k)
	defer at.forget(k)
	for range 3 {
		if err := attack.from.send(attack.frames(k)...); err != nil {
			return "", err
		}
	}
	for _, c := range controls {
		if err := s.check(c); err != nil {
			return "", fmt.Errorf("after the attack: %w", err)
		}
	}
	return s.verdict(at, k)
}

// verdict says whether an attack got to a witness, once everything that was sent before is through.
func (s *scene) verdict(at witness, k token) (string, error) {
	time.Sleep(grace) // nothing reports what does not happen
	if got := at.of(k); got.count > 0 {
		return arrived + ": " + describe(got.first), nil
	}
	if p, ok := at.(*port); ok && p.lost() > 0 {
		return "", fmt.Errorf("%w: %s has missed frames", errControl, p.name)
	}
	return dropped, nil
}

// outOf is a shot of a pod: a packet in a frame to its gateway.
func outOf(p *pod, packet func(token) []byte) shot {
	return shot{p.eth, func(k token) [][]byte {
		b := packet(k)
		return [][]byte{ethernet(p.gateway, p.eth.mac, typeOf(b), b)}
	}}
}

// fragments is a shot of a pod in several packets.
func fragments(p *pod, packets func(token) [][]byte) shot {
	return shot{p.eth, func(k token) (out [][]byte) {
		for _, b := range packets(k) {
			out = append(out, ethernet(p.gateway, p.eth.mac, typeOf(b), b))
		}
		return out
	}}
}

// toNode is a shot from the underlay into a node.
func toNode(from *place, n *node, packet func(token) []byte) shot {
	return shot{from.eth, func(k token) [][]byte {
		b := packet(k)
		return [][]byte{ethernet(n.eth.mac, from.eth.mac, typeOf(b), b)}
	}}
}

// typeOf is the type of frame for an IP packet.
func typeOf(packet []byte) uint16 {
	if packet[0]>>4 == 4 {
		return typeIPv4
	}
	return typeIPv6
}

// datagram is a packet of UDP with nothing but its token.
func datagram(src, dst netip.AddrPort) func(token) []byte {
	return func(k token) []byte { return udpPacket(src, dst, k[:]) }
}

// Ports that packets of rows are sent from and to.
const (
	fromPort = 40001
	toPort   = 7001
)

// plain is the control that an ordinary datagram of a pod arrives at another.
func (s *scene) plain(src, dst *pod) control {
	return control{src.name + " to " + dst.name, outOf(src, datagram(s.at(src.addr, fromPort), s.at(dst.addr, toPort))), dst.eth}
}

// friendly is the control that a victim receives from its friend on the same node.
func (s *scene) friendly(victim *pod) control {
	return s.plain(s.pods["friend"+victim.node.name[1:]], victim)
}

// reaches is the control that a pod's datagram arrives at a socket of a node, at one of its
// addresses.
func (s *scene) reaches(src *pod, n *node, addr netip.Addr) control {
	return control{fmt.Sprintf("%s to %s of %s", src.name, addr, n.name),
		outOf(src, datagram(s.at(src.addr, fromPort), netip.AddrPortFrom(addr, nodePort))), n.server}
}

// honest is the control that the underlay reaches a pod of a node that admits everybody.
func (s *scene) honest(p *place, open *pod) control {
	return control{p.name + " to " + open.name, toNode(p, open.node, datagram(s.at(p.addr, fromPort), s.at(open.addr, toPort))), open.eth}
}
