package consul

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// The bounds of [Config.LeaseTTL], within those of Consul's sessions.
const (
	MinLeaseTTL = 25 * time.Second
	MaxLeaseTTL = 24 * time.Hour
)

// Config is how to reach Consul. Start from [Defaults].
type Config struct {
	// Address is that of an agent or server: host:port, http://host:port, https://host:port or
	// unix:///path. Option consul.address.
	Address string
	// Token is an ACL token, and TokenFile a file with one. Options consul.token and
	// consul.tokenFile.
	Token, TokenFile string
	// Datacenter is whose store is used; that of the agent if empty. Option consul.datacenter.
	Datacenter string
	// CAFile, CertFile and KeyFile are PEM files for TLS. Options consul.caFile, consul.certFile
	// and consul.keyFile.
	CAFile, CertFile, KeyFile string
	// PlainKeys writes texts in keys as they are instead of encoded: for the time in which programs
	// share the store that know no other form. Both are read. Option consul.plainKeys: true or
	// false.
	PlainKeys bool
	// LeaseTTL is how long leased keys outlive a client that has gone silent. Consul takes up to
	// twice as long.
	LeaseTTL time.Duration
	// MaxInflight bounds the requests under way at once, watches aside. Option consul.maxInflight.
	MaxInflight int
	// MaxQuorumFailures is how many checks in a row may fail before the store is reported as
	// failed.
	MaxQuorumFailures int
	// CheckInterval and FailingCheckInterval are the pauses between two checks of the store, when
	// the last one was good and when it was not.
	CheckInterval, FailingCheckInterval time.Duration
	// CheckTimeout bounds one check.
	CheckTimeout time.Duration
	// HeartbeatKey is the key that the check reads, so the client needs the right to. Its writer,
	// see [kvstore.Heartbeat], shows that writers reach the part of the store that is read. It need
	// not exist.
	HeartbeatKey string
	// HeartbeatStaleAfter is how long the heartbeat may stay as it is before the store is reported
	// as failed, if there ever was one; 0 is for ever.
	HeartbeatStaleAfter time.Duration
}

// Defaults returns the default settings.
func Defaults() Config {
	return Config{
		LeaseTTL:             kvstore.DefaultLeaseTTL,
		MaxInflight:          20,
		MaxQuorumFailures:    2,
		CheckInterval:        30 * time.Second,
		FailingCheckInterval: 5 * time.Second,
		CheckTimeout:         10 * time.Second,
		HeartbeatKey:         kvstore.DefaultHeartbeatKey,
		HeartbeatStaleAfter:  kvstore.HeartbeatStaleAfter,
	}
}

const plainKeys = "consul.plainKeys"

func (c *Config) options() map[string]*string {
	return map[string]*string{
		"consul.address": &c.Address, "consul.token": &c.Token, "consul.tokenFile": &c.TokenFile, "consul.datacenter": &c.Datacenter,
		"consul.caFile": &c.CAFile, "consul.certFile": &c.CertFile, "consul.keyFile": &c.KeyFile,
	}
}

// Set applies options of the form that --kvstore-opt takes. All faults are reported together; an
// unknown option is one.
func (c *Config) Set(opts map[string]string) error {
	known := c.options()
	names := slices.Sorted(maps.Keys(known))
	names = append(names, plainKeys)
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(opts)) {
		if to, ok := known[name]; ok {
			*to = opts[name]
		} else if name == plainKeys {
			plain, err := strconv.ParseBool(opts[name])
			if err != nil {
				err = fmt.Errorf("option %s is true or false, not %q", name, opts[name])
			}
			c.PlainKeys = plain
			errs = append(errs, err)
		} else {
			errs = append(errs, fmt.Errorf("option %q is not known to consul; there are %s", name, strings.Join(names, ", ")))
		}
	}
	return errors.Join(errs...)
}

// Validate reports all faults of the settings at once.
func (c Config) Validate() error {
	var errs []error
	if c.Address == "" {
		errs = append(errs, errors.New("consul has no address: set consul.address"))
	}
	if (c.CertFile == "") != (c.KeyFile == "") {
		errs = append(errs, errors.New("consul.certFile and consul.keyFile go together: give both or none"))
	}
	if c.HeartbeatKey == "" {
		errs = append(errs, errors.New("there is no heartbeat key: begin with the defaults"))
	}
	if c.LeaseTTL < MinLeaseTTL || c.LeaseTTL > MaxLeaseTTL {
		errs = append(errs, fmt.Errorf("lease TTL %v is outside %v to %v", c.LeaseTTL, MinLeaseTTL, MaxLeaseTTL))
	}
	if c.MaxInflight < 1 || c.MaxQuorumFailures < 0 {
		errs = append(errs, errors.New("the requests under way must be at least 1, and the failures allowed 0 or more"))
	}
	if c.CheckInterval <= 0 || c.FailingCheckInterval <= 0 || c.CheckTimeout <= 0 || c.HeartbeatStaleAfter < 0 {
		errs = append(errs, errors.New("the intervals of the health check must be above 0"))
	}
	return errors.Join(errs...)
}
