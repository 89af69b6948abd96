package controllers

import (
	"context"
	"fmt"
	"os"
	"testing"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
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

// Take waits for a server, and gives it to a test alone until that ends. What others left there of
// pods, nodes' objects, identities, Leases and events is gone; their namespaces are there still.
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
		return s.env
	}
	s.env.Server.Start() // a test that failed may have left it stopped
	s.env.empty(t)
	return s.env
}

// empty deletes what tests make.
func (e *Env) empty(t testing.TB) {
	t.Helper()
	ctx := context.Background()
	for _, list := range []client.ObjectList{
		&corev1.PodList{}, &v2.CiliumEndpointList{}, &v2alpha1.CiliumEndpointSliceList{}, &v2.CiliumIdentityList{}, &v2.CiliumNodeList{}, &coordinationv1.LeaseList{},
		&corev1.EventList{},
	} {
		if err := e.Client.List(ctx, list); err != nil {
			t.Fatal(err)
		}
		places := map[string]client.Object{}
		err := meta.EachListItem(list, func(o runtime.Object) error {
			places[o.(client.Object).GetNamespace()] = o.(client.Object)
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
		for namespace, o := range places {
			if err := e.Client.DeleteAllOf(ctx, o, client.InNamespace(namespace), client.GracePeriodSeconds(0)); err != nil {
				t.Fatalf("delete what others left of %T in %q: %v", o, namespace, err)
			}
		}
	}
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
