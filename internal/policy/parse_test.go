package policy

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/datapath"
)

func parseJSON(namespace, spec string) ([]*Rule, error) {
	r := &v2.Rule{}
	if err := json.Unmarshal([]byte(spec), r); err != nil {
		return nil, err
	}
	meta := metav1.ObjectMeta{Name: "p", Namespace: namespace}
	if namespace == "" {
		return ParseClusterwide(&v2.CiliumClusterwideNetworkPolicy{ObjectMeta: meta, Spec: r})
	}
	return Parse(&v2.CiliumNetworkPolicy{ObjectMeta: meta, Spec: r})
}

// mustUnmarshal returns a policy of namespace a with this rule.
func mustUnmarshal(t testing.TB, spec string) *v2.CiliumNetworkPolicy {
	t.Helper()
	r := &v2.Rule{}
	if err := json.Unmarshal([]byte(spec), r); err != nil {
		t.Fatal(err)
	}
	return &v2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "a"}, Spec: r}
}

func mustParse(t testing.TB, namespace, spec string) []*Rule {
	t.Helper()
	rules, err := parseJSON(namespace, spec)
	if err != nil {
		t.Fatal(err)
	}
	return rules
}

// TestGroups: where groups are resolved, a group that is not resolved yet matches no peer.
func TestGroups(t *testing.T) {
	t.Parallel()
	parse := func(spec string) ([]*Rule, error) {
		r := &v2.Rule{}
		if err := json.Unmarshal([]byte(spec), r); err != nil {
			t.Fatal(err)
		}
		return Parse(&v2.CiliumNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "p", Namespace: "default"}, Spec: r}, WithGroups())
	}
	rules, err := parse(`{"endpointSelector":{},"egress":[{"toGroups":[{"aws":{"securityGroupsIds":["sg-1"]}}]}],"ingress":[{"fromGroups":[]}]}`)
	if err != nil {
		t.Fatal(err)
	}
	if got := rules[0].DefaultDeny; got != [2]bool{true, true} {
		t.Errorf("isolates %v, want both directions", got)
	}
	for _, c := range rules[0].Clauses {
		if c.AllPeers || len(c.Peers) > 0 {
			t.Errorf("%s matches a peer", c.Path)
		}
	}
	for field, spec := range map[string]string{
		"spec.egress[0].toGroups[0].aws":    `{"endpointSelector":{},"egress":[{"toGroups":[{}]}]}`,
		"spec.ingress[0].fromGroups[1].aws": `{"endpointSelector":{},"ingress":[{"fromGroups":[{"aws":{"labels":{"a":"b"}}},{"aws":{"region":"r"}}]}]}`,
		"spec.ingressDeny[0].fromGroups":    `{"endpointSelector":{},"ingressDeny":[{"fromGroups":[{"aws":{"labels":{"a":"b"}}}]}]}`,
		"spec.egress[0].toGroups":           `{"endpointSelector":{},"egress":[{"toCIDR":["10.0.0.0/8"],"toGroups":[{"aws":{"labels":{"a":"b"}}}]}]}`,
	} {
		_, err := parse(spec)
		var fault *FieldError
		if !errors.As(err, &fault) || fault.Field != field {
			t.Errorf("%s: %v, want a fault at %s", spec, err, field)
		}
	}
}

