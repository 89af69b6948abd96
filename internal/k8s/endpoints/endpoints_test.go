package endpoints_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/k8s"
	"github.com/hawser-net/hawser/internal/k8s/endpoints"
	"github.com/hawser-net/hawser/internal/labels"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

const (
	ownHost   = "192.0.2.1"
	otherHost = "192.0.2.2"
)

// harness is an API server with an Endpoints on it.
type harness struct {
	t      *testing.T
	server *kubeapi.Server
	client *k8s.Client
	v2     rest.Interface
	alpha  rest.Interface
}

func newHarness(t *testing.T) *harness {
	t.Helper()
	r := &harness{t: t, server: kubeapi.Start(t)}
	r.server.DefineResources()
	var err error
	if r.client, err = k8s.New(r.server.Config); err != nil {
		t.Fatal(err)
	}
	if r.v2, err = r.client.For(v2.SchemeGroupVersion(), v2.AddToScheme); err != nil {
		t.Fatal(err)
	}
	if r.alpha, err = r.client.For(v2alpha1.SchemeGroupVersion(), v2alpha1.AddToScheme); err != nil {
		t.Fatal(err)
	}
	return r
}

// start runs Endpoints until the test ends, or until stop is called.
func (r *harness) start(slices bool, locals ...endpoints.Local) (e *endpoints.Endpoints, cache *ipcache.Cache, stop func()) {
	r.t.Helper()
	cache = ipcache.New()
	e, err := endpoints.New(endpoints.Config{
		Hosts: []netip.Addr{netip.MustParseAddr(ownHost)}, Slices: slices, Interval: 300 * time.Millisecond, Log: slog.New(slog.DiscardHandler),
		Accept: func(id identity.ID) error {
			if id < 256 {
				return errors.New("no pod has that identity")
			}
			return nil
		},
	}, r.client, cache)
	if err != nil {
		r.t.Fatal(err)
	}
	for _, l := range locals {
		e.Set(l)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- e.Run(ctx) }()
	stopped := false
	stop = func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			r.t.Errorf("Run: %v", err)
		}
	}
	r.t.Cleanup(stop)
	if err := e.WaitSynced(r.t.Context()); err != nil {
		r.t.Fatal(err)
	}
	return e, cache, stop
}

func (r *harness) namespace(name string) {
	r.t.Helper()
	if _, err := r.client.Kube.CoreV1().Namespaces().Create(r.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
		r.t.Fatal(err)
	}
}

func (r *harness) pod(namespace, name string) *corev1.Pod {
	r.t.Helper()
	pod, err := r.client.Kube.CoreV1().Pods(namespace).Create(r.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: "n1", Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	if err != nil {
		r.t.Fatal(err)
	}
	return pod
}

func local(pod *corev1.Pod, number uint16, id identity.ID) endpoints.Local {
	set := labels.NewSet(labels.New(labels.SourceK8s, "app", pod.Name), labels.New(labels.SourceK8s, labels.KeyNamespace, pod.Namespace),
		labels.New(labels.SourceK8s, labels.KeyServiceAccount, "robot"))
	return endpoints.Local{
		Number: number, Attachment: "c0ffee:eth0", Namespace: pod.Namespace, Pod: pod.Name, UID: string(pod.UID),
		IPv4: netip.MustParseAddr(fmt.Sprintf("10.0.1.%d", number)), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:1::%x", number)),
		Identity: id, IdentityLabels: set, Labels: set, State: "regenerating", NamedPorts: []ipcache.NamedPort{{Name: "web", Port: 80, Protocol: "TCP"}},
	}
}

func (r *harness) get(namespace, name string) (*v2.CiliumEndpoint, error) {
	o := &v2.CiliumEndpoint{}
	return o, r.v2.Get().Namespace(namespace).Resource(v2.ResourceEndpoints).Name(name).Do(context.Background()).Into(o)
}

func (r *harness) create(o *v2.CiliumEndpoint) *v2.CiliumEndpoint {
	r.t.Helper()
	made := &v2.CiliumEndpoint{}
	if err := r.v2.Post().Namespace(o.Namespace).Resource(v2.ResourceEndpoints).Body(o).Do(r.t.Context()).Into(made); err != nil {
		r.t.Fatal(err)
	}
	return made
}

func (r *harness) delete(namespace, name string) {
	r.t.Helper()
	if err := r.v2.Delete().Namespace(namespace).Resource(v2.ResourceEndpoints).Name(name).Do(r.t.Context()).Error(); err != nil {
		r.t.Fatal(err)
	}
}

// object is a CiliumEndpoint as some node writes it.
func object(namespace, name, host, ip string, id int64) *v2.CiliumEndpoint {
	return &v2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name},
		Status: v2.EndpointStatus{
			State: v2.EndpointReady, Identity: &v2.EndpointIdentity{ID: id},
			Networking: &v2.EndpointNetworking{NodeIP: host, Addressing: []*v2.AddressPair{{IPv4: ip}}},
		},
	}
}

