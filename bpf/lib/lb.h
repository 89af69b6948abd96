/* Services: a packet for a frontend goes to one of its backends, and replies come from the
 * frontend.
 *
 * The backend is chosen for the first packet of a flow and kept in conntrack as two entries. One,
 * CT_SERVICE, has the addresses that the client uses as its key and names the backend; the other is
 * the flow itself, from client to backend, as policy sees it: CT_TRANSLATED, it names the service.
 * So a packet that has nothing to do with services costs no lookup but that of its flow, and an
 * established flow does not look at the service maps: these may change at any time.
 *
 * A client may reach a backend directly and through services with the same ports. Then, and when a
 * pod reaches itself, the client's port is replaced, which keeps the tuples of the flows apart. If
 * the flow through the service came first, it is the direct flow that gets another port: it is
 * treated as one through a service whose address is the backend's. As the tuple that its client
 * uses is that of the other flow, the key of its CT_SERVICE entry has the collision field set. */
#pragma once
#include "backend.h"
#include "conntrack.h"

enum { LB_PORT_TRIES = 4 };

static __always_inline void loopback(struct addr *a, bool v6)
{
	if (v6) {
		a->d[0] = cfg.loopback6.d[0];
		a->d[1] = cfg.loopback6.d[1];
	} else {
		a->d[0] = cfg.loopback4.d[0];
		a->d[1] = cfg.loopback4.d[1];
	}
}

/* Reports whether a flow may use a client's port: no other flow has the tuple, or the same flow
 * has, from before its backend was deleted. */
static __always_inline bool lb_port_free(const struct packet *p, const struct ct_value *flow,
					 bool swapped, __u16 port, __u32 owner, __u32 now)
{
	if (!ct_alive(flow, now) || ct_closing(flow->flags) || ct_source_owner(flow, swapped) != owner)
		return true;
	return (flow->flags & CT_TRANSLATED) && !!(flow->flags & CT_OPENED_BY_B) == swapped &&
	       addr_equal(&flow->nat, &p->dst) && flow->nat_port == p->dport &&
	       (flow->client_port ? flow->client_port : port) == p->sport;
}

/* Chooses the source that the backend sees: the loopback address if the backend is the client
 * itself, and a port that makes the tuple unique. Returns 0 or a drop reason. */
__noinline int lb_choose_source(const struct packet *p, struct lb_target *to, __u32 now)
{
	struct addr client;
	struct ct_key key;
	__u16 port;

	if (!p || !to)
		return DROP_MALFORMED;
	/* Before anything is stored: see rewrite_end. */
	if (unlikely(p->proto == PROTO_SCTP && to->port != p->dport))
		return DROP_SCTP_PORT;
	client = p->src;
	to->flags &= CT_DSR;
	to->client_port = 0;
	if (addr_equal(&to->addr, &client)) {
		to->flags |= CT_HAIRPIN;
		loopback(&client, p->v6);
	}
	port = p->sport;
	for (int i = 0; i < LB_PORT_TRIES; i++) {
		bool swapped = ct_key_set(&key, &client, &to->addr, port, to->port, p->proto);

		if (lb_port_free(p, bpf_map_lookup_elem(&ct, &key), swapped, port, to->owner, now)) {
			if (port != p->sport)
				to->client_port = port;
			return 0;
		}
		if (unlikely(p->proto == PROTO_SCTP))
			return DROP_SCTP_PORT;
		port = htons(32768 + bpf_get_prandom_u32() % 28232);
	}
	return DROP_NO_PORT;
}

/* Finds the translation of a direct flow whose tuple collided with another's. Returns whether there
 * is one. */
__noinline int lb_find_collision(const struct packet *p, struct lb_target *to, __u32 now, __u32 *backend_owner)
{
	struct ct_key key;

	if (!p || !to || !backend_owner)
		return false;
	ct_key_set(&key, &p->src, &p->dst, p->sport, p->dport, p->proto);
	key.collision = true;
	struct ct_value *entry = bpf_map_lookup_elem(&ct, &key);
	to->addr = p->dst;
	to->port = p->dport;
	to->flags = 0;
	to->client_port = 0;
	if (!ct_alive(entry, now) || entry->src_owner != to->owner)
		return false;
	to->client_port = entry->client_port;
	*backend_owner = entry->dst_generation;
	return true;
}

