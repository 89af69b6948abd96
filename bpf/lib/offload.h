/* Checksums that are left to a device. The device, or the kernel for one that cannot, sums up a
 * packet from some offset on and writes the result to another, after the last program. Who opens a
 * packet socket chooses both, and with the rest of the packet the result: a port, say, or a word of
 * an address, which nobody has looked at. */
#pragma once
#include "rewrite.h"
#include "skb.h"

enum { CHECKSUM_PARTIAL = 3 };

/* Reports whether a packet's checksum would be written where the programs have read something else.
 * Behind a header that may carry another packet, it is that one's: the kernel makes it so for
 * tunnels, and reject.h for its answers. An ICMP error that has been parsed is evaluated by what it
 * quotes. What could not be parsed must stay so, and a later fragment has no checksum. */
__noinline bool misplaces_checksum(struct __sk_buff *ctx, const struct packet *p)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);

	if (!p)
		return true;
	if (READ_BITS(skb, ip_summed) != CHECKSUM_PARTIAL)
		return false;
	int at = skb->csum_start + skb->csum_offset - skb->mac_header - (int)p->l4;
	int own = p->proto == PROTO_SCTP ? SCTP_CHECKSUM : checksum_offset(p->proto);
	bool carries = p->proto != PROTO_TCP && p->proto != PROTO_SCTP && p->kind != KIND_ERROR;
	int header = p->proto == PROTO_ICMP || p->proto == PROTO_ICMPV6 ? offsetof(struct icmp_header, seq) : UDP_LEN;

	return p->fragment == FRAGMENT_LATER || !((own && at == own) || (carries && at >= header));
}