// eventually waits until wrong returns "".
func (r *harness) eventually(wrong func() string) {
	r.t.Helper()
	testenv.Eventually(r.t, time.Minute, wrong)
}

func TestOwn(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	web := r.pod("team", "web")
	// Of before: one that is still wanted, one that is not, and one of another node.
	kept := r.pod("team", "kept")
	r.create(object("team", "kept", ownHost, "10.0.1.9", 300))
	r.create(object("team", "left", ownHost, "10.0.1.10", 300))
	r.create(object("team", "foreign", otherHost, "10.0.2.10", 300))
	keptLocal := local(kept, 9, 700)
	e, _, _ := r.start(false, keptLocal)

	e.Set(local(web, 7, 500))
	block := false
	want := &v2.CiliumEndpoint{
		ObjectMeta: metav1.ObjectMeta{
			Labels:          map[string]string{"app": "web"},
			OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "Pod", Name: "web", UID: web.UID, BlockOwnerDeletion: &block}},
		},
		Status: v2.EndpointStatus{
			ID: 7, ExternalIdentifiers: &v2.EndpointIdentifiers{CNIAttachmentID: "c0ffee:eth0"}, State: v2.EndpointReady, ServiceAccount: "robot",
			Identity:   &v2.EndpointIdentity{ID: 500, Labels: []string{"k8s:app=web", "k8s:io.cilium.k8s.policy.serviceaccount=robot", "k8s:io.kubernetes.pod.namespace=team"}},
			Networking: &v2.EndpointNetworking{NodeIP: ownHost, Addressing: []*v2.AddressPair{{IPv4: "10.0.1.7", IPv6: "fd00:1::7"}}},
			NamedPorts: []v2.NamedPort{{Name: "web", Port: 80, Protocol: "TCP"}},
		},
	}
	matches := func() string {
		got, err := r.get("team", "web")
		if err != nil {
			return err.Error()
		}
		return cmp.Diff(want, &v2.CiliumEndpoint{
			ObjectMeta: metav1.ObjectMeta{Labels: got.Labels, OwnerReferences: got.OwnerReferences}, Status: got.Status,
		})
	}
	r.eventually(matches)

	// Another identity: a patch of the same object.
	first, _ := r.get("team", "web")
	e.Set(local(web, 7, 501))
	want.Status.Identity.ID = 501
	r.eventually(matches)
	if now, _ := r.get("team", "web"); now.UID != first.UID {
		t.Error("the object was made anew for a change")
	}

	// What others do to it is undone.
	r.delete("team", "web")
	r.eventually(matches)
	err := r.v2.Patch(types.MergePatchType).Namespace("team").Resource(v2.ResourceEndpoints).Name("web").
		Body([]byte(`{"status":{"identity":{"id":1},"health":{"bpf":"OK"}}}`)).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	r.eventually(matches)

	// The objects of before. One without an owner is of no pod that is known: it makes room.
	r.eventually(func() string {
		got, err := r.get("team", "kept")
		if err != nil {
			return err.Error()
		}
		if len(got.OwnerReferences) != 1 || got.OwnerReferences[0].UID != kept.UID || got.Status.Identity.ID != 700 {
			return fmt.Sprintf("the object of before is not taken over: %+v", got)
		}
		return ""
	})
	r.eventually(func() string {
		if _, err := r.get("team", "left"); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the unwanted object is there: %v", err)
		}
		return ""
	})
	if _, err := r.get("team", "foreign"); err != nil {
		t.Errorf("the object of another node: %v", err)
	}

	// The pod is replaced by another of its name.
	if err := r.client.Kube.CoreV1().Pods("team").Delete(t.Context(), "web", *metav1.NewDeleteOptions(0)); err != nil {
		t.Fatal(err)
	}
	web = r.pod("team", "web")
	e.Set(local(web, 8, 501))
	want.OwnerReferences[0].UID, want.Status.ID = web.UID, 8
	want.Status.Networking.Addressing[0] = &v2.AddressPair{IPv4: "10.0.1.8", IPv6: "fd00:1::8"}
	r.eventually(matches)
	e.Remove(local(web, 7, 501)) // the endpoint of the pod before goes late
	r.eventually(matches)
	// The server is away for a while.
	r.server.Stop()
	e.Set(local(web, 8, 502))
	want.Status.Identity.ID = 502
	time.Sleep(500 * time.Millisecond)
	r.server.Start()
	r.eventually(matches)
	e.Remove(local(web, 8, 502))
	r.eventually(func() string {
		if _, err := r.get("team", "web"); !apierrors.IsNotFound(err) {
			return fmt.Sprintf("the object of a removed endpoint is there: %v", err)
		}
		return ""
	})
}

