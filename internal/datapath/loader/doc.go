// Package loader loads the programs of bpf/ and attaches them to interfaces. Loader implements
// datapath.Programs.
//
// There is one set of programs a node. It is verified once, pinned next to the maps under a name
// made of its own code, its settings and the maps it uses, and shared by all endpoints: an endpoint
// costs two filters, not a verification. An agent that starts again with the same build and
// settings finds the pins and verifies nothing. With another build or other settings the new set is
// loaded and published whole (written aside, then renamed), put in place of the old one on every
// interface, each in one step, and only then are the old pins removed.
//
// Loader starts no goroutine. It is safe for concurrent use.
package loader
