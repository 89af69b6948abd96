// Package kube runs a real Kubernetes cluster on one machine, without Docker, virtual machines or a
// registry: etcd, an API server, controllers and a scheduler in one network namespace, and nodes
// that are namespaces with a kubelet, containerd and runc of their own.
//
// # What it creates
//
//   - <Root>/<Name>: the mounts that keep network namespaces, state, logs, certificates and the
//     user's kubeconfig.
//   - <Data>/<Name>: what has to be on a disk: etcd's data, and of each node what it has in /var,
//     /etc, /opt, /run and /tmp.
//   - The cgroup hawser-sandbox/<Name> in each hierarchy, with one below it for each node.
//
// A node sees the machine's file system except for those directories, which are its own, and /proc
// and /sys of its own namespaces. Machine-wide settings that a kubelet insists on are shown to it
// without being made. Nothing is added to the machine's own network namespace: the address of the
// user's kubeconfig is a port of the loopback, served by a process that lives on the other side.
//
// Down needs no record: it ends what is found in the cluster's network namespaces, the first
// process of a node with everything below it, and removes what is listed above. It works after a
// crash at any point.
//
// # Concurrency
//
// A lock file serialises commands that change a cluster, between processes as well; it is the same
// one that sandboxes without Kubernetes take. The package starts goroutines for waiting on several
// things at once, and waits for them.
package kube
