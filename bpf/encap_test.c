//go:build ignore

/* from_pod, followed by a look at the tunnel's metadata that it set: the outcome, the VNI and the
 * address of the other node are left in the control block, and the last word of this node's in the
 * mark. The helper reads metadata as the receiver's, so what was set as remote is read as local. */
#include "from_pod.c"

/* Not inlined: its variables need a stack of their own. */
static __noinline int look(struct __sk_buff *ctx, __u32 outcome)
{
	struct bpf_tunnel_key key = {};
	__u32 seen[5] = {outcome};

	if (!bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), 0)) {
		seen[1] = key.tunnel_id;
		seen[2] = key.local_ipv4;
		ctx->mark = key.remote_ipv4;
	} else if (!bpf_skb_get_tunnel_key(ctx, &key, sizeof(key), BPF_F_TUNINFO_IPV6)) {
		seen[1] = key.tunnel_id;
		seen[3] = key.local_ipv6[0];
		seen[4] = key.local_ipv6[3];
		ctx->mark = key.remote_ipv6[3];
	}
	ctx->cb[0] = seen[0];
	ctx->cb[1] = seen[1];
	ctx->cb[2] = seen[2];
	ctx->cb[3] = seen[3];
	ctx->cb[4] = seen[4];
	return 0;
}

SEC("tc")
int encap_seen(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_FROM_POD, .direction = EGRESS};
	int action = finish(ctx, &report, from_pod_packet(ctx, &report));

	look(ctx, report.outcome);
	return action;
}
