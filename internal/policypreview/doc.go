// Package policypreview answers what policies mean: who may reach whom, what would be otherwise
// with other policies, by the flows that a node has recorded and between all parties of the
// cluster, and why a packet was refused. It serves api/policy.
//
// The judge is the policy engine, a second one in the state of the live one: see [policy.Snapshot].
// Nothing here changes what is enforced, and the live engine is held only while it is copied, or
// asked for one trace.
//
// # What is compared
//
// A connection that was seen is judged on its whole way, at its sender and at its receiver, by the
// rules in force and by those that are asked about. Endpoints of other clusters have policies of
// their own, of which nothing is known here: that side passes. What is outside of the cluster is
// judged by the longest prefix that rules name, as the datapath does. Audit mode is not looked at:
// what it lets pass counts as refused.
package policypreview
