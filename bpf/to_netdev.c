//go:build ignore

/* Packets that the node sends out: egress of the native device. A process of the node that is a service's
 * backend answers under its own port; the client is to see the service's. */
#include "lib/forward.h"
#include "lib/nodeport.h"

static __always_inline int to_netdev_packet(struct __sk_buff *ctx, struct report *report)
{
	struct sides sides = {.src_identity = ID_HOST};
	struct found found = {};
	struct eth_header eth;
	struct packet p;
	int reason;

	report->outcome = OUTCOME_STACK;
	if (!cfg.node_port || READ(ctx, 0, &eth) || parse_network(ctx, &p, eth.type))
		return TC_ACT_OK;
	if (!is_host(&p.src, p.v6) || parse_transport(ctx, &p) || (p.kind != KIND_FLOW && p.kind != KIND_ERROR))
		return TC_ACT_OK;
	if (cfg.tunnel_port && p.proto == PROTO_UDP && p.dport == cfg.tunnel_port)
		return TC_ACT_OK;
	if (find(ctx, &p, &sides, report, &found))
		return TC_ACT_OK;
	if (!ct_alive(found.flow, found.now) || !(found.flow->flags & CT_TRANSLATED) ||
	    !!(found.flow->flags & CT_OPENED_BY_B) == found.swapped)
		return TC_ACT_OK;
	sides.dst_identity = found.flow->src_identity;
	reason = judge_found(ctx, &p, &sides, report, &found);
	if (reason)
		return -reason;
	/* The port is the client's choice. */
	return for_tunnel(&p) ? -DROP_TUNNEL_NOT_FROM_NODE : TC_ACT_OK;
}

SEC("tc")
int to_netdev(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_TO_NETDEV, .direction = EGRESS};

	return finish(ctx, &report, to_netdev_packet(ctx, &report));
}

char license_name[] SEC("license") = "Apache-2.0";
