package operator

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/storedial"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
	"github.com/hawser-net/hawser/pkg/kvstore/kvstoretest"
)

func TestMain(m *testing.M) {
	if os.Getenv(asOperator) != "" {
		os.Exit(beOperator())
	}
	kubeapi.VerifyTestMain(m)
}

// freeAddr returns a loopback address that nothing listens at.
func freeAddr(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

type cluster struct {
	*testing.T
	ctx  context.Context
	etcd *kvstoretest.Etcd
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	t.Cleanup(cancel)
	return &cluster{t, ctx, kvstoretest.StartEtcd(t)}
}

func (c *cluster) config() Config {
	cfg := Defaults()
	cfg.Store.Kind = "etcd"
	cfg.Store.Options = map[string]string{"etcd.address": c.etcd.Endpoint(), "etcd.qps": "2000"}
	cfg.Store.LeaseTTL = time.Minute
	cfg.ClusterName, cfg.ClusterID = "c7", 7
	cfg.GCInterval, cfg.HeartbeatTimeout, cfg.GCRateLimit = time.Second, 0, 1000000
	cfg.HeartbeatInterval, cfg.LockGCInterval, cfg.ClusterConfigInterval = 50*time.Millisecond, 100*time.Millisecond, 50*time.Millisecond
	cfg.APIAddr = freeAddr(c.T)
	return cfg
}

// run starts an operator. The function returned stops it and checks that it ends well.
func (c *cluster) run(cfg Config) (stop func()) {
	c.Helper()
	o, err := New(cfg, nil, "test")
	if err != nil {
		c.Fatal(err)
	}
	ctx, cancel := context.WithCancel(c.ctx)
	done := make(chan error, 1)
	go func() { done <- o.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			c.Errorf("the operator ended with: %v", err)
		}
	})
	c.Cleanup(stop)
	return stop
}

func (c *cluster) open() kvstore.Backend {
	c.Helper()
	b, err := storedial.Open(c.ctx, c.config().Store, nil)
	if err != nil {
		c.Fatal(err)
	}
	c.Cleanup(func() { b.Close() })
	return b
}

// eventually asks until f returns "".
func (c *cluster) eventually(f func() string) {
	c.Helper()
	for {
		problem := f()
		if problem == "" {
			return
		}
		select {
		case <-c.ctx.Done():
			c.Fatal(problem)
		case <-time.After(5 * time.Millisecond):
		}
	}
}

func (c *cluster) must(err error) {
	c.Helper()
	if err != nil {
		c.Fatal(err)
	}
}

func (c *cluster) http(addr, path string) (int, string) {
	req, err := http.NewRequestWithContext(c.ctx, http.MethodGet, "http://"+addr+path, nil)
	if err != nil {
		return 0, err.Error()
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err.Error()
	}
	defer resp.Body.Close()
	defer http.DefaultClient.CloseIdleConnections()
	body, _ := io.ReadAll(resp.Body)
	return resp.StatusCode, string(body)
}

