package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"maps"
	"strings"
	"testing"
	"time"

	gocmp "github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/ipcache"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/service"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
	"github.com/hawser-net/hawser/pkg/allocator"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

func TestMain(m *testing.M) { kubeapi.VerifyTestMain(m) }

// TestIndex: what counts for a key depends on the objects, and on when each began to say what it
// says, not on the order of events.
func TestIndex(t *testing.T) {
	b := newIndex()
	steps := []struct {
		object string
		export export
		want   map[string]string
	}{
		{"a", export{1, map[string]string{"k": "a1"}}, map[string]string{"k": "a1"}},
		{"b", export{3, map[string]string{"k": "b3", "l": "b3"}}, map[string]string{"k": "b3", "l": "b3"}},
		{"a", export{2, map[string]string{"k": "a2", "m": "a2"}}, map[string]string{"k": "b3", "l": "b3", "m": "a2"}},
		{"a", export{4, map[string]string{"k": "a4"}}, map[string]string{"k": "a4", "l": "b3"}},
		{"a", export{}, map[string]string{"k": "b3", "l": "b3"}},
		{"b", export{5, map[string]string{"l": "b5"}}, map[string]string{"l": "b5"}},
		// A slice is written for another of its pods.
		{"a", export{6, map[string]string{"k": "last"}}, map[string]string{"k": "last", "l": "b5"}},
		{"b", export{7, map[string]string{"k": "next", "l": "b5"}}, map[string]string{"k": "next", "l": "b5"}},
		{"a", export{8, map[string]string{"k": "last", "m": "a8"}}, map[string]string{"k": "next", "l": "b5", "m": "a8"}},
		{"b", export{9, map[string]string{"l": "b9"}}, map[string]string{"k": "last", "l": "b9", "m": "a8"}},
		{"b", export{10, map[string]string{"k": "next"}}, map[string]string{"k": "next", "m": "a8"}},
		// The server goes back to an old copy.
		{"b", export{3, map[string]string{"k": "next"}}, map[string]string{"k": "last", "m": "a8"}},
		{"a", export{2, map[string]string{"k": "last"}}, map[string]string{"k": "next"}},
		{"a", export{}, map[string]string{"k": "next"}},
		{"b", export{}, map[string]string{}},
	}
	seen := map[string]string{}
	for i, s := range steps {
		for _, key := range b.set(s.object, s.export) {
			if v, ok := b.value(key); ok {
				seen[key] = v
			} else {
				delete(seen, key)
			}
		}
		if diff := gocmp.Diff(s.want, seen); diff != "" {
			t.Errorf("step %d (-want +got):\n%s", i, diff)
		}
	}
	if len(b.exports)+len(b.objects) != 0 {
		t.Errorf("left: %+v", b)
	}
}

func ptr[T any](v T) *T { return &v }

func serviceObject(change func(*corev1.Service)) *corev1.Service {
	s := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web", Namespace: "shop", Annotations: map[string]string{"service.cilium.io/global": "true"}, Labels: map[string]string{"l": "1"}},
		Spec: corev1.ServiceSpec{
			ClusterIP: "10.96.0.9", ClusterIPs: []string{"10.96.0.9"}, Selector: map[string]string{"app": "web"},
			Ports: []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}
	if change != nil {
		change(s)
	}
	return s
}

func sliceObject() *discoveryv1.EndpointSlice {
	return &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Namespace: "shop", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr("http"), Port: ptr(int32(8080)), Protocol: ptr(corev1.ProtocolTCP)}},
		Endpoints: []discoveryv1.Endpoint{
			{Addresses: []string{"10.1.0.1"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(true)}, Hostname: ptr("web-0"), Zone: ptr("z1")},
			{Addresses: []string{"10.1.0.2"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(true), Terminating: ptr(true)}},
			{Addresses: []string{"10.1.0.3"}, Conditions: discoveryv1.EndpointConditions{Ready: ptr(false), Serving: ptr(false)}},
		},
	}
}

