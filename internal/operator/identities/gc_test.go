package identities

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/time/rate"
	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/api/v2alpha1"
	k8sids "github.com/hawser-net/hawser/internal/k8s/identities"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
	"github.com/hawser-net/hawser/internal/testenv/kubeapi"
)

// servers are taken by nearly all tests of this package. More at once would only slow each other
// down.
var servers = controllers.NewPool(4)

func TestMain(m *testing.M) { kubeapi.VerifyTestMain(servers.Around(m)) }

func testConfig() Config {
	return Config{Interval: 15 * time.Minute, Timeout: 30 * time.Minute, Quarantine: 20 * time.Minute, Agents: true,
		Limiter: rate.NewLimiter(rate.Inf, 1), First: 256, Last: 65535}
}

// trial is a collector with a clock of its own.
type trial struct {
	*testing.T
	*controllers.Env
	*collector
	clock time.Time
}

func newTrial(t *testing.T, env *controllers.Env) *trial {
	tr := &trial{T: t, Env: env, clock: time.Now()}
	tr.restart()
	return tr
}

// restart is another operator taking over.
func (tr *trial) restart() {
	tr.collector = newCollector(&asker{client: tr.Client, live: tr.Client}, testConfig(), slog.New(slog.DiscardHandler))
	tr.now = func() time.Time { return tr.clock }
}

// pass lets an interval pass and looks. It returns what became of whom.
func (tr *trial) pass() (marked, deleted []string) {
	tr.Helper()
	before := tr.identities()
	tr.clock = tr.clock.Add(tr.cfg.Interval)
	if _, err := tr.round(tr.Context()); err != nil {
		tr.Fatal(err)
	}
	select {
	case list := <-tr.needless:
		if err := tr.remove(tr.Context(), list); err != nil {
			tr.Fatal(err)
		}
	default:
	}
	after := tr.identities()
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if is, ok := after[name]; !ok {
			deleted = append(deleted, name)
		} else if is && !before[name] {
			marked = append(marked, name)
		}
	}
	return marked, deleted
}

// identities returns the names of those that exist, other than as IDs in quarantine, with whether
// they are marked.
func (tr *trial) identities() map[string]bool {
	tr.Helper()
	var all v2.CiliumIdentityList
	if err := tr.Client.List(tr.Context(), &all); err != nil {
		tr.Fatal(err)
	}
	out := map[string]bool{}
	for _, id := range all.Items {
		if _, _, quarantined := k8sids.Quarantined(&id); quarantined {
			continue
		}
		_, out[id.Name] = id.Annotations[HeartbeatAnnotation]
	}
	return out
}

func (tr *trial) want(pass string, marked, deleted []string, wantMarked, wantDeleted string) {
	tr.Helper()
	if got := strings.Join(marked, " "); got != wantMarked {
		tr.Errorf("%s: marked %q, want %q", pass, got, wantMarked)
	}
	if got := strings.Join(deleted, " "); got != wantDeleted {
		tr.Errorf("%s: deleted %q, want %q", pass, got, wantDeleted)
	}
}

func (tr *trial) identity(name string) {
	tr.Helper()
	tr.Create(tr.T, &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: name}, SecurityLabels: map[string]string{"k8s:app": name}})
}

// use has an endpoint use an identity.
func (tr *trial) use(endpoint string, id int64) *v2.CiliumEndpoint {
	tr.Helper()
	e := &v2.CiliumEndpoint{ObjectMeta: metav1.ObjectMeta{Name: endpoint, Namespace: "default"}}
	e.Status.Identity = &v2.EndpointIdentity{ID: id}
	tr.Create(tr.T, e)
	return e
}

// get returns an object that must be there.
func (tr *trial) get(name string) *v2.CiliumIdentity {
	tr.Helper()
	o := &v2.CiliumIdentity{}
	if err := tr.Client.Get(tr.Context(), client.ObjectKey{Name: name}, o); err != nil {
		tr.Fatal(err)
	}
	return o
}

