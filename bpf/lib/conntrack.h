/* Connection tracking, and policy enforcement per flow.
 *
 * One entry holds a flow in both directions, under a key that does not depend on which way a packet
 * goes, so each packet costs one lookup. The entry remembers who opened the flow, the two
 * identities, and for each local side the generation of the policy that let it pass. While these
 * are unchanged, packets pass without a policy lookup; when one differs, policy is evaluated again
 * for the flow's opening direction: so replies of an allowed flow need no rule, and no flow
 * outlives the rule that allowed it.
 *
 * Time is counted in ticks of 2^30 ns (1.07 s): a shift instead of a division. An entry is written
 * at most once a tick, so that processors do not fight over its cache line; only the counters of
 * packets are, and these may miss some when two processors count at once.
 *
 * A flow belongs to the endpoints that it was opened by and for, not to their addresses: it
 * remembers the incarnation of each that is of this node, 0 for a side that is not. If either side
 * is a different endpoint by now, or has moved to or from this node, a packet does not match the
 * flow and opens a new one. A replaced peer on another node cannot be detected here and need not
 * be: its node checks its packets as the opening of a flow; here they pass as replies only if
 * policy allows traffic to their identity, and cannot open a connection (see policy_check_flow).
 *
 * Entries of an LRU map may be reused for another flow while a program still reads one. Fields that
 * decide a verdict are therefore never written through the pointer of a lookup, only by an update
 * of the whole entry. */
#pragma once
#include "clock.h"
#include "config.h"
#include "events.h"
#include "fragment.h"
#include "packet.h"
#include "policy.h"
#include "rewrite.h"

/* The two ends of a packet. A rule set of 0 means that this side is not local, or that its policy
 * is not enforced here. */
struct sides {
	__u32 src_identity;
	__u32 dst_identity;
	__u32 src_rule_set;
	__u32 dst_rule_set;
	__u32 src_generation;
	__u32 dst_generation;
	__u32 src_owner; /* the incarnation, 0 if not of this node */
	__u32 dst_owner;
	__u16 src_endpoint;
	__u16 dst_endpoint;
};

/* Sets the key of a flow; returns whether a packet from src to dst goes from b to a. */
static __always_inline bool ct_key_set(struct ct_key *key, const struct addr *src,
				       const struct addr *dst, __u16 sport, __u16 dport, __u8 proto)
{
	bool swapped;

	if (src->d[0] != dst->d[0])
		swapped = src->d[0] > dst->d[0];
	else if (src->d[1] != dst->d[1])
		swapped = src->d[1] > dst->d[1];
	else
		swapped = sport > dport;

	if (swapped) {
		key->a = *dst;
		key->b = *src;
		key->port_a = dport;
		key->port_b = sport;
	} else {
		key->a = *src;
		key->b = *dst;
		key->port_a = sport;
		key->port_b = dport;
	}
	key->proto = proto;
	key->collision = 0;
	key->pad[0] = 0;
	key->pad[1] = 0;
	return swapped;
}

/* Reports whether both sides have closed the connection. */
static __always_inline bool ct_closed(__u32 flags)
{
	const __u32 both = CT_FIN_FORWARD | CT_FIN_REVERSE;

	return (flags & both) == both;
}

static __always_inline bool ct_closing(__u32 flags)
{
	return (flags & CT_RST) || ct_closed(flags);
}

static __always_inline __u32 ct_lifetime(__u8 proto, __u32 flags)
{
	if (proto != PROTO_TCP)
		return cfg.timeout_any;
	if (ct_closing(flags))
		return cfg.timeout_tcp_fin;
	/* With DSR the node that the client addressed does not see replies: after the client's FIN
	 * it waits a while. */
	if ((flags & (CT_DSR | CT_FIN_FORWARD | CT_DST_CHECKED)) == (CT_DSR | CT_FIN_FORWARD))
		return cfg.timeout_tcp_syn;
	return flags & CT_SEEN_REPLY ? cfg.timeout_tcp : cfg.timeout_tcp_syn;
}

/* What a packet adds to the flags of its flow. */
static __always_inline __u32 ct_packet_flags(const struct packet *p, bool forward)
{
	__u32 flags = forward ? 0 : CT_SEEN_REPLY;

	if (p->tcp_flags & TCP_FIN)
		flags |= forward ? CT_FIN_FORWARD : CT_FIN_REVERSE;
	if (p->tcp_flags & TCP_RST)
		flags |= CT_RST;
	return flags | (__u32)(p->tcp_flags & cfg.aggregation_flags) << (forward ? CT_TCP_FLAGS_FORWARD : CT_TCP_FLAGS_REVERSE);
}

