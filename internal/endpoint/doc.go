// Package endpoint keeps the endpoints of a node: pods' interfaces with an address, an identity and
// an enforced policy.
//
// An endpoint is a row, not an object with a life of its own. Registry is the table of rows; only
// the Lifecycle writes, any goroutine may read. A row is made by Lifecycle.Create from what the CNI
// plugin reports, its labels give it an identity, the identity gives it a rule set, and the kernel
// is reconciled by way of the interfaces of internal/datapath. The row's state and log show the
// progress and errors.
//
// Policy has the kernel evaluate endpoints; the agent's, the one owner of the policy engine and of
// the kernel's rule sets and endpoint rows, is in internal/agent/enforcement. Store keeps the rows
// on disk for the next agent: Lifecycle.Load and Resume take over what is there without touching a
// packet, and the policy brings it up to date once everything has been observed.
//
// The package starts no goroutine that outlives a call. What always holds: a pod's interface is up
// only with programs on it; an endpoint whose rules cannot be put in force whole drops everything;
// and for whatever an endpoint has in the kernel there is a record on disk, so that a crash at any
// moment leaves nothing that the next agent does not find. Where the disk takes no writes that is
// the record of the row before the changes since, and Lifecycle.Save tries again.
package endpoint
