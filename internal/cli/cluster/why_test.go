package cluster

import (
	"bytes"
	"context"
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/cli/command"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// TestIdentityWhy asks a real API server about identities that are used, waited for, left over and
// unknown.
func TestIdentityWhy(t *testing.T) {
	t.Parallel()
	server := kubeapi.Start(t)
	server.DefineResources()
	c, err := k8s.New(server.Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	pod := func(name, app, node string) {
		_, err := c.Kube.CoreV1().Pods("default").Create(ctx, &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
			Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}}, AutomountServiceAccountToken: new(bool)},
		}, metav1.CreateOptions{})
		must(err)
	}
	number := func(name, app string) {
		must(c.UrgentV2.Post().Resource(v2.ResourceIdentities).Body(&v2.CiliumIdentity{
			ObjectMeta:     metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": app}},
			SecurityLabels: map[string]string{"k8s:app": app, "k8s:io.kubernetes.pod.namespace": "default", "k8s:io.cilium.k8s.policy.cluster": "default"},
		}).Do(ctx).Error())
	}
	endpoint := func(name string, id int64) {
		o := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name}, Status: v2.EndpointStatus{
			Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1"}}},
		}}
		if id != 0 {
			o.Status.Identity = &v2.EndpointIdentity{ID: id}
		}
		must(c.UrgentV2.Post().Namespace("default").Resource(v2.ResourceEndpoints).Body(o).Do(ctx).Error())
	}
	pod("web", "web", "n1")
	pod("late", "web", "n2")
	pod("new", "new", "n1")
	number("300", "web")
	number("301", "web")
	number("400", "idle")
	endpoint("web", 300)
	endpoint("gone", 300)
	endpoint("new", 0)

	path := filepath.Join(t.TempDir(), "config")
	must(clientcmd.WriteToFile(clientcmdapi.Config{
		Clusters:       map[string]*clientcmdapi.Cluster{"c": {Server: server.Config.Host, InsecureSkipTLSVerify: true}},
		AuthInfos:      map[string]*clientcmdapi.AuthInfo{"u": {Token: server.Config.BearerToken}},
		Contexts:       map[string]*clientcmdapi.Context{"x": {Cluster: "c", AuthInfo: "u"}},
		CurrentContext: "x",
	}, path))
	for _, tt := range []struct {
		args []string
		code int
		want []string
	}{
		{[]string{"300"}, exitcode.OK, []string{"k8s:app=web", "default/web on n1", "default/gone", "whose pod is gone", "default/late on n2", "1 CiliumEndpoint names it of pods that are there", "Duplicates: 301"}},
		{[]string{"web"}, exitcode.OK, []string{"Pod: default/web", "Identity: 300"}},
		{[]string{"default/late"}, exitcode.OK, []string{"no CiliumEndpoint yet"}},
		{[]string{"new"}, exitcode.OK, []string{"names no identity yet"}},
		{[]string{"400"}, exitcode.OK, []string{"it is unused: the operator collects it"}},
		{[]string{"301", "-o", "jsonpath={.duplicates[0]} {.exists}"}, exitcode.OK, []string{"300 true"}},
		{[]string{"host"}, exitcode.OK, []string{"it is reserved"}},
		{[]string{"999"}, exitcode.NotFound, []string{"no object has that ID"}},
		{[]string{"16842752"}, exitcode.NotFound, []string{"means something on one node only"}},
		{[]string{"default/absent"}, exitcode.NotFound, []string{"pod default/absent"}},
		{[]string{"300", "--kubeconfig", path + ".missing"}, exitcode.Usage, []string{"--kubeconfig: ", path + ".missing: no such file"}},
		{[]string{"300", "--context", "other"}, exitcode.Unreachable, []string{"cannot find a cluster by kubeconfig " + path, `"other" does not exist`}},
	} {
		code, out := runWhy(ctx, path, append([]string{"why"}, tt.args...)...)
		text := strings.Join(strings.Fields(out), " ")
		if code != tt.code {
			t.Errorf("%q: code %d, want %d: %s", tt.args, code, tt.code, text)
		}
		for _, want := range tt.want {
			if !strings.Contains(text, want) {
				t.Errorf("%q lacks %q: %s", tt.args, want, text)
			}
		}
	}
	controllers.Eventually(t, time.Minute, func() string { // they come from the server's cache
		if _, out := runWhy(ctx, path, "__complete", "why", "30"); !strings.HasPrefix(out, "300\tapp=web\n301\tapp=web\n:4\n") {
			return fmt.Sprintf("completions: %q", out)
		}
		return ""
	})
	if _, out := runWhy(ctx, path, "__complete", "why", "--context", ""); !strings.HasPrefix(out, "x\n:4\n") {
		t.Errorf("completions of contexts: %q", out)
	}
}

// runWhy runs a command line where KUBECONFIG names the file.
func runWhy(ctx context.Context, kubeconfig string, args ...string) (code int, text string) {
	var out, errs bytes.Buffer
	a := &command.App{Getenv: func(k string) string {
		if k == "KUBECONFIG" {
			return kubeconfig
		}
		return ""
	}}
	code = command.Run(ctx, command.Root(a, &out, &errs, "", "", IdentityWhyCommand(a)), args)
	return code, out.String() + errs.String()
}
