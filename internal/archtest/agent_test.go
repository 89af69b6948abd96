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
	"podevents":   {},
	"restapi":     {"addressing", "component", "enforcement", "health", "hubble", "identities", "monitor"},
	"statedir":    {},
}

// cliPackages are the packages that the command line is wired from, likewise.
var cliPackages = map[string][]string{
	"agent":   {"command", "output", "store"},
	"cluster": {"command", "output"},
	"command": {"output"},
	"observe": {"command", "output"},
	"output":  {},
	"policy":  {"command", "observe", "output"},
	"store":   {"command", "output"},
}

func TestTheAgentIsWiredFromAbove(t *testing.T) {
	wiredFromAbove(t, "internal/agent", agentPackages)
}

func TestTheCommandLineIsWiredFromAbove(t *testing.T) {
	wiredFromAbove(t, "internal/cli", cliPackages)
}

// wiredFromAbove checks what the packages of a folder use of each other.
func wiredFromAbove(t *testing.T, whole string, parts map[string][]string) {
	t.Helper()
	const reason = "a part is read and tested with nothing but what it uses; what needs more of the whole is wiring, and belongs to "
	for _, p := range packages(t) {
		if path.Dir(p.path) != whole {
			continue
		}
		uses, listed := parts[path.Base(p.path)]
		if !listed {
			t.Errorf("%s is not in the table of the parts of %s: say which of them it uses", p.path, whole)
		}
		for _, imp := range p.imports {
			if under(imp, whole) && !slices.Contains(uses, path.Base(imp)) {
				t.Errorf("%s imports %s: %s%s", p.path, imp, reason, whole)
			}
		}
	}
}
