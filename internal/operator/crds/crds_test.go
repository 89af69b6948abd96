package crds_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/version"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	definitions "github.com/hawser-net/hawser/api/crds"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/crds"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

func TestMain(m *testing.M) { kubeapi.VerifyTestMain(m) }

func TestCheckServer(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ version, want string }{
		{"v1.36.3", ""}, {"v1.25.0", ""}, {"v1.30.1+k3s1", ""}, {"v1.29.3-eks-adc7111", ""},
		{"v1.24.17", "at least 1.25 is needed"}, {"v1.9.0", "x-kubernetes-validations"}, {"", "cannot be read"}, {"next", "cannot be read"},
	} {
		err := crds.CheckServer(&version.Info{GitVersion: tt.version})
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%q: %v; want %q", tt.version, err, tt.want)
		}
	}
}

func TestDefinitions(t *testing.T) {
	env := controllers.Start(t) // registers all
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	log := slog.New(slog.DiscardHandler)
	defs, err := definitions.All()
	if err != nil {
		t.Fatal(err)
	}
	name := "ciliumidentities.cilium.io"
	get := func() *apiextensionsv1.CustomResourceDefinition {
		t.Helper()
		crd := &apiextensionsv1.CustomResourceDefinition{}
		if err := env.Client.Get(ctx, client.ObjectKey{Name: name}, crd); err != nil {
			t.Fatal(err)
		}
		return crd
	}
	// tamper makes the definition in the cluster one of a version, and recognisable.
	tamper := func(version string) {
		t.Helper()
		crd := get()
		if version == "" {
			delete(crd.Labels, definitions.SchemaVersionLabel)
		} else {
			crd.Labels[definitions.SchemaVersionLabel] = version
		}
		crd.Labels["of"] = "another"
		crd.Spec.Versions[0].AdditionalPrinterColumns = nil
		if err := env.Client.Update(ctx, crd); err != nil {
			t.Fatal(err)
		}
	}
	register := func() {
		t.Helper()
		if err := crds.Register(ctx, env.Client, defs, log); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		version  string
		replaced bool
	}{
		{"", true}, {"nonsense", true}, {"1.0.0", true}, {"1.33.9", true}, {definitions.SchemaVersion, false}, {"1.33.100", false}, {"2.0", false},
	} {
		tamper(tt.version)
		before := get()
		register()
		after := get()
		if got := len(after.Spec.Versions[0].AdditionalPrinterColumns) > 0; got != tt.replaced {
			t.Errorf("version %q: replaced %t, want %t", tt.version, got, tt.replaced)
		}
		if tt.replaced && after.Labels[definitions.SchemaVersionLabel] != definitions.SchemaVersion {
			t.Errorf("version %q: labelled %q", tt.version, after.Labels[definitions.SchemaVersionLabel])
		}
		if !tt.replaced && before.ResourceVersion != after.ResourceVersion {
			t.Errorf("version %q: written", tt.version)
		}
		if after.Labels["of"] != "another" {
			t.Errorf("version %q: lost a label of another client", tt.version)
		}
	}

	// Several operators at once, on a cluster without it.
	if err := env.Client.Delete(ctx, get()); err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	for range 5 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			if err := crds.Register(ctx, env.Client, defs, log); err != nil {
				t.Error(err)
			}
		}()
	}
	wg.Wait()
	if err := env.Client.Create(ctx, &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "1000"}, SecurityLabels: map[string]string{}}); err != nil {
		t.Errorf("after registration: %v", err)
	}
	// One that is being deleted comes back once it is gone.
	slow := get()
	slow.Finalizers = append(slow.Finalizers, "test.hawser.net/slow")
	if err := env.Client.Update(ctx, slow); err != nil {
		t.Fatal(err)
	}
	if err := env.Client.Delete(ctx, slow); err != nil {
		t.Fatal(err)
	}
	wg.Go(func() {
		if err := crds.Register(ctx, env.Client, defs, log); err != nil {
			t.Errorf("while a definition is being deleted: %v", err)
		}
	})
	time.Sleep(300 * time.Millisecond)
	slow = get()
	slow.Finalizers = slices.DeleteFunc(slow.Finalizers, func(s string) bool { return strings.HasPrefix(s, "test.") })
	if err := env.Client.Update(ctx, slow); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	if now := get(); now.UID == slow.UID || !now.DeletionTimestamp.IsZero() {
		t.Errorf("the definition is %s, deleted at %v; want another than %s", now.UID, now.DeletionTimestamp, slow.UID)
	}
	// What the server refuses is reported at once.
	bad := defs[0].DeepCopy()
	bad.Name = "wrong.cilium.io"
	if err := crds.Register(ctx, env.Client, []*apiextensionsv1.CustomResourceDefinition{bad}, log); err == nil || ctx.Err() != nil {
		t.Errorf("a definition that is not valid: %v", err)
	}
	// Waiting reports what is missing.
	short, cancelShort := context.WithTimeout(ctx, 5*time.Second)
	defer cancelShort()
	err = crds.Wait(short, env.Client, []string{name, "missing.cilium.io"}, log)
	if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "missing.cilium.io") || strings.Contains(err.Error(), name+":") {
		t.Errorf("waiting for what is not there: %v", err)
	}
	if got := crds.Names(defs); len(got) != len(defs) || got[0] != defs[0].Name {
		t.Errorf("names: %v", got)
	}
}

