package agent

import (
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/spf13/pflag"

	"github.com/hawser-net/hawser/internal/cni"
	"github.com/hawser-net/hawser/internal/confdir"
	"github.com/hawser-net/hawser/internal/endpoint"
)

func loadConfig(t testing.TB, args []string, env map[string]string, files map[string]string) (Config, []string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Defaults()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	cfg.Flags(fs)
	if err := fs.Parse(append(args, "--config-dir", dir)); err != nil {
		t.Fatal(err)
	}
	unknown, err := confdir.Load(fs, func(name string) string { return env[name] })
	return cfg, unknown, err
}

func TestConfigSources(t *testing.T) {
	t.Parallel()
	cfg, unknown, err := loadConfig(t,
		[]string{"--cluster-name", "from-args"},
		map[string]string{"CILIUM_CLUSTER_NAME": "from-env", "CILIUM_NODE_NAME": "env-node", "CILIUM_CLUSTER_ID": ""},
		map[string]string{
			"cluster-name": "from-file", "node-name": "file-node", "cluster-id": "7\n", "debug": "true", "mtu": "",
			"labels": "k8s:app !k8s:pod", "kvstore-opt": "etcd.address=http://x:1", "no-such-option": "x", ".hidden": "x", "ipam-expiration": "42s",
		})
	if err != nil {
		t.Fatal(err)
	}
	if cfg.ClusterName != "from-args" || cfg.NodeName != "env-node" || cfg.ClusterID != 7 || !cfg.Debug || cfg.MTU != 0 ||
		cfg.IPAMExpiration.String() != "42s" || cfg.KVStoreOpts["etcd.address"] != "http://x:1" {
		t.Errorf("%+v", cfg)
	}
	if !slices.Equal(unknown, []string{"no-such-option"}) {
		t.Errorf("unknown options %q, want no-such-option only", unknown)
	}
}

