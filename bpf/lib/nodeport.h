/* Services for clients outside of the cluster: packets that come to the node's devices for a
 * frontend.
 *
 * A backend of this node gets the packet with its client's address; its replies leave through the
 * device with the frontend's address. A packet for a backend of another node is forwarded either
 * with the client's address, and that node replies (DSR, see dsr.h), or masqueraded with an address
 * of this node, so that the reply comes back here. The port of such an SNAT binding is above the
 * kernel's default range of ephemeral ports, and no frontend's nor socket's of the node. It is
 * bound to the flow, towards the flow's backend, as long as the flow lives: packets of either side
 * extend it. Where free ports are scarce, those of closed connections are reused: of those that the
 * backend has reset or both sides have closed, so that it sends nothing more to the port. A
 * client's reset does not count, as it may be forged by an attacker who wants the port. */
#pragma once
#include "dsr.h"
#include "forward.h"
#include "lb.h"
#include "reject.h"

enum {
	/* Ports that are tried for a new flow, one half among all that its client may use, the
	 * other among those reserved for its group. Where nine of ten are taken, one in a thousand
	 * flows finds none in the first half. */
	MASQUERADE_TRIES = 128,
	/* Of each half, so many are tried before the port of a closed connection counts as free:
	 * where three of four ports are taken, one in a hundred flows gets that far. */
	MASQUERADE_FREE_TRIES = 16,
	/* Ticks without packets after which such a connection is idle: what was in flight when it
	 * was closed has arrived, and the backend does not retransmit its FIN, even if it was lost
	 * four times. */
	MASQUERADE_IDLE = 3,
	/* Of the ports towards a backend's, one in MASQUERADE_RESERVED is reserved for groups of
	 * clients, by a hash of their address: a client that uses up all that it may leaves the
	 * other groups theirs. */
	MASQUERADE_RESERVED = 4,
	MASQUERADE_GROUPS = 16,
	/* Not an action: the packet belongs to no service. */
	NOT_A_SERVICE = 1000,
};

/* Reports whether a port of the node may be a masquerade port. SCTP flows keep their client's. */
static __always_inline bool is_masquerade_port(__u8 proto, __u16 port)
{
	return proto == PROTO_SCTP || (__u16)(ntohs(port) - cfg.masquerade_first) < cfg.masquerade_ports;
}

/* Reports whether the port of *key is in use by the node itself: by a frontend, or by a socket that
 * would get the backend's packets to it. */
__noinline int port_in_use(struct __sk_buff *ctx, const struct masquerade_key *key, bool v6)
{
	if (!key || lb_is_frontend(&key->node, key->port, key->proto))
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
		return false; /* there is no lookup of SCTP sockets */
	if (!socket)
		return false;
	bpf_sk_release(socket);
	return true;
}

static __always_inline bool masquerade_alive(const struct masquerade_value *entry, __u32 now)
{
	return entry && (__s32)(entry->expires - now) > 0;
}

/* Reports whether the port of a binding that has not expired may be reused: its connection is
 * closed, and idle. */
static __always_inline bool masquerade_idle(const struct masquerade_value *entry, __u32 now)
{
	return entry->closed && (__s32)(entry->expires - now) <= (__s32)(cfg.timeout_tcp_fin - MASQUERADE_IDLE);
}

static __always_inline __u32 masquerade_account_index(const struct addr *client)
{
	return addr_hash(client) % MASQUERADE_ACCOUNTS;
}

/* The number of bindings of clients whose addresses have the same hash. */
static __always_inline __u32 *masquerade_account(const struct addr *client)
{
	__u32 index = masquerade_account_index(client);

	return bpf_map_lookup_elem(&masquerade_accounts, &index);
}

/* Counts a binding of a client that has been added (1) or removed (-1). */
__noinline int masquerade_account_add(const struct addr *client, __s32 change)
{
	__u32 *account = client ? masquerade_account(client) : NULL;

	if (account)
		__sync_fetch_and_add(account, change);
	return 0;
}

/* Binds the port of *key to the flow of p until the tick given, unless another flow has it. Returns
 * whether it is bound to the flow now. */
