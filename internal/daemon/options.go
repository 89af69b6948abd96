package daemon

import (
	"fmt"
	"log/slog"
	"os"
	"regexp"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/confdir"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/validate"
)

// Options are those that every daemon has.
type Options struct {
	// ConfigDir has a file for each option.
	ConfigDir string
	Debug     bool
	// LogFormat is text or json.
	LogFormat string
}

// Defaults returns the options of a daemon without flags.
func Defaults() Options { return Options{LogFormat: "text"} }

// Flags binds the options to command-line flags; the current values are the defaults shown.
func (o *Options) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&o.ConfigDir, confdir.FlagName, o.ConfigDir, "directory with one file per option, named like the flag (a mounted ConfigMap)")
	fs.BoolVar(&o.Debug, "debug", o.Debug, "log debug messages")
	fs.StringVar(&o.LogFormat, "log-format", o.LogFormat, "form of log lines: text or json")
}

// Validate reports what is wrong with the options.
func (o *Options) Validate() error {
	if o.LogFormat != "text" && o.LogFormat != "json" {
		return fmt.Errorf("--log-format: %q is neither text nor json", o.LogFormat)
	}
	return nil
}

// Logger writes to standard error, where the container runtime or systemd collects it.
func (o *Options) Logger() *slog.Logger {
	opts := &slog.HandlerOptions{Level: slog.LevelInfo}
	if o.Debug {
		opts.Level = slog.LevelDebug
	}
	if o.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(os.Stderr, opts))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, opts))
}

// Cluster is the cluster that a daemon belongs to.
type Cluster struct {
	ClusterName string
	// ClusterID is 0 for a cluster on its own, and MaxConnectedClusters how many there can be.
	ClusterID, MaxConnectedClusters uint32
}

// ClusterDefaults returns a cluster on its own.
func ClusterDefaults() Cluster { return Cluster{ClusterName: "default", MaxConnectedClusters: 255} }

// Flags binds the cluster to command-line flags; the current values are the defaults shown.
func (c *Cluster) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.ClusterName, "cluster-name", c.ClusterName, "name of the cluster, at most 32 characters of a-z, 0-9 and -")
	fs.Uint32Var(&c.ClusterID, "cluster-id", c.ClusterID, "number of the cluster, 1 to 255 (or 511); 0 for an unconnected cluster")
	fs.Uint32Var(&c.MaxConnectedClusters, "max-connected-clusters", c.MaxConnectedClusters, "how many clusters can be connected: 255 or 511")
}

var clusterNameForm = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)

// Validate reports everything that is wrong with the cluster.
func (c *Cluster) Validate() error {
	var errs validate.Errors
	errs.If(len(c.ClusterName) > 32 || !clusterNameForm.MatchString(c.ClusterName),
		"--cluster-name: %q must be 1 to 32 characters of a-z, 0-9 and -, starting and ending with a letter or digit", c.ClusterName)
	if _, _, err := identity.Range(c.ClusterID, c.MaxConnectedClusters); err != nil {
		errs.Add("--cluster-id and --max-connected-clusters: %w", err)
	}
	return errs.Err()
}
