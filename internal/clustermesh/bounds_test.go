package clustermesh

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/hawser-net/hawser/internal/node"
	"github.com/hawser-net/hawser/internal/service"
)

// alone returns a session with cluster b that has no store.
func alone() *session {
	p := Params{Name: "a", ID: 1, MaxClusters: 255}
	p.defaults()
	return &session{remote: newRemote(&Mesh{p: p}, "b")}
}

// TestBounds: of a cluster that has more than the bounds allow, what is one too many is refused,
// and what is known already can still change.
func TestBounds(t *testing.T) {
	t.Parallel()
	s := alone()
	for i := range maxNodes - 1 {
		s.nodes[fmt.Sprint(i)] = node.Node{}
	}
	for i := range maxServices - 1 {
		s.services[service.Name{Namespace: "ns", Name: fmt.Sprint(i)}] = service.Shared{}
	}
	takeNode := func(name string) error {
		value, err := json.Marshal(testNode(func(n *node.Node) { n.Name, n.Cluster, n.ClusterID = name, "b", 2 }))
		if err != nil {
			t.Fatal(err)
		}
		return s.takeNode(name, value)
	}
	takeService := func(name string) error {
		sv := service.Shared{Cluster: "b", ClusterID: 2, Name: service.Name{Namespace: "ns", Name: name}}
		value, err := sv.Marshal()
		if err != nil {
			t.Fatal(err)
		}
		return s.takeService("ns/"+name, value)
	}
	for _, take := range []func(string) error{takeNode, takeService} {
		for _, step := range []struct {
			name string
			ok   bool
		}{{"last", true}, {"beyond", false}, {"last", true}} {
			if err := take(step.name); (err == nil) != step.ok || err != nil && !strings.Contains(err.Error(), "more than") {
				t.Errorf("%s: %v", step.name, err)
			}
		}
	}
	for i := range maxRefused + 1 {
		s.reject(kindIdentities, fmt.Sprint(i), errors.New("a fault"))
	}
	if n := len(s.refused); n != maxRefused {
		t.Errorf("%d refused keys are remembered, want %d", n, maxRefused)
	}
}

// TestRefusedAndGone: a key that was refused, and is gone when a new connection has listed
// everything, is not counted as refused any more.
func TestRefusedAndGone(t *testing.T) {
	t.Parallel()
	s := alone()
	for _, of := range []struct{ kind, key string }{{kindIdentities, "5"}, {kindIdentities, "6"}, {kindNodes, "n1"}, {kindServices, "ns/web"}} {
		s.reject(of.kind, of.key, errors.New("a fault"))
	}
	s.sweep(kindIdentities, map[string]bool{"6": true})
	s.sweep(kindServices, map[string]bool{})
	want := []string{kindIdentities + "/6", kindNodes + "/n1"}
	if diff := gocmp.Diff(want, slices.Sorted(maps.Keys(s.refused))); diff != "" {
		t.Errorf("refused (-want +got):\n%s", diff)
	}
}
