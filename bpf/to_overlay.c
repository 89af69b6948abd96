//go:build ignore

/* Packets that go through the tunnel: egress of the VXLAN device. The programs have put them there, which to_netdev is
 * to know: see ENCAPSULATED in lib/forward.h. Any filter that lets a packet pass makes its mark another, none by
 * default, so this one is first and the last word: what others want to filter there is not asked. */
#include "lib/forward.h"

SEC("tc")
int to_overlay(struct __sk_buff *ctx)
{
	/* Traffic control makes it tc_index. */
	ctx->tc_classid = ENCAPSULATED;
	return TC_ACT_OK;
}

char license_name[] SEC("license") = "Apache-2.0";
