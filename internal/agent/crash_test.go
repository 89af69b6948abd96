package agent

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/cni"
)

// crashNode is a node that tidies up within seconds.
func crashNode(t *testing.T) *machineNode {
	t.Helper()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--ipam-expiration", "2s", "--orphan-link-grace-period", "3s")
	n.env = []string{"HAWSER_AGENT_CRASH_FILE=" + n.path("crash")}
	return n
}

// TestPluginKilled kills the plugin at every step of ADD and DEL. What it leaves goes with the DEL
// that the runtime sends, or by itself where the runtime knows of nothing to delete.
func TestPluginKilled(t *testing.T) {
	t.Parallel()
	n := crashNode(t)
	n.race = true
	n.start()
	neighbour := n.attached("neighbour", map[string]string{"app": "neighbour"})
	before := n.audit()

	type victim struct {
		pod       *machinePod
		step      string
		add       bool
		forgotten bool // no DEL will come
	}
	var victims []victim
	for _, step := range cni.Steps() {
		add := step[:3] == "add"
		victims = append(victims, victim{n.newPod("v-"+step, map[string]string{"step": step}), step, add, false})
		if add && step != cni.StepAddEndpoint && step != cni.StepAddResult {
			victims = append(victims, victim{n.newPod("f-"+step, nil), step, add, true})
		}
	}
	var wg sync.WaitGroup
	for _, v := range victims {
		wg.Go(func() {
			kill := "HAWSER_CNI_CRASH_AT=" + v.step
			var err error
			if v.add {
				err = v.pod.add(kill)
			} else {
				if err := v.pod.add(); err != nil {
					t.Errorf("%s: %v", v.step, err)
				}
				err = v.pod.del(kill)
			}
			if !errors.Is(err, errKilled) {
				t.Errorf("%s: the plugin ended with %v, not by the crash", v.step, err)
			}
		})
	}
	wg.Wait()
	n.noDoubles("after the crashes")
	for _, v := range victims {
		if !v.forgotten {
			wg.Go(func() {
				if err := v.pod.del(); err != nil {
					t.Errorf("DEL after a crash at %s: %v", v.step, err)
				}
			})
		}
	}
	wg.Wait()
	n.sameAudit(before, "after the crashes")
	for _, v := range victims {
		wg.Go(func() {
			if links := v.pod.ns.LinkNames(t); len(links) != 1 {
				t.Errorf("%s: the pod's namespace is left with %q", v.step, links)
			}
			v.pod.renew()
			if err := v.pod.add(); err != nil {
				t.Errorf("ADD after a crash at %s: %v", v.step, err)
			}
		})
	}
	wg.Wait()
	n.noDoubles("attached again")
	for _, v := range victims {
		wg.Go(func() {
			if err := v.pod.del(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	n.sameAudit(before, "at the end")
	if ep := neighbour.endpoint(); ep.Status.State != rest.EndpointStateReady {
		t.Errorf("the neighbour is %s", ep.Status.State)
	}
}

// TestAgentKilled kills the agent at every step of a creation and a deletion, while another pod
// lives beside, and starts it again. The runtime then deletes.
func TestAgentKilled(t *testing.T) {
	t.Parallel()
	n := crashNode(t)
	n.start()
	neighbour := n.attached("neighbour", map[string]string{"app": "neighbour"})
	identity := neighbour.endpoint().Status.Identity.ID
	before := n.audit()
	victim := n.newPod("victim", map[string]string{"app": "neighbour"}) // the same identity
	crash := func(step string, run func() error) {
		t.Helper()
		if err := os.WriteFile(n.path("crash"), []byte(step), 0o600); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- run() }()
		n.died()
		n.start()
		err := <-done
		t.Logf("%s: the plugin said: %v", step, err)
	}
	creation := []string{"claim-addresses", "identity", "store", "place", "policy", "programs", "link", "commit-addresses"}
	deletion := []string{"delete-policy", "delete-link", "delete-place", "delete-identity", "delete-store", "delete-addresses"}
	for i, step := range append(creation, deletion...) {
		victim.renew()
		if i < len(creation) {
			crash(step, func() error { return victim.add() })
		} else {
			if err := victim.add(); err != nil {
				t.Fatalf("ADD before %s: %v", step, err)
			}
			crash(step, func() error { return victim.del() })
		}
		n.noDoubles("crashed at " + step)
		if err := victim.del(); err != nil {
			t.Errorf("DEL after a crash at %s: %v", step, err)
		}
		n.sameAudit(before, "crashed at "+step)
		if links := victim.ns.LinkNames(t); len(links) != 1 {
			t.Errorf("%s: the pod's namespace is left with %q", step, links)
		}
		if ep := neighbour.endpoint(); ep.Status.Identity.ID != identity || ep.Status.State != rest.EndpointStateReady {
			t.Errorf("crashed at %s: the neighbour is %s with identity %d, was %d", step, ep.Status.State, ep.Status.Identity.ID, identity)
		}
		victim.renew()
		if err := victim.add(); err != nil {
			t.Errorf("ADD after a crash at %s: %v", step, err)
		}
		n.noDoubles("attached after a crash at " + step)
		if err := victim.del(); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Fatalf("stopped after step %s", step)
		}
	}
	n.sameAudit(before, "at the end")
	n.stop()
}

// TestKilledInACrowd kills the agent in the midst of a crowd.
func TestKilledInACrowd(t *testing.T) {
	t.Parallel()
	n := crashNode(t)
	n.start()
	before := n.audit()
	pods := make([]*machinePod, 10)
	for i := range pods {
		pods[i] = n.newPod(fmt.Sprintf("c-%d", i), map[string]string{"app": fmt.Sprint(i % 3)})
	}
	var added atomic.Int32
	rounds := count(3, 1, 50)
	// A kill may come before any of them: then again, when more of them are through.
	for round := 0; round < rounds || added.Load() == 0 && round < rounds+10; round++ {
		var wg sync.WaitGroup
		for i, p := range pods {
			wg.Go(func() {
				p.renew()
				if err := p.add(); err == nil {
					added.Add(1)
				} else {
					t.Logf("round %d: ADD of pod %d: %v", round, i, err)
				}
				if i%2 == 0 {
					_ = p.del()
				}
			})
		}
		// Anywhere between the first and the last.
		time.Sleep(time.Duration(50+70*round) * time.Millisecond)
		n.kill()
		n.start()
		wg.Wait()
		n.noDoubles(fmt.Sprintf("round %d", round))
		for _, p := range pods {
			wg.Go(func() {
				if err := p.del(); err != nil {
					t.Error(err)
				}
			})
		}
		wg.Wait()
		n.sameAudit(before, fmt.Sprintf("round %d", round))
	}
	if added.Load() == 0 {
		t.Error("no ADD has succeeded")
	}
}
