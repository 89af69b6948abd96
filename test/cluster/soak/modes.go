package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
)

// identityModes are those of -identities. mixed is a fleet on its way from agent to both: the
// operator makes identities as well, agents do not know of it.
func identityModes() []string { return []string{"agent", "operator", "both", "mixed"} }

// endpointModes are those of -endpoints.
func endpointModes() []string { return []string{"objects", "slices", "slim"} }

// Collections run every few seconds, so that numbers retire and come back all the time.
const valuesForm = `
kubeProxyReplacement: true
identity:
  managementMode: %s
ciliumEndpointSlice:
  enabled: %t
  mode: %s
agent:
  extraArgs: [%s]
operator:
  extraArgs: ["--identity-gc-interval=5s", "--identity-heartbeat-timeout=10s", "--cilium-endpoint-gc-interval=10s", "--nodes-gc-interval=10s"]
`

// values are those of the chart for the modes.
func (o *options) values() string {
	mode, agentArgs := o.identities, ""
	if mode == "mixed" {
		mode, agentArgs = "both", `"--identity-management-mode=agent"`
	}
	slices := "default"
	if o.endpoints == "slim" {
		slices = "slim"
	}
	return fmt.Sprintf(valuesForm, mode, o.endpoints != "objects", slices, agentArgs)
}

// manifest renders the chart with the values of the modes into a temporary file.
func (o *options) manifest(ctx context.Context) (path string, err error) {
	values, err := os.CreateTemp("", "hawser-soak-*.yaml")
	if err != nil {
		return "", err
	}
	defer os.Remove(values.Name())
	if _, err = values.WriteString(o.values()); err == nil {
		err = values.Close()
	}
	if err != nil {
		return "", err
	}
	path = values.Name() + ".rendered"
	out, err := exec.CommandContext(ctx, o.render, "-chart", "deploy/helm/hawser", "-values", values.Name(), "-o", path).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("render the chart: %w: %s", err, out)
	}
	return path, nil
}