// lateLister is a server that lists kinds long after it serves them: until a time it lists what it
// did when it was asked first.
type lateLister struct {
	http.RoundTripper
	until time.Time
	mu    sync.Mutex
	first map[string][]byte // by path; nil for what was not found
	heads map[string]http.Header
}

func (l *lateLister) RoundTrip(r *http.Request) (*http.Response, error) {
	if p := r.URL.Path; p != "/apis" && (!strings.HasPrefix(p, "/apis/cilium.io/") || strings.Count(p, "/") != 3) {
		return l.RoundTripper.RoundTrip(r)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	body, asked := l.first[r.URL.Path]
	if asked && time.Now().Before(l.until) {
		if body == nil {
			return answer(r, http.StatusNotFound, http.Header{}, nil), nil
		}
		return answer(r, http.StatusOK, l.heads[r.URL.Path], body), nil
	}
	resp, err := l.RoundTripper.RoundTrip(r)
	if err != nil || asked {
		return resp, err
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		return nil, err
	}
	l.first[r.URL.Path], l.heads[r.URL.Path] = nil, resp.Header
	if resp.StatusCode == http.StatusOK {
		l.first[r.URL.Path] = body
	}
	return answer(r, resp.StatusCode, resp.Header, body), nil
}

func answer(r *http.Request, code int, header http.Header, body []byte) *http.Response {
	return &http.Response{
		StatusCode: code, Status: http.StatusText(code), Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: header.Clone(), Body: io.NopCloser(bytes.NewReader(body)), Request: r,
	}
}

// TestRegisterWaitsForKinds: who has registered the definitions finds their kinds at once, however
// late the server lists them.
func TestRegisterWaitsForKinds(t *testing.T) {
	server := kubeapi.Start(t)
	late := &lateLister{until: time.Now().Add(8 * time.Second), first: map[string][]byte{}, heads: map[string]http.Header{}}
	cfg := rest.CopyConfig(server.Config)
	cfg.Wrap(func(rt http.RoundTripper) http.RoundTripper {
		late.RoundTripper = rt
		return late
	})
	c, err := kube.NewClient(cfg)
	if err != nil {
		t.Fatal(err)
	}
	defs, err := definitions.All()
	if err != nil {
		t.Fatal(err)
	}
	group := schema.GroupKind{Group: "cilium.io"}
	for _, d := range defs { // as a client that has asked too early
		group.Kind = d.Spec.Names.Kind
		if _, err := c.RESTMapper().RESTMapping(group, d.Spec.Versions[0].Name); err == nil {
			t.Fatalf("%s is listed before it is defined", d.Name)
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := crds.Register(ctx, c, defs, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	for _, d := range defs {
		group.Kind = d.Spec.Names.Kind
		if _, err := c.RESTMapper().RESTMapping(group, d.Spec.Versions[0].Name); err != nil {
			t.Errorf("after Register: %v", err)
		}
	}
}
