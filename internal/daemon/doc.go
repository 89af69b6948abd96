// Package daemon is the frame of Hawser's long-running programs: how one is started and stopped,
// where its options come from, its log, its manual page, the options that all or most of them have,
// and how it serves HTTP. What a program does with that is its own package's.
//
// The package has no state. Everything in it may be used from many goroutines.
package daemon
