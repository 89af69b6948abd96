package cni

import (
	"testing"

	"github.com/hawser-net/hawser/api/rest/client"
	"github.com/hawser-net/hawser/internal/deletequeue"
)

// TestUnreleasedIsRemovedByCleanup: the plugin keeps what it owes where the agent's cleanup removes
// it.
func TestUnreleasedIsRemovedByCleanup(t *testing.T) {
	t.Parallel()
	for _, socket := range []string{client.DefaultSocket, "/run/elsewhere/a.sock"} {
		agent, err := client.New(socket)
		if err != nil {
			t.Fatal(err)
		}
		defer agent.Close()
		owed := unreleasedDir(agent)
		if removed := deletequeue.Unreleased(deletequeue.Dir(socket)); owed != removed {
			t.Errorf("with the socket %s the plugin writes to %s, and %s is removed", socket, owed, removed)
		}
	}
}
