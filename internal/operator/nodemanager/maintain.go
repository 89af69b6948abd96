package nodemanager

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	corev1 "k8s.io/api/core/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/pkg/retry"
)

// maintain looks after the pool of one node: it writes what the node is to know, makes the next
// call to the cloud, and so on until nothing is left to do.
func (m *Manager) maintain(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	cached := &v2.CiliumNode{}
	err := m.client.Get(ctx, req.NamespacedName, cached)
	if apierrors.IsNotFound(err) {
		// The cache may be behind.
		if err = m.live.Get(ctx, req.NamespacedName, cached); apierrors.IsNotFound(err) {
			m.forget(req.Name)
			return reconcile.Result{}, nil
		}
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("CiliumNode %s: %w", req.Name, err)
	}
	if !cached.DeletionTimestamp.IsZero() || m.provider.Instance(cached) == "" {
		m.mu.Lock()
		m.unmeasured(req.Name)
		m.mu.Unlock()
		return reconcile.Result{}, nil // it comes again
	}
	again, short, err := m.turns(ctx, cached)
	switch {
	case apierrors.IsConflict(err) || apierrors.IsNotFound(err):
		return reconcile.Result{RequeueAfter: minInterval}, nil
	case errors.Is(err, ErrNotLeading): // unless its clock was only set
		return reconcile.Result{RequeueAfter: refresh()}, nil
	case err != nil:
		return reconcile.Result{}, err
	}
	return reconcile.Result{RequeueAfter: again, Priority: priority(short)}, nil
}

// turns takes turns of deciding, writing and calling. It returns when to look again, and whether
// pods wait on the node for whom it has no address.
func (m *Manager) turns(ctx context.Context, o *v2.CiliumNode) (again time.Duration, short bool, err error) {
	live, looked := false, false
	for range maxSteps {
		pending, err := m.pending(ctx, o)
		if err != nil {
			return 0, short, err
		}
		limits, wait, err := m.limits(ctx, o)
		if err != nil {
			again, err = m.failed(ctx, o, err)
			return again, short, err
		}
		if wait > 0 {
			return wait, short, nil
		}
		if err = m.preferFirst(ctx, o); err != nil {
			return 0, short, err
		}
		w := m.decide(o, pending, limits)
		short = w.short
		if w.unseen && !looked {
			looked = true
			if err = m.lookFor(ctx, o); err != nil {
				again, err = m.failed(ctx, o, err)
				return again, short, err
			}
			continue
		}
		if !live && w.needsLive() {
			m.restore(w)
			if o, err = m.read(ctx, o.Name); err != nil {
				return 0, short, err
			}
			live = true
			continue
		}
		wrote, err := m.write(ctx, o, w)
		if apierrors.IsConflict(err) { // the cache was behind, or the agent has written meanwhile
			if o, err = m.read(ctx, o.Name); err != nil {
				return 0, short, err
			}
			live = true
			continue
		}
		if err != nil {
			return 0, short, err
		}
		if wrote {
			m.restore(w)
			continue // the call is chosen by what the node knows now
		}
		switch {
		case w.Step.Call != Nothing && !w.blocked:
			err = m.make(ctx, o, w)
		case w.static:
			err = m.associate(ctx, o)
		default:
			return w.next, short, nil
		}
		live = false
		if err != nil && w.Step.Call == AssignIPv6 && !w.blocked && ctx.Err() == nil && !errors.Is(err, ErrNotLeading) {
			m.failedIPv6(o.Name, err)
			err = nil // IPv4 goes on
		}
		if err != nil {
			again, err = m.failed(ctx, o, err)
			return again, short, err
		}
	}
	return minInterval, short, nil
}

func (m *Manager) read(ctx context.Context, name string) (*v2.CiliumNode, error) {
	o := &v2.CiliumNode{}
	if err := m.live.Get(ctx, types.NamespacedName{Name: name}, o); err != nil {
		return nil, fmt.Errorf("CiliumNode %s: %w", name, err)
	}
	return o, nil
}

