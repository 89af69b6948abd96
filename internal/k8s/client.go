package k8s

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"time"

	"github.com/spf13/pflag"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/runtime/serializer"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/metadata"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/client-go/util/flowcontrol"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/validate"
)

// Server is where the API server is.
type Server struct {
	// KubeconfigPath is a kubeconfig file. Without one, the service account of the pod is used.
	KubeconfigPath string
	// APIServer is the server's address, such as https://10.0.0.1:6443. It replaces the one that
	// the kubeconfig file or the pod's environment has.
	APIServer string
}

// Config defines how to reach the API server.
type Config struct {
	Server
	// QPS and Burst bound background requests a second. Those that a pod waits for are not bounded.
	QPS   float32
	Burst int
	// UserAgent identifies the client to the server.
	UserAgent string
}

// Defaults returns the defaults.
func Defaults() Config { return Config{QPS: 10, Burst: 20, UserAgent: "hawser-agent"} }

// Flags registers the options.
func (s *Server) Flags(fs *pflag.FlagSet) {
	fs.StringVar(&s.KubeconfigPath, "k8s-kubeconfig-path", s.KubeconfigPath, "kubeconfig file; empty for the pod's service account")
	fs.StringVar(&s.APIServer, "k8s-api-server", s.APIServer, "URL of the Kubernetes API server, instead of the one in the kubeconfig or the pod's environment")
}

// Flags registers the options.
func (c *Config) Flags(fs *pflag.FlagSet) {
	c.Server.Flags(fs)
	fs.Float32Var(&c.QPS, "k8s-client-qps", c.QPS, "how many requests a second to send to the API server; those that a pod waits for are not limited")
	fs.IntVar(&c.Burst, "k8s-client-burst", c.Burst, "how many requests to send to the API server at once; those that a pod waits for are not limited")
}

// Validate reports an address that is invalid. It does not look at files.
func (s *Server) Validate() error {
	if s.APIServer == "" {
		return nil
	}
	if u, err := url.Parse(s.APIServer); err != nil || u.Host == "" || (u.Scheme != "https" && u.Scheme != "http") {
		return fmt.Errorf("--k8s-api-server: %q is not a URL such as https://10.0.0.1:6443", s.APIServer)
	}
	return nil
}

// Validate reports all invalid settings. It does not look at files.
func (c *Config) Validate() error {
	errs := validate.Errors{c.Server.Validate()}
	errs.If(c.QPS <= 0, "--k8s-client-qps: %v is not above 0", c.QPS)
	errs.If(c.Burst < 1, "--k8s-client-burst: %d is below 1", c.Burst)
	return errs.Err()
}

// InPod reports whether the process runs in a pod: whether Kubernetes gave it the address of its
// API.
func InPod() bool {
	return os.Getenv("KUBERNETES_SERVICE_HOST") != "" && os.Getenv("KUBERNETES_SERVICE_PORT") != ""
}

// REST turns the address into client-go's configuration. It reads the kubeconfig file or the
// service account's.
func (s *Server) REST() (*rest.Config, error) {
	switch {
	case s.KubeconfigPath != "":
		rc, err := clientcmd.BuildConfigFromFlags(s.APIServer, s.KubeconfigPath)
		if err != nil {
			return nil, fmt.Errorf("--k8s-kubeconfig-path: %s: %w", s.KubeconfigPath, err)
		}
		return rc, nil
	case InPod():
		rc, err := rest.InClusterConfig()
		if err != nil {
			return nil, fmt.Errorf("the pod's service account: %w", err)
		}
		if s.APIServer != "" {
			rc.Host = s.APIServer
		}
		return rc, nil
	case s.APIServer != "":
		return &rest.Config{Host: s.APIServer}, nil
	}
	return nil, errors.New("this is no pod of a cluster, so --k8s-kubeconfig-path or --k8s-api-server must say where the cluster is")
}

// REST turns the configuration into client-go's, as [Server.REST] does.
func (c *Config) REST() (*rest.Config, error) {
	rc, err := c.Server.REST()
	if err != nil {
		return nil, err
	}
	rc.QPS, rc.Burst, rc.UserAgent = c.QPS, c.Burst, c.UserAgent
	return rc, nil
}

