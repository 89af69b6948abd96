package groups

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/validate"
)

// Config defines whether and how often groups are looked up.
type Config struct {
	// Interval is the time between two lookups of the same group; 0 for never, then groups in
	// policies allow no peer.
	Interval time.Duration
}

// Defaults returns the configuration of an operator that is given no options.
func Defaults() Config { return Config{Interval: 10 * time.Minute} }

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.Interval, "policy-external-group-sync-interval", c.Interval,
		"how often the members of the AWS groups that policies name are looked up; 0 for never: groups then allow no peer")
}

// Validate checks every option and joins all faults in one error.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.Interval("policy-external-group-sync-interval", c.Interval)
	return errs.Err()
}