__noinline int masquerade_bind(const struct masquerade_key *key, const struct packet *p, __u32 expires, bool closed)
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
		masquerade_account_add(&p->src, 1);
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
	/* Of processors that find it free at once, the one that writes the expiry gets it. */
	if (__sync_val_compare_and_swap(&entry->expires, was, expires) != was)
		return false;
	masquerade_account_add(&entry->client, -1);
	masquerade_account_add(&p->src, 1);
	return !bpf_map_update_elem(&masquerade, key, &fresh, BPF_ANY);
}

/* Stores the masquerade port in the flow's entry. Returns whether it did. */
__noinline int ct_set_masquerade_port(const struct ct_key *key, __u16 port)
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

static __always_inline void masquerade_key_set(struct masquerade_key *key, const struct packet *p, const struct addr *as)
{
	memset(key, 0, sizeof(*key));
	key->node = *as;
	key->backend = p->dst;
	key->backend_port = p->dport;
	key->proto = p->proto;
}

/* Returns the port that a flow to a backend of another node is bound to, in network byte order, and
 * extends the binding; 0 if there is none any more. */
__noinline int masquerade_current_port(const struct ct_key *key, const struct packet *p, const struct addr *as)
{
	struct masquerade_key binding;

	if (!key || !p || !as)
		return 0;
	struct ct_value *flow = bpf_map_lookup_elem(&ct, key);
	/* The range may have changed since: no reply is taken at a port outside of it. */
	if (!flow || !flow->masquerade_port || !is_masquerade_port(p->proto, flow->masquerade_port))
		return 0;
	masquerade_key_set(&binding, p, as);
	binding.port = flow->masquerade_port;
	return masquerade_bind(&binding, p, flow->expires, ct_closed(flow->flags)) ? binding.port : 0;
}

/* A random port that a client may use, in host byte order: of the common ones and those reserved
 * for its group, or of the latter alone. Where there are too few to divide, all are common. */
__noinline __u32 masquerade_random_port(const struct addr *client, bool reserved_only)
{
	if (!client)
		return 0;
	__u32 reserved = cfg.masquerade_ports / MASQUERADE_RESERVED / MASQUERADE_GROUPS;
	__u32 common = cfg.masquerade_ports - reserved * MASQUERADE_GROUPS;
	__u32 random = bpf_get_prandom_u32();

	if (reserved_only && reserved)
		random = common + random % reserved;
	else
		random %= common + reserved;
	if (random >= common)
		random += addr_hash(client) % MASQUERADE_GROUPS * reserved;
	return cfg.masquerade_first + random;
}

/* Reports whether the port of *key is bound to a flow that lives: where ports are scarce, to one
 * whose connection is not closed. A client whose account is full gets no new bindings, but those of
 * its account that have ended: they count until the agent removes them. */
__noinline int masquerade_port_taken(const struct masquerade_key *key, const struct addr *client, bool scarce)
{
	__u32 now = ct_now();
	__u32 *account;

	if (!key || !client)
		return true;
	struct masquerade_value *entry = bpf_map_lookup_elem(&masquerade, key);

	account = masquerade_account(client);
	/* Bindings made while the agent counts may be missing: a negative number is none. */
	if (account && (__s32)*account >= (__s32)cfg.masquerade_share &&
	    (!entry || masquerade_account_index(&entry->client) != masquerade_account_index(client)))
		return true;
	return masquerade_alive(entry, now) && !(scarce && masquerade_idle(entry, now));
}

/* As masquerade_current_port, for a flow without a binding. Returns 0 if no port is found. */
__noinline int masquerade_new_port(struct __sk_buff *ctx, const struct ct_key *key, const struct packet *p, const struct addr *as)
{
	struct masquerade_key binding;

	if (!key || !p || !as)
		return 0;
	struct ct_value *flow = bpf_map_lookup_elem(&ct, key);
	if (!flow)
		return 0;
	__u32 expires = flow->expires;
	int tries = p->proto == PROTO_SCTP ? 1 : MASQUERADE_TRIES;

	masquerade_key_set(&binding, p, as);
	binding.port = p->sport; /* SCTP's stays, see rewrite_end */
	for (int i = 0; i < MASQUERADE_TRIES && i < tries; i++) {
		if (tries > 1)
			binding.port = htons(masquerade_random_port(&p->src, i >= MASQUERADE_TRIES / 2));
		if (masquerade_port_taken(&binding, &p->src, i % (MASQUERADE_TRIES / 2) >= MASQUERADE_FREE_TRIES) || port_in_use(ctx, &binding, p->v6))
			continue;
		if (masquerade_bind(&binding, p, expires, false))
			return ct_set_masquerade_port(key, binding.port) ? binding.port : 0;
	}
	return 0;
}