func TestDuties(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	b := c.open()
	const base = storekeys.IdentitiesPrefix
	put := func(key, value string) { c.must(kvstore.Put(c.ctx, b, key, []byte(value), kvstore.Permanent)) }
	id := func(n int) string { return fmt.Sprint(7<<16 + n) }
	put(base+"/id/"+id(1), "k8s:app=used;")
	put(base+"/value/k8s:app=used;/10.0.0.1", id(1))
	put(base+"/id/"+id(2), "k8s:app=dead;")
	put(base+"/id/300", "k8s:app=of-another-cluster;")
	put(base+"/locks/k8s:app=used;/1234", "")

	cfg := c.config()
	cfg.EnableMetrics, cfg.PrometheusAddr = true, freeAddr(t)
	stop := c.run(cfg)

	var first kvstore.KeyValue
	c.eventually(func() string {
		var err error
		if first, err = b.Get(c.ctx, storekeys.HeartbeatKey); err != nil {
			return err.Error()
		}
		return ""
	})
	if _, err := time.Parse(time.RFC3339, string(first.Value)); err != nil || first.Lease == "" {
		t.Errorf("heartbeat %q on lease %q: %v", first.Value, first.Lease, err)
	}
	c.eventually(func() string {
		if now, err := b.Get(c.ctx, storekeys.HeartbeatKey); err != nil || now.ModRevision == first.ModRevision {
			return fmt.Sprintf("no second heartbeat (%v)", err)
		}
		return ""
	})

	described := func() string {
		kv, err := b.Get(c.ctx, "cilium/cluster-config/c7")
		if err != nil || string(kv.Value) != `{"id":7,"capabilities":{"maxConnectedClusters":255}}` || kv.Lease == "" {
			return fmt.Sprintf("the cluster is described by %q on lease %q (%v)", kv.Value, kv.Lease, err)
		}
		return ""
	}
	c.eventually(described)
	c.must(kvstore.Delete(c.ctx, b, "cilium/cluster-config/c7"))
	c.eventually(described)
	put("cilium/cluster-config/c7", `{"id":8}`)
	c.eventually(described)

	left := func(prefix string, want ...string) func() string {
		return func() string {
			l, err := b.List(c.ctx, prefix)
			if err != nil {
				return err.Error()
			}
			var got []string
			for _, kv := range l.Pairs {
				got = append(got, strings.TrimPrefix(kv.Key, prefix))
			}
			return cmp.Diff(want, got)
		}
	}
	c.eventually(left(base+"/locks/", []string(nil)...))
	c.eventually(left(base+"/id/", "300", id(1)))

	c.eventually(func() string {
		if code, body := c.http(cfg.APIAddr, "/v1/healthz"); code != 200 || body != "ok" {
			return fmt.Sprintf("/v1/healthz: %d %s", code, body)
		}
		return ""
	})
	if code, _ := c.http(cfg.APIAddr, "/other"); code != http.StatusNotFound {
		t.Errorf("an unknown path is answered with %d", code)
	}
	c.eventually(func() string {
		_, body := c.http(cfg.PrometheusAddr, "/metrics")
		for _, want := range []string{
			`cilium_operator_identity_gc_entries{identity_type="kvstore",status="alive"} 1`,
			`cilium_operator_identity_gc_runs{identity_type="kvstore",outcome="success"}`,
			`cilium_operator_identity_gc_latency{identity_type="kvstore",outcome="success"}`,
			`cilium_operator_kvstore_up 1`, `cilium_operator_kvstore_full 0`, `cilium_operator_kvstore_heartbeat_timestamp_seconds 1.`,
			`cilium_operator_collection_removed_total{kind="identities-kvstore"} 1`, `cilium_operator_collection_removed_total{kind="locks"} 1`,
			`cilium_operator_collection_last_success_timestamp_seconds{kind="locks"} 1.`,
		} {
			if !strings.Contains(body, want) {
				return "not in the metrics: " + want
			}
		}
		return ""
	})
	var list []metric
	_, body := c.http(cfg.APIAddr, "/v1/metrics")
	if err := json.Unmarshal([]byte(body), &list); err != nil || len(list) < 5 {
		t.Errorf("/v1/metrics has %d entries: %v", len(list), err)
	}

	stop()
	// A graceful stop leaves the keys to the lease: a restart goes on with them.
	if _, err := b.Get(c.ctx, storekeys.HeartbeatKey); err != nil {
		t.Errorf("heartbeat after the stop: %v", err)
	}
}

// TestReadinessFollowsTheStore: without its store an operator is not ready, but alive: a kubelet
// must not start it again and again.
func TestReadinessFollowsTheStore(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	c.etcd.Stop()
	cfg := c.config()
	c.run(cfg)
	want := func(code int, path string) {
		t.Helper()
		c.eventually(func() string {
			if got, body := c.http(cfg.APIAddr, path); got != code || code != 200 && !strings.Contains(body, "kvstore: etcd") {
				return fmt.Sprintf("%s: %d %s", path, got, body)
			}
			return ""
		})
	}
	want(http.StatusInternalServerError, "/readyz")
	want(http.StatusInternalServerError, "/v1/healthz")
	want(http.StatusOK, "/healthz")
	want(http.StatusOK, "/livez")
	c.etcd.Start()
	want(http.StatusOK, "/readyz")
	want(http.StatusOK, "/v1/healthz")
	b := c.open()
	c.eventually(func() string {
		if _, err := b.Get(c.ctx, storekeys.HeartbeatKey); err != nil {
			return err.Error()
		}
		return ""
	})
}

