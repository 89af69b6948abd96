package azure

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

// TestMetadata reads as a machine does, and as a client that walks all of it does.
func TestMetadata(t *testing.T) {
	t.Parallel()
	c := New("sub-1", "nodes")
	c.AddNetwork("net", netip.MustParsePrefix("10.0.0.0/16"))
	id, err := c.AddMachine("workers", "3", c.AddSubnet("pods", "net", netip.MustParsePrefix("10.0.0.0/24")))
	if err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(c.Metadata(id))
	t.Cleanup(s.Close)
	get := func(path string, into any, header ...string) int {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, s.URL+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		for i := 0; i < len(header); i += 2 {
			req.Header.Set(header[i], header[i+1])
		}
		r, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		if into != nil {
			if err := json.NewDecoder(r.Body).Decode(into); err != nil {
				t.Error(err)
			}
		}
		return r.StatusCode
	}
	if status := get("/metadata/instance?api-version=2021-02-01", nil); status != http.StatusBadRequest {
		t.Errorf("without the header: %d", status)
	}
	if status := get("/metadata/identity/oauth2/token", nil, "Metadata", "true", "X-Forwarded-For", "10.0.0.9"); status != http.StatusBadRequest {
		t.Errorf("through a proxy: %d", status)
	}
	var m struct {
		Compute struct{ ResourceID, SubscriptionID, VMScaleSetName string }
		Network struct {
			Interface []struct {
				IPv4 struct {
					IPAddress []struct{ PrivateIPAddress string }
				}
			}
		}
	}
	if get("/metadata/instance?api-version=2021-02-01", &m, "Metadata", "true"); m.Compute.ResourceID != id || m.Compute.SubscriptionID != "sub-1" || m.Compute.VMScaleSetName != "workers" ||
		len(m.Network.Interface) != 1 || m.Network.Interface[0].IPv4.IPAddress[0].PrivateIPAddress != "10.0.0.4" {
		t.Errorf("%+v", m)
	}
	var token struct {
		Text string `json:"access_token"`
	}
	if get("/metadata/identity/oauth2/token?resource=x", &token, "Metadata", "true"); token.Text != Token {
		t.Errorf("token: %+v", token)
	}
}
