// Package nodemanager has nodes be given the addresses of their pods by a cloud: single addresses
// or prefixes on the network interfaces of their instances.
//
// What is known of the cloud is in an inventory, read as a whole every minute and for one instance
// after each call that changes it. [Decide] is a pure function from what is known of a node to what
// its CiliumNode is to say and to the one next call to the cloud; the controller writes the first,
// makes the second, and asks again. No call is remembered anywhere but in the cloud itself: an
// interface bears from its making the instance that it is for, so whoever leads next finds what is
// under way, and finishes it or removes it.
//
// A cloud is a [Provider]. What it refuses is an [Error] of a [Kind]; what follows from a kind is
// decided here (failedCall, Budget, the elastic IPs), what a person reads in the provider. The
// names of triggers, metrics and the handshake of releasing are the field's.
package nodemanager
