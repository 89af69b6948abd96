package hubble

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/flowmetrics"
	"github.com/hawser-net/hawser/internal/flows"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/validate"
)

// Config is what the agent does with flows; the names of its flags are Cilium's.
type Config struct {
	// Enable has the agent record flows and serve them.
	Enable bool
	// SocketPath is where local clients find them, ListenAddress where others do; none if it is
	// empty.
	SocketPath, ListenAddress string
	// Capacity is how many are kept; with 0 they are recorded only while a client follows them.
	Capacity int
	// NoTLS serves ListenAddress without TLS, to all clients.
	NoTLS bool
	TLS   flowserver.TLSFiles
	// Metrics are counted of flows and served at MetricsAddress; none if it is empty.
	Metrics, MetricsAddress string
	// Aggregation selects the forwarded packets that become flows; the two fields that follow
	// refine it.
	Aggregation         string
	AggregationInterval time.Duration
	AggregationFlags    []string
}

// aggregationLevels are Cilium's names of levels, and whether packets are sampled there. Its lower
// levels differ only in events that do not exist here.
var aggregationLevels = map[string]bool{
	"": false, "none": false, "disabled": false, "lowest": false, "low": false,
	"medium": true, "max": true, "maximum": true,
}

// tcpFlagBits are the bits of flags in the TCP header.
var tcpFlagBits = map[string]uint8{
	"fin": 1 << 0, "syn": 1 << 1, "rst": 1 << 2, "psh": 1 << 3, "ack": 1 << 4, "urg": 1 << 5, "ece": 1 << 6, "cwr": 1 << 7, "all": 0xff,
}

// Defaults returns a Config that records nothing, and what is used once it does.
func Defaults() Config {
	return Config{
		SocketPath: "/var/run/cilium/hubble.sock", Capacity: 4095,
		Aggregation: "medium", AggregationInterval: 5 * time.Second, AggregationFlags: []string{"syn", "fin", "rst"},
	}
}

// Flags binds the options.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.Enable, "enable-hubble", c.Enable, "record flows, for hawser observe and for clients, relays and user interfaces of Hubble")
	fs.StringVar(&c.SocketPath, "hubble-socket-path", c.SocketPath, "unix socket at which flows are served to root and the group of the agent's API")
	fs.StringVar(&c.ListenAddress, "hubble-listen-address", c.ListenAddress, "address at which flows are served to relays, such as :4244; empty for none; needs the three TLS options or --hubble-disable-tls")
	fs.IntVar(&c.Capacity, "hubble-event-buffer-capacity", c.Capacity, "how many flows are kept, up to 65535; with 0 flows are recorded only while a client follows")
	fs.BoolVar(&c.NoTLS, "hubble-disable-tls", c.NoTLS, "serve flows at --hubble-listen-address without TLS, to all clients that can reach it")
	fs.StringVar(&c.TLS.Cert, "hubble-tls-cert-file", c.TLS.Cert, "server certificate for flows, a PEM file, read again for each connection")
	fs.StringVar(&c.TLS.Key, "hubble-tls-key-file", c.TLS.Key, "key of that certificate, a PEM file")
	fs.StringVar(&c.Aggregation, "monitor-aggregation", c.Aggregation, "which forwarded packets are recorded as flows: none or low for all; "+
		"medium or maximum for those that open a connection, the first reply, those that end it, and samples")
	fs.DurationVar(&c.AggregationInterval, "monitor-aggregation-interval", c.AggregationInterval,
		"with --monitor-aggregation=medium or maximum, how often an active connection is sampled; 0 for never")
	fs.StringSliceVar(&c.AggregationFlags, "monitor-aggregation-flags", c.AggregationFlags,
		"with --monitor-aggregation=medium or maximum, the TCP flags whose first packet in each direction is recorded, such as syn,fin,rst; all for all")
	fs.StringSliceVar(&c.TLS.ClientCAs, "hubble-tls-client-ca-files", c.TLS.ClientCAs, "certificate authorities of clients, PEM files")
	fs.StringVar(&c.Metrics, "hubble-metrics", c.Metrics, "metrics of flows, separated by spaces: drop, flow, icmp, policy, port-distribution, tcp, each with options such as drop:sourceContext=pod;labelsContext=traffic_direction")
	fs.StringVar(&c.MetricsAddress, "hubble-metrics-server", c.MetricsAddress, "address to serve the metrics of flows at, such as :9965")
}