// freed checks that an ID's object is gone.
func (tr *trial) freed(name string) {
	tr.Helper()
	if err := tr.Client.Get(tr.Context(), client.ObjectKey{Name: name}, &v2.CiliumIdentity{}); !apierrors.IsNotFound(err) {
		tr.Errorf("%s is still in quarantine: %v", name, err)
	}
}

// acquire is an agent taking an identity into use: it removes the mark.
func (tr *trial) acquire(name string) {
	tr.Helper()
	id := &v2.CiliumIdentity{}
	if err := tr.Client.Get(tr.Context(), client.ObjectKey{Name: name}, id); err != nil {
		tr.Fatal(err)
	}
	delete(id.Annotations, HeartbeatAnnotation)
	if err := tr.Client.Update(tr.Context(), id); err != nil {
		tr.Fatal(err)
	}
}

func TestCollection(t *testing.T) {
	t.Parallel()
	env := servers.Take(t)
	for _, row := range []struct {
		name string
		test func(*trial)
	}{
		{"life and death", collectUnused},
		{"quarantine of IDs", collectQuarantine},
		{"only ends are limited, and nothing waits for the last write", collectLimitedEnds},
		{"writes to agents are limited, marks as well as deletions", collectLimitedWrites},
		{"an identity of the operator's is spared for a while, as long as IDs are plenty", collectSpared},
		{"a quarantine under another clock", collectOtherClock},
		{"a quarantine in an old copy", collectRestored},
		{"what agents say where nothing is collected", collectNothing},
		{"confirmations where no ID is in quarantine", collectWithoutQuarantine},
		{"a quarantine until all agents have released the ID", collectConfirmedQuarantine},
		{"Leases of agents are deleted beside the looks", collectLeases},
		{"what cannot be written keeps nothing else from its end", collectUnwritable},
		{"edited", collectEdited},
		{"edited before it was observed", collectEditedBefore},
		{"another operator takes over a quarantine", collectTakenOverQuarantine},
		{"collected by mistake", collectMistake},
		{"another operator takes over", collectTakenOver},
		{"taken into use when marked", collectUsedWhenMarked},
		{"used with a mark", collectUsedWithMark},
		{"a cache that is behind", collectBehind},
		{"failure", collectFailure},
	} {
		t.Run(row.name, func(t *testing.T) { row.test(newTrial(t, env)) })
	}
}

func collectUnused(tr *trial) {
	tr.identity("1000")
	tr.identity("1001")
	tr.identity("1002")
	tr.identity("300000") // of another cluster
	tr.identity("100")    // a well-known one
	tr.identity("word")
	tr.use("by-endpoint", 1000)
	tr.Create(tr.T, &v2alpha1.CiliumEndpointSlice{ObjectMeta: metav1.ObjectMeta{Name: "ces-1"}, Namespace: "default",
		Endpoints: []v2alpha1.CoreCiliumEndpoint{{Name: "by-slice", IdentityID: 1001}}})
	for i, want := range [][2]string{{"", ""}, {"", ""}, {"1002", ""}, {"", ""}, {"", "1002"}, {"", ""}} {
		marked, deleted := tr.pass()
		tr.want(fmt.Sprint("pass ", i), marked, deleted, want[0], want[1])
	}
	if diff := cmp.Diff(map[string]bool{"1000": false, "1001": false, "300000": false, "100": false, "word": false}, tr.identities()); diff != "" {
		tr.Errorf("identities (-want +got):\n%s", diff)
	}
}

