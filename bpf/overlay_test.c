//go:build ignore

/* from_overlay with the tunnel's metadata made up: the mark is the VNI, and the control block says
 * where the outer packet came from, an IPv6 address if its first word is set. A test packet has no
 * metadata of its own. The helper reads it as the receiver's, so what is to be read as remote is
 * set as local. */
#include "from_overlay.c"

/* Not inlined: its variables need a stack of their own. */
static __noinline int set_vni(struct __sk_buff *ctx)
{
	struct bpf_tunnel_key key = {
		.tunnel_id = ctx->mark,
		.tunnel_ttl = 64,
	};

	if (!ctx->cb[0]) {
		key.local_ipv4 = ntohl(ctx->cb[3]);
		return bpf_skb_set_tunnel_key(ctx, &key, sizeof(key), 0);
	}
	key.local_ipv6[0] = ctx->cb[0];
	key.local_ipv6[1] = ctx->cb[1];
	key.local_ipv6[2] = ctx->cb[2];
	key.local_ipv6[3] = ctx->cb[3];
	return bpf_skb_set_tunnel_key(ctx, &key, sizeof(key), BPF_F_TUNINFO_IPV6);
}

SEC("tc")
int overlay_with_vni(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_FROM_OVERLAY, .direction = INGRESS};

	if (set_vni(ctx))
		return TC_ACT_SHOT;
	return finish(ctx, &report, from_overlay_packet(ctx, &report));
}