/* Reports whether a packet, the first of its flow within this tick, is to be the flow's sample.
 * Flows have theirs at different times, so that they do not come all at once. The expiry and the
 * flags are those that the packet before has left. Not inlined: its callers have no stack to
 * spare. */
static __noinline __maybe_unused bool ct_sample(const struct ct_key *key, __u32 expires, __u32 flags, __u32 now)
{
	__u32 phase = (key->port_a + key->port_b) * 0x9E3779B1u >> 16; /* neighbours apart */
	__u32 last = expires - ct_lifetime(key->proto, flags);

	return cfg.aggregation_interval && (last + phase) / cfg.aggregation_interval != (now + phase) / cfg.aggregation_interval;
}

/* Emits the verdict of one side's policy if verdicts are monitored, and counts one that audit mode
 * lets pass. Not inlined, as it is rare: its caller has no stack to spare. */
__noinline int emit_verdict(struct __sk_buff *ctx, const struct report *report, int verdict, __u32 direction, __u32 endpoint)
{
	if (!report)
		return 0;
	if (verdict & AUDITED)
		count(ctx, POLICY_AUDITED, direction);
	if (monitor_flags() & MONITOR_VERDICTS) {
		struct report copy = *report;

		copy.type = EVENT_VERDICT;
		copy.reason = verdict & VERDICT_REASON_MASK;
		copy.match = verdict >> VERDICT_MATCH_SHIFT;
		if (verdict & AUDITED)
			copy.outcome = OUTCOME_AUDITED;
		copy.direction = direction;
		copy.endpoint = endpoint;
		emit(ctx, &copy);
	}
	return 0;
}

/* Evaluates one side's policy and reports the verdict. */
static __always_inline int policy_check_side(struct __sk_buff *ctx, struct report *report,
					     __u32 rule_set, __u16 endpoint, __u32 peer,
					     const struct addr *peer_addr, bool v6, __u32 direction,
					     __u8 proto, __u16 port)
{
	int verdict = policy_verdict(rule_set, peer, peer_addr->d[0], peer_addr->d[1],
				     policy_query(direction, v6, proto, port));
	int reason = verdict & VERDICT_REASON_MASK;

	if (unlikely(verdict & AUDITED || monitor_flags() & MONITOR_VERDICTS)) {
		emit_verdict(ctx, report, verdict, direction, endpoint);
		if (verdict & AUDITED)
			return 0;
	}
	if (reason) {
		report->direction = direction;
		report->endpoint = endpoint;
	}
	return reason;
}

/* Evaluates both sides' policies for a packet that opens a flow, or has none. */
static __always_inline int policy_check_packet(struct __sk_buff *ctx, struct report *report,
					       const struct sides *s, const struct packet *p, __u16 port)
{
	int reason = 0;

	if (s->src_rule_set)
		reason = policy_check_side(ctx, report, s->src_rule_set, s->src_endpoint, s->dst_identity,
					   &p->dst, p->v6, EGRESS, p->proto, port);
	if (!reason && s->dst_rule_set)
		reason = policy_check_side(ctx, report, s->dst_rule_set, s->dst_endpoint, s->src_identity,
					   &p->src, p->v6, INGRESS, p->proto, port);
	return reason;
}

/* Reads the packet that an ICMP error is about and sets the key of its flow as if the error were a
 * packet of that flow, which goes against the packet it is about. */
