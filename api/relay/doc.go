// Package relay has the messages by which a relay tells clients which nodes it hears. The code is
// generated from relay.proto, by the directive in package flow.
package relay
