package mesh

import (
	"context"
	"fmt"
	"log/slog"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/util/workqueue"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/ipcache"
	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// Setup adds to m what writes this cluster's state into the store. The store must stay open while m
// runs.
func Setup(m manager.Manager, cfg Config, store kvstore.Backend, reg prometheus.Registerer, log *slog.Logger) error {
	x := &exporter{cfg: cfg, cache: m.GetClient(), backend: store, log: log}
	var err error
	if x.first, x.last, err = identity.Range(cfg.ClusterID, cfg.MaxConnectedClusters); err != nil {
		return err
	}
	if cfg.Services {
		if err := x.services(m); err != nil {
			return fmt.Errorf("services for other clusters: %w", err)
		}
	}
	if cfg.Nodes && cfg.Objects {
		for _, setup := range []func(manager.Manager) error{x.nodes, x.identities, x.addresses} {
			if err := setup(m); err != nil {
				return fmt.Errorf("state for other clusters: %w", err)
			}
		}
	}
	return reg.Register(x)
}

type exporter struct {
	cfg     Config
	cache   client.Reader
	backend kvstore.Backend
	log     *slog.Logger
	mirrors []*mirror
	// first and last are the identity IDs that this cluster may give.
	first, last identity.ID
}

// add adds a mirror to m. It runs once the caches are filled.
func (x *exporter) add(m manager.Manager, mi *mirror, all func(context.Context) (map[string]export, error)) error {
	mi.all = all
	x.mirrors = append(x.mirrors, mi)
	return m.Add(manager.RunnableFunc(mi.run))
}

// reconcile returns a reconciler that updates a mirror from one object.
func (x *exporter) reconcile(mi *mirror, prefix string, read func(context.Context, types.NamespacedName) (export, error)) reconcile.Reconciler {
	return reconcile.Func(func(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
		return reconcile.Result{}, mi.update(prefix+req.String(), func() (export, error) {
			s, err := read(ctx, req.NamespacedName)
			if apierrors.IsNotFound(err) {
				return export{}, nil
			}
			return s, err
		})
	})
}

// tolerate logs an object that is invalid, and keeps what it stands for nevertheless.
func (x *exporter) tolerate(s export, err error) export {
	if err != nil {
		x.log.Warn("an invalid object is not exported to other clusters", "error", err)
	}
	return s
}

func options() controller.Options {
	return controller.Options{
		MaxConcurrentReconciles: 1, // it only reads caches
		RateLimiter:             workqueue.NewTypedItemExponentialFailureRateLimiter[reconcile.Request](100*time.Millisecond, 30*time.Second),
	}
}

// ---- services -----------------------------------------------------------------------------------

func (x *exporter) services(m manager.Manager) error {
	mi, err := newMirror(mirrorConfig{
		kind: "services", cluster: x.cfg.ClusterName, prefix: kvstore.JoinKey(storekeys.ServicesPrefix, x.cfg.ClusterName),
	}, x.backend, x.log)
	if err != nil {
		return err
	}
	if err := m.GetFieldIndexer().IndexField(context.Background(), &discoveryv1.EndpointSlice{}, serviceField, func(o client.Object) []string {
		return []string{o.GetLabels()[discoveryv1.LabelServiceName]}
	}); err != nil {
		return err
	}
	err = builder.ControllerManagedBy(m).Named("mesh-services").For(&corev1.Service{}).
		Watches(&discoveryv1.EndpointSlice{}, handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
			name := o.GetLabels()[discoveryv1.LabelServiceName]
			if name == "" {
				return nil
			}
			return []reconcile.Request{{NamespacedName: types.NamespacedName{Namespace: o.GetNamespace(), Name: name}}}
		})).
		Watches(&corev1.Namespace{}, handler.EnqueueRequestsFromMapFunc(x.servicesOf)).
		WithOptions(options()).Complete(x.reconcile(mi, "", x.service))
	if err != nil {
		return err
	}
	return x.add(m, mi, func(ctx context.Context) (map[string]export, error) {
		var list corev1.ServiceList
		if err := x.cache.List(ctx, &list); err != nil {
			return nil, err
		}
		out := map[string]export{}
		for i := range list.Items {
			key := client.ObjectKeyFromObject(&list.Items[i])
			s, err := x.service(ctx, key)
			if err != nil && !apierrors.IsNotFound(err) {
				return nil, err
			}
			if len(s.values) > 0 {
				out[key.String()] = s
			}
		}
		return out, nil
	})
}

// serviceField finds the slices of a service.
const serviceField = "mesh.service"

// servicesOf has the services of a namespace looked at again.
func (x *exporter) servicesOf(ctx context.Context, ns client.Object) []reconcile.Request {
	var list corev1.ServiceList
	if err := x.cache.List(ctx, &list, client.InNamespace(ns.GetName())); err != nil {
		x.log.Warn("services of a namespace are processed later", "namespace", ns.GetName(), "error", err)
		return nil
	}
	out := make([]reconcile.Request, 0, len(list.Items))
	for i := range list.Items {
		out = append(out, reconcile.Request{NamespacedName: client.ObjectKeyFromObject(&list.Items[i])})
	}
	return out
}

// service reads what a service stands for.
func (x *exporter) service(ctx context.Context, key types.NamespacedName) (export, error) {
	var s corev1.Service
	if err := x.cache.Get(ctx, key, &s); err != nil {
		return export{}, err
	}
	var ns corev1.Namespace
	if err := x.cache.Get(ctx, types.NamespacedName{Name: key.Namespace}, &ns); err != nil {
		return export{}, err
	}
	var list discoveryv1.EndpointSliceList
	if err := x.cache.List(ctx, &list, client.InNamespace(key.Namespace), client.MatchingFields{serviceField: key.Name}); err != nil {
		return export{}, err
	}
	return x.cfg.service(&s, list.Items, x.cfg.globalNamespace(ns.Annotations))
}

