package cli

import (
	"cmp"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"

	"github.com/hawser-net/hawser/api/observer"
	policypb "github.com/hawser-net/hawser/api/policy"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/flows"
)

const (
	// defaultFlowServer is where an agent serves flows.
	defaultFlowServer = "unix:///var/run/cilium/hubble.sock"
	// envFlowServer names another place.
	envFlowServer = "HUBBLE_SERVER"
	// lastFlows is how many flows are shown if nothing says how many.
	lastFlows = 20
)

// flowServer is where flows are read, and how.
type flowServer struct {
	address            string
	tls                bool
	cas                []string
	cert, key, tlsName string
}

func (s *flowServer) flags(c *cobra.Command) {
	fs := c.Flags()
	fs.StringVar(&s.address, "server", "", "`address` of the server of flows: unix:///path, a path, or host:port (default "+defaultFlowServer+")")
	fs.BoolVar(&s.tls, "tls", false, "speak TLS with host:port; also if one of the following is given")
	fs.StringSliceVar(&s.cas, "tls-ca-cert-files", nil, "authorities of the server's certificate, PEM `files`; those of this machine by default")
	fs.StringVar(&s.cert, "tls-client-cert-file", "", "certificate to show to the server, a PEM `file`")
	fs.StringVar(&s.key, "tls-client-key-file", "", "key of that certificate, a PEM `file`")
	fs.StringVar(&s.tlsName, "tls-server-name", "", "`name` in the server's certificate; the host by default")
}

