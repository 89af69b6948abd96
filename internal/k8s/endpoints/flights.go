package endpoints

import (
	"maps"
	"net/netip"
	"time"

	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/k8s"
)

const (
	// workers is how many objects are looked at at the same time, and maxOrdinary how many of them
	// at most that no pod waits for: these wait for the configured rate.
	workers, maxOrdinary = 8, 4
	// urgentQPS and urgentBurst bound how many objects a second are looked at that pods wait for: a
	// node that comes back has some hundred.
	urgentQPS, urgentBurst = 50, 100
	// slowAfter is how long an answer takes from a server that is slow for a namespace, as with an
	// admission webhook that hangs, and slowFor how long that counts.
	slowAfter, slowFor = 2 * time.Second, time.Minute
)

// step is one look at an object, and what came of it.
type step struct {
	key    k8s.Key
	urgent bool // other nodes do not know the pod as it is
	wrote  bool
	err    error
	took   time.Duration
}

// flights are the objects that are being looked at, each by one goroutine. It is not safe for
// concurrent use.
type flights struct {
	steps map[k8s.Key]step
	slow  map[string]time.Time // namespaces in which the server was slow, and when
}

func newFlights() *flights { return &flights{steps: map[k8s.Key]step{}, slow: map[string]time.Time{}} }

func (f *flights) begin(s step) { f.steps[s.key] = s }

func (f *flights) has(key k8s.Key) bool { _, ok := f.steps[key]; return ok }

func (f *flights) end(s step) {
	delete(f.steps, s.key)
	switch {
	case !s.wrote && s.err == nil: // nothing was asked
	case s.took > slowAfter:
		f.slow[s.key.Namespace] = time.Now()
	default:
		delete(f.slow, s.key.Namespace)
	}
}

// forget drops what does not count any more.
func (f *flights) forget() {
	maps.DeleteFunc(f.slow, func(_ string, at time.Time) bool { return time.Since(at) > slowFor })
}

// admission returns what reports whether a step may begin now. No namespace keeps others waiting:
// it gets a second worker only while more than half of them are free, and none if the server is
// slow for it; and all for which it is slow together get at most half.
func (f *flights) admission() func(step) bool {
	type use struct{ all, slow int }
	var total, ordinary use
	same := map[string]int{}
	for key, s := range f.steps {
		slow := 0
		if _, ok := f.slow[key.Namespace]; ok {
			slow = 1
		}
		total = use{total.all + 1, total.slow + slow}
		if !s.urgent {
			ordinary = use{ordinary.all + 1, ordinary.slow + slow}
		}
		same[key.Namespace]++
	}
	return func(s step) bool {
		_, slow := f.slow[s.key.Namespace]
		free := func(u use, most int) bool {
			switch {
			case slow:
				return u.all < most && u.slow < most/2 && same[s.key.Namespace] == 0
			case same[s.key.Namespace] > 0:
				return u.all < most/2
			}
			return u.all < most
		}
		return !f.has(s.key) && free(total, workers) && (s.urgent || free(ordinary, maxOrdinary))
	}
}

// word is what an object was last made to say of a pod, or found to say.
type word struct {
	uid      string
	v4, v6   netip.Addr
	identity identity.ID // the last one that was not 0
}

// tells reports whether others know from it what an endpoint is.
func (w word) tells(l Local) bool {
	return w.uid == l.UID && w.v4 == l.IPv4 && w.v6 == l.IPv6 && (l.Identity == 0 || w.identity == l.Identity)
}
