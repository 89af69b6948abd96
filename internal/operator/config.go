package operator

import (
	"errors"
	"fmt"
	"net"
	"regexp"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/confdir"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/pkg/kvstore/dial"
)

// Config is everything the operator can be told. The names of its flags are those of the field where they exist there.
type Config struct {
	ConfigDir string
	Debug     bool
	LogFormat string // text or json

	ClusterName          string
	ClusterID            uint32
	MaxConnectedClusters uint32

	Store dial.Config

	// AllocationMode says where identities are kept: kvstore.
	AllocationMode string
	// GCInterval is the time from the start of one round of identity collection to that of the next; 0 switches it off.
	GCInterval time.Duration
	// At most GCRateLimit identities are deleted in GCRateInterval.
	GCRateInterval time.Duration
	GCRateLimit    int

	// HeartbeatInterval, LockGCInterval and ClusterConfigInterval are fixed by what others expect; tests shorten them.
	HeartbeatInterval     time.Duration
	LockGCInterval        time.Duration
	ClusterConfigInterval time.Duration

	// APIAddr serves the health of the operator.
	APIAddr string
	// PrometheusAddr serves metrics if EnableMetrics is set.
	PrometheusAddr string
	EnableMetrics  bool
}

// Defaults returns the configuration of an operator that is told nothing.
func Defaults() Config {
	return Config{
		LogFormat:   "text",
		ClusterName: "default", MaxConnectedClusters: 255,
		Store:          dial.Defaults(),
		AllocationMode: "kvstore",
		GCInterval:     15 * time.Minute, GCRateInterval: time.Minute, GCRateLimit: 2500,
		HeartbeatInterval: time.Minute, LockGCInterval: 25 * time.Second, ClusterConfigInterval: 5 * time.Minute,
		APIAddr: "localhost:9234", PrometheusAddr: ":9963",
	}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.ConfigDir, confdir.FlagName, c.ConfigDir, "directory with one file per option, named like the flag (a mounted ConfigMap)")
	fs.BoolVar(&c.Debug, "debug", c.Debug, "log debug messages")
	fs.StringVar(&c.LogFormat, "log-format", c.LogFormat, "form of log lines: text or json")
	fs.StringVar(&c.ClusterName, "cluster-name", c.ClusterName, "name of the cluster, at most 32 characters of a-z, 0-9 and -")
	fs.Uint32Var(&c.ClusterID, "cluster-id", c.ClusterID, "number of the cluster, 1 to 255 (or 511); 0 for a cluster on its own")
	fs.Uint32Var(&c.MaxConnectedClusters, "max-connected-clusters", c.MaxConnectedClusters, "how many clusters can be connected: 255 or 511")
	c.Store.Flags(fs)
	fs.StringVar(&c.AllocationMode, "identity-allocation-mode", c.AllocationMode, "where identities are kept: kvstore")
	fs.DurationVar(&c.GCInterval, "identity-gc-interval", c.GCInterval, "how often unused identities are looked for; 0 for never")
	fs.DurationVar(&c.GCRateInterval, "identity-gc-rate-interval", c.GCRateInterval, "time in which --identity-gc-rate-limit identities may be deleted")
	fs.IntVar(&c.GCRateLimit, "identity-gc-rate-limit", c.GCRateLimit, "how many identities may be deleted in --identity-gc-rate-interval")
	fs.StringVar(&c.APIAddr, "operator-api-serve-addr", c.APIAddr, "address to serve /healthz at; empty for none")
	fs.StringVar(&c.PrometheusAddr, "operator-prometheus-serve-addr", c.PrometheusAddr, "address to serve metrics at")
	fs.BoolVar(&c.EnableMetrics, "enable-metrics", c.EnableMetrics, "serve metrics at --operator-prometheus-serve-addr")
}

var clusterNameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// Validate checks every option and joins all faults in one error.
func (c *Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if c.LogFormat != "text" && c.LogFormat != "json" {
		bad("--log-format: %q is neither text nor json", c.LogFormat)
	}
	if len(c.ClusterName) > 32 || !clusterNameForm.MatchString(c.ClusterName) {
		bad("--cluster-name: %q must be 1 to 32 characters of a-z, 0-9 and -, starting and ending with a letter or digit", c.ClusterName)
	}
	if _, _, err := identity.Range(c.ClusterID, c.MaxConnectedClusters); err != nil {
		bad("--cluster-id and --max-connected-clusters: %w", err)
	}
	if c.Store.Kind == "" {
		bad("--kvstore: give one of %s; without a key-value store this operator has nothing to do", strings.Join(dial.Kinds(), ", "))
	}
	errs = append(errs, c.Store.Validate())
	if c.AllocationMode != "kvstore" {
		bad("--identity-allocation-mode: %q is not supported, only kvstore is", c.AllocationMode)
	}
	if c.GCInterval < 0 || c.GCInterval > 0 && c.GCInterval < time.Second {
		bad("--identity-gc-interval: %s must be 0 or at least a second", c.GCInterval)
	}
	if c.GCRateInterval <= 0 {
		bad("--identity-gc-rate-interval: %s must be above 0", c.GCRateInterval)
	}
	if c.GCRateLimit < 1 {
		bad("--identity-gc-rate-limit: %d must be at least 1; --identity-gc-interval=0 switches collection off", c.GCRateLimit)
	}
	if c.HeartbeatInterval <= 0 || c.LockGCInterval <= 0 || c.ClusterConfigInterval <= 0 {
		bad("the intervals of the heartbeat, the lock sweep and the cluster's description must be above 0")
	}
	checkAddr := func(flag, addr string) {
		if _, _, err := net.SplitHostPort(addr); err != nil {
			bad("--%s: %q is not host:port", flag, addr)
		}
	}
	if c.APIAddr != "" {
		checkAddr("operator-api-serve-addr", c.APIAddr)
	}
	if c.EnableMetrics {
		checkAddr("operator-prometheus-serve-addr", c.PrometheusAddr)
	}
	return errors.Join(errs...)
}
