package agent

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/api/rest"
)

// A field of a request that would change what is enforced, and does not here, is refused by name.
// What plugins of the field send for a pod is taken.
func TestFieldsWithoutEffect(t *testing.T) {
	t.Parallel()
	for body, want := range map[string][]string{
		`{"state":"waiting-for-identity","sync-build-endpoint":true,"netns-cookie":"1","pid":1,"labels":[],"datapath-configuration":{}}`:    nil,
		`{"datapath-configuration":{"external-ipam":true,"install-endpoint-route":true,"require-egress-prog":true,"require-routing":true}}`: nil,
		`{"properties":{"property-skip-masquerade-v4":false},"policy-enabled":false,"parent-interface-index":0}`:                            nil,
		`{"policy-enabled":true}`:         {"policy-enabled"},
		`{"is-secondary-interface":true}`: {"is-secondary-interface"},
		`{"parent-interface-index":3}`:    {"parent-interface-index"},
		`{"datapath-map-id":7}`:           {"datapath-map-id"},
		`{"properties":{"property-skip-masquerade-v4":true,"property-skip-masquerade-v6":true}}`: nil,
		`{"properties":{"property-skip-masquerade-v4":"yes","property-skip-bpf-policy":true}}`: {
			"properties.property-skip-masquerade-v4=yes", "properties.property-skip-bpf-policy"},
		`{"properties":{"other":"yes"}}`:                              {"properties.other"},
		`{"datapath-configuration":{"require-arp-passthrough":true}}`: {"datapath-configuration.require-arp-passthrough"},
		`{"datapath-configuration":{"require-routing":false}}`:        {"datapath-configuration.require-routing"},
		`{"datapath-configuration":{"disable-sip-verification":true},"policy-enabled":true}`: {
			"datapath-configuration.disable-sip-verification", "policy-enabled"},
	} {
		var m rest.EndpointChangeRequest
		if err := json.Unmarshal([]byte(body), &m); err != nil {
			t.Fatal(err)
		}
		err := withoutEffect(&m)
		if (err != nil) != (want != nil) {
			t.Errorf("%s: error %v", body, err)
		}
		for _, text := range want {
			if err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%s: the error does not say %q: %v", body, text, err)
			}
		}
	}
}

// The agent does not start with a configuration that asks for protection it has not, and says all
// of it at once, beside what else is wrong; see confdir for each option.
func TestConfigAsksForProtection(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	for name, value := range map[string]string{
		// As Cilium's chart writes it.
		"enable-l7-proxy": "true", "mesh-auth-enabled": "true", "enable-policy": "default", "enable-xt-socket-fallback": "true",
		"enable-host-firewall": "false", "enable-bpf-masquerade": "true", "auto-direct-node-routes": "false", "monitor-aggregation": "medium",
		"monitor-aggregation-flags": "all", "monitor-aggregation-interval": "5s",
		"enable-ipsec": "true", "enable-wireguard": "true", "encrypt-node": "true",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(value), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	load := func(args ...string) (Config, error) {
		cfg := Defaults()
		fs := pflag.NewFlagSet("", pflag.ContinueOnError)
		cfg.Flags(fs)
		if err := fs.Parse(append([]string{"--config-dir", dir, "--node-name", "n1", "--ipv4-range", "10.0.1.0/24", "--enable-ipv6=false"}, args...)); err != nil {
			t.Fatal(err)
		}
		_, err := program(&cfg, "test", func(string) string { return "" }).Load(fs)
		return cfg, err
	}
	_, err := load("--mtu", "7")
	for _, want := range []string{"enable-ipsec=true", "enable-wireguard=true", "encrypt-node=true", "in the clear", "--accept-without", "--mtu"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not say %q: %v", want, err)
		}
	}
	for _, not := range []string{"l7-proxy", "mesh-auth", "host-firewall"} {
		if strings.Contains(fmt.Sprint(err), not) {
			t.Errorf("%s is refused, and is harmless: %v", not, err)
		}
	}
	cfg, err := load("--accept-without", "enable-ipsec,enable-wireguard,encrypt-node")
	if err != nil || cfg.DirectRoutes {
		t.Errorf("with all accepted: %v; direct routes %v", err, cfg.DirectRoutes)
	}
}
