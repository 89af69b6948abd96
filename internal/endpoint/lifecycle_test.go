package endpoint_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/datapath"
	. "github.com/hawser-net/hawser/internal/endpoint"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// failing makes the named operations fail.
func failing(ops ...string) func(string) error {
	return func(op string) error {
		if slices.Contains(ops, op) {
			return errInjected
		}
		return nil
	}
}

// TestCreateUndoesEverything fails a creation at each of its operations in turn.
func TestCreateUndoesEverything(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"Claim", "Acquire", "Place", "InstallRuleSet", "UpsertEndpoint", "AttachEndpoint", "EnsureEndpoint", "Commit"} {
		m := newMachine()
		p := started(t, m, t.TempDir())
		req := p.plug(1)
		m.fault = failing(op)
		if _, err := p.Create(t.Context(), req); !errors.Is(err, errInjected) {
			t.Errorf("%s failed, the creation said %v", op, err)
		}
		m.fault = failing()
		for _, ip := range req.Addresses() { // they are the caller's again
			if m.given[ip] == "" {
				t.Errorf("%s failed: address %s was freed, which is its owner's to do", op, ip)
			}
			fakeAddresses{m}.Free(ip)
		}
		if err := p.policy.Retry(); err != nil {
			t.Errorf("%s: %v", op, err)
		}
		p.audit(op + " failed")
		p.mustCreate(1)
		p.audit("created after " + op + " failed")
	}
}

func TestCreateRefusesDuplicates(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	first := p.mustCreate(1)
	for name, change := range map[string]func(*CreateRequest){
		"attachment": func(r *CreateRequest) { r.ContainerID = first.ContainerID },
		"address":    func(r *CreateRequest) { r.IPv4 = first.IPv4 },
		"number":     func(r *CreateRequest) { r.ID = first.ID },
	} {
		row := RowOf(2)
		req := CreateRequest{Attachment: row.Attachment, Labels: row.Labels}
		change(&req)
		if _, err := p.Create(t.Context(), req); !errors.Is(err, ErrExists) {
			t.Errorf("same %s: %v, want ErrExists", name, err)
		}
	}
	for name, change := range map[string]func(*CreateRequest){
		"no address":   func(r *CreateRequest) { r.IPv4, r.IPv6 = netip.Addr{}, netip.Addr{} },
		"loopback":     func(r *CreateRequest) { r.IPv4 = netip.MustParseAddr("127.0.0.1") },
		"no interface": func(r *CreateRequest) { r.IfIndex = 0 },
		"no mac":       func(r *CreateRequest) { r.MAC = nil },
	} {
		row := RowOf(3)
		req := CreateRequest{Attachment: row.Attachment}
		change(&req)
		if _, err := p.Create(t.Context(), req); !errors.Is(err, ErrInvalid) {
			t.Errorf("%s: %v, want ErrInvalid", name, err)
		}
	}
	p.audit("at the end")
}

// held is a step at which a creation waits until it is released.
type held struct {
	step             string
	reached, proceed chan struct{}
	once             sync.Once
}

func holdAt(step string) *held {
	return &held{step: step, reached: make(chan struct{}), proceed: make(chan struct{})}
}

func (h *held) config(c *Config) {
	c.Step = func(step string) {
		if step == h.step {
			h.once.Do(func() {
				close(h.reached)
				<-h.proceed
			})
		}
	}
}

