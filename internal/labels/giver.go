package labels

import (
	"fmt"
	"strings"
)

// Giver is who gives a workload labels of a source.
type Giver int

const (
	// GivenByAnyone: the creator of the workload, users included.
	GivenByAnyone Giver = iota
	// GivenByAgent: the agent makes them from what a pod asks for. They are part of identities, but
	// no request may contain them.
	GivenByAgent
	// GivenByNetwork: the network derives them from addresses, names and nodes. A workload with one
	// would match rules for a host, a prefix or a DNS name.
	GivenByNetwork
)

// GiverOf returns who may set labels of a source. Each reader of external labels (the REST API, CNI
// arguments, stores, other clusters) must check it.
func GiverOf(source string) Giver {
	switch source {
	case SourceReserved, SourceCIDR, SourceCIDRGroup, SourceBlock, SourceNode, SourceFQDN, SourceDirectory:
		return GivenByNetwork
	case SourceGenerated:
		return GivenByAgent
	}
	return GivenByAnyone
}

// Owned reports whether the network itself sets labels with this key, whatever their source.
func Owned(key string) bool {
	return strings.HasPrefix(key, PrefixOwned) || strings.HasPrefix(key, "io.kubernetes.pod.")
}

// CheckGiven returns an error that names a label of the set that users cannot give a workload.
func CheckGiven(set Set) error {
	for _, l := range set {
		if GiverOf(l.Source) != GivenByAnyone || Owned(l.Key) {
			return fmt.Errorf("%s: labels of this kind cannot be set", l)
		}
	}
	return nil
}

// CheckIdentity returns an error that names a label of the set that no workload's identity has.
func CheckIdentity(set Set) error {
	for _, l := range set {
		if GiverOf(l.Source) == GivenByNetwork {
			return fmt.Errorf("%s is not a label of a pod", l)
		}
	}
	return nil
}
