// Package policypreview evaluates policies without enforcing them: which connections they allow,
// what other policies would change, for the flows that a node has recorded and between all parties
// of the cluster, and why a packet was denied. It serves api/policy.
//
// A second policy engine evaluates, in the state of the live one: see [policy.Snapshot]. Nothing
// here changes what is enforced, and the live engine is locked only while it is copied, or asked
// for one trace.
//
// # What is compared
//
// A recorded connection is evaluated on both sides, sender and receiver, by the rules in force and
// by the rules of the request. The policies of other clusters are not known here: that side passes.
// Addresses outside of the cluster are evaluated by the longest prefix that rules name, as the
// datapath does. Audit mode is ignored: what it lets pass counts as denied.
package policypreview
