// Package kube connects the operator with the API server of its cluster, and makes the caches and
// clients that its controllers share.
package kube

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"time"

	"github.com/spf13/pflag"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/apimachinery/pkg/util/validation"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/util/flowcontrol"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/validate"
)

// Config defines how to reach the API server. Use [Defaults].
type Config struct {
	// Enable allows the use of Kubernetes; see [Config.InUse].
	Enable bool
	k8s.Server
	// QPS and Burst bound the requests per second of all clients of this process together.
	QPS   float32
	Burst int
	// Namespace is where the operator runs: where its lease is, and the agents' pods.
	Namespace string
}

// Defaults returns the configuration of an operator that is given no options. It allows for the
// collection of many identities at the default rate, in addition to everything else.
func Defaults() Config { return Config{Enable: true, QPS: 500, Burst: 1000} }

// EnableFlag is the name of the flag of Config.Enable. If it is set explicitly, a missing cluster
// is an error.
const EnableFlag = "enable-k8s"

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.BoolVar(&c.Enable, EnableFlag, c.Enable, "manage a Kubernetes cluster, if this is a pod of one or an option locates it")
	c.Server.Flags(fs)
	fs.Float32Var(&c.QPS, "operator-k8s-client-qps", c.QPS, "how many requests a second to send to the API server, whatever for")
	fs.IntVar(&c.Burst, "operator-k8s-client-burst", c.Burst, "how many requests to send to the API server at once")
	fs.StringVar(&c.Namespace, "k8s-namespace", c.Namespace, "namespace that the operator and the agents run in; empty for \"default\"")
}

// InUse reports whether there is a cluster to manage: an option locates it, or the process runs in
// a pod.
func (c *Config) InUse(getenv func(string) string) bool {
	inPod := getenv("KUBERNETES_SERVICE_HOST") != "" && getenv("KUBERNETES_SERVICE_PORT") != ""
	return c.Enable && (c.KubeconfigPath != "" || c.APIServer != "" || inPod)
}

// Validate checks every option and joins all faults in one error.
func (c *Config) Validate() error {
	errs := validate.Errors{c.Server.Validate()}
	errs.If(c.QPS <= 0 || c.Burst < 1, "--operator-k8s-client-qps and -burst: %g and %d must be above 0", c.QPS, c.Burst)
	errs.If(c.Namespace != "" && len(validation.IsDNS1123Label(c.Namespace)) > 0, "--k8s-namespace: %q is not the name of a namespace", c.Namespace)
	return errs.Err()
}

// InNamespace returns the namespace that the operator runs in.
func (c *Config) InNamespace() string {
	return cmp.Or(c.Namespace, "default")
}

// Rest returns the configuration of clients, which share one budget of requests: without, client-go
// gives every kind of object one of its own. It reads files but sends nothing.
func (c *Config) Rest(userAgent string) (*rest.Config, error) {
	cfg, err := c.REST()
	if err != nil {
		return nil, err
	}
	cfg.QPS, cfg.Burst, cfg.UserAgent = c.QPS, c.Burst, userAgent
	cfg.RateLimiter = flowcontrol.NewTokenBucketRateLimiter(c.QPS, c.Burst)
	return cfg, nil
}

// Prober asks the server for its version, which needs no right and no store.
type Prober struct {
	client rest.Interface
	http   *http.Client
}

// NewProber returns a prober. It has connections of its own and no limit of requests: a busy
// operator is not a sick one. Close it after use.
func NewProber(cfg *rest.Config) (*Prober, error) {
	own := rest.CopyConfig(cfg)
	own.QPS, own.RateLimiter = -1, nil
	Apart(own)
	h, err := rest.HTTPClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("a client for the API server's version: %w", err)
	}
	client, err := discovery.NewDiscoveryClientForConfigAndClient(own, h)
	if err != nil {
		return nil, fmt.Errorf("a client for the API server's version: %w", err)
	}
	return &Prober{client.RESTClient(), h}, nil
}

// Version asks for the server's version.
func (p *Prober) Version(ctx context.Context) (*version.Info, error) {
	data, err := p.client.Get().AbsPath("/version").MaxRetries(0).DoRaw(ctx)
	if err != nil {
		return nil, fmt.Errorf("the API server does not answer: %w", err)
	}
	info := &version.Info{}
	if err := json.Unmarshal(data, info); err != nil {
		return nil, fmt.Errorf("the API server's version cannot be read: %w", err)
	}
	return info, nil
}

// Close closes the connections.
func (p *Prober) Close() { utilnet.CloseIdleConnectionsFor(p.http.Transport) }

// Apart makes clients of cfg have connections of their own; client-go shares those of equal
// configurations in the whole process.
func Apart(cfg *rest.Config) {
	if cfg.Dial == nil {
		cfg.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: dialTimeout}).DialContext
	}
}

const dialTimeout = 10 * time.Second
