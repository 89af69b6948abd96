/* The verdict of a rule set: see "How a packet is judged" in internal/datapath/doc.go. */
#pragma once
#include "maps.h"

/* What a rule of a tier other than the ordinary one does. Of two in one place the smaller one
 * counts. */
enum action {
	ACTION_NONE = 0,
	ACTION_DENY,
	ACTION_PASS,
	ACTION_ACCEPT,
};
#define ACTION_MASK 3

/* What the entries that match a packet say together, in one register: bits of enum ordinary that
 * were seen, and the first rule of each tier, less one, so that none is the largest. */
#define SAYS_ALLOW (1ull << ORDINARY_ALLOW)
#define SAYS_DENY (1ull << ORDINARY_DENY)
#define SAYS_NOTHING 0xFFFFFFFF00000000ull
/* Rides along: what no entry decides is denied. */
#define SAYS_ENFORCED (1ull << 8)
/* Likewise: what is denied is not refused. */
#define SAYS_AUDIT (1ull << 9)

/* Beside the number of a rule set: its endpoint is in audit mode. No number has this bit. */
#define RULE_SET_AUDIT (1u << 31)

/* What of a packet an entry has matched. The numbers are those that flows have on the wire. */
enum match {
	MATCH_NONE = 0,
	MATCH_L3_ONLY,
	MATCH_L3_L4,
	MATCH_L4_ONLY,
	MATCH_ALL,
	MATCH_L3_PROTO,
	MATCH_PROTO_ONLY,
};
#define MATCH_MASK 7

/* Where in the register is what the first entry has matched that says a thing, three bits each. */
enum {
	BY_ADMIN = 12,
	BY_ALLOW = 15,
	BY_DENY = 18,
	BY_BASELINE = 21,
};

/* A verdict is a drop reason, or 0, and above it what has matched of the packet. */
#define VERDICT_MATCH_SHIFT 8
#define VERDICT_REASON_MASK 0xFF
/* Beside a verdict that refuses: the packet passes all the same. */
#define AUDITED (1 << 16)

/* What policy_verdict is asked, in one word: a global function takes five arguments. */
#define ABOUT_EGRESS (1u << 24)
#define ABOUT_V6 (1u << 25)

static __always_inline __u32 about(__u32 direction, bool v6, __u8 proto, __u16 port)
{
	return (direction == EGRESS ? ABOUT_EGRESS : 0) | (v6 ? ABOUT_V6 : 0) | (__u32)proto << 16 | port;
}

static __always_inline void policy_key_set(struct policy_key *key, __u32 rule_set, __u32 identity, __u32 direction)
{
	memset(key, 0, sizeof(*key));
	key->rule_set = rule_set;
	key->identity = identity;
	key->direction = direction;
}

/* Adds what an entry says that has matched so. */
static __always_inline __u64 policy_join(__u64 says, const struct policy_value *entry, __u32 match)
{
	__u16 admin = says >> 48, baseline = says >> 32;
	__u16 more_admin = entry->admin - 1, more_baseline = entry->baseline - 1;
	__u32 rest = says;

	if (more_admin < admin) {
		admin = more_admin;
		rest = (rest & ~(MATCH_MASK << BY_ADMIN)) | match << BY_ADMIN;
	}
	if (more_baseline < baseline) {
		baseline = more_baseline;
		rest = (rest & ~(MATCH_MASK << BY_BASELINE)) | match << BY_BASELINE;
	}
	if (entry->ordinary == ORDINARY_ALLOW && !(rest & SAYS_ALLOW))
		rest |= match << BY_ALLOW;
	if (entry->ordinary == ORDINARY_DENY && !(rest & SAYS_DENY))
		rest |= match << BY_DENY;
	return (__u64)admin << 48 | (__u64)baseline << 32 | rest | 1ull << (entry->ordinary & 3);
}

/* What an entry of a shape has matched. */
static __always_inline __u32 policy_matched(bool peer, __u32 shape)
{
	if (shape == SHAPE_ANY_PROTO)
		return peer ? MATCH_L3_ONLY : MATCH_ALL;
	if (shape == SHAPE_ANY_PORT)
		return peer ? MATCH_L3_PROTO : MATCH_PROTO_ONLY;
	return peer ? MATCH_L3_L4 : MATCH_L4_ONLY;
}

/* Adds what the most specific entry of the identity in the key (0: entries of any) says, probing
 * only for the shapes that the rule set has. A global function, as it is called three times. */
