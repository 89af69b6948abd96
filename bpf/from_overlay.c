//go:build ignore

/* Packets from other nodes: ingress of the VXLAN device, which delivers them decapsulated with the
 * tunnel's metadata. The sender's identity is the VNI.
 *
 * The kernel decapsulates any packet sent to the port, so packets are accepted from nodes only: the
 * outer source must be the address of a known node, the identity must be one that this node may
 * send, and the inner source must not belong to another node or its pods. */
#include "lib/dsr.h"
#include "lib/forward.h"
#include "lib/nodeport.h"

/* Reports whether a node may send packets of an identity. */
static __always_inline bool may_send_identity(const struct tunnel_peer *peer, __u32 identity)
{
	if (identity >= peer->first && identity <= peer->last)
		return true;
	switch (identity) {
	case ID_HOST:
	case ID_REMOTE_NODE:
	case ID_WORLD:
	case ID_WORLD4:
	case ID_WORLD6:
	case ID_UNMANAGED:
	case ID_HEALTH:
	case ID_INIT:
	case ID_INGRESS:
		return true;
	case ID_KUBE_APISERVER:
		return peer->same_cluster;
	}
	/* Reserved and fixed identities have the same ID in all clusters: they are accepted from
	 * this cluster only. */
	return peer->same_cluster && identity >= ID_WELL_KNOWN_MIN && identity <= ID_WELL_KNOWN_MAX;
}

/* Reports whether an address is one of the node that has sent the packet. */
static __always_inline bool is_of_peer(const struct addr *a, const struct tunnel_peer *peer)
{
	struct tunnel_peer *owner = bpf_map_lookup_elem(&tunnel_peers, a);

	return owner && owner->node == peer->node;
}

/* Maps the identity in the VNI to the one that policy uses here. */
static __always_inline __u32 overlay_identity(const struct packet *p, const struct tunnel_peer *peer,
					      const struct ipcache_value *entry, __u32 vni)
{
	switch (vni) {
	case ID_HOST:
	case ID_REMOTE_NODE:
		/* Nodes send as remote-node; the ipcache may have a more specific identity. Behind
		 * the tunnel the address is that node's. */
		if (entry && (entry->identity == ID_KUBE_APISERVER || entry->identity == ID_INGRESS ||
			      entry->identity >> 24 == ID_REMOTE_NODE_SCOPE) &&
		    (has_tunnel(entry) || is_of_peer(&p->src, peer)))
			return entry->identity;
		return ID_REMOTE_NODE;
	case ID_WORLD:
	case ID_WORLD4:
	case ID_WORLD6:
		/* The sender's address may have a CIDR identity here; CIDR identities are never
		 * sent. */
		if (entry && is_outside(entry->identity) && !has_tunnel(entry))
			return entry->identity;
		return world_identity(p->v6);
	}
	return vni;
}

/* Finds the node that has sent the packet, and the VNI. Returns NULL if the node is not known. */
static __always_inline const struct tunnel_peer *sent_by(struct __sk_buff *ctx, struct addr *remote, __u32 *vni)
{
	struct bpf_tunnel_key key = {};

	/* The call names the family of the outer packet, which nothing else shows. */
	if (!bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), 0))
		addr_set4(remote, htonl(key.remote_ipv4));
	else if (!bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), BPF_F_TUNINFO_IPV6))
		addr_set6(remote, key.remote_ipv6);
	else
		return NULL;
	*vni = key.tunnel_id;
	return bpf_map_lookup_elem(&tunnel_peers, remote);
}

/* Finds the source identity of a packet as its node sent it. Returns 0 or a drop reason, and writes
 * the identity into the report. Not inlined: its variables need a stack of their own. */
static __noinline int overlay_source(struct __sk_buff *ctx, const struct packet *p, struct report *report)
{
	struct addr remote;
	__u32 vni = ID_UNKNOWN;
	const struct tunnel_peer *peer = sent_by(ctx, &remote, &vni);

	report->src_identity = vni;
	if (!peer)
		return DROP_UNKNOWN_TUNNEL_PEER;
	if (!may_send_identity(peer, vni))
		return DROP_INVALID_IDENTITY;
	if (is_host(&p->src, p->v6))
		return DROP_INVALID_SOURCE_IP;
	struct ipcache_value *entry = ipcache_lookup(&p->src, p->v6);
	/* Nearly all packets: from a pod of the node that has sent them. */
	bool theirs = has_tunnel(entry) && addr_equal(&entry->tunnel, &remote);
	if (!theirs && (endpoint_at(&p->src) || (entry && entry->identity == ID_HOST)))
		return DROP_INVALID_SOURCE_IP;
	/* A node may send from its own addresses and from outside ones, not from those behind
	 * another node. Where an address has just moved and this node does not know it yet, replies
	 * would go to the old node as well: what is dropped until then could not have worked. */
	if (!theirs && has_tunnel(entry) && !is_of_peer(&entry->tunnel, peer))
		return DROP_INVALID_SOURCE_IP;
	report->src_identity = overlay_identity(p, peer, entry, vni);
	return 0;
}

/* Hands a packet to this node itself. Returns an action, or a drop reason negated. */
static __always_inline int to_host(struct __sk_buff *ctx, struct packet *p, struct report *report)
{
	int reason = 0;

	if (cfg.node_port || p->proto == PROTO_UDP)
		reason = parse_transport(ctx, p, 0);
	/* No nested tunnels: an inner packet for the tunnel's port was not sent by the node, but
	 * would pass as the node's own. */
	if (p->proto == PROTO_UDP && reason)
		return -reason;
	if (for_tunnel(p))
		return -DROP_TUNNEL_NOT_FROM_NODE;
	if (cfg.node_port && !reason) {
		int action = p->kind == KIND_ERROR ? node_port_error(ctx, p, report) :
						     node_port_reply(ctx, p, report);

		if (action != NOT_A_SERVICE)
			return action;
	}
	report->dst_identity = ID_HOST;
	if (ctx->pkt_type != PACKET_HOST)
		bpf_skb_change_type(ctx, PACKET_HOST);
	report->outcome = OUTCOME_STACK;
	return TC_ACT_OK;
}

static __always_inline int from_overlay_packet(struct __sk_buff *ctx, struct report *report)
{
	struct packet p;
	int reason;
	__u16 type;

	if (frame_type(ctx, &type))
		return -DROP_MALFORMED;
	reason = parse_network(ctx, &p, type);
	if (reason)
		return -reason;
	if (addr_is_multicast(&p.dst, p.v6))
		return -DROP_MULTICAST;
	reason = overlay_source(ctx, &p, report);
	if (reason)
		return -reason;

	struct endpoint *ep = endpoint_at(&p.dst);
	if (ep) {
		if (cfg.node_port && unlikely(p.proto == PROTO_GRE) && is_node(report->src_identity))
			return deliver_dsr(ctx, &p, ep, report);
		reason = parse_transport(ctx, &p, frag_owner_of(ep, INGRESS));
		if (reason)
			return -reason;
		return deliver_from(ctx, &p, ep, report->src_identity, report);
	}
	/* Never forwarded any further. */
	if (!is_host(&p.dst, p.v6))
		return -DROP_NO_ENDPOINT;
	return to_host(ctx, &p, report);
}

SEC("tc")
int from_overlay(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_FROM_OVERLAY, .direction = INGRESS};

	return finish(ctx, &report, from_overlay_packet(ctx, &report));
}

/* Dual-licensed, see LICENSE.GPL-2.0: the kernel has bpf_fib_lookup for GPL programs only. */
char license_name[] SEC("license") = "GPL";
