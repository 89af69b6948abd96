// Package relevance is how the operator and the agents of a cluster agree on the labels that make
// identities, where only those count that policies select (--identity-relevant-labels=policy). See
// docs/design/0007-lazy-identities.md for why it is right.
//
// One object, a ConfigMap that the operator alone writes ([State]), contains the keys by which
// identities are made and those by which policies may be evaluated. Each agent reports its progress
// by Leases of its own ([Answer]). The operator proceeds when all have answered, so an agent that
// does not take part, or is unavailable, holds up the change and is never left behind.
//
// [Published] is the agent's side: it follows the one and writes the other. The operator's is
// internal/operator/relevance. The package owns no table; its goroutines are those of
// [Published.Run].
package relevance
