/* The verdict of a rule set: see "Policy verdicts" in internal/datapath/doc.go. */
#pragma once
#include "config.h"
#include "maps.h"

/* What a rule of a tier other than the ordinary one does. Of two at one priority the smaller one
 * wins. */
enum action {
	ACTION_NONE = 0,
	ACTION_DENY,
	ACTION_PASS,
	ACTION_ACCEPT,
};
#define ACTION_MASK 3

/* The combined result of the entries that match a packet, in one register: the bits of enum
 * ordinary that were seen, and the first rule of each tier, less one, so that none is the
 * largest. */
#define RESULT_ALLOW (1ull << ORDINARY_ALLOW)
#define RESULT_DENY (1ull << ORDINARY_DENY)
#define RESULT_EMPTY 0xFFFFFFFF00000000ull
/* Also in the register: default deny. */
#define RESULT_ENFORCED (1ull << 8)

/* A flag beside the ID of a rule set: its endpoint is in audit mode. No ID has this bit. */
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

/* Where the register has what the entry matched that set a part of the result, three bits each. */
enum {
	MATCH_SHIFT_ADMIN = 12,
	MATCH_SHIFT_ALLOW = 15,
	MATCH_SHIFT_DENY = 18,
	MATCH_SHIFT_BASELINE = 21,
};

/* A verdict is a drop reason, or 0, and above it what has matched of the packet. */
#define VERDICT_MATCH_SHIFT 8
#define VERDICT_REASON_MASK 0xFF
/* A flag beside a verdict that denies: in audit mode the packet passes. */
#define AUDITED (1 << 16)

/* The packet's part of a policy lookup in one word: a global function takes five arguments. */
#define QUERY_EGRESS (1u << 24)
#define QUERY_V6 (1u << 25)
/* Added to it: audit mode, in which denied packets pass. */
#define QUERY_AUDIT (1u << 26)

static __always_inline __u32 policy_query(__u32 direction, bool v6, __u8 proto, __u16 port)
{
	return (direction == EGRESS ? QUERY_EGRESS : 0) | (v6 ? QUERY_V6 : 0) | (__u32)proto << 16 | port;
}

static __always_inline void policy_key_set(struct policy_key *key, __u32 rule_set, __u32 identity, __u32 direction)
{
	memset(key, 0, sizeof(*key));
	key->rule_set = rule_set;
	key->identity = identity;
	key->direction = direction;
}

/* Merges a matching entry into the result. */
static __always_inline __u64 policy_merge(__u64 result, const struct policy_value *entry, __u32 match)
{
	__u16 admin = result >> 48, baseline = result >> 32;
	__u16 more_admin = entry->admin - 1, more_baseline = entry->baseline - 1;
	__u32 rest = result;

	if (more_admin < admin) {
		admin = more_admin;
		rest = (rest & ~(MATCH_MASK << MATCH_SHIFT_ADMIN)) | match << MATCH_SHIFT_ADMIN;
	}
	if (more_baseline < baseline) {
		baseline = more_baseline;
		rest = (rest & ~(MATCH_MASK << MATCH_SHIFT_BASELINE)) | match << MATCH_SHIFT_BASELINE;
	}
	if (entry->ordinary == ORDINARY_ALLOW && !(rest & RESULT_ALLOW))
		rest |= match << MATCH_SHIFT_ALLOW;
	if (entry->ordinary == ORDINARY_DENY && !(rest & RESULT_DENY))
		rest |= match << MATCH_SHIFT_DENY;
	return (__u64)admin << 48 | (__u64)baseline << 32 | rest | 1ull << (entry->ordinary & 3);
}

/* What an entry of a key class has matched. */
static __always_inline __u32 policy_matched(bool peer, __u32 class)
{
	if (class == KEY_CLASS_ANY_PROTO)
		return peer ? MATCH_L3_ONLY : MATCH_ALL;
	if (class == KEY_CLASS_ANY_PORT)
		return peer ? MATCH_L3_PROTO : MATCH_PROTO_ONLY;
	return peer ? MATCH_L3_L4 : MATCH_L4_ONLY;
}

/* Merges the most specific entry of the identity in the key (0: entries of any) into the result,
 * probing only for the key classes that the rule set has. A global function, as it is called three
 * times. */
__noinline __u64 policy_match(__u64 result, struct policy_key *key, __u32 query, __u32 classes)
{
	if (!key)
		return result;
	key->proto = query >> 16;
	for (__u32 i = 0; i <= KEY_CLASS_ANY_PROTO; i++) {
		/* Port ranges are rare. */
		if (i == 1 && !(classes & KEY_CLASSES_WITH_RANGE))
			i = KEY_CLASS_ANY_PORT;
		if (!(classes >> i & 1))
			continue;
		if (i == KEY_CLASS_ANY_PROTO) {
			key->proto = 0;
			key->port = 0;
			key->port_bits = 0;
		} else {
			key->port = query & (0xFFFF << i) & 0xFFFF;
			key->port_bits = 16 - i;
		}
		struct policy_value *entry = bpf_map_lookup_elem(&policy, key);
		if (entry)
			return policy_merge(result, entry, policy_matched(key->identity, i));
	}
	return result;
}