/* Reports whether a packet that is not for a service has the tuple of a flow through one. */
static __always_inline bool lb_collides(const struct found *f)
{
	const __u32 other = CT_TRANSLATED | CT_HAIRPIN | CT_DSR;

	return (f->flow->flags & other) == CT_TRANSLATED && !!(f->flow->flags & CT_OPENED_BY_B) == f->c.swapped;
}

/* Rewrites a packet for a service to its backend. Returns 0 or a drop reason. */
static __always_inline int lb_rewrite(struct __sk_buff *ctx, struct packet *p, const struct lb_target *to)
{
	bool hairpin = to->flags & CT_HAIRPIN;

	if (hairpin || to->client_port) {
		struct addr client = p->src;
		int reason;

		if (hairpin)
			loopback(&client, p->v6);
		reason = rewrite_end(ctx, p, &client, to->client_port ? to->client_port : p->sport, false);
		if (reason)
			return reason;
	}
	return rewrite_end(ctx, p, &to->addr, to->port, true);
}

static __always_inline void lb_key_set(struct lb_key *key, const struct packet *p, __u8 scope)
{
	memset(key, 0, sizeof(*key));
	key->addr = p->dst;
	key->port = p->dport;
	key->proto = p->proto;
	key->scope = scope;
}

/* Reports whether a service has a frontend for clients outside at an address and port. */
static __always_inline bool lb_is_frontend(const struct addr *addr, __u16 port, __u8 proto)
{
	struct lb_key key = {.addr = *addr, .port = port, .proto = proto, .scope = LB_SCOPE_EXTERNAL};

	return bpf_map_lookup_elem(&lb_services, &key);
}

/* Makes an ICMP error about what a client got from a service one about what the backend has sent,
 * and finds the flow that this belongs to. find has found where the client's packets go, and f
 * stays as it is if the error is about one of these: no client has seen them. */
static __noinline __maybe_unused int translate_error(struct __sk_buff *ctx, struct packet *p, struct found *f)
{
	const struct ct_value *entry = f->flow;
	bool by_b = entry->flags & CT_OPENED_BY_B, hairpin = entry->flags & CT_HAIRPIN;
	__u16 client_port = by_b ? f->c.key.port_b : f->c.key.port_a;
	bool replace = hairpin || entry->client_port;
	struct addr client = by_b ? f->c.key.b : f->c.key.a;
	struct addr backend = entry->nat;
	__u16 backend_port = entry->nat_port;
	int reason = 0;

	if (by_b != f->c.swapped)
		return 0;
	if (entry->client_port)
		client_port = entry->client_port;
	if (hairpin) {
		loopback(&client, p->v6);
		reason = rewrite_end(ctx, p, &client, p->sport, false);
	}
	if (!reason && replace)
		reason = rewrite_quoted(ctx, p, &client, client_port, true);
	if (!reason)
		reason = rewrite_quoted(ctx, p, &backend, backend_port, false);
	if (!reason)
		reason = rewrite_end(ctx, p, &backend, p->dport, true);
	if (reason)
		return reason;
	f->c.swapped = ct_key_set(&f->c.key, &client, &backend, client_port, backend_port, f->c.key.proto);
	lookup_flow(f);
	return 0;
}

/* Makes *key that of a NodePort at any remote node of this cluster, if the packet goes to such a
 * port of a node. There, a pod's packet would be dropped as spoofed, or treated as the node's own.
 * Nodes of other clusters have other services at their ports, and an API server may be no node. */
static __always_inline bool lb_key_set_remote_node(struct lb_key *key, const struct packet *p)
{
	struct tunnel_peer *node;

	if (p->v6) {
		key->addr.d[0] = 0;
		key->addr.d[1] = 0;
	} else {
		addr_set4(&key->addr, 0);
	}
	key->scope = LB_SCOPE_REMOTE_NODE;
	if (!bpf_map_lookup_elem(&lb_services, key))
		return false;
	node = bpf_map_lookup_elem(&tunnel_peers, &p->dst);
	return node && node->same_cluster;
}

