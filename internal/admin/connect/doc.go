// Package connect connects clusters, for whoever runs both: it reads what each says of
// itself, sees that the two go together, and writes into the Secret that a cluster's agents follow
// how the other one's store is read.
//
// It knows clusters by their API servers alone. How others read a cluster's store stands in a
// Secret of it ([AccessSecret]), made by whoever runs that store. It starts no goroutines but those
// of client-go for the time of a call; a Cluster may be used by several goroutines at once.
package connect
