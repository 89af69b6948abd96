// Package groups implements policies with groups of a cloud provider, toGroups and fromGroups:
// nodes cannot look up the members of a group.
//
// For every CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy whose entries name groups it
// keeps a derivative policy, called "<name>-togroups-<uid>", that holds those entries alone, with
// the addresses of the groups' members as toCIDRSet or fromCIDRSet. The policy itself isolates what
// it selects and allows no peer for its groups; the derivative allows the members. So every failure
// denies: a group that cannot be looked up, or has no members, allows no peer.
//
// Of a policy that is refused only those entries are derived that are understood as a whole; an
// edit that cannot be understood ends what the last good version allowed.
//
// A group that was looked up before keeps its members while looking it up fails, unless the policy
// was changed meanwhile. Lookups are bounded for each policy, in number and time, and policies of
// one namespace do not hold up those of others. The outcome is in the policy's
// status.derivativePolicies. A derivative is owned by its policy and deleted with it; changes to it
// are reverted.
//
// The package owns the derivative policies, and status.derivativePolicies of the others. It starts
// no goroutine but the controllers it adds to the manager.
package groups
