// Package flows makes flows of the datapath's events, keeps the last ones, and selects among them.
//
// [Maker] is a function from an event, and what a [Directory] knows of its ends, to a flow. [Ring]
// keeps the last of them in bounded memory: whoever writes never waits, whoever reads too slowly
// misses some and gets their number. [Compile] makes a filter of what a client asks for; a request
// that cannot be answered is an error rather than an answer to another question.
//
// The package has no goroutines and no clock. Flows are shared between readers and never changed
// after they were made.
package flows
