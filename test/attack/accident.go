package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// accident is not an attack: something on the node removes what enforces, or has left what does not
// fit.
const accident = "accident"

// soon is within how long a node notices that its filters are gone.
const soon = time.Second

const closedSoon = "closed within 1s"

// accidentRows are what happens to nodes.
func accidentRows() []row {
	return []row{
		{who: accident, what: "filters of a victim's interface are removed", wanted: closedSoon, try: func(s *scene) (string, error) {
			victim := s.pods["victim1"]
			attack := toNode(s.external, victim.node, datagram(s.at(s.external.addr, fromPort), s.at(victim.addr, toPort)))
			return s.unfiltered(victim, victim, attack, s.honest(s.external, s.pods["open1"]), s.friendly(victim))
		}},
		{who: accident, what: "filters of an adversary's interface are removed", wanted: closedSoon, try: func(s *scene) (string, error) {
			evil, victim, friend := s.pods["evil1"], s.pods["victim1"], s.pods["friend1"]
			attack := outOf(evil, datagram(s.at(friend.addr, fromPort), s.at(victim.addr, toPort)))
			return s.unfiltered(evil, victim, attack, s.plain(evil, s.pods["open1"]), s.friendly(victim))
		}},
		{who: accident, what: "agent starts over maps of an older layout", wanted: dropped, once: true, when: mode.plain, try: func(s *scene) (string, error) { return s.otherLayout("maps-v1") }},
		{who: accident, what: "agent starts over maps of a newer layout", wanted: dropped, once: true, when: mode.plain, try: func(s *scene) (string, error) { return s.otherLayout("maps-v9999") }},
	}
}

// unfiltered removes the filters of a pod's interface and sees how long an attack gets through.
// Afterwards everything is as before.
func (s *scene) unfiltered(of, victim *pod, attack shot, controls ...control) (string, error) {
	if got, err := s.strike(victim.eth, attack, controls...); err != nil || got != dropped {
		return got, err
	}
	err := machine.WithNetlink(of.node.path, func(h *netlink.Handle) error {
		l, err := h.LinkByName(of.hostName)
		if err != nil {
			return err
		}
		return removeFilters(h, l)
	})
	if err != nil {
		return "", err
	}
	removed := time.Now()
	open := time.Duration(0)
	for time.Since(removed) < open+soon/2 || time.Since(removed) < soon {
		k := newToken()
		victim.eth.watch(k)
		if err := attack.from.send(attack.frames(k)...); err != nil {
			return "", err
		}
		time.Sleep(5 * time.Millisecond)
		if victim.eth.of(k).count > 0 {
			open = time.Since(removed)
		}
		victim.eth.forget(k)
		if open > 10*time.Second {
			return "still open after 10s", nil
		}
	}
	if open > soon {
		return fmt.Sprintf("closed after %.1fs", open.Seconds()), nil
	}
	for _, c := range controls {
		if err := s.check(c); err != nil {
			return "", fmt.Errorf("after the accident: %w", err)
		}
	}
	return closedSoon, nil
}

// removeFilters takes the queueing discipline away that holds the filters.
func removeFilters(h *netlink.Handle, l netlink.Link) error {
	all, err := h.QdiscList(l)
	if err != nil {
		return err
	}
	for _, q := range all {
		if q.Type() == "clsact" {
			return h.QdiscDel(q)
		}
	}
	return errors.New("there is no clsact")
}

// otherLayout has the agent find maps under the name of another layout, in use by the programs that
// are in place, as after a change of version. What is dropped otherwise must be dropped throughout.
func (s *scene) otherLayout(name string) (string, error) {
	evil, victim, n1 := s.pods["evil1"], s.pods["victim1"], s.nodes["n1"]
	families := []*scene{{stage: s.stage, ctx: s.ctx}, {stage: s.stage, ctx: s.ctx, v6: true}}
	attacks := func(f *scene) []shot {
		return []shot{
			outOf(evil, datagram(f.at(evil.addr, fromPort), f.at(victim.addr, toPort))),
			toNode(s.external, n1, datagram(f.at(s.external.addr, fromPort), f.at(victim.addr, toPort))),
		}
	}
	// The agent before this one may still be taking over, and has the maps of the one before it.
	var layouts []string
	for deadline := time.Now().Add(timeout); len(layouts) != 1; time.Sleep(10 * time.Millisecond) {
		var err error
		if layouts, err = filepath.Glob(filepath.Join(s.mapDir(n1), "maps-*")); err != nil {
			return "", err
		}
		if time.Now().After(deadline) {
			return "", fmt.Errorf("%w: layouts in %s: %v", errControl, s.mapDir(n1), layouts)
		}
	}
	if err := s.endAgent("n1"); err != nil {
		return "", err
	}
	if err := os.Rename(layouts[0], filepath.Join(s.mapDir(n1), name)); err != nil {
		return "", err
	}
	k := newToken()
	victim.eth.watch(k)
	defer victim.eth.forget(k)
	up := make(chan error, 1)
	go func() { up <- s.sandbox.Up(s.ctx) }()
	var err error
	for started := false; !started; {
		select {
		case err = <-up:
			started = true
		default:
		}
		for _, f := range families {
			for _, a := range attacks(f) {
				if err := a.from.send(a.frames(k)...); err != nil {
					return "", err
				}
			}
		}
		time.Sleep(2 * time.Millisecond)
	}
	if err != nil {
		return "the agent does not start: " + strings.ReplaceAll(err.Error(), "\n", " "), nil
	}
	for _, f := range families {
		for _, c := range []control{f.friendly(victim), f.plain(evil, s.pods["open1"]), f.honest(s.external, s.pods["open1"]), f.plain(s.pods["friend2"], victim)} {
			if err := f.check(c); err != nil {
				return "", fmt.Errorf("after the start: %w", err)
			}
		}
	}
	return s.verdict(victim.eth, k)
}

// agent is the process of a node's agent.
func (s *scene) agent(node string) (p machine.Process, err error) {
	st, err := s.sandbox.Status(s.ctx)
	if err != nil {
		return p, err
	}
	for _, n := range st.Nodes {
		if n.Name == node {
			p.PID = n.AgentPID
		}
	}
	p.Start, _, err = machine.ReadStat(p.PID)
	return p, err
}

// endAgent kills the agent of a node and waits for its end.
func (s *scene) endAgent(node string) error {
	p, err := s.agent(node)
	if err != nil {
		return err
	}
	return errors.Join(p.Send(unix.SIGKILL), p.WaitEnded(timeout))
}
