package policies

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/yaml"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.VerifyTestMain(m) }

func object(t testing.TB, text string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	if err := yaml.Unmarshal([]byte(text), &u.Object); err != nil {
		t.Fatal(err)
	}
	return u
}

func cnp(name, spec string) string {
	return fmt.Sprintf("apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: %s, namespace: default}\n%s\n", name, spec)
}

func ccnp(name, spec string) string {
	return fmt.Sprintf("apiVersion: cilium.io/v2\nkind: CiliumClusterwideNetworkPolicy\nmetadata: {name: %s}\n%s\n", name, spec)
}

func TestValidate(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name, text string
		want       []string // in the fault; none for a valid policy
	}{
		{"valid", cnp("a", "spec: {endpointSelector: {}, ingress: [{fromEntities: [cluster]}]}"), nil},
		{"valid, clusterwide", ccnp("a", "spec: {endpointSelector: {}, egress: [{toCIDR: [10.0.0.0/8]}]}"), nil},
		{"several", cnp("a", "specs: [{endpointSelector: {}, ingress: [{}]}, {endpointSelector: {}, egress: [{}]}]"), nil},
		{"no rule", cnp("a", ""), []string{"spec: is missing"}},
		{"L7", cnp("a", "spec: {endpointSelector: {}, ingress: [{toPorts: [{ports: [{port: '80', protocol: TCP}], rules: {http: [{path: /}]}}]}]}"),
			[]string{"spec.ingress[0].toPorts[0].rules.http: is not supported"}},
		{"two faults", cnp("a", "spec: {endpointSelector: {}, ingress: [{fromCIDR: [nonsense]}], egress: [{toFQDNs: [{matchName: example.com}]}]}"),
			[]string{"spec.ingress[0].fromCIDR[0]", "spec.egress[0].toFQDNs: is not supported"}},
		{"unknown field", cnp("a", "spec: {endpointSelector: {}, ingress: [{fromNowhere: []}]}"), []string{`spec.ingress[0]: unknown field "fromNowhere"`}},
		{"unknown part", cnp("a", "spec: {endpointSelector: {}, ingress: [{}]}\nrules: []"), []string{"rules: is not a field"}},
		{"null", cnp("a", "spec: {endpointSelector: {}, ingress: [{fromEndpoints: null}]}"), []string{"spec.ingress[0].fromEndpoints: is null"}},
		{"groups", cnp("a", "spec: {endpointSelector: {}, egress: [{toGroups: [{aws: {region: r, securityGroupsIds: [a]}}]}]}"), nil},
		{"groups off", cnp("a", "spec: {endpointSelector: {}, egress: [{toGroups: [{aws: {region: r, securityGroupsIds: [a]}}]}]}"),
			[]string{"names groups", "--policy-external-group-sync-interval"}},
		{"groups off, none named", cnp("a", "spec: {endpointSelector: {matchLabels: {toGroups: x}}, egress: [{}]}"), nil},
		{"nodes", ccnp("a", "spec: {nodeSelector: {}, ingress: [{}]}"), []string{"spec.nodeSelector"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			u := object(t, tt.text)
			err := (&validator{groups: !strings.HasPrefix(tt.name, "groups off"), kind: u.GroupVersionKind()}).validate(u)
			if len(tt.want) == 0 && err != nil {
				t.Error(err)
			}
			for _, want := range tt.want {
				if err == nil || !strings.Contains(err.Error(), want) {
					t.Errorf("fault %v; want %q", err, want)
				}
			}
		})
	}
}

