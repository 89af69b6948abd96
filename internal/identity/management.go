package identity

import (
	"cmp"
	"fmt"
)

// Management is who makes the identities of a cluster: the value of --identity-management-mode,
// which the agents and the operator read.
type Management string

// Ways to manage identities.
const (
	// ManagedByAgent has every agent make those that pods of its node are the first to need.
	ManagedByAgent Management = "agent"
	// ManagedByOperator has the operator make all of them. An agent writes none, and has no right
	// to.
	ManagedByOperator Management = "operator"
	// ManagedByBoth has both make them, as is right while a cluster changes from one to the other.
	ManagedByBoth Management = "both"
)

// The options' names.
const (
	ManagementFlag = "identity-management-mode"
	// ManageCIDFlag is the same as a yes or no.
	ManageCIDFlag = "operator-manage-cid"
)

// ParseManagement combines the two options. mode is "" if it was not set, manageCID "", "true" or
// "false". The default is [ManagedByAgent]. Contradicting options are an error, since following
// either could leave a cluster where nothing creates identities.
func ParseManagement(mode, manageCID string) (Management, error) {
	m := Management(mode)
	switch m {
	case ManagedByAgent, ManagedByOperator, ManagedByBoth, "":
	default:
		return "", fmt.Errorf("--%s: %q is not known; use %s, %s or %s", ManagementFlag, clip(mode), ManagedByAgent, ManagedByOperator, ManagedByBoth)
	}
	switch manageCID {
	case "":
		return cmp.Or(m, ManagedByAgent), nil
	case "true", "false":
	default:
		return "", fmt.Errorf("--%s: %q is neither true nor false", ManageCIDFlag, clip(manageCID))
	}
	same := ManagedByAgent
	if manageCID == "true" {
		same = ManagedByOperator
	}
	if m != "" && m != same {
		return "", fmt.Errorf("--%s=%s is --%s=%s, but %s is given: leave out one of the two", ManageCIDFlag, manageCID, ManagementFlag, same, m)
	}
	return same, nil
}

// Operator reports whether the operator makes identities.
func (m Management) Operator() bool { return m == ManagedByOperator || m == ManagedByBoth }

// Agent reports whether agents make identities.
func (m Management) Agent() bool { return m == ManagedByAgent || m == ManagedByBoth }
