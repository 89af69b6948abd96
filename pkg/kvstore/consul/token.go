package consul

import (
	"errors"
	"fmt"
	"net/http"
	"os"
	"strings"

	"github.com/hashicorp/consul/api"
)

// errHidden means that an answer is not all that there is. Consul leaves out the keys that a token
// may not read, and does not refuse to list them: to a token without rights the store looks empty.
var errHidden = errors.New("keys of this listing are hidden from the token: give the token's policy the right to read them all")

// all reports an answer from which Consul has left out something.
func all(meta *api.QueryMeta) error {
	if meta.ResultsFilteredByACLs {
		return errHidden
	}
	return nil
}

// freshToken sends each request with the token that the file has now, so that a token can be
// rotated.
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
	r = r.Clone(r.Context())
	if token := strings.TrimSpace(string(text)); token != "" {
		r.Header.Set("X-Consul-Token", token)
	} else {
		r.Header.Del("X-Consul-Token")
	}
	return f.RoundTripper.RoundTrip(r)
}
