// Package health has the messages by which nodes report which others they reach. The code is
// generated from health.proto, by the directive in package flow.
package health