// TestDeleteCancelsCreation: a deletion does not wait for a creation to succeed.
func TestDeleteCancelsCreation(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"claim-addresses", "identity", "store", "place", "programs"} {
		m := newMachine()
		h := holdAt(step)
		p := started(t, m, t.TempDir(), h.config)
		req := p.plug(1)
		result := make(chan error, 1)
		go func() {
			_, err := p.Create(context.Background(), req)
			result <- err
		}()
		<-h.reached
		row := p.registry.List()[0]
		deleted := make(chan error, 1)
		go func() {
			_, err := p.Delete(row.ID)
			deleted <- err
		}()
		// When it waits for the row it has cancelled the creation.
		for waiting := false; !waiting; time.Sleep(time.Millisecond) {
			waiting = p.Queued(row.ID)
		}
		close(h.proceed)
		if err := <-result; !errors.Is(err, ErrSuperseded) {
			t.Errorf("at %s: the creation ended with %v, want ErrSuperseded", step, err)
		}
		if err := <-deleted; !errors.Is(err, ErrNotFound) {
			t.Errorf("at %s: the deletion ended with %v, want ErrNotFound: the creation has undone itself", step, err)
		}
		for _, ip := range req.Addresses() {
			fakeAddresses{m}.Free(ip)
		}
		p.audit("deleted at " + step)
	}
}

// TestNewerCreationSupersedes: a pod that is attached anew before the first attempt is through
// gets the second; the first is undone.
func TestNewerCreationSupersedes(t *testing.T) {
	t.Parallel()
	m := newMachine()
	h := holdAt("identity")
	p := started(t, m, t.TempDir(), h.config)
	first := p.plug(1)
	result := make(chan error, 1)
	go func() {
		_, err := p.Create(context.Background(), first)
		result <- err
	}()
	<-h.reached
	second := p.plug(2)
	second.PodName = first.PodName
	for _, ip := range second.Addresses() {
		m.given[ip] = second.Owner()
	}
	done := make(chan error, 1)
	go func() {
		_, err := p.Create(context.Background(), second)
		done <- err
	}()
	for waiting := false; !waiting; time.Sleep(time.Millisecond) {
		waiting = p.Queued(0)
	}
	close(h.proceed)
	if err := <-result; !errors.Is(err, ErrSuperseded) {
		t.Errorf("the older creation ended with %v, want ErrSuperseded", err)
	}
	if err := <-done; err != nil {
		t.Errorf("the newer creation ended with %v", err)
	}
	for _, ip := range first.Addresses() {
		fakeAddresses{m}.Free(ip)
	}
	p.audit("at the end")
}

// TestRelabel: a changed label changes the identity in kernel, address table and on disk; a change
// that fails leaves everything as it was.
func TestRelabel(t *testing.T) {
	t.Parallel()
	user := labels.NewSet(labels.New(labels.SourceK8s, "tier", "front"))
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	row := p.mustCreate(1)
	for _, op := range []string{"Acquire", "Place", "InstallRuleSet", "UpsertEndpoint", "AttachEndpoint", "EnsureEndpoint"} {
		// Each fails once; what puts the endpoint back must not.
		failed := false
		m.fault = func(got string) error {
			if got == op && !failed {
				failed = true
				return errInjected
			}
			return nil
		}
		got, err := p.SetLabels(t.Context(), row.ID, user, nil)
		m.fault = failing()
		if op == "InstallRuleSet" || op == "UpsertEndpoint" {
			// Policy tries again by itself.
			if rerr := p.policy.Retry(); rerr != nil {
				t.Errorf("%s: %v", op, rerr)
			}
			if err == nil {
				if _, err := p.SetLabels(t.Context(), row.ID, nil, nil); err != nil {
					t.Fatal(err)
				}
			}
			p.audit(op + " failed once")
			continue
		}
		if !errors.Is(err, errInjected) || got.Identity != row.Identity {
			t.Errorf("%s: identity %d, %v; want %d and the injected fault", op, got.Identity, err, row.Identity)
		}
		p.audit(op + " failed once")
	}
	got, err := p.SetLabels(t.Context(), row.ID, user, nil)
	if err != nil || got.Identity == row.Identity || !got.IdentityLabels.Has(labels.SourceK8s, "tier") {
		t.Errorf("labels %s, identity %d, %v; want another identity", got.IdentityLabels, got.Identity, err)
	}
	p.audit("after the change")
	p = started(t, m, dir)
	if again, _ := p.registry.Get(row.ID); again.Identity != got.Identity {
		t.Errorf("after a restart the identity is %d, want %d", again.Identity, got.Identity)
	}
	p.audit("after the restart")
	// Suppressing all labels makes the endpoint reserved:init.
	got, err = p.SetLabels(t.Context(), row.ID, nil, labels.NewSet(labels.New(labels.SourceK8s, "app", "")))
	if err != nil || !got.IdentityLabels.HasReserved("init") {
		t.Errorf("without labels the endpoint has %s, %v", got.IdentityLabels, err)
	}
	p.audit("without labels")
}

