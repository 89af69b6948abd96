/* Services for clients outside of the cluster: what comes to the node's device for a frontend.
 *
 * A backend of this node gets the packet as it came, so it sees its client; what the backend answers
 * leaves through the device in the frontend's name. To a backend elsewhere the node sends the packet on
 * either in the client's name, and the other node answers (direct.h), or in its own, so that the answer comes back here: the port it uses then is one that its own sockets are
 * not given (the kernel's range for these ends at 60999), and stands in conntrack as CT_MASQUERADE. */
#pragma once
#include "direct.h"
#include "forward.h"
#include "lb.h"
#include "refuse.h"

enum {
	MASQUERADE_FIRST = 61000,
	MASQUERADE_PORTS = 65536 - MASQUERADE_FIRST,
	/* Not an action: the packet has nothing to do with this. */
	NOT_A_SERVICE = 1000,
};

/* Finds the port under which a flow, from a client to a backend elsewhere, is sent on as coming from an
 * address of this node, and keeps it for as long as the flow. Returns it in network byte order, or 0. */
__noinline int masquerade_port(const struct ct_key *key, const struct packet *p, const struct addr *as)
{
	struct ct_value entry;
	struct ct_key back;

	if (!key || !p || !as)
		return 0;
	struct ct_value *flow = bpf_map_lookup_elem(&ct, key);
	if (!flow)
		return 0;
	__u16 port = flow->masquerade_port;
	__u32 expires = flow->expires;
	if (port) {
		ct_key_set(&back, as, &p->dst, port, p->dport, p->proto);
		struct ct_value *known = bpf_map_lookup_elem(&ct, &back);
		if (known && (known->flags & CT_MASQUERADE) && known->nat_port == p->sport &&
		    addr_equal(&known->nat, &p->src)) {
			if (known->expires != expires)
				known->expires = expires;
			return port;
		}
	}
	for (int i = 0; i < 2 * LB_TRIES; i++) {
		port = htons(MASQUERADE_FIRST + bpf_get_prandom_u32() % MASQUERADE_PORTS);
		bool swapped = ct_key_set(&back, as, &p->dst, port, p->dport, p->proto);
		if (ct_alive(bpf_map_lookup_elem(&ct, &back), ct_now()))
			continue;
		entry = *flow;
		entry.masquerade_port = port;
		if (bpf_map_update_elem(&ct, key, &entry, BPF_ANY))
			return 0;
		memset(&entry, 0, sizeof(entry));
		entry.flags = CT_MASQUERADE | (swapped ? CT_OPENED_BY_B : 0);
		entry.nat = p->src;
		entry.nat_port = p->sport;
		entry.expires = expires;
		if (bpf_map_update_elem(&ct, &back, &entry, BPF_ANY))
			return 0;
		return port;
	}
	return 0;
}

/* Sends a packet of a client on to a backend that is not here. */
static __noinline __maybe_unused int send_on(struct __sk_buff *ctx, struct packet *p,
					     const struct found *f, const struct ipcache_value *remote,
					     struct report *report)
{
	bool tunnel = cfg.tunnel && has_tunnel(remote);
	struct addr as;
	int port, reason;

	if (f->nat.direct && remote)
		return send_direct(ctx, p, &f->nat, remote, report);
	sender(&as, tunnel, p->v6);
	if (addr_is_zero(&as))
		return -DROP_NO_BACKEND;
	port = masquerade_port(&f->key, p, &as);
	if (!port)
		return -DROP_NO_PORT;
	reason = rewrite_end(ctx, p, &as, port, false);
	if (reason)
		return -reason;
	if (tunnel)
		return encapsulate(ctx, remote, world_identity(p->v6), report);
	return send_out(ctx, p, report);
}

/* Tells a client outside that nobody serves it. Returns an action or a drop reason negated. */
static __noinline __maybe_unused int turn_away(struct __sk_buff *ctx, const struct packet *p, struct report *report)
{
	int reason = DROP_NO_BACKEND;

	if (!forged(p, ipcache_lookup(&p->src, p->v6)))
		reason = refuse(ctx, p, report);
	if (reason)
		return -reason;
	report->outcome = OUTCOME_ANSWERED;
	return bpf_redirect_neigh(cfg.native_ifindex, NULL, 0, 0);
}

