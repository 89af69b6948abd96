package crds_test

import (
	"encoding/json"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/discovery"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/restmapper"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/api/crds"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

const manyNames = "a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a" // 41

// manifests are objects, and the path that a refusal names; "" if the server must take it.
var manifests = []struct {
	name, yaml, refused string
}{
	{"identity", `{apiVersion: cilium.io/v2, kind: CiliumIdentity, metadata: {name: "1234"}, security-labels: {"k8s:app": web, "k8s:io.kubernetes.pod.namespace": shop}}`, ""},
	{"identity without labels", `{apiVersion: cilium.io/v2, kind: CiliumIdentity, metadata: {name: "1235"}}`, "security-labels"},
	{"identity with a number", `{apiVersion: cilium.io/v2, kind: CiliumIdentity, metadata: {name: "1236"}, security-labels: {a: 1}}`, "security-labels"},
	{"identity with an unknown field", `{apiVersion: cilium.io/v2, kind: CiliumIdentity, metadata: {name: "1237"}, security-labels: {a: b}, securityLabels: {}}`, "securityLabels"},

	{"endpoint", `{apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: web-1, namespace: default}, status: {id: 7, state: ready,
		external-identifiers: {cni-attachment-id: "c0ffee:eth0"}, identity: {id: 1234, labels: ["k8s:app=web"]}, named-ports: [{name: http, port: 8080, protocol: TCP}],
		networking: {addressing: [{ipv4: 10.0.1.7, ipv6: "fd00::7"}], node: 192.0.2.1}, encryption: {key: 0}, service-account: web,
		policy: {ingress: {enforcing: true, state: enforcing}, egress: {enforcing: false, state: disabled}}}}`, ""},
	{"endpoint that is empty", `{apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: web-2, namespace: default}}`, ""},
	{"endpoint in a state that is none", `{apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: web-3, namespace: default}, status: {state: happy}}`, "status.state"},
	{"endpoint without addresses", `{apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: web-4, namespace: default}, status: {networking: {node: 192.0.2.1}}}`, "status.networking.addressing"},
	{"endpoint that does not say if it enforces", `{apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: web-5, namespace: default}, status: {policy: {ingress: {state: disabled}}}}`, "status.policy.ingress.enforcing"},

	{"slice", `{apiVersion: cilium.io/v2alpha1, kind: CiliumEndpointSlice, metadata: {name: ces-1}, namespace: shop, endpoints: [{name: web-1, id: 1234, pod-uid: u, service-account: web,
		encryption: {key: 3}, named-ports: [{name: http, port: 80, protocol: TCP}], networking: {addressing: [{ipv4: 10.0.1.7}], node: 192.0.2.1}}]}`, ""},
	{"slice without endpoints", `{apiVersion: cilium.io/v2alpha1, kind: CiliumEndpointSlice, metadata: {name: ces-2}, namespace: shop}`, "endpoints"},

	{"node", `{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: n1}, spec: {bootid: b, health: {ipv4: 10.0.1.2}, ingress: {ipv4: 10.0.1.3}, encryption: {key: 1},
		addresses: [{ip: 192.0.2.1, type: InternalIP}, {ip: 10.0.1.1, type: CiliumInternalIP}],
		ipam: {podCIDRs: [10.0.1.0/24, "fd00::/112"], pools: {requested: [{pool: default, needed: {ipv4-addrs: 16}}], allocated: [{pool: default, cidrs: [10.0.1.0/27]}]}, pre-allocate: 8}}}`, ""},
	{"node without spec", `{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: n2}}`, "spec"},
	{"node with a bad prefix", `{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: n3}, spec: {ipam: {podCIDRs: [10.0.1.0]}}}`, "spec.ipam.podCIDRs"},
	{"node with a negative count", `{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: n4}, spec: {ipam: {pre-allocate: -1}}}`, "spec.ipam.pre-allocate"},
	{"node with a negative index", `{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: n5}, spec: {eni: {first-interface-index: -1}}}`, "spec.eni.first-interface-index"},
	{"node that asks no pool", `{apiVersion: cilium.io/v2, kind: CiliumNode, metadata: {name: n6}, spec: {ipam: {pools: {requested: [{needed: {ipv4-addrs: 1}}]}}}}`, "pools.requested[0].pool"},

	{"pool", `{apiVersion: cilium.io/v2alpha1, kind: CiliumPodIPPool, metadata: {name: green}, spec: {ipv4: {cidrs: [10.10.0.0/16], maskSize: 24}, ipv6: {cidrs: ["fd00:10::/104"], maskSize: 120},
		allowFirstIP: true, allowLastIP: true, podSelector: {matchLabels: {color: green}}, namespaceSelector: {matchExpressions: [{key: team, operator: Exists}]}}}`, ""},
	{"pool without spec", `{apiVersion: cilium.io/v2alpha1, kind: CiliumPodIPPool, metadata: {name: p2}}`, "spec"},
	{"pool without prefixes", `{apiVersion: cilium.io/v2alpha1, kind: CiliumPodIPPool, metadata: {name: p3}, spec: {ipv4: {cidrs: [], maskSize: 24}}}`, "spec.ipv4.cidrs"},
	{"pool without mask size", `{apiVersion: cilium.io/v2alpha1, kind: CiliumPodIPPool, metadata: {name: p4}, spec: {ipv4: {cidrs: [10.0.0.0/8]}}}`, "spec.ipv4.maskSize"},
	{"pool with a mask too long", `{apiVersion: cilium.io/v2alpha1, kind: CiliumPodIPPool, metadata: {name: p5}, spec: {ipv4: {cidrs: [10.0.0.0/8], maskSize: 33}}}`, "spec.ipv4.maskSize"},
	{"pool with a mask too short", `{apiVersion: cilium.io/v2alpha1, kind: CiliumPodIPPool, metadata: {name: p6}, spec: {ipv6: {cidrs: ["fd00::/8"], maskSize: 0}}}`, "spec.ipv6.maskSize"},

	{"rule without a selector", cnp("a", `ingress: [{}]`), "endpointSelector"},
	{"rule with two selectors", ccnp("a", `endpointSelector: {}, nodeSelector: {}, ingress: [{}]`), "endpointSelector"},
	{"rule without an entry", cnp("b", `endpointSelector: {}`), "ingress"},
	{"rule with empty peers", cnp("c", `endpointSelector: {}, ingress: [{fromEndpoints: []}]`), ""},
	{"rule for nodes", ccnp("d", `nodeSelector: {matchLabels: {role: edge}}, egress: [{toEntities: [world]}]`), ""},
	{"requires", cnp("e", `endpointSelector: {}, ingress: [{fromRequires: [{}]}]`), "fromRequires"},
	{"empty requires", cnp("f", `endpointSelector: {}, ingress: [{fromRequires: []}]`), ""},
	{"unknown entity", cnp("g", `endpointSelector: {}, egress: [{toEntities: [moon]}]`), "toEntities"},
	{"bad prefix", cnp("h", `endpointSelector: {}, egress: [{toCIDR: [10.0.0.0/33]}]`), "toCIDR"},
	{"two prefixes in one", cnp("i", `endpointSelector: {}, egress: [{toCIDRSet: [{cidr: 10.0.0.0/8, cidrGroupRef: g}]}]`), "toCIDRSet"},
	{"no prefix", cnp("j", `endpointSelector: {}, egress: [{toCIDRSet: [{except: [10.0.0.0/8]}]}]`), "toCIDRSet"},
	{"long label", cnp("k", `endpointSelector: {matchLabels: {a: `+strings.Repeat("x", 64)+`}}, ingress: [{}]`), "endpointSelector.matchLabels"},
	{"operator", cnp("l", `endpointSelector: {matchExpressions: [{key: a, operator: Is}]}, ingress: [{}]`), "operator"},
	{"port as number", cnp("m", `endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: 80}]}]}]`), "port"},
	{"end of ports", cnp("nn", `endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: "80", endPort: 65536}]}]}]`), "endPort"},
	{"protocol", cnp("o", `endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: "80", protocol: tcp}]}]}]`), "protocol"},
	{"too many ports", cnp("p", `endpointSelector: {}, ingress: [{toPorts: [{ports: [`+strings.ReplaceAll(manyNames, "a", `{port: "1"}`)+`]}]}]`), "ports"},
	{"two kinds of rules", cnp("q", `endpointSelector: {}, egress: [{toPorts: [{ports: [{port: "53"}], rules: {http: [{}], dns: [{matchPattern: "*"}]}}]}]`), "rules"},
	{"names in deny", cnp("r", `endpointSelector: {}, egressDeny: [{toFQDNs: [{matchName: example.org}]}]`), "toFQDNs"},
	{"rules in deny", cnp("s", `endpointSelector: {}, ingressDeny: [{toPorts: [{ports: [{port: "80"}], rules: {http: [{}]}}]}]`), "rules"},
	{"authentication in deny", cnp("t", `endpointSelector: {}, ingressDeny: [{authentication: {mode: required}}]`), "authentication"},
	{"mode of authentication", cnp("u", `endpointSelector: {}, ingress: [{authentication: {mode: maybe}}]`), "mode"},
	{"icmp by name", cnp("v", `endpointSelector: {}, ingress: [{icmps: [{fields: [{type: EchoRequest}, {type: 8, family: IPv6}]}]}]`), ""},
	{"icmp without type", cnp("w", `endpointSelector: {}, ingress: [{icmps: [{fields: [{family: IPv4}]}]}]`), "type"},
	{"icmp of no family", cnp("x", `endpointSelector: {}, ingress: [{icmps: [{fields: [{type: 8, family: v4}]}]}]`), "family"},
	{"long log", cnp("yy", `endpointSelector: {}, ingress: [{}], log: {value: `+strings.Repeat("x", 33)+`}`), "log.value"},
	{"priority of a listener", cnp("z", `endpointSelector: {}, egress: [{toPorts: [{ports: [{port: "80"}], listener: {name: l, priority: 101, envoyConfig: {name: e}}}]}]`), "priority"},
	{"misspelled field", cnp("aa", `endpointSelector: {}, ingress: [{fromEndpoint: []}]`), "fromEndpoint"},
	{"everything", cnp("all", `endpointSelector: {matchLabels: {"k8s:app": web}}, description: d, labels: [{key: a, source: k8s, value: b}], enableDefaultDeny: {ingress: false}, log: {value: seen},
		ingress: [{fromEndpoints: [{matchLabels: {"any:app": x}}, {}], toPorts: [{ports: [{port: "80", endPort: 90, protocol: TCP}, {port: http}], rules: {http: [{path: /, method: GET, host: a.example,
			headers: [a], headerMatches: [{name: h, value: v, mismatch: LOG, secret: {name: s}}]}]}, terminatingTLS: {secret: {name: s, namespace: ns}}, serverNames: [a.example]}],
			authentication: {mode: required}}, {fromCIDR: [10.0.0.0/8, "fd00::/8"]}, {fromCIDRSet: [{cidr: 10.0.0.0/8, except: [10.1.0.0/16]}, {cidrGroupSelector: {}}]}, {fromEntities: [cluster, world]},
			{fromGroups: [{aws: {region: r, securityGroupsIds: [a]}}]}, {fromNodes: [{}]}],
		egress: [{toServices: [{k8sService: {serviceName: s, namespace: ns}}, {k8sServiceSelector: {selector: {}}}]}, {toFQDNs: [{matchName: example.org}, {matchPattern: "*.example.org"}]}],
		ingressDeny: [{fromEntities: [world], toPorts: [{ports: [{port: "22", protocol: TCP}]}]}], egressDeny: [{toCIDR: [192.0.2.0/24], icmps: [{fields: [{type: 8}]}]}]`), ""},
}

func cnp(name, spec string) string {
	return `{apiVersion: cilium.io/v2, kind: CiliumNetworkPolicy, metadata: {name: ` + name + `, namespace: default}, spec: {` + spec + `}}`
}

func ccnp(name, spec string) string {
	return `{apiVersion: cilium.io/v2, kind: CiliumClusterwideNetworkPolicy, metadata: {name: ` + name + `}, spec: {` + spec + `}}`
}

// cluster is an API server with the definitions.
type cluster struct {
	*kubeapi.Server
	dynamic dynamic.Interface
	mapper  meta.RESTMapper
}

func newCluster(t *testing.T) *cluster {
	t.Helper()
	c := &cluster{Server: kubeapi.Start(t)}
	install(t, c.Server)
	d, err := discovery.NewDiscoveryClientForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	all, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}
	// The server lists a kind a moment after its definition is established.
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(20 * time.Millisecond) {
		groups, err := restmapper.GetAPIGroupResources(d)
		if err == nil {
			c.mapper = restmapper.NewDiscoveryRESTMapper(groups)
			for _, crd := range all {
				_, missing := c.mapper.RESTMapping(schema.GroupKind{Group: crd.Spec.Group, Kind: crd.Spec.Names.Kind}, crd.Spec.Versions[0].Name)
				err = errors.Join(err, missing)
			}
		}
		if err == nil {
			break
		}
		if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	if c.dynamic, err = dynamic.NewForConfig(c.Config); err != nil {
		t.Fatal(err)
	}
	return c
}

// resource returns where objects such as u are.
func (c *cluster) resource(t *testing.T, u *unstructured.Unstructured) dynamic.ResourceInterface {
	t.Helper()
	gvk := u.GroupVersionKind()
	m, err := c.mapper.RESTMapping(gvk.GroupKind(), gvk.Version)
	if err != nil {
		t.Fatal(err)
	}
	if m.Scope.Name() == meta.RESTScopeNameNamespace {
		return c.dynamic.Resource(m.Resource).Namespace(u.GetNamespace())
	}
	return c.dynamic.Resource(m.Resource)
}

func object(t *testing.T, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.UnmarshalStrict([]byte(strings.ReplaceAll(text, "\t", " ")), &u.Object); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	// The decoder of the machinery makes integers of numbers.
	data, err := json.Marshal(u.Object)
	if err != nil {
		t.Fatal(err)
	}
	if err := u.UnmarshalJSON(data); err != nil {
		t.Fatal(err)
	}
	return u
}

func TestServer(t *testing.T) {
	t.Parallel()
	c := newCluster(t)
	t.Run("manifests", func(t *testing.T) {
		for _, m := range manifests {
			t.Run(m.name, func(t *testing.T) { c.manifest(t, m.yaml, m.refused) })
		}
	})
	t.Run("columns", c.columns)
	t.Run("absent and empty", c.absentAndEmpty)
	t.Run("status", c.status)
}

// manifest creates an object; what the server takes must come back as our type says it.
func (c *cluster) manifest(t *testing.T, text, refused string) {
	u := object(t, text)
	got, err := c.resource(t, u).Create(t.Context(), u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if refused != "" {
		if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) || !strings.Contains(err.Error(), refused) {
			t.Errorf("want a refusal that names %s, got %v", refused, err)
		}
		return
	}
	if err != nil {
		t.Fatal(err)
	}
	s := runtime.NewScheme()
	if err := v2.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	if err := v2alpha1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	typed, err := s.New(got.GroupVersionKind())
	if err != nil {
		t.Fatal(err)
	}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructuredWithValidation(got.Object, typed, true); err != nil {
		t.Fatalf("our type does not hold what the server sent: %v", err)
	}
	back, err := runtime.DefaultUnstructuredConverter.ToUnstructured(typed)
	if err != nil {
		t.Fatal(err)
	}
	for _, part := range []string{"spec", "security-labels", "endpoints", "namespace"} {
		if diff := cmp.Diff(got.Object[part], back[part]); diff != "" {
			t.Errorf("%s changes on the way through our type (-server +type):\n%s", part, diff)
		}
	}
}

// columns asks for tables, as kubectl does.
func (c *cluster) columns(t *testing.T) {
	client, err := kubernetes.NewForConfig(c.Config)
	if err != nil {
		t.Fatal(err)
	}
	id := object(t, `{apiVersion: cilium.io/v2, kind: CiliumIdentity, metadata: {name: "4321", labels: {io.kubernetes.pod.namespace: shop}}, security-labels: {a: b}}`)
	if _, err := c.resource(t, id).Create(t.Context(), id, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		path string
		want []string // name:type:priority of the columns behind the first
		row  string   // name of an object
		cell []any    // what its columns hold; an age is not compared
	}{
		{"v2/ciliumidentities", []string{"Namespace:string:0", "Age:date:0"}, "4321", []any{"shop", nil}},
		{"v2/namespaces/default/ciliumendpoints", []string{
			"Security Identity:integer:0", "Ingress Enforcement:string:1", "Egress Enforcement:string:1", "Endpoint State:string:0", "IPv4:string:0", "IPv6:string:0",
		}, "web-1", []any{1234.0, "enforcing", "disabled", "ready", "10.0.1.7", "fd00::7"}},
		{"v2/ciliumnodes", []string{"CiliumInternalIP:string:0", "InternalIP:string:0", "Age:date:0"}, "n1", []any{"10.0.1.1", "192.0.2.1", nil}},
		{"v2/namespaces/default/ciliumnetworkpolicies", []string{"Age:date:0", "Valid:string:0"}, "all", []any{nil, nil}},
		{"v2/ciliumclusterwidenetworkpolicies", []string{"Valid:string:0"}, "d", []any{nil}},
		// A definition without columns of its own has the age.
		{"v2alpha1/ciliumendpointslices", []string{"Age:date:0"}, "ces-1", []any{nil}},
		{"v2alpha1/ciliumpodippools", []string{"Age:date:0"}, "green", []any{nil}},
	} {
		data, err := client.Discovery().RESTClient().Get().AbsPath("/apis/cilium.io/"+tt.path).SetHeader("Accept", "application/json;as=Table;v=v1;g=meta.k8s.io").DoRaw(t.Context())
		if err != nil {
			t.Errorf("%s: %v", tt.path, err)
			continue
		}
		var table metav1.Table
		if err := json.Unmarshal(data, &table); err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, col := range table.ColumnDefinitions {
			got = append(got, col.Name+":"+col.Type+":"+string(rune('0'+col.Priority)))
		}
		if diff := cmp.Diff(append([]string{"Name:string:0"}, tt.want...), got); diff != "" {
			t.Errorf("%s: columns (-want +got):\n%s", tt.path, diff)
			continue
		}
		i := slices.IndexFunc(table.Rows, func(r metav1.TableRow) bool { return r.Cells[0] == tt.row })
		if i < 0 {
			t.Errorf("%s: no row %s", tt.path, tt.row)
			continue
		}
		for j, want := range tt.cell {
			if have := table.Rows[i].Cells[j+1]; want != nil && have != want {
				t.Errorf("%s: %s of %s is %v, want %v", tt.path, tt.want[j], tt.row, have, want)
			}
		}
	}
}

// absentAndEmpty: the server keeps an empty list of peers, which is no peer, apart from an absent
// one, which is all.
func (c *cluster) absentAndEmpty(t *testing.T) {
	p := &v2.CiliumNetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: v2.APIVersion, Kind: v2.KindNetworkPolicy},
		ObjectMeta: metav1.ObjectMeta{Name: "empty", Namespace: "default"},
		Spec:       &v2.Rule{EndpointSelector: &v2.LabelSelector{}, Ingress: []v2.IngressRule{{FromEndpoints: []v2.LabelSelector{}}, {ToPorts: []v2.PortRule{}}}, EgressDeny: []v2.EgressDenyRule{}},
	}
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(p)
	if err != nil {
		t.Fatal(err)
	}
	u := &unstructured.Unstructured{Object: body}
	got, err := c.resource(t, u).Create(t.Context(), u, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict})
	if err != nil {
		t.Fatal(err)
	}
	var back v2.CiliumNetworkPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(p.Spec, back.Spec); diff != "" {
		t.Errorf("(-sent +stored):\n%s", diff)
	}
}

