// Package relevance chooses the labels that make identities, where only those count that policies
// select, and leads all agents from one choice to the next (docs/design/0007-lazy-identities.md).
//
// It follows the policies of the cluster as agents do, and is the only writer of the ConfigMap that
// says by which keys identities are made and by which policies may be judged. What comes next is a
// pure function ([next]) of what is published, what policies need, and how far agents and objects
// have come. Keys are added at once when a policy needs them; keys that none needs any more rest
// before they are taken away.
//
// [Controller] owns no table. Its goroutines end with the manager's context.
package relevance
