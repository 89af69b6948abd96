// Package bpf holds the datapath's programs, written in C, and their tests.
//
// One file is one attach point and becomes one object:
//
//	from_pod.c      what a pod sends: ingress of the host side of its veth pair
//	to_pod.c        what the host's stack sends to a pod: egress of the same
//	from_overlay.c  what other nodes send through VXLAN: ingress of the tunnel device
//	from_host.c     what the host sends to other nodes' pods: egress of the host's device
//	from_netdev.c   what other nodes send natively: ingress of the underlay device
//	to_netdev.c     what leaves the node: egress of the same
//	from_device.c   what clients outside send by another device of the node's: ingress of it
//	to_device.c     what leaves the node there: egress of the same
//	sock.c          what the node's own processes call services by: hooks of a cgroup
//	maps.c          all maps, without a program: the source of their Go types
//
// lib/ has the parts, each described at the top of its header. A packet passes them in this order:
// packet.h (parse), forward.h (look up endpoints and identities), conntrack.h (look up the flow),
// policy.h (policy verdict for a new flow), forward.h (forward), events.h (count and report). Read
// from_pod.c from its end to its start to see the whole path.
//
// The objects are built by `make generate` into datapath/maps and datapath/loader and committed.
//
// Tests run the real programs on real, unpinned maps through BPF_PROG_TEST_RUN: a row is a packet
// in, a verdict, and what has changed. A *_test.c file is a program that exists for a test only.
package bpf
