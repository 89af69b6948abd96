package endpointslices

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// resolveApp has the label app of the pod and the label env of its namespace make an identity.
func resolveApp(p *corev1.Pod, ns map[string]string) (string, int64, error) {
	if p.Labels["app"] == "" {
		return "", 0, errors.New("no label app")
	}
	if p.Labels["app"] == "dns" {
		return "", 102, nil
	}
	return canonical(map[string]string{"k8s:app": p.Labels["app"], "k8s:env": ns["env"]}), 0, nil
}

func identityOf(id, app, env string) *v2.CiliumIdentity {
	return &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: id}, SecurityLabels: map[string]string{"k8s:app": app, "k8s:env": env}}
}

func slimPod(ns, name, app string, ips ...string) *corev1.Pod {
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name, UID: types.UID("uid-" + name), Labels: map[string]string{"app": app}}}
	p.Spec = corev1.PodSpec{
		NodeName: "n1", ServiceAccountName: "robot",
		Containers: []corev1.Container{{Name: "c", Image: "i", Ports: []corev1.ContainerPort{{Name: "web", ContainerPort: 80}, {ContainerPort: 81}}}},
	}
	p.Status.Phase = corev1.PodRunning
	for _, ip := range ips {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: ip})
	}
	if len(ips) > 0 {
		p.Status.PodIP = ips[0]
	}
	return p
}

func slimNode(name string, ips ...string) *v2.CiliumNode {
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}
	n.Spec.Encryption.Key = 3
	for _, ip := range ips {
		n.Spec.Addresses = append(n.Spec.Addresses, v2.NodeAddress{IP: ip, Type: "InternalIP"})
	}
	return n
}

// TestSlimEntries delivers objects one after the other, and compares the entries of pods.
func TestSlimEntries(t *testing.T) {
	t.Parallel()
	b, s := newIndex(100, randomName), newSlim(resolveApp)
	b.begin()
	says := func(want map[string]int64) {
		t.Helper()
		s.apply(b)
		got := map[string]int64{}
		for k, e := range b.want {
			got[k.Name] = e.IdentityID
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Fatalf("identities of pods (-want +got):\n%s", diff)
		}
	}
	ns := func(env string) *corev1.Namespace {
		return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "team", Labels: map[string]string{"env": env}}}
	}
	s.setPod(slimPod("team", "a", "web", "10.0.0.1", "fd00::1"))
	says(map[string]int64{})
	s.setNamespace(ns("test"))
	s.setNode(slimNode("n1", "fd00:ffff::1", "192.0.2.1"))
	says(map[string]int64{})
	s.setIdentity(identityOf("300", "web", "test"))
	says(map[string]int64{"a": 300})
	want := &entry{
		Name: "a", IdentityID: 300, PodUID: "uid-a", ServiceAccount: "robot", Encryption: v2.EncryptionSpec{Key: 3},
		NamedPorts: []v2.NamedPort{{Name: "web", Port: 80, Protocol: "TCP"}},
		Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.0.0.1", IPv6: "fd00::1"}}},
	}
	if diff := cmp.Diff(want, b.want[key{Namespace: "team", Name: "a"}]); diff != "" {
		t.Error(diff)
	}
	// Without a network of their own, without an address, without an identity, with one by rule.
	host, ended := slimPod("team", "host", "web", "192.0.2.1"), slimPod("team", "ended", "web", "10.0.0.9")
	host.Spec.HostNetwork, ended.Status.Phase = true, corev1.PodSucceeded
	for _, p := range []*corev1.Pod{host, ended, slimPod("team", "starts", "web"), slimPod("team", "unknown", "other", "10.0.0.8"),
		slimPod("team", "bare", "", "10.0.0.7"), slimPod("team", "dns", "dns", "10.0.0.6"), slimPod("nowhere", "lost", "web", "10.0.0.5")} {
		s.setPod(p)
	}
	says(map[string]int64{"a": 300, "dns": 102})
	// The namespace is relabelled: the old identity stays until the new one is there. Of two, the
	// older counts.
	s.setNamespace(ns("prod"))
	says(map[string]int64{"a": 300, "dns": 102})
	young := identityOf("200", "web", "prod")
	young.CreationTimestamp = metav1.Unix(500, 0)
	s.setIdentity(young)
	says(map[string]int64{"a": 200, "dns": 102})
	s.setIdentity(identityOf("301", "web", "prod"))
	says(map[string]int64{"a": 301, "dns": 102})
	s.dropIdentity("301")
	says(map[string]int64{"a": 200, "dns": 102})
	s.dropIdentity("200")
	says(map[string]int64{"a": 200, "dns": 102})
	// The node is away and back with another address.
	s.dropNode("n1")
	s.setPod(slimPod("team", "a", "web", "10.0.0.2"))
	says(map[string]int64{"a": 200, "dns": 102})
	if got := b.want[key{Namespace: "team", Name: "a"}].Networking; got.NodeIP != "192.0.2.1" || got.Addressing[0].IPv4 != "10.0.0.2" {
		t.Errorf("%+v", got)
	}
	s.setNode(slimNode("n1", "192.0.2.7"))
	says(map[string]int64{"a": 200, "dns": 102})
	if got := b.want[key{Namespace: "team", Name: "a"}].Networking; got.NodeIP != "192.0.2.7" {
		t.Errorf("%+v", got)
	}
	// Another pod of the name has nothing of the one before.
	other := slimPod("team", "a", "web", "10.0.0.3")
	other.UID = "another"
	s.setPod(other)
	says(map[string]int64{"dns": 102})
	s.dropPod(key{Namespace: "team", Name: "dns"})
	says(map[string]int64{})
}

