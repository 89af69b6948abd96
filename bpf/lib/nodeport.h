/* Services for clients outside of the cluster: what comes to the node's device for a frontend.
 *
 * A backend of this node gets the packet as it came, so it sees its client; what the backend
 * answers leaves through the device in the frontend's name. To a backend elsewhere the node sends
 * the packet on either in the client's name, and the other node answers (direct.h), or in its own,
 * so that the answer comes back here. The port it uses then is above those that the kernel by
 * default gives to the node's own sockets, one that none of them has, and no frontend's. It is lent
 * to the flow, towards the flow's backend, for as long as the flow lives: what either side sends
 * keeps it. Where free ports are scarce, those of closed connections are lent anew: of those that
 * the backend has reset or both sides have closed, so that it sends nothing more by the port. A
 * client's reset may be forged by somebody who wants the port. */
#pragma once
#include "direct.h"
#include "forward.h"
#include "lb.h"
#include "refuse.h"

enum {
	/* Ports that are tried for a new flow, one half of them among all that its client may have,
	 * the other among those kept for him. Where nine of ten are taken, one in a thousand flows
	 * finds none among the first. */
	MASQUERADE_TRIES = 128,
	/* Of each half, so many are tried before the port of a closed connection counts as free:
	 * where three of four ports are taken, one in a hundred flows gets that far. */
	MASQUERADE_FREE_TRIES = 16,
	/* Ticks for which nothing has been sent in such a connection: what was under way when it
	 * was closed has arrived, and the backend does not repeat its last words, even if the
	 * client has lost them four times. */
	MASQUERADE_IDLE = 3,
	/* Of the ports towards a backend's, one part of so many is kept for clients by their
	 * address, in so many groups: a client who takes all that he may have leaves the others
	 * something. */
	MASQUERADE_KEPT = 4,
	MASQUERADE_GROUPS = 16,
	/* Not an action: the packet has nothing to do with this. */
	NOT_A_SERVICE = 1000,
};

static __always_inline bool is_frontend(const struct masquerade_key *key)
{
	struct lb_key frontend = {.addr = key->node, .port = key->port, .proto = key->proto, .scope = LB_OUTSIDE};

	return bpf_map_lookup_elem(&lb_services, &frontend);
}

/* Says whether the port of *key is the node's own: a frontend's, or a socket's that has it or
 * listens at it, so that the backend's packets to it are the socket's. */
__noinline int port_in_use(struct __sk_buff *ctx, const struct masquerade_key *key, bool v6)
{
	if (!key || is_frontend(key))
		return true;

	struct bpf_sock_tuple tuple;
	__u32 size = sizeof(tuple.ipv4);
	struct bpf_sock *socket;

	if (v6) {
		size = sizeof(tuple.ipv6);
		memcpy(tuple.ipv6.saddr, key->backend.w, sizeof(tuple.ipv6.saddr));
		memcpy(tuple.ipv6.daddr, key->node.w, sizeof(tuple.ipv6.daddr));
		tuple.ipv6.sport = key->backend_port;
		tuple.ipv6.dport = key->port;
	} else {
		tuple.ipv4.saddr = key->backend.w[3];
		tuple.ipv4.daddr = key->node.w[3];
		tuple.ipv4.sport = key->backend_port;
		tuple.ipv4.dport = key->port;
	}
	if (key->proto == PROTO_TCP)
		socket = bpf_skc_lookup_tcp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else if (key->proto == PROTO_UDP)
		socket = bpf_sk_lookup_udp(ctx, &tuple, size, BPF_F_CURRENT_NETNS, 0);
	else
		return false; /* of SCTP's nobody can ask */
	if (!socket)
		return false;
	bpf_sk_release(socket);
	return true;
}

static __always_inline bool masquerade_alive(const struct masquerade_value *entry, __u32 now)
{
	return entry && (__s32)(entry->expires - now) > 0;
}