// TestService: which services are shared, and what is exported of them.
func TestService(t *testing.T) {
	cfg := Config{ClusterName: "c1", ClusterID: 3, GlobalNamespaces: true}
	const whole = `{"cluster":"c1","namespace":"shop","name":"web","frontends":{"10.96.0.9":{"http":{"Protocol":"TCP","Port":80}}},` +
		`"backends":{"10.1.0.1":{"http":{"Protocol":"TCP","Port":8080}},"10.1.0.2":{"http":{"Protocol":"TCP","Port":8080}}},` +
		`"hostnames":{"10.1.0.1":"web-0"},"zones":{"10.1.0.1":{"zone":"z1","forZones":null}},"labels":{"l":"1"},"selector":{"app":"web"},` +
		`"includeExternal":true,"shared":true,"clusterID":3}`
	for _, tt := range []struct {
		name      string
		change    func(*corev1.Service)
		namespace map[string]string
		want      string
	}{
		{"global", nil, nil, whole},
		{"headless", func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "None", []string{"None"} }, nil,
			strings.Replace(whole, `{"10.96.0.9":{"http":{"Protocol":"TCP","Port":80}}}`, "{}", 1)},
		{"not global", func(s *corev1.Service) { s.Annotations = nil }, nil, ""},
		{"not shared", func(s *corev1.Service) { s.Annotations["service.cilium.io/shared"] = "false" }, nil, ""},
		{"of another name", func(s *corev1.Service) { s.Spec.Type = corev1.ServiceTypeExternalName }, nil, ""},
		{"in a namespace on its own", nil, map[string]string{"clustermesh.cilium.io/global": "false"}, ""},
		{"in a global namespace", nil, map[string]string{"clustermesh.cilium.io/global": "true"}, whole},
	} {
		got, err := cfg.service(serviceObject(tt.change), []discoveryv1.EndpointSlice{*sliceObject()}, cfg.globalNamespace(tt.namespace))
		if err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if diff := gocmp.Diff(tt.want, got.values["shop/web"]); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
		if tt.want != "" {
			if _, err := service.ParseShared("c1/shop/web", []byte(got.values["shop/web"])); err != nil {
				t.Errorf("%s: its readers: %v", tt.name, err)
			}
		}
	}
	cfg.GlobalNamespaces = false
	if cfg.globalNamespace(nil) || !cfg.globalNamespace(map[string]string{"clustermesh.cilium.io/global": "true"}) {
		t.Error("--clustermesh-default-global-namespace=false")
	}
}

// harness is an API server, a store, and an operator's part that comes and goes.
type harness struct {
	*testing.T
	*controllers.Env
	store   *kvstore.Memory
	read    kvstore.Backend
	metrics *prometheus.Registry // of the operator that runs
}

func newHarness(t *testing.T) *harness {
	r := &harness{T: t, Env: controllers.Start(t), store: kvstore.NewMemory()}
	r.read = r.store.Client()
	t.Cleanup(func() { _ = r.read.Close() })
	return r
}

func (r *harness) run(cfg Config) (stop func()) {
	backend := r.store.Client()
	r.metrics = prometheus.NewRegistry()
	end := r.Env.Run(r.T, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		return Setup(m, cfg, backend, r.metrics, log)
	})
	done := false
	stop = func() {
		if !done {
			done = true
			end()
			_ = backend.Close()
		}
	}
	r.Cleanup(stop)
	return stop
}

// measured returns the metrics of exports, by the end of their names and the kind.
func measured(t *testing.T, from prometheus.Gatherer) map[string]float64 {
	t.Helper()
	families, err := from.Gather()
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			out[strings.TrimPrefix(f.GetName(), "cilium_operator_clustermesh_export_")+" "+m.GetLabel()[0].GetValue()] = m.GetGauge().GetValue()
		}
	}
	return out
}

// keys are those under a prefix, with their values.
func (r *harness) keys(prefix string) map[string]string {
	r.Helper()
	l, err := r.read.List(r.Context(), prefix)
	if err != nil {
		r.Fatal(err)
	}
	out := map[string]string{}
	for _, kv := range l.Pairs {
		if lease := kv.Lease != ""; lease == strings.HasPrefix(kv.Key, identitiesOf) {
			r.Errorf("key %s: lease %q", kv.Key, kv.Lease)
		}
		out[strings.TrimPrefix(kv.Key, prefix)] = string(kv.Value)
	}
	return out
}

