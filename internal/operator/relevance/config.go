package relevance

import (
	"time"

	"github.com/spf13/pflag"

	k8skeys "github.com/hawser-net/hawser/internal/k8s/relevance"
	"github.com/hawser-net/hawser/internal/validate"
)

// Config defines which labels make identities. Use [Defaults].
type Config struct {
	// Labels is which labels count: a value of the option.
	Labels string
	// GracePeriod is how long a key stays that no policy needs any more.
	GracePeriod time.Duration
	// Lost is how long a node may be unready before its agent is no longer waited for.
	Lost time.Duration
	// MaxPause is the longest pause between two checks of agents and endpoints that are waited for,
	// Idle that between two checks of the published state. Tests shorten both.
	MaxPause, Idle time.Duration
}

// Defaults returns the configuration of an operator that is given no options: all labels count.
func Defaults() Config {
	return Config{Labels: k8skeys.AllLabels, GracePeriod: 10 * time.Minute, Lost: 5 * time.Minute, MaxPause: 3 * time.Second, Idle: 10 * time.Second}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Labels, k8skeys.Flag, c.Labels, "which labels make identities, of those that --labels leaves: all, or policy (those that some policy selects); as for the agents")
	fs.DurationVar(&c.GracePeriod, k8skeys.Flag+"-grace-period", c.GracePeriod, "how long a label goes on to make identities after the last policy that selected it is gone")
}

// Narrow reports whether only labels count that policies select, for a configuration that is valid.
func (c *Config) Narrow() bool { return c.Labels == k8skeys.PolicyLabels }

// Validate checks every option and joins all faults in one error.
func (c *Config) Validate() error {
	_, err := k8skeys.ParseFlag(c.Labels)
	errs := validate.Errors{err}
	errs.If(c.GracePeriod < 0, "--%s-grace-period: %s must not be negative", k8skeys.Flag, c.GracePeriod)
	errs.If(c.Lost <= 0 || c.MaxPause <= 0 || c.Idle <= 0, "the intervals of the labels of identities must be above 0")
	return errs.Err()
}
