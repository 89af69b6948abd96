package kubeapi

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/kubernetes"

	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/api/crds"
)

// DefineResources defines all custom resources of the product and waits until the server serves
// them.
func (k *Server) DefineResources() {
	k.t.Helper()
	definitions, err := crds.Raw()
	if err != nil {
		k.t.Fatal(err)
	}
	client, err := kubernetes.NewForConfig(k.Config)
	if err != nil {
		k.t.Fatalf("client: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	const path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
	for _, text := range definitions {
		json, err := yaml.YAMLToJSON(text)
		if err != nil {
			k.t.Fatal(err)
		}
		err = client.Discovery().RESTClient().Post().AbsPath(path).SetHeader("Content-Type", "application/json").Body(json).Do(ctx).Error()
		if err != nil && !apierrors.IsAlreadyExists(err) {
			k.t.Fatalf("define a custom resource: %v", err)
		}
	}
	list, err := crds.All()
	if err != nil {
		k.t.Fatal(err)
	}
	for _, crd := range list {
		version := crd.Spec.Versions[0].Name
		for {
			// The first answer is that the storage of the kind is being made, and to ask again in a
			// second, which is far too late.
			_, err := client.Discovery().RESTClient().Get().AbsPath("/apis", crd.Spec.Group, version, crd.Spec.Names.Plural).MaxRetries(0).DoRaw(ctx)
			if err == nil {
				break
			}
			if ctx.Err() != nil {
				k.t.Fatalf("%s is not served: %v", crd.Name, err)
			}
			time.Sleep(20 * time.Millisecond)
		}
	}
}

// ClusterNetworkPolicyDefinition returns, as JSON, the definition of ClusterNetworkPolicy by its
// authors, in the channel with all fields. It is no custom resource of the product, so its users
// define it.
func (k *Server) ClusterNetworkPolicyDefinition() []byte {
	k.t.Helper()
	dir, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/network-policy-api").Output()
	if err != nil {
		k.t.Fatalf("where the definition of ClusterNetworkPolicy is: %v", err)
	}
	text, err := os.ReadFile(filepath.Join(strings.TrimSpace(string(dir)), "config/crd/experimental/policy.networking.k8s.io_clusternetworkpolicies.yaml"))
	if err != nil {
		k.t.Fatal(err)
	}
	json, err := yaml.YAMLToJSON(text)
	if err != nil {
		k.t.Fatal(err)
	}
	return json
}