// TestTwoOperators lets two operators and several nodes work on one store: no identity in use goes
// away, every unused one does, and when one operator is gone the other does everything.
func TestTwoOperators(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	stopFirst := c.run(c.config())
	c.run(c.config())

	const nodes, rounds = 4, 40
	type held struct {
		id  allocator.ID
		key string
	}
	var mu sync.Mutex
	inUse := map[held]int{}
	numbers := map[string]allocator.ID{} // of keys in use
	var wg sync.WaitGroup
	watch := c.open()
	for n := range nodes {
		backend, err := allocator.NewKVStoreBackend(allocator.KVStoreConfig{
			Store: c.open(), BasePath: storekeys.IdentitiesPrefix, Suffix: fmt.Sprintf("10.0.0.%d", n), KeyType: allocator.StringKey(""),
		})
		c.must(err)
		// No protection: what an operator deletes by mistake must show.
		a, err := allocator.NewAllocator(allocator.StringKey(""), backend, allocator.WithMin(7<<16), allocator.WithMax(8<<16-1), allocator.WithQuarantine(0))
		c.must(err)
		ctx, cancel := context.WithCancel(c.ctx)
		runs := make(chan error, 1)
		go func() { runs <- a.Run(ctx) }()
		t.Cleanup(func() {
			cancel()
			if err := <-runs; err != nil {
				t.Error(err)
			}
		})
		wg.Add(1)
		go func() {
			defer wg.Done()
			for i := range rounds {
				key := allocator.StringKey(fmt.Sprintf("k8s:app=%d;", (n+i)%7))
				id, _, err := a.Allocate(ctx, key)
				if err != nil {
					t.Errorf("allocate: %v", err)
					return
				}
				mu.Lock()
				inUse[held{id, string(key)}]++
				if other, ok := numbers[string(key)]; ok && other != id {
					t.Errorf("%s is %d and %d", key, other, id)
				}
				numbers[string(key)] = id
				mu.Unlock()
				time.Sleep(time.Duration(20+10*n) * time.Millisecond) // use it across a round of collection now and then
				kv, err := watch.Get(ctx, storekeys.IdentitiesPrefix+"/id/"+id.String())
				if err != nil || string(kv.Value) != string(key) {
					t.Errorf("identity %d of %s in use is %q in the store (%v)", id, key, kv.Value, err)
				}
				mu.Lock()
				if inUse[held{id, string(key)}]--; inUse[held{id, string(key)}] == 0 {
					delete(inUse, held{id, string(key)})
					delete(numbers, string(key))
				}
				mu.Unlock()
				if _, err := a.Release(ctx, key); err != nil {
					t.Errorf("release: %v", err)
				}
			}
		}()
	}
	wg.Wait()
	stopFirst()
	c.must(kvstore.Delete(c.ctx, watch, storekeys.HeartbeatKey))
	c.eventually(func() string {
		ids, err := watch.List(c.ctx, storekeys.IdentitiesPrefix+"/id/")
		_, errBeat := watch.Get(c.ctx, storekeys.HeartbeatKey)
		_, errConfig := watch.Get(c.ctx, "cilium/cluster-config/c7")
		if err := errors.Join(err, errBeat, errConfig); err != nil || len(ids.Pairs) > 0 {
			return fmt.Sprintf("%d unused identities are left (%v)", len(ids.Pairs), err)
		}
		return ""
	})
}

func TestAddressInUse(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	cfg := Defaults()
	cfg.Store.Kind, cfg.Store.Options = "etcd", map[string]string{"etcd.address": "unix:///nowhere/etcd.sock"}
	cfg.APIAddr = l.Addr().String()
	o, err := New(cfg, nil, "test")
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Run(context.Background()); err == nil || !strings.Contains(err.Error(), "--operator-api-serve-addr") {
		t.Errorf("run: %v", err)
	}
}

func TestLocalhostIsBothFamilies(t *testing.T) {
	t.Parallel()
	ls, err := listen(context.Background(), "localhost:0")
	if err != nil {
		t.Fatal(err)
	}
	ports := map[string]bool{}
	for _, l := range ls {
		_, port, _ := net.SplitHostPort(l.Addr().String())
		ports[port] = true
		l.Close()
	}
	if len(ports) != 1 {
		t.Errorf("listening at ports %v", ports)
	}
}

