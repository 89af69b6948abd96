package policies

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	eventsv1 "k8s.io/api/events/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/hawser-net/hawser/internal/k8s/policies"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

func clusterPolicy(name, egress string) string {
	return fmt.Sprintf(`
apiVersion: policy.networking.k8s.io/v1alpha2
kind: ClusterNetworkPolicy
metadata: {name: %s}
spec:
  tier: Admin
  priority: 7
  subject: {namespaces: {}}
  egress:
  - {action: Deny, to: [%s]}
`, name, egress)
}

const (
	goodPeer = "{networks: [10.0.0.0/8]}"
	badPeer  = "{domainNames: [example.org]}"
)

func TestReplaceStandard(t *testing.T) {
	t.Parallel()
	before, now := metav1.NewTime(time.Unix(1000, 0)), metav1.NewTime(time.Unix(2000, 0))
	other := metav1.Condition{Type: "Other", Status: "True", Reason: "X", LastTransitionTime: before}
	of := func(status metav1.ConditionStatus, reason, message string, generation int64, since metav1.Time) metav1.Condition {
		return metav1.Condition{Type: "Valid", Status: status, Reason: reason, Message: message, ObservedGeneration: generation, LastTransitionTime: since}
	}
	valid := of("True", "Enforceable", validMessage, 1, before)
	for _, tt := range []struct {
		name       string
		have       []metav1.Condition
		fault      error
		generation int64
		want       []metav1.Condition
		changed    bool
	}{
		{"first", nil, nil, 1, []metav1.Condition{of("True", "Enforceable", validMessage, 1, now)}, true},
		{"same", []metav1.Condition{other, valid}, nil, 1, []metav1.Condition{other, valid}, false},
		{"edited", []metav1.Condition{valid}, nil, 2, []metav1.Condition{of("True", "Enforceable", validMessage, 2, before)}, true},
		{"turned", []metav1.Condition{valid, other}, errors.New("a fault"), 2, []metav1.Condition{of("False", "NotEnforceable", "a fault", 2, now), other}, true},
	} {
		kept := append([]metav1.Condition(nil), tt.have...)
		got, changed := replaceStandard(tt.have, tt.fault, tt.generation, now.Time)
		if diff := cmp.Diff(tt.want, got); diff != "" || changed != tt.changed {
			t.Errorf("%s: changed %t; conditions (-want +got):\n%s", tt.name, changed, diff)
		}
		if diff := cmp.Diff(kept, tt.have); diff != "" {
			t.Errorf("%s: what was given is changed:\n%s", tt.name, diff)
		}
	}
}

// eventsOf returns the texts of the Events that a policy has.
func eventsOf(t testing.TB, env *controllers.Env, kind, name string) (texts []string) {
	t.Helper()
	var list eventsv1.EventList
	if err := env.Client.List(t.Context(), &list); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Kind == kind && e.Regarding.Name == name && e.Type == "Warning" && e.Reason == "PolicyRefused" {
			texts = append(texts, e.Note)
		}
	}
	return texts
}

