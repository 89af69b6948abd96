// Package identities keeps identities as objects of Kubernetes: an [allocator.Backend] over
// CiliumIdentity.
//
// The name of the object is the ID, and the API server lets one object have a name. So every writer
// that needs an ID for a label set tries the same IDs in the same order ([Sequence]), and creation
// decides: a writer that gets AlreadyExists reads that object, and shares it if its labels are the
// same. So any number of agents and operators may create concurrently, without a lock, and a label
// set gets one ID.
//
// One case is left in which two writers try different IDs: the object of other labels, which
// stood at the ID that both try first, went away in between. A writer that made an ID
// therefore waits until its watch has seen it, and so everything that was made before; if there is
// an older object for the same labels it deletes its own and takes that one. (The allocator does
// this, see [allocator.Acquired].)
//
// Duplicates that others made are tolerated: the oldest counts, by creationTimestamp and then by
// ID, and the users of the others follow.
//
// There are no references here: an identity is in use if a CiliumEndpoint names it. Release does
// nothing. The operator marks unused objects with an annotation ([HeartbeatAnnotation]) before it
// deletes them; a writer that takes such an object into use removes it, which makes the deletion
// fail.
//
// A collected ID is in quarantine: its object stays for a while without labels ([Quarantine]), so
// that every writer goes on to another ID; labels that come back take theirs back. An ID in
// quarantine is no identity ([Quarantined]).
//
// [Prober] is the way to an ID, for agents and the operator alike. [Backend] owns no table; it
// keeps an index of the objects for itself, which its ListAndWatch writes. It starts no goroutine
// but those of Follow.
package identities