// wants waits until exactly these keys are under a prefix, and each value contains what is given.
func (r *harness) wants(prefix string, want map[string]string) {
	r.Helper()
	controllers.Eventually(r.T, 2*time.Minute, func() string {
		have := r.keys(prefix)
		for k, v := range have {
			if part, ok := want[k]; !ok || !strings.Contains(v, part) {
				return fmt.Sprintf("%s has %s = %s; want %v", prefix, k, v, want)
			}
		}
		if len(have) != len(want) {
			return fmt.Sprintf("%s has %v; want %v", prefix, have, want)
		}
		return ""
	})
}

func (r *harness) update(o client.Object, change func()) {
	r.Helper()
	if err := r.Client.Get(r.Context(), client.ObjectKeyFromObject(o), o); err != nil {
		r.Fatal(err)
	}
	change()
	if err := r.Client.Update(r.Context(), o); err != nil {
		r.Fatal(err)
	}
}

func (r *harness) remove(o client.Object) {
	r.Helper()
	if err := r.Client.Delete(r.Context(), o, client.GracePeriodSeconds(0)); err != nil {
		r.Fatal(err)
	}
}

const (
	servicesOf   = "cilium/state/services/v1/c1/"
	nodesOf      = "cilium/state/nodes/v1/c1/"
	identitiesOf = "cilium/state/identities/v1/id/"
	addressesOf  = "cilium/state/ip/v1/default/"
	syncedOf     = "cilium/synced/c1/cilium/state/"
)

// TestServices: services come into the store, change, and go, by themselves, their endpoints and
// their namespace.
func TestServices(t *testing.T) {
	r := newHarness(t)
	r.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	for key, value := range map[string]string{"c1/gone/web": "{}", "c2/shop/web": "another cluster's"} { // left over, and not ours
		if err := kvstore.Put(t.Context(), r.read, "cilium/state/services/v1/"+key, []byte(value), kvstore.Leased); err != nil {
			t.Fatal(err)
		}
	}
	cfg := Defaults()
	cfg.ClusterName, cfg.ClusterID = "c1", 3
	stop := r.run(cfg)
	r.wants(syncedOf, map[string]string{"services/v1": "T"})
	r.wants(servicesOf, nil)
	svc := serviceObject(func(s *corev1.Service) { s.Spec.ClusterIP, s.Spec.ClusterIPs = "", nil; s.Annotations = nil })
	r.Create(t, svc)
	sl := sliceObject()
	r.Create(t, sl)
	r.update(svc, func() { svc.Annotations = map[string]string{"io.cilium/global-service": "true"} })
	r.wants(servicesOf, map[string]string{"shop/web": `"10.1.0.2":{"http"`})
	r.update(sl, func() { sl.Endpoints = sl.Endpoints[:1] })
	r.wants(servicesOf, map[string]string{"shop/web": `"backends":{"10.1.0.1":{"http":{"Protocol":"TCP","Port":8080}}}`})
	// A client deletes the key.
	if err := kvstore.Delete(t.Context(), r.read, servicesOf+"shop/web"); err != nil {
		t.Fatal(err)
	}
	r.wants(servicesOf, map[string]string{"shop/web": `"10.1.0.1"`})
	ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}
	r.update(ns, func() { ns.Annotations = map[string]string{"clustermesh.cilium.io/global": "false"} })
	r.wants(servicesOf, nil)
	r.update(ns, func() { ns.Annotations = nil })
	r.wants(servicesOf, map[string]string{"shop/web": ""})
	r.update(svc, func() { svc.Annotations["service.cilium.io/shared"] = "false" })
	r.wants(servicesOf, nil)
	r.update(svc, func() { delete(svc.Annotations, "service.cilium.io/shared") })
	r.wants(servicesOf, map[string]string{"shop/web": ""})
	// A service goes while no operator runs.
	stop()
	r.remove(svc)
	r.run(cfg)
	r.wants(servicesOf, nil)
	if got := r.keys("cilium/state/services/v1/"); len(got) != 1 || got["c2/shop/web"] == "" {
		t.Errorf("%v", got)
	}
}

