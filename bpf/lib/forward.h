/* The endpoint or identity behind an address, and forwarding after the policy verdict: into a local
 * pod, into the overlay, or out through the device. */
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

/* Reports whether an interface is one of those that join the nodes. */
static __always_inline bool joins_nodes(__u32 ifindex)
{
	if (!ifindex)
		return false;
	return ifindex == cfg.native_ifindex || (cfg.interfaces && bpf_map_lookup_elem(&interfaces, &ifindex));
}

/* Checks whether the endpoint may send and receive at all. Returns 0 or a drop reason. */
static __always_inline int endpoint_ready(const struct endpoint *ep)
{
	if (ep->flags & ENDPOINT_LOCKED)
		return DROP_ENDPOINT_LOCKED;
	if (!ep->rule_set)
		return DROP_NO_RULE_SET;
	return 0;
}

/* The rule set of an endpoint, with the flag for audit mode. */
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

/* Decrements the TTL or hop limit. Returns 0 or a drop reason. */
static __always_inline int decrement_ttl(struct __sk_buff *ctx, const struct packet *p)
{
	if (p->ttl <= 1)
		return DROP_TTL_EXCEEDED;
	if (p->v6) {
		__u8 hops = p->ttl - 1;

		/* IPv6 has no header checksum to offset the change, so skb->csum must be
		 * updated. */
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

/* Delivers a packet that policy allows straight into the namespace of a local pod. */
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

/* Enforces the destination's ingress policy on a packet that came from outside the node, and
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
	reason = ct_check(ctx, p, report, &found);
	if (reason)
		return -reason;
	return deliver(ctx, p, ep, report);
}

/* The identity that is sent in the VNI: one that only this node knows is replaced by one that the
 * receiver knows. */
static __always_inline __u32 wire_identity(__u32 identity)
{
	if (identity == ID_HOST)
		return ID_REMOTE_NODE;
	if (identity == ID_UNKNOWN || identity >= ID_LOCAL_MIN)
		return ID_INIT;
	return identity;
}

/* Marks in tc_index, a field that only traffic control uses. The kernel keeps it until the packet
 * leaves by a device, where to_netdev checks it.
 *
 * On the way into the tunnel any other filter that lets a packet pass resets tc_index, so the upper
 * half of the priority has the mark as well there, and only there: the stack changes the priority
 * of what it forwards. A firewall may set priorities. Either mark suffices. */
enum {
	ENCAPSULATED = 0x4857,
	SENT_BY_POD = 0x4858, /* the source address is that of the pod that sent it */
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
		for (int i = 0; i < 4 && !cfg.node6_translated; i++)
			key.local_ipv6[i] = cfg.node6.w[i];
	} else {
		key.remote_ipv4 = ntohl(to->tunnel.w[3]);
		/* The kernel has no route from an address that is not its own. */
		if (!cfg.node4_translated)
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

/* Reports whether a packet is of a kind in which nodes encapsulate others: a node that decapsulates
 * it trusts the identity or address in it. */
static __always_inline bool for_tunnel(const struct packet *p)
{
	return p->proto == PROTO_GRE || (cfg.tunnel_port && p->proto == PROTO_UDP && p->dport == cfg.tunnel_port);
}

/* Reports whether a packet, whose sender is no node, could be decapsulated at its destination. Not
 * if that is a pod: remote, which is not a pod of this node, is one if it is behind the tunnel and
 * no node. All others may be nodes, of another cluster too, which see this node as the sender. */
static __always_inline bool misuses_tunnel(const struct packet *p, const struct ipcache_value *remote)
{
	return for_tunnel(p) && !(cfg.tunnel && has_tunnel(remote) && !is_node(remote->identity));
}

/* Looks up the device of the node's route from an address of its own to one outside.
 * Not inlined: its variables need a stack of their own. */
static __noinline __maybe_unused __u32 fib_device(struct __sk_buff *ctx, const struct addr *from, const struct addr *to, bool v6)
{
	struct bpf_fib_lookup fib = {.family = v6 ? AF_INET6 : AF_INET, .ifindex = ctx->ifindex};

	if (v6) {
		memcpy(fib.src, from->w, sizeof(fib.src));
		memcpy(fib.dst, to->w, sizeof(fib.dst));
	} else {
		fib.src[0] = from->w[3];
		fib.dst[0] = to->w[3];
	}
	switch (bpf_fib_lookup(ctx, &fib, sizeof(fib), BPF_FIB_LOOKUP_SKIP_NEIGH)) {
	case BPF_FIB_LKUP_RET_SUCCESS:
	case BPF_FIB_LKUP_RET_FRAG_NEEDED:
		return fib.ifindex;
	}
	return cfg.native_ifindex;
}

/* The device by which a packet leaves the node; if there is but one, without a route lookup. */
static __always_inline __u32 out_device(struct __sk_buff *ctx, const struct addr *from, const struct addr *to, bool v6)
{
	bool several = cfg.other_devices || cfg.interfaces;

	return several ? fib_device(ctx, from, to, v6) : cfg.native_ifindex;
}

/* Redirects a packet out of the node. */
static __always_inline int redirect_out(struct __sk_buff *ctx, const struct addr *from, const struct addr *to, bool v6)
{
	return bpf_redirect_neigh(out_device(ctx, from, to, v6), NULL, 0, 0);
}

/* Hands a packet that is larger than the device takes to the stack, to be fragmented. As its source
 * may be the node itself, it comes in by the host's own device: nothing else does, so that takes
 * local sources (accept_local). Returns an action, or a drop reason negated. */
static __always_inline int fragment_by_stack(struct __sk_buff *ctx, struct report *report)
{
	__u8 mac[6];

	if (!cfg.host_ifindex)
		return -DROP_MTU_EXCEEDED;
	for (int i = 0; i < 6; i++)
		mac[i] = cfg.host_mac[i];
	if (bpf_skb_store_bytes(ctx, 0, mac, sizeof(mac), 0))
		return -DROP_ENCAP_FAILED;
	/* The sender may have marked it: see to_netdev. */
	ctx->tc_index = 0;
	report->outcome = OUTCOME_STACK;
	return bpf_redirect(cfg.host_ifindex, BPF_F_INGRESS);
}

/* What send_out returns for a packet that is too big: the lower bits are an MTU. */
enum { TOO_BIG = 1 << 16 };

/* Reports whether a packet has come by a device that takes larger packets than an MTU. */
static __always_inline bool has_shrunk(struct __sk_buff *ctx, __u32 mtu)
{
	__u32 before = 0;

	return bpf_check_mtu(ctx, ctx->ifindex, &before, 0, 0) >= 0 && before > mtu;
}

/* Sends a packet out through the node's device, past the stack, which would drop it as spoofed. The
 * destination port of a reply is the client's choice: it may be the tunnel's. Returns an action, a
 * drop reason negated, or TOO_BIG and the device's MTU for a packet of a flow that is larger and
 * must not be fragmented. */
static __noinline __maybe_unused int send_out(struct __sk_buff *ctx, const struct packet *p, struct report *report)
{
	__u32 device = out_device(ctx, &p->src, &p->dst, p->v6), mtu = 0;
	__u16 frag = htons(IPV4_DONT_FRAGMENT);
	int reason;

	if (for_tunnel(p))
		return -DROP_TUNNEL_NOT_FROM_NODE;
	bool big = bpf_check_mtu(ctx, device, &mtu, 0, BPF_MTU_CHK_SEGS) > 0;
	if (unlikely(big || p->fragment)) {
		if (!p->v6 && bpf_skb_load_bytes(ctx, ETH_LEN + offsetof(struct ipv4_header, frag), &frag, sizeof(frag)))
			return -DROP_MALFORMED;
		/* Where netfilter reassembles datagrams, all of one or nothing must pass it. */
		if (!(frag & htons(IPV4_DONT_FRAGMENT)) && (big || (cfg.host_ifindex && has_shrunk(ctx, mtu))))
			return fragment_by_stack(ctx, report);
		/* No error about an error. */
		if (big)
			return p->kind == KIND_FLOW ? TOO_BIG | (mtu & (TOO_BIG - 1)) : -DROP_MTU_EXCEEDED;
	}
	reason = decrement_ttl(ctx, p);
	if (reason)
		return -reason;
	report->outcome = OUTCOME_DEVICE;
	return bpf_redirect_neigh(device, NULL, 0, 0);
}

/* Reports whether the node's own stack has made a packet: then it has no ingress interface. Nor may
 * an IPv6 packet have that which the kernel has reassembled from fragments and fragments anew; but
 * the fragments of a local one still have their socket. */
static __always_inline bool is_locally_generated(const struct __sk_buff *ctx, const struct packet *p)
{
	return !ctx->ingress_ifindex && (!p->fragment || ctx->sk);
}

/* Reports whether a packet is a reset without a socket: netfilter's REJECT sends one from the
 * address that the rejected packet was for. A process cannot send one: its packets, and the
 * kernel's replies for it, have a socket; and what comes in by an interface has that. Who makes
 * netfilter reject a packet of its own choice can choose the receiver and the sequence number, as
 * whoever sends a reset from outside can: it carries no data and opens no connection. */
static __always_inline bool is_reject_reset(struct __sk_buff *ctx, const struct packet *p)
{
	struct tcp_header tcp;

	return !ctx->ingress_ifindex && !ctx->sk && p->proto == PROTO_TCP && !p->fragment &&
	       p->end == p->l4 + sizeof(tcp) && !READ_L4(ctx, p, p->l4, &tcp) && (tcp.flags & TCP_RST);
}

/* Sets the address that this node masquerades clients with when it forwards them to another
 * node. */
static __always_inline void masquerade_addr(struct addr *as, bool tunnel, bool v6)
{
	if (tunnel) {
		as->d[0] = v6 ? cfg.router6.d[0] : cfg.router4.d[0];
		as->d[1] = v6 ? cfg.router6.d[1] : cfg.router4.d[1];
	} else {
		as->d[0] = v6 ? cfg.node6.d[0] : cfg.node4.d[0];
		as->d[1] = v6 ? cfg.node6.d[1] : cfg.node4.d[1];
	}
}

/* Sets the source's side for a packet that the node's stack sends to a pod. The source address is
 * checked against the ingress interface; what the stack made itself has none. No setting of the
 * kernel is relied on: IPv6 has no reverse path filter (rp_filter) at all. Returns 0 or a drop
 * reason. Not inlined: its variables need a stack of their own. */
static __noinline __maybe_unused int stack_source(struct __sk_buff *ctx, const struct packet *p, struct sides *s)
{
	__u32 iif = ctx->ingress_ifindex;
	struct ipcache_value *entry = NULL;
	bool own = is_host(&p->src, p->v6);

	s->src_identity = ID_HOST;
	if (!own) {
		struct endpoint *local = endpoint_at(&p->src);

		if (local) {
			s->src_identity = local->identity;
			s->src_owner = local->incarnation;
			return iif == local->ifindex ? 0 : DROP_INVALID_SOURCE_IP;
		}
		entry = ipcache_lookup(&p->src, p->v6);
		own = entry && entry->identity == ID_HOST;
	}
	if (own) {
		/* A pod that reaches itself may see the node's address. */
		if (is_locally_generated(ctx, p) || iif == ctx->ifindex)
			return 0;
		/* Masqueraded, by kube-proxy say: the sender is not the node. */
		struct endpoint *pod = bpf_map_lookup_elem(&endpoints, &iif);

		s->src_identity = pod ? pod->identity : world_identity(p->v6);
		return 0;
	}
	s->src_identity = entry ? entry->identity : world_identity(p->v6);
	/* Packets of pods of other nodes are accepted from the overlay only: anyone on the underlay
	 * could spoof their addresses. */
	if (cfg.tunnel && has_tunnel(entry))
		return DROP_INVALID_SOURCE_IP;
	/* Packets of the cluster come by a device that joins its nodes. By other devices nodes are
	 * treated as outside, and pods send nothing. */
	if (joins_nodes(iif) || is_outside(s->src_identity))
		return 0;
	/* Nor do local packets: a process that binds a pod's address is not the pod. */
	if (!is_node(s->src_identity))
		return is_reject_reset(ctx, p) ? 0 : DROP_INVALID_SOURCE_IP;
	if (is_locally_generated(ctx, p))
		return 0;
	s->src_identity = world_identity(p->v6);
	return 0;
}

/* Reports whether a packet claims to be from this node or a pod of it. Link-local addresses are the
 * neighbours' as well as this node's. */
static __always_inline bool claims_own(const struct packet *p)
{
	return (is_host(&p->src, p->v6) && !(p->v6 && addr_is_link_local6(&p->src))) || endpoint_at(&p->src);
}

/* Reports whether a packet from outside has a source address that cannot be outside: a pod's of
 * another node if these use the overlay, or one of this node. */
static __always_inline bool is_spoofed(const struct packet *p, const struct ipcache_value *from)
{
	return (cfg.tunnel && has_tunnel(from)) || is_host(&p->src, p->v6) || endpoint_at(&p->src);
}