// TestParseRefuses: each fault is named by its field.
func TestParseRefuses(t *testing.T) {
	t.Parallel()
	in := func(entry string) string { return `{"endpointSelector":{},"ingress":[` + entry + `]}` }
	out := func(entry string) string { return `{"endpointSelector":{},"egress":[` + entry + `]}` }
	ports := func(p string) string { return out(`{"toPorts":[{"ports":[` + p + `]}]}`) }
	tests := []struct {
		spec        string
		field       string
		unsupported bool
	}{
		{`{"ingress":[{}]}`, "spec.endpointSelector", false},
		{`{"endpointSelector":{}}`, "spec", false},
		{`{"endpointSelector":{},"ingress":[]}`, "spec", false},
		{`{"nodeSelector":{},"ingress":[{}]}`, "spec.nodeSelector", true},
		{`{"endpointSelector":{},"ingress":[{}],"log":{"value":"x"}}`, "spec.log", true},
		{in(`{"fromNodes":[]}`), "spec.ingress[0].fromNodes", true},
		{in(`{"fromGroups":[]}`), "spec.ingress[0].fromGroups", true},
		{in(`{"fromRequires":[{}]}`), "spec.ingress[0].fromRequires", true},
		{in(`{},{"authentication":{"mode":"required"}}`), "spec.ingress[1].authentication", true},
		{in(`{"fromCIDRSet":[{"cidrGroupRef":"g"}]}`), "spec.ingress[0].fromCIDRSet[0].cidrGroupRef", true},
		{in(`{"fromCIDRSet":[{"cidrGroupSelector":{}}]}`), "spec.ingress[0].fromCIDRSet[0].cidrGroupSelector", true},
		{out(`{"toServices":[{}]}`), "spec.egress[0].toServices", true},
		{out(`{"toFQDNs":[{"matchName":"a.b"}]}`), "spec.egress[0].toFQDNs", true},
		{out(`{"toGroups":[{}]}`), "spec.egress[0].toGroups", true},
		{out(`{"toNodes":[{}]}`), "spec.egress[0].toNodes", true},
		{out(`{"toPorts":[{"ports":[{"port":"80"}]},{"ports":[{"port":"80"}],"rules":{"http":[{}]}}]}`), "spec.egress[0].toPorts[1].rules.http", true},
		{out(`{"toPorts":[{"ports":[{"port":"53"}],"rules":{"dns":[{"matchPattern":"*"}]}}]}`), "spec.egress[0].toPorts[0].rules.dns", true},
		{out(`{"toPorts":[{"ports":[{"port":"53"}],"rules":{}}]}`), "spec.egress[0].toPorts[0].rules", true},
		{out(`{"toPorts":[{"ports":[{"port":"53"}],"listener":{}}]}`), "spec.egress[0].toPorts[0].listener", true},
		{out(`{"toPorts":[{"ports":[{"port":"53"}],"originatingTLS":{}}]}`), "spec.egress[0].toPorts[0].originatingTLS", true},
		{out(`{"toPorts":[{"ports":[{"port":"53"}],"terminatingTLS":{}}]}`), "spec.egress[0].toPorts[0].terminatingTLS", true},
		{out(`{"toPorts":[{"ports":[{"port":"53"}],"serverNames":["a"]}]}`), "spec.egress[0].toPorts[0].serverNames", true},
		{ports(`{"port":"0","protocol":"VRRP"}`), "spec.egress[0].toPorts[0].ports[0].protocol", true},
		{ports(`{"port":"80","protocol":"tcp"}`), "spec.egress[0].toPorts[0].ports[0].protocol", false},
		{ports(`{"protocol":"TCP"}`), "spec.egress[0].toPorts[0].ports[0].port", false},
		{ports(`{"port":"080"}`), "spec.egress[0].toPorts[0].ports[0].port", false},
		{ports(`{"port":"00"}`), "spec.egress[0].toPorts[0].ports[0].port", false},
		{ports(`{"port":"0080","endPort":90}`), "spec.egress[0].toPorts[0].ports[0].port", false},
		{ports(`{"port":"65536"}`), "spec.egress[0].toPorts[0].ports[0].port", false},
		{ports(`{"port":"-1"}`), "spec.egress[0].toPorts[0].ports[0].port", false},
		{ports(`{"port":"a--b"}`), "spec.egress[0].toPorts[0].ports[0].port", false},
		{ports(`{"port":"80","endPort":79}`), "spec.egress[0].toPorts[0].ports[0].endPort", false},
		{ports(`{"port":"80","endPort":65536}`), "spec.egress[0].toPorts[0].ports[0].endPort", false},
		{ports(`{"port":"80","endPort":-1}`), "spec.egress[0].toPorts[0].ports[0].endPort", false},
		{ports(`{"port":"http","endPort":90}`), "spec.egress[0].toPorts[0].ports[0].endPort", false},
		{ports(`{"port":"0","endPort":90}`), "spec.egress[0].toPorts[0].ports[0].endPort", false},
		{out(`{"toPorts":[{"ports":[` + strings.Repeat(`{"port":"1"},`, 40) + `{"port":"1"}]}]}`), "spec.egress[0].toPorts[0].ports", false},
		{out(`{"icmps":[{"fields":[{"family":"IPv4"}]}]}`), "spec.egress[0].icmps[0].fields[0].type", false},
		{out(`{"icmps":[{"fields":[{"type":256}]}]}`), "spec.egress[0].icmps[0].fields[0].type", false},
		{out(`{"icmps":[{"fields":[{"type":"PacketTooBig"}]}]}`), "spec.egress[0].icmps[0].fields[0].type", false},
		{out(`{"icmps":[{"fields":[{"type":1,"family":"IPX"}]}]}`), "spec.egress[0].icmps[0].fields[0].family", false},
		{out(`{"icmps":[{"fields":[{"type":8}]}],"toPorts":[{"ports":[{"port":"80"}]}]}`), "spec.egress[0].icmps", false},
		{out(`{"toEndpoints":[{}],"toEntities":["host"]}`), "spec.egress[0].toEntities", false},
		{out(`{"toEntities":["everybody"]}`), "spec.egress[0].toEntities[0]", false},
		{out(`{"toCIDR":["10.0.0.0/33"]}`), "spec.egress[0].toCIDR[0]", false},
		{out(`{"toCIDR":["10.0.0.0/255.0.0.0"]}`), "spec.egress[0].toCIDR[0]", false},
		{out(`{"toCIDR":["::ffff:10.0.0.1/128"]}`), "spec.egress[0].toCIDR[0]", false},
		{out(`{"toCIDRSet":[{}]}`), "spec.egress[0].toCIDRSet[0].cidr", false},
		{out(`{"toCIDRSet":[{"cidr":"10.0.0.0/8","except":["11.0.0.0/8"]}]}`), "spec.egress[0].toCIDRSet[0].except[0]", false},
		{out(`{"toCIDRSet":[{"cidr":"10.0.0.0/8","except":["0.0.0.0/0"]}]}`), "spec.egress[0].toCIDRSet[0].except[0]", false},
		{out(`{"toEndpoints":[{"matchExpressions":[{"key":"a","operator":"In"}]}]}`), "spec.egress[0].toEndpoints[0].matchExpressions[0].values", false},
		{out(`{"toEndpoints":[{"matchExpressions":[{"key":"a","operator":"Exists","values":["b"]}]}]}`), "spec.egress[0].toEndpoints[0].matchExpressions[0].values", false},
		{out(`{"toEndpoints":[{"matchExpressions":[{"key":"a","operator":"Is","values":["b"]}]}]}`), "spec.egress[0].toEndpoints[0].matchExpressions[0].operator", false},
		{out(`{"toEndpoints":[{"matchExpressions":[{"key":"","operator":"Exists"}]}]}`), "spec.egress[0].toEndpoints[0].matchExpressions[0].key", false},
		{out(`{"toEndpoints":[{"matchLabels":{":a":"b"}}]}`), "spec.egress[0].toEndpoints[0].matchLabels[:a]", false},
		{out(`{"toEndpoints":[{"matchLabels":{"a":"b;k8s:x=y"}}]}`), "spec.egress[0].toEndpoints[0].matchLabels[a]", false},
		{out(`{"toEndpoints":[{"matchLabels":{"a":"` + strings.Repeat("x", 64) + `"}}]}`), "spec.egress[0].toEndpoints[0].matchLabels[a]", false},
		{`{"endpointSelector":{"matchLabels":{"reserved:init":""}},"ingress":[{}]}`, "spec.endpointSelector", false},
		{`{"endpointSelector":{},"ingress":[{}],"labels":[{"key":"a=b"}]}`, "spec.labels[0]", false},
	}
	for _, tt := range tests {
		rules, err := parseJSON("ns", tt.spec)
		if err == nil {
			t.Errorf("%s: accepted as %+v", tt.spec, rules)
			continue
		}
		var fields []string
		for _, e := range err.(interface{ Unwrap() []error }).Unwrap() {
			var fe *FieldError
			if !errors.As(e, &fe) {
				t.Errorf("%s: %v is not a FieldError", tt.spec, e)
				continue
			}
			fields = append(fields, fe.Field)
			if fe.Field == tt.field && fe.Unsupported != tt.unsupported {
				t.Errorf("%s: %v: unsupported is %v", tt.spec, fe, fe.Unsupported)
			}
		}
		if !slices.Equal(fields, []string{tt.field}) {
			t.Errorf("%s: faults at %q, want only %q: %v", tt.spec, fields, tt.field, err)
		}
	}
}