// failed reports a failure and has the node wait.
func (m *Manager) failed(ctx context.Context, o *v2.CiliumNode, err error) (time.Duration, error) {
	if ctx.Err() != nil || errors.Is(err, ErrNotLeading) {
		return 0, ErrNotLeading
	}
	d := m.backoff(o.Name, err.Error())
	m.log.Warn("a node cannot get what it needs", "node", o.Name, "error", err, "cause", errors.Unwrap(err), "again", d)
	o, rerr := m.read(ctx, o.Name)
	if rerr != nil {
		return 0, rerr
	}
	_, werr := m.patch(ctx, o, "status", m.faultPatch(o, err.Error()), nil)
	return d, werr
}

// pending counts the pods that wait on a node for an address which it has not given them.
func (m *Manager) pending(ctx context.Context, o *v2.CiliumNode) (int, error) {
	var pods corev1.PodList
	if err := m.client.List(ctx, &pods, client.MatchingFields{podsOfNode: o.Name}, client.UnsafeDisableDeepCopy); err != nil {
		return 0, fmt.Errorf("pods of %s: %w", o.Name, err)
	}
	if len(pods.Items) == 0 {
		return 0, nil
	}
	has := map[string]bool{}
	for _, u := range o.Status.IPAM.Used {
		has[u.Owner] = true
	}
	n := 0
	for i := range pods.Items {
		if !has[pods.Items[i].Namespace+"/"+pods.Items[i].Name] {
			n++
		}
	}
	return n, nil
}

