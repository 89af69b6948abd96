package agent

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestRecordsElsewhere: an agent that finds an empty state directory beside a kernel that has pods
// does not start, and says what to do. The pods keep their network, and have it when the directory
// is back. With an option their network is taken, and where no pod is left none is needed.
func TestRecordsElsewhere(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--enable-health-checking=true") // its endpoint is none that counts
	n.start()
	a, b := n.attached("a", nil), n.attached("b", nil)
	to := b.both(80)[0]
	serveEcho(t, b.ns, to)
	flow := startFlow(t, "a to b", a.ns, to)
	refuses := func(when string) {
		t.Helper()
		before := len(n.logText())
		n.launch()
		cmd := n.cmd
		n.died()
		log := n.logText()[before:]
		for _, want := range []string{"--state-dir", "the record of none", "--give-up-unrecorded-pods"} {
			if cmd.ProcessState.Success() || !strings.Contains(log, want) {
				t.Errorf("%s: the agent ended with %v, and does not say %q:\n%s", when, cmd.ProcessState, want, log)
			}
		}
	}
	n.kill()
	if err := os.Rename(n.path("run"), n.path("away")); err != nil {
		t.Fatal(err)
	}
	refuses("without its directory")
	refuses("again")
	if err := errors.Join(os.RemoveAll(n.path("run")), os.Rename(n.path("away"), n.path("run"))); err != nil {
		t.Fatal(err)
	}
	n.start()
	for _, p := range []*machinePod{a, b} {
		if st := p.endpoint().Status.State; st != rest.EndpointStateReady {
			t.Errorf("%s is %s with the directory", p.name, st)
		}
	}
	if sent, lost := flow.finish(); len(lost) > 0 {
		t.Errorf("%d of %d datagrams got lost", len(lost), sent)
	}
	n.kill()
	if err := os.RemoveAll(n.path("run/state")); err != nil {
		t.Fatal(err)
	}
	refuses("with an empty directory")
	n.flags = append(n.flags, "--give-up-unrecorded-pods")
	n.start()
	if err := once(a.ns, b.both(80)[0], impatient); err == nil {
		t.Error("pods that were given up have their network")
	}
	n.flags = n.flags[:len(n.flags)-1]
	last := n.attached("last", nil)
	if err := last.del(); err != nil {
		t.Fatal(err)
	}
	n.kill()
	if err := os.RemoveAll(n.path("run/state")); err != nil {
		t.Fatal(err)
	}
	n.start()
	n.stop()
}

// TestStateRemoved: another program removes the directory of an agent that runs. Within seconds the
// plugin finds the agent again, and all that the next agent needs is on disk.
func TestStateRemoved(t *testing.T) {
	t.Parallel()
	n, _ := newNode(t)
	n.flags = append(n.flags, "--enable-health-checking=true", "--hubble-socket-path", n.path("run/hubble.sock"), "--enable-hubble")
	n.race = true
	n.start()
	a, b := n.attached("a", map[string]string{"app": "a"}), n.attached("b", nil)
	identity := b.endpoint().Status.Identity.ID
	to := b.both(80)[0]
	serveEcho(t, b.ns, to)
	flow := startFlow(t, "a to b", a.ns, to)
	router, err := os.ReadFile(n.path("run/state/router.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(n.path("run")); err != nil {
		t.Fatal(err)
	}
	began := time.Now()
	c := n.newPod("c", nil)
	if err := c.add(); err != nil {
		t.Fatalf("ADD without the agent's directory: %v", err)
	}
	t.Logf("the plugin found the agent after %s", time.Since(began))
	testenv.Eventually(t, time.Minute, func() string {
		// With the node's own endpoint.
		if records, _ := filepath.Glob(n.path("run/state/*/endpoint.json")); len(records) != 4 {
			return fmt.Sprintf("there are the records %q", records)
		}
		if now, err := os.ReadFile(n.path("run/state/router.json")); !bytes.Equal(now, router) {
			return fmt.Sprintf("the router's addresses are %s, were %s: %v", now, router, err)
		}
		for _, path := range []string{"run/agent.lock", "run/a.sock", "run/health.sock", "run/hubble.sock"} {
			if _, err := os.Stat(n.path(path)); err != nil {
				return err.Error()
			}
		}
		if p := n.part(partRecords); p.State != rest.StateOk {
			return fmt.Sprintf("the status of records is %+v", p)
		}
		return ""
	})
	if p := n.part(partSocket); p.State != rest.StateOk {
		t.Errorf("the status of the socket is %+v", p)
	}
	n.kill()
	n.start()
	for _, p := range []*machinePod{a, b, c} {
		if st := p.endpoint().Status.State; st != rest.EndpointStateReady {
			t.Errorf("%s is %s after a restart", p.name, st)
		}
	}
	if now := b.endpoint().Status.Identity.ID; now != identity {
		t.Errorf("the identity is %d, was %d", now, identity)
	}
	if sent, lost := flow.finish(); len(lost) > 0 {
		t.Errorf("%d of %d datagrams got lost", len(lost), sent)
	}
	n.stop()
}
