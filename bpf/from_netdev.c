//go:build ignore

/* Packets from the network between the nodes: ingress of the native device, and of each interface
 * that a cloud attaches to the node.
 *
 * Packets with a source address of this node or its pods are dropped as spoofed. Packets for a
 * service go to a backend. With native routing, policy is enforced here on packets from other pods
 * and nodes of the cluster to local pods, and they go straight to the pod. Everything else goes to
 * the stack, which may have to undo a NAT; if it is delivered to a pod, to_pod enforces policy. */
#include "lib/dsr.h"
#include "lib/forward.h"
#include "lib/nodeport.h"

/* Reports whether a packet is one of the tunnel, whole and for this node. They are most of the
 * traffic and are for no service; from_overlay checks the sender and counts the inner packets. */
static __always_inline bool is_of_tunnel(struct __sk_buff *ctx)
{
	struct ipv4_header *ip = (void *)(long)ctx->data + ETH_LEN;
	struct ports *ports = (void *)(ip + 1);
	struct addr dst;

	if (!cfg.tunnel_port || ctx->protocol != htons(ETH_P_IP) || ctx->vlan_present || ctx->pkt_type != PACKET_HOST ||
	    (void *)(ports + 1) > (void *)(long)ctx->data_end || ip->version_ihl != 0x45 || ip->proto != PROTO_UDP ||
	    ip->frag & htons(IPV4_MORE_FRAGMENTS | IPV4_OFFSET_MASK) || ports->dst != cfg.tunnel_port)
		return false;
	addr_set4(&dst, ip->dst);
	return is_host(&dst, false);
}

static __always_inline int from_netdev_packet(struct __sk_buff *ctx, struct report *report)
{
	bool parsed = false, ours;
	struct packet p;
	int reason;
	__u16 type;

	report->outcome = OUTCOME_STACK;
	if (is_tagged(ctx) || ctx->pkt_type == PACKET_OTHERHOST || frame_type(ctx, &type))
		return TC_ACT_OK;
	if (is_hidden(ctx, type))
		return -DROP_UNKNOWN_L3;
	/* The stack decapsulates what the programs do not, and broadcast frames too. Neither
	 * reaches a pod, but both reach sockets of the node. */
	ours = !parse_network(ctx, &p, type) && ctx->pkt_type == PACKET_HOST;
	if (ours && (cfg.node_port ? is_lb_proto(&p) : p.proto == PROTO_ICMPV6 || (cfg.tunnel_port && p.proto == PROTO_UDP)))
		parsed = !parse_transport(ctx, &p, frag_owner(&p));
	/* What the fast check of is_of_tunnel misses, and IPv6. Neighbour discovery must pass
	 * before all else, also for duplicate address detection. */
	if (parsed && (p.kind == KIND_NEIGHBOUR || (cfg.tunnel_port && p.proto == PROTO_UDP &&
						    p.dport == cfg.tunnel_port && is_host(&p.dst, p.v6))))
		return TC_ACT_OK;
	if (!ours && p.proto == PROTO_ICMPV6 && addr_is_multicast(&p.dst, p.v6))
		return TC_ACT_OK;
	if (claims_own(&p))
		return -DROP_INVALID_SOURCE_IP;
	if (!ours)
		return TC_ACT_OK;
	if (cfg.node_port && parsed) {
		int action = node_port_packet(ctx, &p, report);

		if (action != NOT_A_SERVICE)
			return action;
	}
	struct endpoint *ep = endpoint_at(&p.dst);
	/* The interface is not, or no longer, in the map: none of its packets are from the cluster,
	 * and to_pod enforces policy on them as on those of any other device. */
	if (!ep || (cfg.interfaces && !joins_nodes(ctx->ifindex)))
		return TC_ACT_OK;
	struct ipcache_value *from = ipcache_lookup(&p.src, p.v6);
	__u32 identity = from ? from->identity : world_identity(p.v6);
	/* The node has more addresses than the programs know. In tunnel mode packets from remote
	 * pods arrive through the tunnel, but not those to the node itself; policy does not apply
	 * to these. */
	if (identity == ID_HOST || (cfg.tunnel && has_tunnel(from))) {
		report->endpoint = ep->id;
		return -DROP_INVALID_SOURCE_IP;
	}
	if (cfg.tunnel)
		return TC_ACT_OK;
	/* What pods answer outside of the cluster takes the stack, and netfilter would
	 * masquerade replies to what it has not seen. to_pod enforces policy on these, also if
	 * rules name their addresses. An API server may be outside, or on a node, from which GRE
	 * is DSR. */
	if ((is_outside(identity) || (identity == ID_KUBE_APISERVER && p.proto != PROTO_GRE)) &&
	    !(cfg.node_port && p.kind == KIND_FLOW && is_dsr_flow(&p)))
		return TC_ACT_OK;
	report->endpoint = ep->id;
	if (is_host(&p.src, p.v6))
		return -DROP_INVALID_SOURCE_IP;
	if (cfg.node_port && unlikely(p.proto == PROTO_GRE) && is_node(identity))
		return deliver_dsr(ctx, &p, ep, report);
	reason = parse_transport(ctx, &p, frag_owner_of(ep, INGRESS));
	if (reason)
		return -reason;
	return deliver_from(ctx, &p, ep, identity, report);
}

SEC("tc")
int from_netdev(struct __sk_buff *ctx)
{
	if (is_of_tunnel(ctx))
		return TC_ACT_OK;
	struct report report = {.program = PROGRAM_FROM_NETDEV, .direction = INGRESS};

	return finish(ctx, &report, from_netdev_packet(ctx, &report));
}

/* Dual-licensed, see LICENSE.GPL-2.0: the kernel has bpf_fib_lookup for GPL programs only. */
char license_name[] SEC("license") = "GPL";