func collectQuarantine(tr *trial) {
	tr.identity("1000")
	for range 5 {
		tr.pass()
	}
	o := tr.get("1000")
	if was, since, quarantined := k8sids.Quarantined(o); !quarantined || was != "k8s:app=1000;" || tr.clock.Sub(since) > time.Second {
		tr.Fatalf("after its end: %v, %v", o.Annotations, o.SecurityLabels)
	}
	if len(o.ManagedFields) > 0 {
		tr.Errorf("every agent is sent %v with its end", o.ManagedFields)
	}
	tr.pass() // its first look at the record
	tr.pass() // 15 of 20 minutes
	tr.get("1000")
	tr.pass()
	tr.freed("1000")
}

func collectLimitedEnds(tr *trial) {
	for i := range 8 {
		tr.identity(fmt.Sprint(1000 + i))
	}
	tr.cfg.Limiter = rate.NewLimiter(rate.Every(time.Hour), 3)
	held := &together{Client: tr.client, want: 4, reached: make(chan struct{})}
	tr.client = held
	tr.pass()
	tr.pass()
	marked, deleted := tr.pass()
	tr.want("mark", marked, deleted, "1000 1001 1002 1003 1004 1005 1006 1007", "")
	select {
	case <-held.reached:
	default:
		tr.Error("fewer than 4 identities were marked at once")
	}
	ctx, cancel := context.WithTimeout(tr.Context(), 5*time.Second)
	defer cancel()
	for range 2 {
		tr.clock = tr.clock.Add(tr.cfg.Interval)
		stats, _ := tr.round(ctx)
		if stats.Deleted > 3 {
			tr.Errorf("%d ended; the limit is 3", stats.Deleted)
		}
	}
}

func collectLimitedWrites(tr *trial) {
	for i := range 8 {
		tr.identity(fmt.Sprint(1000 + i))
	}
	for _, name := range []string{"one", "two"} {
		tr.Create(tr.T, &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	agents := 0
	tr.rate = func(n int) rate.Limit {
		agents = n
		return rate.Every(time.Hour)
	}
	tr.writes.SetBurst(3)
	tr.pass()
	tr.pass()
	ctx, cancel := context.WithTimeout(tr.Context(), time.Minute)
	defer cancel()
	tr.clock = tr.clock.Add(tr.cfg.Interval)
	if stats, _ := tr.round(ctx); stats.Marked != 3 || agents != 2 {
		tr.Errorf("%d are marked, want 3; there are %d agents, want 2", stats.Marked, agents)
	}
}

func collectSpared(tr *trial) {
	tr.cfg.Agents, tr.cfg.Timeout = false, 4*tr.cfg.Interval
	tr.identity("1000")
	e := tr.use("by-endpoint", 1000)
	ended := func(passes int) (out []string) {
		for range passes {
			_, deleted := tr.pass()
			out = append(out, deleted...)
		}
		return out
	}
	ended(3)
	for range 3 { // a job that runs now and then
		if err := tr.Client.Delete(tr.Context(), e); err != nil {
			tr.Fatal(err)
		}
		if gone := ended(4); len(gone) > 0 {
			tr.Fatalf("%v have ended between two runs", gone)
		}
		e = tr.use("by-endpoint", 1000)
		ended(1)
	}
	if err := tr.Client.Delete(tr.Context(), e); err != nil {
		tr.Fatal(err)
	}
	if gone := ended(4); len(gone) > 0 {
		tr.Errorf("%v have ended too early", gone)
	}
	if gone := ended(2); !slices.Equal(gone, []string{"1000"}) {
		tr.Errorf("%v have ended, in the end", gone)
	}
	tr.cfg.First, tr.cfg.Last = 1000, 1007
	for i := range 6 {
		tr.identity(fmt.Sprint(1001 + i))
	}
	if gone := ended(2); len(gone) != 6 {
		tr.Errorf("of 8 IDs 7 are taken, and %v have ended", gone)
	}
}

func collectOtherClock(tr *trial) {
	// The clock of the operator that quarantined them was hours behind, and hours ahead.
	for name, off := range map[string]time.Duration{"1000": -5 * time.Hour, "1001": 5 * time.Hour} {
		o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: name}}
		k8sids.Quarantine(o, "k8s:app=x;", tr.clock.Add(off))
		tr.Create(tr.T, o)
	}
	tr.pass()
	tr.pass() // 15 of 20 minutes
	tr.get("1000")
	tr.get("1001")
	tr.pass()
	tr.freed("1000")
	tr.freed("1001")
}

