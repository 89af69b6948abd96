package agent

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"testing"
)

func TestProxyHealthz(t *testing.T) {
	t.Parallel()
	well := false
	h := proxyHealthz(func() bool { return well })
	for _, want := range []int{http.StatusServiceUnavailable, http.StatusOK} {
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/healthz", nil))
		var said struct {
			NodeEligible bool   `json:"nodeEligible"`
			LastUpdated  string `json:"lastUpdated"`
		}
		if err := json.Unmarshal(rec.Body.Bytes(), &said); err != nil || rec.Code != want || said.NodeEligible != well || said.LastUpdated == "" {
			t.Errorf("well %v: %d %s, %v", well, rec.Code, rec.Body, err)
		}
		well = true
	}
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/livez", nil))
	if rec.Code != http.StatusNotFound {
		t.Errorf("another path: %d", rec.Code)
	}
}
