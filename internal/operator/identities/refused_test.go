package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestRefusedWrites: what an admission policy refuses is reported with its reason, and is not taken
// for an object that another client has changed meanwhile. What has changed is.
func TestRefusedWrites(t *testing.T) {
	t.Parallel()
	tc := newTestCluster(t, servers.Take(t))
	tc.namespace("a", nil)
	p := tc.pod("a", "guarded", appLabels("web"), onNode)
	set, id := tc.identityOf(p, 5000)
	web := textOfSet(set)
	guarded := tc.plant(5000, set, func(o *v2.CiliumIdentity) { delete(o.Annotations, k8sids.DigestAnnotation) })
	tc.tamper("5000")
	e := tc.endpoint(p)

	fail, all := admissionv1.Fail, admissionv1.Equivalent
	policy := &admissionv1.ValidatingAdmissionPolicy{ObjectMeta: metav1.ObjectMeta{Name: "identities-stay"}, Spec: admissionv1.ValidatingAdmissionPolicySpec{
		FailurePolicy: &fail,
		MatchConstraints: &admissionv1.MatchResources{MatchPolicy: &all, ResourceRules: []admissionv1.NamedRuleWithOperations{{RuleWithOperations: admissionv1.RuleWithOperations{
			Operations: []admissionv1.OperationType{admissionv1.Update},
			Rule:       admissionv1.Rule{APIGroups: []string{"cilium.io"}, APIVersions: []string{"v2"}, Resources: []string{"ciliumidentities", "ciliumendpoints"}},
		}}}},
		Validations: []admissionv1.Validation{{Expression: "!(object.metadata.name in ['5000', 'guarded'])", Message: "identities stay"}},
	}}
	tc.Create(t, policy)
	tc.Create(t, &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: policy.Name}, Spec: admissionv1.ValidatingAdmissionPolicyBindingSpec{
		PolicyName: policy.Name, ValidationActions: []admissionv1.ValidationAction{admissionv1.Deny},
	}})
	for _, o := range []client.Object{guarded, e} { // the server takes a moment to know of the policy
		controllers.Eventually(t, 2*time.Minute, func() string {
			tried := o.DeepCopyObject().(client.Object)
			tried.SetAnnotations(map[string]string{"tried": "yes"})
			if err := tc.Client.Update(tc.ctx, tried, client.DryRunAll); err == nil || !strings.Contains(err.Error(), "identities stay") {
				return fmt.Sprintf("%s can be changed: %v", o.GetName(), err)
			}
			return ""
		})
	}

	store := &objectStore{objects: objects{tc.Client, tc.Client}, log: slog.New(slog.DiscardHandler)}
	st := step{text: web, id: 5000, uid: guarded.UID, rv: guarded.ResourceVersion}
	c := &Controller{client: tc.Client}
	fix := correction{key: client.ObjectKeyFromObject(e), uid: e.UID, rv: e.ResourceVersion, id: 5000}
	fix.labels = tc.state().targets[fix.key].labels
	writes := []struct {
		name  string
		write func(context.Context) error
	}{
		{"a digest", func(ctx context.Context) error { return store.seal(ctx, st) }},
		{"a withdrawal", func(ctx context.Context) error { return store.withdraw(ctx, st) }},
		{"the identity of an endpoint", func(ctx context.Context) error { return c.name(ctx, fix) }},
	}
	for _, w := range writes {
		if err := w.write(tc.ctx); errors.Is(err, errChanged) || err == nil || !strings.Contains(err.Error(), "identities stay") {
			t.Errorf("%s that is refused: %v, want the reason", w.name, err)
		}
	}

	st.rv, fix.rv = "1", "1"
	for _, w := range writes {
		if err := w.write(tc.ctx); !errors.Is(err, errChanged) {
			t.Errorf("%s of what is not there any more: %v, want %v", w.name, err, errChanged)
		}
	}
	if err := tc.Client.Delete(tc.ctx, policy); err != nil {
		t.Fatal(err)
	}
	st.rv, fix.rv = guarded.ResourceVersion, e.ResourceVersion
	controllers.Eventually(t, 2*time.Minute, func() string {
		if err := c.name(tc.ctx, fix); err != nil {
			return fmt.Sprintf("without the policy: %v", err)
		}
		return ""
	})
	var now v2.CiliumEndpoint
	if err := tc.Client.Get(tc.ctx, fix.key, &now); err != nil || now.Status.Identity == nil || now.Status.Identity.ID != id.ID || len(now.Status.Identity.Labels) != len(id.Labels) || now.Status.State != v2.EndpointReady {
		t.Errorf("the endpoint is %+v, %v", now.Status, err)
	}
	// Others may have observed an ID that is withdrawn: it is in quarantine.
	controllers.Eventually(t, 2*time.Minute, func() string {
		if err := store.withdraw(tc.ctx, st); err != nil {
			return fmt.Sprintf("without the policy: %v", err)
		}
		return ""
	})
	var after v2.CiliumIdentity
	if err := tc.Client.Get(tc.ctx, client.ObjectKeyFromObject(guarded), &after); err != nil {
		t.Fatalf("a withdrawn ID is free at once: %v", err)
	}
	if was, since, ok := k8sids.Quarantined(&after); !ok || was != web || time.Since(since) > time.Minute {
		t.Errorf("a withdrawn ID is %+v", after)
	}
}
