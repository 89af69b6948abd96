package consul_test

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/consul/api"
	"go.uber.org/goleak"

	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/conformance"
	"github.com/hawser-net/hawser/pkg/kvstore/consul"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// server starts a real Consul of one member and returns its address. The program is the one that HAWSER_CONSUL names, or that of the PATH;
// `make bin/consul` builds one.
func server(t *testing.T) string {
	t.Helper()
	program := os.Getenv("HAWSER_CONSUL")
	if program == "" {
		var err error
		if program, err = exec.LookPath("consul"); err != nil {
			t.Skip("needs a Consul server: `make bin/consul`, and set HAWSER_CONSUL to its path")
		}
	}
	port := func() string {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		return strings.TrimPrefix(l.Addr().String(), "127.0.0.1:")
	}
	http := port()
	log, err := os.Create(filepath.Join(t.TempDir(), "consul.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(program, "agent", "-dev", "-bind", "127.0.0.1", "-http-port", http, "-dns-port", "-1", "-grpc-port", "-1", "-grpc-tls-port", "-1",
		"-server-port", port(), "-serf-lan-port", port(), "-serf-wan-port", "-1", "-log-level", "warn")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		log.Close()
	})
	address := "127.0.0.1:" + http
	c, err := consul.New(context.Background(), config(address), nil)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for kvstore.Put(ctx, c, "cilium/up", nil, kvstore.Permanent) != nil {
		select {
		case <-ctx.Done():
			text, _ := os.ReadFile(log.Name())
			t.Fatalf("consul does not come up:\n%s", text)
		case <-time.After(50 * time.Millisecond):
		}
	}
	return address
}

func config(address string) consul.Config {
	cfg := consul.Defaults()
	cfg.Address = address
	return cfg
}

func TestConformance(t *testing.T) {
	address := server(t)
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