static __noinline int related_key(struct __sk_buff *ctx, const struct packet *p,
				  const struct sides *s, bool *swapped, struct ct_key *key)
{
	__u32 off = p->l4 + sizeof(struct icmp_header);
	struct addr src, dst;
	struct icmp_header l4; /* of any protocol: eight bytes are promised */
	__u8 proto;

	if (p->v6) {
		struct ipv6_header ip;

		if (READ_L4(ctx, p, off, &ip) || ip.version_class >> 4 != 6)
			return DROP_MALFORMED;
		addr_set6(&src, ip.src);
		addr_set6(&dst, ip.dst);
		int transport = quoted_transport6(ctx, p);
		if (transport < 0)
			return -transport;
		proto = transport >> 16;
		off = transport & 0xFFFF;
	} else {
		struct ipv4_header ip;

		if (READ_L4(ctx, p, off, &ip) || ip.version_ihl >> 4 != 4 || (ip.version_ihl & 0xF) < 5)
			return DROP_MALFORMED;
		if (ip.frag & htons(IPV4_OFFSET_MASK))
			return DROP_UNKNOWN_RELATED;
		addr_set4(&src, ip.src);
		addr_set4(&dst, ip.dst);
		proto = ip.proto;
		off += (ip.version_ihl & 0xF) * 4;
	}
	/* An error goes to the sender of the packet it is about, and to no other. Any router on the
	 * path may send one, but a pod is no router: it may only report errors of packets sent to
	 * itself. */
	if (!addr_equal(&src, &p->dst) || (s->src_rule_set && !addr_equal(&dst, &p->src)))
		return DROP_UNKNOWN_RELATED;
	if (READ_L4(ctx, p, off, &l4))
		return DROP_MALFORMED;

	__u16 sport, dport;
	if (proto == PROTO_TCP || proto == PROTO_UDP || proto == PROTO_SCTP) {
		struct ports ports;

		memcpy(&ports, &l4, sizeof(ports));
		sport = ports.src;
		dport = ports.dst;
	} else if (proto == (p->v6 ? PROTO_ICMPV6 : PROTO_ICMP)) {
		bool request = l4.type == (p->v6 ? ICMPV6_ECHO : ICMP_ECHO);
		bool reply = l4.type == (p->v6 ? ICMPV6_ECHO_REPLY : ICMP_ECHO_REPLY);

		if (!request && !reply)
			return DROP_UNKNOWN_RELATED;
		sport = request ? echo_port(l4.id) : 0;
		dport = request ? 0 : echo_port(l4.id);
	} else {
		return DROP_UNKNOWN_RELATED;
	}
	*swapped = ct_key_set(key, &dst, &src, dport, sport, proto);
	return 0;
}

/* A flow that is sent to a backend instead of to the service that it is addressed to. */
struct translation {
	struct addr service;
	__u16 port;
	__u16 client_port; /* the client's own, 0 if unchanged */
	bool on : 1; /* whether there is one at all */
	bool hairpin : 1; /* the backend is the client itself */
	bool dsr : 1; /* the backend's node is to reply directly */
	bool fresh : 1; /* the backend has just been chosen, and is to be stored */
	bool cached : 1; /* the backend was stored, with the incarnation in backend_owner */
};

/* A packet as conntrack sees it. No pointers: it is an argument of global functions. */
struct ct_packet {
	struct ct_key key;
	struct sides sides;
	struct translation nat; /* how the packet was translated before it was looked up */
	__u32 now;
	__u32 backend_owner; /* of the backend when it was chosen, 0 if it is not of this node */
	__u16 port; /* the port for the policy lookup of a new flow */
	bool swapped; /* the packet goes from b to a */
	bool related : 1;
	bool untranslate : 1; /* a reply that has to come from the service */
	bool extended : 1; /* the expiry of the flow, which is through a service, has changed */
	bool replaced : 1; /* the flow's entry has been replaced */
};

/* What conntrack knows of a packet. The caller sets its sides. */
struct found {
	struct ct_packet c;
	struct ct_value *flow; /* NULL if none is known; it may have expired */
};

static __always_inline bool ct_alive(const struct ct_value *flow, __u32 now)
{
	return flow && (__s32)(flow->expires - now) > 0;
}

/* Says whether a packet opens a connection: SCTP's INIT does, as TCP's SYN. */
static __always_inline bool ct_is_syn(const struct packet *p)
{
	return p->opens;
}

static __always_inline bool ct_is_ack(const struct packet *p)
{
	return (p->tcp_flags & (TCP_SYN | TCP_ACK | TCP_RST | TCP_FIN)) == TCP_ACK;
}

/* Reports whether a packet that opens a connection has nothing to do with the flow of the same
 * ends: that flow has ended, or the packet is no reply in it. It may come from the new owner of the
 * peer's address. */
static __always_inline bool ct_reopens(__u32 flags, bool swapped)
{
	return ct_closing(flags) || ((flags & CT_SEEN_REPLY) && !!(flags & CT_OPENED_BY_B) != swapped);
}

/* The incarnation that a flow remembers of the side that is a packet's source. */
static __always_inline __u32 ct_source_owner(const struct ct_value *flow, bool swapped)
{
	return !!(flow->flags & CT_OPENED_BY_B) == swapped ? flow->src_owner : flow->dst_owner;
}

/* Looks the flow up whose key is set. There is none if the source is a different endpoint by now;
 * not every caller knows the destination yet. An error may come from any router on the way. */
static __always_inline void lookup_flow(struct found *f)
{
	f->flow = bpf_map_lookup_elem(&ct, &f->c.key);
	if (f->flow && unlikely(ct_source_owner(f->flow, f->c.swapped) != f->c.sides.src_owner) && !(f->c.related && !f->c.sides.src_owner))
		f->flow = NULL;
}