/* Finds the identity of the block that an address is in; 0 if it is in none. */
static __always_inline __u32 block_of(const struct prefix *key)
{
	__u32 *block = bpf_map_lookup_elem(&blocks, key);

	return block ? *block : 0;
}

static __always_inline int policy_make_verdict(__u64 result, int reason, __u32 shift)
{
	return reason | ((result >> shift) & MATCH_MASK) << VERDICT_MATCH_SHIFT;
}

/* Decides by the tiers in their order. Returns a verdict. */
static __always_inline int policy_decide(__u64 result)
{
	__u32 action = ((result >> 48) + 1) & ACTION_MASK;

	if (action == ACTION_ACCEPT)
		return policy_make_verdict(result, FORWARDED, MATCH_SHIFT_ADMIN);
	if (action == ACTION_DENY)
		return policy_make_verdict(result, DROP_POLICY_DENY, MATCH_SHIFT_ADMIN);
	if (result & RESULT_DENY)
		return policy_make_verdict(result, DROP_POLICY_DENY, MATCH_SHIFT_DENY);
	if (result & RESULT_ALLOW)
		return policy_make_verdict(result, FORWARDED, MATCH_SHIFT_ALLOW);
	action = ((result >> 32) + 1) & ACTION_MASK;
	if (action == ACTION_ACCEPT)
		return policy_make_verdict(result, FORWARDED, MATCH_SHIFT_BASELINE);
	if (action == ACTION_DENY)
		return policy_make_verdict(result, DROP_POLICY_DENY, MATCH_SHIFT_BASELINE);
	return result & RESULT_ENFORCED ? DROP_POLICY_DENIED : FORWARDED;
}

/* Looks up the policy verdict for a packet by its peer's identity and, if the rule set names any
 * blocks, address (the two halves of a struct addr). The port in the query is in host byte order,
 * or the ICMP type. Returns a verdict, with AUDITED if the policy denies in audit mode. A global
 * function: verified once, however often it is called. */
__noinline int policy_verdict(__u32 rule_set, __u32 identity, __u64 address0, __u64 address1, __u32 query)
{
	__u64 result = RESULT_EMPTY;

	/* The callers leave little room on the stack: both keys share it, the address is written
	 * first, and the rule set is read when it is needed. */
	union {
		struct prefix prefix;
		struct policy_key policy;
	} key;

	if (identity - ID_ALLOCATED_MIN < ID_LOCAL_MIN - ID_ALLOCATED_MIN) {
		/* Of a peer whose identity the node has not observed yet nothing is known: rules
		 * have entries for all of these. The identity waits on the stack that is there
		 * anyway: the registers are full during the call. */
		volatile __u32 *waiting = &key.prefix.addr[0];

		*waiting = identity;
		key.prefix.bits = identity / UNKNOWN_PER_WORD;
		__u64 *word = bpf_map_lookup_elem(&unknown_identities, &key.prefix.bits);

		identity = *waiting;
		if (word && *word >> identity % UNKNOWN_PER_WORD & 1)
			identity = ID_UNOBSERVED;
	}
	prefix_set(&key.prefix, address0, address1, query & QUERY_V6);
	query |= (rule_set & RULE_SET_AUDIT) / (RULE_SET_AUDIT / QUERY_AUDIT);
	rule_set &= ~RULE_SET_AUDIT;
	struct rule_set *rules = bpf_map_lookup_elem(&rule_sets, &rule_set);

	if (!rules)
		return DROP_NO_RULE_SET;
	__u32 direction = query & QUERY_EGRESS ? EGRESS : INGRESS;
	const __u32 *classes = rules->key_classes[direction];

	result |= rules->enforced[direction] ? RESULT_ENFORCED : 0;

	if (classes[PEER_BLOCK]) {
		__u32 block = block_of(&key.prefix);

		if (block) {
			policy_key_set(&key.policy, rule_set, block, direction);
			result = policy_match(result, &key.policy, query, classes[PEER_BLOCK]);
		}
	}
	policy_key_set(&key.policy, rule_set, identity, direction);
	/* Entries for any peer do not match an unknown peer (0) as its own. */
	if (identity)
		result = policy_match(result, &key.policy, query, classes[PEER_ONE]);
	key.policy.identity = 0;
	result = policy_match(result, &key.policy, query, classes[PEER_ANY]);
	int verdict = policy_decide(result);

	return verdict & VERDICT_REASON_MASK && query & QUERY_AUDIT ? verdict | AUDITED : verdict;
}