// collectRestored: the server goes back to a copy in which an ID is in quarantine. An API server
// with another etcd is what does that; here the objects and the version are what it shows then.
func collectRestored(tr *trial) {
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "1000"}}
	k8sids.Quarantine(o, "k8s:app=x;", tr.clock)
	tr.Create(tr.T, o)
	tr.pass()
	tr.pass()
	server := tr.live
	tr.live = &older{server}
	tr.pass()
	tr.pass() // 15 of 20 minutes
	tr.get("1000")
	tr.pass()
	tr.freed("1000")
}

// older shows the resource version of a server that has gone back.
type older struct{ client.Reader }

func (o *older) List(ctx context.Context, list client.ObjectList, opts ...client.ListOption) error {
	err := o.Reader.List(ctx, list, opts...)
	list.SetResourceVersion("1")
	return err
}

// wantConfirmations checks that of what an agent confirmed the last is left.
func wantConfirmations(tr *trial, cfg Config) {
	tr.Create(tr.T, &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	for v := range uint64(3) {
		tr.Create(tr.T, k8sids.Confirmation{Node: "one", Version: v + 1}.Lease("kube-system"))
	}
	tr.Env.Run(tr.T, func(_ context.Context, m manager.Manager, log *slog.Logger) error {
		return SetupGC(m, cfg, func(Stats, time.Duration, error) {}, log)
	})
	controllers.Eventually(tr.T, time.Minute, func() string {
		var left coordinationv1.LeaseList
		if err := tr.Client.List(tr.Context(), &left, client.InNamespace("kube-system"), client.MatchingLabels{k8sids.ConfirmationLabel: k8sids.ConfirmationLabelValue}); err != nil {
			return err.Error()
		}
		if len(left.Items) != 1 || !strings.HasSuffix(left.Items[0].Name, ".3") {
			return fmt.Sprintf("%d Leases are left", len(left.Items))
		}
		return ""
	})
}

func collectNothing(tr *trial) {
	wantConfirmations(tr, Config{Namespace: "kube-system"})
}

func collectWithoutQuarantine(tr *trial) {
	cfg := testConfig()
	cfg.Lost, cfg.Namespace = 24*time.Hour, "kube-system"
	wantConfirmations(tr, cfg)
}

func collectConfirmedQuarantine(tr *trial) {
	tr.cfg.Lost, tr.cfg.Namespace = 24*time.Hour, "default"
	for _, name := range []string{"fast", "slow", "old"} { // the last one's agent says nothing
		tr.Create(tr.T, &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}})
	}
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "1000"}}
	k8sids.Quarantine(o, "k8s:app=x;", tr.clock)
	tr.Create(tr.T, o)
	ended := version(o.ResourceVersion)
	say := func(node string, v uint64) {
		tr.Create(tr.T, k8sids.Confirmation{Node: node, Version: v}.Lease("default"))
	}
	waits := func(what string) {
		tr.Helper()
		for range 4 {
			tr.pass()
		}
		tr.get("1000")
		if diff := cmp.Diff([]string{"slow"}, tr.slow); diff != "" {
			tr.Errorf("%s: who is waited for (-want +got):\n%s", what, diff)
		}
	}
	say("fast", ended)
	say("slow", 1)
	say("gone", 1) // no such node
	waits("slow has not observed it")
	say("slow", ended-1)
	waits("slow has not observed it either")
	say("slow", ended+1000)
	waits("slow has observed what has not happened yet: the server was put back since")
	say("slow", ended)
	say("slow", 0)
	waits("slow has taken back what it said")
	tr.Create(tr.T, k8sids.Confirmation{Node: "slow", Version: ended, Origin: "again"}.Lease("default"))
	tr.pass()
	tr.freed("1000")
	var left coordinationv1.LeaseList
	if err := tr.Client.List(tr.Context(), &left, client.InNamespace("default")); err != nil {
		tr.Fatal(err)
	}
	confirmed := map[string]int{}
	for i := range left.Items {
		if h, ok := k8sids.ReadConfirmation(&left.Items[i]); ok {
			confirmed[h.Node]++
		}
	}
	if diff := cmp.Diff(map[string]int{"fast": 1, "slow": 1, "gone": 1}, confirmed); diff != "" {
		tr.Errorf("Leases that are left (-want +got):\n%s", diff)
	}
	// One that says nothing for long enough counts as lost, by the clock of this operator
	// alone.
	o = &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "1001"}}
	k8sids.Quarantine(o, "k8s:app=x;", tr.clock.Add(-48*time.Hour))
	tr.Create(tr.T, o)
	say("fast", version(o.ResourceVersion))
	for range 5 {
		tr.pass()
	}
	tr.get("1001")
	tr.clock = tr.clock.Add(24 * time.Hour)
	tr.pass()
	tr.freed("1001")
	// And so does one that is no node any more.
	o = &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "1002"}}
	k8sids.Quarantine(o, "k8s:app=x;", tr.clock.Add(-48*time.Hour))
	tr.Create(tr.T, o)
	for range 3 {
		tr.pass()
	}
	tr.get("1002")
	for _, name := range []string{"fast", "slow"} {
		if err := tr.Client.Delete(tr.Context(), &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: name}}); err != nil {
			tr.Fatal(err)
		}
	}
	tr.pass()
	tr.freed("1002")
}