func TestConfig(t *testing.T) {
	t.Parallel()
	good := func() Config {
		c := Defaults()
		c.Store.Kind, c.Store.Options = "etcd", map[string]string{"etcd.address": "http://a:1"}
		return c
	}
	c := good()
	if err := c.Validate(); err != nil {
		t.Errorf("a good configuration: %v", err)
	}
	for _, nowhere := range []string{"", "none"} {
		c := good()
		c.APIAddr = nowhere
		o := &Operator{cfg: c}
		if err := c.Validate(); err != nil || len(o.listeners()) > 0 {
			t.Errorf("with --operator-api-serve-addr=%q: %v, %d listeners", nowhere, err, len(o.listeners()))
		}
	}
	for want, change := range map[string]func(*Config){
		"--log-format":                     func(c *Config) { c.LogFormat = "xml" },
		"--cluster-name":                   func(c *Config) { c.ClusterName = "No" },
		"--cluster-id":                     func(c *Config) { c.ClusterID = 256 },
		"--max-connected-clusters":         func(c *Config) { c.MaxConnectedClusters = 300 },
		"nothing to do":                    func(c *Config) { c.Store = storedial.Defaults() },
		"--identity-allocation-mode":       func(c *Config) { c.AllocationMode = "crd" },
		"operator needs Kubernetes":        func(c *Config) { c.ManagementMode = "operator" },
		"doublewrite-readcrd needs Kube":   func(c *Config) { c.AllocationMode = "doublewrite-readcrd" },
		"--double-write-metric-reporter":   func(c *Config) { c.CompareInterval = 0 },
		"--identity-gc-interval":           func(c *Config) { c.GCInterval = time.Millisecond },
		"--identity-gc-rate-interval":      func(c *Config) { c.GCRateInterval = 0 },
		"--identity-gc-rate-limit":         func(c *Config) { c.GCRateLimit = -1 },
		"heartbeat":                        func(c *Config) { c.HeartbeatInterval = 0 },
		"--operator-api-serve-addr":        func(c *Config) { c.APIAddr = "nowhere" },
		"--operator-prometheus-serve-addr": func(c *Config) { c.EnableMetrics, c.PrometheusAddr = true, "nowhere" },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a fault with %q, got %v", want, err)
		}
	}
}

func TestKubernetesConfig(t *testing.T) {
	t.Parallel()
	good := func() Config {
		c := Defaults()
		c.Kubernetes, c.AllocationMode, c.Kube.KubeconfigPath = true, "crd", "/nowhere"
		c.Pool.IPv4 = []string{"10.0.0.0/8"}
		return c
	}
	c := good()
	if err := c.Validate(); err != nil {
		t.Errorf("a good configuration: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"kvstore needs --kvstore":  func(c *Config) { c.AllocationMode = "kvstore" },
		"crd needs Kubernetes":     func(c *Config) { c.Kubernetes = false },
		"--ipam":                   func(c *Config) { c.IPAM = "nothing" },
		"--parallel-alloc-workers": func(c *Config) { c.IPAM, c.Cloud.Workers = "eni", 0 },
		"--ipam=azure: the operator has IPv4 addresses assigned to nodes, and no others: set --enable-ipv6=false": func(c *Config) {
			c.IPAM, c.Azure.Subscription, c.Azure.ResourceGroup = "azure", "s", "g"
		},
		"--ipam=alibabacloud: the operator has IPv4 addresses": func(c *Config) { c.IPAM = "alibabacloud" },
		"--eni-tags":                     func(c *Config) { c.IPAM, c.AWS.InterfaceTags = "eni", map[string]string{"io.cilium/cluster-name": "x"} },
		"give at least one range":        func(c *Config) { c.Pool.IPv4 = nil },
		"--k8s-api-server":               func(c *Config) { c.Kube.APIServer = "nowhere" },
		"--operator-k8s-client-qps":      func(c *Config) { c.Kube.QPS = 0 },
		"--k8s-namespace":                func(c *Config) { c.Kube.Namespace = "A" },
		"--leader-election-retry-period": func(c *Config) { c.Election.RetryPeriod = 0 },
		"--taint-sync-workers":           func(c *Config) { c.Nodes.Workers = 0 },
		"--cilium-endpoint-gc-interval":  func(c *Config) { c.Endpoints.GCInterval = -1 },
		"--identity-heartbeat-timeout":   func(c *Config) { c.HeartbeatTimeout = -1 },
		"nothing shows":                  func(c *Config) { c.Endpoints.NoObjects = true },
		"--ces-rate-limits":              func(c *Config) { c.Slices.Rates = "many" },
		"--ces-controller-mode: slim":    func(c *Config) { c.Slices.Enable, c.Slices.Mode = true, "slim" },
		"--enable-cilium-endpoint-slice": func(c *Config) { c.Slices.Enable, c.Endpoints.NoObjects = true, true },
		"--identity-management-mode":     func(c *Config) { c.ManagementMode = "unknown" },
		"in both places agents write":    func(c *Config) { c.ManagementMode, c.AllocationMode = "both", "doublewrite-readcrd" },
		"leave out one of the two":       func(c *Config) { c.ManagementMode, c.ManageCID = "agent", "true" },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want a fault with %q, got %v", want, err)
		}
	}
}

