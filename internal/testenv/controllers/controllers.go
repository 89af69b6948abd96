// Package controllers gives tests of the operator's controllers a real kube-apiserver with the
// product's custom resources, and managers to run them in.
package controllers

import (
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	definitions "github.com/hawser-net/hawser/api/crds"
	"github.com/hawser-net/hawser/internal/operator/crds"
	"github.com/hawser-net/hawser/internal/operator/kube"
	"github.com/hawser-net/hawser/internal/testenv"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// Env is an API server that serves the custom resources.
type Env struct {
	Server *kubeapi.Server
	// Client reads and writes without a cache.
	Client client.Client
	// namespaces are those that the server makes itself, for a pool.
	namespaces []corev1.Namespace
}

// silence sets a null logger for the library, which complains without one; managers have logs of
// their own. Tests start side by side: once is enough.
var silence = sync.OnceFunc(func() { ctrllog.SetLogger(logr.Discard()) })

// Start starts a server; it stops when the test ends.
func Start(t testing.TB) *Env {
	t.Helper()
	silence()
	e := &Env{Server: kubeapi.Start(t)}
	cfg := rest.CopyConfig(e.Server.Config)
	kube.Apart(cfg)
	h, err := rest.HTTPClientFor(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { utilnet.CloseIdleConnectionsFor(h.Transport) })
	scheme, err := kube.Scheme()
	if err != nil {
		t.Fatal(err)
	}
	if e.Client, err = client.New(cfg, client.Options{Scheme: scheme, HTTPClient: h}); err != nil {
		t.Fatal(err)
	}
	defs, err := definitions.All()
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	if err := crds.Register(ctx, e.Client, defs, slog.New(slog.DiscardHandler)); err != nil {
		t.Fatal(err)
	}
	return e
}

// Run is [Run] with all rights.
func (e *Env) Run(t testing.TB, setup func(context.Context, manager.Manager, *slog.Logger) error) (stop func()) {
	t.Helper()
	return Run(t, e.Server.Config, setup)
}

// Run runs controllers that setup adds, with clients of a configuration, until the test ends or
// stop is called. It returns when setup has.
func Run(t testing.TB, cfg *rest.Config, setup func(context.Context, manager.Manager, *slog.Logger) error) (stop func()) {
	t.Helper()
	silence()
	log := slog.New(slog.DiscardHandler)
	if testing.Verbose() {
		log = slog.New(slog.NewTextHandler(os.Stderr, nil)).With("who", "operator")
	}
	cfg = rest.CopyConfig(cfg)
	kube.Apart(cfg)
	// A busy machine is no leak: one minute shows the difference.
	m, err := kube.NewManager(cfg, nil, log, time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	if err := setup(ctx, m, log); err != nil {
		cancel()
		t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- m.Start(ctx) }()
	ended := false
	stop = func() {
		if ended {
			return
		}
		ended = true
		cancel()
		if err := <-done; err != nil && !errors.Is(err, context.Canceled) {
			t.Errorf("the controllers ended with: %v", err)
		}
		utilnet.CloseIdleConnectionsFor(m.GetHTTPClient().Transport)
	}
	t.Cleanup(stop)
	return stop
}

// Create creates an object, with its status if it has one that is written apart, and deletes it
// when the test ends.
func (e *Env) Create(t testing.TB, o client.Object) {
	t.Helper()
	ctx := context.Background()
	withStatus := o.DeepCopyObject().(client.Object)
	if err := e.Client.Create(ctx, o); err != nil {
		t.Fatalf("create %T %s: %v", o, o.GetName(), err)
	}
	t.Cleanup(func() {
		_ = client.IgnoreNotFound(e.Client.Delete(context.Background(), o.DeepCopyObject().(client.Object), client.GracePeriodSeconds(0)))
	})
	content, err := runtime.DefaultUnstructuredConverter.ToUnstructured(withStatus)
	if err != nil {
		t.Fatalf("%T %s: %v", o, o.GetName(), err)
	}
	if status, _ := content["status"].(map[string]any); len(status) > 0 {
		// Controllers may write it at the same time: nothing else of the object is written.
		patch, err := json.Marshal(map[string]any{"status": status})
		if err != nil {
			t.Fatalf("%T %s: %v", o, o.GetName(), err)
		}
		err = e.Client.Status().Patch(ctx, withStatus, client.RawPatch(types.MergePatchType, patch))
		if client.IgnoreNotFound(err) != nil { // not found: its status is not written apart
			t.Fatalf("status of %T %s: %v", o, o.GetName(), err)
		}
	}
	if err := e.Client.Get(ctx, client.ObjectKeyFromObject(o), o); err != nil {
		t.Fatalf("read %T %s: %v", o, o.GetName(), err)
	}
}

// Eventually is [testenv.Eventually].
func Eventually(t testing.TB, within time.Duration, f func() string) {
	t.Helper()
	testenv.Eventually(t, within, f)
}
