// Package kvstoretest gives tests real key-value stores: etcd inside the test process or as a
// process of its own, a Consul server, and certificates for both. It is for tests only, and links
// the server of etcd.
//
// What a function of this package starts ends with the test that asked for it, whether it passed or
// not. Nothing is shared between tests, so all of it may be used from parallel ones.
package kvstoretest
