package policy

import (
	"testing"

	"github.com/hawser-net/hawser/internal/datapath"
	"github.com/hawser-net/hawser/internal/identity"
	"github.com/hawser-net/hawser/internal/labels"
)

// TestOwnLabels: the labels of an identity ID decide what others allow it, never what is allowed to
// reach the endpoint that has it.
func TestOwnLabels(t *testing.T) {
	t.Parallel()
	e, err := New(Defaults())
	if err != nil {
		t.Fatal(err)
	}
	k := newKernel(t)
	set := func(app string) labels.Set {
		return labels.NewSet(labels.New("k8s", "app", app), labels.New("k8s", labels.KeyNamespace, "a"), labels.New("k8s", labels.KeyCluster, "default"))
	}
	if err := e.SetRules("o", mustParse(t, "a", `{"endpointSelector":{"matchLabels":{"app":"web"}},"ingress":[{"fromEndpoints":[{"matchLabels":{"app":"friend"}}]}]}`)); err != nil {
		t.Fatal(err)
	}
	web := Subject{Identity: 300, Labels: set("web").KVString()}
	e.SetIdentity(300, set("web"))
	e.SetIdentity(301, set("friend"))
	e.SetIdentity(302, set("evil"))
	e.AddSubject(web)
	k.sync(e)
	check := func(when string, friend, evil bool) {
		t.Helper()
		for id, want := range map[identity.ID]bool{301: friend, 302: evil} {
			if got := k.sets[k.bind[web].RuleSet].pass(datapath.Ingress, id, 0, datapath.ProtoTCP, 80); got != want {
				t.Errorf("%s: from %d passes: %t, want %t", when, id, got, want)
			}
		}
	}
	check("at first", true, false)

	e.SetIdentity(300, set("free"))
	if u := k.sync(e); len(u.Install)+len(u.Bind) > 0 {
		t.Errorf("what is said of the ID installs %+v and binds %+v", u.Install, u.Bind)
	}
	check("its ID is said to be another's", true, false)

	e.RemoveIdentity(300)
	k.sync(e)
	check("its ID is said to be gone", true, false)

	// The ID counts for peers.
	e.SetIdentity(302, set("friend"))
	k.sync(e)
	check("another ID is said to be a friend's", true, true)

	// Two endpoints whose labels differ are evaluated apart, whatever their ID.
	free := Subject{Identity: 300, Labels: set("free").KVString()}
	e.AddSubject(free)
	k.sync(e)
	if !k.sets[k.bind[free].RuleSet].pass(datapath.Ingress, 303, 0, datapath.ProtoTCP, 80) {
		t.Error("an endpoint with the same ID and other labels is isolated")
	}
	check("beside another of that ID", true, true)

	// What can't be read is closed.
	broken := Subject{Identity: 300, Labels: "no label"}
	e.AddSubject(broken)
	k.sync(e)
	if b := k.bind[broken]; b.RuleSet != 0 {
		t.Errorf("unreadable labels have the rule set %d", b.RuleSet)
	}

	tr, err := e.Trace(Party{Identity: 303, Labels: set("friend")}, Party{Identity: 300, Labels: set("web"), SeenAs: 300}, datapath.ProtoTCP, 80)
	if err != nil || !tr.Allowed {
		t.Errorf("trace: %v, %v", tr.String(), err)
	}
}
