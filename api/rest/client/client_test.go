package client_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/testenv"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// socketDir is a directory whose name is short enough for a socket in it.
func socketDir(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "hawser-rest")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// serve runs h on a unix socket and returns a client of it.
func serve(t testing.TB, h http.HandlerFunc) *client.Client {
	t.Helper()
	path := filepath.Join(socketDir(t), "a.sock")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	srv := httptest.NewUnstartedServer(h)
	srv.Listener.Close()
	srv.Listener = l
	srv.Start()
	c, err := client.New("unix://" + path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		c.Close()
		srv.CloseClientConnections()
		srv.Close()
	})
	return c
}

func answer(w http.ResponseWriter, code int, body string) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	io.WriteString(w, body)
}

// TestRequests fixes what each call puts on the wire, as other agents of this API read it.
func TestRequests(t *testing.T) {
	t.Parallel()
	ctx := context.Background()
	for _, tt := range []struct {
		want   string // method, path with query, headers that matter, body
		code   int
		answer string
		call   func(*client.Client) error
	}{
		{"GET /v1/healthz brief=true", 200, `{}`, func(c *client.Client) error { _, err := c.Health(ctx, true); return err }},
		{"GET /v1/config", 200, `{}`, func(c *client.Client) error { _, err := c.Config(ctx); return err }},
		{`PATCH /v1/config {"policy-enforcement":"always"}`, 200, ``, func(c *client.Client) error {
			return c.PatchConfig(ctx, rest.DaemonConfigurationSpec{PolicyEnforcement: rest.PolicyEnforcementAlways})
		}},
		{"POST /v1/ipam?owner=shop%2Ffront-1 expiration=true", 201, `{}`, func(c *client.Client) error {
			_, err := c.AllocateIP(ctx, rest.AllocateIPParams{Owner: "shop/front-1", Expiration: true})
			return err
		}},
		{"POST /v1/ipam/fd00::7?owner=x", 200, ``, func(c *client.Client) error { return c.ReserveIP(ctx, "fd00::7", rest.ReserveIPParams{Owner: "x"}) }},
		{"DELETE /v1/ipam/10.0.0.7?pool=p", 200, ``, func(c *client.Client) error { return c.ReleaseIP(ctx, "10.0.0.7", "p") }},
		{"DELETE /v1/ipam/10.0.0.7", 200, ``, func(c *client.Client) error { return c.ReleaseIP(ctx, "10.0.0.7", "") }},
		{"GET /v1/endpoint", 200, `null`, func(c *client.Client) error {
			eps, err := c.Endpoints(ctx, nil)
			if eps == nil {
				err = errors.Join(err, errors.New("null became nil"))
			}
			return err
		}},
		{`GET /v1/endpoint ["k8s:a=b"]`, 200, `[]`, func(c *client.Client) error { _, err := c.Endpoints(ctx, []string{"k8s:a=b"}); return err }},
		{`DELETE /v1/endpoint {"container-id":"c0ffee"}`, 200, ``, func(c *client.Client) error { _, err := c.DeleteEndpoints(ctx, "c0ffee"); return err }},
		{"GET /v1/endpoint/cep-name:shop%2Ffront-1", 200, `{}`, func(c *client.Client) error { _, err := c.Endpoint(ctx, "cep-name:shop/front-1"); return err }},
		{`PUT /v1/endpoint/cilium-local:0 {"state":"waiting-for-identity","sync-build-endpoint":true}`, 201, `{}`, func(c *client.Client) error {
			_, err := c.CreateEndpoint(ctx, "cilium-local:0", rest.EndpointChangeRequest{State: rest.EndpointStateWaitingForIdentity, SyncBuildEndpoint: new(true)})
			return err
		}},
		{`PATCH /v1/endpoint/5 {"datapath-configuration":{"require-routing":false},"state":"ready"}`, 200, `{}`, func(c *client.Client) error {
			_, err := c.PatchEndpoint(ctx, "5", rest.EndpointChangeRequest{State: rest.EndpointStateReady,
				DatapathConfiguration: rest.EndpointDatapathConfiguration{RequireRouting: new(bool)}})
			return err
		}},
		{"DELETE /v1/endpoint/cni-attachment-id:c0ffee:eth0", 206, `3`, func(c *client.Client) error {
			errs, err := c.DeleteEndpoint(ctx, "cni-attachment-id:c0ffee:eth0")
			if errs != 3 {
				err = errors.Join(err, fmt.Errorf("%d errors", errs))
			}
			return err
		}},
		{"GET /v1/endpoint/5/healthz", 200, `{}`, func(c *client.Client) error { _, err := c.EndpointHealth(ctx, "5"); return err }},
		{"GET /v1/endpoint/5/log", 200, `[]`, func(c *client.Client) error { _, err := c.EndpointLog(ctx, "5"); return err }},
		{"GET /v1/endpoint/5/labels", 200, `{}`, func(c *client.Client) error { _, err := c.EndpointLabels(ctx, "5"); return err }},
		{`PATCH /v1/endpoint/5/labels {"user":["a=b"]}`, 200, ``, func(c *client.Client) error { return c.PatchEndpointLabels(ctx, "5", []string{"a=b"}) }},
		{"GET /v1/endpoint/5/config", 200, `{}`, func(c *client.Client) error { _, err := c.EndpointConfig(ctx, "5"); return err }},
		{`PATCH /v1/endpoint/5/config {"options":{"a":"b"}}`, 200, ``, func(c *client.Client) error {
			return c.PatchEndpointConfig(ctx, "5", rest.EndpointConfigurationSpec{Options: rest.ConfigurationMap{"a": "b"}})
		}},
		{"GET /v1/identity", 200, `[]`, func(c *client.Client) error { _, err := c.Identities(ctx, nil); return err }},
		{`GET /v1/identity ["reserved:host"]`, 200, `[]`, func(c *client.Client) error { _, err := c.Identities(ctx, []string{"reserved:host"}); return err }},
		{"GET /v1/identity/1", 200, `{}`, func(c *client.Client) error { _, err := c.Identity(ctx, "1"); return err }},
		{"GET /v1/identity/endpoints", 200, `[]`, func(c *client.Client) error { _, err := c.IdentityEndpoints(ctx); return err }},
		{"GET /v1/ip?cidr=10.0.0.0%2F8", 200, `[]`, func(c *client.Client) error { _, err := c.IPs(ctx, "10.0.0.0/8", nil); return err }},
		{`GET /v1/ip ["reserved:host"]`, 200, `[]`, func(c *client.Client) error { _, err := c.IPs(ctx, "", []string{"reserved:host"}); return err }},
		{"GET /v1/policy", 200, `{}`, func(c *client.Client) error { _, err := c.Policy(ctx); return err }},
		{"GET /v1/policy/files", 200, `[]`, func(c *client.Client) error { _, err := c.PolicyFiles(ctx); return err }},
		{"GET /v1/policy/selectors", 200, `[]`, func(c *client.Client) error { _, err := c.Selectors(ctx); return err }},
		{"GET /v1/policy/subject-selectors", 200, `[]`, func(c *client.Client) error { _, err := c.SubjectSelectors(ctx); return err }},
		{"GET /v1/policy/trace?dport=80&from=labels%3Ak8s%3Aa%3Db%3Bk8s%3Ac%3Dd&to=5", 200, `{}`, func(c *client.Client) error {
			_, err := c.TracePolicy(ctx, rest.TracePolicyParams{From: "labels:k8s:a=b;k8s:c=d", To: "5", DPort: "80"})
			return err
		}},
		{"GET /v1/node/ids", 200, `[]`, func(c *client.Client) error { _, err := c.NodeIDs(ctx); return err }},
		{"GET /v1/cluster/nodes client-id=4", 200, `{}`, func(c *client.Client) error { _, err := c.ClusterNodes(ctx, 4); return err }},
		{"GET /v1/map/ct", 200, `{}`, func(c *client.Client) error { _, err := c.Map(ctx, "ct"); return err }},
	} {
		t.Run(tt.want, func(t *testing.T) {
			t.Parallel()
			got := make(chan string, 1)
			c := serve(t, func(w http.ResponseWriter, r *http.Request) {
				line := r.Method + " " + r.URL.EscapedPath()
				if q := r.URL.Query().Encode(); q != "" {
					line += "?" + q
				}
				for _, h := range []string{"brief", "expiration", "client-id"} {
					if v := r.Header.Get(h); v != "" && v != "false" && v != "0" {
						line += " " + h + "=" + v
					}
				}
				body, _ := io.ReadAll(r.Body)
				got <- strings.TrimSpace(line + " " + string(body))
				answer(w, tt.code, tt.answer)
			})
			if err := tt.call(c); err != nil {
				t.Error(err)
			}
			if diff := cmp.Diff(tt.want, <-got); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestErrorsOfTheAgent(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		code         int
		body         string
		want         string
		notFound     bool
		unrecognised bool
	}{
		{code: 404, body: `"no endpoint 5"`, want: "no endpoint 5 (GET /v1/endpoint/5: 404)", notFound: true},
		{code: 503, body: "overloaded\n", want: "overloaded (GET /v1/endpoint/5: 503)"},
		{code: 404, body: ``, want: "Not Found (GET /v1/endpoint/5: 404)", notFound: true},
		{code: 521, body: ``, want: "no reason given (GET /v1/endpoint/5: 521)"},
		{code: 204, body: ``, want: "No Content (GET /v1/endpoint/5: 204)"},
	} {
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, tt.code, tt.body) })
		_, err := c.Endpoint(context.Background(), "5")
		if err == nil || err.Error() != tt.want || client.StatusCode(err) != tt.code || client.NotFound(err) != tt.notFound || client.Unreachable(err) {
			t.Errorf("%d %q gives %v", tt.code, tt.body, err)
		}
	}
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) { answer(w, 200, "{") })
	if _, err := c.Endpoint(context.Background(), "5"); err == nil || client.StatusCode(err) != 0 {
		t.Errorf("a truncated answer gives %v", err)
	}
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	dir := socketDir(t)
	dead := filepath.Join(dir, "dead.sock")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	l.Close()
	for host, want := range map[string]string{
		filepath.Join(dir, "absent.sock"): "start hawser-agent",
		dead:                              "the agent has stopped",
	} {
		c, err := client.New(host)
		if err != nil {
			t.Fatal(err)
		}
		_, err = c.Config(context.Background())
		if !client.Unreachable(err) || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "unix://"+host) {
			t.Errorf("%s: %v, want %q in it", host, err, want)
		}
		var e *client.UnreachableError
		if !errors.As(err, &e) || e.Host != c.Host() {
			t.Errorf("%s: host is %v", host, e)
		}
	}
	// An agent that dies in the middle of a call is out of reach too.
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	})
	if _, err := c.CreateEndpoint(context.Background(), "0", rest.EndpointChangeRequest{}); !client.Unreachable(err) {
		t.Errorf("a broken connection gives %v", err)
	}
}