func collectLeases(tr *trial) {
	tr.cfg.Lost, tr.cfg.Namespace = 24*time.Hour, "default"
	tr.Create(tr.T, &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "one"}})
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "1000"}}
	k8sids.Quarantine(o, "k8s:app=x;", tr.clock)
	tr.Create(tr.T, o)
	for v := range uint64(20) {
		tr.Create(tr.T, k8sids.Confirmation{Node: "one", Version: v + 1}.Lease("default"))
	}
	tr.Create(tr.T, k8sids.Confirmation{Node: "one", Version: version(o.ResourceVersion)}.Lease("default"))
	leases := func() int {
		var all coordinationv1.LeaseList
		if err := tr.Client.List(tr.Context(), &all, client.InNamespace("default")); err != nil {
			tr.Fatal(err)
		}
		return len(all.Items)
	}
	for range 3 {
		tr.clock = tr.clock.Add(tr.cfg.Interval)
		if _, err := tr.round(tr.Context()); err != nil {
			tr.Fatal(err)
		}
	}
	tr.freed("1000")
	if n := leases(); n != 21 {
		tr.Errorf("looks have deleted %d Leases", 21-n)
	}
	held := &together{Client: tr.client, want: 4, reached: make(chan struct{})}
	tr.client = held
	if err := tr.remove(tr.Context(), <-tr.needless); err != nil {
		tr.Fatal(err)
	}
	if n := leases(); n != 1 {
		tr.Errorf("%d Leases are left", n)
	}
	select {
	case <-held.reached:
	default:
		tr.Error("fewer than 4 Leases were deleted at once")
	}
}

func collectUnwritable(tr *trial) {
	tr.identity("1000")
	tr.client = &unwritable{tr.client, "1000"}
	pass := func(of time.Duration) {
		tr.Helper()
		tr.clock = tr.clock.Add(of)
		_, _ = tr.round(tr.Context())
	}
	for range 4 {
		pass(tr.cfg.Interval)
	}
	if _, err := tr.round(tr.Context()); err == nil {
		tr.Fatal("looks do not fail")
	}
	tr.identity("1001")
	var seen time.Time
	for range 100 {
		pass(tr.cfg.Interval / 12)
		switch marked, there := tr.identities()["1001"]; {
		case !there:
			if passed := tr.clock.Sub(seen); seen.IsZero() || passed < tr.cfg.Interval {
				tr.Errorf("it has ended %s after it was marked", passed)
			}
			return
		case marked && seen.IsZero():
			seen = tr.clock
		}
	}
	tr.Error("it has not ended")
}