func TestParseReportsAllFaults(t *testing.T) {
	t.Parallel()
	_, err := Parse(&v2.CiliumNetworkPolicy{Specs: []*v2.Rule{nil, {}}})
	if err == nil {
		t.Fatal("accepted")
	}
	for _, want := range []string{"metadata.namespace", "metadata.name", "specs[0]", "specs[1].endpointSelector", "specs[1]: has no entry"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q is not reported in %v", want, err)
		}
	}
	if _, err := Parse(nil); err == nil {
		t.Error("nil is accepted")
	}
	if _, err := ParseClusterwide(&v2.CiliumClusterwideNetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: "a", Namespace: "b"}}); err == nil {
		t.Error("a clusterwide policy with a namespace is accepted")
	}
}

// TestScopes: what confines a selector of peers is apart from its labels.
func TestScopes(t *testing.T) {
	t.Parallel()
	tests := []struct{ namespace, selector, want string }{
		{"ns", `{}`, "{}@ns@local"},
		{"", `{}`, "{}@*@local"},
		{"ns", `{"matchLabels":{"app":"web","k8s:b":"c"}}`, "{any:app=web, k8s:b=c}@ns@local"},
		{"ns", `{"matchLabels":{"io.kubernetes.pod.namespace":"other"}}`, "{any:io.kubernetes.pod.namespace=other}@local"},
		{"ns", `{"matchLabels":{"cni:io.kubernetes.pod.namespace":"other"}}`, "{cni:io.kubernetes.pod.namespace=other}@ns@local"},
		{"ns", `{"matchLabels":{"k8s:io.cilium.k8s.namespace.labels.team":"red"}}`, "{k8s:io.cilium.k8s.namespace.labels.team=red}@*@local"},
		{"ns", `{"matchLabels":{"io.cilium.k8s.policy.cluster":"c2"}}`, "{any:io.cilium.k8s.policy.cluster=c2}@ns"},
		{"ns", `{"matchLabels":{"reserved:host":""}}`, "{reserved:host=}"},
		{"ns", `{"matchExpressions":[{"key":"reserved:host","operator":"DoesNotExist"}]}`, "{!reserved:host}"},
		{"", `{"matchExpressions":[{"key":"reserved:host","operator":"NotIn","values":["x"]}]}`, "{reserved:host notin (x)}"},
	}
	for _, tt := range tests {
		rules := mustParse(t, tt.namespace, `{"endpointSelector":{},"ingress":[{"fromEndpoints":[`+tt.selector+`]}]}`)
		if got := rules[0].Clauses[0].Peers[0].String(); got != tt.want {
			t.Errorf("%s in %q is %q, want %q", tt.selector, tt.namespace, got, tt.want)
		}
	}
}

