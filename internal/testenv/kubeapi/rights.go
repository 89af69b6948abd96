package kubeapi

import (
	"bytes"
	"context"
	"os"
	"path/filepath"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
	"sigs.k8s.io/yaml"

	"github.com/hawser-net/hawser/internal/testenv"
)

// Agent and Operator are the service accounts of the programs in deploy/hawser.yaml.
const (
	Agent    = "hawser-agent"
	Operator = "hawser-operator"
)

// AuthInfo returns who a client is that acts as that service account of deploy/hawser.yaml, with
// the rights that the file grants and no others: a program that is tested with it works where the
// file is installed. The rights are made in the server by the first call.
func (k *Server) AuthInfo(serviceAccount string) *clientcmdapi.AuthInfo {
	k.t.Helper()
	client, err := kubernetes.NewForConfig(k.Config)
	if err != nil {
		k.t.Fatalf("client: %v", err)
	}
	k.grant(client)
	return &clientcmdapi.AuthInfo{
		Token: k.Config.BearerToken, Impersonate: "system:serviceaccount:kube-system:" + serviceAccount,
		ImpersonateGroups: []string{"system:serviceaccounts", "system:serviceaccounts:kube-system", "system:authenticated"},
	}
}

// grant makes the roles and bindings of deploy/hawser.yaml.
func (k *Server) grant(client kubernetes.Interface) {
	k.t.Helper()
	data, err := os.ReadFile(filepath.Join(testenv.Sources(k.t), "deploy", "hawser.yaml"))
	if err != nil {
		k.t.Fatalf("rights of the programs: %v", err)
	}
	ctx, rbac, made := context.Background(), client.RbacV1(), 0
	for _, doc := range bytes.Split(data, []byte("\n---\n")) {
		var kind metav1.PartialObjectMetadata
		if err := yaml.Unmarshal(doc, &kind); err != nil {
			k.t.Fatalf("deploy/hawser.yaml: %v", err)
		}
		var o runtime.Object
		switch kind.Kind {
		case "ServiceAccount":
			o = &corev1.ServiceAccount{}
		case "ClusterRole":
			o = &rbacv1.ClusterRole{}
		case "ClusterRoleBinding":
			o = &rbacv1.ClusterRoleBinding{}
		case "Role":
			o = &rbacv1.Role{}
		case "RoleBinding":
			o = &rbacv1.RoleBinding{}
		default:
			continue
		}
		if err := yaml.UnmarshalStrict(doc, o); err != nil {
			k.t.Fatalf("deploy/hawser.yaml: %v", err)
		}
		switch o := o.(type) {
		case *corev1.ServiceAccount:
			_, err = client.CoreV1().ServiceAccounts(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		case *rbacv1.ClusterRole:
			_, err = rbac.ClusterRoles().Create(ctx, o, metav1.CreateOptions{})
		case *rbacv1.ClusterRoleBinding:
			_, err = rbac.ClusterRoleBindings().Create(ctx, o, metav1.CreateOptions{})
		case *rbacv1.Role:
			_, err = rbac.Roles(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		case *rbacv1.RoleBinding:
			_, err = rbac.RoleBindings(o.Namespace).Create(ctx, o, metav1.CreateOptions{})
		}
		if err != nil && !apierrors.IsAlreadyExists(err) {
			k.t.Fatalf("make %s %s: %v", kind.Kind, kind.Name, err)
		}
		made++
	}
	if made < 8 {
		k.t.Fatalf("deploy/hawser.yaml grants nothing: %d objects", made)
	}
}
