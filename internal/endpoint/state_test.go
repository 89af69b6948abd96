package endpoint_test

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	. "github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// history returns the states that an endpoint went through, one for each, with "!" behind those
// that it entered because something failed.
func history(row Endpoint) []string {
	var out []string
	for _, e := range row.Log {
		s := string(e.State)
		if !e.OK {
			s += "!"
		}
		if len(out) == 0 || out[len(out)-1] != s {
			out = append(out, s)
		}
	}
	return out
}

func (p *process) now(id uint16) Endpoint {
	p.t.Helper()
	row, ok := p.registry.Get(id)
	if !ok {
		p.t.Fatalf("endpoint %d is gone", id)
	}
	return row
}

func (p *process) wantHistory(what string, row Endpoint, want ...string) {
	p.t.Helper()
	if diff := cmp.Diff(want, history(row)); diff != "" {
		p.t.Errorf("%s (-want +got):\n%s\n%+v", what, diff, row.Log)
	}
}

var made = []string{"creating", "waiting-for-identity", "waiting-to-regenerate", "regenerating", "ready"}

// TestStates: the log of an endpoint has every state that it went through, also when the endpoint
// is gone.
func TestStates(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	row := p.mustCreate(1)
	p.wantHistory("created", p.now(row.ID), made...)
	if _, err := p.SetLabels(t.Context(), row.ID, labels.NewSet(labels.New(labels.SourceK8s, "tier", "a")), nil); err != nil {
		t.Fatal(err)
	}
	p.wantHistory("relabelled", p.now(row.ID), slices.Concat(made, made[1:])...)

	p = started(t, m, dir)
	p.wantHistory("after a restart", p.now(row.ID), "restoring", "ready")
	if n, err := p.Delete(row.ID); n != 0 || err != nil {
		t.Fatalf("%d steps failed, %v", n, err)
	}
	for _, id := range []string{"cilium-local:1", "cep-name:" + row.Pod(), "ipv4:" + row.IPv4.String(), "cni-attachment-id:" + row.AttachmentID(), "container-id:" + row.ContainerID} {
		ref, err := ParseRef(id)
		if err != nil {
			t.Fatal(err)
		}
		if ref.Kind == RefLocalID {
			ref.Local = row.ID
		}
		past, err := p.registry.Past(ref)
		if err != nil {
			t.Errorf("%s: %v", id, err)
			continue
		}
		p.wantHistory(id, past, "restoring", "ready", "disconnecting", "disconnected")
	}

	// One that cannot be made.
	m.fault = failing("AttachEndpoint")
	if _, err := p.Create(t.Context(), p.plug(2)); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	m.fault = failing()
	past, err := p.registry.Past(Ref{Kind: RefIP, Addr: RowOf(2).IPv4})
	if err != nil {
		t.Fatal(err)
	}
	p.wantHistory("not created", past, "creating", "waiting-for-identity", "waiting-to-regenerate", "regenerating", "invalid!")
	if last := past.Log[len(past.Log)-1]; !strings.Contains(last.Message, errInjected.Error()) {
		t.Errorf("the log does not say why: %+v", last)
	}
}

