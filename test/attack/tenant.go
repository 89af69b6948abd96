package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/hawser-net/hawser/internal/sandbox"
)

// asTenant is a user who may write policies and label pods in one namespace, tenant.
const asTenant = "tenant"

// tenantRows are what a tenant tries.
func tenantRows() []row {
	var rows []row
	add := func(r row) {
		r.who, r.once, r.when = asTenant, true, mode.plain
		rows = append(rows, r)
	}
	const selectDefault = `{matchLabels: {"k8s:io.kubernetes.pod.namespace": default, app: victim}}`
	for _, p := range []struct{ name, selector string }{
		{"policy that names another namespace's pods", selectDefault},
		{"policy that selects other namespaces by an expression", `{matchExpressions: [{key: "k8s:io.kubernetes.pod.namespace", operator: NotIn, values: [tenant]}]}`},
		{"policy that selects everything", `{}`},
	} {
		add(row{what: p.name + ", and opens them", wanted: dropped, try: func(s *scene) (string, error) { return s.foreignPolicy(p.selector) }})
	}
	for _, l := range []struct {
		name   string
		labels map[string]string
		wanted string
	}{
		{"a friend's label", map[string]string{"app": "friend"}, dropped},
		{"the label of a friend's namespace", map[string]string{"app": "friend", "io.kubernetes.pod.namespace": "default"}, refused},
		{"the label of a friend's namespace, with its source", map[string]string{"app": "friend", "k8s:io.kubernetes.pod.namespace": "default"}, refused},
		{"a label of a namespace", map[string]string{"app": "friend", "io.cilium.k8s.namespace.labels.team": "a"}, refused},
		{"a reserved label", map[string]string{"reserved.host": ""}, refused},
	} {
		add(row{what: "pod with " + l.name, wanted: l.wanted, try: func(s *scene) (string, error) { return s.labelled(l.labels) }})
	}
	add(row{what: "policy of which a part cannot be enforced, on its own pod", wanted: dropped, try: (*scene).halfPolicy})
	add(row{what: "flood of rules, and a neighbour's new policy", wanted: dropped, try: (*scene).ruleFlood})
	return rows
}

// bothFamilies plays something in IPv4 and then in IPv6, and returns the first outcome that is not
// wanted.
func (s *scene) bothFamilies(wanted string, try func(*scene) (string, error)) (string, error) {
	for _, v6 := range []bool{false, true} {
		if got, err := try(&scene{stage: s.stage, ctx: s.ctx, v6: v6}); err != nil || got != wanted {
			return got, err
		}
	}
	return wanted, nil
}

// policy is one of a namespace, about the pods of a selector. It admits what from selects.
func policy(name, namespace, selector, from string) string {
	return fmt.Sprintf(`---
apiVersion: cilium.io/v2
kind: CiliumNetworkPolicy
metadata: {name: %s, namespace: %s}
spec:
  endpointSelector: %s
  ingress:
    - %s
`, name, namespace, selector, from)
}

// guest runs a pod of the tenant beside the victims.
func (s *scene) guest(name string, labels map[string]string) (*pod, error) {
	return s.run(s.ctx, sandbox.PodSpec{Name: name, Namespace: "tenant", Node: "n1", Labels: labels, Ports: []uint16{7}})
}

// until plays a strike until it ends as wanted or timeout is over: there is no promise how soon a
// policy counts.
func until(wanted string, strike func() (string, error)) error {
	for deadline := time.Now().Add(timeout); ; {
		got, err := strike()
		if err != nil {
			return err
		}
		if strings.HasPrefix(got, wanted) {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("%w: the policy does not count: %s", errControl, got)
		}
	}
}

// foreignPolicy has a tenant's policy select others' pods. That it counts is seen at a pod of the
// tenant's own.
func (s *scene) foreignPolicy(selector string) (got string, err error) {
	evil, victim := s.pods["evil1"], s.pods["victim1"]
	guest, err := s.guest("guest1", map[string]string{"app": "victim"})
	if err != nil {
		return "", err
	}
	closed := policy("closed", "tenant", "{}", "fromEndpoints: [{matchLabels: {app: absent}}]")
	if err := s.writePolicy("tenant", closed); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.removePolicy("tenant"), s.remove(s.ctx, guest)) }()
	atGuest := func() (string, error) {
		f := &scene{stage: s.stage, ctx: s.ctx}
		return f.strike(guest.eth, f.plain(evil, guest).shot, f.friendly(victim))
	}
	if err := until(dropped, atGuest); err != nil {
		return "", err
	}
	// Agents may refuse the first, and read the directory as a whole.
	err = errors.Join(s.writePolicy("tenant", policy("all", "tenant", selector, "fromEntities: [all]")),
		s.writePolicy("tenant-own", policy("own", "tenant", "{}", "fromEntities: [all]")))
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.removePolicy("tenant-own")) }()
	if err := until(arrived, atGuest); err != nil {
		return "", err
	}
	return s.bothFamilies(dropped, func(f *scene) (string, error) {
		return f.strike(victim.eth, f.plain(evil, victim).shot, f.friendly(victim), f.plain(evil, guest))
	})
}