// TestRestoredReferences: between a restart and the moment when a restored endpoint has its
// reference again, deleting or relabelling it must give back nothing that others hold.
func TestRestoredReferences(t *testing.T) {
	t.Parallel()
	for name, change := range map[string]func(p *process, id uint16) error{
		"delete": func(p *process, id uint16) error { _, err := p.Delete(id); return err },
		"relabel": func(p *process, id uint16) error {
			_, err := p.SetLabels(context.Background(), id, labels.NewSet(labels.New(labels.SourceK8s, "tier", "x")), nil)
			return err
		},
	} {
		m, dir := newMachine(), t.TempDir()
		p := started(t, m, dir)
		req1, req2 := p.plug(1), p.plug(2)
		req2.Labels = req1.Labels
		if _, err := p.Create(t.Context(), req1); err != nil {
			t.Fatal(err)
		}
		second, err := p.Create(t.Context(), req2)
		if err != nil {
			t.Fatal(err)
		}
		p = boot(t, m, dir)
		if err := p.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.ReacquireOne(t.Context(), p.registry.List()[0].ID); err != nil { // the first only
			t.Fatal(err)
		}
		if err := change(p, second.ID); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if err := p.Reacquire(t.Context()); err != nil {
			t.Fatal(err)
		}
		if err := p.policy.Synced(); err != nil {
			t.Fatal(err)
		}
		p.audit(name)
	}
}

// crash ends the agent inside a call, as a kill would.
type crash struct{}

// TestCrashAtEveryStep ends the agent before each step of a creation, a deletion and what follows,
// and starts it again; the plugin then does what a runtime makes it do: delete.
func TestCrashAtEveryStep(t *testing.T) {
	t.Parallel()
	var steps []string
	p := started(t, newMachine(), t.TempDir(), func(c *Config) { c.Step = func(s string) { steps = append(steps, s) } })
	row := p.mustCreate(1)
	creation := len(steps)
	if _, err := p.Delete(row.ID); err != nil {
		t.Fatal(err)
	}
	if creation < 8 || len(steps)-creation < 5 {
		t.Fatalf("steps %q: some are missing", steps)
	}
	for i, step := range steps {
		m, dir := newMachine(), t.TempDir()
		armed := false
		p := started(t, m, dir, func(c *Config) {
			c.Step = func(s string) {
				if armed && s == step {
					panic(crash{})
				}
			}
		})
		neighbour := p.mustCreate(2)
		req := p.plug(1)
		die := func(f func()) {
			defer func() {
				if r := recover(); r != (crash{}) {
					panic(r)
				}
			}()
			f()
			t.Errorf("step %s was not reached", step)
		}
		if i < creation {
			armed = true
			die(func() { _, _ = p.Create(t.Context(), req) })
		} else {
			row := p.mustCreate(1)
			armed = true
			die(func() { _, _ = p.Delete(row.ID) })
		}

		p = started(t, m, dir)
		// The runtime deletes, however far the agent had come.
		if row, err := p.registry.Find(Ref{Kind: RefAttachment, Text: req.AttachmentID()}); err == nil {
			if _, err := p.Delete(row.ID); err != nil {
				t.Errorf("%s: %v", step, err)
			}
		}
		m.kernel.Links.RemoveLink(req.IfIndex)
		p.audit("crashed at " + step)
		if p.registry.Len() != 1 {
			t.Errorf("crashed at %s: %d endpoints are left, want the neighbour only", step, p.registry.Len())
		}
		if _, ok := p.registry.Get(neighbour.ID); !ok {
			t.Errorf("crashed at %s: the neighbour is gone", step)
		}
		p.mustCreate(1)
		p.audit("created after a crash at " + step)
	}
}

