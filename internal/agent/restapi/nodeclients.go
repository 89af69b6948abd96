package restapi

import (
	"reflect"
	"sync"
	"time"

	"github.com/hawser-net/hawser/api/rest"
)

// nodeClients remembers what each client of GET /cluster/nodes got, so that it can be sent only
// what changed. Clients that do not ask for a while are dropped and start again.
type nodeClients struct {
	mu      sync.Mutex
	next    int
	clients map[int]*nodeClient
}

type nodeClient struct {
	sent map[string]rest.NodeElement
	last time.Time
}

const (
	nodeClientIdle = 5 * time.Minute
	maxNodeClients = 256
)

func newNodeClients() *nodeClients { return &nodeClients{clients: map[int]*nodeClient{}} }

// changes returns what client does not know yet of nodes. A client without an ID, or with one that
// was dropped, gets a new ID and all nodes.
func (c *nodeClients) changes(id int, self string, nodes []rest.NodeElement) rest.ClusterNodeStatus {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	for n, cl := range c.clients {
		if now.Sub(cl.last) > nodeClientIdle {
			delete(c.clients, n)
		}
	}
	cl := c.clients[id]
	if cl == nil {
		cl = &nodeClient{sent: map[string]rest.NodeElement{}}
		if len(c.clients) < maxNodeClients { // beyond, clients are served but not remembered
			c.next++
			id = c.next
			c.clients[id] = cl
		}
	}
	cl.last = now
	out := rest.ClusterNodeStatus{ClientID: id, Self: self}
	current := map[string]rest.NodeElement{}
	for _, n := range nodes {
		current[n.Name] = n
		if old, known := cl.sent[n.Name]; !known || !reflect.DeepEqual(old, n) {
			out.NodesAdded = append(out.NodesAdded, n)
		}
	}
	for name, n := range cl.sent {
		if _, still := current[name]; !still {
			out.NodesRemoved = append(out.NodesRemoved, n)
		}
	}
	cl.sent = current
	return out
}
