//go:build ignore

/* Packets that the node sends out: egress of the native device, and of each interface that a cloud
 * attaches to the node.
 *
 * Other nodes trust tunnel packets from this node's address, so only packets that this node has
 * encapsulated itself may go to the tunnel's port: netfilter gives forwarded packets the node's
 * address when it masquerades them, and local processes have it anyway. Without a tunnel other
 * nodes trust the source address, so a packet with a pod's address must be from that pod, or have
 * come from the network between the nodes.
 *
 * Others use the device, too: VLANs on it, and macvlan or ipvlan interfaces in other network
 * namespaces. Their packets are not the cluster's unless their source address says so; then no mark
 * or metadata that they could have set is trusted.
 *
 * A process of the node that is a service's backend replies from its own port; the client must see
 * the service's. */
#include "lib/forward.h"
#include "lib/nodeport.h"
#include "lib/offload.h"
#include "lib/origin.h"

/* Reports whether a packet is for the tunnel's port. Of a fragmented packet only the first has the
 * port; without it the rest cannot be reassembled. */
static __always_inline bool to_tunnel_port(struct __sk_buff *ctx, const struct packet *p)
{
	struct ports ports;

	return cfg.tunnel_port && p->proto == PROTO_UDP && p->fragment != FRAGMENT_LATER &&
	       !READ_L4(ctx, p, p->l4, &ports) && ports.dst == cfg.tunnel_port;
}

/* Reports whether an address is that of a pod of another node. */
static __always_inline bool is_remote_pod(const struct addr *a, bool v6)
{
	struct ipcache_value *entry = ipcache_lookup(a, v6);

	return entry && entry->identity != ID_HOST && !is_node(entry->identity) && !is_outside(entry->identity);
}

/* Reports whether the programs have encapsulated a packet. A mark stays with a packet in other
 * network namespaces, and with its fragments, and anyone with CAP_NET_ADMIN in one namespace can
 * set it there. So it is trusted only on packets that this node has routed and that came in on an
 * interface with our programs, or on none; see is_locally_generated for the fragments of IPv6. */
static __always_inline bool is_encapsulated(struct __sk_buff *ctx, bool fragment6)
{
	__u32 iif = ctx->ingress_ifindex;
	bool in_priority = ctx->priority >> 16 == ENCAPSULATED;

	/* A queueing discipline must not take the mark for a class. */
	if (in_priority)
		set_priority(ctx, ctx->priority & 0xffff);
	if (!cfg.tunnel || (!in_priority && ctx->tc_index != ENCAPSULATED))
		return false;
	if (!iif)
		return !fragment6 || ctx->sk;
	return iif == cfg.native_ifindex || iif == cfg.host_ifindex || iif == cfg.tunnel_ifindex ||
	       bpf_map_lookup_elem(&endpoints, &iif);
}

/* Reports whether a pod has sent a packet from its own address. */
static __always_inline bool is_sent_by_pod(const struct __sk_buff *ctx)
{
	__u32 iif = ctx->ingress_ifindex;

	return ctx->tc_index == SENT_BY_POD && iif && bpf_map_lookup_elem(&endpoints, &iif);
}

/* Reports whether a packet is forwarded, from a pod or from outside, and not the node's own,
 * whatever its source address is after NAT. */
static __always_inline bool is_forwarded(const struct __sk_buff *ctx)
{
	__u32 iif = ctx->ingress_ifindex;

	return iif && (joins_nodes(iif) || bpf_map_lookup_elem(&endpoints, &iif));
}

/* Reports whether the source address is one of the cluster, which other nodes would trust. */
static __always_inline bool claims_cluster(const struct packet *p)
{
	if (claims_own(p) || (cfg.tunnel && bpf_map_lookup_elem(&tunnel_peers, &p->src)))
		return true;
	struct ipcache_value *entry = ipcache_lookup(&p->src, p->v6);

	/* This node has addresses that it does not announce. */
	return entry && entry->identity != ID_HOST && !is_outside(entry->identity);
}

