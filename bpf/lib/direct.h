/* Clients outside that are answered by the backend's node, although they asked another.
 *
 * The node that was asked chooses the backend and sends the client's packets on with the client's
 * address. The backend's node must know the frontend, to answer in its name: so what opens a flow
 * is sent, as it came, in a packet from node to node (GRE; the key is the backend's port and the
 * client's, as in the flow) to the backend's address. The rest of the flow follows as plain packets
 * from the client to the backend.
 *
 * Only nodes are believed: they are known by the identity that the overlay carries, or by their
 * address where the network routes pods'. And nobody gets an answer in the name of what is no
 * frontend here too. */
#pragma once
#include "forward.h"
#include "lb.h"

enum { CARRY_TTL = 64 };

static __always_inline __u32 carry_room(bool v6)
{
	return sizeof(struct gre_header) + (v6 ? sizeof(struct ipv6_header) : sizeof(struct ipv4_header));
}

/* Says whether a packet can be sent within another. A fragment says nothing about its flow, a
 * packet that will be cut into several would be cut wrongly, and nobody cuts what leaves by the
 * device; what leaves by the tunnel may be cut on the outside. */
static __noinline __maybe_unused bool can_carry(struct __sk_buff *ctx, const struct packet *p)
{
	if (p->fragment || ctx->gso_size)
		return false;
	return cfg.tunnel || p->end - ETH_LEN + carry_room(p->v6) <= cfg.native_mtu;
}

/* Finds out whether a client's flow to a backend of another node, if it is one, is answered from
 * there. That is decided by its first packet: it is not for clients that are nodes, whom the
 * backend's node may be, or pods, nor for backends that are no pods of this network, nor if the
 * first packet cannot be carried. In the middle of a connection that came by another node before,
 * the backend's node knows it already. */
static __noinline __maybe_unused int choose_direct(struct __sk_buff *ctx, const struct packet *p, struct found *f,
						   const struct ipcache_value *remote, __u32 client)
{
	bool wanted = f->c.nat.direct;

	if (ct_alive(f->flow, f->c.now) && !(ct_opens(p) && ct_closing(f->flow->flags))) {
		f->c.nat.direct = f->flow->flags & CT_DIRECT;
		return 0;
	}
	f->c.nat.direct = false;
	if (!wanted || !remote || !is_outside(client) || remote->identity < ID_WELL_KNOWN_MIN ||
	    remote->identity >= ID_LOCAL_MIN || (cfg.tunnel && !has_tunnel(remote)))
		return 0;
	f->c.nat.direct = (p->proto == PROTO_TCP && !ct_opens(p)) || can_carry(ctx, p);
	return 0;
}

/* Puts a packet into one from this node to another's endpoint. Returns 0 or a drop reason. */
static __noinline __maybe_unused int wrap(struct __sk_buff *ctx, const struct packet *p, const struct addr *to,
					  const struct gre_header *gre)
{
	struct addr as;

	sender(&as, cfg.tunnel, p->v6);
	if (addr_is_zero(&as) || bpf_skb_adjust_room(ctx, carry_room(p->v6), BPF_ADJ_ROOM_MAC, 0))
		return DROP_ENCAP_FAILED;
	if (p->v6) {
		struct {
			struct ipv6_header ip;
			struct gre_header gre;
		} out = {
			.ip = {
				.version_class = 6 << 4, .payload_len = htons(sizeof(*gre) + p->end - ETH_LEN),
				.next = PROTO_GRE, .hop_limit = CARRY_TTL,
			},
			.gre = *gre,
		};

		memcpy(out.ip.src, as.w, sizeof(out.ip.src));
		memcpy(out.ip.dst, to->w, sizeof(out.ip.dst));
		return bpf_skb_store_bytes(ctx, ETH_LEN, &out, sizeof(out), BPF_F_RECOMPUTE_CSUM) ? DROP_ENCAP_FAILED : 0;
	}
	struct {
		struct ipv4_header ip;
		struct gre_header gre;
	} out = {
		.ip = {
			.version_ihl = 4 << 4 | 5, .total_len = htons(sizeof(out) + p->end - ETH_LEN),
			.frag = htons(IPV4_DONT_FRAGMENT), .ttl = CARRY_TTL, .proto = PROTO_GRE, .src = as.w[3], .dst = to->w[3],
		},
		.gre = *gre,
	};

	out.ip.check = ~fold((__u32)bpf_csum_diff(NULL, 0, (__u32 *)&out.ip, sizeof(out.ip), 0));
	return bpf_skb_store_bytes(ctx, ETH_LEN, &out, sizeof(out), BPF_F_RECOMPUTE_CSUM) ? DROP_ENCAP_FAILED : 0;
}

/* Puts a packet that has been translated, as it was before that, into one from this node to the
 * backend's address. Returns 0 or a drop reason. */
static __noinline __maybe_unused int carry(struct __sk_buff *ctx, struct packet *p, const struct translation *nat)
{
	struct gre_header gre = {
		.flags = htons(GRE_KEY), .proto = htons(p->v6 ? ETH_P_IPV6 : ETH_P_IP), .key = {p->dport, p->sport},
	};
	struct addr backend = p->dst;
	int reason = 0;

	if (nat->client_port) {
		struct addr client = p->src;

		reason = rewrite_end(ctx, p, &client, nat->client_port, false);
	}
	if (!reason)
		reason = rewrite_end(ctx, p, &nat->service, nat->port, true);
	return reason ? reason : wrap(ctx, p, &backend, &gre);
}

