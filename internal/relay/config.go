package relay

import (
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/daemon"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/validate"
)

// Config is what a [Relay] is made from. The names of its flags are those of Hubble's relay.
type Config struct {
	daemon.Options
	// ListenAddress is where clients are served: host:port, or unix:///path. HealthAddress serves
	// their state of health to probes, MetricsAddress metrics; empty, or none, for nowhere.
	ListenAddress, HealthAddress, MetricsAddress string
	// PeerService is where an agent serves the list of nodes: host:port, or unix:///path.
	PeerService string
	ClusterName string
	// DialTimeout bounds how long a node may take to answer, RetryTimeout how long it is left alone
	// after it did not.
	DialTimeout, RetryTimeout time.Duration
	// SortBuffer is how many flows a request holds to sort them, SortDrain for how long at most.
	SortBuffer int
	SortDrain  time.Duration
	// ErrorWindow is how much time passes between two messages about the state of nodes.
	ErrorWindow time.Duration
	// Streams is how many requests for flows are served at once.
	Streams int
	// ClientTLS is how nodes are asked, and ServerTLS how clients are served.
	ClientTLS   TLSFiles
	NoClientTLS bool
	ServerTLS   flowserver.TLSFiles
	NoServerTLS bool

	// probe is how often nodes are asked whether they are there, stall how long a client may take
	// nothing, relist after how long nodes are removed that a new list does not have, grace how
	// long requests may go on when the relay stops.
	probe, stall, relist, grace time.Duration
	// nodes is how many nodes are asked, at most, past how many entries each may send after the end
	// of what is asked for.
	nodes, past int
	// upstreams is how many streams from nodes there may be at once, keep what flows may cost that
	// all requests together hold for the last of all nodes, and large what entries may cost that
	// they hold to sort them, of those that cost more than entryCost.
	upstreams, keep, large int64
}

// Defaults returns the configuration of a relay in a cluster.
func Defaults() Config {
	return Config{
		Options: daemon.Defaults(), ListenAddress: ":4245", HealthAddress: ":4222", PeerService: "unix:///var/run/cilium/hubble.sock", ClusterName: "default",
		DialTimeout: 5 * time.Second, RetryTimeout: 30 * time.Second, SortBuffer: 1024, SortDrain: time.Second,
		ErrorWindow: 10 * time.Second, Streams: 128,
		probe: 10 * time.Second, stall: time.Minute, relist: 30 * time.Second, grace: 5 * time.Second,
		nodes: maxNodes, past: maxPast, upstreams: 1 << 15, keep: 512 << 20, large: 256 << 20,
	}
}

// Flags binds the options.
func (c *Config) Flags(fs *pflag.FlagSet) {
	c.Options.Flags(fs)
	fs.StringVar(&c.ListenAddress, "listen-address", c.ListenAddress, "address at which clients are served, host:port or unix:///path (for root alone, without TLS)")
	fs.StringVar(&c.HealthAddress, "health-listen-address", c.HealthAddress, "address of the health service (gRPC, without TLS); none for nowhere")
	fs.StringVar(&c.MetricsAddress, "metrics-listen-address", c.MetricsAddress, "address at which metrics are served (/metrics); none for nowhere")
	fs.StringVar(&c.PeerService, "peer-service", c.PeerService, "where an agent serves the list of nodes, host:port or unix:///path")
	fs.StringVar(&c.ClusterName, "cluster-name", c.ClusterName, "name of the cluster, which is part of the name in the certificate of --peer-service")
	fs.DurationVar(&c.DialTimeout, "dial-timeout", c.DialTimeout, "how long a node may take to answer")
	fs.DurationVar(&c.RetryTimeout, "retry-timeout", c.RetryTimeout, "longest delay before the next connection to a node that did not answer; the first delay is half a second, and each is twice the last")
	fs.IntVar(&c.SortBuffer, "sort-buffer-len-max", c.SortBuffer, "how many flows are buffered for each client to sort them by time")
	fs.DurationVar(&c.SortDrain, "sort-buffer-drain-timeout", c.SortDrain, "how long a flow is buffered for that, at most")
	fs.DurationVar(&c.ErrorWindow, "error-aggregation-window", c.ErrorWindow, "clients get changes of the states of nodes at most this often, the first one immediately")
	fs.IntVar(&c.Streams, "max-streams", c.Streams, "how many requests for flows are served at once; clients at one address have at most half of them, each further address half of the rest")
	fs.StringVar(&c.ClientTLS.Cert, "tls-hubble-client-cert-file", c.ClientTLS.Cert, "certificate to present to nodes, a PEM file, read again for each connection")
	fs.StringVar(&c.ClientTLS.Key, "tls-hubble-client-key-file", c.ClientTLS.Key, "key of that certificate, a PEM file")
	fs.StringSliceVar(&c.ClientTLS.CAs, "tls-hubble-server-ca-files", c.ClientTLS.CAs, "authorities of which one must have signed the certificates of nodes, PEM files")
	fs.BoolVar(&c.NoClientTLS, "disable-client-tls", c.NoClientTLS, "connect to nodes without TLS, for agents with --hubble-disable-tls")
	fs.StringVar(&c.ServerTLS.Cert, "tls-relay-server-cert-file", c.ServerTLS.Cert, "certificate of the relay, a PEM file, read again for each connection")
	fs.StringVar(&c.ServerTLS.Key, "tls-relay-server-key-file", c.ServerTLS.Key, "key of that certificate, a PEM file")
	fs.StringSliceVar(&c.ServerTLS.ClientCAs, "tls-relay-client-ca-files", c.ServerTLS.ClientCAs, "certificate authorities of clients, PEM files")
	fs.BoolVar(&c.NoServerTLS, "disable-server-tls", c.NoServerTLS, "serve flows without TLS, to all clients that can reach --listen-address")
}

