package agent

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/testenv"
)

// TestStartOnUselessDisk: an agent starts again where nothing can be stored any more. Pods keep
// what they have, new policy and other labels count, and pods can be deleted, also before another
// start. A pod that cannot be recorded gets an error that names the cause, and leaves nothing. Once
// the disk is well again, so is the node.
func TestStartOnUselessDisk(t *testing.T) {
	t.Parallel()
	for name, mode := range map[string]struct {
		of, undo func(*testenv.SmallDisk)
		cause    string
	}{
		"full":      {(*testenv.SmallDisk).Fill, (*testenv.SmallDisk).Free, "no space left on device"},
		"read-only": {(*testenv.SmallDisk).ReadOnly, (*testenv.SmallDisk).Writable, "read-only file system"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			n, _ := newNode(t)
			disk := testenv.NewSmallDisk(t)
			n.flags = append(n.flags, "--state-dir", disk.Path)
			n.start()
			web, client := n.attached("web", map[string]string{"app": "web"}), n.attached("client", map[string]string{"app": "client"})
			before := n.audit()
			gone := n.attached("gone", nil)
			to := web.both(80)[0]
			serveEcho(t, web.ns, to)
			flow := startFlow(t, "client to web", client.ns, to)
			n.kill()
			mode.of(disk)
			n.start()
			relabel := func(labels ...string) {
				t.Helper()
				was := client.endpoint().Status.Identity.ID
				if err := n.client.PatchEndpointLabels(t.Context(), client.id(), labels); err != nil {
					t.Errorf("labels %q: %v", labels, err)
				}
				if st := client.endpoint().Status; st.Identity.ID == was || st.State != rest.EndpointStateReady {
					t.Errorf("with the labels %q the endpoint is %s with identity %d, was %d", labels, st.State, st.Identity.ID, was)
				}
			}
			recorded := func(want rest.State) {
				t.Helper()
				testenv.Eventually(t, time.Minute, func() string {
					if p := n.part(partRecords); p.State != want || want != rest.StateOk && !strings.Contains(p.Msg, mode.cause) {
						return fmt.Sprintf("the status of records is %+v, want %s", p, want)
					}
					return ""
				})
			}
			relabel("k8s:tier=gold")
			recorded(rest.StateWarning)
			relabel()
			late := n.newPod("late", nil)
			if err := late.add(); err == nil || !strings.Contains(err.Error(), mode.cause) {
				t.Errorf("a pod that cannot be recorded: %v", err)
			}
			for _, p := range []*machinePod{late, gone} {
				if err := p.del(); err != nil {
					t.Errorf("DEL of %s: %v", p.name, err)
				}
			}
			n.sameAudit(before, "after the deletions")
			n.kill()
			n.start()
			n.sameAudit(before, "started after the deletions")
			if sent, lost := flow.finish(); len(lost) > 0 {
				t.Errorf("%d of %d datagrams got lost", len(lost), sent)
			}
			n.policy("closed.yaml", "apiVersion: cilium.io/v2\nkind: CiliumNetworkPolicy\nmetadata: {name: closed, namespace: default}\nspec:\n  endpointSelector: {matchLabels: {app: web}}\n  ingress: [{}]\n")
			testenv.Eventually(t, time.Minute, func() string {
				if ask(t, client.ns, to, 64, false, 200*time.Millisecond) == nil {
					return "a new policy does not count"
				}
				return ""
			})
			relabel("k8s:tier=gold")
			mode.undo(disk)
			recorded(rest.StateOk)
			late.renew()
			if err := late.add(); err != nil {
				t.Error(err)
			}
			n.stop()
			n.start()
			list, err := n.client.Endpoints(t.Context(), nil)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, ep := range list {
				names = append(names, ep.Status.ExternalIdentifiers.K8SPodName)
			}
			slices.Sort(names)
			if want := []string{"client", "late", "web"}; !slices.Equal(names, want) {
				t.Errorf("in the end there are %q, want %q", names, want)
			}
			if got := client.endpoint().Status.Identity.Labels; !slices.Contains(got, "k8s:tier=gold") {
				t.Errorf("in the end the client has the labels %q", got)
			}
			n.stop()
		})
	}
}