/* Looks a packet's flow up by the addresses and ports that the packet has now. */
static __always_inline void find_flow(const struct packet *p, struct found *f)
{
	f->c.swapped = ct_key_set(&f->c.key, &p->src, &p->dst, p->sport, p->dport, p->proto);
	lookup_flow(f);
}

/* Looks up the flow of a packet; of *f only the sides are set. Returns 0 or a drop reason. */
static __always_inline int find(struct __sk_buff *ctx, struct packet *p, struct report *report, struct found *f)
{
	f->c.now = ct_now();
	switch (p->kind) {
	case KIND_FLOW:
		f->c.port = ntohs(p->dport);
		break;
	case KIND_ECHO:
	case KIND_ECHO_REPLY:
		f->c.port = p->icmp_type;
		break;
	case KIND_ICMP:
		f->c.port = p->icmp_type;
		return 0;
	case KIND_ERROR: {
		int reason = related_key(ctx, p, &f->c.sides, &f->c.swapped, &f->c.key);

		if (reason)
			return reason;
		f->c.related = true;
		f->c.port = 0;
		lookup_flow(f);
		report->ct_state = CT_STATE_RELATED;
		return 0;
	}
	default:
		return DROP_UNSUPPORTED_NDP;
	}
	find_flow(p, f);
	return 0;
}

/* The identity of the peer that a packet to a node's address replies to. A node masquerades what it
 * forwards to a pod here for a client outside or a pod: then the identity of that client counts, as
 * the flow has it. */
static __noinline __maybe_unused __u32 reply_identity(const struct found *f, __u32 identity)
{
	if (ct_alive(f->flow, f->c.now) && !!(f->flow->flags & CT_OPENED_BY_B) != f->c.swapped &&
	    !is_node(f->flow->src_identity) && f->flow->src_identity != ID_HOST)
		return f->flow->src_identity;
	return identity;
}

/* Gives the CT_SERVICE entry of a flow the expiry of the flow. */
__noinline int mirror_expiry(const struct ct_key *key, const struct ct_value *flow)
{
	struct ct_key client_key;

	if (!key || !flow)
		return 0;
	bool by_b = flow->flags & CT_OPENED_BY_B;
	/* Of a pod that talks to itself, one address is not its own: the client's. */
	bool client_b = flow->flags & CT_HAIRPIN ? !by_b : by_b;
	__u16 port = flow->client_port;

	if (!port)
		port = by_b ? key->port_b : key->port_a;
	ct_key_set(&client_key, client_b ? &key->b : &key->a, &flow->nat, port, flow->nat_port, key->proto);
	/* The service is the backend itself: a flow whose tuple collided. */
	client_key.collision = addr_equal(&flow->nat, by_b ? &key->a : &key->b) &&
			   flow->nat_port == (by_b ? key->port_a : key->port_b);
	struct ct_value *entry = bpf_map_lookup_elem(&ct, &client_key);
	if (entry && (entry->flags & CT_SERVICE)) {
		entry->expires = flow->expires;
		/* As for the flow: see ct_clear_excess. */
		if (unlikely(entry->flags & CT_EXCESS) && !(flow->flags & CT_EXCESS))
			entry->flags &= ~CT_EXCESS;
	}
	return 0;
}

/* Makes a reply come from the service that its flow was addressed to. */
static __always_inline int untranslate(struct __sk_buff *ctx, struct packet *p,
				       const struct ct_value *flow)
{
	__u16 client_port = flow->client_port;
	struct addr client;
	int reason;

	if (flow->flags & CT_HAIRPIN) {
		/* The backend is the client. */
		client = p->src;
		reason = rewrite_end(ctx, p, &client, client_port ? client_port : p->dport, true);
		if (reason)
			return reason;
	} else if (client_port) {
		client = p->dst;
		reason = rewrite_end(ctx, p, &client, client_port, true);
		if (reason)
			return reason;
	}
	return rewrite_end(ctx, p, &flow->nat, flow->nat_port, false);
}

/* Makes an ICMP error about a packet that has become one for a backend an error about what the
 * client has sent. If the backend itself sent the error, the service does. */
__noinline int untranslate_error(struct __sk_buff *ctx, struct packet *p, const struct ct_key *key,
				 const struct ct_value *flow)
{
	struct addr client, backend, service;
	int reason;

	if (!p || !key || !flow)
		return DROP_MALFORMED;
	bool by_b = flow->flags & CT_OPENED_BY_B, hairpin = flow->flags & CT_HAIRPIN;
	__u16 client_port = by_b ? key->port_b : key->port_a, service_port = flow->nat_port;

	client = by_b ? key->b : key->a;
	backend = by_b ? key->a : key->b;
	service = flow->nat;
	if (hairpin)
		client = backend;
	if (hairpin || flow->client_port) {
		if (flow->client_port)
			client_port = flow->client_port;
		reason = rewrite_quoted(ctx, p, &client, client_port, false);
		if (reason)
			return reason;
	}
	reason = rewrite_quoted(ctx, p, &service, service_port, true);
	if (!reason && addr_equal(&p->src, &backend))
		reason = rewrite_end(ctx, p, &service, p->sport, false);
	if (!reason && hairpin)
		reason = rewrite_end(ctx, p, &client, p->dport, true);
	return reason;
}

