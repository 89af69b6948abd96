package flowserver

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestCertificatesExpire: the end of short-lived certificates, of files and of a client, is
// reported before it comes, once in a day in the log, and no more when files are renewed.
func TestCertificatesExpire(t *testing.T) {
	t.Parallel()
	ours := kvstoretest.NewAuthority(t) // it and what it issues is valid for two hours, one of them past
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	const name = "n1.prod.hubble-grpc.cilium.io"
	cert, key := ours.Issue(t, name)
	files := TLSFiles{Cert: write("crt", cert), Key: write("key", key), ClientCAs: []string{write("ca", ours.PEM())}}
	var log bytes.Buffer
	var reported string
	e := NewExpiry(slog.New(slog.NewTextHandler(&log, nil)), func(problem string) { reported = problem },
		append(files.Files("flow-"), CertificateFile{Name: "missing", Path: filepath.Join(dir, "none")}, CertificateFile{Name: "no file"})...)
	files.Expiry = e
	cfg, err := files.Config()
	if err != nil {
		t.Fatal(err)
	}

	// A client of whom the server learns the certificate by a handshake.
	mine, mineKey := ours.Issue(t, "relay\n", x509.ExtKeyUsageClientAuth)
	pair, err := tls.X509KeyPair(mine, mineKey)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ours.PEM())
	handshake := func() {
		t.Helper()
		a, b := net.Pipe()
		defer a.Close()
		defer b.Close()
		client := tls.Client(a, &tls.Config{ServerName: name, RootCAs: roots, Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2"}, MinVersion: tls.VersionTLS13})
		done := make(chan error, 1)
		go func() {
			err := client.HandshakeContext(t.Context())
			if err == nil {
				_, err = client.Read(make([]byte, 1)) // what comes after a handshake
			}
			done <- err
		}()
		server := tls.Server(b, cfg)
		if err := server.HandshakeContext(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := server.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
	}
	handshake()

	now := time.Now()
	if e.check(now); reported != "" || log.Len() > 0 {
		t.Errorf("of certificates that have an hour is reported %q, %s", reported, &log)
	}
	left := func() map[string]float64 {
		registry := prometheus.NewRegistry()
		registry.MustRegister(e)
		list, err := registry.Gather()
		if err != nil || len(list) != 1 || list[0].GetName() != "hawser_certificate_seconds_left" {
			t.Fatalf("%v, %v", list, err)
		}
		out := map[string]float64{}
		for _, m := range list[0].GetMetric() {
			out[m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
		return out
	}
	got := left()
	for _, what := range []string{"flow-server", "flow-client-authorities", "peers"} {
		if s := got[what]; s < 3000 || s > 3600 {
			t.Errorf("%s has %v seconds left", what, s)
		}
	}
	if len(got) != 3 {
		t.Errorf("reported are %v", got)
	}
	// Until it is presented again, it is not known whether the client still has it.
	if e.check(now.Add(50 * time.Minute)); !strings.Contains(reported, "flow-server") || strings.Contains(reported, "relay") {
		t.Errorf("ten minutes before is reported %q", reported)
	}
	e.now = func() time.Time { return now.Add(50 * time.Minute) }
	handshake()
	e.check(now.Add(50 * time.Minute))
	for _, want := range []string{"the certificate flow-server (" + files.Cert + ") ends in 10m0s, at ", "flow-client-authorities", `the certificate of "relay\n" ends in 10m0s`} {
		if !strings.Contains(reported, want) || strings.Contains(reported, "\n") {
			t.Errorf("ten minutes before is reported %q, want %q in it", reported, want)
		}
	}
	e.check(now.Add(51 * time.Minute))
	if n := strings.Count(log.String(), "level=WARN"); n != 3 {
		t.Errorf("logged %d times:\n%s", n, &log)
	}
	if e.check(now.Add(2 * time.Hour)); !strings.Contains(reported, "the certificate flow-server ("+files.Cert+") has ended, at ") {
		t.Errorf("afterwards is reported %q", reported)
	}
	// An authority that ends does no harm beside one that does not.
	other := kvstoretest.NewAuthority(t)
	write("ca", append(ours.PEM(), other.PEM()...))
	if got, err := termOf(files.Files("")[1]); err != nil || !got.end.Equal(other.Cert.NotAfter) {
		t.Errorf("two authorities: %v, %v", got, err)
	}
	if got, err := termOf(CertificateFile{Path: files.ClientCAs[0]}); err != nil || !got.end.Equal(ours.Cert.NotAfter) {
		t.Errorf("a chain: %v, %v", got, err)
	}
}

// TestRenewedPeers: who stays connected for as long as a certificate is valid, and has renewed it
// meanwhile, is not warned of; who shows one that ends soon is, whoever else has its name.
func TestRenewedPeers(t *testing.T) {
	t.Parallel()
	start := time.Now()
	at := start
	var reported string
	e := NewExpiry(slog.New(slog.DiscardHandler), func(problem string) { reported = problem })
	e.now = func() time.Time { return at }
	state := func(server string, hours int) tls.ConnectionState {
		end := start.Add(time.Duration(hours) * time.Hour)
		leaf := &x509.Certificate{DNSNames: []string{"*.prod.hubble-grpc.cilium.io"}, NotBefore: start, NotAfter: end, Raw: []byte(end.String())}
		return tls.ConnectionState{ServerName: server, PeerCertificates: []*x509.Certificate{leaf}}
	}
	left := func() time.Duration {
		ch := make(chan prometheus.Metric, 10)
		e.Collect(ch)
		if len(ch) == 0 {
			return 0
		}
		var m dto.Metric
		if err := (<-ch).Write(&m); err != nil {
			t.Fatal(err)
		}
		return time.Duration(m.GetGauge().GetValue() * float64(time.Second)).Round(time.Minute)
	}
	step := func(what string, hours float64, seen func(tls.ConnectionState) error, server string, ends int, want string, wantLeft time.Duration) {
		t.Helper()
		at = start.Add(time.Duration(hours * float64(time.Hour)))
		if seen != nil {
			if err := seen(state(server, ends)); err != nil {
				t.Fatal(err)
			}
		}
		e.check(at)
		if got := strings.Count(reported, " ends in "); (want == "") != (reported == "") || !strings.Contains(reported, want) || got > 1 || left() != wantLeft {
			t.Errorf("%s: reported is %q with %v left, want %q with %v", what, reported, left(), want, wantLeft)
		}
	}
	step("a client", 0, e.Seen, "", 100, "", 100*time.Hour)
	step("long after", 81, nil, "", 0, "", 0)
	step("when it would have ended", 101, nil, "", 0, "", 0)
	step("the renewed one", 101, e.Seen, "", 300, "", 199*time.Hour)
	step("another client of that name", 101, e.Seen, "", 105, `"*.prod.hubble-grpc.cilium.io" ends in 4h`, 4*time.Hour)
	step("and the first again", 101, e.Seen, "", 300, `"*.prod.hubble-grpc.cilium.io" ends in 4h`, 4*time.Hour)
	step("both are gone", 106, nil, "", 0, "", 0)

	step("a server", 280, e.SeenServer, "n1.prod", 300, `"n1.prod" ends in 20h`, 20*time.Hour)
	step("another with a certificate alike", 280, e.SeenServer, "n2.prod", 1000, `"n1.prod" ends in 20h`, 20*time.Hour)
	if e.Outdated("n1.prod") || e.Outdated("n3.prod") {
		t.Error("what was just shown, or never, is out of date")
	}
	step("an hour later", 281.1, nil, "", 0, `"n1.prod" ends in 18h54m`, 18*time.Hour+54*time.Minute)
	if !e.Outdated("n1.prod") {
		t.Error("after an hour it need not be shown anew")
	}
	step("it is renewed", 281.1, e.SeenServer, "n1.prod", 1000, "", 718*time.Hour+54*time.Minute)
}

// TestPeersOfExpiryAreBounded: however many certificates are shown, so many are remembered, and
// those that ended are forgotten.
func TestPeersOfExpiryAreBounded(t *testing.T) {
	t.Parallel()
	var reported string
	e := NewExpiry(slog.New(slog.DiscardHandler), func(problem string) { reported = problem })
	now := time.Now()
	show := func(name string, end time.Time) {
		c := &x509.Certificate{DNSNames: []string{name}, NotBefore: now.Add(-100 * time.Hour), NotAfter: end, Raw: []byte(name)}
		if err := e.Seen(tls.ConnectionState{PeerCertificates: []*x509.Certificate{c}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 2 * maxPeers {
		show(strings.Repeat("x", i%300)+string(rune('a'+i/300)), now.Add(time.Hour))
	}
	if len(e.peers) > maxPeers {
		t.Errorf("%d peers", len(e.peers))
	}
	if e.check(now); !strings.Contains(reported, "others") || len(reported) > 4096 {
		t.Errorf("reported is %q", reported)
	}
	e.check(now.Add(26 * time.Hour))
	if len(e.peers) != 0 || reported != "" {
		t.Errorf("%d peers that ended, %q", len(e.peers), reported)
	}
	var none *Expiry
	if err := none.Seen(tls.ConnectionState{}); err != nil {
		t.Error(err)
	}
}

func FuzzTermOf(f *testing.F) {
	f.Add([]byte("-----BEGIN CERTIFICATE-----\nMAA=\n-----END CERTIFICATE-----\n"), true)
	f.Add([]byte("x"), false)
	path := filepath.Join(f.TempDir(), "f")
	f.Fuzz(func(t *testing.T, data []byte, authorities bool) {
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		if got, err := termOf(CertificateFile{Path: path, Authorities: authorities}); err == nil && got.end.IsZero() {
			t.Fatalf("%q has a certificate without an end", data)
		}
	})
}
