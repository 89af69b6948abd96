package consul_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

// TestRightsOfToken: the rights that the documentation names are enough. Without that to write the
// guards, or the keys, a write fails at once with what Consul says, and is not taken for one that
// others are in the way of.
func TestRightsOfToken(t *testing.T) {
	t.Parallel()
	const secret = "7f4ae0e2-0000-4000-8000-000000000003"
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	port, settings := kvstoretest.FreePort(t), filepath.Join(t.TempDir(), "consul.json")
	must(os.WriteFile(settings, fmt.Appendf(nil, `{"acl": {"enabled": true, "default_policy": "deny", "tokens": {"initial_management": %q}}}`, secret), 0o600))
	root := config("127.0.0.1:" + port)
	root.Token = secret
	startServer(t, root, "-http-port", port, "-config-format", "json", "-config-file", settings)
	admin, err := api.NewClient(&api.Config{Address: root.Address, Token: secret})
	must(err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	for _, tt := range []struct{ name, keys, guards, lacks string }{
		{name: "all", keys: "write", guards: "write"},
		{name: "no-guards", keys: "write", guards: "read", lacks: consul.GuardPrefix},
		{name: "no-keys", keys: "read", guards: "write", lacks: "test/"},
	} {
		policy, _, err := admin.ACL().PolicyCreate(&api.ACLPolicy{Name: tt.name, Rules: fmt.Sprintf(
			`key_prefix "test/" { policy = %q } key_prefix ".hawser/" { policy = %q } session_prefix "" { policy = "write" }`, tt.keys, tt.guards)}, nil)
		must(err)
		token, _, err := admin.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{ID: policy.ID}}}, nil)
		must(err)
		cfg := root
		cfg.Token = token.SecretID
		c, err := consul.New(ctx, cfg, nil)
		must(err)
		defer c.Close()
		for _, lifetime := range []kvstore.Lifetime{kvstore.Permanent, kvstore.Leased} {
			began := time.Now()
			_, err := c.Txn(ctx, kvstore.Txn{
				If:   []kvstore.Cond{kvstore.PrefixAbsent("test/none/")},
				Then: []kvstore.Op{kvstore.PutOp("test/a/b/c", nil, lifetime)},
			})
			took := time.Since(began)
			switch {
			case tt.lacks == "" && err != nil:
				t.Errorf("%s, lifetime %d: %v", tt.name, lifetime, err)
			case tt.lacks != "" && (err == nil || !strings.Contains(err.Error(), "Permission denied") || !strings.Contains(err.Error(), tt.lacks) || took > 5*time.Second):
				t.Errorf("%s, lifetime %d, after %v: %v", tt.name, lifetime, took, err)
			case tt.lacks != "" && c.Status().LeasedKeys != 0:
				t.Errorf("%s: %d leased keys were not written", tt.name, c.Status().LeasedKeys)
			}
		}
	}
}

// TestClosedUnderWay: a write that is under way when the client is closed may have been carried
// out, so its error is not the one that says that nothing was written.
func TestClosedUnderWay(t *testing.T) {
	t.Parallel()
	address := kvstoretest.StartConsul(t)
	server, err := url.Parse("http://" + address)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(server)
	var late atomic.Bool
	done := make(chan struct{})
	front := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		if bytes.Contains(body, []byte(`"set"`)) && late.Load() { // a guard is written
			proxy.ServeHTTP(httptest.NewRecorder(), r)
			close(done)
			<-r.Context().Done()
			return
		}
		proxy.ServeHTTP(w, r)
	}))
	defer front.Close()
	c, err := consul.New(t.Context(), config(front.Listener.Addr().String()), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := kvstore.Put(ctx, c, "test/before", nil, kvstore.Leased); err != nil {
		t.Fatal(err)
	}
	late.Store(true)
	put := make(chan error, 1)
	go func() { put <- kvstore.Put(ctx, c, "test/a", nil, kvstore.Leased) }()
	select {
	case <-done:
	case <-ctx.Done():
		t.Fatal("the write does not reach Consul")
	}
	c.Close()
	if err := <-put; err == nil || errors.Is(err, kvstore.ErrClosed) || !strings.Contains(err.Error(), "may have been carried out") {
		t.Errorf("a write that was under way: %v", err)
	}
	if err := kvstore.Put(ctx, c, "test/b", nil, kvstore.Leased); !errors.Is(err, kvstore.ErrClosed) {
		t.Errorf("a write afterwards: %v", err)
	}
}
