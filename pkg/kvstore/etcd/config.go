package etcd

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"sort"
	"strconv"
	"strings"
	"time"

	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/pkg/kvstore"
)

// The bounds of [Config.LeaseTTL].
const (
	MinLeaseTTL = 25 * time.Second
	MaxLeaseTTL = 24 * time.Hour
)

// Config is how to reach etcd, with limits of its use. Start from [Defaults].
type Config struct {
	// Endpoints are the servers: http://host:port, https://host:port, unix:///path, or host:port.
	// Option etcd.address.
	Endpoints []string
	// File is a YAML file in the format of etcd's own client, see [File]. It may appear later than
	// the process. Endpoints given in both places are those of this struct. Option etcd.config.
	File string
	// LeaseTTL is how long leased keys outlive a client that has gone silent.
	LeaseTTL time.Duration
	// KeepAliveInterval and KeepAliveTimeout are those of the connection's own probes. Options
	// etcd.keepaliveHeartbeat and etcd.keepaliveTimeout.
	KeepAliveInterval, KeepAliveTimeout time.Duration
	// QPS bounds the requests a second, with bursts of as many. 0 is no bound. Option etcd.qps.
	QPS int
	// BootstrapQPS is the bound until the first listing is done, and those that began meanwhile; 0
	// means that of QPS. Option etcd.bootstrapQps.
	BootstrapQPS int
	// MaxInflight bounds the requests under way at once; 0 means as many as QPS. Option
	// etcd.maxInflight.
	MaxInflight int
	// ListLimit is the page size of listings; 0 is one page for all. Option etcd.limit.
	ListLimit int
	// MaxKeys and MaxBytes bound what one listing may return, and MaxKeys also what one watch may
	// know; MaxMessage bounds one answer of a server. They are for a store that is not trusted:
	// what exceeds them is not read, with [ErrTooMuch]. 0 is no bound.
	MaxKeys, MaxBytes, MaxMessage int
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
		KeepAliveInterval:    15 * time.Second,
		KeepAliveTimeout:     25 * time.Second,
		QPS:                  100, // enough that no caller queues when many start at once; in quiet times a client sends next to nothing
		ListLimit:            256,
		MaxQuorumFailures:    2,
		CheckInterval:        30 * time.Second,
		FailingCheckInterval: 5 * time.Second,
		CheckTimeout:         10 * time.Second,
		HeartbeatKey:         kvstore.DefaultHeartbeatKey,
		HeartbeatStaleAfter:  kvstore.HeartbeatStaleAfter,
	}
}

// options are the names that [Config.Set] knows and what each does.
func options() map[string]func(c *Config, v string) error {
	whole := func(to func(*Config) *int) func(*Config, string) error {
		return func(c *Config, v string) error {
			n, err := strconv.Atoi(v)
			if err != nil || n < 0 {
				return fmt.Errorf("%q is not a whole number of 0 or more", v)
			}
			*to(c) = n
			return nil
		}
	}
	duration := func(to func(*Config) *time.Duration) func(*Config, string) error {
		return func(c *Config, v string) error {
			d, err := time.ParseDuration(v)
			if err != nil {
				return fmt.Errorf("%q is not a duration such as 15s", v)
			}
			*to(c) = d
			return nil
		}
	}
	return map[string]func(*Config, string) error{
		"etcd.address": func(c *Config, v string) error {
			c.Endpoints = nil
			for _, e := range strings.Split(v, ",") {
				if e = strings.TrimSpace(e); e != "" {
					c.Endpoints = append(c.Endpoints, e)
				}
			}
			if len(c.Endpoints) == 0 {
				return errors.New("no address given")
			}
			return nil
		},
		"etcd.config":             func(c *Config, v string) error { c.File = v; return nil },
		"etcd.keepaliveHeartbeat": duration(func(c *Config) *time.Duration { return &c.KeepAliveInterval }),
		"etcd.keepaliveTimeout":   duration(func(c *Config) *time.Duration { return &c.KeepAliveTimeout }),
		"etcd.qps":                whole(func(c *Config) *int { return &c.QPS }),
		"etcd.bootstrapQps":       whole(func(c *Config) *int { return &c.BootstrapQPS }),
		"etcd.maxInflight":        whole(func(c *Config) *int { return &c.MaxInflight }),
		"etcd.limit":              whole(func(c *Config) *int { return &c.ListLimit }),
	}
}

func optionNames() []string {
	return slices.Sorted(maps.Keys(options()))
}

// Set applies options of the form that --kvstore-opt takes. All faults are reported together; an
// unknown option is one.
func (c *Config) Set(opts map[string]string) error {
	known := options()
	var errs []error
	for _, name := range slices.Sorted(maps.Keys(opts)) {
		set, ok := known[name]
		if !ok {
			errs = append(errs, fmt.Errorf("option %q is not known to etcd; there are %s", name, strings.Join(optionNames(), ", ")))
			continue
		}
		if err := set(c, opts[name]); err != nil {
			errs = append(errs, fmt.Errorf("option %s: %w", name, err))
		}
	}
	return errors.Join(errs...)
}