/* Says whether the port of a flow that lives may be lent anew all the same: its connection is
 * closed, and silent. */
static __always_inline bool masquerade_idle(const struct masquerade_value *entry, __u32 now)
{
	return entry->closed && (__s32)(entry->expires - now) <= (__s32)(cfg.timeout_tcp_fin - MASQUERADE_IDLE);
}

/* How many ports have been lent to clients whose addresses have the hash of this one's. */
static __always_inline __u32 *lent_account(const struct addr *client)
{
	__u32 index = addr_hash(client) % MASQUERADE_ACCOUNTS;

	return bpf_map_lookup_elem(&masquerade_accounts, &index);
}

/* Counts an entry of a client's that there is now, or is no more. */
__noinline int account_lent(const struct addr *client, __s32 change)
{
	__u32 *account = client ? lent_account(client) : NULL;

	if (account)
		__sync_fetch_and_add(account, change);
	return 0;
}

/* Makes the port of *key that of the flow of p until the tick given, unless it is somebody else's.
 * Returns whether it is the flow's now. */
__noinline int lend_port(const struct masquerade_key *key, const struct packet *p, __u32 expires, bool closed)
{
	struct masquerade_value fresh = {.expires = expires, .closed = closed};

	if (!key || !p)
		return false;
	fresh.client = p->src;
	fresh.client_port = p->sport;
	struct masquerade_value *entry = bpf_map_lookup_elem(&masquerade, key);
	if (!entry) {
		if (bpf_map_update_elem(&masquerade, key, &fresh, BPF_NOEXIST))
			return false;
		account_lent(&p->src, 1);
		return true;
	}
	__u32 was = entry->expires;
	if ((__s32)(was - ct_now()) > 0) {
		if (entry->client_port == p->sport && addr_equal(&entry->client, &p->src)) {
			if (was != expires) {
				entry->closed = closed;
				entry->expires = expires;
			}
			return true;
		}
		if (!masquerade_idle(entry, ct_now()))
			return false;
	}
	/* Of processors that find it free at once, the one that prolongs it has it. */
	if (__sync_val_compare_and_swap(&entry->expires, was, expires) != was)
		return false;
	account_lent(&entry->client, -1);
	account_lent(&p->src, 1);
	return !bpf_map_update_elem(&masquerade, key, &fresh, BPF_ANY);
}

/* Has a flow know the port that it was lent. Returns whether it does. */
__noinline int remember_port(const struct ct_key *key, __u16 port)
{
	struct ct_value *flow, next;

	if (!key)
		return false;
	flow = bpf_map_lookup_elem(&ct, key);
	if (!flow)
		return false;
	next = *flow;
	next.masquerade_port = port;
	return !bpf_map_update_elem(&ct, key, &next, BPF_ANY);
}

static __always_inline void lent_to(struct masquerade_key *key, const struct packet *p, const struct addr *as)
{
	memset(key, 0, sizeof(*key));
	key->node = *as;
	key->backend = p->dst;
	key->backend_port = p->dport;
	key->proto = p->proto;
}

/* Returns the port under which a flow, from a client to a backend elsewhere, has been sent on as
 * coming from an address of this node, if it still is the flow's, and has it stay that; 0 if not.
 * In network byte order. */
__noinline int known_port(const struct ct_key *key, const struct packet *p, const struct addr *as)
{
	struct masquerade_key lent;

	if (!key || !p || !as)
		return 0;
	struct ct_value *flow = bpf_map_lookup_elem(&ct, key);
	if (!flow || !flow->masquerade_port)
		return 0;
	lent_to(&lent, p, as);
	lent.port = flow->masquerade_port;
	return lend_port(&lent, p, flow->expires, ct_closed(flow->flags)) ? lent.port : 0;
}

/* A port by lot that a client may have, in host byte order: of those that are anybody's and those
 * kept for him, or of the latter alone. Where there are too few to divide, all are anybody's. */
