//go:build ignore

/* Packets that the host's network stack sends to a pod: egress of the host side of its veth pair.
 * They come from the host itself, from outside the cluster, and with native routing from other
 * nodes; what comes from local pods or the overlay is put into the pod without passing here. */
#include "lib/forward.h"

static __always_inline int to_pod_packet(struct __sk_buff *ctx, struct report *report)
{
	__u32 ifindex = ctx->ifindex;
	struct endpoint *ep = bpf_map_lookup_elem(&endpoints, &ifindex);
	struct found found = {};
	struct eth_header eth;
	struct packet p;
	int reason;

	if (!ep)
		return -DROP_NO_ENDPOINT;
	report->endpoint = ep->id;
	report->dst_identity = ep->identity;
	if (READ(ctx, 0, &eth))
		return -DROP_MALFORMED;
	/* The host's own ARP requests and neighbour solicitations; a pod cannot cause them. */
	if (eth.type == htons(ETH_P_ARP)) {
		report->outcome = OUTCOME_ENDPOINT;
		return TC_ACT_OK;
	}
	reason = parse_network(ctx, &p, eth.type);
	if (reason)
		return -reason;
	if (addr_is_multicast(&p.dst, p.v6))
		return -DROP_MULTICAST;
	if (!addr_equal(&p.dst, p.v6 ? &ep->ip6 : &ep->ip4))
		return -DROP_NO_ENDPOINT;
	reason = endpoint_ready(ep);
	if (reason)
		return -reason;
	reason = parse_transport(ctx, &p, frag_owner_of(ep, INGRESS));
	if (reason)
		return -reason;
	reason = stack_source(ctx, &p, &found.c.sides);
	if (reason)
		return -reason;
	side_dst(&found.c.sides, ep);
	reason = ct_check(ctx, &p, report, &found);
	if (reason)
		return -reason;
	report->outcome = OUTCOME_ENDPOINT;
	return TC_ACT_OK;
}

SEC("tc")
int to_pod(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_TO_POD, .direction = INGRESS};

	return finish(ctx, &report, to_pod_packet(ctx, &report));
}

char license_name[] SEC("license") = "Apache-2.0";
