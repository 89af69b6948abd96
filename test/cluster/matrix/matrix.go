// Package matrix measures who reaches whom in a cluster, with real connections from the pods'
// namespaces, and compares it with what the oracle of internal/policy reads from the policies.
package matrix

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
	"golang.org/x/net/ipv6"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy/oracle"
	"github.com/hawser-net/hawser/test/cluster/flows"
	"github.com/hawser-net/hawser/test/cluster/lab"
)

// Protocols of probes.
const (
	TCP  = "tcp"
	UDP  = "udp"
	ICMP = "icmp" // echo request, of version 6 to an IPv6 address
)

// Party is a source or a target: a pod, a node, or with no Labels a host that is not of the
// cluster.
type Party struct {
	Name string
	Node string // where a pod is, or of a node its own name
	// IsNode says that it is a node: to pods of its own it is the host, to others a remote node.
	IsNode    bool
	Namespace *lab.Namespace
	Addrs     []netip.Addr
	// SourceAddrs are those that it sends from, if they are others.
	SourceAddrs []netip.Addr
	Labels      labels.Set
	// NamedPorts are "name/PROTO/port", as the oracle reads them. PeerPorts are those that a name
	// in an egress rule means at this party: those of all pods with its labels, see
	// docs/user/policies.md.
	NamedPorts, PeerPorts []string
	// SourceOnly parties are not probed.
	SourceOnly bool
	// Number distinguishes its server's answers from others'.
	Number uint32
}

// Port is what is probed at each target. Of ICMP the number does not count.
type Port struct {
	Protocol string
	Number   uint16
}

func (p Port) String() string {
	if p.Protocol == ICMP {
		return ICMP
	}
	return fmt.Sprintf("%s/%d", p.Protocol, p.Number)
}

// Evaluator is what decides about the probes.
type Evaluator struct {
	Config   oracle.Config
	Policies []oracle.Policy
}

// Probe is one attempt, what it should come to and what it came to.
type Probe struct {
	From, To *Party
	Addr     netip.Addr
	Port     Port
	Expected bool
	// Egress and Ingress are what each side's policies say; Expected is both.
	Egress, Ingress bool
	Why             string // of the expectation
	Reached         bool
	// Error is set if the attempt ended in a way that a drop does not explain, such as a reset, or
	// the answer of another server.
	Error string
}

// Wrong reports whether the network did not do what the policies say. Who is denied gets no answer
// at all: any other failure shows that packets have passed.
func (p *Probe) Wrong() bool { return p.Reached != p.Expected || p.Error != "" }

// String describes the whole probe in a line.
func (p *Probe) String() string {
	is, want := "was denied", "allowed"
	if !p.Expected {
		is, want = "got through", "denied"
	}
	if p.Error != "" {
		is += " (" + p.Error + ")"
	}
	return fmt.Sprintf("%s (%s) -> %s (%s) %s at %s: %s, the policies say %s (%s)", p.From.Name, p.From.Node, p.To.Name, p.To.Node, p.Port, p.Addr, is, want, p.Why)
}

// Plan lists the probes between all ordered pairs of parties with what the evaluator says of each.
func Plan(parties []*Party, ports []Port, j Evaluator) []*Probe {
	var out []*Probe
	for _, from := range parties {
		for _, to := range parties {
			if from == to || to.SourceOnly || !from.isPod() && !to.isPod() {
				continue
			}
			for _, addr := range to.Addrs {
				if !slices.ContainsFunc(from.Addrs, func(a netip.Addr) bool { return a.Is6() == addr.Is6() }) {
					continue
				}
				for _, port := range ports {
					p := &Probe{From: from, To: to, Addr: addr, Port: port}
					j.Expect(p)
					out = append(out, p)
				}
			}
		}
	}
	return out
}

func (p *Party) isPod() bool { return p.Labels != nil }

// Expect sets what the policies say of a probe.
func (j Evaluator) Expect(p *Probe) {
	proto, port := uint8(unix.IPPROTO_TCP), p.Port.Number
	switch {
	case p.Port.Protocol == UDP:
		proto = unix.IPPROTO_UDP
	case p.Port.Protocol == ICMP && p.Addr.Is6():
		proto, port = unix.IPPROTO_ICMPV6, 128
	case p.Port.Protocol == ICMP:
		proto, port = unix.IPPROTO_ICMP, 8
	}
	from, to := end(p.From, p.To, p.Addr), end(p.To, p.From, p.Addr)
	for _, a := range p.From.SourceAddrs {
		if a.Is6() == p.Addr.Is6() {
			from.Addr = a
		}
	}
	peer := to
	peer.NamedPorts = p.To.PeerPorts
	out, whyOut := oracle.Side(j.Config, j.Policies, false, from, peer, proto, port)
	in, whyIn := oracle.Side(j.Config, j.Policies, true, to, from, proto, port)
	p.Egress, p.Ingress = out, in
	p.Expected, p.Why = out && in, "egress: "+whyOut+"; ingress: "+whyIn
}