__noinline __u32 port_by_lot(const struct addr *client, bool kept_alone)
{
	if (!client)
		return 0;
	__u32 kept = cfg.masquerade_ports / MASQUERADE_KEPT / MASQUERADE_GROUPS;
	__u32 common = cfg.masquerade_ports - kept * MASQUERADE_GROUPS;
	__u32 lot = bpf_get_prandom_u32();

	if (kept_alone && kept)
		lot = common + lot % kept;
	else
		lot %= common + kept;
	if (lot >= common)
		lot += addr_hash(client) % MASQUERADE_GROUPS * kept;
	return cfg.masquerade_first + lot;
}

/* Says whether the port of *key is lent to a flow that lives: where ports are scarce, to one whose
 * connection is not closed. */
__noinline int port_lent(const struct masquerade_key *key, bool scarce)
{
	__u32 now = ct_now();

	if (!key)
		return true;
	struct masquerade_value *entry = bpf_map_lookup_elem(&masquerade, key);

	return masquerade_alive(entry, now) && !(scarce && masquerade_idle(entry, now));
}

/* As known_port, for a flow that has none. Returns 0 if none is found. */
__noinline int new_port(struct __sk_buff *ctx, const struct ct_key *key, const struct packet *p, const struct addr *as)
{
	struct masquerade_key lent;

	if (!key || !p || !as)
		return 0;
	struct ct_value *flow = bpf_map_lookup_elem(&ct, key);
	if (!flow)
		return 0;
	__u32 *account = lent_account(&p->src);
	/* What is lent while the agent counts may be missing: less than none are none. */
	if (account && (__s32)*account >= (__s32)cfg.masquerade_share)
		return 0;
	__u32 expires = flow->expires;
	int tries = p->proto == PROTO_SCTP ? 1 : MASQUERADE_TRIES;

	lent_to(&lent, p, as);
	lent.port = p->sport; /* SCTP's stays, see rewrite_end */
	for (int i = 0; i < MASQUERADE_TRIES && i < tries; i++) {
		if (tries > 1)
			lent.port = htons(port_by_lot(&p->src, i >= MASQUERADE_TRIES / 2));
		if (port_lent(&lent, i % (MASQUERADE_TRIES / 2) >= MASQUERADE_FREE_TRIES) || port_in_use(ctx, &lent, p->v6))
			continue;
		if (lend_port(&lent, p, expires, false))
			return remember_port(key, lent.port) ? lent.port : 0;
	}
	return 0;
}

/* The port under which a flow is sent on, in network byte order; 0 if none is found. */
static __noinline __maybe_unused int masquerade_port(struct __sk_buff *ctx, const struct ct_key *key,
						     const struct packet *p, const struct addr *as)
{
	int port = known_port(key, p, as);

	return port ? port : new_port(ctx, key, p, as);
}

/* Sends a packet of a client on to a backend that is not here. */
static __noinline __maybe_unused int send_on(struct __sk_buff *ctx, struct packet *p,
					     const struct found *f, const struct ipcache_value *remote,
					     struct report *report)
{
	bool tunnel = cfg.tunnel && has_tunnel(remote);
	struct addr as;
	int port, reason;

	if (f->c.nat.direct && remote)
		return send_direct(ctx, p, &f->c.nat, remote, report);
	sender(&as, tunnel, p->v6);
	if (addr_is_zero(&as))
		return -DROP_NO_BACKEND;
	port = masquerade_port(ctx, &f->c.key, p, &as);
	if (!port)
		return p->proto == PROTO_SCTP ? -DROP_SCTP_PORT : -DROP_NO_PORT;
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
		reason = refuse(ctx, p, report, DROP_NO_BACKEND);
	if (reason)
		return -reason;
	report->outcome = OUTCOME_ANSWERED;
	return leave(ctx, &p->dst, &p->src, p->v6);
}

