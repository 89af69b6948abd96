// Package election has one of several operators lead, by a Lease of Kubernetes.
//
// Invariant: a leader stops before another begins, as long as the clocks of both machines run at
// about the same rate. A leader that cannot renew its lease must stop when RenewDeadline has
// passed, well before LeaseDuration, when others take over; a leader that ends by its own will
// gives the lease back only after its work has ended. A leader whose process was frozen beyond that
// time finds out by [Election.Fence], which refuses to send what it was about to write.
//
// If the lease is deleted, or the server is restored from a backup, another candidate may acquire
// it at once. A leader that observes this must stop at once, within RetryPeriod if it reaches the
// server, and the creator of a lease leads only after that time.
//
// [Election.Run] starts one goroutine that renews the lease and one that leads, and waits for both,
// with one exception that its comment names.
package election

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"github.com/spf13/pflag"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	utilnet "k8s.io/apimachinery/pkg/util/net"
	coordinationv1 "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	clientretry "k8s.io/client-go/util/retry"
	"k8s.io/klog/v2"

	"github.com/hawser-net/hawser/internal/validate"
	"github.com/hawser-net/hawser/pkg/retry"
)

// LockName is the name of the Lease, which operators of other make use too: so two of different
// make do not lead at once.
const LockName = "cilium-operator-resource-lock"

// ErrLost means that another may lead by now: the process must end without another write.
var ErrLost = errors.New("leadership is lost")

// stopGrace is how long Run waits for the work of a leader that has lost its lease. It is shorter
// than what is left of the lease by then.
const stopGrace = time.Second

// minRetryPeriod bounds the requests of an operator that waits, or cannot renew.
const minRetryPeriod = 10 * time.Millisecond

// Config defines how long a lease lasts. Use [Defaults].
type Config struct {
	// LeaseDuration is how long others wait for a leader that is silent.
	LeaseDuration time.Duration
	// RenewDeadline is how long the leader tries to renew before it gives up.
	RenewDeadline time.Duration
	// RetryPeriod is the longest pause between two tries, of the leader and of the others: another
	// leads at most LeaseDuration and twice this after the last renewal of a leader that is gone.
	RetryPeriod time.Duration
	// RequestTimeout bounds one request; 0 for half of RenewDeadline, but at least a second.
	RequestTimeout time.Duration
}

// Defaults returns what operators of other make use too.
func Defaults() Config {
	return Config{LeaseDuration: 15 * time.Second, RenewDeadline: 10 * time.Second, RetryPeriod: 2 * time.Second}
}

// Flags binds the configuration to command-line flags; the current values are the defaults shown.
func (c *Config) Flags(fs *pflag.FlagSet) {
	fs.DurationVar(&c.LeaseDuration, "leader-election-lease-duration", c.LeaseDuration, "how long other operators wait for a leader that is silent")
	fs.DurationVar(&c.RenewDeadline, "leader-election-renew-deadline", c.RenewDeadline, "how long the leader tries to renew its lease before it exits")
	fs.DurationVar(&c.RetryPeriod, "leader-election-retry-period", c.RetryPeriod, "longest pause between two tries to get or to renew the lease")
	fs.DurationVar(&c.RequestTimeout, "leader-election-resource-lock-timeout", c.RequestTimeout, "timeout of a request for the lease; 0 for half of the renew deadline, at least 1s")
}

// Validate checks that the times leave room for each other, and joins all faults.
func (c *Config) Validate() error {
	var errs validate.Errors
	errs.If(c.RetryPeriod < minRetryPeriod, "--leader-election-retry-period: %s is below %s", c.RetryPeriod, minRetryPeriod)
	if float64(c.RenewDeadline) <= leaderelection.JitterFactor*float64(c.RetryPeriod) {
		errs.Add("--leader-election-renew-deadline: %s must be more than %g times the retry period of %s",
			c.RenewDeadline, leaderelection.JitterFactor, c.RetryPeriod)
	}
	if c.LeaseDuration <= c.RenewDeadline+c.RetryPeriod {
		errs.Add("--leader-election-lease-duration: %s must be more than the renew deadline of %s and the retry period of %s together, "+
			"or two operators lead at once", c.LeaseDuration, c.RenewDeadline, c.RetryPeriod)
	}
	errs.If(c.RequestTimeout < 0, "--leader-election-resource-lock-timeout: %s must not be negative", c.RequestTimeout)
	return errs.Err()
}

// Identity returns the name under which a process on host stands for election: no two processes
// have the same.
func Identity(host string) string {
	const alphabet = "abcdefghijklmnopqrstuvwxyz234567" // 32 of them: every byte counts the same
	b := make([]byte, 10)
	_, _ = rand.Read(b) // it never fails
	for i := range b {
		b[i] = alphabet[b[i]%32]
	}
	return host + "-" + string(b)
}

// Election is one operator that stands for election. [Election.Leading] and [Election.Fence] may be
// used by any goroutine, Run by one.
type Election struct {
	cfg  Config
	lock *lock
	http *http.Client
	log  *slog.Logger
	// leading is true from the start of the work to its end.
	leading atomic.Bool
	leader  atomic.Value // string: the last observed leader
}

