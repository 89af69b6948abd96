package matrix

import (
	"net/netip"
	"testing"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/policy/oracle"
)

func party(name, app string, addrs ...string) *Party {
	p := &Party{Name: name}
	if app != "" {
		p.Labels = labels.NewSet(labels.New("k8s", "app", app), labels.New("k8s", "io.kubernetes.pod.namespace", "ns"))
	}
	for _, a := range addrs {
		p.Addrs = append(p.Addrs, netip.MustParseAddr(a))
	}
	return p
}

// Every ordered pair is probed by each family that both have, and the oracle is asked with the
// right protocol number and type.
func TestPlan(t *testing.T) {
	typ := func(n string) *v2.IntOrString { return &v2.IntOrString{Text: n} }
	rule := &v2.Rule{
		EndpointSelector: &v2.LabelSelector{MatchLabels: map[string]v2.LabelValue{"app": "web"}},
		Ingress: []v2.IngressRule{
			{FromEndpoints: []v2.LabelSelector{{}}, ToPorts: []v2.PortRule{{Ports: []v2.PortProtocol{{Port: "80", Protocol: "TCP"}}}}},
			{FromCIDR: []string{"fd00::/8"}, ICMPs: []v2.ICMPRule{{Fields: []v2.ICMPField{{Family: "IPv6", Type: typ("128")}}}}},
		},
	}
	j := Evaluator{Policies: []oracle.Policy{{Name: "p", Namespace: "ns", Rules: []*v2.Rule{rule}}}}
	web, db, world := party("web", "web", "10.0.0.1", "fd00::1"), party("db", "db", "10.0.0.2", "fd00::2"), party("world", "", "192.0.2.1", "fd01::1")
	four := party("four", "db", "10.0.0.4")
	four.SourceOnly = true
	ports := []Port{{TCP, 80}, {UDP, 80}, {ICMP, 0}}
	want := map[string]bool{
		"db tcp/80 10.0.0.1": true, "db tcp/80 fd00::1": true, "world icmp fd00::1": true, "four tcp/80 10.0.0.1": true,
	}
	seen := 0
	for _, p := range Plan([]*Party{web, db, world, four}, ports, j) {
		if p.From == p.To || p.To == four || p.From == four && p.Addr.Is6() {
			t.Errorf("a probe that is invalid: %s", p)
		}
		if p.To != web {
			if !p.Expected {
				t.Errorf("nothing keeps it: %s", p)
			}
			continue
		}
		seen++
		if key := p.From.Name + " " + p.Port.String() + " " + p.Addr.String(); p.Expected != want[key] {
			t.Errorf("%s: expected %t (%s)", key, p.Expected, p.Why)
		}
	}
	if want := 3 * (2 + 2 + 1); seen != want {
		t.Errorf("%d probes of web, want %d", seen, want)
	}
}
