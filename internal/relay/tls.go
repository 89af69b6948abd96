package relay

import (
	"crypto/tls"
	"fmt"

	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/hawser-net/hawser/internal/flowserver"
)

// TLSFiles are the files from which a client has its certificate, and by which it knows servers.
type TLSFiles struct {
	Cert, Key string
	// CAs are the authorities of which one must have signed a server's certificate.
	CAs []string
	// expiry gets the certificates of servers, if it is not nil.
	expiry *flowserver.Expiry
}

// files are those that expiry looks at.
func (f TLSFiles) files() []flowserver.CertificateFile {
	out := []flowserver.CertificateFile{{Name: "client", Path: f.Cert}}
	for _, path := range f.CAs {
		out = append(out, flowserver.CertificateFile{Name: "server-authorities", Path: path, Authorities: true})
	}
	return out
}

// credentials are those for a connection to a server of that name. The files are read now, so that
// renewed ones count for the next connection.
func (f TLSFiles) credentials(serverName string) (credentials.TransportCredentials, error) {
	cert, err := tls.LoadX509KeyPair(f.Cert, f.Key)
	if err != nil {
		return nil, fmt.Errorf("certificate of the relay as a client: %w", err)
	}
	pool, err := flowserver.Authorities(f.CAs)
	if err != nil {
		return nil, fmt.Errorf("authorities of nodes: %w", err)
	}
	return credentials.NewTLS(&tls.Config{
		MinVersion: tls.VersionTLS13, ServerName: serverName, RootCAs: pool, Certificates: []tls.Certificate{cert},
		VerifyConnection: f.expiry.SeenServer,
	}), nil
}

// credentialsFor are those for a node. A node that claims to have no TLS is not asked without it:
// the list of nodes does not decide about security.
func (c *Config) credentialsFor(serverName string) (credentials.TransportCredentials, error) {
	if c.NoClientTLS {
		if serverName != "" {
			return nil, fmt.Errorf("it serves flows with TLS, and the relay has --disable-client-tls")
		}
		return insecure.NewCredentials(), nil
	}
	if serverName == "" {
		return nil, fmt.Errorf("it serves flows without TLS: give agents certificates, or the relay --disable-client-tls")
	}
	return c.ClientTLS.credentials(serverName)
}