func collectEdited(tr *trial) {
	tr.identity("1000")
	tr.pass()
	give := func(app string) {
		o := tr.get("1000")
		o.SecurityLabels = map[string]string{"k8s:app": app}
		if err := tr.Client.Update(tr.Context(), o); err != nil {
			tr.Fatal(err)
		}
	}
	give("evil")
	for range 8 {
		marked, deleted := tr.pass()
		tr.want("edited", marked, deleted, "", "")
	}
	give("1000")
	var gone []string
	for range 6 {
		_, deleted := tr.pass()
		gone = append(gone, deleted...)
	}
	if was, _, quarantined := k8sids.Quarantined(tr.get("1000")); !quarantined || was != "k8s:app=1000;" || len(gone) != 1 {
		tr.Errorf("with its labels back: in quarantine %t, of %q", quarantined, was)
	}
}

func collectEditedBefore(tr *trial) {
	o := k8sids.NewObject(1000, map[string]string{"k8s:app": "1000"})
	o.SecurityLabels = map[string]string{"k8s:app": "evil"}
	tr.Create(tr.T, o)
	for range 8 {
		marked, deleted := tr.pass()
		tr.want("edited", marked, deleted, "", "")
	}
	o = tr.get("1000")
	o.SecurityLabels = map[string]string{"k8s:app": "1000"}
	if err := tr.Client.Update(tr.Context(), o); err != nil {
		tr.Fatal(err)
	}
	for range 6 {
		tr.pass()
	}
	if was, _, quarantined := k8sids.Quarantined(tr.get("1000")); !quarantined || was != "k8s:app=1000;" {
		tr.Errorf("with its labels back: in quarantine %t, of %q", quarantined, was)
	}
}

func collectTakenOverQuarantine(tr *trial) {
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "1000"}}
	k8sids.Quarantine(o, "k8s:app=x;", tr.clock)
	tr.Create(tr.T, o)
	tr.pass()
	tr.pass()
	tr.restart() // it begins anew
	tr.pass()
	tr.pass()
	tr.get("1000")
	tr.pass()
	tr.freed("1000")
}

func collectMistake(tr *trial) {
	o := &v2.CiliumIdentity{ObjectMeta: metav1.ObjectMeta{Name: "1000"}}
	k8sids.Quarantine(o, "k8s:app=x;", tr.clock)
	tr.Create(tr.T, o)
	tr.use("still-there", 1000)
	for range 5 {
		tr.pass()
	}
	tr.get("1000") // whoever makes identities takes it back
}

func collectTakenOver(tr *trial) {
	tr.identity("1000")
	tr.pass()
	tr.pass()
	marked, deleted := tr.pass()
	tr.want("third", marked, deleted, "1000", "")
	tr.restart() // it costs one look
	marked, deleted = tr.pass()
	tr.want("after", marked, deleted, "", "")
	marked, deleted = tr.pass()
	tr.want("next", marked, deleted, "", "1000")
}

func collectUsedWhenMarked(tr *trial) {
	tr.identity("1000")
	for range 4 { // marked, and seen so once
		tr.pass()
	}
	tr.acquire("1000")
	marked, deleted := tr.pass()
	tr.want("acquired, no endpoint yet", marked, deleted, "", "")
	e := tr.use("late", 1000)
	marked, deleted = tr.pass()
	tr.want("used", marked, deleted, "", "")
	if err := tr.Client.Delete(tr.Context(), e); err != nil {
		tr.Fatal(err)
	}
	tr.pass()
	marked, deleted = tr.pass()
	tr.want("unused for the timeout", marked, deleted, "1000", "")
}