/* The source port of a flow after SNAT, in network byte order; 0 if none is found. */
static __noinline __maybe_unused int masquerade_port(struct __sk_buff *ctx, const struct ct_key *key,
						     const struct packet *p, const struct addr *as)
{
	int port = masquerade_current_port(key, p, as);

	return port ? port : masquerade_new_port(ctx, key, p, as);
}

/* Tells the sender of a packet, which is as it was sent, that it is larger than an MTU. Returns an
 * action, or a drop reason negated. */
__noinline int refuse_too_big(struct __sk_buff *ctx, const struct packet *p, __u32 mtu, struct report *report)
{
	int reason;

	if (!p || !report)
		return -DROP_MALFORMED;
	if (!may_reject(ctx, report, true))
		return -DROP_MTU_EXCEEDED;
	report_answered(ctx, report, DROP_MTU_EXCEEDED);
	reason = answer_too_big(ctx, p, mtu);
	if (reason)
		return -reason;
	struct ipcache_value *remote = ipcache_lookup(&p->src, p->v6);

	/* As masqueraded clients' packets reach it. */
	if (cfg.tunnel && has_tunnel(remote))
		return encapsulate(ctx, remote, world_identity(p->v6), report);
	report->outcome = OUTCOME_ANSWERED;
	return redirect_out(ctx, &p->dst, &p->src, p->v6);
}

/* Gives a client's packet, which goes to a backend by now, the addresses and ports that the client
 * sent it with. Returns 0 or a drop reason. */
static __noinline __maybe_unused int restore_request(struct __sk_buff *ctx, struct packet *p, const struct ct_packet *c)
{
	const struct ct_key *key = &c->key;
	__u16 port = c->nat.client_port;
	int reason;

	if (!port)
		port = c->swapped ? key->port_b : key->port_a;
	reason = rewrite_end(ctx, p, c->swapped ? &key->b : &key->a, port, false);
	return reason ? reason : rewrite_end(ctx, p, &c->nat.service, c->nat.port, true);
}

/* Sends a client's packet to a backend that is not of this node, masqueraded or with DSR. Returns
 * what send_out does. */
