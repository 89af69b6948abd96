/* Who is behind an address, and the ways a judged packet can go: into a local pod, into the
 * overlay, or out through the device. */
#pragma once
#include "config.h"
#include "conntrack.h"
#include "events.h"

static __always_inline struct ipcache_value *ipcache_lookup(const struct addr *a, bool v6)
{
	struct ipcache_value *entry = bpf_map_lookup_elem(&ipcache, a);
	struct prefix key;

	if (entry)
		return entry;
	prefix_set(&key, a->d[0], a->d[1], v6);
	return bpf_map_lookup_elem(&ipcache_prefix, &key);
}

static __always_inline struct endpoint *endpoint_at(const struct addr *a)
{
	return bpf_map_lookup_elem(&addresses, a);
}

/* Says whether an interface is one of those that join the nodes. */
static __always_inline bool joins_nodes(__u32 ifindex)
{
	if (!ifindex)
		return false;
	return ifindex == cfg.native_ifindex || (cfg.interfaces && bpf_map_lookup_elem(&interfaces, &ifindex));
}

/* Says whether the endpoint may take part in traffic at all. Returns 0 or a drop reason. */
static __always_inline int endpoint_ready(const struct endpoint *ep)
{
	if (ep->flags & ENDPOINT_LOCKED)
		return DROP_ENDPOINT_LOCKED;
	if (!ep->rule_set)
		return DROP_NO_RULE_SET;
	return 0;
}

/* The rule set that judges an endpoint's packets, with whether it refuses any. */
static __always_inline __u32 endpoint_rule_set(const struct endpoint *ep)
{
	return ep->rule_set | (ep->flags & ENDPOINT_AUDIT ? RULE_SET_AUDIT : 0);
}

static __always_inline void side_src(struct sides *s, const struct endpoint *ep)
{
	s->src_identity = ep->identity;
	s->src_rule_set = endpoint_rule_set(ep);
	s->src_generation = ep->generation;
	s->src_owner = ep->incarnation;
	s->src_endpoint = ep->id;
}

static __always_inline void side_dst(struct sides *s, const struct endpoint *ep)
{
	s->dst_identity = ep->identity;
	s->dst_rule_set = endpoint_rule_set(ep);
	s->dst_generation = ep->generation;
	s->dst_owner = ep->incarnation;
	s->dst_endpoint = ep->id;
}

/* Takes one hop off the packet's life. The reason is 0, or why that is not possible. */
static __always_inline int decrement_ttl(struct __sk_buff *ctx, const struct packet *p)
{
	if (p->ttl <= 1)
		return DROP_TTL_EXCEEDED;
	if (p->v6) {
		__u8 hops = p->ttl - 1;

		/* No header checksum makes up for the change, so the stack's own sum must
		 * follow. */
		if (bpf_skb_store_bytes(ctx, ETH_LEN + offsetof(struct ipv6_header, hop_limit), &hops,
					sizeof(hops), BPF_F_RECOMPUTE_CSUM))
			return DROP_ENCAP_FAILED;
		return 0;
	}
	/* The TTL is the upper byte of a 16-bit word, so the sum grows by 0x0100 as the word falls
	 * by it (RFC 1624 holds for the end-around carry). */
	struct ipv4_header ip;
	if (READ(ctx, ETH_LEN, &ip))
		return DROP_MALFORMED;
	struct {
		__u8 ttl;
		__u8 proto;
		__u16 check;
	} word;
	__u32 check = ip.check + htons(0x0100);

	word.ttl = ip.ttl - 1;
	word.proto = ip.proto;
	word.check = check + (check >= 0xFFFF);
	if (bpf_skb_store_bytes(ctx, ETH_LEN + offsetof(struct ipv4_header, ttl), &word, sizeof(word),
				0))
		return DROP_ENCAP_FAILED;
	return 0;
}