// TestClusterNetworkPolicy: its definition may come late, go and come again; the condition and the
// Event are there whenever it is.
func TestClusterNetworkPolicy(t *testing.T) {
	env := controllers.Start(t)
	env.Run(t, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		return setup(m, false, 50*time.Millisecond, log)
	})
	crd := func() *unstructured.Unstructured {
		u := &unstructured.Unstructured{}
		if err := u.UnmarshalJSON(env.Server.ClusterNetworkPolicyDefinition()); err != nil {
			t.Fatal(err)
		}
		return u
	}
	condition := func(name string) *metav1.Condition {
		t.Helper()
		u := object(t, clusterPolicy(name, goodPeer))
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
			t.Fatal(err)
		}
		for _, c := range statusOf[standardStatus](u).Conditions {
			if c.Type == "Valid" && c.ObservedGeneration == u.GetGeneration() {
				return &c
			}
		}
		return nil
	}
	wants := func(name string, status metav1.ConditionStatus, reason, message string) {
		t.Helper()
		controllers.Eventually(t, 2*time.Minute, func() string {
			if c := condition(name); c == nil || c.Status != status || c.Reason != reason || !strings.Contains(c.Message, message) {
				return fmt.Sprintf("%s: %+v; want %s %q", name, c, status, message)
			}
			return ""
		})
	}
	for round := range 2 {
		definition := crd()
		if err := env.Client.Create(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
		good, bad := fmt.Sprintf("good-%d", round), fmt.Sprintf("bad-%d", round)
		for name, peer := range map[string]string{good: goodPeer, bad: badPeer} {
			controllers.Eventually(t, 2*time.Minute, func() string { // the server takes a moment to serve it
				if err := env.Client.Create(t.Context(), object(t, clusterPolicy(name, peer))); err != nil {
					return err.Error()
				}
				return ""
			})
		}
		const field = "spec.egress[0].to[0].domainNames: is not supported"
		wants(good, "True", "Enforceable", validMessage)
		wants(bad, "False", "NotEnforceable", field)

		// It follows what is edited.
		u := object(t, clusterPolicy(good, goodPeer))
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
			t.Fatal(err)
		}
		u.Object["spec"] = object(t, clusterPolicy(good, badPeer)).Object["spec"]
		if err := env.Client.Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
		wants(good, "False", "NotEnforceable", field)
		for _, name := range []string{good, bad} {
			controllers.Eventually(t, 2*time.Minute, func() string {
				if texts := eventsOf(t, env, policies.KindCluster, name); len(texts) != 1 || !strings.Contains(texts[0], field) {
					return fmt.Sprintf("Events of %s: %q; want one that names the field", name, texts)
				}
				return ""
			})
		}

		if err := env.Client.Delete(t.Context(), definition); err != nil {
			t.Fatal(err)
		}
		controllers.Eventually(t, 2*time.Minute, func() string {
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(definition), definition); err == nil {
				return "the definition does not go"
			}
			return ""
		})
	}
}

// TestEvents: a policy that is refused says so in an Event, once for each change of what is wrong
// with it, and not again when another operator leads.
func TestEvents(t *testing.T) {
	env := controllers.Start(t)
	run := func() (stop func()) {
		return env.Run(t, func(_ context.Context, m manager.Manager, log *slog.Logger) error { return Setup(m, false, log) })
	}
	stop := run()
	const (
		first  = "spec: {endpointSelector: {}, egress: [{toFQDNs: [{matchName: example.com}]}]}"
		second = "spec: {endpointSelector: {}, egress: [{toServices: [{k8sService: {serviceName: a}}]}]}"
	)
	var all []*unstructured.Unstructured
	for _, make := range []func(name, spec string) string{cnp, ccnp} {
		u := object(t, make("refused", first))
		env.Create(t, u)
		env.Create(t, object(t, make("good", "spec: {endpointSelector: {}, egress: [{}]}")))
		all = append(all, u)
	}
	wants := func(u *unstructured.Unstructured, fields ...string) {
		t.Helper()
		controllers.Eventually(t, 2*time.Minute, func() string {
			texts := eventsOf(t, env, u.GetKind(), u.GetName())
			if len(texts) != len(fields) {
				return fmt.Sprintf("Events of %s: %q; want %d", u.GetKind(), texts, len(fields))
			}
			for _, f := range fields {
				if !strings.Contains(strings.Join(texts, "\n"), f) {
					return fmt.Sprintf("Events of %s: %q; want one of %s", u.GetKind(), texts, f)
				}
			}
			return ""
		})
	}
	for _, u := range all {
		wants(u, "spec.egress[0].toFQDNs: is not supported")
	}
	stop()
	run()
	for _, u := range all {
		if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
			t.Fatal(err)
		}
		u.Object["spec"] = object(t, cnp("x", second)).Object["spec"]
		if err := env.Client.Update(t.Context(), u); err != nil {
			t.Fatal(err)
		}
	}
	// Whatever the second operator had to say of the first fault, it would have said before this.
	for _, u := range all {
		wants(u, "spec.egress[0].toFQDNs", "spec.egress[0].toServices")
		if texts := eventsOf(t, env, u.GetKind(), "good"); len(texts) > 0 {
			t.Errorf("Events of a good %s: %q", u.GetKind(), texts)
		}
	}
}

