package operator

import (
	"cmp"
	"context"
	"encoding/json"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"time"

	dto "github.com/prometheus/client_model/go"
	"sigs.k8s.io/controller-runtime/pkg/client"

	api "github.com/hawser-net/hawser/api/operator"
	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/operator/identities"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// countTimeout bounds how long an answer waits for the leader's view of the cluster.
const countTimeout = 2 * time.Second

// serveStatus answers GET /v1/status with an [api.Status].
func (o *Operator) serveStatus(store kvstore.Backend, c *kubeSide) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		st := api.Status{
			Version: o.version, Cluster: o.cfg.ClusterName, Started: o.started, Faults: o.faults(r.Context(), store, c), Queues: o.queues(), Problems: o.problems.all(),
		}
		if c != nil {
			st.Name = c.election.Identity()
			st.Leader = &api.Leader{Holder: c.election.Leader(), Self: c.election.Leading()}
			// Only what is watched anyway is counted: asking must not start a watch.
			if cache := o.cache.Load(); cache != nil && c.election.Leading() && o.cfg.inCRD() && o.cfg.GCInterval > 0 {
				ctx, cancel := context.WithTimeout(r.Context(), countTimeout)
				defer cancel()
				if err := o.count(ctx, *cache, &st); err != nil {
					o.log.Debug("a status without counts", "error", err) // the first list is still under way
				}
			}
		}
		if made := o.inStore.Load(); made != nil && c != nil && c.election.Leading() {
			if n, ok := made.Count(); ok {
				st.Identities = &api.Identities{Total: n.Total, InUse: n.InUse, Quarantined: n.Quarantined, Duplicates: n.Duplicates, Capacity: o.capacity()}
			}
		}
		if keys := o.keys.Load(); keys != nil && c != nil && c.election.Leading() {
			st.IdentityLabels = keys.Status()
		}
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(st) // the client has gone
	}
}

// capacity is how many IDs this cluster has.
func (o *Operator) capacity() int { return int(o.last-o.first) + 1 }

// count reads from the leader's cache, which the collection of identities and endpoints fills.
func (o *Operator) count(ctx context.Context, from client.Reader, st *api.Status) error {
	shared := client.UnsafeDisableDeepCopy
	used := map[int64]bool{}
	var eps v2.CiliumEndpointList
	if err := from.List(ctx, &eps, shared); err != nil {
		return err
	}
	endpoints := &api.Endpoints{Total: len(eps.Items)}
	for i := range eps.Items {
		if id := eps.Items[i].Status.Identity; id == nil || id.ID == 0 {
			endpoints.WithoutIdentity++
		} else {
			used[id.ID] = true
		}
	}
	var sl v2alpha1.CiliumEndpointSliceList
	if err := from.List(ctx, &sl, shared); err != nil {
		return err
	}
	inSlices := &api.Slices{Total: len(sl.Items)}
	for i := range sl.Items {
		inSlices.Endpoints += len(sl.Items[i].Endpoints)
		for _, ep := range sl.Items[i].Endpoints {
			used[ep.IdentityID] = true
		}
	}
	var ids v2.CiliumIdentityList
	if err := from.List(ctx, &ids, shared); err != nil {
		return err
	}
	counted := &api.Identities{Capacity: o.capacity()}
	sets := map[string]bool{}
	for i := range ids.Items {
		n, err := strconv.ParseInt(ids.Items[i].Name, 10, 64)
		if err != nil || n < int64(o.first) || n > int64(o.last) {
			continue // another cluster's, or without an owner
		}
		if _, _, quarantined := k8sids.Quarantined(&ids.Items[i]); quarantined {
			counted.Quarantined++
			continue
		}
		counted.Total++
		if used[n] {
			counted.InUse++
		}
		if _, marked := ids.Items[i].Annotations[identities.HeartbeatAnnotation]; marked {
			counted.Marked++
		}
		text, err := json.Marshal(ids.Items[i].SecurityLabels)
		if err != nil {
			return err
		}
		if sets[string(text)] {
			counted.Duplicates++
		}
		sets[string(text)] = true
	}
	st.Endpoints, st.Slices, st.Identities = endpoints, inSlices, counted
	return nil
}

// queues reads what the controllers' library counts of their queues.
func (o *Operator) queues() []api.Queue {
	families, err := o.metrics.gatherer().Gather()
	if err != nil {
		o.log.Warn("cannot read all metrics", "error", err) // what could be read is there
	}
	by := map[string]*api.Queue{}
	each := func(f *dto.MetricFamily, set func(*api.Queue, *dto.Metric)) {
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				if l.GetName() != "name" {
					continue
				}
				q := by[l.GetValue()]
				if q == nil {
					q = &api.Queue{Name: l.GetValue()}
					by[q.Name] = q
				}
				set(q, m)
			}
		}
	}
	for _, f := range families {
		switch f.GetName() {
		case "workqueue_depth":
			each(f, func(q *api.Queue, m *dto.Metric) { q.Waiting += int(m.GetGauge().GetValue()) })
		case "workqueue_retries_total":
			each(f, func(q *api.Queue, m *dto.Metric) { q.Retries += int(m.GetCounter().GetValue()) })
		}
	}
	out := make([]api.Queue, 0, len(by))
	for _, q := range slices.SortedFunc(maps.Values(by), func(a, b *api.Queue) int { return cmp.Compare(a.Name, b.Name) }) {
		out = append(out, *q)
	}
	return out
}
