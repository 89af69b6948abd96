package policy

import (
	"fmt"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/validate"
)

// Mode is when endpoints are enforced (--enable-policy).
type Mode uint8

// The modes.
const (
	// ModeDefault enforces a direction once a rule asks for it.
	ModeDefault Mode = iota
	// ModeAlways enforces both directions of every endpoint.
	ModeAlways
	// ModeNever drops nothing, whatever the rules.
	ModeNever
)

// String returns "default", "always" or "never".
func (m Mode) String() string {
	switch m {
	case ModeDefault:
		return "default"
	case ModeAlways:
		return "always"
	case ModeNever:
		return "never"
	}
	return fmt.Sprintf("Mode(%d)", uint8(m))
}

// ParseMode reads what String writes.
func ParseMode(s string) (Mode, error) {
	for _, m := range []Mode{ModeDefault, ModeAlways, ModeNever} {
		if s == m.String() {
			return m, nil
		}
	}
	return 0, fmt.Errorf("enable-policy is %q: it can be default, always or never", clip(s))
}

// Config is fixed for the life of an Engine, except Mode.
type Config struct {
	Mode Mode
	// ClusterName is the name of the local cluster, as in the labels of its pods.
	ClusterName string
	// AllowLocalhost lets the node itself reach enforced endpoints unless a rule denies it.
	AllowLocalhost bool
	// DefaultLocalCluster confines selectors of peers to the local cluster unless they name one
	// (--policy-default-local-cluster).
	DefaultLocalCluster bool
	// DualStack means that hosts outside have the identities world-ipv4 and world-ipv6. Otherwise
	// they have the identity world, which then is world-ipv4 and 0.0.0.0/0, or with IPv6Only
	// world-ipv6 and ::/0.
	DualStack bool
	IPv6Only  bool
	// AllowNonDefaultDeny honours enableDefaultDeny. Otherwise every direction with entries is
	// enforced, and so is one for which a rule asks explicitly.
	AllowNonDefaultDeny bool
	// LastRuleSet and LastGeneration are the highest numbers that may still be in the kernel from
	// an earlier run. The engine's own are above them.
	LastRuleSet    datapath.RuleSetID
	LastGeneration uint32
}

// Defaults returns the configuration of an agent without flags.
func Defaults() Config {
	return Config{
		ClusterName: "default", AllowLocalhost: true, DefaultLocalCluster: true, DualStack: true,
		AllowNonDefaultDeny: true,
	}
}

// Validate reports all faults.
func (c Config) Validate() error {
	var errs validate.Errors
	errs.If(c.Mode > ModeNever, "policy mode %d is not known", c.Mode)
	errs.If(c.DualStack && c.IPv6Only, "policy: a node cannot be dual-stack and IPv6-only")
	return errs.Err()
}

// confinesCluster reports whether selectors are confined to the local cluster at all.
func (c *Config) confinesCluster() bool { return c.DefaultLocalCluster && c.ClusterName != "" }
