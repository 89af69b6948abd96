// Package flows makes flows of the datapath's events, keeps the last ones, and selects among them.
//
// [Maker] is a function from an event, and a [Directory]'s information about its ends, to a flow.
// [Ring] keeps the last of them in bounded memory: writers never wait, and a reader that is too
// slow misses some and gets their number. [Compile] makes a filter of a client's request; one that
// cannot be answered is an error rather than an answer to another question.
//
// The package has no goroutines and no clock. Flows are shared between readers and never changed
// after they were made.
package flows