// ParseOptions returns the defaults with the options applied, validated.
func ParseOptions(opts map[string]string) (Config, error) {
	c := Defaults()
	if err := c.Set(opts); err != nil {
		return Config{}, err
	}
	return c, c.Validate()
}

// Validate reports all faults of the settings at once. It does not look at File, which may not be
// there yet.
func (c Config) Validate() error {
	var errs []error
	if len(c.Endpoints) == 0 && c.File == "" {
		errs = append(errs, errors.New("etcd has no address: set etcd.address, or etcd.config to a file that lists endpoints"))
	}
	if c.HeartbeatKey == "" {
		errs = append(errs, errors.New("there is no heartbeat key: begin with the defaults"))
	}
	if c.LeaseTTL < MinLeaseTTL || c.LeaseTTL > MaxLeaseTTL {
		errs = append(errs, fmt.Errorf("lease TTL %v is outside %v to %v", c.LeaseTTL, MinLeaseTTL, MaxLeaseTTL))
	}
	for name, d := range map[string]time.Duration{
		"etcd.keepaliveHeartbeat": c.KeepAliveInterval, "etcd.keepaliveTimeout": c.KeepAliveTimeout,
		"check interval": c.CheckInterval, "failing check interval": c.FailingCheckInterval, "check timeout": c.CheckTimeout,
	} {
		if d <= 0 {
			errs = append(errs, fmt.Errorf("%s is %v: it must be more than 0", name, d))
		}
	}
	for name, n := range map[string]int{
		"etcd.qps": c.QPS, "etcd.bootstrapQps": c.BootstrapQPS, "etcd.maxInflight": c.MaxInflight, "etcd.limit": c.ListLimit,
		"bound on keys": c.MaxKeys, "bound on bytes": c.MaxBytes, "bound on messages": c.MaxMessage, "quorum failures allowed": c.MaxQuorumFailures,
	} {
		if n < 0 {
			errs = append(errs, fmt.Errorf("%s is %d: it must be 0 or more", name, n))
		}
	}
	sort.Slice(errs, func(i, j int) bool { return errs[i].Error() < errs[j].Error() })
	return errors.Join(errs...)
}

// File is the content of [Config.File], the settings file of etcd's own clients. A field that is
// not known is an error.
type File struct {
	Endpoints             []string     `json:"endpoints"`
	AutoSyncInterval      fileDuration `json:"auto-sync-interval"`
	DialTimeout           fileDuration `json:"dial-timeout"`
	DialKeepAliveTime     fileDuration `json:"dial-keep-alive-time"`
	DialKeepAliveTimeout  fileDuration `json:"dial-keep-alive-timeout"`
	Username              string       `json:"username"`
	Password              string       `json:"password"`
	RejectOldCluster      bool         `json:"reject-old-cluster"`
	PermitWithoutStream   bool         `json:"permit-without-stream"`
	InsecureTransport     bool         `json:"insecure-transport"`
	InsecureSkipTLSVerify bool         `json:"insecure-skip-tls-verify"`
	CertFile              string       `json:"cert-file"`
	KeyFile               string       `json:"key-file"`
	TrustedCAFile         string       `json:"trusted-ca-file"`
	// CAFile is an older name of TrustedCAFile.
	CAFile string `json:"ca-file"`
}

// fileDuration is written as text ("5s") or, as etcd itself reads it, as nanoseconds.
type fileDuration time.Duration

// UnmarshalJSON implements json.Unmarshaler.
func (d *fileDuration) UnmarshalJSON(b []byte) error {
	text := strings.Trim(string(b), `"`)
	if n, err := strconv.ParseInt(text, 10, 64); err == nil {
		*d = fileDuration(n)
		return nil
	}
	v, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%s is neither nanoseconds nor a duration such as 5s", b)
	}
	*d = fileDuration(v)
	return nil
}

// ReadFile reads and checks a settings file.
func ReadFile(path string) (File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("etcd settings: %w", err)
	}
	f, err := parseFile(b)
	if err != nil {
		return File{}, fmt.Errorf("etcd settings in %s: %w", path, err)
	}
	return f, nil
}

func parseFile(b []byte) (File, error) {
	var f File
	if err := yaml.UnmarshalStrict(b, &f); err != nil {
		return File{}, err
	}
	if (f.CertFile == "") != (f.KeyFile == "") {
		return File{}, errors.New("cert-file and key-file go together: give both or none")
	}
	if (f.Username == "") != (f.Password == "") {
		return File{}, errors.New("username and password go together: give both or none")
	}
	f.TrustedCAFile = cmp.Or(f.TrustedCAFile, f.CAFile)
	return f, nil
}
