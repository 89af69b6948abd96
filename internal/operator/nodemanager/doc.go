// Package nodemanager has nodes be given the addresses of their pods by a cloud: single addresses
// or prefixes on the network interfaces of their instances.
//
// The state of the cloud is in an inventory, read as a whole every minute and for one instance
// after each call that changes it. [Decide] is a pure function from the state of a node to the
// contents of its CiliumNode and the next call to the cloud; the controller writes the former,
// makes the call, and repeats. Calls in progress are recorded in the cloud only: a new interface is
// tagged with its instance, so that the next leader finds it, and completes or removes it.
//
// A cloud is a [Provider]. What it refuses is an [Error] of a [Kind]; what follows from a kind is
// decided here (failedCall, Budget, the elastic IPs), what a person reads in the provider. The
// names of triggers, metrics and the handshake of releasing are the field's.
package nodemanager