// limits returns those of the instance's type; wait, if it is above 0, is how long they are not
// requested.
func (m *Manager) limits(ctx context.Context, o *v2.CiliumNode) (l Limits, wait time.Duration, err error) {
	kind := m.provider.InstanceType(o)
	m.mu.Lock()
	l, ok := m.inv.limits[kind]
	if n := m.nodes[o.Name]; n != nil {
		wait = time.Until(n.notBefore)
	}
	m.mu.Unlock()
	if ok || kind == "" {
		return l, 0, nil
	}
	if wait > 0 {
		return l, wait, nil
	}
	if l, err = m.provider.Limits(ctx, kind); err != nil {
		return l, 0, err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inv.limits[kind] = l
	return l, 0, nil
}

// work is a decision with what is to be written of it.
type work struct {
	Decision
	// status and spec are merge patches of what is to be another; nil for none.
	status, spec map[string]any
	// annotations are written with spec.
	annotations map[string]any
	// blocked is set if the call must wait; next is when to look again.
	blocked bool
	next    time.Duration
	// static is set if a public address is to be looked for.
	static bool
	// unseen is set if no interface of the instance is known.
	unseen bool
	// short is set if pods wait for whom there is no address.
	short bool
	// spent is how many addresses of subnet were set aside for the call.
	subnet string
	spent  int
}

// needsLive reports whether the call requires the server's CiliumNode, because the cache can be
// behind. Adding addresses according to a slightly old version is harmless, and a write is refused
// if the object has changed.
func (w *work) needsLive() bool {
	return w.static || !w.blocked && w.Step.Call != Nothing && w.Step.Call != Assign
}

// decide decides about a node, and sets aside what the call needs of its subnet: see
// [Manager.restore].
func (m *Manager) decide(o *v2.CiliumNode, pending int, limits Limits) *work {
	m.mu.Lock()
	defer m.mu.Unlock()
	w := &work{next: refresh()}
	n, other := m.claim(o.Name, m.provider.Instance(o))
	if other != "" && m.inv.snapshot != nil { // before, it is not known yet whose it is
		m.unmeasured(o.Name)
		w.status = m.faultPatch(o, fmt.Sprintf("instance %s is that of node %s: delete the CiliumNode that is not its", o.Spec.InstanceID, other))
		return w
	}
	if m.inv.snapshot == nil {
		if !errors.Is(m.fault, errNotRead) {
			w.status = m.faultPatch(o, m.fault.Error())
		}
		return w
	}
	v := m.view(o, n, pending, limits)
	if len(v.Attached) == 0 {
		m.unmeasured(o.Name)
		w.unseen = true
		w.Fault = fmt.Sprintf("instance %s has no network interface that can be seen: it is gone, or the operator's region or account is another", o.Spec.InstanceID)
		blocked := time.Until(n.notBefore)
		if blocked > 0 {
			w.Fault = n.why
		}
		if m.looksFor(n) {
			w.next = max(time.Until(n.lookAt), blocked, minInterval)
		}
		w.status = m.faultPatch(o, w.Fault)
		return w
	}
	n.looks, n.lookAt = 0, time.Time{}
	w.Decision = Decide(v)
	if m.fault != nil && w.Stale {
		// What was known stays good for all others.
		w.Fault += "; the cloud cannot be read, so that it is not known whether this has changed: " + m.fault.Error()
	}
	if len(w.IPv6Pool) > 0 {
		n.ipv6 = attempts{}
	}
	n.spare = w.Available - w.Used - pending
	w.short = n.spare < 0
	n.excess, n.lacks, n.atCapacity = w.Excess, w.Needed > 0 || w.Fault != "", w.AtCapacity
	m.metrics.available.WithLabelValues(o.Name).Set(float64(w.Available - w.Used))
	m.metrics.used.WithLabelValues(o.Name).Set(float64(w.Used))
	m.metrics.needed.WithLabelValues(o.Name).Set(float64(w.Needed))
	if w.Again > 0 {
		w.next = min(w.next, w.Again)
	}
	if left := time.Until(n.notBefore); left > 0 && w.Step.Call != Nothing {
		w.blocked, w.next = true, left
		said := w.Fault
		w.Fault = n.why
		w.add(said)
	}
	shown := m.static(o, n, w, v.Attached) // no deficit of addresses of pods
	field, value, same := m.provider.Status(o, m.inv.snapshot, v.Attached)
	w.status = join(join(m.faultPatch(o, w.Fault), releases(o, w.Releases)), shown)
	if !same {
		w.status = join(w.status, map[string]any{field: value})
	}
	w.spec = join(pool(o, w.Pool), poolIPv6(o, w.IPv6Pool))
	w.annotations = notedReleases(o, v, &w.Decision)
	if !w.blocked {
		w.subnet, w.spent = w.Step.cost()
		m.inv.spend(w.subnet, w.spent)
	}
	return w
}

// looksFor reports whether the instance of a node is still looked for alone. It must be called with
// mu held.
func (m *Manager) looksFor(n *node) bool { return n.looks < maxLooks || m.fault != nil }

// lookFor reads an instance of which nothing is known: it is younger than the last description of
// the cloud, or the cloud answers from the past. One that is not found a few times is left to the
// next description of everything, or looked for periodically if there is none.
func (m *Manager) lookFor(ctx context.Context, o *v2.CiliumNode) error {
	m.mu.Lock()
	n, now := m.nodes[o.Name], time.Now()
	if n == nil || !m.looksFor(n) || now.Before(n.lookAt) || now.Before(n.notBefore) {
		m.mu.Unlock()
		return nil
	}
	if !m.looks.Allow() {
		n.lookAt = now.Add(retry.Backoff(0, lookRest, lookRest))
		m.mu.Unlock()
		return nil
	}
	n.lookAt = now.Add(refresh())
	if n.looks < maxLooks {
		n.lookAt = now.Add(retry.Backoff(n.looks, firstBackoff, lastBackoff))
	}
	m.mu.Unlock()
	begun, instance := time.Now(), m.provider.Instance(o)
	list, err := m.provider.ReadInstance(ctx, instance)
	if err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	n.looks = min(n.looks+1, maxLooks)
	m.inv.replaceInstance(instance, list, begun)
	for _, i := range list {
		if _, ok := m.inv.snapshot.Subnets[i.Subnet]; !ok && i.Subnet != "" {
			m.rereads()
		}
	}
	return nil
}

// restore gives back what was set aside for a call that was not made.
func (m *Manager) restore(w *work) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inv.spend(w.subnet, -w.spent)
}

