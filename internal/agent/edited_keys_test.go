package agent

import (
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/storekeys"
	"github.com/hawser-net/hawser/pkg/kvstore"
)

// TestEditedKeyIsReported is TestEditedIdentityIsReported where IDs are keys of a store: while
// the agent that uses an ID stands still, what another client writes over its key lets no pod in;
// status and metrics show it until the agent goes on, which gives the ID its key back.
func TestEditedKeyIsReported(t *testing.T) {
	t.Parallel()
	store, n1, n2 := nodesWithStore(t, "--prometheus-serve-addr", "127.0.0.1:9962")
	for _, n := range []*machineNode{n1, n2} {
		n.policy("web.yaml", denyEvil)
		n.start()
	}
	web := n1.attached("web", map[string]string{"app": "web"})
	for _, to := range web.both(80) {
		serveEcho(t, web.ns, to)
	}
	good, evil := n2.attached("good", map[string]string{"app": "good"}), n2.attached("evil", map[string]string{"app": "evil"})
	idOf := func(p *machinePod) string { return strconv.Itoa(p.endpoint().Status.Identity.ID) }
	number := idOf(evil)
	key := func(id string) string { return kvstore.JoinKey(storekeys.IdentitiesPrefix, "id", id) }
	read := func(id string) string {
		t.Helper()
		got, err := store.Client().Get(t.Context(), key(id))
		if err != nil || len(got.Kvs) != 1 {
			t.Fatalf("key of %s: %v, %v", id, got, err)
		}
		return string(got.Kvs[0].Value)
	}
	was, friends := read(number), read(idOf(good))
	reported := func(when string, want rest.State, count float64) {
		t.Helper()
		for end := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
			st, err := n1.client.Health(t.Context(), false)
			if err == nil && slices.ContainsFunc(st.Parts, func(p rest.PartStatus) bool {
				return p.Name == partEdited && p.State == want && (want == rest.StateOk || strings.Contains(p.Msg, number))
			}) {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s: the status is %+v, %v", when, st.Parts, err)
			}
		}
		if is := n1.metric("cilium_edited_identities"); is != count {
			t.Errorf("%s: cilium_edited_identities is %v, want %v", when, is, count)
		}
		for _, to := range web.both(80) {
			eventuallyReaches(t, when+": good", good, to, true)
			refused(t, when+": evil", evil.ns, to)
		}
	}
	reported("at first", rest.StateOk, 0)
	goOn := freeze(t, n2)
	for _, value := range []string{friends, ""} {
		if _, err := store.Client().Put(t.Context(), key(number), value); err != nil {
			t.Fatal(err)
		}
		reported("edited", rest.StateWarning, 1)
	}
	goOn()
	reported("put back", rest.StateOk, 0)
	if is := read(number); is != was {
		t.Errorf("the key says %q, want %q", is, was)
	}
	if again := idOf(evil); again != number {
		t.Errorf("evil has ID %s, had %s", again, number)
	}
}
