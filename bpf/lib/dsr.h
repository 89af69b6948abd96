/* Direct server return (DSR): the node of the backend replies to clients outside that have
 * addressed another node.
 *
 * The node that was addressed chooses the backend and forwards the client's packets with the
 * client's address. The backend's node must know the frontend to reply from it: so the packets that
 * open a flow are encapsulated, untranslated, from this node to the backend's address (GRE; the key
 * is the backend's port and the client's, as in the flow). The rest of the flow follows as plain
 * packets from the client to the backend.
 *
 * Such packets are accepted from nodes only, known by the identity in the overlay, or by their
 * address where the network routes pods'. And the frontend must be one here too. */
#pragma once
#include "forward.h"
#include "lb.h"

enum { DSR_TTL = 64 };

static __always_inline __u32 dsr_overhead(bool v6)
{
	return sizeof(struct gre_header) + (v6 ? sizeof(struct ipv6_header) : sizeof(struct ipv4_header));
}

/* Reports whether a packet can be encapsulated. A fragment may lack the ports of its flow, a GSO
 * packet would be segmented wrongly, and what leaves by the device is not fragmented; what leaves
 * by the tunnel may be, on the outside. */
static __noinline __maybe_unused bool dsr_fits(struct __sk_buff *ctx, const struct packet *p)
{
	if (p->fragment || ctx->gso_size)
		return false;
	return cfg.tunnel || p->end - ETH_LEN + dsr_overhead(p->v6) <= cfg.native_mtu;
}

/* Decides whether a client's flow to a backend of another node uses DSR. The decision is made on
 * its first packet: not for clients that are nodes, one of which may be the backend's, or pods, nor
 * for backends that are no pods of this network, nor if the first packet cannot be encapsulated. In
 * the middle of a connection that came by another node before, the backend's node knows it
 * already. */
static __noinline __maybe_unused int choose_dsr(struct __sk_buff *ctx, const struct packet *p, struct found *f,
						const struct ipcache_value *remote, __u32 client)
{
	bool wanted = f->c.nat.dsr;

	if (ct_alive(f->flow, f->c.now) && !(ct_is_syn(p) && ct_closing(f->flow->flags))) {
		f->c.nat.dsr = f->flow->flags & CT_DSR;
		return 0;
	}
	f->c.nat.dsr = false;
	if (!wanted || !remote || !is_outside(client) || remote->identity < ID_WELL_KNOWN_MIN ||
	    remote->identity >= ID_LOCAL_MIN || (cfg.tunnel && !has_tunnel(remote)))
		return 0;
	f->c.nat.dsr = (p->proto == PROTO_TCP && !ct_is_syn(p)) || dsr_fits(ctx, p);
	return 0;
}

/* Encapsulates a packet in GRE from this node to an endpoint of another. Returns 0 or a drop
 * reason. */
static __noinline __maybe_unused int gre_encap(struct __sk_buff *ctx, const struct packet *p, const struct addr *to,
					       const struct gre_header *gre)
{
	struct addr as;

	masquerade_addr(&as, cfg.tunnel, p->v6);
	if (addr_is_zero(&as) || bpf_skb_adjust_room(ctx, dsr_overhead(p->v6), BPF_ADJ_ROOM_MAC, 0))
		return DROP_ENCAP_FAILED;
	if (p->v6) {
		struct {
			struct ipv6_header ip;
			struct gre_header gre;
		} out = {
			.ip = {
				.version_class = 6 << 4, .payload_len = htons(sizeof(*gre) + p->end - ETH_LEN),
				.next = PROTO_GRE, .hop_limit = DSR_TTL,
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
			.frag = htons(IPV4_DONT_FRAGMENT), .ttl = DSR_TTL, .proto = PROTO_GRE, .src = as.w[3], .dst = to->w[3],
		},
		.gre = *gre,
	};

	out.ip.check = ~fold((__u32)bpf_csum_diff(NULL, 0, (__u32 *)&out.ip, sizeof(out.ip), 0));
	return bpf_skb_store_bytes(ctx, ETH_LEN, &out, sizeof(out), BPF_F_RECOMPUTE_CSUM) ? DROP_ENCAP_FAILED : 0;
}

/* Undoes the translation of a packet and encapsulates it to the backend's address. Returns 0 or a
 * drop reason. */
static __noinline __maybe_unused int dsr_encap(struct __sk_buff *ctx, struct packet *p, const struct translation *nat)
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
	return reason ? reason : gre_encap(ctx, p, &backend, &gre);
}