// TestWarnings: what may mean something else than it seems is accepted, and said.
func TestWarnings(t *testing.T) {
	t.Parallel()
	for spec, want := range map[string]string{
		`{"endpointSelector":{"matchLabels":{"io.kubernetes.pod.namespace":"other"}},"ingress":[{}]}`:                                                     "spec.endpointSelector: names namespace \"other\"",
		`{"endpointSelector":{"matchLabels":{"k8s:io.kubernetes.pod.namespace":"other"}},"ingress":[{}]}`:                                                 "spec.endpointSelector: names namespace \"other\"",
		`{"endpointSelector":{"matchExpressions":[{"key":"k8s:io.kubernetes.pod.namespace","operator":"In","values":["other","third"]}]},"ingress":[{}]}`: "spec.endpointSelector: names namespace \"other, third\", but a policy selects endpoints of its own namespace only: it applies to none",
		`{"endpointSelector":{},"egress":[{"toCIDR":["10.0.0.0/8"],"toEndpoints":[]}]}`:                                                                   "spec.egress[0].toEndpoints: is empty",
		`{"endpointSelector":{},"egress":[{"icmps":[{"fields":[{"type":8},{"type":"TimeExceeded"}]}]}]}`:                                                  "spec.egress[0].icmps[0].fields[1].type: TimeExceeded has no effect",
		`{"endpointSelector":{},"ingressDeny":[{"icmps":[{"fields":[{"type":2,"family":"IPv6"}]}]}]}`:                                                     "spec.ingressDeny[0].icmps[0].fields[0].type: 2 has no effect",
	} {
		rules := mustParse(t, "ns", spec)
		if len(rules) != 1 || len(rules[0].Warnings) != 1 || !strings.HasPrefix(rules[0].Warnings[0], want) {
			t.Errorf("%s: warnings %q, want one that starts with %q", spec, rules[0].Warnings, want)
		}
	}
	for _, spec := range []string{
		`{"endpointSelector":{"matchLabels":{"io.kubernetes.pod.namespace":"ns"}},"ingress":[{}]}`,
		`{"endpointSelector":{},"egress":[{"toPorts":[]},{"icmps":[{}]}]}`,
		`{"endpointSelector":{},"egress":[{"icmps":[{"fields":[{"type":"EchoRequest"},{"type":2},{"type":135},{"type":13},{"type":5,"family":"IPv6"}]}]}]}`,
	} {
		if rules := mustParse(t, "ns", spec); len(rules[0].Warnings) > 0 {
			t.Errorf("%s: warnings %q, want none", spec, rules[0].Warnings)
		}
	}
}

