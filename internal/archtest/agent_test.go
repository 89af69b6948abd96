package archtest

import (
	"path"
	"slices"
	"testing"
)

// agentPackages are the packages that the agent is wired from, with those among them that each may
// use.
var agentPackages = map[string][]string{
	"addressing":  {},
	"component":   {},
	"enforcement": {},
	"identities":  {},
	"instance":    {},
	"health":      {},
	"hubble":      {"monitor"},
	"monitor":     {},
	"network":     {"component"},
	"placement":   {"component", "enforcement"},
	"restapi":     {"addressing", "component", "enforcement", "health", "hubble", "identities", "monitor"},
}

func TestTheAgentIsWiredFromAbove(t *testing.T) {
	const (
		agent  = "internal/agent"
		reason = "a part of the agent is read and tested with nothing but what it uses; what needs more of the agent is wiring, and belongs to " + agent
	)
	for _, p := range packages(t) {
		if path.Dir(p.path) != agent {
			continue
		}
		uses, listed := agentPackages[path.Base(p.path)]
		if !listed {
			t.Errorf("%s is not in agentPackages: say which packages of the agent it uses", p.path)
		}
		for _, imp := range p.imports {
			if under(imp, agent) && !slices.Contains(uses, path.Base(imp)) {
				t.Errorf("%s imports %s: %s", p.path, imp, reason)
			}
		}
	}
}
