package sandbox

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/hawser-net/hawser/internal/atomicfile"
	"github.com/hawser-net/hawser/internal/sandbox/machine"
)

// state is what the commands of a sandbox share, in state.json. It describes; what is
// removed is found without it.
type state struct {
	Name         string          `json:"name"`
	Created      time.Time       `json:"created"`
	Complete     bool            `json:"complete"` // Up got to its end
	IPv6         bool            `json:"ipv6"`
	RoutingMode  string          `json:"routingMode"`
	EnablePolicy string          `json:"enablePolicy"`
	BinDir       string          `json:"binDir"`
	Self         []string        `json:"self"`
	Etcd         machine.Process `json:"etcd"`
	World        machine.Process `json:"world"`
	Relay        machine.Process `json:"relay"` // zero if there is none
	Page         machine.Process `json:"page"`  // likewise
	PageURL      string          `json:"pageURL,omitempty"`
	Nodes        []*node         `json:"nodes"`
	Pods         []*pod          `json:"pods"`
}

type node struct {
	machine.Host
	Index int             `json:"index"`
	Pods4 netip.Prefix    `json:"pods4"`
	Pods6 netip.Prefix    `json:"pods6"`
	Agent machine.Process `json:"agent"`
}

type pod struct {
	Name        string            `json:"name"`
	Namespace   string            `json:"namespace"`
	Node        string            `json:"node"`
	Labels      map[string]string `json:"labels"`
	Ports       []uint16          `json:"ports"`
	ContainerID string            `json:"containerID"`
	IPv4        netip.Addr        `json:"ipv4"`
	IPv6        netip.Addr        `json:"ipv6"`
	Server      machine.Process   `json:"server"`
	AddTime     time.Duration     `json:"addNanoseconds"`
}

// The plan of addresses. It needs no coordination: nothing of it is visible outside.
const (
	worldName = "world" // the host on the underlay that is not part of the cluster
	worldPort = 80
)

func worldHost() machine.Host {
	return machine.Host{Name: worldName, IPv4: netip.AddrFrom4([4]byte{10, 99, 0, 1}), IPv6: netip.MustParseAddr("fd00:99::1")}
}

func newNode(index int, v6 bool) *node {
	i := byte(index)
	n := &node{
		Host: machine.Host{
			Name: fmt.Sprintf("n%d", index), IPv4: netip.AddrFrom4([4]byte{10, 99, 0, 10 + i}), IPv6: netip.MustParseAddr(fmt.Sprintf("fd00:99::%d", 10+index)),
		},
		Index: index, Pods4: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24),
	}
	if v6 {
		n.Pods6 = netip.MustParsePrefix(fmt.Sprintf("fd00:10:244:%d::/112", index))
	}
	return n
}

func (s *state) node(name string) *node {
	i := slices.IndexFunc(s.Nodes, func(n *node) bool { return n.Name == name })
	if i < 0 {
		return nil
	}
	return s.Nodes[i]
}

func (s *state) pod(name string) *pod {
	i := slices.IndexFunc(s.Pods, func(p *pod) bool { return p.Name == name })
	if i < 0 {
		return nil
	}
	return s.Pods[i]
}

// errNotRunning says that there is no sandbox of that name.
var errNotRunning = errors.New("no sandbox is running")

func loadState(file string) (*state, error) {
	data, err := os.ReadFile(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil, errNotRunning
	}
	if err != nil {
		return nil, err
	}
	var s state
	if err := json.Unmarshal(data, &s); err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return &s, nil
}

// save replaces the file in one step, so a reader never sees half of it.
func (s *state) save(file string) error {
	data, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return err
	}
	return atomicfile.Write(file, append(data, '\n'), 0o600, atomicfile.Process)
}
