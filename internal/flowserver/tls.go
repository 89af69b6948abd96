package flowserver

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
)

// TLSFiles are the files from which a server has its certificate, and by which it knows clients.
type TLSFiles struct {
	Cert, Key string
	// ClientCAs are the authorities of which one must have signed a client's certificate.
	ClientCAs []string
	// Expiry is notified of the certificates of clients, if it is not nil.
	Expiry *Expiry
}

// Files are those that [Expiry] looks at, with names that begin with prefix.
func (f TLSFiles) Files(prefix string) []CertificateFile {
	out := []CertificateFile{{Name: prefix + "server", Path: f.Cert}}
	for _, path := range f.ClientCAs {
		out = append(out, CertificateFile{Name: prefix + "client-authorities", Path: path, Authorities: true})
	}
	return out
}

// Config returns a configuration by which only clients with a certificate are served. The files are
// read for each connection, so that renewed ones count without a restart; it is an error if they
// cannot be read now.
func (f TLSFiles) Config() (*tls.Config, error) {
	if f.Cert == "" || f.Key == "" || len(f.ClientCAs) == 0 {
		return nil, errors.New("a certificate, its key and the authorities of clients are needed")
	}
	if _, err := f.read(); err != nil {
		return nil, err
	}
	return &tls.Config{
		MinVersion:             tls.VersionTLS13,
		ClientAuth:             tls.RequireAndVerifyClientCert,
		SessionTicketsDisabled: true,
		GetConfigForClient:     func(*tls.ClientHelloInfo) (*tls.Config, error) { return f.read() },
	}, nil
}

func (f TLSFiles) read() (*tls.Config, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate of the server of flows: %w", err)
	}
	pool, err := Authorities(f.ClientCAs)
	if err != nil {
		return nil, fmt.Errorf("authorities of clients of flows: %w", err)
	}
	return &tls.Config{
		// verifyClient verifies: crypto/tls would verify a chain of any length.
		MinVersion: tls.VersionTLS13, ClientAuth: tls.RequireAnyClientCert,
		Certificates: []tls.Certificate{cert}, ClientCAs: pool, NextProtos: []string{"h2"},
		// Every connection is verified by the authorities that the files hold now.
		SessionTicketsDisabled: true,
		VerifyConnection: func(st tls.ConnectionState) error {
			if err := verifyClient(st.PeerCertificates, pool); err != nil {
				return err
			}
			return f.Expiry.Seen(st)
		},
	}, nil
}

// maxChain is how many certificates a client may present: its own and those of intermediate
// authorities. Each further one costs time to verify.
const maxChain = 4

// verifyClient returns why a client that presents these certificates is not served.
func verifyClient(chain []*x509.Certificate, authorities *x509.CertPool) error {
	if len(chain) == 0 || len(chain) > maxChain {
		return fmt.Errorf("the client presents %d certificates, not 1 to %d", len(chain), maxChain)
	}
	between := x509.NewCertPool()
	for _, c := range chain[1:] {
		between.AddCert(c)
	}
	_, err := chain[0].Verify(x509.VerifyOptions{
		Roots: authorities, Intermediates: between, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	})
	if err != nil {
		return fmt.Errorf("certificate of the client: %w", err)
	}
	return nil
}

// Authorities reads those that files hold.
func Authorities(paths []string) (*x509.CertPool, error) {
	pool := x509.NewCertPool()
	for _, path := range paths {
		pem, err := os.ReadFile(path)
		if err != nil {
			return nil, err
		}
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s holds no certificate", path)
		}
	}
	return pool, nil
}