// TestFailedChange: a change that fails leaves the endpoint not ready, and ready again only when
// the change is undone, or done.
func TestFailedChange(t *testing.T) {
	t.Parallel()
	other := labels.NewSet(labels.New(labels.SourceK8s, "app", "other"))
	for _, op := range []string{"Acquire", "Place", "AttachEndpoint", "EnsureEndpoint"} {
		m := newMachine()
		p := started(t, m, t.TempDir())
		row := p.mustCreate(1)

		// Through the API: the caller is notified, and the change is over.
		m.fault = once(op)
		if _, err := p.SetLabels(t.Context(), row.ID, other, nil); !errors.Is(err, errInjected) {
			t.Fatalf("%s: %v", op, err)
		}
		got := history(p.now(row.ID))
		if !slices.Equal(got[len(got)-2:], []string{"not-ready!", "ready"}) {
			t.Errorf("%s: %q, want not-ready and then ready", op, got)
		}
		p.audit(op + " failed")

		// What cannot be undone is not ready until it can.
		if op != "Acquire" {
			m.fault = failing(op)
			if _, err := p.SetLabels(t.Context(), row.ID, other, nil); !errors.Is(err, errInjected) {
				t.Fatalf("%s: %v", op, err)
			}
			if err := p.Recover(t.Context()); !errors.Is(err, errInjected) {
				t.Errorf("%s goes on failing: %v", op, err)
			}
			if now := p.now(row.ID); now.State != StateNotReady {
				t.Errorf("%s goes on failing: the endpoint is %s", op, now.State)
			}
			m.fault = failing()
			if err := p.Recover(t.Context()); err != nil {
				t.Errorf("%s: %v", op, err)
			}
			p.audit(op + " recovered")
		}

		// The workload's own labels are insisted on. Repeated failures leave one line.
		m.fault = failing(op)
		for range 5 {
			if _, err := p.SetWorkload(t.Context(), row.ID, other, nil); !errors.Is(err, errInjected) {
				t.Fatalf("%s: %v", op, err)
			}
		}
		if now := p.now(row.ID); now.State != StateNotReady || len(now.Log) >= MaxLog {
			t.Errorf("%s goes on failing: the endpoint is %s, %d lines", op, now.State, len(now.Log))
		}
		m.fault = failing()
		if err := p.Recover(t.Context()); err != nil || p.now(row.ID).State != StateNotReady {
			t.Errorf("%s: a change that is insisted on is given up: %s, %v", op, p.now(row.ID).State, err)
		}
		if _, err := p.SetWorkload(t.Context(), row.ID, other, nil); err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		if now := p.now(row.ID); now.State != StateReady || !now.Labels.Equal(other) {
			t.Errorf("%s: the endpoint is %s with %s", op, now.State, now.Labels)
		}
		p.audit(op + " done at last")

		// Back to what it was, before the change succeeded.
		m.fault = failing(op)
		if _, err := p.SetWorkload(t.Context(), row.ID, row.Labels, nil); !errors.Is(err, errInjected) {
			t.Fatalf("%s: %v", op, err)
		}
		m.fault = failing()
		if _, err := p.SetWorkload(t.Context(), row.ID, other, nil); err != nil {
			t.Fatalf("%s: %v", op, err)
		}
		p.audit(op + " withdrawn")
	}
}

// TestInsistedChange: what the source of the labels insists on stays known, whatever else fails;
// and an endpoint whose change was not undone is not ready.
func TestInsistedChange(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	row := p.mustCreate(1)
	app := func(name string) labels.Set { return labels.NewSet(labels.New(labels.SourceK8s, "app", name)) }
	want := func(what string, insisted bool) {
		t.Helper()
		if now := p.now(row.ID); now.State != StateNotReady || now.Insisted != insisted {
			t.Errorf("%s: the endpoint is %s, insisted on: %v, want %v", what, now.State, now.Insisted, insisted)
		}
	}
	// An API's change that cannot be undone.
	m.fault = failing("EnsureEndpoint")
	if _, err := p.SetLabels(t.Context(), row.ID, app("api"), nil); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	want("not undone", false)
	// The next one does not come as far as the kernel: the kernel is as it was.
	m.fault = failing("Acquire")
	if _, err := p.SetLabels(t.Context(), row.ID, app("other"), nil); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	want("another that fails early", false)
	// The workload's own change is another matter, wherever it fails.
	if _, err := p.SetWorkload(t.Context(), row.ID, app("workload"), nil); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	want("a change that is insisted on", true)
	for _, op := range []string{"Acquire", "Place", "EnsureEndpoint"} {
		m.fault = failing(op)
		if _, err := p.SetLabels(t.Context(), row.ID, app("api"), nil); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
		want("beside an API's change that fails at "+op, true)
	}
	m.fault = failing()
	if err := p.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	want("recovered", true)
	if _, err := p.SetWorkload(t.Context(), row.ID, app("workload"), nil); err != nil {
		t.Fatal(err)
	}
	p.audit("at last")
}

