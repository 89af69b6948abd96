// Package relevance chooses the labels that make identities, where only those count that policies
// select, and leads all agents from one choice to the next (docs/design/0007-lazy-identities.md).
//
// It follows the policies of the cluster as agents do, and is the only writer of the ConfigMap with
// the keys by which identities are made, and those by which policies may be evaluated. The next
// state is a pure function ([next]) of the published state, the keys that policies need, and the
// progress of agents and objects. Keys are added at once when a policy needs them; keys that none
// needs any more are removed after a delay.
//
// [Controller] owns no table. Its goroutines end with the manager's context.
package relevance
