package cni

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/datapath/link"
)

func TestParseArgs(t *testing.T) {
	t.Parallel()
	for in, want := range map[string]any{
		"":    podArgs{},
		" ; ": podArgs{},
		"IgnoreUnknown=1;K8S_POD_NAME=p;K8S_POD_NAMESPACE=n;K8S_POD_UID=u;OTHER=a=b": podArgs{"p", "n", "u"},
		"K8S_POD_NAME=p": "only together",
		"x":              "KEY=VALUE",
		"K8S_POD_NAME=" + strings.Repeat("x", 254) + ";K8S_POD_NAMESPACE=n": "malformed",
		"K8S_POD_NAME=a b;K8S_POD_NAMESPACE=n":                              "malformed",
		strings.Repeat("x", maxArgsBytes+1):                                 "longer",
	} {
		got, err := parseArgs(in)
		if text, bad := want.(string); bad {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%.40q: error %v, want %q", in, err, text)
			}
			continue
		}
		if err != nil || got != want {
			t.Errorf("%q: %+v, %v", in, got, err)
		}
	}
	if got := (podArgs{}).owner("cid"); got != "cid" {
		t.Errorf("owner %q", got)
	}
}

func TestLabels(t *testing.T) {
	t.Parallel()
	many := make([]string, maxLabels+1)
	for i := range many {
		many[i] = fmt.Sprintf(`{"key":"k%d"}`, i)
	}
	for in, want := range map[string]any{
		`{"key":"app","value":"web"},{"key":"example.com/x"}`: []string{"cni:app=web", "cni:example.com/x="},
		`{"value":"x"}`: "not a label key",
		`{"key":"a=b"}`: "not a label key",
		`{"key":"k8s:io.kubernetes.pod.namespace"}`: "not a label key",
		`{"key":"a;b"}`:                          "not a label key",
		`{"key":"a","value":"x;cni:b=c"}`:        "malformed value",
		`{"key":"a"},{"key":"a"}`:                "twice",
		`{"key":"io.cilium.k8s.policy.cluster"}`: "reserved",
		`{"key":"reserved"}`:                     "reserved",
		strings.Join(many, ","):                  "at most",
	} {
		c, err := parseConf([]byte(`{"args":{"cni":{"labels":[` + in + `]}}}`))
		if err != nil {
			t.Fatal(err)
		}
		got, err := c.labels()
		if text, bad := want.(string); bad {
			if err == nil || !strings.Contains(err.Error(), text) {
				t.Errorf("%.60s: error %v, want %q", in, err, text)
			}
			continue
		}
		if diff := cmp.Diff(want, any(got)); diff != "" || err != nil {
			t.Errorf("%s: %v\n%s", in, err, diff)
		}
	}
}

// What changes a pod's connection or who guards it, and has no effect here, is refused by name;
// what the field writes by default, and what only tunes, is taken.
func TestCanAdd(t *testing.T) {
	t.Parallel()
	for conf, want := range map[string][]string{
		`{"cniVersion":"1.0.0","name":"cilium","type":"cilium-cni","enable-debug":false,"log-file":"/var/run/cilium/cilium-cni.log"}`:       nil,
		`{"cniVersion":"0.3.1","name":"cilium","type":"cilium-cni","enable-route-mtu":true,"mtu":9000,"log-format":"json"}`:                 nil,
		`{"ipam":{},"eni":{},"azure":null,"alibaba-cloud":{},"capabilities":{"bandwidth":false},"runtimeConfig":{},"chaining-mode":"none"}`: nil,
		`{"ipam":{"type":""},"dns":{},"args":{"cni":{"labels":[]}},"prevResult":null}`:                                                      nil,
		`{"sync-build-endpoint":true}`:  nil,
		`{"sync-build-endpoint":false}`: {"sync-build-endpoint"},
		`{"ipam":{"type":"host-local","ranges":[]},"capabilities":{"ips":true},"runtimeConfig":{"ips":["10.0.0.9/24"]}}`: nil,
		`{"ipam":{"type":"host-local"},"capabilities":{"mac":true}}`:                                                     {"capability mac"},
		`{"ipam":{"pool":"blue","podCIDRs":["10.0.0.0/24"]}}`:                                                            {"ipam.pool", "ipam.podCIDRs"},
		`{"eni":{"security-groups":["sg-1"]}}`:                                                                           {"eni", "security groups"},
		`{"azure":{"interface-name":"eth1"}}`:                                                                            {"azure"},
		`{"alibaba-cloud":{"security-groups":["sg-1"]}}`:                                                                 {"alibaba-cloud"},
		`{"eni":"x"}`:                                           {"eni"},
		`{"capabilities":{"bandwidth":true}}`:                   {"capability bandwidth"},
		`{"runtimeConfig":{"mac":"02:00:00:00:00:01"}}`:         {"runtimeConfig.mac"},
		`{"chaining-mode":"aws-cni","eni":{"x":1}}`:             {`chaining-mode "aws-cni"`, "eni"},
		`{"prevResult":{},"runtimeConfig":{"ips":["1.2.3.4"]}}`: {"prevResult", "runtimeConfig.ips"},
	} {
		c, err := parseConf([]byte(conf))
		if err != nil {
			t.Errorf("%s: %v", conf, err)
			continue
		}
		err = errors.Join(c.canAdd(), c.suits("cluster-pool"))
		if (err != nil) != (want != nil) {
			t.Errorf("%s: error %v", conf, err)
		}
		for _, text := range want {
			if err != nil && !strings.Contains(err.Error(), text) {
				t.Errorf("%s: the error does not say %q: %v", conf, text, err)
			}
		}
	}
}