/* Says whether the frontend that a packet is for leads to a backend. */
__noinline int lb_leads_to(const struct packet *p, __u32 scope, const struct addr *backend, __u16 port)
{
	struct lb_member member = {.backend.port = port};
	struct lb_service *service;
	struct lb_key key;

	if (!p || !backend)
		return false;
	member.backend.addr = *backend;
	/* As in lb_choose: the frontend may get another set meanwhile. */
	for (int i = 0; i < 2; i++) {
		lb_key_set(&key, p, scope);
		service = bpf_map_lookup_elem(&lb_services, &key);
		if (!service && scope == LB_SCOPE_INTERNAL && lb_key_set_remote_node(&key, p))
			service = bpf_map_lookup_elem(&lb_services, &key);
		if (!service)
			return false;
		member.set = service->set;
		if (bpf_map_lookup_elem(&lb_members, &member))
			return true;
	}
	return false;
}

/* Has a connection that a client opens with the ports of an earlier one choose its backend anew, if
 * the earlier one's is none any more: its address may be anybody's by now. The earlier connection
 * may go on, or have been forgotten by everybody but this node. */
static __always_inline void lb_reopen(const struct packet *p, struct found *f, __u8 scope)
{
	struct addr backend;

	if (likely(!ct_is_syn(p)) || !ct_alive(f->flow, f->c.now) || !(f->flow->flags & CT_SERVICE))
		return;
	backend = f->flow->nat;
	if (!lb_leads_to(p, scope, &backend, f->flow->nat_port))
		f->flow = NULL;
}

/* Translates a packet of which find has been asked, if it is for a service. Returns 0 or a drop
 * reason. */
static __always_inline int translate(struct __sk_buff *ctx, struct packet *p, struct found *f,
				     __u8 scope)
{
	struct lb_target to;
	__u32 backend_owner = 0;
	bool fresh = false;
	int err;

	if (unlikely(p->kind != KIND_FLOW)) {
		if (f->c.related && ct_alive(f->flow, f->c.now) && (f->flow->flags & CT_SERVICE))
			return translate_error(ctx, p, f);
		return 0;
	}
	to.owner = f->c.sides.src_owner;
	lb_reopen(p, f, scope);
	if (ct_alive(f->flow, f->c.now) && likely(!(f->flow->flags & CT_SERVICE))) {
		if (likely(scope != LB_SCOPE_INTERNAL || !lb_collides(f)))
			return 0;
		fresh = !lb_find_collision(p, &to, f->c.now, &backend_owner);
		if (fresh) {
			err = lb_choose_source(p, &to, f->c.now);
			/* If its tuple is free after all, the flow needs no other port. */
			if (err || !to.client_port)
				return err;
		}
	} else if (ct_alive(f->flow, f->c.now)) {
		to.addr = f->flow->nat;
		to.port = f->flow->nat_port;
		to.client_port = f->flow->client_port;
		to.flags = f->flow->flags & (CT_HAIRPIN | CT_DSR);
		backend_owner = f->flow->dst_generation;
	} else if (scope != LB_SCOPE_INTERNAL || ct_is_syn(p) || !lb_find_collision(p, &to, f->c.now, &backend_owner)) {
		struct lb_key key;

		lb_key_set(&key, p, scope);
		err = lb_choose(&key, &p->src, p->sport, f->c.now, &to);
		if (err == LB_NONE && scope == LB_SCOPE_INTERNAL && lb_key_set_remote_node(&key, p))
			err = lb_choose(&key, &p->src, p->sport, f->c.now, &to);
		if (err == LB_NONE)
			return 0;
		if (err < 0)
			return -err;
		err = lb_choose_source(p, &to, f->c.now);
		if (err)
			return err;
		fresh = true;
	}
	f->c.nat.on = true;
	f->c.nat.fresh = fresh;
	f->c.nat.cached = !fresh;
	f->c.backend_owner = backend_owner;
	f->c.nat.hairpin = to.flags & CT_HAIRPIN;
	f->c.nat.dsr = to.flags & CT_DSR;
	f->c.nat.service = p->dst;
	f->c.nat.port = p->dport;
	f->c.nat.client_port = to.client_port ? p->sport : 0;
	err = lb_rewrite(ctx, p, &to);
	if (err)
		return err;
	f->c.port = ntohs(p->dport);
	find_flow(p, f);
	return 0;
}

/* Reports whether a packet, translated or not, belongs to a flow between a pod and itself. */
static __always_inline bool is_hairpin(const struct found *f)
{
	return f->c.nat.hairpin || (ct_alive(f->flow, f->c.now) && (f->flow->flags & CT_HAIRPIN));
}