/* Ticks after which a count of the agent is stale: without an agent no shares are enforced. */
enum { CT_COUNT_TTL = 300 };

/* Accounts for an entry that has been made on behalf of an endpoint. If the endpoint has used up
 * its share, the entry evicts a random one that is beyond a share too: a flood displaces floods
 * only. */
__noinline int ct_account(const struct ct_key *key, __u32 endpoint, __u32 now)
{
	if (!key)
		return 0;
	struct ct_account *account = bpf_map_lookup_elem(&ct_accounts, &endpoint);
	if (!account)
		return 0;
	__u32 held = __sync_fetch_and_add(&account->entries, 1);
	if (likely(!account->share || held < account->share) || now - account->counted > CT_COUNT_TTL)
		return 0;
	__u32 slot = bpf_get_prandom_u32() % account->slots;
	struct ct_key *had = bpf_map_lookup_elem(&ct_excess, &slot);
	if (!had)
		return 0;
	struct ct_key old = *had;
	*had = *key;
	account->excess++;
	/* The tuple may have been used again since, within a share. */
	struct ct_value *entry = bpf_map_lookup_elem(&ct, &old);
	if (entry && (entry->flags & CT_EXCESS))
		bpf_map_delete_elem(&ct, &old);
	entry = bpf_map_lookup_elem(&ct, key);
	if (entry)
		entry->flags |= CT_EXCESS;
	return 0;
}

/* Clears CT_EXCESS of an entry if the endpoint that it is accounted to is within its share by
 * now. */
__noinline int ct_clear_excess(const struct ct_key *key, __u32 endpoint)
{
	struct ct_account *account = bpf_map_lookup_elem(&ct_accounts, &endpoint);

	if (!key || !account || account->entries >= account->share)
		return 0;
	struct ct_value *entry = bpf_map_lookup_elem(&ct, key);
	if (entry)
		entry->flags &= ~CT_EXCESS;
	return 0;
}

/* The endpoint that a new flow is accounted to: the one of this node that opens it, or that it is
 * for. */
static __always_inline __u32 ct_account_of(const struct sides *s)
{
	return s->src_owner ? s->src_endpoint : s->dst_endpoint;
}

/* Records a new flow that the sides' policies allow. Returns 0 or a drop reason. */
__noinline int open_flow(const struct ct_key *key, const struct sides *s, const struct translation *nat,
			 __u32 flags, __u32 now)
{
	struct ct_value fresh = {};

	if (!key || !s)
		return DROP_MALFORMED;
	fresh.forward_packets = 1;
	fresh.src_identity = s->src_identity;
	fresh.dst_identity = s->dst_identity;
	fresh.src_owner = s->src_owner;
	fresh.dst_owner = s->dst_owner;
	if (s->src_rule_set) {
		fresh.src_generation = s->src_generation;
		flags |= CT_SRC_CHECKED;
	}
	if (s->dst_rule_set) {
		fresh.dst_generation = s->dst_generation;
		flags |= CT_DST_CHECKED;
	}
	if (nat && nat->on) {
		fresh.nat = nat->service;
		fresh.nat_port = nat->port;
		fresh.client_port = nat->client_port;
		flags |= CT_TRANSLATED | (nat->hairpin ? CT_HAIRPIN : 0) | (nat->dsr ? CT_DSR : 0);
	}
	fresh.flags = flags;
	fresh.expires = now + ct_lifetime(key->proto, flags);
	return bpf_map_update_elem(&ct, key, &fresh, BPF_ANY) ? DROP_CT_FULL : 0;
}

/* Records that the sides' policies, evaluated again, still allow a flow. Identities are in the
 * order of its opening. Returns 0 or a drop reason. */
