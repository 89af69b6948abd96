// Package datapath describes what a node's kernel should hold, as plain values, and the small
// interfaces through which it is written there.
//
// The values (Endpoint, RuleSet, IPCacheEntry, Config) are desired state: they name kernel
// objects by the numbers the kernel itself uses (interface index, prefix, identity) and carry no
// file descriptors. The interfaces Maps, Programs and Links are implemented for real by
// datapath/maps, datapath/loader and datapath/link, and by the full-state fake in this package's
// sub-package fake, which also injects faults. One conformance suite runs on both.
//
// The package is pure: it does no I/O, starts no goroutine and owns no table.
//
// # Policy verdicts
//
// Every endpoint points at a rule set by number. A rule set is a set of entries, each a
// (direction, peer identity or any, protocol or any, port prefix) with a verdict. For a packet the
// kernel takes the most specific entry of the peer's identity and the most specific entry of the
// identity "any" (0). A peer with an identity of a pod that policy does not know has
// UnobservedIdentity there (see Maps.SetKnownIdentities). If the rule set has entries of blocks of
// addresses, also the most specific entry of the longest block around the peer's address, whatever
// its identity. It drops if any of them denies, passes if any allows, and otherwise falls back to
// the rule set's default for that direction: drop if enforced, pass if not. An entry may also name
// a rule of the admin tier, which is evaluated before all that, and of the baseline tier, which is
// evaluated before the default: of the rules that the entries found name in a tier the first in
// order wins, and accepts, denies, or passes the packet on to the next step. The code that
// computes the entries must therefore merge into the most specific entry of an identity all
// verdicts that apply to it (deny beats allow at any length): see internal/policy.
//
// Rule sets are replaced by number: a new rule set is written whole under a new number, then the
// endpoint's row is overwritten with that number and a new policy generation, which is atomic for
// the packets of that endpoint. Established flows remember the generation that admitted them, and
// policy is evaluated for them again when it differs.
//
// In audit mode the packets that an endpoint's policy denies are reported, counted and passed. This
// concerns the policy of that endpoint alone: the other side's is enforced as ever, and packets
// dropped for another reason stay dropped.
package datapath