// TestObjects: nodes, identities and addresses of a cluster that keeps its state as objects reach
// other clusters, "KVStore compatibility" of CFP-27752.
func TestObjects(t *testing.T) {
	r := newHarness(t)
	r.Create(t, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}})
	n := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "n1"}}
	n.Spec.Addresses = []v2.NodeAddress{{Type: "InternalIP", IP: "192.0.2.1"}}
	n.Spec.IPAM.PodCIDRs = []string{"10.1.0.0/24"}
	r.Create(t, n)
	id := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "196613"}, SecurityLabels: map[string]string{
		"k8s:app": "web", "k8s:io.cilium.k8s.policy.cluster": "c1",
	}}
	r.Create(t, id)
	networking := &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.1.0.5", IPv6: "fd00:1::5"}}}
	ep := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "web-1", Namespace: "shop"}, Status: v2.EndpointStatus{
		Identity: &v2.EndpointIdentity{ID: 196613}, Networking: networking, NamedPorts: []v2.NamedPort{{Name: "http", Port: 8080, Protocol: "TCP"}},
	}}
	r.Create(t, ep)
	r.Create(t, &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Name: "early", Namespace: "shop"}, Status: v2.EndpointStatus{
		Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.1.0.6"}}},
	}})
	put := func(key, value string, l kvstore.Lifetime) {
		if err := kvstore.Put(t.Context(), r.read, key, []byte(value), l); err != nil {
			t.Fatal(err)
		}
	}
	put(nodesOf+"gone", "{}", kvstore.Leased)
	put(identitiesOf+"196999", "k8s:app=gone;", kvstore.Permanent)
	put(identitiesOf+"65999", "k8s:app=web;k8s:io.cilium.k8s.policy.cluster=c9;", kvstore.Permanent) // another cluster's ID
	put(addressesOf+"10.1.0.77", `{"IP":"10.1.0.77","HostIP":"192.0.2.1","ID":196999}`, kvstore.Leased)
	const elsewhere = `{"IP":"10.9.0.1","HostIP":"192.0.2.9","ID":65999}`
	put(addressesOf+"10.9.0.1", elsewhere, kvstore.Leased)
	agents, err := node.Node{Name: "n2", Cluster: "c1", ClusterID: 3, Source: "local"}.MarshalJSON()
	if err != nil {
		t.Fatal(err)
	}
	put(nodesOf+"n2", string(agents), kvstore.Leased) // an agent writes its own

	cfg := Defaults()
	cfg.ClusterName, cfg.ClusterID, cfg.Objects = "c1", 3, true
	began := time.Now()
	r.run(cfg)
	nodes := map[string]string{"n1": `"IPv4AllocCIDR":{"IP":"10.1.0.0"`, "n2": `"Source":"local"`}
	r.wants(nodesOf, nodes)
	const foreign = "k8s:app=web;k8s:io.cilium.k8s.policy.cluster=c9;"
	r.wants(identitiesOf, map[string]string{"196613": "k8s:app=web;k8s:io.cilium.k8s.policy.cluster=c1;", "65999": foreign})
	pairs := map[string]string{"10.1.0.5": `"ID":196613`, "fd00:1::5": `"HostIP":"192.0.2.1"`, "10.9.0.1": elsewhere}
	r.wants(addressesOf, pairs)
	r.wants(syncedOf, map[string]string{"services/v1": "", "nodes/v1": "", "identities/v1": "", "ip/v1": ""})
	controllers.Eventually(t, 2*time.Minute, func() string {
		got := measured(t, r.metrics)
		for _, kind := range []string{"services", "nodes", "identities", "addresses"} {
			if pending, ok := got["pending_keys "+kind]; !ok || pending != 0 || got["complete_timestamp_seconds "+kind] < float64(began.Unix()) {
				return fmt.Sprintf("the metrics of exports are %v; it began at %d", got, began.Unix())
			}
		}
		return ""
	})
	for key, value := range r.keys(addressesOf) {
		if _, err := ipcache.ParsePair(key, []byte(value)); err != nil {
			t.Errorf("its readers: %v", err)
		}
	}
	for key, value := range r.keys(nodesOf) {
		if _, err := node.Parse("c1/"+key, []byte(value), 255); err != nil {
			t.Errorf("its readers: %v", err)
		}
	}
	// The same pod in a slice, and then only there.
	ces := &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "ces-1"}, Namespace: "shop", Endpoints: []v2alpha1.CoreCiliumEndpoint{
		{Name: "web-1", IdentityID: 196613, Networking: networking},
		{Name: "web-2", IdentityID: 196613, Networking: &v2.EndpointNetworking{NodeIP: "192.0.2.1", Addressing: []*v2.AddressPair{{IPv4: "10.1.0.8"}}}},
		{Name: "bad", IdentityID: 196613, Networking: &v2.EndpointNetworking{NodeIP: "nowhere", Addressing: []*v2.AddressPair{{IPv4: "10.1.0.9"}}}},
	}}
	r.Create(t, ces)
	more := maps.Clone(pairs)
	more["10.1.0.8"] = `"K8sPodName":"web-2"`
	r.wants(addressesOf, more)
	r.remove(ep)
	r.wants(addressesOf, more)
	r.update(ces, func() { ces.Endpoints = ces.Endpoints[1:2] })
	r.wants(addressesOf, map[string]string{"10.1.0.8": `"K8sPodName":"web-2"`, "10.9.0.1": elsewhere})
	r.remove(n)
	delete(nodes, "n1")
	r.wants(nodesOf, nodes)
	r.remove(id)
	r.wants(identitiesOf, map[string]string{"65999": foreign})
}