// end describes a party as other sees it.
func end(p, other *Party, family netip.Addr) oracle.End {
	e := oracle.End{Labels: p.Labels, NamedPorts: p.NamedPorts}
	if p.IsNode {
		e.Labels = labels.NewSet(labels.Reserved("remote-node"))
		if p.Node == other.Node {
			e.Labels = labels.NewSet(labels.Reserved("host"))
		}
	}
	for _, a := range p.Addrs {
		if a.Is6() == family.Is6() {
			e.Addr = a
		}
	}
	return e
}

// Times of a probe.
const (
	allowWithin = 4 * time.Second
	denyWithin  = 700 * time.Millisecond
	inFlight    = 400
)

// Measure runs the probes and returns those that came out wrong. What seems wrong is probed again,
// alone in time, for as long as settle lasts: policies take a moment to arrive, and a busy machine
// answers late.
func Measure(ctx context.Context, probes []*Probe, settle time.Duration) ([]*Probe, error) {
	deadline := time.Now().Add(settle)
	todo := probes
	for {
		slots := make(chan struct{}, inFlight)
		var wg sync.WaitGroup
		for _, p := range todo {
			slots <- struct{}{}
			if ctx.Err() != nil {
				break
			}
			wg.Go(func() {
				defer func() { <-slots }()
				p.run()
			})
		}
		wg.Wait()
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		var wrong []*Probe
		for _, p := range todo {
			if p.Wrong() {
				wrong = append(wrong, p)
			}
		}
		if len(wrong) == 0 || time.Now().After(deadline) {
			return wrong, nil
		}
		todo = wrong
		time.Sleep(200 * time.Millisecond) // there is no notice of the moment when every node has the policies
	}
}

func (p *Probe) run() {
	timeout := allowWithin
	if !p.Expected {
		timeout = denyWithin
	}
	var err error
	if p.Port.Protocol == ICMP {
		err = echo(p.From.Namespace, p.Addr, timeout)
	} else {
		err = flows.Ask(p.From.Namespace, p.Port.Protocol, netip.AddrPortFrom(p.Addr, p.Port.Number), p.To.Number, timeout)
	}
	p.Reached, p.Error = err == nil, ""
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		p.Error = err.Error()
	}
}

// echo sends echo requests until one is answered.
func echo(from *lab.Namespace, to netip.Addr, timeout time.Duration) error {
	domain, proto := unix.AF_INET, unix.IPPROTO_ICMP
	var request, reply icmp.Type = ipv4.ICMPTypeEcho, ipv4.ICMPTypeEchoReply
	if to.Is6() {
		domain, proto, request, reply = unix.AF_INET6, unix.IPPROTO_ICMPV6, ipv6.ICMPTypeEchoRequest, ipv6.ICMPTypeEchoReply
	}
	fd, err := from.Socket(domain, unix.SOCK_RAW, proto)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), "")
	c, err := net.FilePacketConn(f)
	_ = f.Close()
	if err != nil {
		return err
	}
	defer c.Close()
	id, deadline := flows.Token()&0xffff, time.Now().Add(timeout)
	buf := make([]byte, 1500)
	wait := 100 * time.Millisecond
	for seq := 1; ; seq++ {
		b, err := (&icmp.Message{Type: request, Body: &icmp.Echo{ID: int(id), Seq: seq, Data: []byte("hawser")}}).Marshal(nil)
		if err != nil {
			return err
		}
		if _, err := c.WriteTo(b, &net.IPAddr{IP: to.AsSlice()}); err != nil {
			return err
		}
		until := time.Now().Add(wait)
		if until.After(deadline) {
			until = deadline
		}
		_ = c.SetReadDeadline(until)
		for {
			n, peer, err := c.ReadFrom(buf)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return err
			}
			m, err := icmp.ParseMessage(proto, buf[:n])
			if err != nil || m.Type != reply {
				continue // a raw socket receives everything
			}
			answer, ok := m.Body.(*icmp.Echo)
			if addr, isAddr := peer.(*net.IPAddr); ok && isAddr && answer.ID == int(id) && addr.IP.Equal(to.AsSlice()) {
				return nil
			}
		}
		if !time.Now().Before(deadline) {
			return os.ErrDeadlineExceeded
		}
		wait *= 2
	}
}

// Summary counts probes for people.
func Summary(probes []*Probe) string {
	var reached int
	kinds := map[string]int{}
	for _, p := range probes {
		if p.Reached {
			reached++
		}
		kinds[p.Port.Protocol]++
	}
	var parts []string
	for _, k := range []string{TCP, UDP, ICMP} {
		parts = append(parts, fmt.Sprintf("%d %s", kinds[k], k))
	}
	return fmt.Sprintf("%d probes (%s), %d reached, %d denied", len(probes), strings.Join(parts, ", "), reached, len(probes)-reached)
}
