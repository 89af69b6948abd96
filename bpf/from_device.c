//go:build ignore

/* Packets that arrive on a device of the node other than the native device: ingress. Its addresses
 * may be frontends for clients outside the cluster, and backends outside may answer here. All else
 * goes to the stack: no traffic of the cluster arrives here. */
#include "lib/dsr.h"
#include "lib/nodeport.h"

static __always_inline int from_device_packet(struct __sk_buff *ctx, struct report *report)
{
	struct packet p;
	__u16 type;
	int action;

	report->outcome = OUTCOME_STACK;
	if (!cfg.node_port || is_tagged(ctx) || frame_type(ctx, &type))
		return TC_ACT_OK;
	if (ctx->pkt_type != PACKET_HOST || parse_network(ctx, &p, type) || !is_lb_proto(&p) || parse_transport(ctx, &p, frag_owner(&p)))
		return TC_ACT_OK;
	action = node_port_packet(ctx, &p, report);
	return action == NOT_A_SERVICE ? TC_ACT_OK : action;
}

SEC("tc")
int from_device(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_FROM_NETDEV, .direction = INGRESS};

	return finish(ctx, &report, from_device_packet(ctx, &report));
}

/* Dual-licensed, see LICENSE.GPL-2.0: the kernel has bpf_fib_lookup for GPL programs only. */
char license_name[] SEC("license") = "GPL";