// TestRestoreDropsWhatIsGone: endpoints whose interface went while no agent ran are removed.
func TestRestoreDropsWhatIsGone(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	gone, stays := p.mustCreate(1), p.mustCreate(2)
	m.kernel.Links.RemoveLink(gone.IfIndex)
	// An interface may have the ID of one that is gone.
	p.mustCreate(3)
	m.kernel.Links.RemoveLink(RowOf(3).IfIndex)
	m.addLink(RowOf(3).IfIndex, "lxcother", false)
	p = started(t, m, dir)
	if rows := p.registry.List(); len(rows) != 1 || rows[0].ID != stays.ID {
		t.Errorf("restored %d endpoints, want ID %d only", len(rows), stays.ID)
	}
	p.audit("after the restart")
}

// TestSweep: an interface without an endpoint is removed when its grace has passed, not before,
// and never one that got its endpoint meanwhile, or that another network plugin has made.
func TestSweep(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	p.mustCreate(1)
	m.addLink(900, "lxcabandoned", false)
	m.kernel.Links.AddLink(datapath.EndpointLink{Name: "lxcforeign", IfIndex: 901, Up: true})
	late := p.plug(2)
	sweep := func() {
		t.Helper()
		if err := p.Sweep(); err != nil {
			t.Fatal(err)
		}
	}
	sweep()
	p.clock = p.clock.Add(59 * time.Second)
	sweep()
	if m.link(900).Name == "" {
		t.Fatal("the interface was removed before its time")
	}
	if _, err := p.Create(t.Context(), late); err != nil {
		t.Fatal(err)
	}
	p.clock = p.clock.Add(2 * time.Second)
	sweep()
	if m.link(900).Name != "" {
		t.Error("the abandoned interface is still there")
	}
	if m.link(901).Name == "" {
		t.Error("the interface of another plugin was removed")
	}
	p.audit("after the sweep")
	// Another interface under the old one's name and ID starts anew.
	m.addLink(900, "lxcabandoned", false)
	sweep()
	if m.link(900).Name == "" {
		t.Error("a new interface did not get its grace")
	}
}

