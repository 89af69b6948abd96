package groups

import (
	"context"
	"log/slog"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	definitions "github.com/hawser-net/hawser/api/crds"
	"github.com/hawser-net/hawser/internal/operator/crds"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// TestRights runs the operator with the rights on policies that the chart grants, on a server that
// protects the owners of objects. A derivative that cannot be written is shown in the status.
func TestRights(t *testing.T) {
	t.Parallel()
	c := &cluster{T: t, Env: &controllers.Env{Server: kubeapi.Start(t, "--enable-admission-plugins=OwnerReferencesPermissionEnforcement")}, ec2: newEC2(t)}
	scheme, err := kube.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if c.Client, err = client.New(c.Server.Config, client.Options{Scheme: scheme}); err != nil {
		t.Fatal(err)
	}
	defs, err := definitions.All()
	if err != nil {
		t.Fatal(err)
	}
	if err := crds.Register(t.Context(), c.Client, defs, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	c.ec2.set(instance{groups: []string{"sg-1"}, private: "10.0.0.1"})

	kinds := []string{"ciliumnetworkpolicies", "ciliumclusterwidenetworkpolicies"}
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "groups"}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"cilium.io"}, Resources: kinds, Verbs: []string{"list", "watch", "update", "delete"}},
		{APIGroups: []string{"cilium.io"}, Resources: []string{kinds[0] + "/status", kinds[1] + "/status"}, Verbs: []string{"patch"}},
	}}
	c.Create(t, role)
	c.Create(t, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "groups"}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "groups"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.UserKind, APIGroup: rbacv1.GroupName, Name: "operator"}},
	})
	cfg := rest.CopyConfig(c.Server.Config)
	cfg.Impersonate.UserName = "operator"
	cfg.Impersonate.Groups = []string{"system:authenticated"}
	controllers.Run(t, cfg, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		return Setup(m, Config{Interval: time.Second}, c.ec2.provider(), log)
	})
	p := c.cnp("p", `{endpointSelector: {}, egress: [{toGroups: [{aws: {securityGroupsIds: [sg-1]}}]}]}`)
	c.waitStatus(p, "cannot create resource")
	role.Rules[0].Verbs = append(role.Rules[0].Verbs, "create")
	if err := c.Client.Update(t.Context(), role); err != nil {
		t.Fatal(err)
	}
	c.members(p, "10.0.0.1/32")
	c.waitStatus(p, "")
}
