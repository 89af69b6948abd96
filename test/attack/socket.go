package main

import (
	"errors"
	"fmt"
	"os"
)

// atSocket is a process without rights that can see the agent's socket.
const atSocket = "agent's socket"

// socketRows are what such a process tries.
func socketRows() []row {
	var rows []row
	add := func(what string, uid, gid int, open os.FileMode) {
		rows = append(rows, row{who: atSocket, what: what, wanted: refused, once: true, when: mode.plain, try: func(s *scene) (got string, err error) {
			n1 := s.nodes["n1"]
			if err := s.as(&n1.place, 0, 0, userGet, n1.api, "/v1/endpoint"); err != nil {
				return "", fmt.Errorf("%w: root gets no answer: %w", errControl, err)
			}
			if open != 0 {
				before, err := os.Stat(n1.api)
				if err == nil {
					err = os.Chmod(n1.api, open)
				}
				if err != nil {
					return "", err
				}
				defer func() { err = errors.Join(err, os.Chmod(n1.api, before.Mode().Perm())) }()
			}
			return outcomeOf(s.as(&n1.place, uid, gid, userGet, n1.api, "/v1/endpoint"))
		}})
	}
	add("a user asks", unprivileged, unprivileged, 0)
	add("a user of root's group asks", unprivileged, 0, 0)
	add("a user asks, the socket open to all by accident", unprivileged, unprivileged, 0o666)
	return rows
}
