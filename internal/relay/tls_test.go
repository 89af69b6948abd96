package relay

import (
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"log/slog"
	"maps"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/hawser-net/hawser/api/observer"
	"github.com/hawser-net/hawser/api/relay"
	"github.com/hawser-net/hawser/internal/flowserver"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// freePort returns an address at which no socket listens.
func freePort(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// TestCertificates: nodes are asked by TLS under the names that they have, and only those are
// accepted that show a certificate of theirs; clients are served only with one. Renewed files count
// for the next connection.
func TestCertificates(t *testing.T) {
	ours, others := kvstoretest.NewAuthority(t), kvstoretest.NewAuthority(t)
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path+".new", data, 0o600); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(path+".new", path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ca := write("ca", ours.PEM())
	pair := func(a *kvstoretest.Authority, name string, usage ...x509.ExtKeyUsage) (cert, key string) {
		c, k := a.Issue(t, name, usage...)
		return write(name+".crt", c), write(name+".key", k)
	}
	address := freePort(t)
	s := newStand(t, 3, func(c *Config) {
		c.ListenAddress, c.HealthAddress = address, freePort(t)
		c.ClientTLS.Cert, c.ClientTLS.Key = pair(&ours, "relay-client", x509.ExtKeyUsageClientAuth)
		c.ClientTLS.CAs = []string{ca}
		c.ServerTLS.Cert, c.ServerTLS.Key = pair(&ours, "relay.example")
		c.ServerTLS.ClientCAs = []string{ca}
	}, func(n node.Key) credentials.TransportCredentials {
		files := flowserver.TLSFiles{ClientCAs: []string{ca}}
		switch n.Name {
		case "n1":
			files.Cert, files.Key = pair(&ours, flowserver.ServerName(n))
		case "n2": // it has another node's certificate
			files.Cert, files.Key = pair(&ours, "n1-stolen.prod.hubble-grpc.cilium.io")
		case "n3": // it has one of another authority
			files.Cert, files.Key = pair(&others, flowserver.ServerName(n))
		}
		cfg, err := files.Config()
		if err != nil {
			t.Fatal(err)
		}
		return credentials.NewTLS(cfg)
	})
	problems := func(want int) map[string]string {
		out := map[string]string{}
		controllers.Eventually(t, testTimeout, func() string {
			views, _ := s.relay.roster.nodes()
			clear(out)
			for _, v := range views {
				if v.state == relay.NodeState_NODE_UNAVAILABLE {
					out[v.name] = v.problem
				}
			}
			if len(views) != 3 || len(out) != want {
				return fmt.Sprintf("%d nodes, %v", len(views), out)
			}
			return ""
		})
		return out
	}
	if got := problems(2); !strings.Contains(got["prod/n2"], "n1-stolen") || !strings.Contains(got["prod/n3"], "unknown authority") {
		t.Errorf("%v", got)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ours.PEM())
	ask := func(creds credentials.TransportCredentials) error {
		conn, err := grpc.NewClient("passthrough:///"+address, grpc.WithTransportCredentials(creds))
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		_, err = observer.NewObserverClient(conn).GetNodes(ctx, &observer.GetNodesRequest{})
		return err
	}
	client := func(a *kvstoretest.Authority) credentials.TransportCredentials {
		c := &tls.Config{RootCAs: roots, ServerName: "relay.example", MinVersion: tls.VersionTLS13}
		if a != nil {
			cert, key := a.Issue(t, "client", x509.ExtKeyUsageClientAuth)
			p, err := tls.X509KeyPair(cert, key)
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{p}
		}
		return credentials.NewTLS(c)
	}
	if err := ask(client(&ours)); err != nil {
		t.Errorf("a client with a certificate: %v", err)
	}
	// When certificates end can be read, of its own and of those that it has seen.
	controllers.Eventually(t, testTimeout, func() string {
		list, err := s.relay.metrics.registry.Gather()
		if err != nil {
			return err.Error()
		}
		left := map[string]bool{}
		for _, f := range list {
			for _, m := range f.GetMetric() {
				if f.GetName() == "hawser_certificate_seconds_left" && m.GetGauge().GetValue() > 0 {
					left[m.GetLabel()[0].GetValue()] = true
				}
			}
		}
		if want := map[string]bool{"client": true, "server-authorities": true, "server": true, "client-authorities": true, "peers": true}; !maps.Equal(left, want) {
			return fmt.Sprintf("time is left of %v", left)
		}
		return ""
	})
	for who, creds := range map[string]credentials.TransportCredentials{
		"without a certificate": client(nil), "of another authority": client(&others), "without TLS": insecure.NewCredentials(),
	} {
		if err := ask(creds); err == nil {
			t.Errorf("a client %s is served", who)
		}
	}
	// The third node's authority becomes known to the relay, and the relay's to it as before.
	write("ca", append(ours.PEM(), others.PEM()...))
	if got := problems(1); got["prod/n2"] == "" {
		t.Errorf("%v", got)
	}
	if err := ask(client(&others)); err != nil {
		t.Errorf("after the authority was added: %v", err)
	}
	// Probes need no certificate, and learn nothing else.
	conn, err := grpc.NewClient("passthrough:///"+s.relay.cfg.HealthAddress, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	for _, service := range []string{"", "observer.Observer", "hubble.server.Observer"} {
		res, err := healthpb.NewHealthClient(conn).Check(t.Context(), &healthpb.HealthCheckRequest{Service: service})
		if err != nil || res.GetStatus() != healthpb.HealthCheckResponse_SERVING {
			t.Errorf("health of %q: %v, %v", service, res, err)
		}
	}
	if _, err := observer.NewObserverClient(conn).GetNodes(t.Context(), &observer.GetNodesRequest{}); err == nil {
		t.Error("the address of probes reveals nodes")
	}
}

// TestRenewedCertificates: a relay and a node that stay connected learn of each other's renewed
// certificates, without a break.
func TestRenewedCertificates(t *testing.T) {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca")
	authorityKey, signer, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	authority := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Now(), NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, authority, authority, authorityKey, signer)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	// issue writes a certificate that ends so soon, as files that are replaced.
	issue := func(name string, left time.Duration, usage x509.ExtKeyUsage) (cert, key string) {
		public, private, err := ed25519.GenerateKey(rand.Reader)
		if err != nil {
			t.Fatal(err)
		}
		der, err := x509.CreateCertificate(rand.Reader, &x509.Certificate{SerialNumber: big.NewInt(time.Now().UnixNano()), DNSNames: []string{name}, NotBefore: time.Now(),
			NotAfter: time.Now().Add(left), ExtKeyUsage: []x509.ExtKeyUsage{usage}}, authority, public, signer)
		if err != nil {
			t.Fatal(err)
		}
		pkcs8, err := x509.MarshalPKCS8PrivateKey(private)
		if err != nil {
			t.Fatal(err)
		}
		for end, block := range map[string]*pem.Block{"crt": {Type: "CERTIFICATE", Bytes: der}, "key": {Type: "PRIVATE KEY", Bytes: pkcs8}} {
			path := filepath.Join(dir, name+"."+end)
			if err := os.WriteFile(path+".new", pem.EncodeToMemory(block), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}
		return filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key")
	}
	var seen *flowserver.Expiry
	const short = 30 * time.Second // a tenth of it is when it is shown anew
	n1 := flowserver.ServerName(node.Key{Cluster: "prod", Name: "n1"})
	s := newStand(t, 1, func(c *Config) {
		c.ClientTLS.Cert, c.ClientTLS.Key = issue("relay-client", short, x509.ExtKeyUsageClientAuth)
		c.ClientTLS.CAs = []string{ca}
	}, func(n node.Key) credentials.TransportCredentials {
		files := flowserver.TLSFiles{ClientCAs: []string{ca}}
		files.Cert, files.Key = issue(n1, short, x509.ExtKeyUsageServerAuth)
		seen = flowserver.NewExpiry(slog.New(slog.DiscardHandler), nil)
		files.Expiry = seen
		cfg, err := files.Config()
		if err != nil {
			t.Fatal(err)
		}
		return credentials.NewTLS(cfg)
	})
	left := func(e *flowserver.Expiry) float64 {
		ch := make(chan prometheus.Metric, 10)
		e.Collect(ch)
		close(ch)
		for m := range ch {
			var out dto.Metric
			if err := m.Write(&out); err == nil && out.GetLabel()[0].GetValue() == "peers" {
				return out.GetGauge().GetValue()
			}
		}
		return 0
	}
	conn := func() *grpc.ClientConn {
		s.relay.roster.mu.Lock()
		defer s.relay.roster.mu.Unlock()
		for _, m := range s.relay.roster.members {
			return m.view.conn
		}
		return nil
	}
	controllers.Eventually(t, testTimeout, func() string {
		if a, b := left(s.relay.expiry), left(seen); a <= 0 || b <= 0 || conn() == nil {
			return fmt.Sprintf("the relay saw %v, the node %v", a, b)
		}
		return ""
	})
	first := conn()
	issue("relay-client", time.Hour, x509.ExtKeyUsageClientAuth)
	issue(n1, time.Hour, x509.ExtKeyUsageServerAuth)
	controllers.Eventually(t, testTimeout, func() string {
		if a, b := left(s.relay.expiry), left(seen); a < 1000 || b < 1000 {
			return fmt.Sprintf("the relay saw %v, the node %v", a, b)
		}
		return ""
	})
	if conn() != first {
		t.Error("the connection to the node is another one")
	}
}

// TestConfigIsValidated: what would serve flows to everybody, or ask nodes in the clear, must be
// said in as many words.
func TestConfigIsValidated(t *testing.T) {
	ok := func() Config {
		c := Defaults()
		c.NoClientTLS, c.NoServerTLS = true, true
		return c
	}
	for _, nowhere := range []string{"", "none"} {
		c := ok()
		c.HealthAddress, c.MetricsAddress = nowhere, nowhere
		if err := c.Validate(); err != nil {
			t.Errorf("addresses %q: %v", nowhere, err)
		}
	}
	if c := ok(); c.Validate() != nil {
		t.Error(c.Validate())
	}
	for _, row := range []struct {
		change func(*Config)
		want   string
	}{
		{func(c *Config) { c.NoServerTLS = false }, "--disable-server-tls"}, {func(c *Config) { c.NoClientTLS = false }, "--disable-client-tls"},
		{func(c *Config) { c.ListenAddress = "" }, "--listen-address"}, {func(c *Config) { c.ListenAddress = "unix://x" }, "absolute"},
		{func(c *Config) { c.PeerService = "agent" }, "--peer-service"}, {func(c *Config) { c.SortBuffer = 0 }, "--sort-buffer-len-max"},
		{func(c *Config) { c.DialTimeout = 0 }, "--dial-timeout"}, {func(c *Config) { c.Streams = 300 }, "--max-streams"},
		{func(c *Config) { c.LogFormat = "xml" }, "--log-format"}, {func(c *Config) { c.HealthAddress = "unix:///x" }, "--health-listen-address"},
	} {
		c := ok()
		row.change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), row.want) {
			t.Errorf("%s: %v", row.want, err)
		}
	}
	if _, err := (&Config{}).credentialsFor(""); err == nil || !strings.Contains(err.Error(), "without TLS") {
		t.Errorf("a node without TLS is asked in the clear: %v", err)
	}
}