__noinline int update_flow_policy(const struct ct_key *key, const struct sides *s, bool forward, __u64 identities)
{
	if (!key || !s)
		return DROP_MALFORMED;
	struct ct_value *flow = bpf_map_lookup_elem(&ct, key);
	if (!flow)
		return 0; /* the next packet opens it */
	struct ct_value next = *flow;
	__u32 src_rule_set = forward ? s->src_rule_set : s->dst_rule_set;
	__u32 dst_rule_set = forward ? s->dst_rule_set : s->src_rule_set;

	__u32 src_identity = identities >> 32, dst_identity = identities;

	if (next.src_identity != src_identity || next.dst_identity != dst_identity)
		next.flags &= ~(CT_SRC_CHECKED | CT_DST_CHECKED);
	next.src_identity = src_identity;
	next.dst_identity = dst_identity;
	if (src_rule_set) {
		next.flags |= CT_SRC_CHECKED;
		next.src_generation = forward ? s->src_generation : s->dst_generation;
	}
	if (dst_rule_set) {
		next.flags |= CT_DST_CHECKED;
		next.dst_generation = forward ? s->dst_generation : s->src_generation;
	}
	return bpf_map_update_elem(&ct, key, &next, BPF_ANY) ? DROP_CT_FULL : 0;
}

/* Reports whether the policy of one side of a flow must be evaluated again: that of the side that
 * opened it (CT_SRC_CHECKED) or of the other (CT_DST_CHECKED). It must if the policy or an identity
 * has changed since the last check. */
static __always_inline bool side_changed(const struct sides *s, bool related, const struct ct_value *flow, bool forward,
					 __u32 checked)
{
	__u32 generation = checked == CT_SRC_CHECKED ? flow->src_generation : flow->dst_generation;
	__u32 differ = 0;

	if (forward == (checked == CT_SRC_CHECKED)) {
		if (!s->src_rule_set)
			return false;
		differ = s->src_generation ^ generation;
	} else {
		if (!s->dst_rule_set)
			return false;
		differ = s->dst_generation ^ generation;
	}
	if (!related && forward)
		differ |= (s->src_identity ^ flow->src_identity) | (s->dst_identity ^ flow->dst_identity);
	else if (!related)
		differ |= (s->dst_identity ^ flow->src_identity) | (s->src_identity ^ flow->dst_identity);
	return differ || !(flow->flags & checked);
}

/* Enforces policy on a packet after find, by its flow if there is one. Returns 0 or a drop reason,
 * and writes the identities, and the direction that denied, into the report. A global function: it
 * is most of what there is to verify. */
__noinline int policy_check_flow(struct __sk_buff *ctx, const struct packet *p, struct ct_packet *c, struct ct_value *flow,
				 struct report *report)
{
	if (!p || !c || !report)
		return DROP_MALFORMED;
	const struct sides *s = &c->sides;
	bool swapped = c->swapped;
	bool alive = ct_alive(flow, c->now);

	report->src_identity = s->src_identity;
	report->dst_identity = s->dst_identity;
	if (p->kind == KIND_ICMP)
		return policy_check_packet(ctx, report, s, p, c->port);
	/* Only clients use a service's address, and theirs have been translated by now. */
	if (alive && unlikely(flow->flags & CT_SERVICE))
		return c->related ? DROP_UNKNOWN_RELATED : DROP_INVALID_SOURCE_IP;
	/* The same tuple may be used directly and through a service, but not at once: the later
	 * one takes over, and lb_choose never picks a translation with a tuple in use. But to the
	 * backend both are one connection: who could take the translation off one that is
	 * established, by any segment, would have the client reset it. */
	bool translated = c->nat.on;
	if (alive && !c->related && unlikely(!!(flow->flags & CT_TRANSLATED) != translated) &&
	    !(flow->flags & CT_DSR) && !!(flow->flags & CT_OPENED_BY_B) == swapped) {
		if (!translated && p->proto == PROTO_TCP &&
		    (flow->flags & (CT_SEEN_REPLY | CT_FIN_FORWARD | CT_FIN_REVERSE | CT_RST)) == CT_SEEN_REPLY)
			return DROP_TUPLE_IN_USE;
		alive = false;
	}

