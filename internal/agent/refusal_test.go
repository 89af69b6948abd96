package agent

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/spf13/pflag"
)

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
