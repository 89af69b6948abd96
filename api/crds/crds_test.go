package crds_test

import (
	"context"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	apiextensions "k8s.io/apiextensions-apiserver/pkg/client/clientset/clientset"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/api/crds"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// install registers all definitions and waits until the server serves them.
func install(t *testing.T, k *kubeapi.Server) {
	t.Helper()
	client, err := apiextensions.NewForConfig(k.Config)
	if err != nil {
		t.Fatal(err)
	}
	all, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	api := client.ApiextensionsV1().CustomResourceDefinitions()
	for _, crd := range all {
		if _, err := api.Create(ctx, crd, metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}); err != nil {
			t.Fatalf("create %s: %v", crd.Name, err)
		}
	}
	for _, crd := range all {
		for {
			got, err := api.Get(ctx, crd.Name, metav1.GetOptions{})
			if err != nil {
				t.Fatalf("get %s: %v", crd.Name, err)
			}
			if conditionTrue(got, apiextensionsv1.NonStructuralSchema) {
				t.Fatalf("%s: the schema is not structural: %v", crd.Name, got.Status.Conditions)
			}
			if conditionTrue(got, apiextensionsv1.Established) {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

func conditionTrue(crd *apiextensionsv1.CustomResourceDefinition, typ apiextensionsv1.CustomResourceDefinitionConditionType) bool {
	for _, c := range crd.Status.Conditions {
		if c.Type == typ {
			return c.Status == apiextensionsv1.ConditionTrue
		}
	}
	return false
}

// TestNames pins what others rely on: names, scopes, versions, subresources and the label.
func TestNames(t *testing.T) {
	t.Parallel()
	type row struct {
		Name, Kind, Singular, Version string
		Short, Categories             []string
		Scope                         apiextensionsv1.ResourceScope
		Status                        bool
	}
	both := []string{"cilium", "ciliumpolicy"}
	one := []string{"cilium"}
	want := []row{
		{"ciliumclusterwidenetworkpolicies", "CiliumClusterwideNetworkPolicy", "ciliumclusterwidenetworkpolicy", "v2", []string{"ccnp"}, both, "Cluster", true},
		{"ciliumendpoints", "CiliumEndpoint", "ciliumendpoint", "v2", []string{"cep", "ciliumep"}, one, "Namespaced", false},
		{"ciliumendpointslices", "CiliumEndpointSlice", "ciliumendpointslice", "v2alpha1", []string{"ces"}, one, "Cluster", false},
		{"ciliumidentities", "CiliumIdentity", "ciliumidentity", "v2", []string{"ciliumid"}, one, "Cluster", true},
		{"ciliumnetworkpolicies", "CiliumNetworkPolicy", "ciliumnetworkpolicy", "v2", []string{"cnp", "ciliumnp"}, both, "Namespaced", true},
		{"ciliumnodes", "CiliumNode", "ciliumnode", "v2", []string{"cn", "ciliumn"}, one, "Cluster", true},
		{"ciliumpodippools", "CiliumPodIPPool", "ciliumpodippool", "v2alpha1", []string{"cpip"}, one, "Cluster", false},
	}
	all, err := crds.All()
	if err != nil {
		t.Fatal(err)
	}
	var got []row
	for _, crd := range all {
		if len(crd.Spec.Versions) != 1 || !crd.Spec.Versions[0].Served || !crd.Spec.Versions[0].Storage {
			t.Errorf("%s: want one version, served and stored", crd.Name)
		}
		if crd.Name != crd.Spec.Names.Plural+"."+crd.Spec.Group || crd.Spec.Group != "cilium.io" {
			t.Errorf("%s is not named after its resource and group", crd.Name)
		}
		v, n := crd.Spec.Versions[0], crd.Spec.Names
		got = append(got, row{n.Plural, n.Kind, n.Singular, v.Name, n.ShortNames, n.Categories, crd.Spec.Scope, v.Subresources != nil && v.Subresources.Status != nil})
		if n.ListKind != n.Kind+"List" {
			t.Errorf("%s: the kind of the list is %s", crd.Name, n.ListKind)
		}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
