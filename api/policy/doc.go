// Package policy is the service that computes what policies mean: who may reach whom, what other
// policies would change, and why a packet was refused. The code is generated from policy.proto, by
// the directive in package flow.
package policy