/* As translate, for clients outside. Not inlined: its variables need a stack of their own. */
static __noinline __maybe_unused int translate_outside(struct __sk_buff *ctx, struct packet *p, struct found *f)
{
	return translate(ctx, p, f, LB_OUTSIDE);
}

/* Leads a packet of a client outside to a backend. Returns an action, a drop reason negated, or
 * NOT_A_SERVICE. */
static __noinline __maybe_unused int node_port(struct __sk_buff *ctx, struct packet *p, struct report *report)
{
	struct found found = {.now = ct_now()};
	struct sides sides = {};
	int reason;

	if (!lb_is_frontend(p, LB_OUTSIDE))
		return NOT_A_SERVICE;
	find_flow(p, &found);
	reason = translate_outside(ctx, p, &found);
	if (unlikely(reason == DROP_NO_BACKEND))
		return turn_away(ctx, p, report);
	if (reason)
		return -reason;
	if (!found.nat.on)
		return NOT_A_SERVICE;
	struct ipcache_value *from = ipcache_lookup(&p->src, p->v6);
	if (forged(p, from))
		return -DROP_INVALID_SOURCE_IP;
	sides.src_identity = from ? from->identity : world_identity(p->v6);
	report->src_identity = sides.src_identity;

	struct endpoint *ep = endpoint_at(&p->dst);
	struct ipcache_value *remote = NULL;
	if (ep) {
		report->endpoint = ep->id;
		reason = endpoint_ready(ep);
		if (reason)
			return -reason;
		side_dst(&sides, ep);
	} else if (is_host(&p->dst, p->v6)) {
		sides.dst_identity = ID_HOST;
	} else {
		remote = ipcache_lookup(&p->dst, p->v6);
		sides.dst_identity = remote ? remote->identity : world_identity(p->v6);
	}
	if (unlikely(!ep && misuses_tunnel(p, remote)))
		return -DROP_TUNNEL_NOT_FROM_NODE;
	choose_direct(ctx, p, &found, remote, sides.src_identity);
	reason = judge_found(ctx, p, &sides, report, &found);
	if (reason)
		return -reason;
	if (ep)
		return deliver(ctx, p, ep, report);
	if (!remote && sides.dst_identity == ID_HOST) {
		report->outcome = OUTCOME_STACK;
		return TC_ACT_OK;
	}
	return send_on(ctx, p, &found, remote, report);
}

/* Sends the answer of a backend elsewhere to its client, in the frontend's name. Returns an action, a
 * drop reason negated, or NOT_A_SERVICE. */
static __noinline __maybe_unused int node_port_answer(struct __sk_buff *ctx, struct packet *p,
						      struct report *report)
{
	struct found found = {.now = ct_now()};
	struct sides sides = {};
	int reason;

	if (p->kind != KIND_FLOW || ntohs(p->dport) < MASQUERADE_FIRST)
		return NOT_A_SERVICE;
	find_flow(p, &found);
	if (!ct_alive(found.flow, found.now) || !(found.flow->flags & CT_MASQUERADE))
		return NOT_A_SERVICE;
	struct addr client = found.flow->nat;
	reason = rewrite_end(ctx, p, &client, found.flow->nat_port, true);
	if (reason)
		return -reason;
	find_flow(p, &found);
	if (!ct_alive(found.flow, found.now) || !(found.flow->flags & CT_TRANSLATED))
		return -DROP_UNKNOWN_RELATED;
	/* Its own node has judged it. */
	sides.src_identity = found.flow->dst_identity;
	sides.dst_identity = found.flow->src_identity;
	reason = judge_found(ctx, p, &sides, report, &found);
	if (reason)
		return -reason;
	return send_out(ctx, p, report);
}

/* Gives the client an error about a packet that this node sent on in its own name. It is told in the service's,
 * whoever had it to tell: the client knows neither the backend nor the way there. */
