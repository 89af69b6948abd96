// Package labels holds the labels that give an endpoint its identity: where a label came from, the
// canonical string that stands for a set of them on the wire, and the filter that separates the
// labels that make an identity from those that only inform.
//
// A label's source is part of it and is never derived from its key. Labels that users choose
// (pod labels) are typed SourceK8s, so that no choice of theirs can look like a reserved label or
// like the namespace, service account or cluster of the pod; see PodLabels.
//
// Everything here is a value: the package does no I/O and keeps no state, and all of it is safe for
// concurrent use as long as a Set that was handed out is not modified.
package labels