// New prepares an election in namespace. It has connections of its own, made from a copy of kube: a
// leader that is busy, or throttled, must not miss its renewal for that. A nil logger means no log.
func New(cfg Config, kube *rest.Config, namespace, identity string, log *slog.Logger) (*Election, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	log = cmp.Or(log, slog.New(slog.DiscardHandler))
	own := rest.CopyConfig(kube)
	own.QPS, own.Burst, own.RateLimiter = -1, 0, nil
	own.Timeout = cfg.RequestTimeout
	own.Timeout = cmp.Or(own.Timeout, max(time.Second, cfg.RenewDeadline/2))
	if own.Dial == nil { // without a dialer of its own it would share connections with every other client of the process
		own.Dial = (&net.Dialer{Timeout: own.Timeout, KeepAlive: cfg.RetryPeriod}).DialContext
	}
	h, err := rest.HTTPClientFor(own)
	if err != nil {
		return nil, fmt.Errorf("a client for leader election: %w", err)
	}
	client, err := coordinationv1.NewForConfigAndClient(own, h)
	if err != nil {
		return nil, fmt.Errorf("a client for leader election: %w", err)
	}
	e := &Election{cfg: cfg, log: log, http: h}
	e.lock = &lock{taken: make(chan struct{}), LeaseLock: resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: LockName}, Client: client, LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}}
	e.leader.Store("")
	return e, nil
}

// Identity returns the name under which this operator stands.
func (e *Election) Identity() string { return e.lock.Identity() }

// Leading reports whether this operator leads.
func (e *Election) Leading() bool { return e.leading.Load() }

// Leader returns the last observed leader, "" before there was one.
func (e *Election) Leader() string { return e.leader.Load().(string) }

// Run waits until this operator is elected, calls lead, and returns when that has ended.
//
//   - If ctx ends, lead's context ends; when lead has returned, the lease is given back, and Run
//     returns nil.
//   - If lead returns an error, the lease is given back and Run returns the error; nil before ctx
//     has ended counts as an error too.
//   - If the lease is lost, lead's context ends and Run returns [ErrLost] at once: it waits for
//     lead no longer than another leader could wait for this one, because the process is to end.
func (e *Election) Run(ctx context.Context, lead func(context.Context) error) error {
	elected := make(chan struct{})
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: e.lock, Name: LockName,
		LeaseDuration: e.cfg.LeaseDuration, RenewDeadline: e.cfg.RenewDeadline,
		// The library adds to the pause up to JitterFactor times of it.
		RetryPeriod: time.Duration(float64(e.cfg.RetryPeriod) / (1 + leaderelection.JitterFactor)),
		// The lease is given back below, after the work. The library would do so while the work
		// still ends, and when the server is away it would report the loss only after it has tried
		// in vain.
		ReleaseOnCancel: false,
		Callbacks: leaderelection.LeaderCallbacks{
			OnStartedLeading: func(context.Context) { close(elected) },
			OnStoppedLeading: func() {},
			OnNewLeader: func(id string) {
				e.leader.Store(id)
				if id != e.Identity() {
					e.log.Info("another operator leads", "leader", id)
				}
			},
		},
	})
	if err != nil {
		return fmt.Errorf("leader election: %w", err)
	}
	// The elector outlives ctx: the lease is renewed until the work has ended.
	base := klog.NewContext(context.WithoutCancel(ctx), logr.FromSlogHandler(e.log.With("part", "leader-election").Handler()))
	electing, stop := context.WithCancel(base)
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		elector.Run(electing)
	}()
	defer func() {
		stop()
		<-lost
		utilnet.CloseIdleConnectionsFor(e.http.Transport)
	}()
	e.log.Info("waiting for election", "identity", e.Identity(), "lease", e.lock.Describe())
	select {
	case <-ctx.Done():
		stop()
		<-lost
		e.release(base) // it may have been elected in this very moment
		return nil
	case <-elected:
	}
	return e.lead(ctx, base, lost, stop, lead)
}

// lead runs the work of a leader. lost is closed when the elector ends, stop ends it.
func (e *Election) lead(ctx, base context.Context, lost <-chan struct{}, stop func(), work func(context.Context) error) error {
	e.leading.Store(true)
	defer e.leading.Store(false)
	e.log.Info("leading", "identity", e.Identity())
	working, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	done := make(chan error, 1)
	go func() {
		// The holder of a deleted lease observes that within RetryPeriod.
		if e.lock.made.Load() && !retry.Sleep(working, e.cfg.RetryPeriod+stopGrace) {
			done <- nil
			return
		}
		done <- work(working)
	}()
	why := ""
	select {
	case err := <-done:
		if err == nil && ctx.Err() == nil {
			err = errors.New("the work of the leader ended on its own")
		}
		stop()
		<-lost
		e.release(base)
		return err
	case <-e.lock.taken:
		why = "another operator has the lease " + e.lock.Describe()
	case <-lost:
		why = fmt.Sprintf("the lease %s could not be renewed within %s", e.lock.Describe(), e.cfg.RenewDeadline)
	}
	cancel(ErrLost)
	e.log.Error("leadership is lost; exiting", "identity", e.Identity(), "cause", why)
	select {
	case <-done:
	case <-time.After(stopGrace):
	}
	return fmt.Errorf("%w: %s: %s", ErrLost, e.Identity(), why)
}