func TestContextEndsCall(t *testing.T) {
	t.Parallel()
	c := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() })
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Config(ctx)
	if !errors.Is(err, context.DeadlineExceeded) || client.Unreachable(err) {
		t.Errorf("got %v", err)
	}
}

func TestHosts(t *testing.T) {
	t.Parallel()
	for host, want := range map[string]string{
		"":                     "unix:///var/run/cilium/cilium.sock",
		"/run/a.sock":          "unix:///run/a.sock",
		"unix:///run/a.sock":   "unix:///run/a.sock",
		"tcp://127.0.0.1:1234": "tcp://127.0.0.1:1234",
		"tcp://[::1]:1234/":    "tcp://[::1]:1234",
	} {
		c, err := client.New(host)
		if err != nil || c.Host() != want {
			t.Errorf("%q: %v %v, want %s", host, c, err, want)
		}
	}
	for _, host := range []string{"a.sock", "unix://a.sock", "tcp://127.0.0.1", "ftp://x:1", "://"} {
		if _, err := client.New(host); err == nil {
			t.Errorf("%q is accepted", host)
		}
	}
	env := func(name string) string { return map[string]string{client.EnvSocket: "/env.sock"}[name] }
	none := func(string) string { return "" }
	if client.Host("/flag.sock", env) != "/flag.sock" || client.Host("", env) != "/env.sock" || client.Host("", none) != client.DefaultSocket {
		t.Error("the order is flag, environment, default")
	}
}

