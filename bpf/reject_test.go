package bpf_test

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
)

// refused is a packet that is counted as dropped for want of a backend, and answered.
func refused() want { return want{actRedirect, datapath.ReasonNoBackend, out} }

// unreachable returns the error with which a host says of a packet to it that the port is closed,
// as far as a packet's first eight bytes of transport go.
func unreachable(in frame, quoted []byte) []byte {
	f := frame{ethSrc: in.ethDst, ethDst: in.ethSrc, src: in.dst, dst: in.src, proto: icmp, icmpType: 3}
	header := 20
	if in.src.Is6() {
		f.proto, f.icmpType, header = icmp6, 1, 40
	}
	f.payload = quoted[14 : 14+header+8]
	b := f.bytes()
	l4 := b[14+header:]
	l4[1] = 3
	if in.src.Is6() {
		l4[1] = 4
		return withChecksum(b)
	}
	binary.BigEndian.PutUint16(b[14+6:], 0x4000) // do not fragment
	b[14+10], b[14+11] = 0, 0
	binary.BigEndian.PutUint16(b[14+10:], ^checksum(b[14:34]))
	binary.BigEndian.PutUint16(l4[2:], ^checksum(l4))
	return b
}

// reset returns the answer to a segment, by RFC 9293.
func reset(in frame, seq, ack uint32, flags uint8) []byte {
	b := in.bytes()
	l4 := b[14+20:]
	if in.src.Is6() {
		l4 = b[14+40:]
	}
	binary.BigEndian.PutUint32(l4[4:], seq)
	binary.BigEndian.PutUint32(l4[8:], ack)
	l4[13] = flags
	if in.src.Is4() {
		binary.BigEndian.PutUint16(b[14+6:], 0x4000)
		b[14+10], b[14+11] = 0, 0
		binary.BigEndian.PutUint16(b[14+10:], ^checksum(b[14:34]))
	}
	return withChecksum(b)
}

// TestReject: whoever asks for a service without backends gets an error, exactly as by a host
// whose port is closed.
func TestReject(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n, vip := newServing(t, v6)
		for _, proto := range []uint8{tcp, udp, sctp} {
			n.publish(vip, proto, nil)
		}
		in := frame{ethSrc: aMAC, ethDst: aHost, src: a, dst: vip, sport: 4000, dport: vipPort, payload: bytes.Repeat([]byte("x"), 33)}
		ask := func(what string, f frame, change func(l4 []byte)) (asked []byte, got result) {
			t.Helper()
			l4 := 14 + 20
			if v6 {
				l4 = 14 + 40
			}
			raw := f.bytes()
			if change != nil {
				change(raw[l4:])
			}
			asked = withChecksum(raw)
			return asked, n.expect(what, refused(), func() result { return n.fromABytes(asked) })
		}
		same := func(what string, got result, want []byte) {
			t.Helper()
			if !bytes.Equal(got.out, want) {
				t.Errorf("%s: answer\n%x, want\n%x", what, got.out, want)
			}
		}
		for _, f := range []frame{{proto: udp}, {proto: sctp}} {
			x := in
			x.proto = f.proto
			asked, got := ask("a datagram", x, nil)
			same("a datagram", got, unreachable(x, asked))
		}
		back := frame{ethSrc: aHost, ethDst: aMAC, src: vip, dst: a, proto: tcp, sport: vipPort, dport: 4000}
		numbers := func(l4 []byte) {
			binary.BigEndian.PutUint32(l4[4:], 0xfffffff0)
			binary.BigEndian.PutUint32(l4[8:], 0x12345678)
		}
		x := in
		x.proto, x.tcpFlags = tcp, syn
		_, got := ask("SYN with data", x, numbers)
		same("SYN with data", got, reset(back, 0, 0xfffffff0+33+1-1<<32, rst|ack))
		x.payload = nil
		_, got = ask("SYN", x, numbers)
		same("SYN", got, reset(back, 0, 0xfffffff1, rst|ack))
		x.tcpFlags = fin
		_, got = ask("FIN", x, numbers)
		same("FIN", got, reset(back, 0, 0xfffffff1, rst|ack))
		x.tcpFlags, x.payload = ack, []byte("something")
		_, got = ask("data", x, numbers)
		same("data", got, reset(back, 0x12345678, 0, rst))

		// What gets no answer: a reset, fragments, and what is not in the usual form.
		drop := dropped(datapath.ReasonNoBackend, out)
		for what, f := range map[string]frame{
			"reset":          {proto: tcp, tcpFlags: rst},
			"first fragment": {proto: udp, more: true, fragID: 9, payload: make([]byte, 16)},
			"later fragment": {proto: udp, fragOffset: 24, fragID: 9, payload: make([]byte, 16)},
		} {
			f.ethSrc, f.ethDst, f.src, f.dst, f.sport, f.dport = aMAC, aHost, a, vip, 4001, vipPort
			if what == "later fragment" {
				first := f
				first.fragOffset, first.more = 0, true
				n.fromABytes(first.bytes())
			}
			n.expect(what, drop, func() result { return n.fromABytes(f.bytes()) })
		}
		// Those that another node would serve, and those whom it would not: nothing.
		n.publish(vip, udp, func(s *datapath.Service) { s.RemoteOnly = true })
		x = in
		x.proto = udp
		n.expect("elsewhere", dropped(datapath.ReasonNoLocalBackend, out), func() result { return n.fromABytes(withChecksum(x.bytes())) })
		for _, f := range n.flows() {
			t.Errorf("a flow was remembered: %+v", f)
		}
	})
}

