package endpointslices

import (
	"fmt"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/validate"
)

// Ways to know the pods.
const (
	// ModeDefault takes them from CiliumEndpoints.
	ModeDefault = "default"
	// ModeSlim takes them from Pods, CiliumIdentities and CiliumNodes.
	ModeSlim = "slim"
)

// EnableFlag is the name of the flag of Config.Enable.
const EnableFlag = "enable-cilium-endpoint-slice"

// Config defines how slices are made. Use [Defaults].
type Config struct {
	// Enable has slices made. Without it those that are there are deleted, once.
	Enable bool
	// Mode is one of the Mode constants.
	Mode string
	// Max is how many endpoints a slice may have.
	Max int
	// Rates limits writes, in JSON; see [ParseRates].
	Rates string
	// Delay is how long a slice waits for more changes before it is written. It is no flag.
	Delay time.Duration
}

// Defaults returns the configuration of an operator that is given no options.
func Defaults() Config {
	return Config{Mode: ModeDefault, Max: 100, Rates: `[{"nodes":0,"limit":10,"burst":20}]`, Delay: 500 * time.Millisecond}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.Enable, EnableFlag, c.Enable, "publish pods to nodes in CiliumEndpointSlices; without it, existing slices are deleted")
	fs.StringVar(&c.Mode, "ces-controller-mode", c.Mode,
		"what CiliumEndpointSlices are made from: default (CiliumEndpoints), or slim (Pods, CiliumIdentities and CiliumNodes; agents write no CiliumEndpoints)")
	fs.IntVar(&c.Max, "ces-max-ciliumendpoints-per-ces", c.Max, "how many endpoints a CiliumEndpointSlice may have")
	fs.StringVar(&c.Rates, "ces-rate-limits", c.Rates, fmt.Sprintf(
		"writes of CiliumEndpointSlices a second, by size of the cluster: of the entries for at most as many nodes as there are, the largest counts; at most %d with a burst of %d",
		mostLimit, mostBurst))
}

// Slim reports whether slices are made without CiliumEndpoints.
func (c *Config) Slim() bool { return c.Enable && c.Mode == ModeSlim }

// Validate checks every option and joins all faults in one error.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.If(c.Mode != ModeDefault && c.Mode != ModeSlim, "--ces-controller-mode: %q is neither %s nor %s", c.Mode, ModeDefault, ModeSlim)
	errs.If(c.Max < 1 || c.Max > 1000, "--ces-max-ciliumendpoints-per-ces: %d is not 1 to 1000; larger objects are refused by the API server", c.Max)
	if _, err := ParseRates(c.Rates); err != nil {
		errs.Add("--ces-rate-limits: %w", err)
	}
	errs.If(c.Delay < 0, "the delay of CiliumEndpointSlices must not be negative")
	return errs.Err()
}