	if (alive && !(ct_is_syn(p) && ct_reopens(flow->flags, swapped))) {
		__u32 flags = flow->flags;
		bool forward = !!(flags & CT_OPENED_BY_B) == swapped;
		bool check_src = side_changed(s, c->related, flow, forward, CT_SRC_CHECKED);
		bool check_dst = side_changed(s, c->related, flow, forward, CT_DST_CHECKED);

		if (unlikely(check_src || check_dst)) {
			int reason = 0;
			__u16 port;
			/* The sides in the order of the flow's opening. An error may come from any
			 * router on the way: what counts are the flow's own ends. */
			__u32 src_identity = c->related ? flow->src_identity : forward ? s->src_identity : s->dst_identity;
			__u32 dst_identity = c->related ? flow->dst_identity : forward ? s->dst_identity : s->src_identity;

			report->ct_state = CT_STATE_RECHECKED;
			/* The flow has the identity with which a remote pod opened it. If the
			 * ipcache has only the CIDR of its address, because the update is late or
			 * the store is down, that is no new identity: replies must not be dropped
			 * for it. */
			if (!forward && !s->dst_rule_set && src_identity == ID_UNMANAGED)
				src_identity = flow->src_identity;
			/* The port that the opener addressed; an echo flow is checked as its
			 * request. */
			if (c->key.proto == PROTO_ICMP)
				port = ICMP_ECHO;
			else if (c->key.proto == PROTO_ICMPV6)
				port = ICMPV6_ECHO;
			else
				port = ntohs(flags & CT_OPENED_BY_B ? c->key.port_a : c->key.port_b);
			const struct addr *opener = &c->key.a, *other = &c->key.b;
			if (flags & CT_OPENED_BY_B) {
				/* A branch: the verifier takes no computed offset. */
				asm volatile("");
				opener = &c->key.b;
				other = &c->key.a;
			}
			if (check_src)
				reason = policy_check_side(ctx, report, forward ? s->src_rule_set : s->dst_rule_set,
							   forward ? s->src_endpoint : s->dst_endpoint,
							   dst_identity, other,
							   p->v6, EGRESS, c->key.proto, port);
			if (!reason && check_dst)
				reason = policy_check_side(ctx, report, forward ? s->dst_rule_set : s->src_rule_set,
							   forward ? s->dst_endpoint : s->src_endpoint,
							   src_identity, opener,
							   p->v6, INGRESS, c->key.proto, port);
			/* The entry stays as it is, so policy is evaluated for every packet of the
			 * flow, in the direction of its opening, until it expires. If it were
			 * deleted, a reply in flight would open the flow from the other side, and
			 * packets that were just denied would pass as replies to that. */
			if (reason)
				return reason;
			if (update_flow_policy(&c->key, s, forward, (__u64)src_identity << 32 | dst_identity))
				return DROP_CT_FULL;
			c->replaced = true;
			flow = bpf_map_lookup_elem(&ct, &c->key);
			if (!flow)
				return 0;
		}
		/* Verdicts are reported in the direction of the opening, the outcome in the
		 * packet's own. */
		if (c->related) {
			report->ct_state = CT_STATE_RELATED;
			c->untranslate = (flags & CT_TRANSLATED) && !forward;
			return 0;
		}

		report->ct_state = forward ? CT_STATE_ESTABLISHED : CT_STATE_REPLY;
		if (forward)
			flow->forward_packets++;
		else
			flow->reverse_packets++;
		/* If the connection goes on, the reset did not end it: it was forged, or was not
		 * for this connection. If the connection did end, packets in flight get another
		 * reset in reply. */
		__u32 before = flags;
		if (unlikely(flags & CT_RST) && ct_is_ack(p)) {
			const __u32 reset = CT_RST | TCP_RST << CT_TCP_FLAGS_FORWARD | TCP_RST << CT_TCP_FLAGS_REVERSE;

			flags &= ~reset;
			flow->flags &= ~reset;
		}
		flags |= ct_packet_flags(p, forward);
		/* A client that acknowledges has seen a reply, by whichever path. */
		if (unlikely(flags & CT_DSR) && (p->tcp_flags & (TCP_SYN | TCP_ACK)) == TCP_ACK)
			flags |= CT_SEEN_REPLY;
		__u32 expires = c->now + ct_lifetime(p->proto, flags);
		if (flow->expires != expires) {
			if (ct_sample(&c->key, flow->expires, before, c->now))
				report->flow_update = 1;
			flow->expires = expires;
			c->extended = flags & CT_TRANSLATED;
		}
		__u32 updates = flags & (CT_SEEN_REPLY | CT_FIN_FORWARD | CT_FIN_REVERSE | CT_RST |
					0xFFu << CT_TCP_FLAGS_FORWARD | 0xFFu << CT_TCP_FLAGS_REVERSE);
		if ((flow->flags & updates) != updates) {
			flow->flags |= updates;
			report->flow_update = 1;
		}
		if (unlikely(flags & CT_EXCESS))
			ct_clear_excess(&c->key, forward == !!flow->src_owner ? s->src_endpoint : s->dst_endpoint);
		c->untranslate = (flags & CT_TRANSLATED) && !forward;
		return 0;
	}
	if (c->related)
		return DROP_UNKNOWN_RELATED;

	/* No flow: this packet opens one, whatever it is. An echo reply opens none. */
	report->ct_state = CT_STATE_NEW;
	report->flow_update = 1;
	int reason = policy_check_packet(ctx, report, s, p, c->port);
	if (reason || p->kind == KIND_ECHO_REPLY)
		return reason;

