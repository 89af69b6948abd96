package nodemanagertest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/operator/nodemanager"
	"github.com/hawser-net/hawser/internal/sandbox/cloud"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// Refusal is one of a cloud, and the message for it.
type Refusal struct {
	Action  string
	Fault   cloud.Fault
	Message string
}

// Suite is what differs between clouds.
type Suite struct {
	// New returns a cloud of which nothing is known yet.
	New func(*testing.T) Cloud
	// Changes are the actions that change the cloud as nodes grow and shrink.
	Changes []string
	// Dry is said of a subnet that has no address left.
	Dry string
	// Refusals are to be explained. Each is of a node's first addresses.
	Refusals []Refusal
	// Unread is of an action that is called as everything is read, and for nothing else.
	Unread Refusal
}

// Run runs all of it on one API server, but FaultPoints.
func (s Suite) Run(t *testing.T) {
	env := controllers.Start(t)
	for _, x := range []struct {
		name string
		do   func(*Trial)
	}{
		{"nodes", s.nodes}, {"refusals", s.refusals}, {"unread", s.unread}, {"newcomer", s.newcomer}, {"throttle", s.throttle}, {"scarce", s.scarce}, {"silent", s.silent},
	} {
		t.Run(x.name, func(t *testing.T) { x.do(&Trial{t, env, s.New(t)}) })
	}
}

// nodes has nodes grow and shrink, a subnet run dry and be widened, an instance be claimed twice,
// which operators see that start later, too, and one end. Lists come in pages all the time.
func (s Suite) nodes(tr *Trial) {
	tr.Cloud.Pages(2)
	stop := tr.Run(nil)
	tr.Node("grow", nil)
	tr.Converges("grow", 0, 8, 8, "")
	tr.Converges("grow", 17, 25, 25, "")
	tr.Converges("grow", 3, 11, 11, "")

	tr.Cloud.Exhaust(3)
	tr.Converges("grow", 11, 12, 15, s.Dry)
	tr.Cloud.Exhaust(100000)
	tr.Converges("grow", 11, 19, 19, "")

	thief := &v2.CiliumNode{ObjectMeta: metav1.ObjectMeta{Name: "thief"}, Spec: tr.Get("grow").Spec}
	thief.Spec.IPAM = v2.IPAMSpec{}
	tr.Create(tr.T, thief)
	controllers.Eventually(tr.T, Timeout, func() string {
		n := tr.Get("thief")
		if len(n.Spec.IPAM.Pool) > 0 {
			return "it has addresses of another's instance"
		}
		return Missing(n.Status.IPAM.OperatorStatus.Error, "is that of node grow")
	})
	for k := range 5 { // which of the two an operator looks at first is by chance
		stop()
		stop = tr.Run(nil)
		tr.Converges("grow", 11+k%2, 19+k%2, 19+k%2, "")
		if n := tr.Get("thief"); len(n.Spec.IPAM.Pool) > 0 {
			tr.Fatalf("after a restart it has addresses of another's instance: %v", n.Spec.IPAM.Pool)
		}
	}

	tr.Node("end", nil)
	end := tr.Converges("end", 0, 8, 8, "")
	tr.Cloud.Terminate(end.Spec.InstanceID)
	controllers.Eventually(tr.T, Timeout, func() string {
		return Missing(tr.Get("end").Status.IPAM.OperatorStatus.Error, "no network interface that can be seen")
	})
	if err := tr.Client.Delete(tr.Context(), tr.Get("end")); err != nil {
		tr.Fatal(err)
	}
	controllers.Eventually(tr.T, Timeout, func() string {
		if loose := tr.Cloud.Loose(); len(loose) > 0 {
			return fmt.Sprint("left behind: ", loose)
		}
		return ""
	})
	tr.Converges("grow", 11, 19, 19, "")
}

