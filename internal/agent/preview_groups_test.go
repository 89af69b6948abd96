package agent

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/hawser-net/hawser/internal/cli/command"
	clipolicy "github.com/hawser-net/hawser/internal/cli/policy"
	"github.com/hawser-net/hawser/internal/exitcode"
	"github.com/hawser-net/hawser/internal/testenv/controllers"
)

// TestPreviewOfGroups: a policy with groups of a cloud, as the API server has it, is no change to
// the command; with other groups it is one, of which is not known what it will allow.
func TestPreviewOfGroups(t *testing.T) {
	t.Parallel()
	c := newKubeCluster(t)
	ns, _ := twoNamespaces(t)
	n := c.node(ns, "n1", "10.0.1.0/24", "fd00:1::/112")
	n.flags = append(n.flags, "--ipam", "kubernetes", "--enable-hubble", "--hubble-socket-path", n.path("run/hubble.sock"))
	n.start()
	c.cilium("db", "db", "egress: [{toGroups: [{aws: {securityGroupsIds: [sg-1]}}], toPorts: [{ports: [{port: '443', protocol: TCP}]}]}]")
	object, err := c.client.UrgentV2.Get().Namespace("default").Resource("ciliumnetworkpolicies").Name("db").Do(t.Context()).Raw()
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string][]string{
		string(object): {"unchanged CiliumNetworkPolicy default/db"},
		strings.Replace(string(object), "sg-1", "sg-2", 1): {"replaced CiliumNetworkPolicy default/db", "warning: ", "the members of groups are not looked up"},
	} {
		file := n.path("db.json")
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		controllers.Eventually(t, time.Minute, func() string { // until the policy is observed
			var out bytes.Buffer
			a := &command.App{Getenv: func(string) string { return "" }}
			root := command.Root(a, &out, &out, "", "", clipolicy.Command(a))
			code := command.Run(t.Context(), root, []string{"policy", "preview", file, "--server", "unix://" + n.path("run/hubble.sock")})
			for _, part := range want {
				if code != exitcode.OK || !strings.Contains(out.String(), part) {
					return fmt.Sprintf("code %d, want %d and %q\n%s", code, exitcode.OK, want, &out)
				}
			}
			return ""
		})
	}
	n.stop()
}