// TestNetworkPolicyEvent has a NetworkPolicy refused that no server of today takes, but one of
// yesterday did.
func TestNetworkPolicyEvent(t *testing.T) {
	t.Parallel()
	recorder := events.NewFakeRecorder(10)
	report := newReporter(recorder, slog.New(slog.DiscardHandler))
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "old", Namespace: "default"},
		Spec:       networkingv1.NetworkPolicySpec{Ingress: []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "010.0.0.0/8"}}}}}},
	}
	n := &networkPolicies{one{p}, report}
	req := requestOf(p)
	if _, err := n.Reconcile(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	select {
	case text := <-recorder.Events:
		if !strings.Contains(text, "Warning PolicyRefused") || !strings.Contains(text, "spec.ingress[0].from[0].ipBlock.cidr") {
			t.Errorf("Event %q", text)
		}
	default:
		t.Error("no Event")
	}
	p.Spec.Ingress[0].From[0].IPBlock.CIDR = "10.0.0.0/8"
	if _, err := n.Reconcile(t.Context(), req); err != nil {
		t.Fatal(err)
	}
	if len(recorder.Events) > 0 {
		t.Errorf("a good one has the Event %q", <-recorder.Events)
	}
}

// TestManyEvents: thousands of policies that are refused at once make some Events, and no flood.
func TestManyEvents(t *testing.T) {
	t.Parallel()
	recorder := events.NewFakeRecorder(10 * eventBurst)
	report := newReporter(recorder, slog.New(slog.DiscardHandler))
	began := time.Now()
	for range 9 * eventBurst {
		report.refused(&networkingv1.NetworkPolicy{}, "NetworkPolicy", "default/a", errors.New(strings.Repeat("ä", maxNote)))
	}
	most := eventBurst + int(time.Since(began)/eventPause) + 1
	if n := len(recorder.Events); n < eventBurst || n > most {
		t.Errorf("%d Events, want %d to %d", n, eventBurst, most)
	}
	text := strings.TrimPrefix(<-recorder.Events, "Warning PolicyRefused ")
	if len(text) > maxNote || !strings.HasSuffix(text, "ä...") {
		t.Errorf("a note of %d bytes that ends with %q", len(text), text[len(text)-6:])
	}
}

// TestManyFaults: of a policy with thousands of faults the log and the Event have the first.
func TestManyFaults(t *testing.T) {
	t.Parallel()
	recorder := events.NewFakeRecorder(1)
	var log bytes.Buffer
	report := newReporter(recorder, slog.New(slog.NewTextHandler(&log, nil)))
	report.refused(&networkingv1.NetworkPolicy{}, "NetworkPolicy", "default/a", errors.New(strings.Repeat("a fault\n", 5000)))
	for what, text := range map[string]string{"log": log.String(), "Event": <-recorder.Events} {
		if n := strings.Count(text, "a fault"); n == 0 || n > 20 || !strings.Contains(text, "and 4991 more") {
			t.Errorf("the %s has %d faults: %.300q", what, n, text)
		}
	}
}

// one is a reader of one NetworkPolicy.
type one struct{ policy *networkingv1.NetworkPolicy }

func (o one) Get(_ context.Context, _ client.ObjectKey, into client.Object, _ ...client.GetOption) error {
	o.policy.DeepCopyInto(into.(*networkingv1.NetworkPolicy))
	return nil
}

func (o one) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return errors.New("there is no list")
}

func requestOf(o client.Object) reconcile.Request {
	return reconcile.Request{NamespacedName: client.ObjectKeyFromObject(o)}
}