func TestConfigNamesTheSourceOfFaults(t *testing.T) {
	t.Parallel()
	_, _, err := loadConfig(t, nil, map[string]string{"CILIUM_CLUSTER_ID": "many"},
		map[string]string{"debug": "perhaps", "mtu": "some"})
	for _, want := range []string{"CILIUM_CLUSTER_ID", "debug", "mtu"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want it to name %s", err, want)
		}
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	good := func() Config {
		c := Defaults()
		c.NodeName, c.IPv4Range, c.IPv6Range = "n1", "10.0.0.0/24", "fd00::/112"
		return c
	}
	c := good()
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	for flag, change := range map[string]func(*Config){
		"--cluster-name":           func(c *Config) { c.ClusterName = "Not_A_Name" },
		"--cluster-id":             func(c *Config) { c.ClusterID = 256 },
		"--max-connected-clusters": func(c *Config) { c.MaxConnectedClusters = 300 },
		"--node-name":              func(c *Config) { c.NodeName = "" },
		"--enable-ipv4":            func(c *Config) { c.EnableIPv4, c.EnableIPv6 = false, false },
		"--ipv4-range":             func(c *Config) { c.IPv4Range = "10.0.0.1/24" },
		"--ipv6-range":             func(c *Config) { c.IPv6Range = "10.0.0.0/24" },
		"--routing-mode":           func(c *Config) { c.RoutingMode = "teleport" },
		"--tunnel-protocol":        func(c *Config) { c.TunnelProtocol = "geneve" },
		"--tunnel-port":            func(c *Config) { c.TunnelPort = 0 },
		"--enable-policy":          func(c *Config) { c.EnablePolicy = "sometimes" },
		"--bpf-lb-mode: \"fast\"":  func(c *Config) { c.LBMode = "fast" },
		"--bpf-lb-mode: dsr":       func(c *Config) { c.LBMode = "dsr" },
		"--bpf-lb-mode: hybrid":    func(c *Config) { c.LBMode = "hybrid" },
		"--devices":                func(c *Config) { c.Devices = []string{"a", "b"} },
		"--mtu":                    func(c *Config) { c.MTU = 100 },
		"lease TTL": func(c *Config) {
			c.KVStore, c.KVStoreLeaseTTL = "etcd", 1
			c.KVStoreOpts["etcd.address"] = "http://127.0.0.1:2379"
		},
		"--ipam: eni needs --enable-k8s":        func(c *Config) { c.IPAM = "eni" },
		"Node's pod CIDR":                       func(c *Config) { c.EnableK8s, c.IPAM = true, "cluster-pool-v3" },
		"--ipam=azure: the network leads":       func(c *Config) { c.EnableK8s, c.IPAM, c.EnableIPv6 = true, "azure", false },
		"--ipam=alibabacloud: the operator has": func(c *Config) { c.EnableK8s, c.IPAM, c.RoutingMode = true, "alibabacloud", "native" },
		"--instance-metadata-endpoint":          func(c *Config) { c.MetadataEndpoint = "https://user@x/path" },
		"min-allocate is 9":                     func(c *Config) { c.Wanted.MinAllocate, c.Wanted.MaxAllocate = 9, 8 },
		"crd: the network leads":                func(c *Config) { c.EnableK8s, c.IPAM, c.RoutingMode = true, "crd", "tunnel" },
		"--ipam: \"multi-pool\"":                func(c *Config) { c.IPAM = "multi-pool" },
		"cannot be used with --ipam=multi-pool": func(c *Config) { c.EnableK8s, c.IPAM = true, "multi-pool" },
		"pool \"default\" needs at least 1":     func(c *Config) { c.EnableK8s, c.IPAM, c.PreAllocation = true, "multi-pool", []string{"default=0"} },
		"\"edge\" is not of the form pool=number": func(c *Config) {
			c.EnableK8s, c.IPAM, c.PreAllocation = true, "multi-pool", []string{"default=8", "edge"}
		},
		"--enable-endpoint-health-checking":  func(c *Config) { c.IPAM = "delegated-plugin" },
		"--local-router-ipv4":                func(c *Config) { c.RouterIPv4 = "fd00::1" },
		"--ipam-default-ip-pool":             func(c *Config) { c.EnableK8s, c.IPAM, c.DefaultPool = true, "multi-pool", "" },
		"--lb-state-file with services":      func(c *Config) { c.DatapathMode = "lb-only" },
		"--lb-state-file: services are read": func(c *Config) { c.EnableK8s, c.ServicesFile = true, "/x" },
		"--lb-state-file-interval":           func(c *Config) { c.ServicesFile, c.ServicesInterval = "/x", 1 },
		"--datapath-mode: \"netkit\"":        func(c *Config) { c.DatapathMode = "netkit" },
		"--bpf-ct-timeout":                   func(c *Config) { c.CTAny = 0 },
		"--ipam-expiration":                  func(c *Config) { c.IPAMExpiration = 0 },
		"--monitor-aggregation: \"most\"":    func(c *Config) { c.Flows.Enable, c.Flows.Aggregation = true, "most" },
		"--monitor-aggregation-interval":     func(c *Config) { c.Flows.Enable, c.Flows.AggregationInterval = true, -1 },
		"--monitor-aggregation-flags":        func(c *Config) { c.Flows.Enable, c.Flows.AggregationFlags = true, []string{"syn", "sin"} },
		"--socket-path":                      func(c *Config) { c.SocketPath = "/" + strings.Repeat("x", 107) },
		"--orphan-link-grace-period: 29s":    func(c *Config) { c.OrphanGrace = 29 * time.Second },
		"--orphan-link-grace-period: 0s":     func(c *Config) { c.OrphanGrace = 0 },
		"--enable-cilium-api-server-access: \"GetConfg\" is no operation; there are ": func(c *Config) { c.APIAccess = []string{"Get*", "GetConfg"} },
		"--enable-cilium-api-server-access: no operation begins as \"Putt*\"":         func(c *Config) { c.APIAccess = []string{"Putt*"} },
		"--node-delete-delay: -1s":         func(c *Config) { c.NodeDelay = -time.Second },
		"--state-dir":                      func(c *Config) { c.StateDir = "relative" },
		"--hubble-metrics":                 func(c *Config) { c.Flows.Enable, c.Flows.Metrics, c.Flows.MetricsAddress = true, "drops", ":9965" },
		"--hubble-metrics-server":          func(c *Config) { c.Flows.Enable, c.Flows.Metrics = true, "drop" },
		"--prometheus-serve-addr":          func(c *Config) { c.PrometheusAddr = "nonsense" },
		"--kube-proxy-replacement-healthz": func(c *Config) { c.ProxyHealthzAddr = "10256" },
		"--agent-health-port":              func(c *Config) { c.HealthPort = 70000 },
		"--ipv4-native-routing-cidr":       func(c *Config) { c.NativeIPv4CIDR = "x" },
		"--ipv6-node":                      func(c *Config) { c.NodeIPv6 = "192.0.2.1" },
		"--enable-ipv6-big-tcp: packets beyond 64 KiB do not fit into the tunnel": func(c *Config) { c.BigTCPIPv6 = true },
		"--enable-ipv4-big-tcp: has no effect with --enable-ipv4=false": func(c *Config) {
			c.RoutingMode, c.BigTCPIPv4, c.EnableIPv4 = "native", true, false
		},
		"--container-ip-local-reserved-ports: \"many\"": func(c *Config) { c.PodReservedPorts = "auto,many" },
		"--container-ip-local-reserved-ports: \"7-5\"":  func(c *Config) { c.PodReservedPorts = "7-5" },
		"--packetization-layer-pmtud-mode: \"1\"":       func(c *Config) { c.PodPMTUD = "1" },
	} {
		c := good()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), flag) {
			t.Errorf("%s: error %v does not name it", flag, err)
		}
	}
}

