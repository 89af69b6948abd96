// Package policy is the service that computes what policies mean: which connections they allow,
// what other policies would change, and why a packet was refused. The code is generated from
// policy.proto, by the directive in package flow.
package policy
