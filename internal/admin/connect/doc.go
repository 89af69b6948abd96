// Package connect connects two clusters on behalf of an administrator of both. It reads each
// cluster's description, checks that the two are compatible, and adds the access to the other's
// store to the Secret that a cluster's agents follow.
//
// It talks to the API servers only. A Secret of each cluster ([AccessSecret]), made by the
// administrator of its store, contains what others need to read that store. The package starts no
// goroutines but those of client-go during a call; a Cluster is safe for concurrent use.
package connect
