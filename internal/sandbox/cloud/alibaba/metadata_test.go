package alibaba

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
)

// TestMetadata reads as an instance does: with a token only.
func TestMetadata(t *testing.T) {
	t.Parallel()
	c := New()
	c.AddVPC("vpc-1", netip.MustParsePrefix("10.0.0.0/16"))
	c.AddVSwitch("vsw-1", "vpc-1", "eu-test-1a", netip.MustParsePrefix("10.0.0.0/24"), nil)
	c.AddGroup("sg-1", "vpc-1", nil)
	if _, err := c.AddInstance("i-1", "ecs.g7.xlarge", "vsw-1", "sg-1"); err != nil {
		t.Fatal(err)
	}
	s := httptest.NewServer(c.Metadata("i-1"))
	t.Cleanup(s.Close)
	do := func(method, path, header, value string) (int, string) {
		req, err := http.NewRequestWithContext(t.Context(), method, s.URL+"/latest/"+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(header, value)
		r, err := s.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		defer r.Body.Close()
		text, err := io.ReadAll(r.Body)
		if err != nil {
			t.Fatal(err)
		}
		return r.StatusCode, string(text)
	}
	if status, _ := do(http.MethodGet, "meta-data/instance-id", tokenHeader, ""); status != http.StatusForbidden {
		t.Errorf("without a token: %d", status)
	}
	_, token := do(http.MethodPut, "api/token", ttlHeader, "60")
	mac := c.Interfaces()[0].MAC
	for path, want := range map[string]string{
		"instance-id": "i-1", "instance/instance-type": "ecs.g7.xlarge", "zone-id": "eu-test-1a", "region-id": "eu-test-1", "vpc-id": "vpc-1", "mac": mac,
		"network/interfaces/macs/" + mac + "/primary-ip-address": "10.0.0.1",
	} {
		if _, got := do(http.MethodGet, "meta-data/"+path, tokenHeader, token); got != want {
			t.Errorf("%s: %q, not %q", path, got, want)
		}
	}
	if status, _ := do(http.MethodGet, "meta-data/nothing", tokenHeader, token); status != http.StatusNotFound {
		t.Errorf("what is not there: %d", status)
	}
}
