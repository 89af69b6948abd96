/* The ports of fragments. Only a datagram's first fragment has them, so they are remembered for the
 * later ones.
 *
 * What is remembered has a place, and a place belongs to the endpoint that sends the datagram or is
 * sent it, or to the node if that is neither. Another datagram that comes to the same place takes
 * it, and whose it was is lost: so whoever sends first fragments without end takes his own places
 * only. An endpoint has as many for what it sends as for what it is sent. These are told apart by
 * the peer first, so that a peer who floods an endpoint takes a part of them; those that differ in
 * the peer's address alone may meet. What has a place is known by the whole of it: a later fragment
 * has the ports of its own first one or none.
 *
 * Places are made as they are used, and the agent removes those that nobody has used lately. All
 * there can be fit into the map, unless pods by the dozen fill theirs at once: then there is no
 * room for new ones, and datagrams that need one are lost, but none that has one. */
#pragma once
#include "clock.h"
#include "config.h"
#include "packet.h"

/* Ticks for which the later fragments of a datagram may come: RFC 8200 has them come within 60
 * s. */
enum { FRAGMENT_LIFETIME = 56 };

/* Whose the places are of what an endpoint sends (EGRESS) or is sent (INGRESS); 0 for what is the
 * node's. */
static __always_inline __u64 fragments_of(const struct endpoint *ep, __u32 direction)
{
	return (__u64)direction << 32 | ep->incarnation;
}

/* Sets the place of a datagram. Identifications that a sender counts upwards do not meet. */
static __always_inline void fragment_key_set(struct frag_key *key, const struct packet *p, __u64 places)
{
	__u32 bits = (__u32)places ? cfg.fragment_bits : cfg.fragment_node_bits;
	__u32 number = p->proto + (p->v6 ? ntohl(p->fragment_id) : ntohs(p->fragment_id));
	__u32 in_group = bits / 2;

	key->owner = places;
	key->direction = places >> 32;
	key->pad = 0;
	if (key->direction == EGRESS)
		number += addr_hash(&p->dst);
	else
		number = addr_hash(&p->src) << in_group | (number & ((1 << in_group) - 1));
	key->slot = number & ((1 << bits) - 1);
}

/* Remembers the ports of a first fragment. If there is no room, the later ones are dropped and
 * counted as such. */
static __noinline void remember_fragment(const struct packet *p, __u64 places)
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

	fragment_key_set(&key, p, places);
	bpf_map_update_elem(&fragments, &key, &value, BPF_ANY);
}

/* Gives a later fragment the ports of the first. Returns 0 or a drop reason. */
static __noinline int recall_fragment(struct packet *p, __u64 places)
{
	struct frag_key key;

	fragment_key_set(&key, p, places);
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

/* Reads the transport header after parse_network; of a fragment, with the places given. Returns 0
 * or a drop reason. */
__noinline int parse_transport(struct __sk_buff *ctx, struct packet *p, __u64 places)
{
	if (!p)
		return DROP_MALFORMED;
	if (unlikely(p->fragment == FRAGMENT_LATER))
		return recall_fragment(p, places);

	int reason = parse_l4(ctx, p);
	/* Of errors, later fragments say nothing about the flow meant. */
	if (unlikely(p->fragment) && !reason && p->kind != KIND_ERROR && p->kind != KIND_NEIGHBOUR)
		remember_fragment(p, places);
	return reason;
}