// TestReattach: an interface whose programs were detached has them back at once, is shut where they
// cannot be put back, and comes up with them only.
func TestReattach(t *testing.T) {
	ctx := context.Background()
	m := newMachine()
	p := started(t, m, t.TempDir())
	var index []int
	for i := range 3 {
		req := p.plug(i + 1)
		if _, err := p.Create(ctx, req); err != nil {
			t.Fatal(err)
		}
		index = append(index, req.IfIndex)
	}
	state := func() (out string) {
		for _, i := range index {
			out += fmt.Sprintf("%t/%t ", m.attached(i), m.link(i).Up)
		}
		return out
	}
	want := func(when, want string) {
		t.Helper()
		if got := state(); got != want {
			t.Errorf("%s: attached/up are %q, want %q", when, got, want)
		}
	}
	reattach := func(ifIndex, wantRestored int, wantErr string) {
		t.Helper()
		n, err := p.Reattach(ifIndex)
		if n != wantRestored || (err != nil) != (wantErr != "") || err != nil && !strings.Contains(err.Error(), wantErr) {
			t.Errorf("interface %d: %d restored, error %v; want %d and %q", ifIndex, n, err, wantRestored, wantErr)
		}
	}
	reattach(0, 0, "")
	want("nothing is missing", "true/true true/true true/true ")
	m.kernel.Programs.Detach(index[1])
	reattach(index[1], 1, "")
	want("one was reported", "true/true true/true true/true ")
	m.kernel.Programs.Detach(index[0])
	m.kernel.Programs.Detach(index[2])
	reattach(9999, 0, "")
	want("one that is no endpoint's was reported", "false/true true/true false/true ")
	reattach(0, 2, "")
	want("two were not reported", "true/true true/true true/true ")

	m.fault = func(op string) error {
		if op == "AttachEndpoint" {
			return errInjected
		}
		return nil
	}
	m.kernel.Programs.Detach(index[0])
	reattach(index[0], 0, "is shut")
	want("it cannot be put back", "false/false true/true true/true ")
	if err := p.Repair(); err == nil {
		t.Error("the repair says nothing of an interface without programs")
	}
	want("a repair", "false/false true/true true/true ")
	// So does an agent that starts.
	p = boot(t, m, p.dir)
	if err := p.Load(ctx); err != nil {
		t.Fatal(err)
	}
	m.addLink(index[0], m.link(index[0]).Name, true)
	if _, err := p.Resume(ctx); err != nil {
		t.Fatal(err)
	}
	want("a restart", "false/false true/true true/true ")
	m.fault = func(op string) error {
		if op == "AttachEndpoint" || op == "ShutLink" {
			return errInjected
		}
		return nil
	}
	m.addLink(index[0], m.link(index[0]).Name, true)
	reattach(index[0], 0, "CANNOT BE SHUT")
	m.fault = func(string) error { return nil }
	reattach(0, 1, "")
	want("it can", "true/true true/true true/true ")
	if len(m.breaches) > 0 {
		t.Error(m.breaches)
	}
}

// TestRenumber: an ID that the cluster lost is replaced everywhere it was used.
func TestRenumber(t *testing.T) {
	t.Parallel()
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	req1, req2 := p.plug(1), p.plug(2)
	req2.Labels = req1.Labels
	row, err := p.Create(t.Context(), req1)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := p.Create(t.Context(), req2); err != nil {
		t.Fatal(err)
	}
	p.mustCreate(3)
	m.numbers[row.IdentityLabels.String()] = 5000
	p.Renumber(t.Context(), row.IdentityLabels, 5000)
	p.Renumber(t.Context(), row.IdentityLabels, 5000) // the event may come twice
	p.audit("after the change")
	for _, r := range p.registry.List()[:2] {
		if r.Identity != 5000 {
			t.Errorf("endpoint %d has identity %d", r.ID, r.Identity)
		}
	}
	started(t, m, dir).audit("after a restart")
}