// TestSuitsCloud: what the agent reads of the configuration is taken with the cloud that it is for.
func TestSuitsCloud(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ mode, conf, want string }{
		{"eni", `{"ipam":{"pre-allocate":4,"min-allocate":2,"max-allocate":9,"max-above-watermark":1},"eni":{"subnet-tags":{"a":"b"}}}`, ""},
		{"eni", `{"ipam":{"static-ip-tags":{"for":"edge"}}}`, ""},
		{"azure", `{"azure":{"interface-name":"eth1"},"eni":{}}`, ""},
		{"alibabacloud", `{"alibaba-cloud":{"vswitches":["vsw-1"]}}`, ""},
		{"alibabacloud", `{"eni":{"subnet-tags":{"a":"b"}}}`, "eni is not supported"},
		{"eni", `{"ipam":{"podCIDRs":["10.0.0.0/24"]}}`, "ipam.podCIDRs"},
		{"eni", `{"eni":["x"]}`, "eni is not supported"},
		{"crd", `{"ipam":{"pre-allocate":4}}`, "ipam.pre-allocate"},
		{"crd", `{"ipam":{"static-ip-tags":{"for":"edge"}}}`, "ipam.static-ip-tags"},
		{"", `{"ipam":{"pre-allocate":4}}`, "ipam.pre-allocate"},
	} {
		conf, err := parseConf([]byte(c.conf))
		if err != nil {
			t.Fatal(err)
		}
		err = errors.Join(conf.canAdd(), conf.suits(c.mode))
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s with %s: %v", c.conf, c.mode, err)
		}
	}
}

func TestHostIfName(t *testing.T) {
	t.Parallel()
	// sha256("abc:eth0"); the name is an interface to other tools.
	if got := hostIfName("abc", "eth0"); got != "lxcb133159de544" {
		t.Errorf("got %s", got)
	}
	if hostIfPrefix != link.EndpointPrefix {
		t.Errorf("interfaces are named %s..., and the agent looks for %s...", hostIfPrefix, link.EndpointPrefix)
	}
	if aliasPrefix != link.PluginAlias {
		t.Errorf("interfaces have the alias %q..., and the agent looks for %q...", aliasPrefix, link.PluginAlias)
	}
}

func FuzzParseConf(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.1.0","name":"x","args":{"cni":{"labels":[{"key":"a","value":"b"}]}},"prevResult":{"ips":[{"address":"10.0.0.1/8"}]}}`))
	f.Add([]byte(`{"prevResult":null,"cni.dev/valid-attachments":[{"containerID":"a","ifname":"b"}]}`))
	f.Add([]byte(`{"socket-path":"unix:///x","ipam":{"type":"x"}}`))
	f.Fuzz(func(t *testing.T, stdin []byte) {
		c, err := parseConf(stdin)
		if err != nil {
			return
		}
		_ = errors.Join(c.canAdd(), c.suits("eni"))
		if labels, err := c.labels(); err == nil {
			for _, l := range labels {
				if !strings.HasPrefix(l, "cni:") || strings.Contains(l, ";") || reservedLabel(l[4:]) {
					t.Fatalf("label %q passed", l)
				}
			}
		}
		_, _ = c.previous()
		_, _ = c.valid()
	})
}

func FuzzParseArgs(f *testing.F) {
	f.Add("IgnoreUnknown=1;K8S_POD_NAMESPACE=ns;K8S_POD_NAME=p;K8S_POD_UID=u")
	f.Add(";;=;a=")
	f.Fuzz(func(t *testing.T, s string) {
		a, err := parseArgs(s)
		if err != nil {
			return
		}
		for _, v := range []string{a.Name, a.Namespace, a.UID} {
			if len(v) > maxNameBytes || strings.ContainsAny(v, "/;\n\x00") {
				t.Fatalf("value %q passed", v)
			}
		}
		if owner := a.owner("cid"); owner == "" {
			t.Fatal("no owner")
		}
	})
}
