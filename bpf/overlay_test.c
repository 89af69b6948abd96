//go:build ignore

/* from_overlay with the tunnel's metadata made up: the mark is the VNI. A test packet has none of
 * its own. */
#include "from_overlay.c"

/* Not inlined: its variables need a stack of their own. */
static __noinline int set_vni(struct __sk_buff *ctx)
{
	struct bpf_tunnel_key key = {
		.tunnel_id = ctx->mark,
		.remote_ipv4 = 0x0A000001,
		.tunnel_ttl = 64,
	};

	return bpf_skb_set_tunnel_key(ctx, &key, sizeof(key), 0);
}

SEC("tc")
int overlay_with_vni(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_FROM_OVERLAY, .direction = INGRESS};

	if (set_vni(ctx))
		return TC_ACT_SHOT;
	return finish(ctx, &report, from_overlay_packet(ctx, &report));
}
