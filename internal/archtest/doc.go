// Package archtest holds the rules of the house as tests, each with its reason: which package may
// import which, where a third-party library may be used, what every package must document, and
// what may not appear in the sources at all. There is nothing to import here.
//
// The tests read the sources and the import graph as `go list` reports it; they run no product
// code. A rule that turns out wrong is changed here, with its reason, in the change that needs it.
package archtest
