//go:build ignore

/* Packets from other nodes: ingress of the VXLAN device, which delivers them unwrapped with the
 * tunnel's metadata. The sender's identity is the VNI. */
#include "lib/direct.h"
#include "lib/forward.h"
#include "lib/nodeport.h"

/* Turns the identity on the wire into the one to judge by. Returns 0 or a drop reason. */
static __always_inline int overlay_identity(const struct packet *p, __u32 vni, __u32 *identity)
{
	switch (vni) {
	case ID_HOST:
	case ID_REMOTE_NODE:
		/* Nodes send as remote-node; one may be known here as something more particular. */
		*identity = ID_REMOTE_NODE;
		{
			struct ipcache_value *entry = ipcache_lookup(&p->src, p->v6);
			if (entry && (entry->identity == ID_KUBE_APISERVER ||
				      entry->identity == ID_INGRESS ||
				      entry->identity >> 24 == ID_REMOTE_NODE_SCOPE))
				*identity = entry->identity;
		}
		return 0;
	case ID_WORLD:
	case ID_WORLD4:
	case ID_WORLD6:
		*identity = world_identity(p->v6);
		return 0;
	}
	/* 0 is nobody; numbers between the reserved and the well-known ones have no owner. */
	if (vni == ID_UNKNOWN || (vni > ID_WORLD6 && vni < ID_WELL_KNOWN_MIN))
		return DROP_INVALID_IDENTITY;
	*identity = vni;
	return 0;
}

/* The number that the packet carried, 0 if none: nobody's. Not inlined: its variables need a stack of
 * their own. */
static __noinline __u32 tunnel_id(struct __sk_buff *ctx)
{
	struct bpf_tunnel_key key = {};

	/* The call names the family of the outer packet, which nothing else tells. */
	if (bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), 0) &&
	    bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), BPF_F_TUNINFO_IPV6))
		return 0;
	return key.tunnel_id;
}

static __always_inline int from_overlay_packet(struct __sk_buff *ctx, struct report *report)
{
	struct packet p;
	int reason;
	__u16 type;

	report->src_identity = tunnel_id(ctx);
	if (!report->src_identity)
		return -DROP_INVALID_IDENTITY;
	if (frame_type(ctx, &type))
		return -DROP_MALFORMED;
	reason = parse_network(ctx, &p, type);
	if (reason)
		return -reason;
	if (addr_is_multicast(&p.dst, p.v6))
		return -DROP_MULTICAST;
	reason = overlay_identity(&p, report->src_identity, &report->src_identity);
	if (reason)
		return -reason;
	if (is_host(&p.src, p.v6))
		return -DROP_INVALID_SOURCE_IP;

	struct endpoint *ep = endpoint_at(&p.dst);
	if (ep) {
		if (cfg.node_port && unlikely(p.proto == PROTO_GRE) && is_node(report->src_identity))
			return deliver_carried(ctx, &p, ep, report);
		reason = parse_transport(ctx, &p);
		if (reason)
			return -reason;
		return deliver_from(ctx, &p, ep, report->src_identity, report);
	}
	/* Never forwarded any further: a packet for nobody here ends here. */
	if (!is_host(&p.dst, p.v6))
		return -DROP_NO_ENDPOINT;
	if (cfg.node_port && !parse_transport(ctx, &p)) {
		int action = p.kind == KIND_ERROR ? node_port_error(ctx, &p, report) :
						    node_port_answer(ctx, &p, report);

		if (action != NOT_A_SERVICE)
			return action;
	}
	report->dst_identity = ID_HOST;
	if (ctx->pkt_type != PACKET_HOST)
		bpf_skb_change_type(ctx, PACKET_HOST);
	report->outcome = OUTCOME_STACK;
	return TC_ACT_OK;
}

SEC("tc")
int from_overlay(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_FROM_OVERLAY, .direction = INGRESS};

	return finish(ctx, &report, from_overlay_packet(ctx, &report));
}

char license_name[] SEC("license") = "Apache-2.0";