/* Says whether p is of a kind of packet that can be for a service. */
static __always_inline bool balanced(const struct packet *p)
{
	return p->proto == PROTO_TCP || p->proto == PROTO_UDP || p->proto == PROTO_SCTP ||
	       p->proto == (p->v6 ? PROTO_ICMPV6 : PROTO_ICMP);
}

/* Whose the places are of a fragment. */
static __always_inline __u64 places(const struct packet *p)
{
	struct endpoint *ep = p->fragment ? endpoint_at(&p->dst) : NULL;

	return ep ? fragments_of(ep, INGRESS) : 0;
}

/* Finds who a client outside is. Who belongs to the cluster comes by the device that joins its
 * nodes; by others nodes are like anybody, and pods do not come. Returns 0 or a drop reason. */
static __always_inline int client_of(const struct __sk_buff *ctx, const struct packet *p, __u32 *identity)
{
	struct ipcache_value *from = ipcache_lookup(&p->src, p->v6);

	/* The node has other addresses than those that the programs know. */
	if (forged(p, from) || (from && from->identity == ID_HOST))
		return DROP_INVALID_SOURCE_IP;
	*identity = from ? from->identity : world_identity(p->v6);
	if (!(cfg.other_devices || cfg.interfaces) || likely(joins_nodes(ctx->ifindex)) || is_outside(*identity))
		return 0;
	if (!is_node(*identity))
		return DROP_INVALID_SOURCE_IP;
	*identity = world_identity(p->v6);
	return 0;
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
	struct found found = {.c.now = ct_now()};
	struct sides *sides = &found.c.sides;
	int reason;

	if (!lb_is_frontend(p, LB_OUTSIDE))
		return NOT_A_SERVICE;
	find_flow(p, &found);
	reason = translate_outside(ctx, p, &found);
	if (unlikely(reason == DROP_NO_BACKEND))
		return turn_away(ctx, p, report);
	if (reason)
		return -reason;
	if (!found.c.nat.on)
		return NOT_A_SERVICE;
	/* Who writes services chooses their backends, and this node asks in its own name. */
	if (unlikely(is_not_for_pods(&p->dst)))
		return -DROP_NOT_FOR_PODS;
	reason = client_of(ctx, p, &sides->src_identity);
	if (reason)
		return -reason;
	report->src_identity = sides->src_identity;

	struct endpoint *ep = endpoint_at(&p->dst);
	struct ipcache_value *remote = NULL;
	if (ep) {
		report->endpoint = ep->id;
		reason = endpoint_ready(ep);
		if (reason)
			return -reason;
		side_dst(sides, ep);
	} else if (is_host(&p->dst, p->v6)) {
		sides->dst_identity = ID_HOST;
	} else {
		remote = ipcache_lookup(&p->dst, p->v6);
		sides->dst_identity = remote ? remote->identity : world_identity(p->v6);
	}
	if (unlikely(!ep && misuses_tunnel(p, remote)))
		return -DROP_TUNNEL_NOT_FROM_NODE;
	choose_direct(ctx, p, &found, remote, sides->src_identity);
	reason = judge_found(ctx, p, report, &found);
	if (reason)
		return -reason;
	if (ep)
		return deliver(ctx, p, ep, report);
	if (!remote && sides->dst_identity == ID_HOST) {
		report->outcome = OUTCOME_STACK;
		return TC_ACT_OK;
	}
	return send_on(ctx, p, &found, remote, report);
}

/* Says whether a port of the node may be lent to a flow. SCTP's flows keep their own. */
static __always_inline bool may_be_lent(__u8 proto, __u16 port)
{
	return proto == PROTO_SCTP || (__u16)(ntohs(port) - cfg.masquerade_first) < cfg.masquerade_ports;
}

/* Finds whom a packet to the node's own address answers. Returns whether there is somebody. */
__noinline int find_client(const struct packet *p, __u32 now, struct masquerade_value *client)
{
	struct masquerade_key lent = {};

	if (!p || !client || !may_be_lent(p->proto, p->dport))
		return false;
	lent.node = p->dst;
	lent.backend = p->src;
	lent.port = p->dport;
	lent.backend_port = p->sport;
	lent.proto = p->proto;
	struct masquerade_value *entry = bpf_map_lookup_elem(&masquerade, &lent);
	if (!masquerade_alive(entry, now))
		return false;
	*client = *entry;
	return true;
}