// TestOrphanGraceOutlastsThePlugin: the agent leaves an interface alone for as long as the plugin
// tries to create its endpoint.
func TestOrphanGraceOutlastsThePlugin(t *testing.T) {
	t.Parallel()
	if endpoint.MinOrphanGrace < cni.StartTimeout {
		t.Errorf("--orphan-link-grace-period may be %s, and the plugin tries for %s", endpoint.MinOrphanGrace, cni.StartTimeout)
	}
}

// TestIntervals: what is done every so often is not done without a pause, nor with one below 0.
func TestIntervals(t *testing.T) {
	t.Parallel()
	short := map[string]string{ // what is no pause between rounds, or may be shorter, and why
		"monitor-aggregation-interval": "how long packets of a flow are not reported again",
		"lb-state-file-interval":       "it has a bound of its own, 10ms",
	}
	names := 0
	defaults := Defaults()
	all := pflag.NewFlagSet("all", pflag.ContinueOnError)
	defaults.Flags(all)
	all.VisitAll(func(f *pflag.Flag) {
		if f.Value.Type() != "duration" || !strings.HasSuffix(f.Name, "-interval") {
			return
		}
		names++
		for _, value := range []string{"-1s", "1ns", "999ms", "1s"} {
			wrong := value != "1s" && (short[f.Name] == "" || value == "-1s")
			if !wrong && value != "1s" {
				continue
			}
			cfg, _, err := loadConfig(t, []string{"--ipv4-range=10.0.0.0/24", "--ipv6-range=fd00::/112", "--enable-hubble", "--lb-state-file=/x", "--" + f.Name + "=" + value}, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			if err := cfg.Validate(); wrong != (err != nil && strings.Contains(err.Error(), "--"+f.Name+": ")) {
				t.Errorf("--%s=%s: %v", f.Name, value, err)
			}
		}
	})
	if names < 5 {
		t.Errorf("only %d intervals were found", names)
	}
}

// FuzzConfig feeds the content of a configuration directory and an environment variable of any
// content: whatever is in there, the result is a valid configuration or an error.
func FuzzConfig(f *testing.F) {
	var names []string
	cfg := Defaults()
	fs := pflag.NewFlagSet("agent", pflag.ContinueOnError)
	cfg.Flags(fs)
	fs.VisitAll(func(fl *pflag.Flag) { names = append(names, fl.Name) })
	f.Add(uint16(0), "true", "10.0.0.0/24")
	f.Add(uint16(7), "a=b,c=d", "\x00")
	f.Add(uint16(20), "9223372036854775807h", "-1")
	f.Add(uint16(30), "\"unbalanced", "::/0")
	f.Fuzz(func(t *testing.T, which uint16, file, env string) {
		name, other := names[int(which)%len(names)], names[int(which/7)%len(names)]
		cfg, _, err := loadConfig(t, []string{"--ipv4-range=10.0.0.0/24", "--ipv6-range=fd00::/112"},
			map[string]string{confdir.EnvPrefix + strings.ToUpper(strings.ReplaceAll(other, "-", "_")): env}, map[string]string{name: file})
		if err == nil {
			err = cfg.Validate()
		}
		if err != nil {
			if err.Error() == "" {
				t.Error("an error without a text")
			}
			return
		}
		// What is valid can be acted on: nothing of it is parsed again with a panic.
		_ = flagValues(pflag.NewFlagSet("x", pflag.ContinueOnError))
		if _, err := newFilter(cfg); err != nil && cfg.LabelPrefixFile == "" && len(cfg.Labels) == 0 {
			t.Errorf("the default filter: %v", err)
		}
		if _, err := newEngine(cfg); err != nil {
			t.Errorf("a valid configuration makes no engine: %v", err)
		}
	})
}

// TestValidateClouds: a node of a cloud needs Kubernetes, native routing and IPv4, and nothing
// else.
func TestValidateClouds(t *testing.T) {
	for _, mode := range []string{"eni", "azure", "alibabacloud"} {
		c := Defaults()
		c.EnableK8s, c.IPAM, c.RoutingMode = true, mode, "native"
		if err := c.Validate(); (err == nil) != (mode == "eni") || err != nil && !strings.Contains(err.Error(), "--ipam="+mode) {
			t.Errorf("%s with IPv6: %v", mode, err)
		}
		c.EnableIPv4 = false
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), "--ipam="+mode) {
			t.Errorf("%s with IPv6 alone: %v", mode, err)
		}
		c.EnableIPv4, c.EnableIPv6 = true, false
		if err := c.Validate(); err != nil {
			t.Errorf("%s: %v", mode, err)
		}
		if len(c.notForPods()) == 0 {
			t.Errorf("%s: pods reach the instance metadata", mode)
		}
		c.MetadataEndpoint = "http://192.0.2.7"
		if !slices.Contains(c.notForPods(), netip.MustParseAddr("192.0.2.7")) {
			t.Errorf("%s: pods reach the instance metadata where they are", mode)
		}
		c.MetadataEndpoint = "http://[::ffff:192.0.2.8]"
		if !slices.Contains(c.notForPods(), netip.MustParseAddr("192.0.2.8")) {
			t.Errorf("%s: pods reach the instance metadata at a mapped address", mode)
		}
		c.MetadataEndpoint = "http://metadata.internal"
		if err := c.Validate(); err == nil {
			t.Errorf("%s: a metadata service by name, which pods are not kept from, is taken", mode)
		}
		if c.PodMetadata = true; c.notForPods() != nil {
			t.Errorf("%s: pods are kept from %v", mode, c.notForPods())
		}
		if mode == "eni" {
			continue
		}
		// Before anybody is asked which machine this is.
		c.Wanted.StaticIPTags = map[string]string{"for": "edge"}
		if _, err := c.describe(t.Context(), slog.New(slog.DiscardHandler)); err == nil || !strings.Contains(err.Error(), "with --ipam=eni only") {
			t.Errorf("%s: tags of public addresses that are not assigned are accepted: %v", mode, err)
		}
	}
	if c := Defaults(); c.notForPods() != nil {
		t.Error("without a cloud pods are kept from something")
	}
}