func TestOverTCP(t *testing.T) {
	t.Parallel()
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		answer(w, 200, `{"status":{"deviceMTU":1450}}`)
	}))
	defer srv.Close()
	c, err := client.New("tcp://" + srv.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if cfg, err := c.Config(context.Background()); err != nil || cfg.Status.DeviceMTU != 1450 {
		t.Errorf("%+v %v", cfg, err)
	}
}

func TestMonitor(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		enc := json.NewEncoder(w)
		switch r.URL.Query().Get("type") {
		case "drop,trace":
			enc.Encode(rest.MonitorEvent{Type: rest.MonitorEventTypeDrop})
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		case "drop":
			io.WriteString(w, strings.Repeat(" ", 1<<20))
		case "trace":
			io.WriteString(w, "nonsense\n")
		case "trace,drop":
			io.WriteString(w, `{"type":"dr`)
		case "policy-verdict":
			answer(w, 400, `"unknown kind"`)
		}
	})
	var n int
	err := c.Monitor(ctx, []rest.MonitorEventType{rest.MonitorEventTypeDrop, rest.MonitorEventTypeTrace}, func(ev rest.MonitorEvent) error {
		n++
		cancel()
		return nil
	})
	if n != 1 || !errors.Is(err, context.Canceled) {
		t.Errorf("%d events, %v", n, err)
	}
	ctx = context.Background()
	none := func(rest.MonitorEvent) error { return nil }
	if err := c.Monitor(ctx, nil, none); !client.Unreachable(err) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the end of the stream gives %v", err)
	}
	if err := c.Monitor(ctx, []rest.MonitorEventType{rest.MonitorEventTypeTrace, rest.MonitorEventTypeDrop}, none); !client.Unreachable(err) || !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("the end of the stream within an event gives %v", err)
	}
	if err := c.Monitor(ctx, []rest.MonitorEventType{rest.MonitorEventTypeDrop}, none); err == nil || client.Unreachable(err) {
		t.Errorf("an endless line gives %v", err)
	}
	if err := c.Monitor(ctx, []rest.MonitorEventType{rest.MonitorEventTypeTrace}, none); err == nil || client.Unreachable(err) {
		t.Errorf("a malformed line gives %v", err)
	}
	if err := c.Monitor(ctx, []rest.MonitorEventType{rest.MonitorEventTypePolicyVerdict}, none); client.StatusCode(err) != 400 {
		t.Errorf("a refusal gives %v", err)
	}
}