// TestRecoverSkipsBusyEndpoints: an endpoint that is being changed is left to that change, and a
// kernel that does not take an address does not delay other endpoints for long.
func TestRecoverSkipsBusyEndpoints(t *testing.T) {
	t.Parallel()
	m := newMachine()
	placing := &stuckPublisher{fakePublisher: fakePublisher{machine: m}}
	p := started(t, m, t.TempDir(), func(c *Config) { c.Publisher = placing })
	rows := []Endpoint{p.mustCreate(1), p.mustCreate(2)}
	m.fault = failing("EnsureEndpoint")
	for _, row := range rows {
		if _, err := p.SetLabels(t.Context(), row.ID, labels.NewSet(labels.New(labels.SourceK8s, "app", "x")), nil); !errors.Is(err, errInjected) {
			t.Fatal(err)
		}
	}
	m.fault = failing()
	unlock := p.Lock(rows[0].ID)
	if err := p.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	if a, b := p.now(rows[0].ID).State, p.now(rows[1].ID).State; a != StateNotReady || b != StateReady {
		t.Errorf("the one that is being changed is %s, the other %s", a, b)
	}
	unlock()
	placing.stuck = true
	if err := p.Recover(t.Context()); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the kernel does not take an address: %v", err)
	}
	placing.stuck = false
	if err := p.Recover(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.audit("at last")
}

// stuckPublisher is an address table whose kernel does not answer.
type stuckPublisher struct {
	fakePublisher
	stuck   bool
	reached chan struct{} // nil, or has an element once it does not answer
}

func (s *stuckPublisher) Publish(ctx context.Context, row Endpoint) error {
	if s.stuck {
		select {
		case s.reached <- struct{}{}:
		default:
		}
		<-ctx.Done()
		return ctx.Err()
	}
	return s.fakePublisher.Publish(ctx, row)
}

// TestChangeWhileEnding: an agent that ends while an endpoint is changed does not wait for a kernel
// that takes no address any more, to undo the change.
func TestChangeWhileEnding(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	placing := &stuckPublisher{fakePublisher: fakePublisher{machine: m}, reached: make(chan struct{}, 1)}
	p := started(t, m, dir, func(c *Config) { c.Publisher = placing })
	row := p.mustCreate(1)
	other := labels.NewSet(labels.New(labels.SourceK8s, "app", "other"))
	placing.stuck = true
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		_, err := p.SetWorkload(ctx, row.ID, other, nil)
		done <- err
	}()
	<-placing.reached
	cancel()
	select {
	case err := <-done:
		if !errors.Is(err, context.Canceled) {
			t.Errorf("the change said %v", err)
		}
	case <-time.After(20 * time.Second):
		t.Fatal("the change still waits")
	}
	if k := m.row(row); k.Identity != uint32(row.Identity) {
		t.Errorf("the kernel has identity %d, had %s", k.Identity, row.Identity)
	}
	started(t, m, dir).audit("after a restart")
}

// TestIdentityStoreAway: while the store of identities does not answer, an endpoint is deleted and
// relabelled at once: what is not released is taken back later.
func TestIdentityStoreAway(t *testing.T) {
	t.Parallel()
	m := newMachine()
	away := silentRelease{fakeIdentities{m}}
	p := started(t, m, t.TempDir(), func(c *Config) { c.Identities, c.IdentityTimeout = away, time.Minute })
	one, two := p.mustCreate(1), p.mustCreate(2)
	quick := func(what string, f func() error) {
		t.Helper()
		began := time.Now()
		if err := f(); err != nil {
			t.Errorf("%s: %v", what, err)
		}
		if took := time.Since(began); took > 10*time.Second {
			t.Errorf("%s took %v", what, took)
		}
	}
	quick("a deletion", func() error { _, err := p.Delete(one.ID); return err })
	quick("a change of labels", func() error {
		_, err := p.SetLabels(t.Context(), two.ID, labels.NewSet(labels.New(labels.SourceK8s, "tier", "a")), nil)
		return err
	})
	m.kernel.Links.RemoveLink(one.IfIndex)
	p.audit("at the end")
}