/* Puts a packet that has been judged into a local pod, straight into its namespace. */
static __always_inline int deliver(struct __sk_buff *ctx, const struct packet *p,
				   const struct endpoint *ep, struct report *report)
{
	__u8 macs[12];
	int reason;

	report->direction = INGRESS;
	report->endpoint = ep->id;
	reason = decrement_ttl(ctx, p);
	if (reason)
		return -reason;
	memcpy(macs, ep->mac, 6);
	memcpy(macs + 6, ep->host_mac, 6);
	if (bpf_skb_store_bytes(ctx, 0, macs, sizeof(macs), 0))
		return -DROP_ENCAP_FAILED;
	if (ctx->pkt_type != PACKET_HOST)
		bpf_skb_change_type(ctx, PACKET_HOST);
	report->outcome = OUTCOME_ENDPOINT;
	return bpf_redirect_peer(ep->ifindex, 0);
}

/* Judges a packet that came from outside the node against the destination's ingress rules and
 * delivers it. Not inlined: its variables need a stack of their own. */
static __noinline __maybe_unused int deliver_from(struct __sk_buff *ctx, struct packet *p,
						  const struct endpoint *ep, __u32 src_identity,
						  struct report *report)
{
	struct found found = {.c.sides.src_identity = src_identity};
	int reason;

	report->endpoint = ep->id;
	report->src_identity = src_identity;
	report->dst_identity = ep->identity;
	reason = endpoint_ready(ep);
	if (reason)
		return -reason;
	side_dst(&found.c.sides, ep);
	reason = judge(ctx, p, report, &found);
	if (reason)
		return -reason;
	return deliver(ctx, p, ep, report);
}

/* The identity of a packet as the wire may carry it: what means something on this node only is
 * replaced by what the receiver can make sense of. */
static __always_inline __u32 wire_identity(__u32 identity)
{
	if (identity == ID_HOST)
		return ID_REMOTE_NODE;
	if (identity == ID_UNKNOWN || identity >= ID_LOCAL_MIN)
		return ID_INIT;
	return identity;
}

/* What the programs set tc_index to, a field of a packet's that nothing but traffic control sees.
 * The kernel leaves it alone until the packet goes out by a device, where to_netdev knows by it
 * what the programs have done with it.
 *
 * On the way into the tunnel any filter of somebody's that lets a packet pass takes that mark off,
 * so the upper half of the priority says the same there, and only there: the stack changes it in
 * what it forwards. A firewall may set priorities. Either mark suffices. */
enum {
	ENCAPSULATED = 0x4857, /* put into another */
	SENT_BY_POD = 0x4858, /* its source is the pod's that sent it */
};

/* Sends a packet to the node behind an ipcache entry, its sender's identity in the VNI, from the
 * address by which that node knows this one: the route could choose another. Not inlined: its
 * variables need a stack of their own. */
static __noinline __maybe_unused int encapsulate(struct __sk_buff *ctx, const struct ipcache_value *to,
						 __u32 identity, struct report *report)
{
	struct bpf_tunnel_key key = {
		.tunnel_id = wire_identity(identity),
		.tunnel_ttl = 64,
	};
	__u64 flags = BPF_F_ZERO_CSUM_TX;

	if (to->flags & IPCACHE_TUNNEL6) {
		/* UDP over IPv6 must have a checksum. */
		flags = BPF_F_TUNINFO_IPV6;
		memcpy(key.remote_ipv6, to->tunnel.w, 16);
		for (int i = 0; i < 4 && !cfg.node6_elsewhere; i++)
			key.local_ipv6[i] = cfg.node6.w[i];
	} else {
		key.remote_ipv4 = ntohl(to->tunnel.w[3]);
		/* The kernel has no route from an address that is not its own. */
		if (!cfg.node4_elsewhere)
			key.local_ipv4 = ntohl(cfg.node4.w[3]);
	}
	if (bpf_skb_set_tunnel_key(ctx, &key, sizeof(key), flags))
		return -DROP_ENCAP_FAILED;
	ctx->tc_index = ENCAPSULATED;
	set_priority(ctx, ENCAPSULATED << 16 | (ctx->priority & 0xffff));
	report->outcome = OUTCOME_OVERLAY;
	return bpf_redirect(cfg.tunnel_ifindex, 0);
}