// describe returns what the cache has for an address: identity, host and pod, or "none".
func describe(cache *ipcache.Cache, ip string) string {
	e, ok := cache.Table().Get(ipcache.Single(netip.MustParseAddr(ip)))
	if !ok {
		return "none"
	}
	ns, pod := e.Pod()
	return fmt.Sprintf("%d on %s: %s/%s", e.Identity, e.Host(), ns, pod)
}

func (r *harness) believes(cache *ipcache.Cache, ip, want string) {
	r.t.Helper()
	r.eventually(func() string {
		if got := describe(cache, ip); got != want {
			return fmt.Sprintf("%s is %s, want %s", ip, got, want)
		}
		return ""
	})
}

// TestOthers has the address cache follow the objects of other nodes, "Pod creation process" of
// CFP-27752, and believe none that cannot be.
func TestOthers(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("team")
	r.create(object("team", "a", otherHost, "10.0.2.1", 300))
	_, cache, stop := r.start(false)
	if got := describe(cache, "10.0.2.1"); got != "300 on 192.0.2.2: team/a" {
		t.Errorf("after the first list: %s", got)
	}
	// A second object claims the address: the one observed last counts, and when it goes the other
	// does.
	r.create(object("team", "b", "192.0.2.3", "10.0.2.1", 301))
	r.believes(cache, "10.0.2.1", "301 on 192.0.2.3: team/b")
	r.delete("team", "b")
	r.believes(cache, "10.0.2.1", "300 on 192.0.2.2: team/a")
	// Another address.
	err := r.v2.Patch(types.MergePatchType).Namespace("team").Resource(v2.ResourceEndpoints).Name("a").
		Body([]byte(`{"status":{"networking":{"addressing":[{"ipv4":"10.0.2.2","ipv6":"fd00:2::2"}]}}}`)).Do(t.Context()).Error()
	if err != nil {
		t.Fatal(err)
	}
	r.believes(cache, "10.0.2.2", "300 on 192.0.2.2: team/a")
	r.believes(cache, "fd00:2::2", "300 on 192.0.2.2: team/a")
	r.believes(cache, "10.0.2.1", "none")
	// What is invalid, or would make a pod a host.
	for name, o := range map[string]*v2.CiliumEndpoint{
		"host":     object("team", "host", otherHost, "10.0.2.20", 1),
		"loopback": object("team", "loopback", otherHost, "127.0.0.1", 300),
		"node":     object("team", "node", "nowhere", "10.0.2.21", 300),
		"number":   object("team", "number", otherHost, "10.0.2.22", -5),
		"own":      object("team", "own", ownHost, "10.0.1.22", 300),
	} {
		o.Name = name
		r.create(o)
	}
	r.create(object("team", "last", otherHost, "10.0.2.30", 300))
	r.believes(cache, "10.0.2.30", "300 on 192.0.2.2: team/last")
	for _, ip := range []string{"10.0.2.20", "127.0.0.1", "10.0.2.21", "10.0.2.22", "10.0.1.22"} {
		if got := describe(cache, ip); got != "none" {
			t.Errorf("%s was believed to be %s", ip, got)
		}
	}
	// The server goes and comes back, with one object less.
	r.server.Stop()
	time.Sleep(200 * time.Millisecond)
	if got := describe(cache, "10.0.2.2"); !strings.HasPrefix(got, "300") {
		t.Errorf("without the server, 10.0.2.2 is %s", got)
	}
	r.server.Start()
	r.delete("team", "a")
	r.believes(cache, "10.0.2.2", "none")
	stop()
}