// labelled has a tenant's pod pass for a friend.
func (s *scene) labelled(labels map[string]string) (got string, err error) {
	guest, err := s.guest("guest1", labels)
	if err != nil && strings.Contains(err.Error(), "invalid labels") {
		return refused, nil
	}
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.remove(s.ctx, guest)) }()
	return s.bothFamilies(dropped, func(f *scene) (string, error) {
		for _, victim := range []string{"victim1", "victim2"} {
			v := s.pods[victim]
			if got, err := f.strike(v.eth, f.plain(guest, v).shot, f.plain(guest, s.pods["open"+v.node.name[1:]]), f.friendly(v)); err != nil || got != dropped {
				return got, err
			}
		}
		return dropped, nil
	})
}

// halfPolicy is a policy with a rule that needs more than the network sees. Whom it selects must be
// isolated all the same.
func (s *scene) halfPolicy() (got string, err error) {
	evil, victim := s.pods["evil1"], s.pods["victim1"]
	guest, err := s.guest("guest1", map[string]string{"app": "half"})
	if err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.remove(s.ctx, guest)) }()
	if err := s.check(s.plain(evil, guest)); err != nil {
		return "", err
	}
	text := policy("half", "tenant", "{matchLabels: {app: half}}", `fromEndpoints: [{matchLabels: {app: absent}}]
      toPorts: [{ports: [{port: "80", protocol: TCP}], rules: {http: [{method: GET}]}}]`)
	if err := s.writePolicy("tenant", text); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.removePolicy("tenant")) }()
	strike := func() (string, error) {
		return s.strike(guest.eth, s.plain(evil, guest).shot, s.friendly(victim), s.plain(evil, s.pods["open1"]))
	}
	if err := until(dropped, strike); err != nil {
		return arrived, nil
	}
	return dropped, nil
}

// ruleFlood has a tenant's policy take more entries than all pods of a node have together. A policy
// that a neighbour gets afterwards counts, and the tenant's pod, for which there is no room, is not
// open.
func (s *scene) ruleFlood() (got string, err error) {
	evil, victim := s.pods["evil1"], s.pods["victim1"]
	guest, err := s.guest("guest1", map[string]string{"app": "flood"})
	if err != nil {
		return "", err
	}
	late, err := s.run(s.ctx, sandbox.PodSpec{Name: "late1", Node: "n1", Labels: map[string]string{"app": "late"}, Ports: []uint16{7}})
	if err != nil {
		return "", errors.Join(err, s.remove(s.ctx, guest))
	}
	defer func() { err = errors.Join(err, s.remove(s.ctx, guest), s.remove(s.ctx, late)) }()
	var rules strings.Builder
	for i := range 2 * policyEntries / 32 {
		if i > 0 {
			rules.WriteString("    - ")
		}
		rules.WriteString("fromEntities: [all]\n      toPorts:\n        - ports:\n")
		for j := range 32 {
			// Every other one, or they would be joined to ranges.
			fmt.Fprintf(&rules, "            - {port: \"%d\", protocol: TCP}\n", 10000+2*(32*i+j))
		}
	}
	if err := s.writePolicy("tenant", policy("flood", "tenant", "{}", rules.String())); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.removePolicy("tenant")) }()
	// Nothing shows when an agent has tried. The rules admit no UDP, so they are there, or refused,
	// when none arrives any more.
	if err := until(dropped, func() (string, error) { return s.strike(guest.eth, s.plain(evil, guest).shot, s.friendly(victim)) }); err != nil {
		return "the tenant's own pod is open", nil
	}
	if err := s.writePolicy("late", policy("late", "default", "{matchLabels: {app: late}}", "fromEndpoints: [{matchLabels: {app: friend}}]")); err != nil {
		return "", err
	}
	defer func() { err = errors.Join(err, s.removePolicy("late")) }()
	if err := until(dropped, func() (string, error) { return s.strike(late.eth, s.plain(evil, late).shot, s.friendly(victim)) }); err != nil {
		return "the neighbour's policy does not count", nil
	}
	return s.bothFamilies(dropped, func(f *scene) (string, error) {
		return f.strike(late.eth, f.plain(evil, late).shot, f.plain(s.pods["friend1"], late), f.friendly(victim))
	})
}
