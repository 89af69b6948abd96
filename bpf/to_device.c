//go:build ignore

/* Packets that the node sends out on a device other than the native device: egress. A process of
 * the node that is a service's backend replies from its own port; the client must see the
 * service's. */
#include "lib/nodeport.h"

static __always_inline int to_device_packet(struct __sk_buff *ctx, struct report *report)
{
	struct packet p;
	__u16 type;

	report->outcome = OUTCOME_STACK;
	if (!cfg.node_port || is_tagged(ctx) || frame_type(ctx, &type) || parse_network(ctx, &p, type))
		return TC_ACT_OK;
	return node_port_local_reply(ctx, &p, report);
}

SEC("tc")
int to_device(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_TO_NETDEV, .direction = EGRESS};

	return finish(ctx, &report, to_device_packet(ctx, &report));
}

char license_name[] SEC("license") = "Apache-2.0";
