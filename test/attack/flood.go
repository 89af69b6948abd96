package main

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"
)

// survives is what becomes of a neighbour whom a flood must not harm; lost is the other outcome.
const (
	survives = "survives"
	lost     = "lost"
)

// floodRows have a pod take more of what all pods of a node share than there is. Their neighbours
// must not notice.
func floodRows() []row {
	return []row{
		{who: inPod, what: "flood of flows, and a neighbour's connections", wanted: survives, try: (*scene).flowFlood},
		{who: inPod, what: "flood of fragments, and a neighbour's", wanted: survives, try: (*scene).fragmentFlood},
	}
}

// conversation is a connection whose client admits no new ones: what its server sends arrives only
// as a reply.
type conversation struct {
	name           string
	client, server net.Conn
	close          func()
}

func (s *scene) converse(from, to *pod) (*conversation, error) {
	l, err := to.ns.Listen(9000)
	if err != nil {
		return nil, err
	}
	defer l.Close()
	client, err := from.ns.Dial("tcp", s.at(to.addr, 9000), timeout)
	if err != nil {
		return nil, fmt.Errorf("%w: %s to %s: %w", errControl, from.name, to.name, err)
	}
	server, err := l.Accept()
	if err != nil {
		return nil, errors.Join(err, client.Close())
	}
	c := &conversation{name: from.name + " to " + to.name, client: client, server: server}
	c.close = func() { _, _ = client.Close(), server.Close() }
	return c, nil
}

// answered says whether what the server says gets to the client.
func (c *conversation) answered(timeout time.Duration) (bool, error) {
	k := newToken()
	if _, err := c.server.Write(k[:]); err != nil {
		return false, err
	}
	got := make([]byte, len(k))
	if err := c.client.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return false, err
	}
	_, err := io.ReadFull(c.client, got)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return false, nil
	}
	return err == nil && token(got) == k, err
}

// flowFlood opens four times as many flows as the node remembers. Each has two packets: the kernel
// takes what was used once for less worth keeping than what was used again.
func (s *scene) flowFlood() (string, error) {
	evil, open, closed := s.pods["evil1"], s.pods["open1"], s.pods["closed1"]
	var all []*conversation
	for _, peer := range []string{"open1", "open2"} {
		c, err := s.converse(closed, s.pods[peer])
		if err != nil {
			return "", err
		}
		defer c.close()
		if ok, err := c.answered(timeout); !ok || err != nil {
			return "", errors.Join(fmt.Errorf("%w: the server of %s is not reached", errControl, c.name), err)
		}
		all = append(all, c)
	}
	flood := outOf(evil, datagram(s.at(evil.addr, fromPort), s.at(open.addr, toPort)))
	if err := s.check(control{"evil1 to open1", flood, open.eth}); err != nil {
		return "", err
	}
	for i := range 4 * flowEntries {
		b := udpPacket(s.at(evil.addr, uint16(1024+i%50000)), s.at(open.addr, uint16(2000+i/50000)), nil)
		f := ethernet(evil.gateway, evil.eth.mac, typeOf(b), b)
		if err := evil.eth.send(f, f); err != nil {
			return "", err
		}
	}
	for _, c := range all {
		if ok, err := c.answered(5 * time.Second); !ok || err != nil {
			return lost + ": " + c.name, err
		}
	}
	return survives, nil
}

// fragmentFlood sends first fragments between the two of a neighbour.
func (s *scene) fragmentFlood() (string, error) {
	evil, open, friend, victim := s.pods["evil1"], s.pods["open1"], s.pods["friend1"], s.pods["victim1"]
	src, dst := s.at(friend.addr, fromPort), s.at(victim.addr, toPort)
	parts := fragments(friend, func(k token) [][]byte { return cut(src, dst, k) })
	if err := s.check(control{"friend1 to victim1 in fragments", parts, victim.eth}); err != nil {
		return "", err
	}
	k := newToken()
	victim.eth.watch(k)
	defer victim.eth.forget(k)
	frames := parts.frames(k)
	if err := friend.eth.send(frames[0]); err != nil {
		return "", err
	}
	for range 4 * fragmentEntries {
		b := cut(s.at(evil.addr, fromPort), s.at(open.addr, toPort), token{})[0]
		if err := evil.eth.send(ethernet(evil.gateway, evil.eth.mac, typeOf(b), b)); err != nil {
			return "", err
		}
	}
	if err := friend.eth.send(frames[1]); err != nil {
		return "", err
	}
	for deadline := time.Now().Add(5 * time.Second); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
		if victim.eth.of(k).count == 2 {
			return survives, nil
		}
	}
	return lost, nil
}
