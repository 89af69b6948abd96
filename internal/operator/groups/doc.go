// Package groups makes policies with groups of a cloud provider, toGroups and fromGroups, work:
// nodes cannot know who is in a group.
//
// For every CiliumNetworkPolicy and CiliumClusterwideNetworkPolicy whose entries name groups it
// keeps a derivative policy beside it, called "<name>-togroups-<uid>", that holds those entries
// alone, with the addresses of the groups' members as toCIDRSet or fromCIDRSet. The policy itself
// isolates what it selects and allows nobody for its groups; the derivative allows the members. So
// whatever fails, denies: a group that cannot be looked up, or has no members, allows nobody.
//
// Of a policy that is refused only those entries are derived that are understood as a whole; an
// edit that cannot be understood ends what the last good version allowed.
//
// A group that was looked up before keeps its members while looking it up fails, unless the policy
// was changed meanwhile. What became of a policy is in its status.derivativePolicies. A derivative
// belongs to its policy and goes with it, by its owner reference; one that somebody changes is put
// right.
//
// The package owns the derivative policies, and status.derivativePolicies of the others. It starts
// no goroutine but the controllers it adds to the manager.
package groups
