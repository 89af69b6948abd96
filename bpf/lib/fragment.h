/* The ports of fragments. Only a datagram's first fragment has them, so they are stored for the
 * later ones.
 *
 * A first fragment takes a slot of the endpoint that sends the datagram or is sent it, or of the
 * node if that is neither, and overwrites the datagram that had the slot: a flood of first
 * fragments takes the slots of its own endpoint only. An endpoint has as many for what it sends as
 * for what it is sent. The latter are grouped by the peer's address: a peer who floods an endpoint
 * takes one group of them, and peers whose addresses hash alike share one. A slot is compared with
 * the whole of a later fragment's identity: it gets the ports of its own first one or none.
 *
 * Slots are made as they are used, and the agent removes those that have not been used lately. The
 * map has room for all of them unless dozens of pods fill theirs at once: then there is no room for
 * new ones, and datagrams that need one are dropped, but none that has one. */
#pragma once
#include "clock.h"
#include "config.h"
#include "packet.h"

/* Ticks for which the later fragments of a datagram may come: RFC 8200 has them come within 60
 * s. */
enum { FRAGMENT_LIFETIME = 56 };

/* The owner of the slots for what an endpoint sends (EGRESS) or is sent (INGRESS); 0 is the
 * node. */
static __always_inline __u64 frag_owner_of(const struct endpoint *ep, __u32 direction)
{
	return (__u64)direction << 32 | ep->incarnation;
}

/* Sets the slot of a datagram. Identifications that a sender counts upwards do not collide. */
static __always_inline void fragment_key_set(struct frag_key *key, const struct packet *p, __u64 owner)
{
	__u32 bits = (__u32)owner ? cfg.fragment_bits : cfg.fragment_node_bits;
	__u32 number = p->proto + (p->v6 ? ntohl(p->fragment_id) : ntohs(p->fragment_id));
	__u32 in_group = bits / 2;

	key->owner = owner;
	key->direction = owner >> 32;
	key->pad = 0;
	if (key->direction == EGRESS)
		number += addr_hash(&p->dst);
	else
		number = addr_hash(&p->src) << in_group | (number & ((1 << in_group) - 1));
	key->slot = number & ((1 << bits) - 1);
}

/* Stores the ports of a first fragment. If there is no room, the later ones are dropped and counted
 * as such. */
static __noinline void store_fragment(const struct packet *p, __u64 owner)
{
	struct frag_value value = {
		.src = p->src,
		.dst = p->dst,
		.id = p->fragment_id,
		.seen = ct_now(),
		.sport = p->sport,
		.dport = p->dport,
		.proto = p->proto,
		.kind = p->kind,
		.icmp_type = p->icmp_type,
	};
	struct frag_key key;

	fragment_key_set(&key, p, owner);
	bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
}

/* Gives a later fragment the ports of the first. Returns 0 or a drop reason. */
static __noinline int lookup_fragment(struct packet *p, __u64 owner)
{
	struct frag_key key;

	fragment_key_set(&key, p, owner);
	struct frag_value *first = bpf_map_lookup_elem(&fragments, &key);
	if (!first || first->id != p->fragment_id || first->proto != p->proto || !addr_equal(&first->src, &p->src) ||
	    !addr_equal(&first->dst, &p->dst) || ct_now() - first->seen > FRAGMENT_LIFETIME)
		return DROP_FRAGMENT_UNKNOWN;
	p->sport = first->sport;
	p->dport = first->dport;
	p->kind = first->kind;
	p->icmp_type = first->icmp_type;
	return 0;
}

/* Reads the transport header after parse_network; of a fragment, with the slots of an owner.
 * Returns 0 or a drop reason. */
__noinline int parse_transport(struct __sk_buff *ctx, struct packet *p, __u64 owner)
{
	if (!p)
		return DROP_MALFORMED;
	if (unlikely(p->fragment == FRAGMENT_LATER))
		return lookup_fragment(p, owner);

	int reason = parse_l4(ctx, p);
	/* The packet that an ICMP error is about is in the first fragment. */
	if (unlikely(p->fragment) && !reason && p->kind != KIND_ERROR && p->kind != KIND_NEIGHBOUR)
		store_fragment(p, owner);
	return reason;
}