func collectUsedWithMark(tr *trial) {
	// A node uses it without having removed the mark. It must not go at once when it is not
	// used any more.
	tr.identity("1000")
	for range 4 {
		tr.pass()
	}
	e := tr.use("late", 1000)
	tr.pass()
	if tr.identities()["1000"] {
		tr.Error("it is still marked")
	}
	if err := tr.Client.Delete(tr.Context(), e); err != nil {
		tr.Fatal(err)
	}
	marked, deleted := tr.pass()
	tr.want("after its use", marked, deleted, "", "")
}

func collectBehind(tr *trial) {
	tr.identity("1000")
	tr.identity("1001")
	for range 4 {
		tr.pass()
	}
	// The server knows of an endpoint, and of a write, that the cache does not show.
	tr.client = &behind{Client: tr.Client, identities: tr.snapshot()}
	tr.use("unseen", 1000)
	tr.acquire("1001")
	tr.clock = tr.clock.Add(tr.cfg.Interval)
	stats, err := tr.round(tr.Context())
	if !errors.Is(err, errBehind) || stats.Deleted > 0 {
		tr.Errorf("a look with caches that are behind: %+v, %v", stats, err)
	}
	tr.client = tr.Client
	marked, deleted := tr.pass()
	tr.want("not behind any more", marked, deleted, "", "")
}

func collectFailure(tr *trial) {
	tr.identity("1000")
	for range 3 {
		tr.pass()
	}
	real := tr.client
	tr.client = broken{real}
	if _, err := tr.round(tr.Context()); err == nil {
		tr.Error("a failure was not reported")
	}
	tr.client = real
	marked, deleted := tr.pass()
	tr.want("first look at the mark", marked, deleted, "", "")
	marked, deleted = tr.pass()
	tr.want("second look", marked, deleted, "", "1000")
}

func (tr *trial) snapshot() *v2.CiliumIdentityList {
	tr.Helper()
	var all v2.CiliumIdentityList
	if err := tr.Client.List(tr.Context(), &all); err != nil {
		tr.Fatal(err)
	}
	return &all
}

// together holds patches, and deletions, back until there are as many at once as it wants.
type together struct {
	client.Client
	want    int64
	under   atomic.Int64
	reached chan struct{}
}

// Patch implements [client.Client].
func (c *together) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	c.hold()
	return c.Client.Patch(ctx, o, p, opts...)
}

// Delete implements [client.Client].
func (c *together) Delete(ctx context.Context, o client.Object, opts ...client.DeleteOption) error {
	c.hold()
	return c.Client.Delete(ctx, o, opts...)
}

func (c *together) hold() {
	if c.under.Add(1) == c.want {
		close(c.reached)
	}
	select {
	case <-c.reached:
	case <-time.After(10 * time.Second): // the test fails, but must not hang
	}
}

// unwritable refuses to write the object of one name.
type unwritable struct {
	client.Client
	name string
}

// Patch implements [client.Client].
func (c *unwritable) Patch(ctx context.Context, o client.Object, p client.Patch, opts ...client.PatchOption) error {
	if o.GetName() == c.name {
		return errors.New("the server does not take it")
	}
	return c.Client.Patch(ctx, o, p, opts...)
}

// behind shows identities as they once were, and no endpoints.
type behind struct {
	client.Client
	identities *v2.CiliumIdentityList
}

func (b *behind) List(_ context.Context, list client.ObjectList, _ ...client.ListOption) error {
	if l, ok := list.(*v2.CiliumIdentityList); ok {
		b.identities.DeepCopyInto(l)
	}
	return nil
}

// broken cannot list.
type broken struct{ client.Client }

func (broken) List(context.Context, client.ObjectList, ...client.ListOption) error {
	return fmt.Errorf("the server is away")
}