/* Forwards a client's packet to a backend of another node, which replies. Of TCP the packets that
 * open a connection are encapsulated, of other protocols all that fit. Returns an action, or a drop
 * reason negated. */
static __noinline __maybe_unused int send_dsr(struct __sk_buff *ctx, struct packet *p, const struct translation *nat,
					      const struct ipcache_value *remote, struct report *report)
{
	bool tunnel = cfg.tunnel;
	bool encap = report->ct_state == CT_STATE_NEW || p->proto != PROTO_TCP || ct_is_syn(p);

	if (encap && dsr_fits(ctx, p)) {
		int reason = dsr_encap(ctx, p, nat);

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

/* Reports whether the packet, as the client sent it, is for a frontend that another node may have
 * forwarded. */
static __noinline __maybe_unused bool is_dsr_frontend(const struct packet *p)
{
	struct lb_key key;

	lb_key_set(&key, p, LB_SCOPE_EXTERNAL);
	return bpf_map_lookup_elem(&lb_services, &key) || lb_key_set_remote_node(&key, p);
}

/* Finds the flow of a decapsulated packet for a backend here, and translates the packet. Returns 0
 * or a drop reason. */
static __noinline __maybe_unused int translate_dsr(struct __sk_buff *ctx, struct packet *p, const struct endpoint *ep,
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
	if (!ct_alive(f->flow, f->c.now) && !is_dsr_frontend(p))
		return DROP_NO_BACKEND;
	/* The plain packets of two flows could not be told apart. */
	if (!lb_port_free(p, f->flow, f->c.swapped, client_port, 0, f->c.now))
		return DROP_NO_PORT;
	f->c.nat.on = true;
	f->c.nat.dsr = true;
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

/* Decapsulates a GRE packet from another node, described by p, and delivers it to an endpoint.
 * Returns an action, or a drop reason negated. */
static __noinline __maybe_unused int deliver_dsr(struct __sk_buff *ctx, struct packet *p, const struct endpoint *ep,
						 struct report *report)
{
	struct found found = {};
	struct sides *sides = &found.c.sides;
	struct gre_header gre;
	__u32 plain = ETH_LEN + dsr_overhead(p->v6) - sizeof(gre);
	int reason;

	report->endpoint = ep->id;
	report->dst_identity = ep->identity;
	if (p->fragment || p->l4 != plain || READ_L4(ctx, p, p->l4, &gre) || gre.flags != htons(GRE_KEY) ||
	    gre.proto != htons(p->v6 ? ETH_P_IPV6 : ETH_P_IP))
		return -DROP_UNKNOWN_L4;
	if (bpf_skb_adjust_room(ctx, -(__s32)dsr_overhead(p->v6), BPF_ADJ_ROOM_MAC, 0))
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
	if (!is_outside(sides->src_identity) || is_spoofed(p, from))
		return -DROP_INVALID_SOURCE_IP;
	reason = endpoint_ready(ep);
	if (reason)
		return -reason;
	side_dst(sides, ep);
	reason = translate_dsr(ctx, p, ep, gre.key, &found);
	if (!reason)
		reason = ct_check_found(ctx, p, report, &found);
	if (reason)
		return -reason;
	return deliver(ctx, p, ep, report);
}

/* Reports whether a packet from outside belongs to a flow that another node opened here by DSR. */
static __noinline __maybe_unused bool is_dsr_flow(const struct packet *p)
{
	struct found f = {};

	find_flow(p, &f);
	return ct_alive(f.flow, ct_now()) && (f.flow->flags & CT_DSR) && !!(f.flow->flags & CT_OPENED_BY_B) == f.c.swapped;
}
