package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"

	"github.com/hawser-net/hawser/internal/sandbox"
)

// reuseRows are about an address that is given to another pod while flows with its former owner are
// remembered.
func reuseRows() []row {
	return []row{
		{who: inPod, what: "go on with a flow to the former owner of an address", wanted: dropped, once: true, try: func(s *scene) (string, error) { return s.reuse(false) }},
		{who: inPod, what: "answer the former owner of an address", wanted: dropped, once: true, try: func(s *scene) (string, error) { return s.reuse(true) }},
	}
}

// reuse opens flows with a pod, has another one get its addresses, and goes on with the flows, in
// both families.
func (s *scene) reuse(opened bool) (string, error) {
	spec := func(name, app string) sandbox.PodSpec {
		return sandbox.PodSpec{Name: name, Node: "n1", Labels: map[string]string{"app": app}, Ports: []uint16{7}}
	}
	spare, err := s.run(s.ctx, spec("spare1", "open"))
	if err != nil {
		return "", err
	}
	former, err := s.run(s.ctx, spec("former1", "open"))
	if err != nil {
		return "", err
	}
	evil := s.pods["evil1"]
	families := []*scene{{stage: s.stage, ctx: s.ctx}, {stage: s.stage, ctx: s.ctx, v6: true}}
	// The adversary's side of each flow, which is the same with whoever has the address.
	flow := func(f *scene, dst *pod) shot {
		return outOf(evil, datagram(f.at(evil.addr, toPort), f.at(dst.addr, fromPort)))
	}
	for _, f := range families {
		if opened {
			opening := outOf(former, datagram(f.at(former.addr, fromPort), f.at(evil.addr, toPort)))
			if err := f.check(control{"former1 to evil1", opening, evil.eth}); err != nil {
				return "", err
			}
		}
		if err := f.check(control{"evil1 to former1", flow(f, former), former.eth}); err != nil {
			return "", err
		}
	}
	owned, before := former.addr, spare.addr
	if err := errors.Join(s.remove(s.ctx, former), s.remove(s.ctx, spare)); err != nil {
		return "", err
	}
	// Addresses are given out in their order: taking the one before has the wanted one come next.
	for _, a := range before {
		if err := s.nodes["n1"].call(s.ctx, http.MethodPost, "/v1/ipam/"+a.String()); err != nil {
			return "", err
		}
	}
	next, err := s.run(s.ctx, spec("next1", "victim"))
	for _, a := range before {
		err = errors.Join(err, s.nodes["n1"].call(s.ctx, http.MethodDelete, "/v1/ipam/"+a.String()))
	}
	if err != nil {
		return "", err
	}
	got := dropped
	if next.addr != owned {
		err = fmt.Errorf("%w: the next pod has %v, not %v", errControl, next.addr, owned)
	}
	for _, f := range families {
		if err == nil && got == dropped {
			got, err = f.strike(next.eth, flow(f, next), f.friendly(next), f.plain(evil, s.pods["open1"]))
		}
	}
	return got, errors.Join(err, s.remove(s.ctx, next))
}

// call asks the node's agent to do something.
func (n *node) call(ctx context.Context, method, path string) error {
	resp, err := n.request(ctx, method, path)
	if err != nil {
		return err
	}
	return resp.Body.Close()
}