/* Reports whether a frame is from another device stacked on this one, as far as the frame shows. */
static __always_inline bool is_child(struct __sk_buff *ctx, const struct eth_header *eth)
{
	__u32 ifindex = ctx->ifindex;
	struct interface *other = NULL;
	__u8 known = 0, differ = 0;

	if (cfg.interfaces && ifindex != cfg.native_ifindex)
		other = bpf_map_lookup_elem(&interfaces, &ifindex);
	for (int i = 0; i < 6; i++) {
		__u8 mac = other ? other->mac[i] : cfg.native_mac[i];

		known |= mac;
		differ |= mac ^ eth->src[i];
	}
	return is_tagged(ctx) || (known && differ);
}

/* Checks whether other nodes would attribute a packet to a wrong sender. Returns 0 or a drop
 * reason. Not inlined: its variables need a stack of their own. */
static __noinline int check_source(struct __sk_buff *ctx, const struct packet *p, bool here, bool child)
{
	__u32 iif = ctx->ingress_ifindex;

	if (here && (is_sent_by_pod(ctx) || joins_nodes(iif)))
		return 0;
	if (is_host(&p->src, p->v6))
		/* GRE is for DSR, see dsr.h; this node's own is redirected by its programs. */
		return iif && p->proto == PROTO_GRE && is_remote_pod(&p->dst, p->v6) ? DROP_TUNNEL_NOT_FROM_NODE : 0;
	if (endpoint_at(&p->src) || is_remote_pod(&p->src, p->v6))
		return here && is_reject_reset(ctx, p) ? 0 : DROP_INVALID_SOURCE_IP;
	/* An address may move from node to node. And a node may join networks, but not for pods. */
	if ((!child && is_locally_generated(ctx, p)) || !is_remote_pod(&p->dst, p->v6))
		return 0;
	struct ipcache_value *from = ipcache_lookup(&p->src, p->v6);

	return from && is_node(from->identity) ? DROP_INVALID_SOURCE_IP : 0;
}

static __always_inline int to_netdev_packet(struct __sk_buff *ctx, struct report *report)
{
	struct packet p;
	int reason;
	__u16 type;
	bool here, child;

	report->outcome = OUTCOME_STACK;
	{ /* a scope of its own: its stack space is reused afterwards */
		struct eth_header eth;

		if (READ(ctx, 0, &eth))
			return TC_ACT_OK;
		type = eth.type;
		here = routed_here(ctx);
		child = !here || is_child(ctx, &eth);
	}
	reason = parse_network(ctx, &p, type);
	if (here && p.v6 && is_encapsulated(ctx, p.fragment))
		return TC_ACT_OK;
	/* Also in frames of other types: that may be what is written. */
	if (misplaces_checksum(ctx, &p))
		return -DROP_MALFORMED;
	if (reason == DROP_UNKNOWN_L3)
		return !is_tagged(ctx) && is_hidden(ctx, type) ? -DROP_UNKNOWN_L3 : TC_ACT_OK;
	/* Also through a device stacked on this one. Interface indexes of other namespaces mean
	 * nothing here. */
	if (here && !reason && unlikely(is_not_for_pods(&p.dst)) && is_forwarded(ctx))
		return -DROP_NOT_FOR_PODS;
	if (unlikely(child) && !claims_cluster(&p))
		return TC_ACT_OK;
	/* Anything may follow headers that the parser does not know. */
	if (reason && cfg.tunnel && (child || ctx->ingress_ifindex))
		return -reason;
	if (!reason && to_tunnel_port(ctx, &p))
		return -DROP_TUNNEL_NOT_FROM_NODE;
	int spoofed = cfg.tunnel ? 0 : check_source(ctx, &p, here, child);
	if (spoofed)
		return -spoofed;
	return cfg.node_port && !reason ? node_port_local_reply(ctx, &p, report) : TC_ACT_OK;
}

SEC("tc")
int to_netdev(struct __sk_buff *ctx)
{
	/* Most of what leaves. What is in it has been counted. */
	if (ctx->protocol == htons(ETH_P_IP) && routed_here(ctx) && is_encapsulated(ctx, false))
		return TC_ACT_OK;
	struct report report = {.program = PROGRAM_TO_NETDEV, .direction = EGRESS};

	return finish(ctx, &report, to_netdev_packet(ctx, &report));
}

/* Dual-licensed, see LICENSE.GPL-2.0: what origin.h uses is for GPL programs only. */
char license_name[] SEC("license") = "GPL";
