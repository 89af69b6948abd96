//go:build ignore

/* Packets that come by a device of the node's that is not the one that joins the nodes: ingress.
 * Clients outside find services at the addresses that it has. All else is the stack's: of the
 * cluster nobody comes this way. */
#include "lib/dsr.h"
#include "lib/nodeport.h"

static __always_inline int from_device_packet(struct __sk_buff *ctx, struct report *report)
{
	int action = NOT_A_SERVICE;
	struct packet p;
	__u16 type;

	report->outcome = OUTCOME_STACK;
	if (!cfg.node_port || is_tagged(ctx) || frame_type(ctx, &type))
		return TC_ACT_OK;
	if (ctx->pkt_type != PACKET_HOST || parse_network(ctx, &p, type) || !is_lb_proto(&p) || parse_transport(ctx, &p, frag_owner(&p)))
		return TC_ACT_OK;
	if (p.kind == KIND_FLOW)
		action = node_port(ctx, &p, report);
	else if (p.kind == KIND_ERROR)
		action = node_port_error(ctx, &p, report);
	return action == NOT_A_SERVICE ? TC_ACT_OK : action;
}

SEC("tc")
int from_device(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_FROM_NETDEV, .direction = INGRESS};

	return finish(ctx, &report, from_device_packet(ctx, &report));
}

/* Also under the GPL, see LICENSE.GPL-2.0 here: the kernel shows nobody else where its routes
 * lead. */
char license_name[] SEC("license") = "GPL";