// status: a policy's status has a path of its own, an endpoint's has not.
func (c *cluster) status(t *testing.T) {
	u := object(t, cnp("judged", `endpointSelector: {}, ingress: [{}]`))
	api := c.resource(t, u)
	got, err := api.Create(t.Context(), u, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	now := metav1.Now().Rfc3339Copy()
	status := v2.NetworkPolicyStatus{Conditions: []v2.NetworkPolicyCondition{{Type: v2.ConditionValid, Status: "True", Reason: "Enforced", LastTransitionTime: now}}}
	body, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&status)
	if err != nil {
		t.Fatal(err)
	}
	got.Object["status"] = body
	if _, err := api.UpdateStatus(t.Context(), got, metav1.UpdateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
		t.Fatal(err)
	}
	got, err = api.Get(t.Context(), "judged", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	var back v2.CiliumNetworkPolicy
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(got.Object, &back); err != nil {
		t.Fatal(err)
	}
	if len(back.Status.Conditions) != 1 || !back.Status.Conditions[0].LastTransitionTime.Time.Equal(now.Time) || time.Since(now.Time) > time.Hour {
		t.Errorf("status %+v", back.Status)
	}
	cep := object(t, `{apiVersion: cilium.io/v2, kind: CiliumEndpoint, metadata: {name: web-1, namespace: default}}`)
	if _, err := c.resource(t, cep).Get(t.Context(), "web-1", metav1.GetOptions{}, "status"); !apierrors.IsNotFound(err) {
		t.Errorf("an endpoint has a status of its own: %v", err)
	}
}
