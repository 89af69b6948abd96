package operator

import (
	"strings"
	"testing"

	"github.com/hawser-net/hawser/internal/operator/endpointslices"
)

// Identities by some labels are refused where an agent would not learn by which.
func TestValidateRelevance(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		change func(*Config)
		want   string
	}{
		{"right", func(*Config) {}, ""},
		{"unknown", func(c *Config) { c.Relevance.Labels = "some" }, `"some" is neither all nor policy`},
		{"negative", func(c *Config) { c.Relevance.GracePeriod = -1 }, "must not be negative"},
		{"agents make identities", func(c *Config) { c.ManagementMode = "agent" }, "needs --identity-management-mode=operator or both"},
		{"in a key-value store", func(c *Config) { c.AllocationMode = modeKVStore }, "needs --identity-allocation-mode=crd"},
		{"a key-value store", func(c *Config) { c.Store.Kind = "etcd" }, "cannot be used with --kvstore"},
		{"slim slices", func(c *Config) { c.Slices.Enable, c.Slices.Mode = true, endpointslices.ModeSlim }, "needs CiliumEndpoints"},
	} {
		cfg := Defaults()
		cfg.Kubernetes, cfg.AllocationMode, cfg.ManagementMode, cfg.Relevance.Labels = true, modeCRD, "both", "policy"
		c.change(&cfg)
		if err := cfg.validateRelevance(); (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", c.name, err)
		}
	}
}
