package connect

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

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
	soon, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	_, err = c.Followed(soon)
	want(t, err, "cluster here does not say yet which clusters it follows: none of its agents runs")
	if soon.Err() == nil {
		t.Error("did not wait for an agent that runs")
	}
	soon, cancel = context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	want(t, c.WaitFollows(soon, "b"), "does not follow cluster b yet: none of its agents runs")
}