// release gives the lease back, so that another operator need not wait for its end. Only call it
// when the work has ended. What goes on of it nevertheless, because its time to end was over,
// writes nothing more.
func (e *Election) release(base context.Context) {
	if e.lock.renewed.Swap(nil) == nil {
		return // never had it, or has it no more
	}
	ctx, cancel := context.WithTimeout(base, e.cfg.RetryPeriod)
	defer cancel()
	// A renewal that was under way when the election ended may reach the server between the two
	// requests.
	err := clientretry.RetryOnConflict(clientretry.DefaultRetry, func() error {
		record, _, err := e.lock.Get(ctx)
		if err != nil || record.HolderIdentity != e.Identity() {
			return err
		}
		now := metav1.Now()
		return e.lock.LeaseLock.Update(ctx, resourcelock.LeaderElectionRecord{
			LeaderTransitions: record.LeaderTransitions, LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now,
		})
	})
	if err != nil {
		e.log.Warn("cannot release the lease; another operator leads when it has expired", "error", err, "expires", e.cfg.LeaseDuration)
	}
}

// Held returns nil if the lease is surely this operator's now, and an error that wraps [ErrLost] if
// not.
func (e *Election) Held() error {
	r := e.lock.renewed.Load()
	if r == nil {
		return fmt.Errorf("%w: %s does not hold the lease", ErrLost, e.Identity())
	}
	if age := r.age(); age > e.cfg.LeaseDuration-stopGrace {
		return fmt.Errorf("%w: the lease was last renewed %s ago", ErrLost, age.Round(time.Millisecond))
	}
	return nil
}

// Fence wraps a transport so that it sends a request that may write only while the lease is held.
// The election finds out that the lease is lost by its own clock; a process that was stopped for a
// while and goes on may write before that.
func (e *Election) Fence(next http.RoundTripper) http.RoundTripper {
	return &fence{e, next}
}

type fence struct {
	election *Election
	next     http.RoundTripper
}

// RoundTrip sends the request or refuses it.
func (f *fence) RoundTrip(r *http.Request) (*http.Response, error) {
	switch r.Method {
	case http.MethodGet, http.MethodHead, http.MethodOptions:
	default:
		if err := f.election.Held(); err != nil {
			if r.Body != nil {
				r.Body.Close()
			}
			return nil, err
		}
	}
	return f.next.RoundTrip(r)
}

// WrappedRoundTripper lets client-go find the transport below.
func (f *fence) WrappedRoundTripper() http.RoundTripper { return f.next }

// renewal is when a lease was written, by two clocks. That of the process stands still while the
// machine is suspended, or its virtual processors are paused, and others lead by then; the wall
// clock, which is set right after that, may be set back.
type renewal struct{ at, wall time.Time }

func renewedNow() *renewal {
	now := time.Now()
	return &renewal{now, now.Round(0)}
}

// age is how long ago that was, by the clock that shows more.
func (r *renewal) age() time.Duration {
	now := time.Now()
	return max(now.Sub(r.at), now.Round(0).Sub(r.wall))
}

// lock remembers when the lease was last written by this process. The time is taken before the
// request: others may count from the moment at which the server has it.
type lock struct {
	resourcelock.LeaseLock
	renewed atomic.Pointer[renewal]
	// made is set if there was no lease: its former holder may not know yet that it is gone.
	made atomic.Bool
	// taken is closed when the lease was this process's, and is another's. It is never this one's
	// again.
	taken chan struct{}
}

// Create makes the lease.
func (l *lock) Create(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if l.isTaken() {
		return ErrLost
	}
	now := renewedNow()
	err := l.LeaseLock.Create(ctx, r)
	if err == nil {
		l.made.Store(true)
		l.renewed.Store(now)
	}
	return err
}

// Get reads the lease. The election retries for RenewDeadline if it is another's, also when that is
// because the lease was deleted and another candidate created it.
func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, raw, err := l.LeaseLock.Get(ctx)
	if err == nil && r.HolderIdentity != "" && r.HolderIdentity != l.Identity() && l.renewed.Swap(nil) != nil {
		close(l.taken)
	}
	return r, raw, err
}

func (l *lock) isTaken() bool {
	select {
	case <-l.taken:
		return true
	default:
		return false
	}
}

// Update takes or renews the lease.
func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	if l.isTaken() {
		return ErrLost
	}
	now := renewedNow()
	err := l.LeaseLock.Update(ctx, r)
	if err == nil {
		l.renewed.Store(now)
	}
	return err
}
