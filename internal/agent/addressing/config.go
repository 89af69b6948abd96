package addressing

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"time"

	v2 "github.com/hawser-net/hawser/api/v2"
	"github.com/hawser-net/hawser/internal/ipam"
	"github.com/hawser-net/hawser/internal/node"
)

// The modes: values of --ipam.
const (
	// ClusterPool: the operator gives each node a block of each family.
	ClusterPool = "cluster-pool"
	// Kubernetes: the pod CIDRs of the Node.
	Kubernetes = "kubernetes"
	// MultiPool: the operator gives blocks of pools as the node needs them.
	MultiPool = "multi-pool"
	// CRD: single addresses that another program writes into the node's CiliumNode.
	CRD = "crd"
	// ENI: the same, of the network interfaces of an AWS instance, which the operator looks after.
	ENI = "eni"
	// Azure: the same, of a machine of Azure.
	Azure = "azure"
	// AlibabaCloud: the same, of an instance of Alibaba Cloud.
	AlibabaCloud = "alibabacloud"
	// Delegated: another CNI plugin gives the addresses, out of the node's pod CIDRs.
	Delegated = "delegated-plugin"
)

// OfCloud reports whether the addresses of a mode are those of network interfaces of a cloud.
func OfCloud(mode string) bool { return mode == ENI || mode == Azure || mode == AlibabaCloud }

// Single reports whether a node has single addresses in a mode.
func Single(mode string) bool { return mode == CRD || OfCloud(mode) }

// PreAllocationFlag is the option that [ParsePreAllocation] reads.
const PreAllocationFlag = "ipam-multi-pool-pre-allocation"

// Config is what the addresses of a node follow from.
type Config struct {
	// Self is this node, ClusterID the number of its cluster, and Hosts are the addresses under
	// which it announces its pods.
	Self      node.Key
	ClusterID uint32
	Hosts     []netip.Addr
	// Mode is one of the constants above.
	Mode string
	// Families are those that pods have.
	Families ipam.Families
	// Given are the ranges of the configuration, which no mode is asked for.
	Given Ranges
	// DefaultPool is the pool of pods for which no other is meant, and Ahead how many addresses
	// more than are in use the node has of a pool: see [ParsePreAllocation]. Both count with
	// MultiPool.
	DefaultPool string
	Ahead       map[string]int
	// Describe writes into the node's object the facts about its instance and the wanted
	// configuration; made is set if the object is new. It is called where nodes have single
	// addresses, and may be nil.
	Describe func(o *v2.CiliumNode, made bool)
	// UpdateInterval is how often the status is updated with the addresses in use, with single
	// addresses.
	UpdateInterval time.Duration
	// Dir is where the agent keeps its state, and Save stores a file there, whole or not at all.
	Dir  string
	Save func(path string, data []byte) error
	// KindsWait is how long the custom resources may take to be defined.
	KindsWait time.Duration
	Log       *slog.Logger
}

// ParsePreAllocation reads a list of "pool=number". The default pool has a number in any case.
func ParsePreAllocation(list []string, defaultPool string) (map[string]int, error) {
	out := map[string]int{}
	var errs []error
	for _, text := range list {
		name, number, ok := strings.Cut(text, "=")
		n, err := strconv.Atoi(number)
		if !ok || name == "" || err != nil || n < 0 {
			errs = append(errs, fmt.Errorf("--%s: %q is not of the form pool=number", PreAllocationFlag, text))
			continue
		}
		out[name] = n
	}
	n, ok := out[defaultPool]
	switch {
	case !ok:
		out[defaultPool] = v2.DefaultPreAllocate
	case n < 1:
		errs = append(errs, fmt.Errorf("--%s: pool %q needs at least 1: the node itself has an address of it", PreAllocationFlag, defaultPool))
	}
	return out, errors.Join(errs...)
}
