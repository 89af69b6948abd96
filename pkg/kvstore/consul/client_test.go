package consul_test

import (
	"bytes"
	"context"
	"crypto/x509"
	"fmt"
	"io"
	"maps"
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
	"github.com/hawser-net/hawser/pkg/kvstore/conformance"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest/leaktest"
)

func TestMain(m *testing.M) { leaktest.VerifyTestMain(m) }

// TestHiddenForAMoment: while rights are taken away, a query shows no key, and they are back before
// the client can ask whether it may read. No key counts as deleted.
func TestHiddenForAMoment(t *testing.T) {
	t.Parallel()
	const secret = "7f4ae0e2-0000-4000-8000-000000000002"
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
	const rules = `key_prefix "test/" { policy = "write" } key_prefix ".hawser/" { policy = "write" } session_prefix "" { policy = "write" } node_prefix "" { policy = "read" }`
	policy, _, err := admin.ACL().PolicyCreate(&api.ACLPolicy{Name: "all", Rules: rules}, nil)
	must(err)
	allow := func(rules string) error {
		_, _, err := admin.ACL().PolicyUpdate(&api.ACLPolicy{ID: policy.ID, Name: "all", Rules: rules}, nil)
		return err
	}
	_, _, err = admin.ACL().TokenUpdate(&api.ACLToken{AccessorID: "00000000-0000-0000-0000-000000000002", Policies: []*api.ACLTokenPolicyLink{{ID: policy.ID}}}, nil)
	must(err)
	anonymous, err := api.NewClient(&api.Config{Address: root.Address})
	must(err)
	until := func(readable bool) {
		for t.Context().Err() == nil {
			if _, _, err := anonymous.KV().Get("test/.nothing", nil); (err == nil) == readable {
				return
			}
			time.Sleep(10 * time.Millisecond) // servers remember the rules of a token for a while
		}
	}

	var hidden atomic.Bool
	server, err := url.Parse("http://" + root.Address)
	must(err)
	proxy := httputil.NewSingleHostReverseProxy(server)
	proxy.ModifyResponse = func(resp *http.Response) error {
		if !resp.Request.URL.Query().Has("recurse") || !strings.HasPrefix(resp.Request.URL.Path, "/v1/kv/test/") {
			return nil
		}
		body, err := io.ReadAll(resp.Body)
		resp.Body = io.NopCloser(bytes.NewReader(body))
		if err == nil && !bytes.Contains(body, []byte("test/a")) && hidden.CompareAndSwap(true, false) {
			err = allow(rules)
			until(true)
		}
		return err
	}
	front := httptest.NewServer(proxy)
	defer front.Close()
	until(true)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	c, err := consul.New(ctx, config(front.Listener.Addr().String()), nil)
	must(err)
	defer c.Close()
	must(kvstore.Put(ctx, c, "test/a", []byte("1"), kvstore.Permanent))
	events := c.Watch(ctx, "test/")
	for ev := range events {
		if ev.Kind == kvstore.EventListDone {
			break
		}
	}
	must(allow(`session_prefix "" { policy = "write" } key_prefix ".hawser/" { policy = "write" } node_prefix "" { policy = "read" }`))
	until(false)
	hidden.Store(true)
	write := func(key string) {
		_, err := admin.KV().Put(&api.KVPair{Key: key, Value: []byte("2")}, nil)
		must(err)
	}
	for i := 0; hidden.Load() && ctx.Err() == nil; i++ { // a query may have begun with the rights
		write(fmt.Sprint("test/b", i))
		time.Sleep(50 * time.Millisecond)
	}
	write("test/last")
	for ev := range events {
		if ev.Kind != kvstore.EventCreate {
			t.Errorf("observed %+v, and keys were only created", ev)
		}
		if ev.Key == "test/last" {
			break
		}
	}
	if ctx.Err() != nil {
		t.Error("the last key was not observed")
	}
	cancel()
	for range events { // until it is closed
	}
}