func TestSlices(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	slice := func(name string, pods ...string) *v2alpha1.CiliumEndpointSlice {
		s := &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Namespace: "team", Endpoints: []v2alpha1.CoreCiliumEndpoint{}}
		for _, pod := range pods {
			s.Endpoints = append(s.Endpoints, v2alpha1.CoreCiliumEndpoint{
				Name: pod, IdentityID: 300,
				Networking: &v2.EndpointNetworking{NodeIP: otherHost, Addressing: []*v2.AddressPair{{IPv4: fmt.Sprintf("10.0.2.%d", pod[0])}}},
			})
		}
		return s
	}
	put := func(s *v2alpha1.CiliumEndpointSlice, exists bool) {
		t.Helper()
		var err error
		if exists {
			now := &v2alpha1.CiliumEndpointSlice{}
			if err := r.alpha.Get().Resource(v2alpha1.ResourceEndpointSlices).Name(s.Name).Do(t.Context()).Into(now); err != nil {
				t.Fatal(err)
			}
			s.ResourceVersion = now.ResourceVersion
			err = r.alpha.Put().Resource(v2alpha1.ResourceEndpointSlices).Name(s.Name).Body(s).Do(t.Context()).Error()
		} else {
			err = r.alpha.Post().Resource(v2alpha1.ResourceEndpointSlices).Body(s).Do(t.Context()).Error()
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put(slice("ces-1", "a", "b"), false)
	_, cache, _ := r.start(true)
	at := func(pod string) string { return fmt.Sprintf("10.0.2.%d", pod[0]) }
	if got := describe(cache, at("b")); got != "300 on 192.0.2.2: team/b" {
		t.Errorf("after the first list b is %s", got)
	}
	// b moves to another slice, and is known all the time.
	put(slice("ces-2", "b", "c"), false)
	r.believes(cache, at("c"), "300 on 192.0.2.2: team/c")
	put(slice("ces-1", "a", "d"), true)
	r.believes(cache, at("d"), "300 on 192.0.2.2: team/d")
	if got := describe(cache, at("b")); got != "300 on 192.0.2.2: team/b" {
		t.Errorf("after its move b is %s", got)
	}
	if err := r.alpha.Delete().Resource(v2alpha1.ResourceEndpointSlices).Name("ces-2").Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	r.believes(cache, at("b"), "none")
	r.believes(cache, at("c"), "none")
	r.believes(cache, at("a"), "300 on 192.0.2.2: team/a")
}

// TestSliceWrittenForAnother: an address was given to another pod while a slice still names the
// last one that had it. That slice is written for pods that come and go, which is no update of
// the address.
func TestSliceWrittenForAnother(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	entry := func(pod, uid, ip string, id int64) v2alpha1.CoreCiliumEndpoint {
		return v2alpha1.CoreCiliumEndpoint{
			Name: pod, PodUID: uid, IdentityID: id, Networking: &v2.EndpointNetworking{NodeIP: otherHost, Addressing: []*v2.AddressPair{{IPv4: ip}}},
		}
	}
	made := map[string]*v2alpha1.CiliumEndpointSlice{}
	put := func(name string, entries ...v2alpha1.CoreCiliumEndpoint) {
		t.Helper()
		s := &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: name}, Namespace: "team", Endpoints: entries}
		now := &v2alpha1.CiliumEndpointSlice{}
		req := r.alpha.Post()
		if old := made[name]; old != nil {
			s.ResourceVersion = old.ResourceVersion
			req = r.alpha.Put().Name(name)
		}
		if err := req.Resource(v2alpha1.ResourceEndpointSlices).Body(s).Do(t.Context()).Into(now); err != nil {
			t.Fatal(err)
		}
		made[name] = now
	}
	const contested = "10.0.2.1"
	last, next := entry("last", "u1", contested, 300), entry("next", "u2", contested, 301)
	_, cache, _ := r.start(true)
	put("ces-1", last)
	r.believes(cache, contested, "300 on 192.0.2.2: team/last")
	put("ces-2", next)
	r.believes(cache, contested, "301 on 192.0.2.2: team/next")
	for n := range 3 {
		ip := fmt.Sprintf("10.0.2.%d", 10+n)
		put("ces-1", last, entry("third", "u3", ip, 302))
		r.believes(cache, ip, "302 on 192.0.2.2: team/third")
		if got := describe(cache, contested); got != "301 on 192.0.2.2: team/next" {
			t.Fatalf("after the slice of the last pod was written for another one, %s is %s", contested, got)
		}
	}
	// A pod of the last one's name has the address again: it is another pod.
	put("ces-1", entry("last", "u4", contested, 300))
	r.believes(cache, contested, "300 on 192.0.2.2: team/last")
	put("ces-1", entry("other", "u5", "10.0.2.20", 302))
	r.believes(cache, contested, "301 on 192.0.2.2: team/next")
	// The list of a server that comes back is no update either.
	put("ces-1", last)
	r.believes(cache, contested, "300 on 192.0.2.2: team/last")
	put("ces-2", next, entry("fourth", "u6", "10.0.2.30", 303))
	r.believes(cache, "10.0.2.30", "303 on 192.0.2.2: team/fourth")
	r.server.Stop()
	r.server.Start()
	put("ces-2", next, entry("fourth", "u6", "10.0.2.31", 303))
	r.believes(cache, "10.0.2.31", "303 on 192.0.2.2: team/fourth")
	if got := describe(cache, contested); got != "300 on 192.0.2.2: team/last" {
		t.Errorf("after a list, %s is %s", contested, got)
	}
}