// port is the TCP port at which this node, and so every other, serves flows.
func (c *Config) port() uint16 {
	if _, text, err := net.SplitHostPort(c.ListenAddress); err == nil {
		if n, err := strconv.ParseUint(text, 10, 16); err == nil && n > 0 {
			return uint16(n)
		}
	}
	return flowserver.DefaultPort
}

// events are the kinds of event of which flows are made: a connection that begins is evaluated, and
// so has a verdict.
func (c *Config) events() datapath.MonitorFlags {
	if aggregationLevels[strings.ToLower(c.Aggregation)] {
		return datapath.MonitorDrops | datapath.MonitorVerdicts | datapath.MonitorFlowUpdates
	}
	return datapath.MonitorDrops | datapath.MonitorVerdicts | datapath.MonitorTraces
}

// MonitorAggregation is what the programs get of [Config.Aggregation].
func (c *Config) MonitorAggregation() datapath.Aggregation {
	if !c.Enable {
		return datapath.Aggregation{}
	}
	out := datapath.Aggregation{Interval: c.AggregationInterval}
	for _, name := range c.AggregationFlags {
		out.TCPFlags |= tcpFlagBits[strings.ToLower(name)]
	}
	return out
}

// Validate returns everything that is wrong with it.
func (c *Config) Validate() error {
	if !c.Enable {
		return nil // what belongs to it may be anything
	}
	var errs validate.Errors
	address := func(option, text string) {
		if _, port, err := net.SplitHostPort(text); err != nil {
			errs.Add("%s: %q is not host:port", option, text)
		} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
			errs.Add("%s: %q is not a port", option, port)
		}
	}
	errs.If(c.Capacity < 0 || c.Capacity > flows.MaxCapacity, "--hubble-event-buffer-capacity: %d is outside 0 to %d", c.Capacity, flows.MaxCapacity)
	errs.If(!filepath.IsAbs(c.SocketPath) || len(c.SocketPath) > 107, "--hubble-socket-path: %q is no absolute path of at most 107 characters", c.SocketPath)
	if asked, err := flowmetrics.Parse(c.Metrics); err != nil {
		errs.Add("--hubble-metrics: %w", err)
	} else if len(asked) > 0 && c.MetricsAddress == "" {
		errs.Add("--hubble-metrics: give --hubble-metrics-server an address to serve them at, such as :9965")
	}
	if c.MetricsAddress != "" {
		address("--hubble-metrics-server", c.MetricsAddress)
	}
	if _, ok := aggregationLevels[strings.ToLower(c.Aggregation)]; !ok {
		errs.Add("--monitor-aggregation: %q is not one of none, low, medium, maximum", c.Aggregation)
	}
	errs.If(c.AggregationInterval < 0 || c.AggregationInterval > time.Hour, "--monitor-aggregation-interval: %s is outside 0 to an hour", c.AggregationInterval)
	for _, name := range c.AggregationFlags {
		errs.If(tcpFlagBits[strings.ToLower(name)] == 0, "--monitor-aggregation-flags: %q is not one of fin, syn, rst, psh, ack, urg, ece, cwr, all", name)
	}
	if c.ListenAddress == "" {
		return errs.Err()
	}
	address("--hubble-listen-address", c.ListenAddress)
	if !c.NoTLS && (c.TLS.Cert == "" || c.TLS.Key == "" || len(c.TLS.ClientCAs) == 0) {
		errs.Add("--hubble-listen-address: clients are known by their certificates: give --hubble-tls-cert-file, --hubble-tls-key-file and " +
			"--hubble-tls-client-ca-files, or --hubble-disable-tls to serve flows to all clients that can reach the address")
	}
	return errs.Err()
}
