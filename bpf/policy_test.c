//go:build ignore

/* Calls policy_verdict with the arguments in the packet's bytes, so that a test can try thousands.
 * Also the empty program, the baseline of the benchmarks. */
#include "lib/packet.h"
#include "lib/policy.h"

struct question {
	__u32 rule_set;
	__u32 identity;
	__u32 direction;
	__u32 proto;
	__u32 port;
	__u32 v6;
	struct addr peer;
};

SEC("tc")
int ask_policy(struct __sk_buff *ctx)
{
	struct question q;

	if (bpf_skb_load_bytes(ctx, ETH_LEN, &q, sizeof(q)))
		return -1;
	return policy_verdict(q.rule_set, q.identity, q.peer.d[0], q.peer.d[1],
			      policy_query(q.direction, q.v6, q.proto, q.port));
}

SEC("tc")
int empty(struct __sk_buff *ctx __attribute__((unused)))
{
	return TC_ACT_OK;
}

char license_name[] SEC("license") = "Apache-2.0";