// refusals has the cloud refuse, and the status of the node say what to do, until it does not.
func (s Suite) refusals(tr *Trial) {
	var refuse atomic.Pointer[Refusal]
	tr.Cloud.Disturbed().Script(func(action string) *cloud.Fault {
		if r := refuse.Load(); r != nil && r.Action == action {
			return &r.Fault
		}
		return nil
	})
	tr.Run(nil)
	for k, r := range s.Refusals {
		refuse.Store(&r)
		name := fmt.Sprint("refused-", k)
		tr.nodeFor(name, r.Action, nil)
		controllers.Eventually(tr.T, Timeout, func() string {
			said := tr.Get(name).Status.IPAM.OperatorStatus.Error
			if strings.Contains(said, "0x1234") || strings.Contains(said, "secret") {
				tr.Errorf("the status says %q", said)
			}
			return Missing(said, r.Message)
		})
		refuse.Store(nil)
		tr.Converges(name, 0, 8, 8, "")
	}
}

// unread has everything be read once only. Before that nodes get nothing, and say why; after it
// what is known stays good, also for a node that comes later: only who needs to know whether a
// subnet has addresses again waits, and says so.
func (s Suite) unread(tr *Trial) {
	var refuse atomic.Bool
	refuse.Store(true)
	tr.Cloud.Disturbed().Script(func(action string) *cloud.Fault {
		if action == s.Unread.Action && refuse.Load() {
			return &s.Unread.Fault
		}
		return nil
	})
	reads := func() int { return tr.Cloud.Disturbed().Calls()[s.Unread.Action] }
	tr.Run(nil)
	tr.Node("first", nil)
	controllers.Eventually(tr.T, Timeout, func() string { return Missing(tr.Get("first").Status.IPAM.OperatorStatus.Error, s.Unread.Message) })
	if n := len(tr.Get("first").Spec.IPAM.Pool); n > 0 {
		tr.Errorf("%d addresses of a cloud that nothing is known of", n)
	}
	refuse.Store(false)
	tr.Converges("first", 0, 8, 8, "")

	refuse.Store(true)
	before := reads()
	controllers.Eventually(tr.T, Timeout, func() string {
		if reads() < before+2 {
			return "it has not been tried to read all again"
		}
		return ""
	})
	tr.Converges("first", 9, 17, 17, "")
	tr.Converges("first", 0, 8, 8, "")
	tr.Node("second", nil)
	tr.Converges("second", 0, 8, 8, "")
	tr.Cloud.Exhaust(0)
	tr.Converges("second", 5, 8, 8, s.Dry)
	tr.Converges("second", 5, 8, 8, "the cloud cannot be read")
	tr.Converges("second", 5, 8, 8, s.Unread.Message)
	tr.Converges("first", 0, 8, 8, "")
	tr.Cloud.Exhaust(100000)
	refuse.Store(false)
	tr.Converges("second", 5, 13, 13, "")
}

// newcomer adds a node when all has been read and the next resync is far off: the node does not
// wait for that.
func (s Suite) newcomer(tr *Trial) {
	tr.Run(func(c *nodemanager.Config) { c.Resync = time.Hour })
	tr.Node("there", nil)
	tr.Converges("there", 0, 8, 8, "")
	tr.Node("new", nil)
	tr.Converges("new", 0, 8, 8, "")
	// What is not done is reported, and does not keep the node from the rest.
	tr.Node("public", func(s *v2.NodeSpec) { s.IPAM.StaticIPTags = map[string]string{"for": "edge"} })
	tr.Converges("public", 0, 8, 8, "static-ip-tags")
}

// silent has the cloud take a request and never answer it: one by which everything is read, and one
// that changes a node's interface. No call waits for that without end.
func (s Suite) silent(tr *Trial) {
	release := make(chan struct{})
	tr.Cleanup(func() { close(release) })
	var read, changed atomic.Bool
	tr.Cloud.Disturbed().Script(func(action string) *cloud.Fault {
		var first *atomic.Bool
		switch action {
		case s.Unread.Action:
			first = &read
		case s.Changes[0]:
			first = &changed
		default:
			return nil
		}
		if first.CompareAndSwap(false, true) {
			<-release
			return &cloud.Fault{Drop: true}
		}
		return nil
	})
	tr.Run(func(c *nodemanager.Config) { c.Timeout = time.Second })
	tr.nodeFor("patient", s.Changes[0], nil)
	tr.Converges("patient", 0, 8, 8, "")
	if !read.Load() || !changed.Load() {
		tr.Errorf("read: %t, changed: %t", read.Load(), changed.Load())
	}
}