// TestRenumberFails: a renumbering that fails is done again by Recover, for the cluster has the
// former ID no more and asks for the change only once.
func TestRenumberFails(t *testing.T) {
	t.Parallel()
	for _, op := range []string{"Place", "AttachEndpoint", "EnsureEndpoint"} {
		m, dir := newMachine(), t.TempDir()
		p := started(t, m, dir)
		row := p.mustCreate(1)
		m.numbers[row.IdentityLabels.String()] = 5000
		m.fault = failing(op)
		p.Renumber(t.Context(), row.IdentityLabels, 5000)
		for range 2 {
			if now := p.now(row.ID); now.State != StateNotReady || now.Identity != row.Identity {
				t.Errorf("%s fails: the endpoint is %s with %s", op, now.State, now.Identity)
			}
			if err := p.Recover(t.Context()); !errors.Is(err, errInjected) {
				t.Errorf("%s goes on failing: %v", op, err)
			}
		}
		m.fault = failing()
		if err := p.Recover(t.Context()); err != nil {
			t.Errorf("after %s failed: %v", op, err)
		}
		if now := p.now(row.ID); now.Identity != 5000 {
			t.Errorf("after %s failed the endpoint has %s", op, now.Identity)
		}
		p.audit("after " + op + " failed")
		// Other labels end it, too.
		m.numbers[row.IdentityLabels.String()] = 6000
		m.fault = failing(op)
		p.Renumber(t.Context(), row.IdentityLabels, 6000)
		m.fault = failing()
		if _, err := p.SetLabels(t.Context(), row.ID, labels.NewSet(labels.New(labels.SourceK8s, "tier", "a")), nil); err != nil {
			t.Error(err)
		}
		if err := p.Recover(t.Context()); err != nil {
			t.Error(err)
		}
		p.audit("with other labels after " + op + " failed")
		started(t, m, dir).audit("after a restart")
		// One that is not taken up yet goes on to wait for that.
		p = boot(t, m, dir)
		if err := p.Load(t.Context()); err != nil {
			t.Fatal(err)
		}
		if _, err := p.Resume(t.Context()); err != nil {
			t.Fatal(err)
		}
		was := p.now(row.ID)
		m.numbers[was.IdentityLabels.String()] = 7000
		m.fault = failing(op)
		p.Renumber(t.Context(), was.IdentityLabels, 7000)
		m.fault = failing()
		for _, want := range []identity.ID{was.Identity, 7000} {
			if now := p.now(row.ID); now.State != StateRestoring || now.Identity != want {
				t.Errorf("%s failed: a restored endpoint is %s with %s, want %s", op, now.State, now.Identity, want)
			}
			if err := p.Recover(t.Context()); err != nil {
				t.Error(err)
			}
		}
		if err := errors.Join(p.Reacquire(t.Context()), p.policy.Synced()); err != nil {
			t.Error(err)
		}
		p.audit("taken up after " + op + " failed")
	}
}