// silentRelease is a store of identities that does not answer releases.
type silentRelease struct{ fakeIdentities }

func (s silentRelease) Release(ctx context.Context, id identity.ID, set labels.Set) error {
	<-ctx.Done()
	return errors.Join(ctx.Err(), s.fakeIdentities.Release(ctx, id, set))
}

// TestLabelsWithoutIdentity: labels that make no identity are published like all others.
func TestLabelsWithoutIdentity(t *testing.T) {
	t.Parallel()
	m := newMachine()
	published := map[uint16]labels.Set{}
	p := started(t, m, t.TempDir(), func(c *Config) { c.Publisher = notingPublisher{c.Publisher, published} })
	row := p.mustCreate(1)
	hash := labels.New(labels.SourceK8s, "pod-template-hash", "1")
	got, err := p.SetWorkload(t.Context(), row.ID, row.Labels.With(hash), nil)
	if err != nil || got.Identity != row.Identity {
		t.Fatalf("identity %s, was %s: %v", got.Identity, row.Identity, err)
	}
	if set := published[row.ID]; !set.Has(hash.Source, hash.Key) {
		t.Errorf("%s were published", set)
	}
	p.audit("published")
	m.fault = once("Place")
	if got, err = p.SetWorkload(t.Context(), row.ID, row.Labels, nil); !errors.Is(err, errInjected) || !got.Labels.Has(hash.Source, hash.Key) {
		t.Errorf("a change that is not published: %s, %v", got.Labels, err)
	}
	if got, err = p.SetWorkload(t.Context(), row.ID, row.Labels, nil); err != nil || !got.Labels.Equal(row.Labels) {
		t.Errorf("tried again: %s, %v", got.Labels, err)
	}
	p.audit("tried again")
}

// notingPublisher notes which labels were published.
type notingPublisher struct {
	Publisher
	labels map[uint16]labels.Set
}

func (n notingPublisher) Publish(ctx context.Context, row Endpoint) error {
	n.labels[row.ID] = row.Labels
	return n.Publisher.Publish(ctx, row)
}

// once makes the operation fail at its next call.
func once(op string) func(string) error {
	failed := false
	return func(got string) error {
		if got == op && !failed {
			failed = true
			return errInjected
		}
		return nil
	}
}

// TestTakenOverWithAnotherIdentity: the log of a restored endpoint whose identity is another than
// before says so; while it cannot be taken over it is restoring.
func TestTakenOverWithAnotherIdentity(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	row := started(t, m, dir).mustCreate(1)
	p := boot(t, m, dir)
	if err := p.Load(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := p.Resume(t.Context()); err != nil {
		t.Fatal(err)
	}
	m.numbers = map[string]identity.ID{} // the store lost it
	m.fault = once("AttachEndpoint")
	if err := p.ReacquireOne(context.Background(), row.ID); !errors.Is(err, errInjected) {
		t.Fatal(err)
	}
	if now := p.now(row.ID); now.State != StateRestoring || now.Identity != row.Identity {
		t.Errorf("the endpoint is %s with %s", now.State, now.Identity)
	}
	if err := p.Reacquire(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.wantHistory("taken over", p.now(row.ID), "restoring", "waiting-to-regenerate", "regenerating", "restoring!", "waiting-to-regenerate", "regenerating", "ready")
	if err := p.policy.Synced(); err != nil {
		t.Fatal(err)
	}
	p.audit("at the end")
}