static __noinline __maybe_unused int send_to_backend(struct __sk_buff *ctx, struct packet *p, const struct found *f,
							const struct ipcache_value *remote, struct report *report)
{
	bool tunnel = cfg.tunnel && has_tunnel(remote);
	struct addr as;
	int port, reason;

	if (f->c.nat.dsr && remote)
		return send_dsr(ctx, p, &f->c.nat, remote, report);
	masquerade_addr(&as, tunnel, p->v6);
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

/* Forwards a client's packet to a backend that is not of this node. Returns an action, or a drop
 * reason negated. */
static __always_inline int forward_to_backend(struct __sk_buff *ctx, struct packet *p, const struct found *f,
					      const struct ipcache_value *remote, struct report *report)
{
	int action = send_to_backend(ctx, p, f, remote, report), reason;

	if (likely(action < TOO_BIG))
		return action;
	reason = restore_request(ctx, p, &f->c);
	return reason ? -reason : refuse_too_big(ctx, p, action - TOO_BIG, report);
}

/* Rejects a packet of a client outside, as the service has no backend. Returns an action or a drop
 * reason negated. */
static __noinline __maybe_unused int reject_client(struct __sk_buff *ctx, const struct packet *p, struct report *report)
{
	int reason = DROP_NO_BACKEND;

	if (!is_spoofed(p, ipcache_lookup(&p->src, p->v6)))
		reason = reject(ctx, p, report, DROP_NO_BACKEND);
	if (reason)
		return -reason;
	report->outcome = OUTCOME_ANSWERED;
	return redirect_out(ctx, &p->dst, &p->src, p->v6);
}

/* Reports whether packets of this protocol can be for a service. */
static __always_inline bool is_lb_proto(const struct packet *p)
{
	return p->proto == PROTO_TCP || p->proto == PROTO_UDP || p->proto == PROTO_SCTP ||
	       p->proto == (p->v6 ? PROTO_ICMPV6 : PROTO_ICMP);
}

/* The owner of the slot for a fragment that comes in: see fragment.h. */
static __always_inline __u64 frag_owner(const struct packet *p)
{
	struct endpoint *ep = p->fragment ? endpoint_at(&p->dst) : NULL;

	return ep ? frag_owner_of(ep, INGRESS) : 0;
}

/* Finds the identity of a client outside. Packets of the cluster come by a device that joins its
 * nodes; by other devices nodes are treated as outside, and pods send nothing. Returns 0 or a drop
 * reason. */
static __always_inline int client_identity(const struct __sk_buff *ctx, const struct packet *p, __u32 *identity)
{
	struct ipcache_value *from = ipcache_lookup(&p->src, p->v6);

	/* The node has other addresses than those that the programs know. */
	if (is_spoofed(p, from) || (from && from->identity == ID_HOST))
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
	return translate(ctx, p, f, LB_SCOPE_EXTERNAL);
}

/* Load-balances a packet of a client outside. Returns an action, a drop reason negated, or
 * NOT_A_SERVICE. */
static __noinline __maybe_unused int node_port(struct __sk_buff *ctx, struct packet *p, struct report *report)
{
	struct found found = {.c.now = ct_now()};
	struct sides *sides = &found.c.sides;
	int reason;

	bool frontend = lb_is_frontend(&p->dst, p->dport, p->proto);

	/* The address of a former frontend may be a pod's by now. */
	if (!frontend && endpoint_at(&p->dst))
		return NOT_A_SERVICE;
	find_flow(p, &found);
	/* As pods' flows, those of clients outside outlive their frontend. */
	if (!frontend && likely(!ct_alive(found.flow, found.c.now) || !(found.flow->flags & CT_SERVICE)))
		return NOT_A_SERVICE;
	/* The stack, which would drop these, is bypassed. And to a service a client without an
	 * address is the node itself. */
	if (unlikely(!ct_alive(found.flow, found.c.now) && addr_is_martian(&p->src, p->v6)))
		return -DROP_INVALID_SOURCE_IP;
	reason = translate_outside(ctx, p, &found);
	if (unlikely(reason == DROP_NO_BACKEND))
		return reject_client(ctx, p, report);
	if (reason)
		return -reason;
	if (!found.c.nat.on) {
		/* A new connection, to whoever has the frontend's port by now. */
		if (!frontend)
			bpf_map_delete_elem(&ct, &found.c.key);
		return NOT_A_SERVICE;
	}
	/* A Service can name any backend, and this node would be the sender. */
	if (unlikely(is_not_for_pods(&p->dst)))
		return -DROP_NOT_FOR_PODS;
	reason = client_identity(ctx, p, &sides->src_identity);
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
	choose_dsr(ctx, p, &found, remote, sides->src_identity);
	reason = ct_check_found(ctx, p, report, &found);
	if (reason)
		return -reason;
	if (ep)
		return deliver(ctx, p, ep, report);
	/* By whichever of its addresses. */
	if (sides->dst_identity == ID_HOST) {
		report->outcome = OUTCOME_STACK;
		return TC_ACT_OK;
	}
	return forward_to_backend(ctx, p, &found, remote, report);
}

/* Gives a backend's reply, which comes from the service by now, the addresses and ports that the
 * backend sent it with. Returns 0 or a drop reason. */
static __noinline __maybe_unused int restore_reply(struct __sk_buff *ctx, struct packet *p, const struct ct_packet *c)
{
	const struct ct_key *key = &c->key;
	int reason = rewrite_end(ctx, p, c->swapped ? &key->b : &key->a, c->swapped ? key->port_b : key->port_a, false);

	return reason ? reason : rewrite_end(ctx, p, c->swapped ? &key->a : &key->b, c->swapped ? key->port_a : key->port_b, true);
}

/* Finds the client that a packet to the node's own address replies to. Returns whether there is
 * one. */
__noinline int masquerade_lookup(const struct packet *p, __u32 now, struct masquerade_value *client)
{
	struct masquerade_key binding = {};

	if (!p || !client || !is_masquerade_port(p->proto, p->dport))
		return false;
	binding.node = p->dst;
	binding.backend = p->src;
	binding.port = p->dport;
	binding.backend_port = p->sport;
	binding.proto = p->proto;
	struct masquerade_value *entry = bpf_map_lookup_elem(&masquerade, &binding);
	if (!masquerade_alive(entry, now))
		return false;
	*client = *entry;
	return true;
}

/* Gives the binding of a flow that the backend has replied to, or reset, the expiry of the flow. */
__noinline int masquerade_extend(const struct ct_key *key, const struct ct_value *flow, const struct packet *p, bool tunnel)
{
	struct masquerade_key binding = {};

	if (!key || !flow || !p)
		return 0;
	bool by_b = flow->flags & CT_OPENED_BY_B;
	masquerade_addr(&binding.node, tunnel, p->v6);
	binding.backend = by_b ? key->a : key->b;
	binding.port = flow->masquerade_port;
	binding.backend_port = by_b ? key->port_a : key->port_b;
	binding.proto = key->proto;
	struct masquerade_value *entry = bpf_map_lookup_elem(&masquerade, &binding);
	if (masquerade_alive(entry, ct_now())) {
		entry->closed = ct_closed(flow->flags) || (p->proto == PROTO_TCP && (p->tcp_flags & TCP_RST));
		entry->expires = flow->expires;
	}
	return 0;
}

/* Says whether a reply to the node can be from its source, by the way that it has come: a pod's of
 * another node comes by the tunnel if there is one, and those of pods and nodes by no device but
 * one that joins the nodes. Who has sent what comes by the tunnel, from_overlay has found out. */
static __always_inline bool is_forged_reply(const struct __sk_buff *ctx, const struct packet *p, const struct report *report)
{
	struct ipcache_value *from;

	if (report->program == PROGRAM_FROM_OVERLAY)
		return false;
	from = ipcache_lookup(&p->src, p->v6);
	if (is_spoofed(p, from))
		return true;
	return (cfg.other_devices || cfg.interfaces) && from && !is_outside(from->identity) && !joins_nodes(ctx->ifindex);
}

/* Sends the reply of a backend of another node to its client, from the frontend. Returns an action,
 * a drop reason negated, or NOT_A_SERVICE. */
static __noinline __maybe_unused int node_port_reply(struct __sk_buff *ctx, struct packet *p, struct report *report)
{
	struct found found = {.c.now = ct_now()};
	struct sides *sides = &found.c.sides;
	struct masquerade_value to;
	struct addr at = p->dst;
	__u16 port = p->dport;
	int action, reason;

	if (p->kind != KIND_FLOW || !masquerade_lookup(p, found.c.now, &to))
		return NOT_A_SERVICE;
	if (is_forged_reply(ctx, p, report))
		return -DROP_INVALID_SOURCE_IP;
	reason = rewrite_end(ctx, p, &to.client, to.client_port, true);
	if (reason)
		return -reason;
	find_flow(p, &found);
	if (!ct_alive(found.flow, found.c.now) || !(found.flow->flags & CT_TRANSLATED))
		return -DROP_UNKNOWN_RELATED;
	/* The backend's node has enforced its policy. */
	sides->src_identity = found.flow->dst_identity;
	sides->dst_identity = found.flow->src_identity;
	reason = ct_check_found(ctx, p, report, &found);
	if (reason)
		return -reason;
	/* The client may send nothing while it receives data. */
	if (found.flow && found.flow->expires != to.expires)
		masquerade_extend(&found.c.key, found.flow, p, report->program == PROGRAM_FROM_OVERLAY);
	action = send_out(ctx, p, report);
	if (likely(action < TOO_BIG))
		return action;
	reason = restore_reply(ctx, p, &found.c);
	if (!reason)
		reason = rewrite_end(ctx, p, &at, port, true);
	return reason ? -reason : refuse_too_big(ctx, p, action - TOO_BIG, report);
}

/* Turns an ICMP error about a packet that this node masqueraded into one about the client's flow.
 * Its source becomes the backend, and the service later, whoever sent it: the client knows neither
 * the backend nor the path there. Returns 0 if it is one about the client's flow now, which is
 * still to be made one about the service's, or a drop reason, or NOT_A_SERVICE. */
static __noinline __maybe_unused int error_to_client(struct __sk_buff *ctx, struct packet *p, struct found *f)
{
	/* The key is that of a packet from the flow's other end. */
	__u16 port = f->c.swapped ? f->c.key.port_a : f->c.key.port_b;
	struct masquerade_key binding = {};
	struct addr client, backend;
	int reason;

	if (!is_masquerade_port(f->c.key.proto, port))
		return NOT_A_SERVICE;
	binding.node = f->c.swapped ? f->c.key.a : f->c.key.b;
	binding.backend = f->c.swapped ? f->c.key.b : f->c.key.a;
	binding.port = port;
	binding.backend_port = f->c.swapped ? f->c.key.port_b : f->c.key.port_a;
	binding.proto = f->c.key.proto;
	struct masquerade_value *entry = bpf_map_lookup_elem(&masquerade, &binding);
	if (!masquerade_alive(entry, f->c.now))
		return NOT_A_SERVICE;
	__u16 client_port = entry->client_port;
	client = entry->client;
	backend = binding.backend;
	ct_key_set(&f->c.key, &backend, &client, binding.backend_port, client_port, binding.proto);
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

/* Sends a backend an ICMP error about what it has sent to a client outside. Returns an action, or a
 * drop reason negated. */
static __always_inline int error_to_backend(struct __sk_buff *ctx, struct packet *p, struct found *f,
					    struct report *report)
{
	struct addr as;
	int reason = translate_error(ctx, p, f);

	if (reason)
		return -reason;
	if (!ct_alive(f->flow, f->c.now) || !(f->flow->flags & CT_TRANSLATED))
		return -DROP_UNKNOWN_RELATED;
	struct endpoint *ep = endpoint_at(&p->dst);
	if (ep) {
		report->endpoint = ep->id;
		reason = endpoint_ready(ep);
		if (reason)
			return -reason;
		side_dst(&f->c.sides, ep);
		reason = ct_check_flow(ctx, p, report, f);
		return reason ? -reason : deliver(ctx, p, ep, report);
	}
	struct ipcache_value *remote = ipcache_lookup(&p->dst, p->v6);
	if (is_host(&p->dst, p->v6) || (remote && remote->identity == ID_HOST)) {
		report->outcome = OUTCOME_STACK;
		return TC_ACT_OK;
	}
	bool tunnel = cfg.tunnel && has_tunnel(remote);

	/* With DSR the backend sees the client's own address, and the source of the error. */
	if (!(f->flow->flags & CT_DSR)) {
		if (!f->flow->masquerade_port)
			return -DROP_UNKNOWN_RELATED;
		masquerade_addr(&as, tunnel, p->v6);
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

/* Forwards an ICMP error from outside, or from another node, about a flow through a service to its
 * client or backend. Returns an action, a drop reason negated, or NOT_A_SERVICE. */
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

/* Makes the reply of a backend that is a process of the node come from the service. Returns an
 * action or a drop reason negated. */
static __always_inline int node_port_local_reply(struct __sk_buff *ctx, struct packet *p, struct report *report)
{
	struct found found = {.c.sides.src_identity = ID_HOST};
	int reason;

	/* The node has more addresses than the programs know; what it forwards is not its own. */
	if ((ctx->ingress_ifindex && !is_host(&p->src, p->v6)) || parse_transport(ctx, p, (__u64)EGRESS << 32) ||
	    (p->kind != KIND_FLOW && p->kind != KIND_ERROR))
		return TC_ACT_OK;
	if (find(ctx, p, report, &found))
		return TC_ACT_OK;
	if (!ct_alive(found.flow, found.c.now) || !(found.flow->flags & CT_TRANSLATED) ||
	    found.flow->dst_identity != ID_HOST || !!(found.flow->flags & CT_OPENED_BY_B) == found.c.swapped)
		return TC_ACT_OK;
	found.c.sides.dst_identity = found.flow->src_identity;
	reason = ct_check_found(ctx, p, report, &found);
	if (reason)
		return -reason;
	/* The port is the client's choice. */
	return for_tunnel(p) ? -DROP_TUNNEL_NOT_FROM_NODE : TC_ACT_OK;
}

/* Handles a packet from outside that may be for a service, or about a flow through one. Returns an
 * action, a drop reason negated, or NOT_A_SERVICE. */
static __always_inline int node_port_packet(struct __sk_buff *ctx, struct packet *p, struct report *report)
{
	int action = NOT_A_SERVICE;

	if (p->kind == KIND_ERROR)
		return node_port_error(ctx, p, report);
	if (p->kind != KIND_FLOW)
		return NOT_A_SERVICE;
	/* A flow keeps its port, even if the port becomes a frontend's meanwhile. */
	if (is_host(&p->dst, p->v6))
		action = node_port_reply(ctx, p, report);
	return action == NOT_A_SERVICE ? node_port(ctx, p, report) : action;
}
