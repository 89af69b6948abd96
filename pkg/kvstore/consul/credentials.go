package consul

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/hashicorp/consul/api"
)

// errHidden means that an answer is not all that there is. Consul leaves out the keys that a token
// may not read, and does not refuse to read them: to a token without rights the store looks empty.
var errHidden = errors.New("keys that were asked for are hidden from the token: give the token's policy the right to read them all")

// all reports an answer from which Consul has left out something.
func all(meta *api.QueryMeta) error {
	if meta.ResultsFilteredByACLs {
		return errHidden
	}
	return nil
}

// freshTLS returns a function that makes TLS connections with the certificate and the authorities
// that the files have now, so that both can be rotated: renewed files count from the next
// connection on.
func freshTLS(files api.TLSConfig) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		cfg, err := api.SetupTLSConfig(&files)
		if err != nil {
			return nil, fmt.Errorf("certificates for Consul: %w", err)
		}
		// The time is that of the connection and the handshake together.
		d := tls.Dialer{NetDialer: &net.Dialer{Timeout: 30 * time.Second, KeepAlive: 30 * time.Second}, Config: cfg}
		return d.DialContext(ctx, network, address)
	}
}

// freshToken sends each request with the token that the file has now, so that a token can be
// rotated. It sends none without a token: Consul does not state what it leaves out of an answer to
// whoever shows none.
type freshToken struct {
	http.RoundTripper
	file string
}

// RoundTrip implements http.RoundTripper.
func (f freshToken) RoundTrip(r *http.Request) (*http.Response, error) {
	text, err := os.ReadFile(f.file)
	if err != nil {
		return nil, fmt.Errorf("token for Consul: %w", err)
	}
	token := strings.TrimSpace(string(text))
	if token == "" { // it is being written, or was emptied
		return nil, fmt.Errorf("token for Consul: %s is empty", f.file)
	}
	r = r.Clone(r.Context())
	r.Header.Set("X-Consul-Token", token)
	return f.RoundTripper.RoundTrip(r)
}