func TestReplace(t *testing.T) {
	t.Parallel()
	before, now := metav1.NewTime(time.Unix(1000, 0)), time.Unix(2000, 0)
	other := v2.NetworkPolicyCondition{Type: "Other", Status: "True", LastTransitionTime: before}
	valid := v2.NetworkPolicyCondition{Type: "Valid", Status: "True", Message: validMessage, LastTransitionTime: before}
	for _, tt := range []struct {
		name    string
		have    []v2.NetworkPolicyCondition
		fault   error
		want    []v2.NetworkPolicyCondition
		changed bool
	}{
		{"first", nil, nil, []v2.NetworkPolicyCondition{{Type: "Valid", Status: "True", Message: validMessage, LastTransitionTime: metav1.NewTime(now)}}, true},
		{"same", []v2.NetworkPolicyCondition{other, valid}, nil, []v2.NetworkPolicyCondition{other, valid}, false},
		{"turned", []v2.NetworkPolicyCondition{other, valid}, errors.New("a fault"),
			[]v2.NetworkPolicyCondition{other, {Type: "Valid", Status: "False", Message: "a fault", LastTransitionTime: metav1.NewTime(now)}}, true},
		{"other fault", []v2.NetworkPolicyCondition{{Type: "Valid", Status: "False", Message: "a fault", LastTransitionTime: before}}, errors.New("another"),
			[]v2.NetworkPolicyCondition{{Type: "Valid", Status: "False", Message: "another", LastTransitionTime: before}}, true},
	} {
		got, changed := replace(tt.have, condition(tt.fault), now)
		if diff := cmp.Diff(tt.want, got, cmpopts.EquateApproxTime(0)); diff != "" || changed != tt.changed {
			t.Errorf("%s: changed %t; conditions (-want +got):\n%s", tt.name, changed, diff)
		}
	}
	if c := condition(errors.New(strings.Repeat("ä", maxMessage))); len(c.Message) > maxMessage || !strings.HasSuffix(c.Message, "ä...") {
		t.Errorf("a long fault: %d bytes, ends with %q", len(c.Message), c.Message[len(c.Message)-6:])
	}
	many := errors.New(strings.Repeat("a fault\n", 5000))
	standard, _ := replaceStandard(nil, many, 1, now)
	if c := condition(many); !strings.HasSuffix(c.Message, "\nand 4991 more") || c.Message != standard[0].Message {
		t.Errorf("thousands of faults: %q and %q", c.Message, standard[0].Message)
	}
}

func TestConditions(t *testing.T) {
	env := controllers.Start(t)
	env.Run(t, func(_ context.Context, m manager.Manager, log *slog.Logger) error { return Setup(m, false, log) })
	const good, bad = "spec: {endpointSelector: {}, ingress: [{fromEntities: [cluster]}]}", "spec: {endpointSelector: {}, egress: [{toFQDNs: [{matchName: example.com}]}]}"
	get := func(u *unstructured.Unstructured) []v2.NetworkPolicyCondition {
		t.Helper()
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
			t.Fatal(err)
		}
		return statusOf[v2.NetworkPolicyStatus](u).Conditions
	}
	wants := func(u *unstructured.Unstructured, status, message string) {
		t.Helper()
		controllers.Eventually(t, 2*time.Minute, func() string {
			for _, c := range get(u) {
				if c.Type == "Valid" && c.Status == status && strings.Contains(c.Message, message) && !c.LastTransitionTime.IsZero() {
					return ""
				}
			}
			return fmt.Sprintf("%s: %v; want %s %q", u.GetName(), get(u), status, message)
		})
	}
	for _, make := range []func(name, spec string) string{cnp, ccnp} {
		g, b := object(t, make("good", good)), object(t, make("bad", bad))
		env.Create(t, g)
		env.Create(t, b)
		wants(g, "True", validMessage)
		wants(b, "False", "spec.egress[0].toFQDNs: is not supported")
		// It turns when the policy is edited, and leaves others' conditions alone.
		get(g)
		if err := unstructured.SetNestedSlice(g.Object, append(g.Object["status"].(map[string]any)["conditions"].([]any),
			map[string]any{"type": "Seen", "status": "True"}), "status", "conditions"); err != nil {
			t.Fatal(err)
		}
		if err := env.Client.Status().Update(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		g.Object["spec"] = object(t, make("good", bad)).Object["spec"]
		if err := env.Client.Update(t.Context(), g); err != nil {
			t.Fatal(err)
		}
		wants(g, "False", "toFQDNs")
		if conditions := get(g); len(conditions) != 2 {
			t.Errorf("conditions: %v", conditions)
		}
	}
}
