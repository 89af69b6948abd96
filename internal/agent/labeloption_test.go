package agent

import (
	"fmt"
	"strings"
	"testing"
)

func TestValidateLabels(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"right", func(*Config) {}, ""},
		{"unknown", func(c *Config) { c.IdentityLabels = "some" }, `"some" is neither all nor policy`},
		{"agents make identities", func(c *Config) { c.ManagementMode = "agent" }, "needs --identity-management-mode=operator or both"},
		{"a key-value store", func(c *Config) { c.IdentityMode, c.KVStore = identityKVStore, "etcd" }, "no --kvstore"},
		{"files", func(c *Config) { c.StaticCNPPath = "/x" }, "--static-cnp-path"},
		{"other clusters", func(c *Config) { c.ClusterMesh.Dir = "/x" }, "--clustermesh-config"},
		{"no endpoints", func(c *Config) { c.NoEndpointObjects = true }, "--disable-endpoint-crd"},
	} {
		cfg := Defaults()
		cfg.EnableK8s, cfg.ManagementMode, cfg.IdentityLabels = true, "operator", "policy"
		c.change(&cfg)
		if err := cfg.validateLabels(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, fmt.Sprint(err))
		}
	}
}