/* Has the port of a flow that has been answered, or reset by the backend, lent for as long as the
 * flow lives. */
__noinline int prolong(const struct ct_key *key, const struct ct_value *flow, const struct packet *p, bool tunnel)
{
	struct masquerade_key lent = {};

	if (!key || !flow || !p)
		return 0;
	bool by_b = flow->flags & CT_OPENED_BY_B;
	sender(&lent.node, tunnel, p->v6);
	lent.backend = by_b ? key->a : key->b;
	lent.port = flow->masquerade_port;
	lent.backend_port = by_b ? key->port_a : key->port_b;
	lent.proto = key->proto;
	struct masquerade_value *entry = bpf_map_lookup_elem(&masquerade, &lent);
	if (masquerade_alive(entry, ct_now())) {
		entry->closed = ct_closed(flow->flags) || (p->proto == PROTO_TCP && (p->tcp_flags & TCP_RST));
		entry->expires = flow->expires;
	}
	return 0;
}

/* Sends the answer of a backend elsewhere to its client, in the frontend's name. Returns an action,
 * a drop reason negated, or NOT_A_SERVICE. */
static __noinline __maybe_unused int node_port_answer(struct __sk_buff *ctx, struct packet *p,
						      struct report *report)
{
	struct found found = {.c.now = ct_now()};
	struct sides *sides = &found.c.sides;
	struct masquerade_value to;
	int reason;

	if (p->kind != KIND_FLOW || !find_client(p, found.c.now, &to))
		return NOT_A_SERVICE;
	reason = rewrite_end(ctx, p, &to.client, to.client_port, true);
	if (reason)
		return -reason;
	find_flow(p, &found);
	if (!ct_alive(found.flow, found.c.now) || !(found.flow->flags & CT_TRANSLATED))
		return -DROP_UNKNOWN_RELATED;
	/* Its own node has judged it. */
	sides->src_identity = found.flow->dst_identity;
	sides->dst_identity = found.flow->src_identity;
	reason = judge_found(ctx, p, report, &found);
	if (reason)
		return -reason;
	/* A client may be silent while it receives data. */
	if (found.flow && found.flow->expires != to.expires)
		prolong(&found.c.key, found.flow, p, report->program == PROGRAM_FROM_OVERLAY);
	return send_out(ctx, p, report);
}

/* Gives the client an error about a packet that this node sent on in its own name. It is sent in
 * the service's, whoever sent it first: the client knows neither the backend nor the way there.
 * Returns 0 if it is an error about the client's flow now, to be made one about the service's, or a
 * drop reason, or NOT_A_SERVICE. */
static __noinline __maybe_unused int error_to_client(struct __sk_buff *ctx, struct packet *p, struct found *f)
{
	/* The key is that of a packet from the flow's other end. */
	__u16 port = f->c.swapped ? f->c.key.port_a : f->c.key.port_b;
	struct masquerade_key lent = {};
	struct addr client, backend;
	int reason;

	if (!may_be_lent(f->c.key.proto, port))
		return NOT_A_SERVICE;
	lent.node = f->c.swapped ? f->c.key.a : f->c.key.b;
	lent.backend = f->c.swapped ? f->c.key.b : f->c.key.a;
	lent.port = port;
	lent.backend_port = f->c.swapped ? f->c.key.port_b : f->c.key.port_a;
	lent.proto = f->c.key.proto;
	struct masquerade_value *entry = bpf_map_lookup_elem(&masquerade, &lent);
	if (!masquerade_alive(entry, f->c.now))
		return NOT_A_SERVICE;
	__u16 client_port = entry->client_port;
	client = entry->client;
	backend = lent.backend;
	ct_key_set(&f->c.key, &backend, &client, lent.backend_port, client_port, lent.proto);
	f->flow = bpf_map_lookup_elem(&ct, &f->c.key);
	if (!ct_alive(f->flow, f->c.now) || !(f->flow->flags & CT_TRANSLATED))
		return DROP_UNKNOWN_RELATED;
	reason = rewrite_quoted(ctx, p, &client, client_port, false);
	if (!reason)
		reason = rewrite_end(ctx, p, &client, p->dport, true);
	if (!reason)
		reason = rewrite_end(ctx, p, &backend, p->sport, false);
	return reason;
}

