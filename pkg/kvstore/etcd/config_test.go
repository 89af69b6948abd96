package etcd

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestParseOptions(t *testing.T) {
	t.Parallel()
	c, err := ParseOptions(map[string]string{
		"etcd.address": " http://a:2379, b:2379 ", "etcd.qps": "100", "etcd.bootstrapQps": "1000", "etcd.maxInflight": "7", "etcd.limit": "0",
		"etcd.keepaliveHeartbeat": "5s", "etcd.keepaliveTimeout": "7s",
	})
	if err != nil {
		t.Fatal(err)
	}
	want := Defaults()
	want.Endpoints = []string{"http://a:2379", "b:2379"}
	want.QPS, want.BootstrapQPS, want.MaxInflight, want.ListLimit = 100, 1000, 7, 0
	want.KeepAliveInterval, want.KeepAliveTimeout = 5*time.Second, 7*time.Second
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("settings (-want +got):\n%s", diff)
	}
}

func TestParseOptionsNamesEveryFault(t *testing.T) {
	t.Parallel()
	_, err := ParseOptions(map[string]string{
		"etcd.adress": "http://a:2379", "etcd.qps": "-1", "etcd.limit": "many", "etcd.keepaliveTimeout": "7", "etcd.address": " , ",
	})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"etcd.adress", "etcd.qps", "etcd.limit", "etcd.keepaliveTimeout", "no address"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error does not mention %q:\n%v", want, err)
		}
	}
	if _, err := ParseOptions(nil); err == nil || !strings.Contains(err.Error(), "etcd.address") {
		t.Errorf("without an address: %v", err)
	}
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for name, spoil := range map[string]func(*Config){
		"lease too short":  func(c *Config) { c.LeaseTTL = 24 * time.Second },
		"lease too long":   func(c *Config) { c.LeaseTTL = 25 * time.Hour },
		"no keepalive":     func(c *Config) { c.KeepAliveInterval = 0 },
		"negative qps":     func(c *Config) { c.QPS = -1 },
		"no check timeout": func(c *Config) { c.CheckTimeout = 0 },
		"negative quorum":  func(c *Config) { c.MaxQuorumFailures = -1 },
	} {
		c := Defaults()
		c.Endpoints = []string{"a:1"}
		if err := c.Validate(); err != nil {
			t.Fatal(err)
		}
		spoil(&c)
		if err := c.Validate(); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestReadFile(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "etcd.config")
	text := `
endpoints: [https://a:2379, https://b:2379]
dial-timeout: 5000000000
dial-keep-alive-time: 15s
username: me
password: secret
trusted-ca-file: ""
ca-file: /ca.pem
cert-file: /c.pem
key-file: /k.pem
`
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	f, err := ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	want := File{
		Endpoints: []string{"https://a:2379", "https://b:2379"}, DialTimeout: fileDuration(5 * time.Second), DialKeepAliveTime: fileDuration(15 * time.Second),
		Username: "me", Password: "secret", TrustedCAFile: "/ca.pem", CAFile: "/ca.pem", CertFile: "/c.pem", KeyFile: "/k.pem",
	}
	if diff := cmp.Diff(want, f); diff != "" {
		t.Errorf("file (-want +got):\n%s", diff)
	}
	for name, bad := range map[string]string{
		"unknown field":     "endpoint: [a]",
		"cert without key":  "cert-file: /c.pem",
		"user, no password": "username: me",
		"not YAML":          "\t:",
		"bad duration":      "dial-timeout: soon",
	} {
		if _, err := parseFile([]byte(bad)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	if _, err := ReadFile(path + ".none"); !os.IsNotExist(err) && !strings.Contains(err.Error(), "no such file") {
		t.Errorf("missing file: %v", err)
	}
}

func FuzzSettingsFile(f *testing.F) {
	f.Add([]byte("endpoints: [https://a:2379]\ndial-timeout: 5s\n"))
	f.Add([]byte("{\"endpoints\": null, \"dial-timeout\": 1e3}"))
	f.Add([]byte("a: &a [*a]"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 1<<16 {
			t.Skip()
		}
		file, err := parseFile(b)
		if err == nil && (file.CertFile == "") != (file.KeyFile == "") {
			t.Errorf("accepted half a key pair: %+v", file)
		}
	})
}