/* Sends a packet of a client on to a backend that is not here, to be answered from there. Of a
 * connection the opening is carried, of the rest everything that can be. Returns an action, or a
 * drop reason negated. */
static __noinline __maybe_unused int send_direct(struct __sk_buff *ctx, struct packet *p, const struct translation *nat,
						 const struct ipcache_value *remote, struct report *report)
{
	bool tunnel = cfg.tunnel;
	bool tells = report->ct_state == CT_STATE_NEW || p->proto != PROTO_TCP || ct_opens(p);

	if (tells && can_carry(ctx, p)) {
		int reason = carry(ctx, p, nat);

		if (reason)
			return -reason;
		if (tunnel)
			return encapsulate(ctx, remote, ID_HOST, report);
		report->outcome = OUTCOME_DEVICE;
		return bpf_redirect_neigh(cfg.native_ifindex, NULL, 0, 0);
	}
	if (tunnel)
		return encapsulate(ctx, remote, world_identity(p->v6), report);
	return send_out(ctx, p, report);
}

/* Says whether the packet, as the client sent it, is for a frontend that another node may serve. */
static __noinline __maybe_unused bool served_elsewhere(const struct packet *p)
{
	struct lb_key key;

	lb_key_set(&key, p, LB_OUTSIDE);
	return bpf_map_lookup_elem(&lb_services, &key) || lb_key_of_node(&key, p);
}

/* Finds the flow of a packet that was carried here, which is for a backend here, and translates the
 * packet. Returns 0 or a drop reason. */
static __noinline __maybe_unused int translate_carried(struct __sk_buff *ctx, struct packet *p, const struct endpoint *ep,
						       const __u16 *ports, struct found *f)
{
	struct addr backend = p->v6 ? ep->ip6 : ep->ip4;
	__u16 client_port = ports[1];
	int reason = 0;

	f->c.now = ct_now();
	f->c.swapped = ct_key_set(&f->c.key, &p->src, &backend, client_port, ports[0], p->proto);
	lookup_flow(f);
	if (f->flow && ct_source_owner(f->flow, !f->c.swapped) != ep->incarnation)
		f->flow = NULL;
	if (!ct_alive(f->flow, f->c.now) && !served_elsewhere(p))
		return DROP_NO_BACKEND;
	/* The plain packets of two flows could not be told apart. */
	if (!lb_port_free(p, f->flow, f->c.swapped, client_port, 0, f->c.now))
		return DROP_NO_PORT;
	f->c.nat.on = true;
	f->c.nat.direct = true;
	f->c.nat.service = p->dst;
	f->c.nat.port = p->dport;
	f->c.port = ntohs(ports[0]);
	if (client_port != p->sport) {
		struct addr client = p->src;

		f->c.nat.client_port = p->sport;
		reason = rewrite_end(ctx, p, &client, client_port, false);
	}
	if (!reason)
		reason = rewrite_end(ctx, p, &backend, ports[0], true);
	return reason;
}

/* Delivers what a packet from another node carries, described by p, to an endpoint. Returns an
 * action, or a drop reason negated. */
static __noinline __maybe_unused int deliver_carried(struct __sk_buff *ctx, struct packet *p, const struct endpoint *ep,
						     struct report *report)
{
	struct found found = {};
	struct sides *sides = &found.c.sides;
	struct gre_header gre;
	__u32 plain = ETH_LEN + carry_room(p->v6) - sizeof(gre);
	int reason;

	report->endpoint = ep->id;
	report->dst_identity = ep->identity;
	if (p->fragment || p->l4 != plain || READ_L4(ctx, p, p->l4, &gre) || gre.flags != htons(GRE_KEY) ||
	    gre.proto != htons(p->v6 ? ETH_P_IPV6 : ETH_P_IP))
		return -DROP_UNKNOWN_L4;
	if (bpf_skb_adjust_room(ctx, -(__s32)carry_room(p->v6), BPF_ADJ_ROOM_MAC, 0))
		return -DROP_ENCAP_FAILED;
	reason = parse_network(ctx, p, gre.proto);
	if (!reason)
		reason = p->fragment ? DROP_UNKNOWN_L4 : parse_transport(ctx, p, 0);
	if (reason)
		return -reason;
	if (p->kind != KIND_FLOW)
		return -DROP_UNKNOWN_L4;
	struct ipcache_value *from = ipcache_lookup(&p->src, p->v6);
	sides->src_identity = from ? from->identity : world_identity(p->v6);
	report->src_identity = sides->src_identity;
	if (!is_outside(sides->src_identity) || forged(p, from))
		return -DROP_INVALID_SOURCE_IP;
	reason = endpoint_ready(ep);
	if (reason)
		return -reason;
	side_dst(sides, ep);
	reason = translate_carried(ctx, p, ep, gre.key, &found);
	if (!reason)
		reason = judge_found(ctx, p, report, &found);
	if (reason)
		return -reason;
	return deliver(ctx, p, ep, report);
}

/* Says whether a packet from outside belongs to a flow that was carried here. */
static __noinline __maybe_unused bool was_carried(const struct packet *p)
{
	struct found f = {};

	find_flow(p, &f);
	return ct_alive(f.flow, ct_now()) && (f.flow->flags & CT_DIRECT) && !!(f.flow->flags & CT_OPENED_BY_B) == f.c.swapped;
}