// Validate returns everything that is wrong.
func (c *Config) Validate() error {
	errs := validate.Errors{c.Options.Validate()}
	for _, a := range []struct {
		flag, address  string
		socket, absent bool
	}{
		{"listen-address", c.ListenAddress, true, false}, {"peer-service", c.PeerService, true, false},
		{"health-listen-address", c.HealthAddress, false, true}, {"metrics-listen-address", c.MetricsAddress, false, true},
	} {
		path, isSocket := socketPath(a.address)
		switch {
		case !serves(a.address) && a.absent:
		case isSocket && a.socket:
			errs.If(!filepath.IsAbs(path) || len(path) > 107, "--%s: %q is no absolute path of at most 107 characters", a.flag, path)
		default:
			_, port, err := net.SplitHostPort(a.address)
			if err == nil {
				_, err = strconv.ParseUint(port, 10, 16)
			}
			errs.If(err != nil, "--%s: %q is not host:port", a.flag, a.address)
		}
	}
	for _, d := range []struct {
		flag string
		d    time.Duration
	}{{"dial-timeout", c.DialTimeout}, {"retry-timeout", c.RetryTimeout}, {"sort-buffer-drain-timeout", c.SortDrain}, {"error-aggregation-window", c.ErrorWindow}} {
		errs.If(d.d <= 0 || d.d > time.Hour, "--%s: %v is outside 0 to 1h", d.flag, d.d)
	}
	errs.If(c.SortBuffer < 1 || c.SortBuffer > 1<<16, "--sort-buffer-len-max: %d is outside 1 to %d", c.SortBuffer, 1<<16)
	errs.If(c.Streams < 1 || c.Streams > flowserver.MostOfOne,
		"--max-streams: %d is outside 1 to %d, which is as many as a node serves to one address", c.Streams, flowserver.MostOfOne)
	if _, isSocket := socketPath(c.ListenAddress); !isSocket && !c.NoServerTLS &&
		(c.ServerTLS.Cert == "" || c.ServerTLS.Key == "" || len(c.ServerTLS.ClientCAs) == 0) {
		errs.Add("--listen-address: clients are known by their certificates: give --tls-relay-server-cert-file, --tls-relay-server-key-file and " +
			"--tls-relay-client-ca-files, or --disable-server-tls to serve the flows of all nodes to all clients that can reach the address")
	}
	if !c.NoClientTLS && (c.ClientTLS.Cert == "" || c.ClientTLS.Key == "" || len(c.ClientTLS.CAs) == 0) {
		errs.Add("nodes serve flows to clients with a certificate: give --tls-hubble-client-cert-file, --tls-hubble-client-key-file and " +
			"--tls-hubble-server-ca-files, or --disable-client-tls if agents have --hubble-disable-tls")
	}
	return errs.Err()
}

// serves reports whether an option is an address. A ConfigMap cannot set an option empty.
func serves(address string) bool { return address != "" && address != "none" }

// socketPath is the path of unix:///path.
func socketPath(address string) (path string, ok bool) { return strings.CutPrefix(address, "unix://") }