	return open_flow(&c->key, s, &c->nat, (swapped ? CT_OPENED_BY_B : 0) | ct_packet_flags(p, true), c->now);
}

/* Sets the key of a flow's CT_SERVICE entry, from its packet after translation. */
static __noinline bool backend_key_set(struct ct_key *key, const struct packet *p, const struct translation *nat)
{
	bool swapped = ct_key_set(key, nat->hairpin ? &p->dst : &p->src, &nat->service,
				  nat->client_port ? nat->client_port : p->sport, nat->port, p->proto);

	/* The service is the backend itself: a flow whose tuple collides. */
	key->collision = addr_equal(&nat->service, &p->dst) && nat->port == p->dport;
	return swapped;
}

/* Stores the backend of a flow, now that the flow has been let through. Returns 0 or a drop
 * reason. */
__noinline int store_backend(const struct packet *p, const struct translation *nat, const struct sides *s, __u32 now)
{
	struct ct_value entry = {};
	struct ct_key key;

	if (!p || !nat || !s)
		return DROP_MALFORMED;
	entry.flags = CT_SERVICE | (nat->hairpin ? CT_HAIRPIN : 0) | (nat->dsr ? CT_DSR : 0);
	if (backend_key_set(&key, p, nat))
		entry.flags |= CT_OPENED_BY_B;
	entry.nat = p->dst;
	entry.nat_port = p->dport;
	entry.client_port = nat->client_port ? p->sport : 0;
	entry.src_owner = s->src_owner;
	entry.dst_generation = s->dst_owner;
	entry.expires = now + ct_lifetime(p->proto, 0);
	if (bpf_map_update_elem(&ct, &key, &entry, BPF_ANY))
		return DROP_CT_FULL;
	return ct_account(&key, ct_account_of(s), now);
}

/* Deletes the stored backend of a flow, because another endpoint has its address by now: the next
 * packet chooses anew. Returns a drop reason. */
__noinline int delete_backend(const struct packet *p, const struct translation *nat)
{
	struct ct_key key;

	if (!p || !nat)
		return DROP_MALFORMED;
	backend_key_set(&key, p, nat);
	bpf_map_delete_elem(&ct, &key);
	return DROP_SERVICE_CHANGING;
}

/* As policy_check_flow, and keeps *f up to date. */
static __always_inline int ct_check_flow(struct __sk_buff *ctx, const struct packet *p, struct report *report, struct found *f)
{
	/* The destination is a different endpoint from the flow's. */
	if (f->flow && unlikely(ct_source_owner(f->flow, !f->c.swapped) != f->c.sides.dst_owner))
		f->flow = NULL;
	int reason = policy_check_flow(ctx, p, &f->c, f->flow, report);

	if (unlikely(f->c.replaced))
		f->flow = bpf_map_lookup_elem(&ct, &f->c.key);
	return reason;
}

/* As ct_check_flow, and translates replies to come from the service. */
static __always_inline int ct_check_found(struct __sk_buff *ctx, struct packet *p, struct report *report, struct found *f)
{
	const struct sides *s = &f->c.sides;

	if (unlikely(f->c.nat.cached && f->c.backend_owner != s->dst_owner))
		return delete_backend(p, &f->c.nat);
	int reason = ct_check_flow(ctx, p, report, f);

	/* An entry that replaces an expired one counts too, until the agent's next count. */
	if (!reason && unlikely(report->ct_state == CT_STATE_NEW && p->kind != KIND_ECHO_REPLY))
		ct_account(&f->c.key, ct_account_of(s), f->c.now);
	if (!reason && unlikely(f->c.nat.fresh))
		reason = store_backend(p, &f->c.nat, s, f->c.now);
	else if (unlikely(f->c.extended) && f->flow)
		mirror_expiry(&f->c.key, f->flow);
	if (likely(reason || !f->c.untranslate || !f->flow)) /* the last for the verifier */
		return reason;
	if (unlikely(f->c.related))
		return untranslate_error(ctx, p, &f->c.key, f->flow);
	return untranslate(ctx, p, f->flow);
}

/* Looks up the flow of a packet between the sides of *f, then works as ct_check_found. */
static __always_inline int ct_check(struct __sk_buff *ctx, struct packet *p, struct report *report, struct found *f)
{
	report->src_identity = f->c.sides.src_identity;
	report->dst_identity = f->c.sides.dst_identity;
	int reason = find(ctx, p, report, f);

	if (reason)
		return reason;
	return ct_check_found(ctx, p, report, f);
}
