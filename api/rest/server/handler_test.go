package server_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/server"
)

// agent implements the few operations that these tests call; others panic.
type agent struct {
	server.StrictServerInterface
	err      error
	created  *rest.EndpointChangeRequest
	id       string
	labels   *rest.Labels
	health   server.GetHealthzRequestObject
	expiring bool
	monitor  func(ctx context.Context, emit func(...rest.MonitorEvent) error) error
}

func (a *agent) CreateEndpoint(_ context.Context, req server.CreateEndpointRequestObject) (server.CreateEndpointResponseObject, error) {
	a.id, a.created = req.ID, req.Body
	if a.err != nil {
		return nil, a.err
	}
	if !req.Body.State.Valid() {
		return server.CreateEndpoint400JSONResponse("state is missing"), nil
	}
	return server.CreateEndpoint201JSONResponse{ID: req.Body.ID, Status: rest.EndpointStatus{State: rest.EndpointStateReady}}, nil
}

func (a *agent) DeleteEndpoint(context.Context, server.DeleteEndpointRequestObject) (server.DeleteEndpointResponseObject, error) {
	return server.DeleteEndpoint206JSONResponse(2), nil
}

func (a *agent) ListEndpoints(_ context.Context, req server.ListEndpointsRequestObject) (server.ListEndpointsResponseObject, error) {
	a.labels = req.Body
	return server.ListEndpoints200JSONResponse{}, nil
}

func (a *agent) GetHealthz(_ context.Context, req server.GetHealthzRequestObject) (server.GetHealthzResponseObject, error) {
	a.health = req
	return server.GetHealthz200JSONResponse{}, nil
}

func (a *agent) AllocateIP(_ context.Context, req server.AllocateIPRequestObject) (server.AllocateIPResponseObject, error) {
	a.expiring = req.Params.Expiration
	return server.AllocateIP201JSONResponse{Address: rest.AddressPair{IPv4: "10.0.0.7"}}, nil
}

