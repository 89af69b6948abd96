package agent

import (
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/rest"
	"github.com/hawser-net/hawser/internal/agent/component"
	"github.com/hawser-net/hawser/internal/node"
)

// partNodeName is the name under which the status shows whether another node has this one's name.
const partNodeName = "node-name"

// namesakeShown is how long the status shows a node of this one's name after it was last seen: each
// of the two overwrites the other's announcement in the store every five minutes.
const namesakeShown = 15 * time.Minute

// namesakes reports other nodes that have this one's name. It is safe for concurrent use.
type namesakes struct {
	components *component.Statuses
	log        *slog.Logger

	mu    sync.Mutex
	shown string
	clear *time.Timer // nil until one was seen
}

// observe reports another node of this one's name.
func (n *namesakes) observe(other node.Node) {
	msg := fmt.Sprintf("another machine, with addresses %v, runs as node %s, too: the two undo each other's announcements, and pods of one or both are not reached. "+
		"Give one another name", other.NodeIPs(), other.Name)
	n.mu.Lock()
	defer n.mu.Unlock()
	if msg != n.shown {
		n.log.Error("another machine uses this node's name; one of the two needs another name", "node", other.Name, "addresses", other.NodeIPs(), "boot", other.BootID)
	}
	n.shown = msg
	n.components.Set(partNodeName, rest.StateWarning, msg)
	if n.clear == nil {
		n.clear = time.AfterFunc(namesakeShown, n.forget)
		return
	}
	n.clear.Reset(namesakeShown)
}

func (n *namesakes) forget() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.shown = ""
	n.components.Set(partNodeName, rest.StateOk, "no other node has this name")
	n.log.Info("no other machine uses this node's name any more")
}
