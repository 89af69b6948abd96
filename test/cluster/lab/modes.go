package lab

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/hawser-net/hawser/internal/sandbox/kube"
)

// Modes say how a cluster runs what there are several ways for. Use NewModes.
type Modes struct {
	// Identities says who makes identities: agent, operator, both or mixed. mixed is a fleet on its
	// way from agent to both: the operator makes identities as well, agents do not know of it.
	Identities string
	// Endpoints says how nodes learn of pods: by objects, slices of them, or slim, by slices
	// that the operator makes of pods.
	Endpoints string
	// Store says where identities are kept: in objects of Kubernetes, etcd or consul.
	Store string

	render string // the program that renders the chart
}

// NewModes returns the modes of a cluster of which nothing is said.
func NewModes() Modes { return Modes{Identities: "agent", Endpoints: "objects", Store: "objects"} }

func identityModes() []string { return []string{"agent", "operator", "both", "mixed"} }
func endpointModes() []string { return []string{"objects", "slices", "slim"} }
func storeModes() []string    { return []string{"objects", kube.Etcd, kube.Consul} }

// Flags adds the options -identities, -endpoints, -store and -render.
func (m *Modes) Flags(fs *flag.FlagSet) {
	fs.StringVar(&m.Identities, "identities", m.Identities, "who makes identities: "+strings.Join(identityModes(), ", "))
	fs.StringVar(&m.Endpoints, "endpoints", m.Endpoints, "how nodes learn of pods: "+strings.Join(endpointModes(), ", "))
	fs.StringVar(&m.Store, "store", m.Store, "where identities are kept: "+strings.Join(storeModes(), ", "))
	fs.StringVar(&m.render, "render", "bin/render", "the program that renders the chart (deploy/render)")
}

// Validate reports all faults of the modes at once.
func (m Modes) Validate() error {
	var errs []error
	one := func(name, value string, of []string) {
		if !slices.Contains(of, value) {
			errs = append(errs, fmt.Errorf("-%s %q: want %s", name, value, strings.Join(of, ", ")))
		}
	}
	one("identities", m.Identities, identityModes())
	one("endpoints", m.Endpoints, endpointModes())
	one("store", m.Store, storeModes())
	if m.Endpoints == "slim" && m.Identities != "operator" {
		errs = append(errs, errors.New("-endpoints slim needs -identities operator"))
	}
	if m.Endpoints != "objects" && m.Store != "objects" {
		errs = append(errs, fmt.Errorf("-endpoints %s needs -store objects: with a store nodes learn of pods there", m.Endpoints))
	}
	return errors.Join(errs...)
}

// String is how to ask for the modes.
func (m Modes) String() string {
	return fmt.Sprintf("-identities %s -endpoints %s -store %s", m.Identities, m.Endpoints, m.Store)
}

const valuesForm = `
kubeProxyReplacement: true
identity:
  managementMode: %s
  allocationMode: %s
ciliumEndpointSlice:
  enabled: %t
  mode: %s
agent:
  extraArgs: [%s]
operator:
  extraArgs: [%s]
`

// values are those of the chart for the modes.
func (m Modes) values(operatorArgs []string) string {
	mode, allocation, slices := m.Identities, "crd", "default"
	var agentArgs []string
	if mode == "mixed" {
		mode, agentArgs = "both", []string{"--identity-management-mode=agent"}
	}
	if m.Store != "objects" {
		allocation = "kvstore"
	}
	if m.Endpoints == "slim" {
		slices = "slim"
	}
	out := fmt.Sprintf(valuesForm, mode, allocation, m.Endpoints != "objects", slices, list(agentArgs), list(operatorArgs))
	if m.Store != "objects" {
		// The chart wants an address; the cluster sets that of its own store.
		out += fmt.Sprintf("kvstore:\n  type: %[1]s\n  options: {%[1]s.address: \"http://127.0.0.1:1\"}\n", m.Store)
	}
	return out
}

// list is a list of YAML, without its brackets.
func list(words []string) string {
	var out []string
	for _, w := range words {
		out = append(out, fmt.Sprintf("%q", w))
	}
	return strings.Join(out, ", ")
}

// manifest renders the chart with the values of the modes into a temporary file.
func (m Modes) manifest(ctx context.Context, operatorArgs []string) (path string, err error) {
	values, err := os.CreateTemp("", "hawser-modes-*.yaml")
	if err != nil {
		return "", err
	}
	defer os.Remove(values.Name())
	_, err = values.WriteString(m.values(operatorArgs))
	if err = errors.Join(err, values.Close()); err != nil {
		return "", err
	}
	path = values.Name() + ".rendered"
	out, err := exec.CommandContext(ctx, m.render, "-chart", "deploy/helm/hawser", "-values", values.Name(), "-o", path).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("render the chart: %w: %s", err, out)
	}
	return path, nil
}
