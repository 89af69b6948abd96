//go:build ignore

/* Packets from the network that joins the nodes: ingress of the native device, and of each
 * interface that a cloud attaches to the node.
 *
 * Packets that claim to be of this node or its pods are dropped: these do not come by the network.
 * What is for a service goes to a backend. If the network routes pod addresses natively, what
 * another pod or node of the cluster sends to a local pod is judged here and goes straight there.
 * Everything else is the stack's, which may have to undo a translation of addresses; if it ends up
 * at a pod, to_pod judges it. */
#include "lib/dsr.h"
#include "lib/forward.h"
#include "lib/nodeport.h"

/* Says whether a packet is one of the tunnel, whole and for this node. They are most of what comes,
 * and for no service; from_overlay asks who sent them, and counts what is in them. */
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
	/* The stack takes apart what the programs do not, and a frame to everybody as well. Neither
	 * gets to a pod, but both get to the node's sockets. */
	ours = !parse_network(ctx, &p, type) && ctx->pkt_type == PACKET_HOST;
	if (ours && (cfg.node_port ? is_lb_proto(&p) : p.proto == PROTO_ICMPV6 || (cfg.tunnel_port && p.proto == PROTO_UDP)))
		parsed = !parse_transport(ctx, &p, frag_owner(&p));
	/* What is_of_tunnel does not find at a glance, over IPv6 as well. Neighbours are found
	 * before anything else, and two that have one address find each other. */
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
		int action = NOT_A_SERVICE;

		if (p.kind == KIND_FLOW) {
			/* A flow keeps its port, even if the port becomes a frontend's
			 * meanwhile. */
			if (is_host(&p.dst, p.v6))
				action = node_port_reply(ctx, &p, report);
			if (action == NOT_A_SERVICE)
				action = node_port(ctx, &p, report);
		} else if (p.kind == KIND_ERROR) {
			action = node_port_error(ctx, &p, report);
		}
		if (action != NOT_A_SERVICE)
			return action;
	}
	struct endpoint *ep = endpoint_at(&p.dst);
	/* An interface that is not of the cloud yet, or not any more, brings nobody of the cluster:
	 * to_pod judges it as any other. */
	if (!ep || (cfg.interfaces && !joins_nodes(ctx->ifindex)))
		return TC_ACT_OK;
	struct ipcache_value *from = ipcache_lookup(&p.src, p.v6);
	__u32 identity = from ? from->identity : world_identity(p.v6);
	/* The node has other addresses than those that the programs know; with a tunnel, pods of
	 * other nodes come by it. What they send to the node itself does not, and is not judged. */
	if (identity == ID_HOST || (cfg.tunnel && has_tunnel(from))) {
		report->endpoint = ep->id;
		return -DROP_INVALID_SOURCE_IP;
	}
	if (cfg.tunnel)
		return TC_ACT_OK;
	if (is_world(identity) && !(cfg.node_port && p.kind == KIND_FLOW && is_dsr_flow(&p)))
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

/* Also under the GPL, see LICENSE.GPL-2.0 here: the kernel shows nobody else where its routes
 * lead. */
char license_name[] SEC("license") = "GPL";
