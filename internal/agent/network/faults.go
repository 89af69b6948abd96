package network

import (
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/hawser-net/hawser/internal/datapath"
)

// faults are the routes that are not in place, by the node whose pods are not reached. One bad
// node must neither keep the agent from working nor hide among the others. It is safe for
// concurrent use.
type faults struct {
	mu     sync.Mutex
	byNode map[string]string // what is wrong, by the node's name; empty for this node's own network
}

// maxFaultsShown bounds how many nodes a status names.
const maxFaultsShown = 5

// note takes the outcome of a round: what SetNode returned, and the claims that were refused
// before. It logs what is new and what is mended, and returns the error without which the node
// would work.
func (f *faults) note(err error, refused []*datapath.RouteError, log *slog.Logger) error {
	routes, rest := datapath.RouteErrors(err)
	now := map[string]string{}
	for _, r := range slices.Concat(refused, routes) {
		if before := now[r.Peer]; before != "" {
			now[r.Peer] = before + "; " + r.Error()
		} else {
			now[r.Peer] = r.Error()
		}
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	for node, what := range now {
		if f.byNode[node] != what {
			log.Warn("a route is not in place; the others are, and this one is tried again", "node", node, "error", what)
		}
	}
	for node := range f.byNode {
		if now[node] == "" {
			log.Info("the routes to a node are in place again", "node", node)
		}
	}
	f.byNode = now
	return rest
}

// nodes returns the names of the nodes whose pods are not reached, sorted.
func (f *faults) nodes() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Sorted(maps.Keys(f.byNode))
}

// err is the status of the faults, nil if there are none.
func (f *faults) err() error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.byNode) == 0 {
		return nil
	}
	var texts []string
	for _, node := range slices.Sorted(maps.Keys(f.byNode)) {
		if len(texts) == maxFaultsShown {
			texts = append(texts, fmt.Sprintf("and those of %d more nodes: see the log", len(f.byNode)-maxFaultsShown))
			break
		}
		texts = append(texts, f.byNode[node])
	}
	return errors.New("not all routes are in place: " + strings.Join(texts, "; "))
}