__noinline __u64 policy_match(__u64 says, struct policy_key *key, __u32 what, __u32 shapes)
{
	if (!key)
		return says;
	key->proto = what >> 16;
	for (__u32 i = 0; i <= SHAPE_ANY_PROTO; i++) {
		/* Hardly a rule has a range of ports. */
		if (i == 1 && !(shapes & SHAPES_OF_RANGES))
			i = SHAPE_ANY_PORT;
		if (!(shapes >> i & 1))
			continue;
		if (i == SHAPE_ANY_PROTO) {
			key->proto = 0;
			key->port = 0;
			key->port_bits = 0;
		} else {
			key->port = what & (0xFFFF << i) & 0xFFFF;
			key->port_bits = 16 - i;
		}
		struct policy_value *entry = bpf_map_lookup_elem(&policy, key);
		if (entry)
			return policy_join(says, entry, policy_matched(key->identity, i));
	}
	return says;
}

/* Finds the identity of the block that an address is in; 0 if it is in none. */
static __always_inline __u32 block_of(const struct prefix *key)
{
	__u32 *block = bpf_map_lookup_elem(&blocks, key);

	return block ? *block : 0;
}

static __always_inline int policy_by(__u64 says, int reason, __u32 by)
{
	return reason | ((says >> by) & MATCH_MASK) << VERDICT_MATCH_SHIFT;
}

/* Asks the tiers in their order. Returns a verdict. */
static __always_inline int policy_decide(__u64 says)
{
	__u32 action = ((says >> 48) + 1) & ACTION_MASK;

	if (action == ACTION_ACCEPT)
		return policy_by(says, FORWARDED, BY_ADMIN);
	if (action == ACTION_DENY)
		return policy_by(says, DROP_POLICY_DENY, BY_ADMIN);
	if (says & SAYS_DENY)
		return policy_by(says, DROP_POLICY_DENY, BY_DENY);
	if (says & SAYS_ALLOW)
		return policy_by(says, FORWARDED, BY_ALLOW);
	action = ((says >> 32) + 1) & ACTION_MASK;
	if (action == ACTION_ACCEPT)
		return policy_by(says, FORWARDED, BY_BASELINE);
	if (action == ACTION_DENY)
		return policy_by(says, DROP_POLICY_DENY, BY_BASELINE);
	return says & SAYS_ENFORCED ? DROP_POLICY_DENIED : FORWARDED;
}

/* Judges a packet of a peer, by its identity and, if the rule set names any blocks, by its address
 * (the two halves of a struct addr). In what the port is in host byte order, or the ICMP type.
 * Returns a verdict, beside AUDITED if the policy refuses and is not to. A global function:
 * verified once, however often it is called. */
__noinline int policy_verdict(__u32 rule_set, __u32 identity, __u64 address0, __u64 address1, __u32 what)
{
	__u64 says = SAYS_NOTHING | (rule_set & RULE_SET_AUDIT ? SAYS_AUDIT : 0);

	/* The callers leave little room on the stack: both keys share theirs, the address is in its
	 * place from the start, and what the rule set says is read when it is needed. */
	union {
		struct prefix prefix;
		struct policy_key policy;
	} key;

	prefix_set(&key.prefix, address0, address1, what & ABOUT_V6);
	rule_set &= ~RULE_SET_AUDIT;
	struct rule_set *rules = bpf_map_lookup_elem(&rule_sets, &rule_set);

	if (!rules)
		return DROP_NO_RULE_SET;
	__u32 direction = what & ABOUT_EGRESS ? EGRESS : INGRESS;
	const __u32 *shapes = rules->shapes[direction];

	says |= rules->enforced[direction] ? SAYS_ENFORCED : 0;

	if (shapes[PEER_BLOCK]) {
		__u32 block = block_of(&key.prefix);

		if (block) {
			policy_key_set(&key.policy, rule_set, block, direction);
			says = policy_match(says, &key.policy, what, shapes[PEER_BLOCK]);
		}
	}
	policy_key_set(&key.policy, rule_set, identity, direction);
	/* The entries of any are not those of a peer that nobody knows (0). */
	if (identity)
		says = policy_match(says, &key.policy, what, shapes[PEER_ONE]);
	key.policy.identity = 0;
	says = policy_match(says, &key.policy, what, shapes[PEER_ANY]);
	int verdict = policy_decide(says);

	return verdict & VERDICT_REASON_MASK && says & SAYS_AUDIT ? verdict | AUDITED : verdict;
}