static __always_inline bool has_tunnel(const struct ipcache_value *entry)
{
	return entry && (entry->flags & (IPCACHE_TUNNEL4 | IPCACHE_TUNNEL6));
}

/* Says whether a packet is of the kind in which nodes send each other packets: a node that takes it
 * apart believes what it says of its sender. */
static __always_inline bool for_tunnel(const struct packet *p)
{
	return p->proto == PROTO_GRE || (cfg.tunnel_port && p->proto == PROTO_UDP && p->dport == cfg.tunnel_port);
}

/* Says whether a packet, from somebody who is no node, could be taken apart where it goes. Not if
 * that is a pod: remote, which is not a pod of this node, is one if the way there is the tunnel and
 * it is no node. All others may be nodes, of another cluster too, and get the packet in this node's
 * name. */
static __always_inline bool misuses_tunnel(const struct packet *p, const struct ipcache_value *remote)
{
	return for_tunnel(p) && !(cfg.tunnel && has_tunnel(remote) && !is_node(remote->identity));
}

/* Finds the device by which the node's routes lead from an address of its own to somebody outside.
 * Not inlined: its variables need a stack of their own. */
static __noinline __maybe_unused __u32 device_to(struct __sk_buff *ctx, const struct addr *from, const struct addr *to, bool v6)
{
	struct bpf_fib_lookup way = {.family = v6 ? AF_INET6 : AF_INET, .ifindex = ctx->ifindex};

	if (v6) {
		memcpy(way.src, from->w, sizeof(way.src));
		memcpy(way.dst, to->w, sizeof(way.dst));
	} else {
		way.src[0] = from->w[3];
		way.dst[0] = to->w[3];
	}
	switch (bpf_fib_lookup(ctx, &way, sizeof(way), BPF_FIB_LOOKUP_SKIP_NEIGH)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return way.ifindex;
	}
	return cfg.native_ifindex;
}

/* Has a packet leave the node, by the only device if there is but one: then nobody is asked. */
static __always_inline int leave(struct __sk_buff *ctx, const struct addr *from, const struct addr *to, bool v6)
{
	bool several = cfg.other_devices || cfg.interfaces;

	return bpf_redirect_neigh(several ? device_to(ctx, from, to, v6) : cfg.native_ifindex, NULL, 0, 0);
}

/* Sends a packet out through the node's device, past the stack. An answer has the port that its
 * client chose. */
static __noinline __maybe_unused int send_out(struct __sk_buff *ctx, const struct packet *p,
				    struct report *report)
{
	int reason = for_tunnel(p) ? DROP_TUNNEL_NOT_FROM_NODE : decrement_ttl(ctx, p);

	if (reason)
		return -reason;
	report->outcome = OUTCOME_DEVICE;
	return leave(ctx, &p->src, &p->dst, p->v6);
}

/* Says whether the node's own stack has made a packet, which came in by no interface then. Of a
 * packet of IPv6 that the kernel has put together from fragments, and cuts anew, it does not always
 * remember by which it came; but what it makes for a socket is still that socket's. */
static __always_inline bool made_here(const struct __sk_buff *ctx, const struct packet *p)
{
	return !ctx->ingress_ifindex && (!p->fragment || ctx->sk);
}

/* Says whether a packet is a reset that the stack has made for no socket: netfilter's, by which it
 * refuses a packet in the name of whom that was for. Sound, because a process does not get such a
 * thing sent: what it sends, and what the kernel answers for it, has a socket here; and what comes
 * in by an interface has that. Who may have netfilter refuse a packet of his own making chooses
 * whom it informs, and the sequence number, as whoever sends a reset from outside may: it carries
 * nothing and opens no connection. */