// TestQuarantinedIdentity: the ID of a collected identity means nothing to other clusters.
func TestQuarantinedIdentity(t *testing.T) {
	t.Parallel()
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "300"}, SecurityLabels: map[string]string{"k8s:app": "web"}}
	got, err := Config{}.identity(o, kvstore.LayoutEtcd, "")
	if err != nil || got.values["300"] != "k8s:app=web;" {
		t.Errorf("an identity: %v, %v", got.values, err)
	}
	k8sids.Quarantine(o, "k8s:app=web;", time.Unix(0, 0))
	if got, err := (Config{}).identity(o, kvstore.LayoutEtcd, ""); err != nil || len(got.values) != 0 {
		t.Errorf("one in quarantine: %v, %v", got.values, err)
	}
}

// TestEditedIdentity: a client edits an identity. Agents of this cluster go by what it was given,
// so other clusters do, too, also when the operator starts; and edits of identities that were never
// announced are not announced either.
func TestEditedIdentity(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	identity := func(id allocator.ID, app string) *v2.CiliumIdentity {
		return k8sids.NewObject(id, map[string]string{"k8s:app": app, "k8s:io.cilium.k8s.policy.cluster": "c1"})
	}
	text := func(app string) string { return "k8s:app=" + app + ";k8s:io.cilium.k8s.policy.cluster=c1;" }
	web := identity(196613, "web")
	r.Create(t, web)
	cfg := Defaults()
	cfg.ClusterName, cfg.ClusterID, cfg.Objects = "c1", 3, true
	stop := r.run(cfg)
	want := map[string]string{"196613": text("web")}
	r.wants(identitiesOf, want)
	edit := func(app string) {
		t.Helper()
		r.update(web, func() { web.SecurityLabels["k8s:app"] = app })
	}
	edit("evil")
	r.Create(t, identity(196614, "later"))
	want["196614"] = text("later")
	r.wants(identitiesOf, want)
	stop()
	early := identity(196615, "early")
	early.SecurityLabels["k8s:app"] = "worse"
	r.Create(t, early)
	r.Create(t, identity(196616, "last"))
	want["196616"] = text("last")
	r.run(cfg)
	r.wants(identitiesOf, want)
	r.update(early, func() { early.SecurityLabels["k8s:app"] = "early" })
	want["196615"] = text("early")
	edit("web")
	r.wants(identitiesOf, want)
	r.remove(web)
	delete(want, "196613")
	r.wants(identitiesOf, want)
}
