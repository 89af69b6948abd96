package policies

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestNodeStatusGC: with definitions that still have status.nodes, as older ones do, nodes that are
// gone leave it and others stay.
func TestNodeStatusGC(t *testing.T) {
	env := controllers.Start(t)
	for _, plural := range []string{v2.ResourceNetworkPolicies, v2.ResourceClusterwideNetworkPolicies} {
		crd := &unstructured.Unstructured{}
		crd.SetAPIVersion("apiextensions.k8s.io/v1")
		crd.SetKind("CustomResourceDefinition")
		crd.SetName(plural + ".cilium.io")
		patch := []byte(`[{"op":"add","path":"/spec/versions/0/schema/openAPIV3Schema/properties/status/x-kubernetes-preserve-unknown-fields","value":true}]`)
		if err := env.Client.Patch(t.Context(), crd, client.RawPatch(types.JSONPatchType, patch)); err != nil {
			t.Fatal(err)
		}
	}
	env.Create(t, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}})
	env.Create(t, &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "machine"}})
	const spec = "spec: {endpointSelector: {}, ingress: [{fromEntities: [cluster]}]}"
	var all []*unstructured.Unstructured
	for _, text := range []string{cnp("a", spec), ccnp("b", spec)} {
		u := object(t, text)
		env.Create(t, u)
		all = append(all, u)
		patch, err := json.Marshal(map[string]any{"status": map[string]any{
			"conditions": []any{map[string]any{"type": "Seen", "status": "True"}},
			"nodes":      map[string]any{"here": map[string]any{"ok": true}, "gone": map[string]any{"ok": true}, "machine": map[string]any{}, "away": map[string]any{}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		// The server takes a moment to serve a changed definition.
		controllers.Eventually(t, 2*time.Minute, func() string {
			if err := env.Client.Status().Patch(t.Context(), u, client.RawPatch(types.MergePatchType, patch)); err != nil {
				return err.Error()
			}
			if len(nodesOf(u)) != 4 {
				return fmt.Sprintf("status %v", u.Object["status"])
			}
			return ""
		})
	}
	env.Run(t, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		return SetupNodeStatusGC(m, time.Second, log)
	})
	for _, u := range all {
		controllers.Eventually(t, 2*time.Minute, func() string {
			if err := env.Client.Get(t.Context(), client.ObjectKeyFromObject(u), u); err != nil {
				return err.Error()
			}
			if got := slices.Sorted(maps.Keys(nodesOf(u))); !slices.Equal(got, []string{"here", "machine"}) {
				return fmt.Sprintf("%s: nodes %v", u.GetName(), got)
			}
			if conditions := statusOf[v2.NetworkPolicyStatus](u).Conditions; len(conditions) != 1 {
				return fmt.Sprintf("%s: conditions %v", u.GetName(), conditions)
			}
			return ""
		})
	}
}