// TestRejectLimit: a flood is not answered in full, and does not cost others their answers.
func TestRejectLimit(t *testing.T) {
	n := newNode(t, testConfig())
	n.allowAll()
	n.publish(vip4, udp, nil)
	in := withChecksum(frame{ethSrc: aMAC, ethDst: aHost, src: a4, dst: vip4, proto: udp, sport: 4000, dport: vipPort}.bytes())
	answered, silent := 0, 0
	for range 20000 {
		switch n.fromABytes(in).action {
		case actRedirect:
			answered++
		case actDrop:
			silent++
		}
		if silent > 0 {
			break
		}
	}
	if answered < 1000 || silent == 0 {
		t.Errorf("%d answered, %d not", answered, silent)
	}
	other := withChecksum(frame{ethSrc: bMAC, ethDst: bHost, src: b4, dst: vip4, proto: udp, sport: 4000, dport: vipPort}.bytes())
	n.expect("another pod, meanwhile", refused(), func() result { return n.fromBBytes(other) })
	waitTick()
	n.expect("a second later", refused(), func() result { return n.fromABytes(in) })
}

// TestSourceRanges: of a service's clients, those within its ranges are served.
func TestSourceRanges(t *testing.T) {
	families(t, func(t *testing.T, v6 bool, a, b, r, w, router netip.Addr) {
		n, vip := newServing(t, v6)
		for what, row := range map[string]struct {
			ranges []netip.Prefix
			want   want
		}{
			"itself":           {[]netip.Prefix{netip.PrefixFrom(a, a.BitLen())}, delivered()},
			"its network":      {[]netip.Prefix{netip.PrefixFrom(a, a.BitLen()-8).Masked()}, delivered()},
			"everybody":        {[]netip.Prefix{netip.PrefixFrom(a, 0).Masked()}, delivered()},
			"no source":        {nil, dropped(datapath.ReasonSourceRange, out)},
			"another address":  {[]netip.Prefix{netip.PrefixFrom(b, b.BitLen())}, dropped(datapath.ReasonSourceRange, out)},
			"several, one its": {[]netip.Prefix{netip.PrefixFrom(a, a.BitLen()-4).Masked(), netip.PrefixFrom(b, b.BitLen()), netip.PrefixFrom(w, w.BitLen())}, delivered()},
		} {
			slices.SortFunc(row.ranges, netip.Prefix.Compare)
			change := func(s *datapath.Service) { s.LimitSources, s.Sources = true, row.ranges }
			n.publish(vip, udp, change, netip.AddrPortFrom(b, 53))
			f := frame{ethSrc: aMAC, ethDst: aHost, src: a, dst: vip, proto: udp, sport: uint16(rand.IntN(60000) + 1), dport: vipPort}
			n.expect(what, row.want, func() result { return n.fromABytes(withChecksum(f.bytes())) })
			// One that is under way goes on.
			n.publish(vip, udp, func(s *datapath.Service) { s.LimitSources = true }, netip.AddrPortFrom(b, 53))
			n.expect(what+" afterwards", row.want, func() result { return n.fromABytes(withChecksum(f.bytes())) })
		}
	})
}