// FaultPoints ends the operator at each call that changes the cloud: before it takes effect, after,
// with the answer lost, and with the effect when the operator has ended already. Another goes on.
// Descriptions are a little old all the time.
func (s Suite) FaultPoints(t *testing.T) {
	tr := &Trial{t, controllers.Start(t), s.New(t)}
	tr.Cloud.Lag(100 * time.Millisecond)
	k := 0
	for _, action := range s.Changes {
		for _, when := range []string{"before", "after", "late"} {
			k++
			tr.faultPoint(fmt.Sprint("fault-", k), action, when)
		}
	}
	tr.Cloud.Disturbed().Script(nil)
	if loose := tr.Cloud.Loose(); len(loose) > 0 {
		tr.Errorf("left behind: %v", loose)
	}
}

func (tr *Trial) faultPoint(name, action, when string) {
	tr.Helper()
	struck, ended := make(chan struct{}), make(chan struct{})
	var once atomic.Bool
	tr.Cloud.Disturbed().Script(func(a string) *cloud.Fault {
		if a != action || !once.CompareAndSwap(false, true) {
			return nil
		}
		close(struck)
		if when == "late" {
			<-ended
		}
		return &cloud.Fault{Drop: true, After: when != "before"}
	})
	stop := tr.Run(nil)
	tr.nodeFor(name, action, nil)
	use := 0
	controllers.Eventually(tr.T, Timeout, func() string {
		n := tr.Agent(name, use)
		select {
		case <-struck:
			return ""
		default:
		}
		switch got := len(n.Spec.IPAM.Pool); {
		case got == 8 && use == 0:
			use = 12
		case got == 20:
			use = 2
		}
		return action + " was not called"
	})
	stop()
	close(ended)
	defer tr.Run(nil)()
	tr.Converges(name, 5, 13, 13, "")
}

// throttle has the cloud allow little: nodes get their addresses nevertheless, and the cloud is not
// asked much more often than it allows.
func (s Suite) throttle(tr *Trial) {
	const perSecond = 10
	tr.Cloud.Disturbed().Throttle(perSecond, perSecond)
	begun := time.Now()
	tr.Run(func(c *nodemanager.Config) { c.Resync = 10 * time.Second })
	for i := range 3 {
		tr.Node(fmt.Sprint("slow-", i), nil)
	}
	for i := range 3 {
		tr.Converges(fmt.Sprint("slow-", i), 0, 8, 8, "")
	}
	total := 0
	for _, n := range tr.Cloud.Disturbed().Calls() {
		total += n
	}
	if allowed := perSecond * (1 + time.Since(begun).Seconds()); float64(total) > 2*allowed+20 {
		tr.Errorf("%d calls, %.0f were allowed", total, allowed)
	}
}

// scarce has the cloud allow fewer calls at once than it takes to read it, of an operator that is
// configured to ask for a hundred times as many: it reads all and nodes get their addresses
// nevertheless.
func (s Suite) scarce(tr *Trial) {
	const perSecond, nodes = 2, 4
	tr.Cloud.Pages(2)
	tr.Cloud.Disturbed().Throttle(perSecond, perSecond)
	begun := time.Now()
	tr.Run(func(c *nodemanager.Config) { c.Resync = 15 * time.Second })
	for i := range nodes {
		tr.Node(fmt.Sprint("scarce-", i), nil)
	}
	controllers.Eventually(tr.T, Timeout, func() string {
		for i := range nodes {
			if n := tr.Get(fmt.Sprint("scarce-", i)); len(n.Spec.IPAM.Pool) < 8 {
				return fmt.Sprintf("%s has %d addresses: %s", n.Name, len(n.Spec.IPAM.Pool), n.Status.IPAM.OperatorStatus.Error)
			}
		}
		return ""
	})
	tr.Logf("%v", time.Since(begun))
}
