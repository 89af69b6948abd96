package nodemanager

import (
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/validate"
)

// Config is what counts for every cloud. The names of the flags are the field's.
type Config struct {
	// QPS and Burst bound the calls to the cloud.
	QPS   float64
	Burst int
	// Workers is how many nodes are looked after at once.
	Workers int
	// ReleaseDelay is for how many seconds an address must be superfluous before it is released.
	ReleaseDelay int
	// GCInterval is how often interfaces are looked for that were left behind; 0 is never.
	GCInterval time.Duration

	// ReleaseExcess has superfluous addresses be released; the provider's flag sets it.
	ReleaseExcess bool
	// GCTags are those of the interfaces that may be removed if they were left behind.
	GCTags map[string]string
	// Held fails if this operator does not lead; nil is never.
	Held func() error

	// Timeout is how long the cloud may take to answer a call.
	Timeout time.Duration
	// Resync is how often everything in the cloud is read.
	Resync time.Duration
	// MaxLag is how long a description of the cloud may be behind changes that were made.
	MaxLag time.Duration
}

// Defaults returns the field's.
func Defaults() Config {
	return Config{QPS: 4, Burst: 20, Workers: 50, ReleaseDelay: 180, GCInterval: 5 * time.Minute, Timeout: callTimeout, Resync: resyncInterval, MaxLag: maxLag}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.Float64Var(&c.QPS, "limit-ipam-api-qps", c.QPS, "with --ipam of a cloud, calls a second to the cloud")
	fs.IntVar(&c.Burst, "limit-ipam-api-burst", c.Burst, "with --ipam of a cloud, calls at once to the cloud")
	fs.IntVar(&c.Workers, "parallel-alloc-workers", c.Workers, "with --ipam of a cloud, nodes that are given addresses at once")
	fs.IntVar(&c.ReleaseDelay, "excess-ip-release-delay", c.ReleaseDelay, "with --ipam of a cloud, seconds for which an address must be superfluous before it is released")
	fs.DurationVar(&c.GCInterval, "eni-gc-interval", c.GCInterval, "with --ipam=eni or alibabacloud, how often network interfaces are looked for that were left behind; 0 is never")
}

// Validate checks all of it and joins the faults.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.If(!(c.QPS > 0) || c.Burst < 1, "--limit-ipam-api-qps and --limit-ipam-api-burst must be above 0")
	errs.If(c.Workers < 1, "--parallel-alloc-workers: %d must be above 0", c.Workers)
	errs.If(c.ReleaseDelay < 0, "--excess-ip-release-delay: %d must not be negative", c.ReleaseDelay)
	errs.Interval("eni-gc-interval", c.GCInterval)
	return errs.Err()
}