// TestIntervals: what is done every so often is not done without a pause, nor with one below 0. A 0
// switches most of it off.
func TestIntervals(t *testing.T) {
	t.Parallel()
	never := map[string]string{ // what cannot be switched off, or not by its interval, and why
		"double-write-metric-reporter-interval": "--identity-allocation-mode says whether there is something to compare",
		"identity-gc-rate-interval":             "--identity-gc-rate-limit=0 is for no limit",
	}
	names := 0
	var defaults Config
	all := pflag.NewFlagSet("all", pflag.ContinueOnError)
	defaults.Flags(all)
	all.VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() != "duration" || !strings.HasSuffix(f.Name, "-interval") {
			return
		}
		names++
		for value, wrong := range map[string]bool{"-1s": true, "0s": never[f.Name] != "", "1ns": true, "999ms": true, "1s": false} {
			cfg := Defaults()
			cfg.Kubernetes, cfg.AllocationMode, cfg.Kube.KubeconfigPath, cfg.IPAM = true, modeCRD, "/nowhere", "eni"
			fs := pflag.NewFlagSet("operator", pflag.ContinueOnError)
			cfg.Flags(fs)
			if err := fs.Set(f.Name, value); err != nil {
				t.Fatal(err)
			}
			if err := cfg.Validate(); wrong != (err != nil && strings.Contains(err.Error(), "--"+f.Name+": ")) {
				t.Errorf("--%s=%s: %v", f.Name, value, err)
			}
		}
	})
	if names < 8 {
		t.Errorf("only %d intervals were found", names)
	}
}

func TestClusterIsFound(t *testing.T) { // not parallel: the command sets the log of its libraries
	pod := map[string]string{"KUBERNETES_SERVICE_HOST": "192.0.2.1", "KUBERNETES_SERVICE_PORT": "443"}
	for _, tt := range []struct {
		name string
		env  map[string]string
		args []string
		want string // in the error
	}{
		{"nothing", nil, nil, "nothing to do"},
		{"demanded, not there", nil, []string{"--enable-k8s"}, "this is no pod of a cluster"},
		{"demanded by the environment", map[string]string{"CILIUM_ENABLE_K8S": "true"}, nil, "this is no pod of a cluster"},
		{"in a pod", pod, nil, "kvstore needs --kvstore"},
		{"in a pod, unwanted", pod, []string{"--enable-k8s=false"}, "nothing to do"},
		{"kubeconfig", nil, []string{"--k8s-kubeconfig-path=/nowhere", "--identity-allocation-mode=crd", "--ipam=kubernetes", "--operator-api-serve-addr="}, "--k8s-kubeconfig-path"},
	} {
		cmd := NewCommand("test", func(k string) string { return tt.env[k] })
		cmd.SetArgs(tt.args)
		if err := cmd.ExecuteContext(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
}

func TestCommand(t *testing.T) { // not parallel: the command sets the log of its libraries
	run := func(env map[string]string, args ...string) error {
		cmd := NewCommand("test", func(k string) string { return env[k] })
		cmd.SetArgs(args)
		cmd.SetOut(io.Discard)
		ctx, cancel := context.WithCancel(context.Background())
		cancel() // stop at once
		return cmd.ExecuteContext(ctx)
	}
	if err := run(nil); err == nil || !strings.Contains(err.Error(), "--kvstore") {
		t.Errorf("without options: %v", err)
	}
	env := map[string]string{
		"CILIUM_KVSTORE": "etcd", "CILIUM_KVSTORE_OPT": `{"etcd.address": "unix:///nowhere/etcd.sock"}`, "CILIUM_OPERATOR_API_SERVE_ADDR": "127.0.0.1:0",
	}
	if err := run(env); err != nil {
		t.Errorf("stopped at once: %v", err)
	}
	if err := run(env, "--identity-gc-interval=never"); err == nil {
		t.Error("a wrong option was taken")
	}
}