// TestRepairBesideDeletion: a repair touches no interface of an endpoint that was deleted since it
// began, whose address another may have by now; and one that is being changed it leaves to Recover.
func TestRepairBesideDeletion(t *testing.T) {
	t.Parallel()
	m := newMachine()
	links := &notingLinks{fakeLinks: fakeLinks{m.kernel.Links, m}}
	p := started(t, m, t.TempDir(), func(c *Config) { c.Links = links })
	first, gone, busy := p.mustCreate(1), p.mustCreate(2), p.mustCreate(3)
	links.ensured = nil
	links.before = func() { // with the list of endpoints in hand
		links.before = nil
		if _, err := p.Delete(gone.ID); err != nil {
			t.Error(err)
		}
		m.kernel.Links.RemoveLink(gone.IfIndex)
	}
	unlock := p.Lock(busy.ID)
	if err := p.Repair(); err != nil {
		t.Errorf("the repair said %v", err)
	}
	if want := []uint16{first.ID}; !slices.Equal(links.ensured, want) {
		t.Errorf("repaired were %d, want %d", links.ensured, want)
	}
	unlock()
	for range 2 {
		if err := p.Recover(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if want := []uint16{first.ID, busy.ID}; !slices.Equal(links.ensured, want) {
		t.Errorf("repaired were in the end %d, want %d", links.ensured, want)
	}
	p.audit("at the end")
}

// notingLinks note which endpoints' interfaces are set up, and call before first.
type notingLinks struct {
	fakeLinks
	before  func()
	ensured []uint16
}

func (l *notingLinks) EnsureEndpoint(ep datapath.Endpoint) error {
	if l.before != nil {
		l.before()
	}
	l.ensured = append(l.ensured, ep.ID)
	return l.fakeLinks.EnsureEndpoint(ep)
}

// TestRandomLife does random things with random faults and restarts, and compares everything with
// the registry whenever the faults stop.
func TestRandomLife(t *testing.T) {
	t.Parallel()
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	rounds := 60
	switch {
	case os.Getenv("HAWSER_LONG") != "":
		rounds = 5000
	case testing.Short():
		rounds = 15
	}
	rnd := rand.New(rand.NewPCG(seed, 2))
	m, dir := newMachine(), t.TempDir()
	p := started(t, m, dir)
	const pods = 12
	apps := []string{"web", "db", "cache"}
	for round := range rounds {
		probability := []float64{0, 0.02, 0.2}[rnd.IntN(3)]
		var fmu sync.Mutex
		m.fault = func(op string) error {
			fmu.Lock()
			defer fmu.Unlock()
			if op != "Restore" && rnd.Float64() < probability {
				return errInjected
			}
			return nil
		}
		var log []string
		for range 20 {
			n := 1 + rnd.IntN(pods)
			ref := Ref{Kind: RefAttachment, Text: RowOf(n).AttachmentID()}
			row, err := p.registry.Find(ref)
			there := err == nil
			switch k := rnd.IntN(16); {
			case k < 5 && !there:
				req := namespaced(p.plug(n), apps[rnd.IntN(len(apps))])
				_, err := p.Create(t.Context(), req)
				log = append(log, fmt.Sprintf("create %d: %v", n, err))
				if err != nil { // the plugin rolls back
					for _, ip := range req.Addresses() {
						fakeAddresses{m}.Free(ip)
					}
					m.kernel.Links.RemoveLink(req.IfIndex)
				}
			case k < 5:
				_, err := p.Create(t.Context(), p.plug(n))
				if !errors.Is(err, ErrExists) {
					t.Fatalf("a duplicate of %d: %v", n, err)
				}
			case k < 8 && there:
				failures, err := p.Delete(row.ID)
				log = append(log, fmt.Sprintf("delete %d: %d, %v", n, failures, err))
				if err != nil {
					t.Fatal(err)
				}
				m.kernel.Links.RemoveLink(row.IfIndex) // the runtime deletes the namespace
			case k < 9 && there:
				var user labels.Set
				if rnd.IntN(2) == 0 {
					user = labels.NewSet(labels.New(labels.SourceK8s, "tier", apps[rnd.IntN(len(apps))]))
				}
				_, err := p.SetLabels(t.Context(), row.ID, user, nil)
				log = append(log, fmt.Sprintf("relabel %d: %v", n, err))
			case k < 10:
				app := apps[rnd.IntN(len(apps))]
				spec := ""
				if rnd.IntN(3) > 0 {
					spec = allowPorts(app, 80+rnd.IntN(3), 1+rnd.IntN(4))
				}
				err := setRules(t, p.policy, app, spec)
				log = append(log, fmt.Sprintf("rules %s: %v", app, err))
			case k < 11:
				id := identity.ID(3000 + rnd.IntN(5))
				set, _ := labels.PodLabels(labels.Pod{Namespace: "ns", Labels: map[string]string{"app": fmt.Sprint(id)}, Cluster: "default"})
				var err error
				if rnd.IntN(2) == 0 {
					err = p.policy.SetIdentities(map[identity.ID]labels.Set{id: set}, nil)
				} else {
					err = p.policy.SetIdentities(nil, []identity.ID{id})
				}
				log = append(log, fmt.Sprintf("identity %d: %v", id, err))
			case k < 12:
				m.mu.Lock()
				if m.withheld = !m.withheld; m.withheld && rnd.IntN(2) == 0 {
					m.numbers = map[string]identity.ID{} // for those to come: who has an ID keeps it
				}
				log = append(log, fmt.Sprintf("identities withheld: %v", m.withheld))
				m.mu.Unlock()
			case k < 13:
				waiting, err := p.ReplaceTemporary(t.Context())
				log = append(log, fmt.Sprintf("replace: %+v, %v", waiting, err))
			case k < 14 && there:
				m.mu.Lock()
				m.next++
				id := m.next
				m.numbers[row.IdentityLabels.String()] = id
				m.mu.Unlock()
				p.Renumber(t.Context(), row.IdentityLabels, id)
				log = append(log, fmt.Sprintf("renumber %s: %d", row.IdentityLabels, id))
			case k < 15:
				log = append(log, fmt.Sprintf("repair: %v", errors.Join(p.Repair(), p.Save())))
			default:
				err := errors.Join(p.policy.Retry(), p.Recover(t.Context()))
				log = append(log, fmt.Sprintf("retry: %v", err))
			}
			m.mu.Lock()
			for _, b := range m.breaches {
				t.Errorf("round %d: %s", round, b)
			}
			m.mu.Unlock()
			if t.Failed() {
				t.Fatalf("history of the round:\n%q", log)
			}
		}
		m.fault = failing()
		if err := errors.Join(p.policy.Retry(), p.Recover(t.Context()), p.Repair()); err != nil {
			t.Fatalf("round %d: %v\n%q", round, err, log)
		}
		p.audit(fmt.Sprintf("round %d", round))
		if t.Failed() {
			t.Fatalf("history of the round:\n%q", log)
		}
		if rnd.IntN(3) == 0 {
			p = started(t, m, dir)
			p.audit(fmt.Sprintf("restart after round %d", round))
		}
	}
}

// TestCrowd does things to a few pods from many goroutines at once.
func TestCrowd(t *testing.T) {
	t.Parallel()
	m := newMachine()
	p := started(t, m, t.TempDir())
	var wg sync.WaitGroup
	for n := 1; n <= 8; n++ {
		wg.Go(func() {
			for i := range 15 {
				req := namespaced(p.plug(n), "web")
				row, err := p.Create(context.Background(), req)
				if err != nil {
					t.Error(err)
					return
				}
				var both sync.WaitGroup
				if i%3 == 0 {
					both.Go(func() {
						_, err := p.SetLabels(context.Background(), row.ID, labels.NewSet(labels.New(labels.SourceK8s, "n", fmt.Sprint(i))), nil)
						if err != nil && !errors.Is(err, ErrNotFound) {
							t.Error(err)
						}
					})
				}
				if i%5 == 0 {
					both.Go(func() { _, _ = p.DeleteContainer(row.ContainerID) })
				}
				if _, err := p.Delete(row.ID); err != nil && !errors.Is(err, ErrNotFound) {
					t.Error(err)
				}
				both.Wait()
			}
		})
		wg.Go(func() {
			for i := range 10 {
				if err := setRules(t, p.policy, fmt.Sprint(n), allowPorts("web", 80+i, 1+n%3)); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
	p.audit("when all have left")
}

// TestStateThatIsNotRead: an agent that its disk does not tell which endpoints there are does not
// begin, and takes the network from none. A record that is damaged costs its own pod only.
func TestStateThatIsNotRead(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		spoil func(dir, record string) error
		left  int // rows in the kernel afterwards; 2 if the agent does not begin
	}{
		"the directory": {func(dir, _ string) error {
			return errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o600))
		}, 2},
		"a record": {func(_, record string) error { return errors.Join(os.Remove(record), os.Mkdir(record, 0o700)) }, 2},
		"damaged":  {func(_, record string) error { return os.WriteFile(record, []byte(`{"id": `), 0o600) }, 1},
	} {
		m, dir := newMachine(), filepath.Join(t.TempDir(), "state")
		p := started(t, m, dir)
		var record string
		for i := 1; i <= 2; i++ {
			row, err := p.Create(t.Context(), p.plug(i))
			if err != nil {
				t.Fatal(err)
			}
			record = filepath.Join(dir, strconv.Itoa(int(row.ID)), "endpoint.json")
		}
		p = boot(t, m, dir)
		if err := c.spoil(dir, record); err != nil {
			t.Fatal(err)
		}
		err := p.Load(t.Context())
		if err == nil {
			if _, err := p.Resume(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if left := len(m.endpoints()); (err != nil) != (c.left == 2) || left != c.left {
			t.Errorf("%s: %d of 2 pods have their rows, want %d; %v", name, left, c.left, err)
		}
		if name == "a record" && (err == nil || !strings.Contains(err.Error(), filepath.Dir(record))) {
			t.Errorf("what to do about it is not in the error: %v", err)
		}
	}
}