// slimMode runs an operator without CiliumEndpoints, through a relabelled namespace, deleted pods
// and a restart.
func slimMode(b *bench) {
	b.env.Create(b.T, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "slim", Labels: map[string]string{"env": "test"}}})
	b.env.Create(b.T, slimNode("n1", "192.0.2.1"))
	b.env.Create(b.T, identityOf("300", "web", "test"))
	cfg := quick()
	cfg.Mode, cfg.Max = ModeSlim, 10
	ctx := context.Background()
	for n := range 30 {
		b.env.Create(b.T, slimPod("slim", fmt.Sprint("kept-", n), "web", fmt.Sprint("10.0.0.", n+1)))
	}
	// What should be is made again from the server's objects, and not by the code under test.
	wanted := func() map[key]*entry {
		var pods corev1.PodList
		if err := b.env.Client.List(ctx, &pods, client.InNamespace("slim")); err != nil {
			b.Fatal(err)
		}
		var ns corev1.Namespace
		if err := b.env.Client.Get(ctx, client.ObjectKey{Name: "slim"}, &ns); err != nil {
			b.Fatal(err)
		}
		var ids v2.CiliumIdentityList
		if err := b.env.Client.List(ctx, &ids); err != nil {
			b.Fatal(err)
		}
		out := map[key]*entry{}
		for _, p := range pods.Items {
			for _, id := range ids.Items {
				if id.SecurityLabels["k8s:app"] != p.Labels["app"] || id.SecurityLabels["k8s:env"] != ns.Labels["env"] {
					continue
				}
				e := &entry{
					Name: p.Name, PodUID: string(p.UID), ServiceAccount: "robot", Encryption: v2.EncryptionSpec{Key: 3},
					NamedPorts: []v2.NamedPort{{Name: "web", Port: 80, Protocol: "TCP"}},
					Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: p.Status.PodIP}}},
				}
				_, _ = fmt.Sscan(id.Name, &e.IdentityID)
				out[client.ObjectKeyFromObject(&p)] = e
			}
		}
		return out
	}
	waitSynced := func(n int) {
		b.Helper()
		controllers.Eventually(b.T, 2*time.Minute, func() string {
			w := wanted()
			if len(w) != n {
				return fmt.Sprintf("%d pods have an identity, want %d", len(w), n)
			}
			return wrong(w, b.slices(), 10)
		})
	}
	o := b.start(cfg, resolveApp, nil)
	waitSynced(30)
	stop := b.witness(isKept)
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"labels":{"env":"prod"}}}`))
	if err := b.env.Client.Patch(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "slim"}}, patch); err != nil {
		b.Fatal(err)
	}
	time.Sleep(300 * time.Millisecond)
	b.env.Create(b.T, identityOf("301", "web", "prod"))
	waitSynced(30)
	o.stop()
	b.still(cfg, resolveApp)
	// While no operator runs, the identity goes: a new operator keeps what slices say until there
	// is another.
	if err := b.env.Client.Delete(ctx, identityOf("301", "", "")); err != nil {
		b.Fatal(err)
	}
	b.still(cfg, resolveApp)
	b.env.Create(b.T, identityOf("302", "web", "prod"))
	o = b.start(cfg, resolveApp, nil)
	waitSynced(30)
	stop()
	for n := range 25 {
		if err := b.env.Client.Delete(ctx, slimPod("slim", fmt.Sprint("kept-", n), ""), client.GracePeriodSeconds(0)); err != nil {
			b.Fatal(err)
		}
	}
	waitSynced(5)
	o.stop()
}

func TestConfig(t *testing.T) {
	t.Parallel()
	d := Defaults()
	if err := d.Validate(); err != nil || d.Enable || d.Slim() {
		t.Errorf("%+v: %v", d, err)
	}
	for want, change := range map[string]func(*Config){
		"--ces-controller-mode":             func(c *Config) { c.Mode = "fat" },
		"--ces-max-ciliumendpoints-per-ces": func(c *Config) { c.Max = 0 },
		"--ces-rate-limits":                 func(c *Config) { c.Rates = "10" },
		"delay":                             func(c *Config) { c.Delay = -1 },
	} {
		c := Defaults()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", c, err, want)
		}
	}
}

func TestRates(t *testing.T) {
	t.Parallel()
	r, err := ParseRates(`[{"nodes":500,"limit":30,"burst":60},{"nodes":100,"limit":20,"burst":30},{"nodes":1000,"limit":500,"burst":1000}]`)
	if err != nil {
		t.Fatal(err)
	}
	got := map[int]Rate{}
	for _, n := range []int{0, 99, 100, 499, 500, 5000} {
		got[n] = r.For(n)
	}
	small, middle := Rate{100, 20, 30}, Rate{500, 30, 60}
	want := map[int]Rate{0: small, 99: small, 100: small, 499: small, 500: middle, 5000: {1000, mostLimit, mostBurst}}
	if !maps.Equal(got, want) {
		t.Errorf("%v, want %v", got, want)
	}
	for text, want := range map[string]string{
		"": "no list", "{}": "no list", "[]": "empty", `[{"nodes":-1,"limit":1,"burst":1}]`: "-1 nodes",
		`[{"nodes":1,"limit":1,"burst":1},{"nodes":1,"limit":2,"burst":1}]`: "two entries", `[{"nodes":0,"limit":0,"burst":1}]`: "no writes",
		`[{"nodes":0,"limit":1}]`: "no writes", `[{"nodes":0,"limit":1,"burst":1,"x":2}]`: "unknown field", `[{"nodes":0,"limit":1,"burst":1}]]`: "goes on",
	} {
		if _, err := ParseRates(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v; want %q", text, err, want)
		}
	}
}

// FuzzParseRates: what is accepted always allows writes, within the bounds.
func FuzzParseRates(f *testing.F) {
	f.Add(`[{"nodes":0,"limit":10,"burst":20}]`, 5)
	f.Add(`[{"nodes":1e3,"limit":1e-9,"burst":2}]`, -5)
	f.Fuzz(func(t *testing.T, text string, nodes int) {
		r, err := ParseRates(text)
		if err != nil {
			return
		}
		if got := r.For(nodes); !(got.Limit > 0) || got.Limit > mostLimit || got.Burst < 1 || got.Burst > mostBurst {
			t.Errorf("%q allows %+v", text, got)
		}
	})
}

// TestKeyOfSeveralSources: labels of one key with several sources are no identity's.
func TestKeyOfSeveralSources(t *testing.T) {
	t.Parallel()
	if text := canonical(map[string]string{"k8s:app": "web", "any:app": "db"}); text != "" {
		t.Errorf("they are %q", text)
	}
}

// TestNamedPorts: a port that is none is left out, as agents do.
func TestNamedPorts(t *testing.T) {
	t.Parallel()
	p := &corev1.Pod{Spec: corev1.PodSpec{Containers: []corev1.Container{{Ports: []corev1.ContainerPort{
		{Name: "high", ContainerPort: 65536}, {Name: "web", ContainerPort: 80}, {Name: "zero"}, {ContainerPort: 81},
	}}}}}
	if diff := cmp.Diff([]v2.NamedPort{{Name: "web", Port: 80, Protocol: "TCP"}}, namedPorts(p)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
}
