// Package health has the messages by which nodes tell which others they reach. The code is
// generated from health.proto, by the directive in package flow.
package health
