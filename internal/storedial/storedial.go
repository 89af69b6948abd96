// Package storedial opens a cluster's key-value store by its name: it is the one place that knows
// every kind, so that a program has the same options for all of them.
//
// It starts no goroutines; the backends that it opens do.
package storedial

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
	"github.com/hawser-net/hawser/pkg/kvstore/etcd"
)

// Kinds are the names of the stores that [Open] knows.
func Kinds() []string { return []string{"etcd", "consul"} }

// Config selects the store to open, and how.
type Config struct {
	// Kind is one of [Kinds]; empty for none.
	Kind string
	// Options are those of the store, as etcd.address.
	Options map[string]string
	// LeaseTTL is how long leased keys outlive a client that has gone silent.
	LeaseTTL time.Duration
	// MaxQuorumFailures is how many checks in a row may fail before the store is reported as
	// failed.
	MaxQuorumFailures int
}

// Defaults returns the default settings: no store.
func Defaults() Config {
	return Config{Options: map[string]string{}, LeaseTTL: kvstore.DefaultLeaseTTL, MaxQuorumFailures: 2}
}

// Flags adds the options of the store to fs: --kvstore, --kvstore-opt, --kvstore-lease-ttl and
// --kvstore-max-consecutive-quorum-errors.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&c.Kind, "kvstore", c.Kind, "key-value store shared by the nodes: "+strings.Join(Kinds(), ", ")+"; empty for none")
	OptionsVar(fs, &c.Options, "kvstore-opt", "options of the key-value store, such as etcd.address=http://10.0.0.1:2379, etcd.config=/path or consul.address=10.0.0.1:8500")
	fs.DurationVar(&c.LeaseTTL, "kvstore-lease-ttl", c.LeaseTTL, "how long keys in the key-value store outlive their writer, 25s to 24h")
	fs.IntVar(&c.MaxQuorumFailures, "kvstore-max-consecutive-quorum-errors", c.MaxQuorumFailures,
		"how many checks of the key-value store may fail in a row before it is reported as failed")
}

// Validate reports all faults of the settings at once, by the names of the flags. No store is no
// fault.
func (c Config) Validate() error {
	if c.Kind == "" {
		if len(c.Options) > 0 {
			return errors.New("--kvstore-opt: has no effect without --kvstore")
		}
		return nil
	}
	_, err := c.opener()
	return err
}

// Open makes a connection to the store. Like every backend it connects in the background: an
// unreachable store is not an error here.
func Open(ctx context.Context, c Config, log *slog.Logger) (kvstore.Backend, error) {
	open, err := c.opener()
	if err != nil {
		return nil, err
	}
	return open(ctx, log)
}

// Certificates returns the files of the certificate that the store is shown, and of the authorities
// of the store's own; empty for none. Open reports settings that cannot be read.
func (c Config) Certificates() (own, authorities string) {
	switch c.Kind {
	case "etcd":
		if f, err := etcd.ReadFile(c.Options["etcd.config"]); err == nil && !f.InsecureTransport {
			return f.CertFile, f.TrustedCAFile
		}
	case "consul":
		return c.Options["consul.certFile"], c.Options["consul.caFile"]
	}
	return "", ""
}

// opener checks the settings.
func (c Config) opener() (func(context.Context, *slog.Logger) (kvstore.Backend, error), error) {
	switch c.Kind {
	case "etcd":
		cfg := etcd.Defaults()
		err := cfg.Set(c.Options)
		cfg.LeaseTTL, cfg.MaxQuorumFailures, cfg.HeartbeatKey = c.LeaseTTL, c.MaxQuorumFailures, storekeys.HeartbeatKey
		if err := errors.Join(err, cfg.Validate()); err != nil {
			return nil, fmt.Errorf("--kvstore-opt and others for etcd: %w", err)
		}
		return func(ctx context.Context, log *slog.Logger) (kvstore.Backend, error) { return etcd.New(ctx, cfg, log) }, nil
	case "consul":
		cfg := consul.Defaults()
		err := cfg.Set(c.Options)
		cfg.LeaseTTL, cfg.MaxQuorumFailures, cfg.HeartbeatKey = c.LeaseTTL, c.MaxQuorumFailures, storekeys.HeartbeatKey
		if err := errors.Join(err, cfg.Validate()); err != nil {
			return nil, fmt.Errorf("--kvstore-opt and others for consul: %w", err)
		}
		return func(ctx context.Context, log *slog.Logger) (kvstore.Backend, error) { return consul.New(ctx, cfg, log) }, nil
	}
	return nil, fmt.Errorf("--kvstore: %q is not a kind of store known here: there are %s", c.Kind, strings.Join(Kinds(), ", "))
}

// OptionsVar adds a flag for the options of a store, which are kept in *to. It reads "a.b=c,d.e=f",
// given once or more often, and a JSON object as a ConfigMap holds it. A comma inside a value, as
// in a list of addresses, is part of it.
func OptionsVar(fs *pflag.FlagSet, to *map[string]string, name, usage string) {
	fs.Var(&optionsFlag{to}, name, usage)
}

type optionsFlag struct{ to *map[string]string }

// Type names the form of the value in help texts.
func (f *optionsFlag) Type() string { return "option=value" }

// String returns the options as they can be given.
func (f *optionsFlag) String() string {
	if f.to == nil {
		return ""
	}
	var out []string
	for _, k := range slices.Sorted(maps.Keys(*f.to)) {
		out = append(out, k+"="+(*f.to)[k])
	}
	return strings.Join(out, ",")
}

// optionStart is where a new option begins: a name with a dot in it. What else follows a comma
// belongs to the value before.
var optionStart = regexp.MustCompile(`^\s*([a-z]+\.[A-Za-z]+)=`)

// Set adds options.
func (f *optionsFlag) Set(text string) error {
	options, err := parseOptions(text)
	if err != nil {
		return err
	}
	if *f.to == nil {
		*f.to = map[string]string{}
	}
	maps.Copy(*f.to, options)
	return nil
}

func parseOptions(text string) (map[string]string, error) {
	options := map[string]string{}
	text = strings.TrimSpace(text)
	if strings.HasPrefix(text, "{") {
		if err := json.Unmarshal([]byte(text), &options); err != nil {
			return nil, fmt.Errorf("options as JSON: %w", err)
		}
		return options, nil
	}
	last := ""
	for _, part := range strings.Split(text, ",") {
		m := optionStart.FindStringSubmatch(part)
		switch {
		case m != nil:
			last = m[1]
			options[last] = part[len(m[0]):]
		case last != "":
			options[last] += "," + part
		case strings.TrimSpace(part) == "":
		default:
			return nil, fmt.Errorf("option %q is not of the form store.option=value", part)
		}
	}
	return options, nil
}