// startServer returns when a real Consul of one member answers a client with the settings. end ends
// it before the test does; its data is lost.
func startServer(t *testing.T, cfg consul.Config, args ...string) (end func()) {
	t.Helper()
	end = kvstoretest.RunConsul(t, args...)
	c, err := consul.New(context.Background(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for kvstore.Put(ctx, c, "test/up", nil, kvstore.Leased) != nil { // a lease needs more than a key
		select {
		case <-ctx.Done():
			t.Fatal("consul does not come up")
		case <-time.After(50 * time.Millisecond):
		}
	}
	return end
}

func config(address string) consul.Config {
	cfg := consul.Defaults()
	cfg.Address = address
	return cfg
}

func TestConformance(t *testing.T) {
	address := kvstoretest.StartConsul(t)
	settings := api.DefaultNonPooledConfig()
	settings.Address = address
	raw, err := api.NewClient(settings)
	if err != nil {
		t.Fatal(err)
	}
	cfg := config(address)
	cfg.LeaseTTL = 10 * time.Second // the shortest of Consul
	conformance.Run(t, conformance.Harness{
		Open: func(t *testing.T) kvstore.Backend {
			c, err := consul.NewUnchecked(cfg)
			if err != nil {
				t.Fatal(err)
			}
			return c
		},
		ExpireLeases: func(t *testing.T, b kvstore.Backend) {
			for _, id := range b.(*consul.Client).SessionIDs() {
				if _, err := raw.Session().Destroy(id, nil); err != nil {
					t.Fatal(err)
				}
			}
		},
		BreakWatches: func(_ *testing.T, b kvstore.Backend) { b.(*consul.Client).BreakWatches() },
		Coalesces:    true,
	})
}

// TestGoesBack: a server that comes back with older data, whose index is behind what a watch has
// been told. The watch must not wait until the index has caught up.
func TestGoesBack(t *testing.T) {
	t.Parallel()
	port := kvstoretest.FreePort(t)
	cfg := config("127.0.0.1:" + port)
	end := startServer(t, cfg, "-http-port", port)
	c, err := consul.New(t.Context(), cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	put := func(key string) {
		t.Helper()
		for kvstore.Put(ctx, c, key, nil, kvstore.Permanent) != nil {
			if ctx.Err() != nil {
				t.Fatalf("cannot write %s", key)
			}
		}
	}
	for range 50 {
		put("test/elsewhere")
	}
	put("test/x/old")
	events := c.Watch(ctx, "test/x/")
	expect := func(kind kvstore.EventKind, key string) {
		t.Helper()
		for {
			select {
			case ev := <-events:
				if ev.Kind == kind && ev.Key == key {
					return
				}
			case <-ctx.Done():
				t.Fatalf("the watch does not deliver %v of %s", kind, key)
			}
		}
	}
	expect(kvstore.EventCreate, "test/x/old")
	end()
	startServer(t, cfg, "-http-port", port)
	expect(kvstore.EventDelete, "test/x/old")
	put("test/x/new")
	expect(kvstore.EventCreate, "test/x/new")
}

// TestOtherHistory: a store that went back and has gone on may have other values at revisions that
// a watch has delivered.
func TestOtherHistory(t *testing.T) {
	t.Parallel()
	kv := func(key, value string, revision int64) kvstore.KeyValue {
		return kvstore.KeyValue{Key: key, Value: []byte(value), CreateRevision: 5, ModRevision: revision}
	}
	before := kvstore.Listing{Revision: 9, Pairs: []kvstore.KeyValue{kv("a", "1", 6), kv("b", "1", 7), kv("c", "1", 8), kv("d", "1", 9)}}
	now := kvstore.Listing{Revision: 12, Pairs: []kvstore.KeyValue{kv("a", "1", 6), kv("b", "2", 7), kv("c", "1", 7), kv("d", "2", 10), kv("e", "1", 11)}}
	got := map[string]kvstore.EventKind{}
	for _, ev := range consul.Changes(before, now) {
		got[ev.Key] = ev.Kind
	}
	want := map[string]kvstore.EventKind{"b": kvstore.EventModify, "c": kvstore.EventModify, "d": kvstore.EventModify, "e": kvstore.EventCreate}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestTLSAndToken has a Consul that speaks TLS only, asks clients for certificates and denies what
// no token allows.
func TestTLSAndToken(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	write := func(name string, data []byte) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return path
	}
	ours, others := kvstoretest.NewAuthority(t), kvstoretest.NewAuthority(t)
	ca := write("ca.pem", ours.PEM())
	cert, key := ours.Issue(t, "server.dc1.consul", x509.ExtKeyUsageServerAuth)
	settings := fmt.Sprintf(`{"tls": {"https": {"ca_file": %q, "cert_file": %q, "key_file": %q, "verify_incoming": true}},
		"acl": {"enabled": true, "default_policy": "deny", "tokens": {"initial_management": "7f4ae0e2-0000-4000-8000-000000000001"}}}`,
		ca, write("server.pem", cert), write("server.key", key))
	port := kvstoretest.FreePort(t)
	cert, key = ours.Issue(t, "agent-1", x509.ExtKeyUsageClientAuth)
	good := config("127.0.0.1:" + port)
	good.CAFile, good.CertFile, good.KeyFile = ca, write("client.pem", cert), write("client.key", key)
	good.TokenFile = write("token", []byte("7f4ae0e2-0000-4000-8000-000000000001\n"))
	startServer(t, good, "-http-port", "-1", "-https-port", port, "-config-format", "json", "-config-file", write("consul.json", []byte(settings)))

	try := func(change func(*consul.Config)) error {
		cfg := good
		change(&cfg)
		c, err := consul.New(t.Context(), cfg, nil)
		if err != nil {
			return err
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		_, err = kvstore.CreateIfAbsent(ctx, c, fmt.Sprint("test/tls/", time.Now().UnixNano()), nil, kvstore.Leased)
		return err
	}
	if err := try(func(*consul.Config) {}); err != nil {
		t.Errorf("with certificate and token: %v", err)
	}
	if err := try(func(c *consul.Config) { c.TokenFile, c.Token = "", "7f4ae0e2-0000-4000-8000-000000000001" }); err != nil {
		t.Errorf("with the token itself: %v", err)
	}
	for want, change := range map[string]func(*consul.Config){
		"hidden from the token": func(c *consul.Config) { c.TokenFile = "" },
		"":                      func(c *consul.Config) { c.CertFile, c.KeyFile = "", "" }, // the words depend on when the server hangs up
		"unknown authority":     func(c *consul.Config) { c.CAFile = write("other.pem", others.PEM()) },
		"no such file":          func(c *consul.Config) { c.TokenFile = filepath.Join(dir, "absent") },
	} {
		if err := try(change); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a fault with %q, got %v", want, err)
		}
	}

	// What is renewed in its file is used from the next connection on: the certificate, and the
	// authority of the server's.
	strange, strangeKey := others.Issue(t, "agent-1", x509.ExtKeyUsageClientAuth)
	for name, tt := range map[string]struct{ ca, cert, key []byte }{
		"certificate": {ours.PEM(), strange, strangeKey}, "authority": {others.PEM(), cert, key},
	} {
		renewed := good
		renewed.CAFile, renewed.CertFile, renewed.KeyFile = write(name+"-ca.pem", tt.ca), write(name+".pem", tt.cert), write(name+".key", tt.key)
		c, err := consul.New(t.Context(), renewed, nil)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
		defer cancel()
		if _, err := c.List(ctx, "test/"); err == nil {
			t.Errorf("let in with another authority's %s", name)
		}
		write(name+"-ca.pem", ours.PEM())
		write(name+".pem", cert)
		write(name+".key", key)
		for {
			_, err := c.List(ctx, "test/")
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				t.Fatalf("with the renewed %s: %v", name, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func TestTooLarge(t *testing.T) {
	t.Parallel()
	c, err := consul.New(context.Background(), config("127.0.0.1:1"), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	var txn kvstore.Txn
	for i := range kvstore.MaxTxnOps {
		txn.If = append(txn.If, kvstore.Absent(fmt.Sprint("a/", i)))
		txn.Then = append(txn.Then, kvstore.PutOp(fmt.Sprint("b/", i), nil, kvstore.Permanent))
	}
	if _, err := c.Txn(context.Background(), txn); err == nil || !strings.Contains(err.Error(), "too large") {
		t.Errorf("a transaction of 256 keys: %v", err)
	}
	if st := c.Status(); st.Kind != "consul" || st.State == kvstore.StateOK {
		t.Errorf("status: %+v", st)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	c := consul.Defaults()
	if err := c.Set(map[string]string{"consul.address": "a:8500", "consul.token": "secret", "consul.adress": "x"}); err == nil || !strings.Contains(err.Error(), "consul.adress") {
		t.Errorf("an unknown option: %v", err)
	}
	if c.Address != "a:8500" || c.Token != "secret" {
		t.Errorf("settings: %+v", c)
	}
	if err := c.Validate(); err != nil {
		t.Errorf("good settings: %v", err)
	}
	for want, change := range map[string]func(*consul.Config){
		"consul.address":  func(c *consul.Config) { c.Address = "" },
		"consul.certFile": func(c *consul.Config) { c.CertFile = "x" },
		"lease TTL":       func(c *consul.Config) { c.LeaseTTL = time.Second },
		"at least 1":      func(c *consul.Config) { c.MaxInflight = 0 },
		"above 0":         func(c *consul.Config) { c.CheckInterval = 0 },
	} {
		bad := c
		change(&bad)
		if err := bad.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a fault with %q, got %v", want, err)
		}
	}
}

// TestTokenRotatedAndRefused: a token that is rotated in its file is used from the next request on.
// Keys that a token may not read, since its policy was changed or its file emptied, are not taken
// for keys that are gone: Consul leaves them out of its answers.
func TestTokenRotatedAndRefused(t *testing.T) {
	t.Parallel()
	const secret = "7f4ae0e2-0000-4000-8000-000000000001"
	port := kvstoretest.FreePort(t)
	cfg := config("127.0.0.1:" + port)
	settings := filepath.Join(t.TempDir(), "consul.json")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(os.WriteFile(settings, fmt.Appendf(nil, `{"acl": {"enabled": true, "default_policy": "deny", "tokens": {"initial_management": %q}}}`, secret), 0o600))
	root := cfg
	root.Token = secret
	startServer(t, root, "-http-port", port, "-config-format", "json", "-config-file", settings)
	admin, err := api.NewClient(&api.Config{Address: cfg.Address, Token: secret})
	must(err)
	const rules = `key_prefix "test/" { policy = "write" } key_prefix ".hawser/" { policy = "write" } session_prefix "" { policy = "write" } node_prefix "" { policy = "read" }`
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	policy, _, err := admin.ACL().PolicyCreate(&api.ACLPolicy{Name: "agents", Rules: rules}, nil)
	must(err)
	token := func() *api.ACLToken {
		t.Helper()
		made, _, err := admin.ACL().TokenCreate(&api.ACLToken{Policies: []*api.ACLTokenPolicyLink{{ID: policy.ID}}}, nil)
		must(err)
		return made
	}
	cfg.TokenFile = filepath.Join(t.TempDir(), "token")
	file := func(secret string) {
		t.Helper()
		must(os.WriteFile(cfg.TokenFile, []byte(secret+"\n"), 0o600))
	}
	first := token()
	file(first.SecretID)
	c, err := consul.New(ctx, cfg, nil)
	must(err)
	defer c.Close()
	must(kvstore.Put(ctx, c, "test/a", []byte("1"), kvstore.Leased))
	events := c.Watch(ctx, "test/")
	for ev := range events {
		if ev.Kind == kvstore.EventListDone {
			break
		}
	}

	// The second token, before and after the first is gone.
	second := token()
	file(second.SecretID)
	_, err = admin.ACL().TokenDelete(first.AccessorID, nil)
	must(err)
	must(kvstore.Put(ctx, c, "test/b", []byte("2"), kvstore.Permanent))
	if ev := <-events; ev.Key != "test/b" || ev.Kind != kvstore.EventCreate {
		t.Fatalf("after the token was rotated: %+v", ev)
	}

	// It may read no more.
	allow := func(rules string) {
		t.Helper()
		_, _, err := admin.ACL().PolicyUpdate(&api.ACLPolicy{ID: policy.ID, Name: "agents", Rules: rules}, nil)
		must(err)
	}
	write := func(key, value string) {
		t.Helper()
		_, err := admin.KV().Put(&api.KVPair{Key: key, Value: []byte(value)}, nil)
		must(err)
	}
	refused := func(why string) {
		t.Helper()
		for ctx.Err() == nil { // servers remember the rules of a token for a while
			if _, err := c.List(ctx, "test/"); err != nil {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		if l, err := c.List(ctx, "test/"); err == nil || !strings.Contains(err.Error(), "token") {
			t.Errorf("%s: a listing shows %v, %v", why, l.Pairs, err)
		}
		for name, txn := range map[string]kvstore.Txn{
			"a key":       {Then: []kvstore.Op{kvstore.GetOp("test/a")}},
			"a prefix":    {Then: []kvstore.Op{kvstore.ListOp("test/")}},
			"a condition": {If: []kvstore.Cond{kvstore.PrefixAbsent("test/")}, Else: []kvstore.Op{kvstore.GetOp(consul.GuardPrefix + "x")}},
		} {
			if r, err := c.Txn(ctx, txn); err == nil || !strings.Contains(err.Error(), "token") {
				t.Errorf("%s: a transaction that reads %s shows %+v, %v", why, name, r, err)
			}
		}
	}
	allow(`session_prefix "" { policy = "write" } key_prefix ".hawser/" { policy = "write" } node_prefix "" { policy = "read" }`)
	write("test/c", "3")
	refused("a policy without the keys")
	allow(rules)
	if ev := <-events; ev.Key != "test/c" || ev.Kind != kvstore.EventCreate {
		t.Fatalf("after the token's keys were hidden: %+v", ev)
	}
	file("")
	for _, key := range []string{"test/d", "test/e"} { // one query may have begun with the token
		write(key, "4")
		refused("an empty file")
	}
	file(second.SecretID)
	for _, key := range []string{"test/d", "test/e"} {
		if ev := <-events; ev.Key != key || ev.Kind != kvstore.EventCreate {
			t.Fatalf("after the token's file was empty: %+v, want %s", ev, key)
		}
	}

	// Who has no token has the rights of the anonymous one. Consul does not state to it what it
	// hides.
	anonymous := func(policies ...*api.ACLTokenPolicyLink) {
		t.Helper()
		_, _, err := admin.ACL().TokenUpdate(&api.ACLToken{AccessorID: "00000000-0000-0000-0000-000000000002", Policies: policies}, nil)
		must(err)
	}
	anonymous(&api.ACLTokenPolicyLink{ID: policy.ID})
	cfg.TokenFile = ""
	if c, err = consul.New(ctx, cfg, nil); err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for ctx.Err() == nil {
		if _, err := c.List(ctx, "test/"); err == nil {
			break
		}
		time.Sleep(20 * time.Millisecond)
	}
	events = c.Watch(ctx, "test/")
	for ev := range events {
		if ev.Kind == kvstore.EventListDone {
			break
		}
	}
	allow(`session_prefix "" { policy = "write" } key_prefix ".hawser/" { policy = "write" } node_prefix "" { policy = "read" }`)
	for _, key := range []string{"test/f", "test/g"} {
		write(key, "5")
		refused("an anonymous client")
	}
	allow(rules)
	for _, key := range []string{"test/f", "test/g"} {
		if ev := <-events; ev.Key != key || ev.Kind != kvstore.EventCreate {
			t.Fatalf("after an anonymous client could not read: %+v, want %s", ev, key)
		}
	}
}