// view gathers the state of a node.
func (m *Manager) view(o *v2.CiliumNode, n *node, pending int, limits Limits) *View {
	ipam := &o.Spec.IPAM
	v := &View{
		InstanceType: m.provider.InstanceType(o), PreAllocate: ipam.PreAllocate, MinAllocate: ipam.MinAllocate, MaxAllocate: ipam.MaxAllocate, MaxAboveWatermark: ipam.MaxAboveWatermark,
		Pending: pending, Release: m.cfg.ReleaseExcess, Delay: time.Duration(m.cfg.ReleaseDelay) * time.Second, Limits: limits, Subnets: m.inv.subnets(),
		Used: map[netip.Addr]string{}, Pool: map[netip.Addr]bool{}, Releases: map[netip.Addr]v2.IPReleaseStatus{}, Excess: n.excess, Now: time.Now(),
	}
	v.PreAllocate = cmp.Or(v.PreAllocate, v2.DefaultPreAllocate)
	// What is no address stays where it is and counts for nothing.
	for text, u := range o.Status.IPAM.Used {
		if a, err := netip.ParseAddr(text); err == nil {
			v.Used[a] = u.Owner
		}
	}
	for text := range ipam.Pool {
		if a, err := netip.ParseAddr(text); err == nil {
			v.Pool[a] = true
		}
	}
	for text, s := range o.Status.IPAM.ReleaseIPs {
		if a, err := netip.ParseAddr(text); err == nil {
			v.Releases[a] = s
		}
	}
	n.viewIPv6(o, v)
	m.viewReleased(o, v)
	v.Attached, v.Loose = m.inv.of(m.provider.Instance(o))
	m.provider.Describe(o, m.inv.snapshot, v)
	return v
}

// faultPatch returns the patch by which the status shows a fault, or that there is none.
func (m *Manager) faultPatch(o *v2.CiliumNode, fault string) map[string]any {
	if o.Status.IPAM.OperatorStatus.Error == fault {
		return nil
	}
	var value any = fault
	if fault == "" {
		value = nil
	}
	return map[string]any{"ipam": map[string]any{"operator-status": map[string]any{"error": value}}}
}

// releases returns the patch by which the status has the steps of the handshake.
func releases(o *v2.CiliumNode, want map[netip.Addr]v2.IPReleaseStatus) map[string]any {
	diff := map[string]any{}
	for a, s := range want {
		if o.Status.IPAM.ReleaseIPs[a.String()] != s {
			diff[a.String()] = s
		}
	}
	for text := range o.Status.IPAM.ReleaseIPs {
		if a, err := netip.ParseAddr(text); err != nil || want[a] == "" || a.String() != text {
			diff[text] = nil
		}
	}
	if len(diff) == 0 {
		return nil
	}
	return map[string]any{"ipam": map[string]any{"release-ips": diff}}
}

// pool returns the patch by which the spec has the addresses.
func pool(o *v2.CiliumNode, want map[netip.Addr]string) map[string]any {
	diff := map[string]any{}
	for a, from := range want {
		if has, ok := o.Spec.IPAM.Pool[a.String()]; !ok || has.Resource != from {
			diff[a.String()] = map[string]any{"resource": from}
		}
	}
	for text := range o.Spec.IPAM.Pool {
		a, err := netip.ParseAddr(text)
		if _, ok := want[a]; err != nil || !ok || a.String() != text {
			diff[text] = nil
		}
	}
	if len(diff) == 0 {
		return nil
	}
	return map[string]any{"ipam": map[string]any{"pool": diff}}
}

// join joins patches that have at most the field ipam in common.
func join(a, b map[string]any) map[string]any {
	if a == nil {
		return b
	}
	for k, v := range b {
		if have, ok := a[k].(map[string]any); ok {
			maps.Copy(have, v.(map[string]any))
			continue
		}
		a[k] = v
	}
	return a
}

// write reconciles the node's object, its status first: an agent that sees an address knows
// the interface.
func (m *Manager) write(ctx context.Context, o *v2.CiliumNode, w *work) (wrote bool, err error) {
	for _, p := range []struct {
		part               string
		patch, annotations map[string]any
	}{{"status", w.status, nil}, {"spec", w.spec, w.annotations}} {
		did, err := m.patch(ctx, o, p.part, p.patch, p.annotations)
		if err != nil {
			m.restore(w)
			return false, err
		}
		wrote = wrote || did
	}
	return wrote, nil
}