// Client is the way to the API server. All its methods and fields may be used from many goroutines;
// the fields must not be changed.
//
// There are two sets of clients on the same connection: one for what a pod waits for, which is not
// limited on this side, and one for everything else, which keeps to the configured rate.
type Client struct {
	// Kube reaches the built-in kinds, as protobuf. Urgent is the same without a limit.
	Kube, Urgent kubernetes.Interface
	// Metadata reads only the metadata of objects of any kind.
	Metadata metadata.Interface
	// V2 and V2Alpha1 reach the kinds of cilium.io, as JSON. UrgentV2 is V2 without a limit.
	V2, UrgentV2, V2Alpha1 rest.Interface

	config    *rest.Config
	transport *http.Client
}

const (
	// dialTimeout bounds how long a connection may take: a server that is gone must not look slow.
	dialTimeout = 5 * time.Second
	// RequestTimeout is what a single request that is no watch may take, for callers to bound
	// theirs.
	RequestTimeout = 15 * time.Second
)

// New returns a client on a configuration, of which QPS and Burst count; without a QPS there is no
// limit. It makes no request.
func New(rc *rest.Config) (*Client, error) {
	rc = rest.CopyConfig(rc)
	if rc.Dial == nil {
		rc.Dial = (&net.Dialer{Timeout: dialTimeout, KeepAlive: 30 * time.Second}).DialContext
	}
	limit := flowcontrol.NewFakeAlwaysRateLimiter()
	if rc.QPS > 0 {
		limit = flowcontrol.NewTokenBucketRateLimiter(rc.QPS, rc.Burst)
	}
	// Connections are shared by all: HTTP/2 has no need for more than one.
	transport, err := rest.HTTPClientFor(rc)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	slow, urgent := rest.CopyConfig(rc), rest.CopyConfig(rc)
	slow.RateLimiter, urgent.RateLimiter = limit, flowcontrol.NewFakeAlwaysRateLimiter()
	c := &Client{config: slow, transport: transport}
	native := func(rc *rest.Config) *rest.Config {
		rc = rest.CopyConfig(rc)
		rc.ContentType, rc.AcceptContentTypes = runtime.ContentTypeProtobuf, runtime.ContentTypeProtobuf+","+runtime.ContentTypeJSON
		return rc
	}
	var errs []error
	keep := func(err error) { errs = append(errs, err) }
	c.Kube, err = kubernetes.NewForConfigAndClient(native(slow), transport)
	keep(err)
	c.Urgent, err = kubernetes.NewForConfigAndClient(native(urgent), transport)
	keep(err)
	c.Metadata, err = metadata.NewForConfigAndClient(slow, transport)
	keep(err)
	c.V2, err = c.custom(slow, v2.SchemeGroupVersion(), v2.AddToScheme)
	keep(err)
	c.UrgentV2, err = c.custom(urgent, v2.SchemeGroupVersion(), v2.AddToScheme)
	keep(err)
	c.V2Alpha1, err = c.custom(slow, v2alpha1.SchemeGroupVersion(), v2alpha1.AddToScheme)
	keep(err)
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return c, nil
}

// For returns a client for the kinds of a group that are not built in, as JSON, at the configured
// rate: add makes them known, as AddToScheme of their package does.
func (c *Client) For(gv schema.GroupVersion, add func(*runtime.Scheme) error) (rest.Interface, error) {
	return c.custom(c.config, gv, add)
}

func (c *Client) custom(rc *rest.Config, gv schema.GroupVersion, add func(*runtime.Scheme) error) (rest.Interface, error) {
	scheme := runtime.NewScheme()
	if err := add(scheme); err != nil {
		return nil, fmt.Errorf("kinds of %s: %w", gv, err)
	}
	rc = rest.CopyConfig(rc)
	rc.GroupVersion, rc.APIPath, rc.ContentType, rc.AcceptContentTypes = &gv, "/apis", runtime.ContentTypeJSON, ""
	rc.NegotiatedSerializer = serializer.NewCodecFactory(scheme).WithoutConversion()
	r, err := rest.RESTClientForConfigAndClient(rc, c.transport)
	if err != nil {
		return nil, fmt.Errorf("connect to Kubernetes: %w", err)
	}
	return r, nil
}

// Host is the server's address, for messages.
func (c *Client) Host() string { return c.config.Host }

// RESTConfig returns a copy of what the client was made from, for what needs a connection of its
// own.
func (c *Client) RESTConfig() *rest.Config { return rest.CopyConfig(c.config) }

// Version asks the server for its version, which shows that it answers.
func (c *Client) Version(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, RequestTimeout)
	defer cancel()
	raw, err := c.Urgent.Discovery().RESTClient().Get().AbsPath("/version").Do(ctx).Raw()
	if err != nil {
		return "", fmt.Errorf("ask the API server at %s for its version: %w", c.Host(), err)
	}
	return parseVersion(raw)
}
