package connect

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// want compares an error with what it must contain; empty for none.
func want(t *testing.T, err error, text string) {
	t.Helper()
	if (err == nil) != (text == "") || err != nil && !strings.Contains(err.Error(), text) {
		t.Errorf("error %v, want %q", err, text)
	}
}

func TestReadConfig(t *testing.T) {
	t.Parallel()
	full := map[string]string{"cluster-name": "east", "cluster-id": "7", "clustermesh-config": "/x", "max-connected-clusters": "511"}
	with := func(key, value string) map[string]string {
		out := map[string]string{}
		for k, v := range full {
			out[k] = v
		}
		out[key] = value
		return out
	}
	got, err := readConfig(full)
	if diff := cmp.Diff(Facts{Name: "east", ID: 7, Max: 511, Dir: "/x"}, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	if got, err = readConfig(with("max-connected-clusters", "")); err != nil || got.Max != 255 {
		t.Errorf("%+v, %v", got, err)
	}
	for _, tc := range []struct{ key, value, err string }{
		{"cluster-name", "", "no name"}, {"cluster-id", "0", "no ID"}, {"cluster-id", "x", "invalid"}, {"cluster-id", "", "invalid"},
		{"clustermesh-config", "", "--clustermesh-config"}, {"max-connected-clusters", "-1", "invalid"},
	} {
		_, err := readConfig(with(tc.key, tc.value))
		want(t, err, tc.err)
	}
}

func TestReadAccess(t *testing.T) {
	t.Parallel()
	secret := func(kv ...string) *corev1.Secret {
		s := &corev1.Secret{Data: map[string][]byte{}}
		for i := 0; i < len(kv); i += 2 {
			s.Data[kv[i]] = []byte(kv[i+1])
		}
		return s
	}
	got, err := readAccess(secret("endpoints", "https://a:1, https://b:1,\n", "ca.crt", "C", "tls.crt", "T", "tls.key", "K"))
	wanted := Access{Endpoints: []string{"https://a:1", "https://b:1"}, CA: []byte("C"), Cert: []byte("T"), Key: []byte("K")}
	if diff := cmp.Diff(wanted, got); err != nil || diff != "" {
		t.Errorf("%v\n%s", err, diff)
	}
	_, err = readAccess(secret("endpoints", " ,"))
	want(t, err, "no endpoints")
	_, err = readAccess(secret("endpoints", "https://a:1", "tls.key", "K"))
	want(t, err, "without the other")
}

func facts(name string, id uint32, pods, node string) Facts {
	return Facts{
		Name: name, ID: id, Max: 255, Dir: "/var/lib/cilium/clustermesh",
		Pods:   map[string][]netip.Prefix{"n1": {netip.MustParsePrefix(pods)}},
		Nodes:  map[string][]netip.Addr{"n1": {netip.MustParseAddr(node)}},
		Access: Access{Endpoints: []string{"https://" + node + ":2379"}, CA: []byte("C"), Cert: []byte("T"), Key: []byte("K")},
	}
}

func TestClash(t *testing.T) {
	t.Parallel()
	a := facts("a", 1, "10.1.1.0/24", "192.0.2.1")
	for name, tc := range map[string]struct {
		b   Facts
		err []string
	}{
		"none":            {facts("b", 2, "10.2.1.0/24", "192.0.2.2"), nil},
		"name":            {facts("a", 2, "10.2.1.0/24", "192.0.2.2"), []string{"have the name a", "--cluster-name"}},
		"number":          {facts("b", 1, "10.2.1.0/24", "192.0.2.2"), []string{"have the ID 1", "--cluster-id"}},
		"both":            {facts("a", 1, "10.2.1.0/24", "192.0.2.2"), []string{"--cluster-name", "--cluster-id"}},
		"pods":            {facts("b", 2, "10.1.0.0/16", "192.0.2.2"), []string{"pods of a/n1", "b/n1 in 10.1.0.0/16"}},
		"node in pods":    {facts("b", 2, "10.2.1.0/24", "10.1.1.9"), []string{"pods of a/n1 are in 10.1.1.0/24", "10.1.1.9"}},
		"pods over nodes": {facts("b", 2, "192.0.2.0/24", "192.0.3.2"), []string{"pods of b/n1 are in 192.0.2.0/24", "node a/n1"}},
		"node":            {facts("b", 2, "10.2.1.0/24", "192.0.2.1"), []string{"node a/n1", "b/n1 has the same address"}},
		"how many": {func() Facts { f := facts("b", 2, "10.2.1.0/24", "192.0.2.2"); f.Max = 511; return f }(),
			[]string{"--max-connected-clusters"}},
	} {
		err := Clash(a, tc.b)
		if len(tc.err) == 0 {
			want(t, err, "")
		}
		for _, text := range tc.err {
			t.Run(name, func(t *testing.T) { want(t, err, text) })
		}
	}
}

// daemonSet creates or replaces a DaemonSet of agents that mounts a Secret, if it has a name.
func daemonSet(t *testing.T, client *k8s.Client, name, app, secret string) {
	t.Helper()
	label := map[string]string{"k8s-app": app}
	ds := &appsv1.DaemonSet{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: label}, Spec: appsv1.DaemonSetSpec{
		Selector: &metav1.LabelSelector{MatchLabels: label},
		Template: corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: label}, Spec: corev1.PodSpec{
			Containers: []corev1.Container{{Name: agentContainer, Image: "x"}},
			Volumes:    []corev1.Volume{{Name: "tmp"}},
		}},
	}}
	if secret != "" {
		ds.Spec.Template.Spec.Volumes = append(ds.Spec.Template.Spec.Volumes,
			corev1.Volume{Name: "clustermesh", VolumeSource: corev1.VolumeSource{Secret: &corev1.SecretVolumeSource{SecretName: secret}}})
	}
	sets := client.Kube.AppsV1().DaemonSets("default")
	if err := sets.Delete(t.Context(), name, metav1.DeleteOptions{}); err != nil && !apierrors.IsNotFound(err) {
		t.Fatal(err)
	}
	if _, err := sets.Create(t.Context(), ds, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// The Secret is the one that the agents mount, whatever the chart calls it: nobody would read
// another one.
func TestMountedSecret(t *testing.T) {
	t.Parallel()
	client, err := k8s.New(kubeapi.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	c := New("here", client, "default")
	own, b := facts("a", 1, "10.1.1.0/24", "192.0.2.1"), facts("b", 2, "10.2.1.0/24", "192.0.2.2")
	want(t, c.Follow(ctx, own, b), "cluster here: there is no DaemonSet of agents in namespace default")
	daemonSet(t, client, "hawser-agent", "cilium", "")
	want(t, c.Follow(ctx, own, b), "DaemonSet hawser-agent has no volume clustermesh")
	daemonSet(t, client, "hawser-agent", "cilium", "others")
	daemonSet(t, client, "hawser-balancer", "hawser-balancer", "more")
	want(t, c.Follow(ctx, own, b), "different Secrets (more, others)")
	daemonSet(t, client, "hawser-balancer", "hawser-balancer", "others")
	secrets := func() (names []string) {
		t.Helper()
		list, err := client.Kube.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{})
		if err != nil {
			t.Fatal(err)
		}
		for _, s := range list.Items {
			names = append(names, s.Name)
		}
		return names
	}
	if names := secrets(); len(names) != 0 {
		t.Errorf("Secrets %v were written that nobody mounts", names)
	}
	want(t, c.Follow(ctx, own, b), "")
	if diff := cmp.Diff([]string{"others"}, secrets()); diff != "" {
		t.Error(diff)
	}
	want(t, c.Forget(ctx, "b"), "")
	if names := secrets(); len(names) != 0 {
		t.Errorf("Secrets %v are left", names)
	}
}

// A cluster's files come, change and go beside those of others and beside what others put
// there.
func TestSecret(t *testing.T) {
	t.Parallel()
	client, err := k8s.New(kubeapi.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	c := New("here", client, "default")
	daemonSet(t, client, "hawser-agent", "cilium", MeshSecret)
	read := func() map[string]string {
		t.Helper()
		s, err := client.Kube.CoreV1().Secrets("default").Get(ctx, MeshSecret, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		out := map[string]string{}
		for k, v := range s.Data {
			out[k] = string(v)
		}
		return out
	}
	own, b, d := facts("a", 1, "10.1.1.0/24", "192.0.2.1"), facts("b", 2, "10.2.1.0/24", "192.0.2.2"), facts("d", 4, "10.4.1.0/24", "192.0.2.4")
	d.Access.CA, d.Access.Cert, d.Access.Key = nil, nil, nil
	for _, f := range []Facts{b, d} {
		if err := c.Follow(ctx, own, f); err != nil {
			t.Fatal(err)
		}
	}
	const dir = "/var/lib/cilium/clustermesh/"
	wanted := map[string]string{
		"b":        fmt.Sprintf("cert-file: %[1]sb.crt\nendpoints:\n- https://192.0.2.2:2379\nkey-file: %[1]sb.key\ntrusted-ca-file: %[1]sb-ca.crt\n", dir),
		"b-ca.crt": "C", "b.crt": "T", "b.key": "K", "d": "endpoints:\n- https://192.0.2.4:2379\n",
	}
	if diff := cmp.Diff(wanted, read()); diff != "" {
		t.Error(diff)
	}
	b.Access.Key = []byte("new")
	if err := c.Follow(ctx, own, b); err != nil {
		t.Fatal(err)
	}
	wanted["b.key"] = "new"
	if diff := cmp.Diff(wanted, read()); diff != "" {
		t.Error(diff)
	}
	for range 2 { // the second time there is nothing to do
		if err := c.Forget(ctx, "b"); err != nil {
			t.Fatal(err)
		}
	}
	if diff := cmp.Diff(map[string]string{"d": wanted["d"]}, read()); diff != "" {
		t.Error(diff)
	}
	if err := c.Forget(ctx, "d"); err != nil {
		t.Fatal(err)
	}
	if list, err := client.Kube.CoreV1().Secrets("default").List(ctx, metav1.ListOptions{}); err != nil || len(list.Items) != 0 {
		t.Errorf("%d Secrets are left (%v)", len(list.Items), err)
	}

	// What a cluster lacks is said one by one.
	_, err = c.Read(ctx)
	want(t, err, "cluster here: there is no ConfigMap default/cilium-config")
	config := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: configMap}, Data: map[string]string{"cluster-name": "a", "cluster-id": "0", "clustermesh-config": "/x"}}
	if config, err = client.Kube.CoreV1().ConfigMaps("default").Create(ctx, config, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.Read(ctx)
	want(t, err, "it has no ID")
	config.Data["cluster-id"] = "1"
	if _, err = client.Kube.CoreV1().ConfigMaps("default").Update(ctx, config, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	_, err = c.Read(ctx)
	want(t, err, "no Secret default/"+AccessSecret)
	if name, err := c.Name(ctx); err != nil || name != "a" {
		t.Errorf("name %q, %v", name, err)
	}
	soon, cancel := context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	_, err = c.Followed(soon)
	want(t, err, "cluster here does not say yet which clusters it follows: none of its agents runs")
	if soon.Err() == nil {
		t.Error("did not wait for an agent that runs")
	}
	soon, cancel = context.WithTimeout(ctx, 3*time.Second)
	defer cancel()
	want(t, c.WaitFollows(soon, "b"), "does not follow cluster b yet: none of its agents runs")
}

// Load balancer nodes follow other clusters, too: whoever connects clusters waits for them.
func TestAgentsOfBalancers(t *testing.T) {
	t.Parallel()
	client, err := k8s.New(kubeapi.Start(t).Config)
	if err != nil {
		t.Fatal(err)
	}
	ctx := t.Context()
	for _, app := range []string{"cilium", "hawser-balancer", "hubble-relay"} {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: app + "-1", Labels: map[string]string{"k8s-app": app}},
			Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: agentContainer, Image: "x"}}},
		}
		if pod, err = client.Kube.CoreV1().Pods("default").Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		pod.Status.Phase = corev1.PodRunning
		pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue}}
		if _, err = client.Kube.CoreV1().Pods("default").UpdateStatus(ctx, pod, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	soon, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// There is no kubelet, so no agent can be asked: the error names each that was.
	err = New("here", client, "default").WaitFollows(soon, "b")
	want(t, err, "agent cilium-1 on n1")
	want(t, err, "agent hawser-balancer-1 on n1")
	if err != nil && strings.Contains(err.Error(), "hubble-relay") {
		t.Errorf("asked a pod that is no agent: %v", err)
	}
}