static __always_inline int error_to_client(struct __sk_buff *ctx, struct packet *p, struct found *f)
{
	const struct ct_value *entry = f->flow;
	bool by_b = entry->flags & CT_OPENED_BY_B;
	struct addr backend = by_b ? f->key.a : f->key.b;
	__u16 backend_port = by_b ? f->key.port_a : f->key.port_b;
	struct addr client = entry->nat;
	__u16 client_port = entry->nat_port;
	int reason;

	if (by_b == f->swapped)
		return DROP_UNKNOWN_RELATED;
	ct_key_set(&f->key, &backend, &client, backend_port, client_port, f->key.proto);
	f->flow = bpf_map_lookup_elem(&ct, &f->key);
	if (!ct_alive(f->flow, f->now) || !(f->flow->flags & CT_TRANSLATED))
		return DROP_UNKNOWN_RELATED;
	reason = rewrite_quoted(ctx, p, &client, client_port, false);
	if (!reason)
		reason = rewrite_end(ctx, p, &client, p->dport, true);
	if (!reason)
		reason = rewrite_end(ctx, p, &backend, p->sport, false);
	if (reason)
		return reason;
	return untranslate_error(ctx, p, &f->key, f->flow);
}

/* Gives a backend an error about what it has sent to a client outside. Returns an action, or a drop reason
 * negated. */
static __always_inline int error_to_backend(struct __sk_buff *ctx, struct packet *p, struct found *f,
					    struct sides *sides, struct report *report)
{
	struct addr as;
	int reason = translate_error(ctx, p, f);

	if (reason)
		return -reason;
	if (!ct_alive(f->flow, f->now) || !(f->flow->flags & CT_TRANSLATED))
		return -DROP_UNKNOWN_RELATED;
	if (is_host(&p->dst, p->v6)) {
		report->outcome = OUTCOME_STACK;
		return TC_ACT_OK;
	}
	struct endpoint *ep = endpoint_at(&p->dst);
	if (ep) {
		report->endpoint = ep->id;
		reason = endpoint_ready(ep);
		if (reason)
			return -reason;
		side_dst(sides, ep);
		reason = judge_flow(ctx, p, sides, report, f);
		return reason ? -reason : deliver(ctx, p, ep, report);
	}
	struct ipcache_value *remote = ipcache_lookup(&p->dst, p->v6);
	bool tunnel = cfg.tunnel && has_tunnel(remote);

	/* A backend that answers clients itself knows them by their own address, and errors by who has them to tell. */
	if (!(f->flow->flags & CT_DIRECT)) {
		if (!f->flow->masquerade_port)
			return -DROP_UNKNOWN_RELATED;
		sender(&as, tunnel, p->v6);
		reason = rewrite_quoted(ctx, p, &as, f->flow->masquerade_port, true);
		if (!reason)
			reason = rewrite_end(ctx, p, &as, p->sport, false);
		if (reason)
			return -reason;
	}
	if (tunnel)
		return encapsulate(ctx, remote, world_identity(p->v6), report);
	return send_out(ctx, p, report);
}

/* Leads an ICMP error from outside, or from another node, about a flow through a service to whom it is for.
 * Returns an action, a drop reason negated, or NOT_A_SERVICE. */
static __noinline __maybe_unused int node_port_error(struct __sk_buff *ctx, struct packet *p, struct report *report)
{
	struct found found = {.now = ct_now(), .related = true};
	struct sides sides = {};
	int reason;

	if (related_key(ctx, p, &sides, &found.swapped, &found.key))
		return NOT_A_SERVICE;
	found.flow = bpf_map_lookup_elem(&ct, &found.key);
	if (!ct_alive(found.flow, found.now))
		return NOT_A_SERVICE;
	report->ct_state = CT_STATE_RELATED;
	if (found.flow->flags & CT_MASQUERADE) {
		reason = error_to_client(ctx, p, &found);
		return reason ? -reason : send_out(ctx, p, report);
	}
	if (!(found.flow->flags & CT_SERVICE) || !!(found.flow->flags & CT_OPENED_BY_B) != found.swapped)
		return NOT_A_SERVICE;
	return error_to_backend(ctx, p, &found, &sides, report);
}