func TestMain(m *testing.M) { testenv.VerifyTestMain(m) }

// watched is a transport that notes which field selectors CiliumEndpoints are watched with.
type watched struct {
	next      http.RoundTripper
	mu        sync.Mutex
	selectors []string
}

// RoundTrip implements http.RoundTripper.
func (w *watched) RoundTrip(req *http.Request) (*http.Response, error) {
	if q := req.URL.Query(); q.Get("watch") == "true" && strings.HasSuffix(req.URL.Path, "/ciliumendpoints") {
		w.mu.Lock()
		w.selectors = append(w.selectors, q.Get("fieldSelector"))
		w.mu.Unlock()
	}
	return w.next.RoundTrip(req)
}

// last returns the last one.
func (w *watched) last() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.selectors) == 0 {
		return "none"
	}
	return w.selectors[len(w.selectors)-1]
}

// TestOwnOnly has an agent that reads slices observe its own CiliumEndpoints only, where their
// definition allows that, and do its work in any case.
func TestOwnOnly(t *testing.T) {
	t.Parallel()
	r := newHarness(t)
	r.namespace("ns")
	seen := &watched{}
	rc := rest.CopyConfig(r.server.Config)
	rc.Wrap(func(next http.RoundTripper) http.RoundTripper { seen.next = next; return seen })
	var err error
	if r.client, err = k8s.New(rc); err != nil {
		t.Fatal(err)
	}
	made := func(name, host string) {
		t.Helper()
		o := &v2.CiliumEndpoint{
			ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: name},
			Status:     v2.EndpointStatus{Networking: &v2.EndpointNetworking{NodeIP: host, Addressing: []*v2.AddressPair{{IPv4: "10.0.0.9"}}}},
		}
		if err := r.v2.Post().Namespace("ns").Resource("ciliumendpoints").Body(o).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
	}
	there := func(name string) bool {
		return !apierrors.IsNotFound(r.v2.Get().Namespace("ns").Resource("ciliumendpoints").Name(name).Do(t.Context()).Error())
	}
	// Left over from before, one here and one elsewhere.
	works := func(name, selector string) {
		t.Helper()
		made(name+"-own", ownHost)
		made(name+"-other", otherHost)
		pod := r.pod("ns", name)
		_, _, stop := r.start(true, endpoints.Local{
			Number: 7, Attachment: "c:eth0", Namespace: "ns", Pod: name, UID: string(pod.UID), IPv4: netip.MustParseAddr("10.0.0.7"), Identity: 300, State: "ready",
		})
		defer stop()
		for end := time.Now().Add(30 * time.Second); there(name+"-own") || !there(name); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(end) {
				t.Fatalf("%s: own object left over: %t, object of the pod: %t", name, there(name+"-own"), there(name))
			}
		}
		if !there(name + "-other") {
			t.Errorf("%s: another node's object is gone", name)
		}
		if got := seen.last(); got != selector {
			t.Errorf("%s: CiliumEndpoints are watched with %q, want %q", name, got, selector)
		}
	}
	works("new", "status.networking.node="+ownHost)

	// A definition of others.
	crd := r.client.Urgent.Discovery().RESTClient().Patch(types.JSONPatchType).
		AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/ciliumendpoints.cilium.io").
		Body([]byte(`[{"op":"remove","path":"/spec/versions/0/selectableFields"}]`))
	if err := crd.Do(t.Context()).Error(); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		err := r.v2.Get().Resource("ciliumendpoints").Param("fieldSelector", "status.networking.node="+ownHost).Do(t.Context()).Error()
		if apierrors.IsBadRequest(err) {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the server goes on to select: %v", err)
		}
	}
	works("old", "")
}