// dial returns a connection to the server. It does not wait for an answer.
func (s *flowServer) dial(getenv func(string) string) (*grpc.ClientConn, error) {
	address := cmp.Or(s.address, getenv(envFlowServer), defaultFlowServer)
	if filepath.IsAbs(address) {
		address = "unix://" + address
	}
	secure := s.tls || len(s.cas) > 0 || s.cert != "" || s.key != "" || s.tlsName != ""
	creds := insecure.NewCredentials()
	switch {
	case strings.HasPrefix(address, "unix:"):
		if secure {
			return nil, usagef("TLS is for host:port; %s needs none", address)
		}
	default:
		address = strings.TrimPrefix(strings.TrimPrefix(address, "tcp://"), "dns:///")
		if _, _, err := net.SplitHostPort(address); err != nil {
			return nil, usagef("--server: %q is neither unix:///path, a path, nor host:port", address)
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
		return nil, usagef("--server: %v", err)
	}
	return conn, nil
}

func (s *flowServer) config() (*tls.Config, error) {
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
		// It is shown whatever the server says that it would like.
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

// flowError makes an answer of the server one of the command line's.
func flowError(err error, address string) error {
	st, ok := status.FromError(err)
	if !ok || err == nil {
		return err
	}
	switch st.Code() {
	case codes.Canceled:
		return context.Canceled
	case codes.InvalidArgument:
		return usagef("%s", st.Message())
	case codes.Unavailable:
		return &codedError{ExitUnreachable, fmt.Errorf("no server of flows answers at %s (an agent serves flows with --enable-hubble): %s", address, st.Message())}
	}
	return errors.New(st.Message())
}

// observeOptions are what hawser observe is told besides its filters.
type observeOptions struct {
	server flowServer
	filter flowFilter
	observeRange
	explain  bool
	policies bool
	nodeName bool
	output   string
}

func (a *app) observeCommand() *cobra.Command {
	o := &observeOptions{}
	c := &cobra.Command{
		Use:   "observe",
		Short: "Show who talks to whom, and what is refused",
		Long: `Show flows that a node has seen, the latest ` + fmt.Sprint(lastFlows) + ` unless something else is asked for: verdicts of
policy, which every connection gets that begins, and packets that were dropped, with the
pods, labels and services of both sides and the policies that decided. The agent records
them with --enable-hubble.

A filter with --from or --to in its name is about that side of a flow. Without, it is about
either side; all of these together are then about the same one. Several values of one flag
mean any of them, several flags all of them.

A relay (--server) answers for all nodes: their names stand after the time, and a line says
which of them cannot be asked.

With --policy-changes a line says between the flows when a policy changed, and with which
revision of the node that told it first.

With --explain a flow that policy refused is followed by the rules that refuse it, by those
of now, and by what would let it pass.

A reader that is slower than flows come misses some: a line says how many, whatever the
filters.`,
		Example: `  hawser observe --verdict DROPPED --follow
  hawser observe --to-pod shop/db --since 10m
  hawser observe --verdict DROPPED --to-namespace shop --explain
  hawser observe --to-pod shop/db --since 1h --policy-changes
  hawser observe --pod shop/front --protocol tcp --to-port 5432 -o json
  hawser observe --label app=front,tier!=test --type policy-verdict --last 100
  hawser observe --server 192.0.2.7:4244 --tls-ca-cert-files ca.crt --tls-client-cert-file me.crt \
    --tls-client-key-file me.key --tls-server-name n1.default.hubble-grpc.cilium.io`,
		Args: cobra.NoArgs,
	}
	o.observeRange.flags(c, "flows")
	fs := c.Flags()
	fs.StringVarP(&o.output, "output", "o", "compact", "`format`: compact, dict, table, json or jsonpb (the last two are the same)")
	fs.BoolVar(&o.nodeName, "print-node-name", false, "name the node that saw a flow also where there is only one; those of a relay are always named")
	fs.BoolVar(&o.explain, "explain", false, "say of flows that policy refused which rules do, and what would let them pass; not with json or table")
	o.filter.flags(c)
	o.server.flags(c)
	fs.BoolVar(&o.policies, "policy-changes", false, "show between the flows which policies changed, once for all nodes; not with table")
	c.AddCommand(a.observeNodesCommand(), a.observeHealthCommand(), a.observeStatusCommand(), a.observeNamespacesCommand(), a.observeAgentEventsCommand())
	_ = c.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(
		[]cobra.Completion{"compact", "dict", "table", "json", "jsonpb"}, cobra.ShellCompDirectiveNoFileComp))
	for _, name := range []string{"pod", "from-pod", "to-pod"} {
		_ = c.RegisterFlagCompletionFunc(name, a.completePods())
	}
	for _, name := range []string{"namespace", "from-namespace", "to-namespace"} {
		_ = c.RegisterFlagCompletionFunc(name, a.completeNamespaces(&o.server))
	}
	c.RunE = func(cmd *cobra.Command, _ []string) error { return a.observe(cmd, o) }
	return c
}

// request is what the options ask of the server.
func (o *observeOptions) request(q asked) (*observer.GetFlowsRequest, error) {
	white, err := o.filter.lists()
	if err != nil {
		return nil, err
	}
	return &observer.GetFlowsRequest{Whitelist: white, Follow: o.follow, Number: q.number, First: q.first, Since: q.since, Until: q.until}, nil
}

func (a *app) observe(cmd *cobra.Command, o *observeOptions) error {
	q, err := o.asked(time.Now())
	if err != nil {
		return err
	}
	req, err := o.request(q)
	if err != nil {
		return err
	}
	if o.policies && o.output == "table" {
		return usagef("--policy-changes: a table has a row for each flow; use compact, dict or json")
	}
	if o.follow && o.output == "table" {
		return usagef("--output: a table is as wide as all that it shows, so it cannot follow; use compact")
	}
	if o.explain && o.output != "compact" && o.output != "dict" {
		return usagef("--explain: explanations are for people; use --output compact or dict")
	}
	writer, err := a.flowWriter(o.output, o.nodeName, cmd.OutOrStdout())
	if err != nil {
		return err
	}
	address := cmp.Or(o.server.address, a.cfg.Getenv(envFlowServer), defaultFlowServer)
	conn, err := o.server.dial(a.cfg.Getenv)
	if err != nil {
		return err
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(cmd.Context())
	defer cancel()
	if o.explain {
		a.explainRefusals(ctx, &writer, policypb.NewPolicyClient(conn), cmd.OutOrStdout())
	}
	if o.policies {
		end, err := a.beside(ctx, &writer, o, q, conn, cmd.OutOrStdout(), cmd.ErrOrStderr())
		if err != nil {
			return flowError(err, address)
		}
		last := writer.end
		writer.end = func() error { return errors.Join(end(), last()) }
	}
	stream, err := observer.NewObserverClient(conn).GetFlows(ctx, req)
	if err != nil {
		return errors.Join(flowError(err, address), writer.end())
	}
	for {
		res, err := stream.Recv()
		if err != nil {
			if errors.Is(err, io.EOF) {
				return writer.end()
			}
			err = flowError(err, address)
			// Being interrupted is how following ends well.
			if errors.Is(err, context.Canceled) && cmd.Context().Err() != nil {
				return writer.end()
			}
			return errors.Join(err, writer.end())
		}
		if err := writer.write(res); err != nil {
			return err
		}
	}
}

// explainRefusals has each flow that policy refused be followed by why.
func (a *app) explainRefusals(ctx context.Context, writer *flowWriter, client policypb.PolicyClient, w io.Writer) {
	e := &explainer{client: client, known: map[string]*policypb.ExplainResponse{}}
	write := writer.write
	writer.write = func(res *observer.GetFlowsResponse) error {
		if err := write(res); err != nil || !flows.RefusedByPolicy(res.GetFlow()) {
			return err
		}
		text := ""
		why, err := e.explain(ctx, &policypb.ExplainRequest{Flow: res.GetFlow()})
		switch {
		case err == nil:
			text = a.explanation(why)
		case ctx.Err() != nil:
			return nil
		default:
			text = "    not explained: " + printable(status.Convert(err).Message()) + "\n"
		}
		_, err = io.WriteString(w, text)
		return err
	}
}

// completePods offers the pods of this node.
func (a *app) completePods() func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return a.complete(func(ctx context.Context, c *client.Client) ([]string, error) {
		eps, err := c.Endpoints(ctx, nil)
		if err != nil {
			return nil, err
		}
		var out []string
		for _, ep := range eps {
			if ids := ep.Status.ExternalIdentifiers; ids.K8SPodName != "" {
				out = append(out, ids.K8SNamespace+"/"+ids.K8SPodName)
			}
		}
		return out, nil
	})
}

// completeNamespaces offers those that were in flows lately.
func (a *app) completeNamespaces(s *flowServer) func(*cobra.Command, []string, string) ([]cobra.Completion, cobra.ShellCompDirective) {
	return func(cmd *cobra.Command, _ []string, prefix string) ([]cobra.Completion, cobra.ShellCompDirective) {
		conn, err := s.dial(a.cfg.Getenv)
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		defer conn.Close()
		ctx := cmd.Context()
		if ctx == nil {
			ctx = context.Background()
		}
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		res, err := observer.NewObserverClient(conn).GetNamespaces(ctx, &observer.GetNamespacesRequest{})
		if err != nil {
			return nil, cobra.ShellCompDirectiveError
		}
		var out []cobra.Completion
		for _, ns := range res.GetNamespaces() {
			if strings.HasPrefix(ns.GetNamespace(), prefix) {
				out = append(out, ns.GetNamespace())
			}
		}
		return out, cobra.ShellCompDirectiveNoFileComp
	}
}
