/* The verdict of a rule set: see "How a packet is judged" in internal/datapath/doc.go. */
#pragma once
#include "maps.h"

enum match {
	MATCH_NONE = 0,
	MATCH_ALLOW,
	MATCH_DENY,
};

/* Finds the most specific entry of one identity (0: entries of any), probing only for the shapes
 * that the rule set has. */
static __always_inline int policy_match(__u32 rule_set, __u32 identity, __u32 direction, __u32 proto,
					__u32 port, __u32 shapes)
{
	struct policy_key key = {
		.rule_set = rule_set,
		.identity = identity,
		.direction = direction,
		.proto = proto,
	};

	for (__u32 i = 0; i <= SHAPE_ANY_PROTO && shapes; i++, shapes >>= 1) {
		if (!(shapes & 1))
			continue;
		if (i == SHAPE_ANY_PROTO) {
			key.proto = 0;
			key.port = 0;
			key.port_bits = 0;
		} else {
			key.port = port & (0xFFFF << i);
			key.port_bits = 16 - i;
		}
		struct policy_value *entry = bpf_map_lookup_elem(&policy, &key);
		if (entry)
			return entry->deny ? MATCH_DENY : MATCH_ALLOW;
	}
	return MATCH_NONE;
}

/* Judges a packet of a peer in one direction. Port is in host byte order, or the ICMP type. Returns 0
 * or a drop reason. A global function: verified once, however often it is called. */
__noinline int policy_verdict(__u32 rule_set, __u32 identity, __u32 direction, __u32 proto, __u32 port)
{
	struct rule_set *rules = bpf_map_lookup_elem(&rule_sets, &rule_set);

	if (!rules || direction > EGRESS)
		return DROP_NO_RULE_SET;
	__u32 one = rules->shapes[direction][0];
	__u32 any = rules->shapes[direction][1];
	int enforced = rules->enforced[direction];
	int match_one = MATCH_NONE, match_any = MATCH_NONE;

	/* The entries of any are not those of a peer that nobody knows (0). */
	if (one && identity)
		match_one = policy_match(rule_set, identity, direction, proto, port, one);
	if (match_one == MATCH_DENY)
		return DROP_POLICY_DENY;
	if (any)
		match_any = policy_match(rule_set, 0, direction, proto, port, any);
	if (match_any == MATCH_DENY)
		return DROP_POLICY_DENY;
	if (match_one == MATCH_ALLOW || match_any == MATCH_ALLOW)
		return FORWARDED;
	return enforced ? DROP_POLICY_DENIED : FORWARDED;
}
