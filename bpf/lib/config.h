/* Settings fixed when the programs are loaded. The loader writes them into .rodata, so that the
 * verifier sees constants and removes what is switched off. */
#pragma once
#include "addr.h"

enum { NOT_FOR_PODS_MAX = 4 };

struct config {
	struct addr router4;
	struct addr router6;
	struct addr node4;
	struct addr node6;
	/* The client address that a pod sees when it reaches itself through a service. */
	struct addr loopback4;
	struct addr loopback6;
	/* Addresses that cannot be reached by pods, nor by others through this node. */
	struct addr not_for_pods[NOT_FOR_PODS_MAX];
	/* The network namespace whose sockets are the node's own. */
	__u64 netns_cookie;
	__u32 tunnel_ifindex;
	__u32 host_ifindex;
	__u32 native_ifindex;
	__u32 tunnel_port; /* network byte order, 0 without a tunnel */
	/* Lifetimes in ticks of 2^30 ns, see conntrack.h. */
	__u32 timeout_tcp;
	__u32 timeout_tcp_syn;
	__u32 timeout_tcp_fin;
	__u32 timeout_any;
	__u8 tunnel;
	/* The world has one identity a family (9 and 10) instead of one for both (2). */
	__u8 dual_stack;
	__u8 has_router4;
	__u8 has_router6;
	__u8 has_node4;
	__u8 has_node6;
	__u8 host_mac[6];
	/* Services are load-balanced for clients outside of the cluster. */
	__u8 node_port;
	/* These may also use other devices than the native one. */
	__u8 other_devices;
	__u16 native_mtu; /* 0 if unknown */
	/* The SNAT port range, see nodeport.h: the first port, and how many. */
	__u16 masquerade_first;
	__u16 masquerade_ports;
	/* How many slots for fragments an endpoint has per direction, and the node, as powers of
	 * two. */
	__u8 fragment_bits;
	__u8 fragment_node_bits;
	/* The TCP flags of which the first packet in each direction of a flow is reported. */
	__u8 aggregation_flags;
	/* Interfaces besides the native device join the nodes: those of the map interfaces. */
	__u8 interfaces;
	/* How many entries of masquerade clients with one hash of their address may have
	 * together. */
	__u32 masquerade_share;
	/* The node's address is on none of its interfaces: NAT outside of the node translates
	 * it. */
	__u8 node4_translated;
	__u8 node6_translated;
	__u8 native_mac[6]; /* all 0 if unknown */
	/* The number of entries in not_for_pods. */
	__u8 not_for_pods_count;
	__u32 aggregation_interval; /* ticks between samples of a flow, 0 for none */
};

const volatile struct config cfg SEC(".rodata");

/* Identities with a fixed meaning on every node. */
enum {
	ID_UNKNOWN = 0,
	ID_HOST = 1,
	ID_WORLD = 2,
	ID_UNMANAGED = 3,
	ID_HEALTH = 4,
	ID_INIT = 5,
	ID_REMOTE_NODE = 6,
	ID_KUBE_APISERVER = 7,
	ID_INGRESS = 8,
	ID_WORLD4 = 9,
	ID_WORLD6 = 10,
	/* Pods' identities start here: well-known ones of system pods, ones that users fix, then
	 * allocated ones. */
	ID_WELL_KNOWN_MIN = 100,
	ID_WELL_KNOWN_MAX = 255,
	ID_ALLOCATED_MIN,
	/* An identity from here on means something on this node only; the VNI has 24 bits
	 * anyway. */
	ID_LOCAL_MIN = 1 << 24,
	/* The upper byte of node-local identities: of addresses outside, and of other nodes'
	 * addresses. */
	ID_LOCAL_SCOPE = 1,
	ID_REMOTE_NODE_SCOPE = 2,
	/* In the first of these scopes: pods of this node whose identity is not known yet. */
	ID_TEMPORARY_MIN = 0x01010000,
	ID_TEMPORARY_MAX = 0x010103ff,
	/* In rule sets: pods' identities that this node has not observed yet. */
	ID_UNOBSERVED = 4 << 24,
};

static __always_inline __u32 world_identity(bool v6)
{
	if (!cfg.dual_stack)
		return ID_WORLD;
	return v6 ? ID_WORLD6 : ID_WORLD4;
}

static __always_inline bool is_world(__u32 identity)
{
	return identity == ID_WORLD || identity == ID_WORLD4 || identity == ID_WORLD6;
}

/* Reports whether the identity is outside of the cluster, by name or by address. */
static __always_inline bool is_outside(__u32 identity)
{
	if (identity >= ID_TEMPORARY_MIN && identity <= ID_TEMPORARY_MAX)
		return false;
	return is_world(identity) || identity >> 24 == ID_LOCAL_SCOPE;
}

/* Reports whether the identity is that of another node. */
static __always_inline bool is_node(__u32 identity)
{
	return identity == ID_REMOTE_NODE || identity == ID_KUBE_APISERVER ||
	       identity >> 24 == ID_REMOTE_NODE_SCOPE;
}

static __always_inline bool cfg_addr_equal(const struct addr *a, const volatile struct addr *c)
{
	return ((a->d[0] ^ c->d[0]) | (a->d[1] ^ c->d[1])) == 0;
}

static __always_inline bool is_router6(const struct addr *a)
{
	return cfg.has_router6 && cfg_addr_equal(a, &cfg.router6);
}

static __always_inline bool is_loopback(const struct addr *a, bool v6)
{
	return v6 ? cfg_addr_equal(a, &cfg.loopback6) : cfg_addr_equal(a, &cfg.loopback4);
}

/* Reports whether an address is blocked for pods: one of those that are configured, or loopback
 * (127.0.0.0/8). With route_localnet, which kube-proxy and port mapping plugins set, the kernel
 * accepts packets to 127.0.0.0/8 from other hosts; to ::1 it never does. */
static __always_inline bool is_not_for_pods(const struct addr *a)
{
	if ((a->d[0] | (a->w[2] ^ htonl(0xFFFF)) | (a->b[12] ^ 127)) == 0)
		return true;
	for (int i = 0; i < NOT_FOR_PODS_MAX; i++)
		if (i < cfg.not_for_pods_count && cfg_addr_equal(a, &cfg.not_for_pods[i]))
			return true;
	return false;
}

/* Reports whether the address is one of this node's own. */
static __always_inline bool is_host(const struct addr *a, bool v6)
{
	if (v6)
		return is_router6(a) || (cfg.has_node6 && cfg_addr_equal(a, &cfg.node6)) ||
		       addr_is_link_local6(a);
	return (cfg.has_router4 && cfg_addr_equal(a, &cfg.router4)) ||
	       (cfg.has_node4 && cfg_addr_equal(a, &cfg.node4));
}
