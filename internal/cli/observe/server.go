package observe

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/cli/output"
	"github.com/hawser-net/hawser/internal/exitcode"
)

const (
	// defaultFlowServer is where an agent serves flows.
	defaultFlowServer = "unix:///var/run/cilium/hubble.sock"
	// envFlowServer names another place.
	envFlowServer = "HUBBLE_SERVER"
)

// Server is where flows are read, and how.
type Server struct {
	address            string
	tls                bool
	cas                []string
	cert, key, tlsName string
}

// AddFlags adds the flags of the server's address to c.
func (s *Server) AddFlags(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&s.address, "server", "", "`address` of the server of flows: unix:///path, a path, host:port, or tls://host:port (default $"+envFlowServer+", else "+defaultFlowServer+")")
	fs.BoolVar(&s.tls, "tls", false, "speak TLS with host:port; also if the address begins with tls://, or if one of the following is given")
	fs.StringSliceVar(&s.cas, "tls-ca-cert-files", nil, "authorities of the server's certificate, PEM `files`; those of this machine by default")
	fs.StringVar(&s.cert, "tls-client-cert-file", "", "certificate to show to the server, a PEM `file`")
	fs.StringVar(&s.key, "tls-client-key-file", "", "key of that certificate, a PEM `file`")
	fs.StringVar(&s.tlsName, "tls-server-name", "", "`name` in the server's certificate; the host by default")
}

// place is the address that is asked.
func (s *Server) place(a *command.App) string {
	return cmp.Or(s.address, a.Getenv(envFlowServer), defaultFlowServer)
}

// Dial returns a connection to the server. It does not wait for an answer.
func (s *Server) Dial(a *command.App) (*grpc.ClientConn, error) {
	address := s.place(a)
	if filepath.IsAbs(address) {
		address = "unix://" + address
	}
	address, secure := strings.CutPrefix(address, "tls://")
	secure = secure || s.tls || len(s.cas) > 0 || s.cert != "" || s.key != "" || s.tlsName != ""
	creds := insecure.NewCredentials()
	switch {
	case strings.HasPrefix(address, "unix:"):
		if secure {
			return nil, exitcode.Usagef("TLS is for host:port; %s needs none", address)
		}
	default:
		address = strings.TrimPrefix(strings.TrimPrefix(address, "tcp://"), "dns:///")
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, exitcode.Usagef("--server: %q is neither unix:///path, a path, host:port, nor tls://host:port", s.place(a))
		}
		if secure {
			cfg, err := s.config()
			if err != nil {
				return nil, err
			}
			creds = renewed{credentials.NewTLS(cfg), s.config}
		}
		address = "passthrough:///" + address
	}
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(creds))
	if err != nil {
		return nil, exitcode.Usagef("--server: %v", err)
	}
	return conn, nil
}

func (s *Server) config() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS13, ServerName: s.tlsName}
	if len(s.cas) > 0 {
		cfg.RootCAs = x509.NewCertPool()
		for _, path := range s.cas {
			pem, err := os.ReadFile(path)
			if err != nil {
				return nil, fmt.Errorf("--tls-ca-cert-files: %w", err)
			}
			if !cfg.RootCAs.AppendCertsFromPEM(pem) {
				return nil, fmt.Errorf("--tls-ca-cert-files: %s holds no certificate", path)
			}
		}
	}
	if s.cert != "" || s.key != "" {
		pair, err := tls.LoadX509KeyPair(s.cert, s.key)
		if err != nil {
			return nil, fmt.Errorf("--tls-client-cert-file and --tls-client-key-file: %w", err)
		}
		// It is shown whatever certificates the server asks for.
		cfg.GetClientCertificate = func(*tls.CertificateRequestInfo) (*tls.Certificate, error) { return &pair, nil }
	}
	return cfg, nil
}

// renewed reads the files again for each connection: the page lives longer than certificates and
// their authorities do.
type renewed struct {
	credentials.TransportCredentials
	config func() (*tls.Config, error)
}

// ClientHandshake implements [credentials.TransportCredentials].
func (r renewed) ClientHandshake(ctx context.Context, authority string, conn net.Conn) (net.Conn, credentials.AuthInfo, error) {
	cfg, err := r.config()
	if err != nil {
		return nil, nil, err
	}
	return credentials.NewTLS(cfg).ClientHandshake(ctx, authority, conn)
}

// Clone implements [credentials.TransportCredentials].
func (r renewed) Clone() credentials.TransportCredentials {
	return renewed{r.TransportCredentials.Clone(), r.config}
}

// AnswerError makes an error of the server one of the command line's.
func (s *Server) AnswerError(a *command.App, err error) error {
	st, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	text := output.Printable(st.Message())
	switch st.Code() {
	case codes.Canceled:
		return context.Canceled
	case codes.InvalidArgument:
		return exitcode.Usagef("%s", text)
	case codes.Unavailable:
		return exitcode.With(exitcode.Unreachable, fmt.Errorf("no server of flows answers at %s: %s\n%s", s.place(a), output.Printable(whyUnavailable(st.Message())),
			"Is the agent running, with --enable-hubble? Another server is named with --server or "+envFlowServer+"."))
	}
	return errors.New(text)
}

// connectionError is how gRPC wraps and quotes what failed below it.
var connectionError = regexp.MustCompile(`connection error: desc = ("(?:[^"\\]|\\.)*")`)

// whyUnavailable is why there is no answer, without gRPC's words where the connection failed. gRPC
// hands on the text of the cause only.
func whyUnavailable(message string) string {
	m := connectionError.FindStringSubmatch(message)
	if m == nil {
		return message
	}
	cause, err := strconv.Unquote(m[1])
	if err != nil {
		return message
	}
	cause = strings.TrimPrefix(strings.TrimPrefix(cause, "transport: "), "Error while dialing: ")
	switch {
	case strings.HasSuffix(cause, syscall.ENOENT.Error()):
		return "the socket does not exist"
	case strings.HasSuffix(cause, syscall.ECONNREFUSED.Error()):
		return "nothing listens there"
	case strings.HasSuffix(cause, syscall.EACCES.Error()):
		return "permission denied: use root or join the group that owns the socket"
	}
	return cause
}

// CompleteNamespaces offers those that were in flows lately.
func CompleteNamespaces(a *command.App, s *Server) cobra.CompletionFunc {
	return s.complete(a, func(ctx context.Context, c observer.ObserverClient) (out []string, err error) {
		res, err := c.GetNamespaces(ctx, &observer.GetNamespacesRequest{})
		for _, ns := range res.GetNamespaces() {
			out = append(out, ns.GetNamespace())
		}
		return out, err
	})
}

// completeNodes offers the nodes whose flows the server has, as cluster/name.
func completeNodes(a *command.App, s *Server) cobra.CompletionFunc {
	return s.complete(a, func(ctx context.Context, c observer.ObserverClient) (out []string, err error) {
		res, err := c.GetNodes(ctx, &observer.GetNodesRequest{})
		for _, n := range res.GetNodes() {
			out = append(out, n.GetName())
		}
		return out, err
	})
}

// complete offers as completions what list gets from the server; if it fails there are none.
func (s *Server) complete(a *command.App, list func(context.Context, observer.ObserverClient) ([]string, error)) cobra.CompletionFunc {
	return command.Completions(func(ctx context.Context) ([]string, error) {
		conn, err := s.Dial(a)
		if err != nil {
			return nil, err
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		return list(ctx, observer.NewObserverClient(conn))
	})
}
