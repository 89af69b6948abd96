//go:build ignore

/* Packets that the host sends to pods of other nodes: egress of the host's own device, through
 * which routes lead there when nodes are joined by a tunnel. */
#include "lib/forward.h"

static __always_inline int from_host_packet(struct __sk_buff *ctx, struct report *report)
{
	struct ipcache_value *remote;
	struct sides sides = {};
	struct eth_header eth;
	struct packet p;
	int reason;

	report->outcome = OUTCOME_STACK;
	if (!cfg.tunnel)
		return TC_ACT_OK;
	if (READ(ctx, 0, &eth))
		return -DROP_MALFORMED;
	if (eth.type != htons(ETH_P_IP) && eth.type != htons(ETH_P_IPV6))
		return TC_ACT_OK;
	reason = parse_network(ctx, &p, eth.type);
	if (reason)
		return -reason;
	/* Link-local and loopback traffic of the host itself. */
	if (addr_is_multicast(&p.dst, p.v6) || is_host(&p.dst, p.v6))
		return TC_ACT_OK;
	/* The host may forward for others, whose packets must not get the host's identity. */
	reason = stack_source(ctx, &p, &sides);
	report->src_identity = sides.src_identity;
	if (reason)
		return -reason;
	remote = ipcache_lookup(&p.dst, p.v6);
	if (!has_tunnel(remote))
		return -DROP_NO_TUNNEL;
	report->dst_identity = remote->identity;
	/* CIDR identities are local to a node: the receiver maps the address to its own. */
	return encapsulate(ctx, remote, is_outside(report->src_identity) ? world_identity(p.v6) : report->src_identity, report);
}

SEC("tc")
int from_host(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_FROM_HOST, .direction = EGRESS};

	return finish(ctx, &report, from_host_packet(ctx, &report));
}

char license_name[] SEC("license") = "Apache-2.0";