// ---- what agents write themselves where they use the store --------------------------------------

func (x *exporter) nodes(m manager.Manager) error {
	mi, err := newMirror(mirrorConfig{
		kind: "nodes", cluster: x.cfg.ClusterName, prefix: kvstore.JoinKey(storekeys.NodesPrefix, x.cfg.ClusterName),
		foreign: func(value string) bool { return strings.Contains(value, `"Source":"`+node.SourceLocal+`"`) },
	}, x.backend, x.log)
	if err != nil {
		return err
	}
	if err := builder.ControllerManagedBy(m).Named("mesh-nodes").For(&v2.CiliumNode{}).WithOptions(options()).
		Complete(x.reconcile(mi, "", func(ctx context.Context, key types.NamespacedName) (export, error) {
			var o v2.CiliumNode
			err := x.cache.Get(ctx, key, &o)
			if err == nil {
				return x.tolerate(x.cfg.node(&o)), nil
			}
			return export{}, err
		})); err != nil {
		return err
	}
	return x.add(m, mi, func(ctx context.Context) (map[string]export, error) {
		var list v2.CiliumNodeList
		err := x.cache.List(ctx, &list)
		out := map[string]export{}
		for i := range list.Items {
			o := &list.Items[i]
			out[named("", o)] = x.tolerate(x.cfg.node(o))
		}
		return out, err
	})
}

// named is how an object is called in the index.
func named(prefix string, o client.Object) string {
	return prefix + client.ObjectKeyFromObject(o).String()
}

// ours reports whether an ID is one of this cluster's pods.
func (x *exporter) ours(id identity.ID) bool { return x.first <= id && id <= x.last }

func (x *exporter) identities(m manager.Manager) error {
	mi, err := newMirror(mirrorConfig{
		kind: "identities", cluster: x.cfg.ClusterName, prefix: kvstore.JoinKey(storekeys.IdentitiesPrefix, "id"), permanent: true,
		own: func(name, _ string) bool {
			id, err := strconv.ParseUint(name, 10, 32)
			return err == nil && x.ours(identity.ID(id))
		},
	}, x.backend, x.log)
	if err != nil {
		return err
	}
	read := func(o *v2.CiliumIdentity) export {
		have, _ := mi.keys.Seen(o.Name)
		return x.tolerate(x.cfg.identity(o, x.backend.Layout(), string(have)))
	}
	if err := builder.ControllerManagedBy(m).Named("mesh-identities").For(&v2.CiliumIdentity{}).WithOptions(options()).
		Complete(x.reconcile(mi, "", func(ctx context.Context, key types.NamespacedName) (export, error) {
			var o v2.CiliumIdentity
			err := x.cache.Get(ctx, key, &o)
			if err == nil {
				return read(&o), nil
			}
			return export{}, err
		})); err != nil {
		return err
	}
	return x.add(m, mi, func(ctx context.Context) (map[string]export, error) {
		var list v2.CiliumIdentityList
		err := x.cache.List(ctx, &list)
		out := map[string]export{}
		for i := range list.Items {
			o := &list.Items[i]
			out[named("", o)] = read(o)
		}
		return out, err
	})
}

func (x *exporter) addresses(m manager.Manager) error {
	mi, err := newMirror(mirrorConfig{
		kind: "addresses", cluster: x.cfg.ClusterName, prefix: kvstore.JoinKey(storekeys.IPsPrefix, storekeys.DefaultAddressSpace),
		foreign: func(value string) bool { return strings.Contains(value, `"Metadata":"cilium-global:`) },
		own: func(name, value string) bool {
			p, err := ipcache.ParsePair(name, []byte(value))
			return err == nil && x.ours(p.Identity)
		},
	}, x.backend, x.log)
	if err != nil {
		return err
	}
	if err := builder.ControllerManagedBy(m).Named("mesh-endpoints").For(&v2.CiliumEndpoint{}).WithOptions(options()).
		Complete(x.reconcile(mi, ofEndpoint, func(ctx context.Context, key types.NamespacedName) (export, error) {
			var o v2.CiliumEndpoint
			err := x.cache.Get(ctx, key, &o)
			if err == nil {
				return x.tolerate(x.cfg.endpoint(&o)), nil
			}
			return export{}, err
		})); err != nil {
		return err
	}
	if err := builder.ControllerManagedBy(m).Named("mesh-endpoint-slices").For(&v2alpha1.CiliumEndpointSlice{}).WithOptions(options()).
		Complete(x.reconcile(mi, ofSlice, func(ctx context.Context, key types.NamespacedName) (export, error) {
			var o v2alpha1.CiliumEndpointSlice
			err := x.cache.Get(ctx, key, &o)
			if err == nil {
				return x.tolerate(x.cfg.slice(&o)), nil
			}
			return export{}, err
		})); err != nil {
		return err
	}
	return x.add(m, mi, func(ctx context.Context) (map[string]export, error) {
		out := map[string]export{}
		var list v2.CiliumEndpointList
		if err := x.cache.List(ctx, &list); err != nil {
			return nil, err
		}
		for i := range list.Items {
			o := &list.Items[i]
			out[named(ofEndpoint, o)] = x.tolerate(x.cfg.endpoint(o))
		}
		var slices v2alpha1.CiliumEndpointSliceList
		err := x.cache.List(ctx, &slices)
		for i := range slices.Items {
			o := &slices.Items[i]
			out[named(ofSlice, o)] = x.tolerate(x.cfg.slice(o))
		}
		return out, err
	})
}

// The two kinds of object that have addresses.
const (
	ofEndpoint = "endpoint "
	ofSlice    = "slice "
)