func (a *agent) Monitor(ctx context.Context, _ server.MonitorRequestObject) (server.MonitorResponseObject, error) {
	return server.MonitorStream(func(emit func(...rest.MonitorEvent) error) error { return a.monitor(ctx, emit) }), nil
}

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestAnswers(t *testing.T) {
	t.Parallel()
	big := `{"state":"ready","container-id":"` + strings.Repeat("x", server.MaxBodyBytes) + `"}`
	for _, tt := range []struct {
		name, method, path, body string
		header                   http.Header
		err                      error
		code                     int
		answer                   string
	}{
		{name: "created", method: "PUT", path: "/v1/endpoint/5", body: `{"id":5,"state":"ready"}`, code: 201, answer: `{"id":5,"status":{"state":"ready"}}`},
		{name: "refused", method: "PUT", path: "/v1/endpoint/5", body: `{}`, code: 400, answer: `"state is missing"`},
		{name: "null body", method: "PUT", path: "/v1/endpoint/5", body: `null`, code: 400, answer: `"state is missing"`},
		{name: "no body", method: "PUT", path: "/v1/endpoint/5", code: 400, answer: `"can't decode JSON body: EOF"`},
		{name: "not JSON", method: "PUT", path: "/v1/endpoint/5", body: `{"id":`, code: 400, answer: `"request body is not one JSON value"`},
		{name: "two values", method: "PUT", path: "/v1/endpoint/5", body: `{"state":"ready"}{}`, code: 400, answer: `"request body is not one JSON value"`},
		{name: "wrong type", method: "PUT", path: "/v1/endpoint/5", body: `{"id":"5"}`, code: 400},
		{name: "too large", method: "PUT", path: "/v1/endpoint/5", body: big, code: 413, answer: `"request body is larger than 1048576 bytes"`},
		{name: "coded error", method: "PUT", path: "/v1/endpoint/5", body: `{"state":"ready"}`, err: server.Errorf(429, "wait: %w", io.EOF), code: 429, answer: `"wait: EOF"`},
		{name: "other error", method: "PUT", path: "/v1/endpoint/5", body: `{"state":"ready"}`, err: errors.New("disk <full>"), code: 500, answer: `"disk \u003cfull\u003e"`},
		{name: "number of errors", method: "DELETE", path: "/v1/endpoint/5", code: 206, answer: `2`},
		{name: "empty list", method: "GET", path: "/v1/endpoint", code: 200, answer: `[]`},
		{name: "header", method: "POST", path: "/v1/ipam?owner=x", header: http.Header{"Expiration": {"true"}}, code: 201, answer: `{"address":{"ipv4":"10.0.0.7"},"host-addressing":{}}`},
		{name: "malformed header", method: "POST", path: "/v1/ipam", header: http.Header{"Expiration": {"maybe"}}, code: 400},
		{name: "unknown path", method: "GET", path: "/v1/nonsense", code: 404, answer: `"no such path: /v1/nonsense"`},
		{name: "outside the base path", method: "GET", path: "/endpoint", code: 404, answer: `"no such path: /endpoint"`},
		{name: "wrong method", method: "POST", path: "/v1/endpoint", code: 405, answer: `"method POST is not allowed on /v1/endpoint; allowed: DELETE, GET, HEAD"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			a := &agent{err: tt.err}
			req := httptest.NewRequest(tt.method, tt.path, strings.NewReader(tt.body))
			for k, v := range tt.header {
				req.Header[k] = v
			}
			rec := httptest.NewRecorder()
			server.NewHandler(a, quiet()).ServeHTTP(rec, req)
			if rec.Code != tt.code {
				t.Errorf("code %d, want %d: %s", rec.Code, tt.code, rec.Body)
			}
			if ct := rec.Header().Get("Content-Type"); !strings.HasPrefix(ct, "application/json") {
				t.Errorf("content type %q", ct)
			}
			got := strings.TrimSpace(rec.Body.String())
			if tt.answer != "" && got != tt.answer {
				t.Errorf("answer %s, want %s", got, tt.answer)
			}
			if tt.code >= 400 {
				var text string
				if err := json.Unmarshal([]byte(got), &text); err != nil || text == "" {
					t.Errorf("the error %s is not a JSON string", got)
				}
			}
		})
	}
}

func TestEndpointNamesWithSlashesArrive(t *testing.T) {
	t.Parallel()
	for path, want := range map[string]string{
		"/v1/endpoint/cep-name:shop%2Ffront-1":           "cep-name:shop/front-1",
		"/v1/endpoint/cni-attachment-id:c0ffee:eth0":     "cni-attachment-id:c0ffee:eth0",
		"/v1/endpoint/ipv6:fd00::1":                      "ipv6:fd00::1",
		"/v1/endpoint/cni-attachment-id%3Ac0ffee%3Aeth0": "cni-attachment-id:c0ffee:eth0",
		"/v1/endpoint/a%2541":                            "a%41",
	} {
		a := &agent{}
		rec := httptest.NewRecorder()
		server.NewHandler(a, quiet()).ServeHTTP(rec, httptest.NewRequest("PUT", path, strings.NewReader(`{"state":"ready"}`)))
		if a.id != want {
			t.Errorf("%s arrives as %q, want %q (%d %s)", path, a.id, want, rec.Code, rec.Body)
		}
	}
}

func TestBodiesOfGet(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]*rest.Labels{
		"":                nil,
		"  \n":            nil,
		"null":            new(rest.Labels),
		`["k8s:app=web"]`: {"k8s:app=web"},
	} {
		a := &agent{}
		server.NewHandler(a, quiet()).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/endpoint", strings.NewReader(body)))
		if diff := cmp.Diff(want, a.labels); diff != "" {
			t.Errorf("body %q: %s", body, diff)
		}
	}
}

func TestAbsentHeadersAreTold(t *testing.T) {
	t.Parallel()
	a := &agent{}
	h := server.NewHandler(a, quiet())
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/healthz", nil))
	if a.health.Params.Brief || a.health.Params.RequireK8SConnectivity != nil {
		t.Errorf("without headers: %+v", a.health.Params)
	}
	req := httptest.NewRequest("GET", "/v1/healthz", nil)
	req.Header.Set("brief", "true")
	req.Header.Set("require-k8s-connectivity", "false")
	h.ServeHTTP(httptest.NewRecorder(), req)
	if p := a.health.Params; !p.Brief || p.RequireK8SConnectivity == nil || *p.RequireK8SConnectivity {
		t.Errorf("with headers: %+v", p)
	}
}

func TestMiddlewareSeesTheOperation(t *testing.T) {
	t.Parallel()
	var seen []string
	mw := func(next server.StrictHandlerFunc, operation string) server.StrictHandlerFunc {
		return func(ctx context.Context, w http.ResponseWriter, r *http.Request, request any) (any, error) {
			seen = append(seen, operation)
			if operation == "CreateEndpoint" {
				return nil, server.Errorf(http.StatusServiceUnavailable, "not ready for changes")
			}
			return next(ctx, w, r, request)
		}
	}
	h := server.NewHandler(&agent{}, quiet(), mw)
	rec := httptest.NewRecorder()
	h.ServeHTTP(rec, httptest.NewRequest("PUT", "/v1/endpoint/0", strings.NewReader(`{"state":"ready"}`)))
	h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/v1/endpoint", nil))
	if diff := cmp.Diff([]string{"CreateEndpoint", "ListEndpoints"}, seen); diff != "" {
		t.Error(diff)
	}
	if rec.Code != http.StatusServiceUnavailable || strings.TrimSpace(rec.Body.String()) != `"not ready for changes"` {
		t.Errorf("%d %s", rec.Code, rec.Body)
	}
}

func TestMonitorStreams(t *testing.T) {
	t.Parallel()
	ended := make(chan error, 1)
	more := make(chan struct{})
	a := &agent{monitor: func(ctx context.Context, emit func(...rest.MonitorEvent) error) error {
		err := emit(rest.MonitorEvent{Type: rest.MonitorEventTypeDrop}, rest.MonitorEvent{Type: rest.MonitorEventTypeLost, Lost: 3})
		if err == nil {
			<-more
			err = emit(rest.MonitorEvent{Type: rest.MonitorEventTypeTrace})
		}
		<-ctx.Done()
		ended <- errors.Join(err, ctx.Err())
		return ctx.Err()
	}}
	srv := httptest.NewServer(server.NewHandler(a, quiet()))
	defer srv.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	req, _ := http.NewRequestWithContext(ctx, "GET", srv.URL+"/v1/monitor", nil)
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if ct := resp.Header.Get("Content-Type"); ct != "application/x-ndjson" {
		t.Errorf("content type %q", ct)
	}
	lines := bufio.NewScanner(resp.Body)
	read := func(want rest.MonitorEventType) {
		t.Helper()
		var ev rest.MonitorEvent
		if !lines.Scan() {
			t.Fatal("the stream ended: ", lines.Err())
		}
		if err := json.Unmarshal(lines.Bytes(), &ev); err != nil || ev.Type != want {
			t.Fatalf("%s: %v, want %s", lines.Bytes(), err, want)
		}
	}
	read(rest.MonitorEventTypeDrop) // arrives while the stream is open
	read(rest.MonitorEventTypeLost)
	close(more)
	read(rest.MonitorEventTypeTrace)
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("the stream ended with %v", err)
	}
}

// FuzzEndpointChangeRequest sends arbitrary bodies: whatever they are, the answer is one of the
// codes for a body, an accepted body survives being sent again, and nothing panics.
func FuzzEndpointChangeRequest(f *testing.F) {
	for _, seed := range []string{
		`{"id":0,"container-id":"c0ffee","state":"waiting-for-identity","sync-build-endpoint":true,"addressing":{"ipv4":"10.0.0.7"},` +
			`"labels":["k8s:app=web"],"datapath-configuration":{"require-routing":false},"properties":{"x":[1,{"y":null}]}}`,
		`null`, `[]`, `{"state":1}`, `{"id":1e999}`, `{"labels":null}`, `{"state":"ready"} `, "\xff", `{"id":5,"ID":6,"state":"ready"}`,
		strings.Repeat(`{"properties":`, 100),
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		a := &agent{}
		h := server.NewHandler(a, quiet())
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, httptest.NewRequest("PUT", "/v1/endpoint/0", bytes.NewReader(body)))
		switch rec.Code {
		case http.StatusBadRequest, http.StatusRequestEntityTooLarge:
			var text string
			if err := json.Unmarshal(rec.Body.Bytes(), &text); err != nil {
				t.Fatalf("the error %s is not a JSON string", rec.Body)
			}
		case http.StatusCreated:
			first := a.created
			again, err := json.Marshal(first)
			if err != nil {
				t.Fatal(err)
			}
			rec = httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest("PUT", "/v1/endpoint/0", bytes.NewReader(again)))
			if rec.Code != http.StatusCreated {
				t.Fatalf("%s becomes %s, which is refused: %s", body, again, rec.Body)
			}
			twice, err := json.Marshal(a.created)
			if err != nil || !bytes.Equal(again, twice) {
				t.Fatalf("%s becomes %s, then %s (%v)", body, again, twice, err)
			}
		default:
			t.Fatalf("code %d: %s", rec.Code, rec.Body)
		}
	})
}