/* Gives a backend an error about what it has sent to a client outside. Returns an action, or a drop
 * reason negated. */
static __always_inline int error_to_backend(struct __sk_buff *ctx, struct packet *p, struct found *f,
					    struct report *report)
{
	struct addr as;
	int reason = translate_error(ctx, p, f);

	if (reason)
		return -reason;
	if (!ct_alive(f->flow, f->c.now) || !(f->flow->flags & CT_TRANSLATED))
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
		side_dst(&f->c.sides, ep);
		reason = judge_one(ctx, p, report, f);
		return reason ? -reason : deliver(ctx, p, ep, report);
	}
	struct ipcache_value *remote = ipcache_lookup(&p->dst, p->v6);
	bool tunnel = cfg.tunnel && has_tunnel(remote);

	/* A backend that answers clients itself knows them by their own address, and errors by who
	 * has sent them. */
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

/* Leads an ICMP error from outside, or from another node, about a flow through a service to whom it
 * is for. Returns an action, a drop reason negated, or NOT_A_SERVICE. */
static __noinline __maybe_unused int node_port_error(struct __sk_buff *ctx, struct packet *p, struct report *report)
{
	struct found found = {.c.now = ct_now(), .c.related = true};
	int reason;

	if (related_key(ctx, p, &found.c.sides, &found.c.swapped, &found.c.key))
		return NOT_A_SERVICE;
	reason = error_to_client(ctx, p, &found);
	if (reason != NOT_A_SERVICE) {
		report->ct_state = CT_STATE_RELATED;
		if (!reason)
			reason = untranslate_error(ctx, p, &found.c.key, found.flow);
		return reason ? -reason : send_out(ctx, p, report);
	}
	found.flow = bpf_map_lookup_elem(&ct, &found.c.key);
	if (!ct_alive(found.flow, found.c.now))
		return NOT_A_SERVICE;
	report->ct_state = CT_STATE_RELATED;
	if (!(found.flow->flags & CT_SERVICE) || !!(found.flow->flags & CT_OPENED_BY_B) != found.c.swapped)
		return NOT_A_SERVICE;
	return error_to_backend(ctx, p, &found, report);
}

/* Gives the answer of a process of the node to a service's client the service's name. Returns an
 * action or a drop reason negated. */
static __always_inline int answer_client(struct __sk_buff *ctx, struct packet *p, struct report *report)
{
	struct found found = {.c.sides.src_identity = ID_HOST};
	int reason;

	if (!is_host(&p->src, p->v6) || parse_transport(ctx, p, (__u64)EGRESS << 32) || (p->kind != KIND_FLOW && p->kind != KIND_ERROR))
		return TC_ACT_OK;
	if (find(ctx, p, report, &found))
		return TC_ACT_OK;
	if (!ct_alive(found.flow, found.c.now) || !(found.flow->flags & CT_TRANSLATED) ||
	    !!(found.flow->flags & CT_OPENED_BY_B) == found.c.swapped)
		return TC_ACT_OK;
	found.c.sides.dst_identity = found.flow->src_identity;
	reason = judge_found(ctx, p, report, &found);
	if (reason)
		return -reason;
	/* The port is the client's choice. */
	return for_tunnel(p) ? -DROP_TUNNEL_NOT_FROM_NODE : TC_ACT_OK;
}
