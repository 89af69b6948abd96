package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"time"
)

// inHostNetwork is a process without rights in a node's own network, as in a pod with hostNetwork.
const inHostNetwork = "host network"

// hostNetworkRows are what a process without rights in a node's network tries.
func hostNetworkRows() []row {
	var rows []row
	add := func(r row) {
		r.who = inHostNetwork
		rows = append(rows, r)
	}
	add(row{what: "raw sockets", wanted: refused, once: true, when: mode.plain, try: func(s *scene) (string, error) {
		if err := s.as(&s.nodes["n1"].place, 0, 0, userRaw); err != nil {
			return "", fmt.Errorf("%w: root gets none: %w", errControl, err)
		}
		return outcomeOf(s.as(&s.nodes["n1"].place, unprivileged, unprivileged, userRaw))
	}})
	for _, t := range tunnelEnds() {
		add(row{what: "vxlan to " + t.name, wanted: dropped, try: func(s *scene) (string, error) { return s.vxlanFromHost(t) }})
	}
	for _, c := range claims()[:2] {
		for _, victim := range []string{"victim1", "victim2"} {
			add(row{what: fmt.Sprintf("source %s to %s", c.name, victim), wanted: dropped,
				try: func(s *scene) (string, error) { return s.forgedFromHost(c, victim) }})
		}
	}
	return rows
}

// refused is what became of a call.
const refused = "refused"

// outcomeOf says whether a call of an unprivileged process was refused.
func outcomeOf(err error) (string, error) {
	switch {
	case errors.Is(err, errControl):
		return "", err
	case err != nil:
		return refused, nil
	}
	return "allowed", nil
}

// userStrike is strike with a datagram of an unprivileged process in n1's network.
func (s *scene) userStrike(at witness, source string, to netip.AddrPort, payload func(token) []byte, controls ...control) (string, error) {
	n1 := s.nodes["n1"]
	k := newToken()
	n1.server.watch(k)
	defer n1.server.forget(k)
	if err := s.as(&n1.place, unprivileged, unprivileged, userSend, "", s.at(n1.addr, nodePort).String(), hex.EncodeToString(k[:])); err != nil {
		return "", fmt.Errorf("%w: the process cannot send: %w", errControl, err)
	}
	for deadline := time.Now().Add(timeout); n1.server.of(k).count == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			return "", fmt.Errorf("%w: the process is not reached by its own node", errControl)
		}
	}
	for _, c := range controls {
		if err := s.check(c); err != nil {
			return "", err
		}
	}
	a := newToken()
	at.watch(a)
	defer at.forget(a)
	if err := s.as(&n1.place, unprivileged, unprivileged, userSend, source, to.String(), hex.EncodeToString(payload(a))); errors.Is(err, errControl) {
		return "", err
	} // the kernel may refuse to send it
	for _, c := range controls {
		if err := s.check(c); err != nil {
			return "", fmt.Errorf("after the attack: %w", err)
		}
	}
	return s.verdict(at, a)
}

func (s *scene) vxlanFromHost(t tunnelEnd) (string, error) {
	victim, friend := s.pods[t.victim], s.pods[t.friend]
	return s.userStrike(victim.eth, "", netip.AddrPortFrom(t.addr(s), tunnelPort), s.encapsulated(friend, friend.identity, victim),
		s.tunnelControls(victim)...)
}

// forgedFromHost binds an address that is not the node's: everybody may.
func (s *scene) forgedFromHost(c claim, dst string) (string, error) {
	victim := s.pods[dst]
	return s.userStrike(victim.eth, netip.AddrPortFrom(c.addr(s), fromPort).String(), s.at(victim.addr, toPort),
		func(k token) []byte { return k[:] }, s.friendly(victim))
}
