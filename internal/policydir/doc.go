// Package policydir reads network policies from a directory of YAML or JSON files
// (--static-cnp-path) and follows its changes.
//
// A file counts whole or not at all. When a file is faulty, its fault is reported (Status, log) and
// its last good version stays in force (of one that was never valid, what can be enforced, see
// policy.Parse), across a restart too if Config.Keep is set; the other files apply. A file that is
// removed takes its policies with it; a file without any policy is taken for one that is being
// written and is a fault, so that an editor's truncate-and-write never lifts a policy for a moment.
//
// Files are those directly in the directory whose names end in .yaml, .yml or .json and do not
// start with a dot; symbolic links are followed, so that a mounted ConfigMap works. A namespaced
// policy without a namespace belongs to "default".
//
// Dir.Run owns the state and is the only one to change it; it starts one goroutine of the notifier
// and waits for it. Status may be called from anywhere.
package policydir