// patch writes a part of an object, and annotations with it, if that is still as it was read, and
// leaves everything else alone. o is as written afterwards.
func (m *Manager) patch(ctx context.Context, o *v2.CiliumNode, part string, value, annotations map[string]any) (bool, error) {
	if value == nil {
		return false, nil
	}
	meta := map[string]any{"resourceVersion": o.ResourceVersion, "uid": o.UID}
	if annotations != nil {
		meta["annotations"] = annotations
	}
	text, err := json.Marshal(map[string]any{"metadata": meta, part: value})
	if err == nil {
		if p := client.RawPatch(types.MergePatchType, text); part == "status" {
			err = m.client.Status().Patch(ctx, o, p)
		} else {
			err = m.client.Patch(ctx, o, p)
		}
	}
	if err != nil {
		return false, fmt.Errorf("%s of CiliumNode %s: %w", part, o.Name, err)
	}
	return true, nil
}

// make makes the call, and records what has become of the cloud. After a failure it reads what has:
// an answer may have been lost.
func (m *Manager) make(ctx context.Context, o *v2.CiliumNode, w *work) error {
	s, c := w.Step, change{call: w.Step.Call, iface: w.Step.Interface}
	if w.short {
		ctx = urgent(ctx)
	}
	var err error
	begun := time.Now()
	switch s.Call {
	case Assign, AssignIPv6:
		if c.units, err = m.provider.Assign(ctx, s); err == nil && len(c.units) == 0 {
			// Taken for success, it would be asked for again at once and without end.
			err = &Error{Text: fmt.Sprintf("the cloud has assigned nothing to interface %s and returned no error: this is retried automatically", s.Interface.ID)}
		}
	case Unassign:
		c.units, err = s.Units, m.provider.Unassign(ctx, s)
	case Create:
		c.iface, err = m.provider.Create(ctx, m.provider.Instance(o), s)
	case Attach:
		c.iface, err = m.provider.Attach(ctx, m.provider.Instance(o), s)
	case Modify:
		err = m.provider.Modify(ctx, s)
	case Delete:
		err = m.provider.Delete(ctx, s.Interface.ID)
	}
	m.metrics.took(&s, err, time.Since(begun))
	if err == nil {
		m.log.Info("called the cloud", "node", o.Name, "call", s.Call, "interface", c.iface.ID, "units", len(c.units))
		m.metrics.made(&s)
		m.mu.Lock()
		defer m.mu.Unlock()
		c.at = time.Now()
		m.inv.note(c)
		if n := m.nodes[o.Name]; n != nil {
			n.failures = 0
		}
		return nil
	}
	return m.failedCall(ctx, o, w, err)
}

// failedCall takes what a refusal teaches. It returns nil if another call may do.
func (m *Manager) failedCall(ctx context.Context, o *v2.CiliumNode, w *work, err error) error {
	if ctx.Err() != nil || errors.Is(err, ErrNotLeading) {
		return err
	}
	subnet, n := w.Step.cost()
	kind := kindOf(err)
	if w.Step.Call == AssignIPv6 {
		kind = Other // it teaches nothing of the subnet's IPv4 addresses
	}
	switch kind {
	case Exhausted:
		m.mu.Lock()
		defer m.mu.Unlock()
		// It has fewer than were asked for; half of them are tried next.
		left := max(n/2, 0)
		if w.Step.Addresses <= 1 && w.Step.Prefixes == 0 {
			left = 0
		}
		m.inv.spend(subnet, m.inv.snapshot.Subnets[subnet].Free-left)
		return nil
	case Scattered:
		m.mu.Lock()
		defer m.mu.Unlock()
		m.inv.scattered[subnet] = time.Now()
		m.inv.spend(subnet, -n)
		return nil
	}
	m.restore(w)
	begun := time.Now()
	instance := m.provider.Instance(o)
	list, rerr := m.provider.ReadInstance(ctx, instance)
	if rerr != nil {
		return err // everything is read again soon
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.inv.replaceInstance(instance, list, begun)
	return err
}
