package controllers

import (
	"context"
	"fmt"
	"maps"
	"os"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/client-go/discovery"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// Pool is some API servers that the tests of a package take in turns: to start one costs more than
// most tests. They are started when they are needed, and end with the package's tests, see
// [Pool.Around].
type Pool struct {
	all         []*pooled
	idle, fresh chan *pooled
}

// pooled is a server of a pool, and what it is started with.
type pooled struct {
	outliving
	env *Env
}

// NewPool returns a pool of at most n servers.
func NewPool(n int) *Pool {
	p := &Pool{idle: make(chan *pooled, n), fresh: make(chan *pooled, n)}
	for range n {
		s := &pooled{}
		p.all = append(p.all, s)
		p.fresh <- s
	}
	return p
}

// Take waits for a server, and gives it to a test alone until that ends. What others left there is
// gone; their namespaces are there still.
func (p *Pool) Take(t testing.TB) *Env {
	t.Helper()
	var s *pooled
	select {
	case s = <-p.idle:
	default:
		select {
		case s = <-p.idle:
		case s = <-p.fresh:
		}
	}
	s.TB = t
	t.Cleanup(func() {
		s.TB = nil
		p.idle <- s
	})
	if s.env == nil {
		s.env = Start(&s.outliving)
		var list corev1.NamespaceList
		if err := s.env.Client.List(context.Background(), &list); err != nil {
			t.Fatal(err)
		}
		s.env.namespaces = list.Items
		return s.env
	}
	s.env.Server.Start() // a test that failed may have left it stopped
	s.env.empty(t)
	return s.env
}

// keeps are the resources whose objects tests share: what the server itself makes, and definitions.
var keeps = map[string]bool{
	"apiextensions.k8s.io": true, "apiregistration.k8s.io": true, "flowcontrol.apiserver.k8s.io": true,
	"scheduling.k8s.io": true, "servicecidrs.networking.k8s.io": true, "ipaddresses.networking.k8s.io": true,
	"serviceaccounts": true, "namespaces": true,
}

// empty deletes what tests make, of every kind that the server has, and puts the labels and
// annotations of the server's own namespaces back. Namespaces that tests made stay.
func (e *Env) empty(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	for i := range e.namespaces {
		n := &corev1.Namespace{}
		if err := e.Client.Get(ctx, client.ObjectKeyFromObject(&e.namespaces[i]), n); err != nil {
			t.Fatal(err)
		}
		if maps.Equal(n.Labels, e.namespaces[i].Labels) && maps.Equal(n.Annotations, e.namespaces[i].Annotations) {
			continue
		}
		n.Labels, n.Annotations = e.namespaces[i].Labels, e.namespaces[i].Annotations
		if err := e.Client.Update(ctx, n); err != nil {
			t.Fatal(err)
		}
	}
	lists, err := discovery.NewDiscoveryClientForConfigOrDie(e.Server.Config).ServerPreferredResources()
	if err != nil {
		t.Fatal(err)
	}
	for _, list := range lists {
		gv, err := schema.ParseGroupVersion(list.GroupVersion)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range list.APIResources {
			resource := gv.WithResource(r.Name).GroupResource()
			if keeps[resource.Group] || keeps[resource.String()] || !slices.Contains(r.Verbs, "deletecollection") {
				continue
			}
			if err := e.deleteAll(ctx, gv.WithKind(r.Kind)); err != nil {
				t.Fatalf("delete what others left of %s: %v", resource, err)
			}
		}
	}
}

// notServer selects of a kind all but the service that is the server itself, and the rights that it
// grants.
func notServer(kind string) *client.ListOptions {
	o := &client.ListOptions{LabelSelector: labels.NewSelector().Add(*bootstrapped)}
	if kind == "Service" {
		o.FieldSelector = fields.OneTermNotEqualSelector("metadata.name", "kubernetes")
	}
	return o
}

var bootstrapped, _ = labels.NewRequirement("kubernetes.io/bootstrapping", selection.DoesNotExist, nil)

// deleteAll deletes all objects of a kind that notServer selects.
func (e *Env) deleteAll(ctx context.Context, kind schema.GroupVersionKind) error {
	list := &metav1.PartialObjectMetadataList{}
	list.SetGroupVersionKind(kind)
	if err := e.Client.List(ctx, list, notServer(kind.Kind)); err != nil {
		return err
	}
	namespaces := map[string]bool{}
	for i := range list.Items {
		if namespace := list.Items[i].Namespace; !namespaces[namespace] {
			namespaces[namespace] = true
			o := &metav1.PartialObjectMetadata{}
			o.SetGroupVersionKind(kind)
			which := &client.DeleteAllOfOptions{ListOptions: *notServer(kind.Kind)}
			which.Namespace, which.GracePeriodSeconds = namespace, new(int64)
			err := e.Client.DeleteAllOf(ctx, o, which)
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// Around returns tests that are followed by the end of the servers; it is for the package's
// TestMain.
func (p *Pool) Around(m interface{ Run() int }) interface{ Run() int } { return around{p, m} }

type around struct {
	pool  *Pool
	tests interface{ Run() int }
}

// Run runs the tests, and ends the servers.
func (a around) Run() int {
	code := a.tests.Run()
	for _, s := range a.pool.all {
		for i := len(s.cleanups) - 1; i >= 0; i-- {
			s.cleanups[i]()
		}
		if s.failed && code == 0 {
			code = 1
		}
	}
	return code
}

// outliving is what a server is started with that outlives the test that needs it first: it fails
// the test that has it now, and its end is the package's.
type outliving struct {
	testing.TB // nil when no test has it
	cleanups   []func()
	failed     bool
}

// Cleanup implements [testing.TB].
func (o *outliving) Cleanup(f func()) { o.cleanups = append(o.cleanups, f) }

// Helper implements [testing.TB].
func (o *outliving) Helper() {
	if o.TB != nil {
		o.TB.Helper()
	}
}

// Errorf implements [testing.TB].
func (o *outliving) Errorf(format string, args ...any) {
	if o.TB != nil {
		o.TB.Helper()
		o.TB.Errorf(format, args...)
		return
	}
	o.failed = true
	fmt.Fprintf(os.Stderr, "after all tests: "+format+"\n", args...)
}