static __always_inline bool is_refusal(struct __sk_buff *ctx, const struct packet *p)
{
	struct tcp_header tcp;

	return !ctx->ingress_ifindex && !ctx->sk && p->proto == PROTO_TCP && !p->fragment &&
	       p->end == p->l4 + sizeof(tcp) && !READ_L4(ctx, p, p->l4, &tcp) && (tcp.flags & TCP_RST);
}

/* The address by which this node sends clients' packets on to another. */
static __always_inline void sender(struct addr *as, bool tunnel, bool v6)
{
	if (tunnel) {
		as->d[0] = v6 ? cfg.router6.d[0] : cfg.router4.d[0];
		as->d[1] = v6 ? cfg.router6.d[1] : cfg.router4.d[1];
	} else {
		as->d[0] = v6 ? cfg.node6.d[0] : cfg.node4.d[0];
		as->d[1] = v6 ? cfg.node6.d[1] : cfg.node4.d[1];
	}
}

/* Finds who sent a packet that the node's stack lets go to a pod, and makes that the source's side.
 * What the packet says of its source counts only where it can be true, which is shown by the
 * interface that it came in by; what the stack made itself came by none. No setting of the kernel
 * is relied on: IPv6 has no filter of reverse paths at all. Returns 0 or a drop reason. Not
 * inlined: its variables need a stack of their own. */
static __noinline __maybe_unused int stack_source(struct __sk_buff *ctx, const struct packet *p, struct sides *s)
{
	__u32 by = ctx->ingress_ifindex;
	struct ipcache_value *entry = NULL;
	bool own = is_host(&p->src, p->v6);

	s->src_identity = ID_HOST;
	if (!own) {
		struct endpoint *local = endpoint_at(&p->src);

		if (local) {
			s->src_identity = local->identity;
			s->src_owner = local->incarnation;
			return by == local->ifindex ? 0 : DROP_INVALID_SOURCE_IP;
		}
		entry = ipcache_lookup(&p->src, p->v6);
		own = entry && entry->identity == ID_HOST;
	}
	if (own) {
		/* A pod that is led back to itself is done no harm by the node's name. */
		if (made_here(ctx, p) || by == ctx->ifindex)
			return 0;
		/* Sent on in the node's name, by kube-proxy say: the node has not said it. */
		struct endpoint *sender = bpf_map_lookup_elem(&endpoints, &by);

		s->src_identity = sender ? sender->identity : world_identity(p->v6);
		return 0;
	}
	s->src_identity = entry ? entry->identity : world_identity(p->v6);
	/* Pods of other nodes are taken from the overlay or not at all: anyone on the underlay
	 * could claim to be one. */
	if (cfg.tunnel && has_tunnel(entry))
		return DROP_INVALID_SOURCE_IP;
	/* Who belongs to the cluster comes by a device that joins its nodes. Nodes may have
	 * others, by which they are like anybody; pods have not. */
	if (joins_nodes(by) || is_outside(s->src_identity))
		return 0;
	/* Nor has the node's stack: a process that binds a pod's address is not the pod. */
	if (!is_node(s->src_identity))
		return is_refusal(ctx, p) ? 0 : DROP_INVALID_SOURCE_IP;
	if (made_here(ctx, p))
		return 0;
	s->src_identity = world_identity(p->v6);
	return 0;
}

/* Says whether a packet claims to be from this node or a pod of it. Link-local addresses are the
 * neighbours' as well as this node's. */
static __always_inline bool claims_own(const struct packet *p)
{
	return (is_host(&p->src, p->v6) && !(p->v6 && addr_is_link_local6(&p->src))) || endpoint_at(&p->src);
}

/* Says whether a packet from outside has a source that cannot be there: pods of other nodes come
 * through the overlay or not at all, and nobody out there has an address of this node. */
static __always_inline bool forged(const struct packet *p, const struct ipcache_value *from)
{
	return (cfg.tunnel && has_tunnel(from)) || is_host(&p->src, p->v6) || endpoint_at(&p->src);
}