func TestICMPNames(t *testing.T) {
	t.Parallel()
	rules := mustParse(t, "ns", `{"endpointSelector":{},"egress":[{"icmps":[{"fields":[{"type":"EchoRequest"},{"type":"EchoRequest","family":"IPv6"},{"type":3}]}]}]}`)
	want := []PortMatch{{Proto: datapath.ProtoICMP, First: 8, Last: 8}, {Proto: datapath.ProtoICMPv6, First: 128, Last: 128}, {Proto: datapath.ProtoICMP, First: 3, Last: 3}}
	if got := rules[0].Clauses[0].Ports; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPortRanges(t *testing.T) {
	t.Parallel()
	for _, r := range [][2]uint16{{0, 65535}, {1, 65535}, {80, 80}, {80, 81}, {1, 1023}, {443, 8443}, {65535, 65535}, {0, 0}, {32768, 65535}, {7, 8}} {
		keys := appendRange(nil, datapath.ProtoTCP, r[0], r[1])
		if len(keys) > 30 {
			t.Errorf("%v takes %d prefixes", r, len(keys))
		}
		for port := range 65536 {
			n := 0
			for _, k := range keys {
				if k.covers(portKey{datapath.ProtoTCP, 16, uint16(port)}) {
					n++
				}
			}
			if in := port >= int(r[0]) && port <= int(r[1]); in != (n == 1) || n > 1 {
				t.Fatalf("%v: port %d is covered %d times", r, port, n)
			}
		}
	}
}

func TestNamedPorts(t *testing.T) {
	t.Parallel()
	text := FormatNamedPorts([]NamedPort{{"http", datapath.ProtoTCP, 80}, {"dns", datapath.ProtoUDP, 53}, {"http", datapath.ProtoTCP, 80}, {"Bad", datapath.ProtoTCP, 1}, {"x", datapath.ProtoICMP, 1}, {"y", datapath.ProtoTCP, 0}})
	if want := "dns.UDP.53_http.TCP.80"; text != want {
		t.Fatalf("got %q, want %q", text, want)
	}
	ports, err := ParseNamedPorts(text)
	if err != nil || FormatNamedPorts(ports) != text {
		t.Errorf("%q comes back as %v, %v", text, ports, err)
	}
	for _, bad := range []string{"http", "http.TCP", "http.TCP.0", "http.TCP.65536", "http.ICMP.1", "_", "a.TCP.1.2"} {
		if _, err := ParseNamedPorts(bad); err == nil {
			t.Errorf("%q is accepted", bad)
		}
	}
}

// FuzzParse: no object crashes the parser; rules that come out can be used.
func FuzzParse(f *testing.F) {
	f.Add("ns", `{"endpointSelector":{"matchLabels":{"a":"b"}},"ingress":[{"fromEndpoints":[{}],"toPorts":[{"ports":[{"port":"1","endPort":65535}]}]}]}`)
	f.Add("", `{"endpointSelector":{},"egressDeny":[{"toCIDRSet":[{"cidr":"::/0","except":["fd00::/8"]}]}],"egress":[{"toEntities":["all","cluster"]}]}`)
	f.Add("ns", `{"endpointSelector":{},"egress":[{"icmps":[{"fields":[{"type":"Echo"}]}]}],"enableDefaultDeny":{"egress":false}}`)
	f.Fuzz(func(t *testing.T, namespace, spec string) {
		rules, err := parseJSON(namespace, spec)
		if err != nil {
			return
		}
		e, err := New(Defaults())
		if err != nil {
			t.Fatal(err)
		}
		if err := e.SetRules("o", rules); err != nil {
			t.Fatal(err)
		}
		k := newKernel(t)
		w := newWorld(randFor(spec))
		for _, p := range w.pods {
			e.SetIdentity(p.id, p.set)
			e.AddSubject(Subject{Identity: p.id, NamedPorts: p.ports})
		}
		k.sync(e)
	})
}
