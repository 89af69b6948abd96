/* Answers a pod's ARP requests and neighbour solicitations for its gateway in place: the request is
 * turned into the reply and sent back through the same interface. No other neighbour discovery
 * passes. */
#pragma once
#include "config.h"
#include "events.h"
#include "rewrite.h"

/* Sends the packet back into the pod, past the host side's egress program. */
static __always_inline int answer(struct __sk_buff *ctx, struct report *report)
{
	/* The request was broadcast; the reply must not look so. */
	if (ctx->pkt_type != PACKET_HOST)
		bpf_skb_change_type(ctx, PACKET_HOST);
	report->outcome = OUTCOME_ANSWERED;
	return bpf_redirect_peer(ctx->ifindex, 0);
}

static __noinline int answer_arp(struct __sk_buff *ctx, const struct endpoint *ep,
				 struct report *report)
{
	struct {
		struct eth_header eth;
		struct arp_header arp;
	} frame;
	__u32 sender, target;

	if (READ(ctx, 0, &frame))
		return -DROP_MALFORMED;
	struct arp_header *arp = &frame.arp;
	memcpy(&sender, arp->sender_ip, sizeof(sender));
	memcpy(&target, arp->target_ip, sizeof(target));
	if (!mac_equal(frame.eth.src, ep->mac) || !mac_equal(arp->sender_mac, ep->mac))
		return -DROP_INVALID_SOURCE_MAC;
	if (arp->hw_type != htons(ARP_ETHER) || arp->proto_type != htons(ETH_P_IP) ||
	    arp->hw_len != 6 || arp->proto_len != 4)
		return -DROP_MALFORMED;
	if (ep->ip4.d[1] == 0 || sender != ep->ip4.w[3])
		return -DROP_INVALID_SOURCE_IP;
	if (arp->op != htons(ARP_REQUEST) || !cfg.has_router4 || target != cfg.router4.w[3])
		return -DROP_UNSUPPORTED_NDP;

	memcpy(frame.eth.dst, ep->mac, 6);
	memcpy(frame.eth.src, ep->host_mac, 6);
	arp->op = htons(ARP_REPLY);
	memcpy(arp->target_mac, ep->mac, 6);
	memcpy(arp->target_ip, &sender, sizeof(sender));
	memcpy(arp->sender_mac, ep->host_mac, 6);
	memcpy(arp->sender_ip, &target, sizeof(target));
	if (bpf_skb_store_bytes(ctx, 0, &frame, sizeof(frame), 0))
		return -DROP_ENCAP_FAILED;
	return answer(ctx, report);
}

/* Answers a neighbour solicitation for the gateway (RFC 4861 7.2). p has been parsed and is of
 * KIND_NEIGHBOUR; the frame's source address has been checked. */
static __noinline int answer_solicitation(struct __sk_buff *ctx, const struct endpoint *ep,
					  const struct packet *p, struct report *report)
{
	struct nd_message ask;
	struct addr target;

	if (p->icmp_type != ICMPV6_NS || !p->v6)
		return -DROP_UNSUPPORTED_NDP;
	/* Directly after the IPv6 header: neighbour discovery uses no extension headers. */
	if (p->l4 != ETH_LEN + sizeof(struct ipv6_header) || READ_L4(ctx, p, p->l4, &ask))
		return -DROP_MALFORMED;
	addr_set6(&target, ask.target);
	if (p->ttl != ND_HOP_LIMIT || ask.code != 0)
		return -DROP_MALFORMED;
	if (!is_router6(&target))
		return -DROP_UNSUPPORTED_NDP;
	if (!addr_equal(&p->src, &ep->ip6) && !addr_is_link_local6(&p->src))
		return -DROP_INVALID_SOURCE_IP;

	struct eth_header eth = {.type = htons(ETH_P_IPV6)};
	struct {
		struct ipv6_header ip;
		struct nd_message nd;
		struct nd_link_option link;
	} reply = {
		.ip.version_class = 6 << 4,
		.ip.payload_len = htons(sizeof(reply.nd) + sizeof(reply.link)),
		.ip.next = PROTO_ICMPV6,
		.ip.hop_limit = ND_HOP_LIMIT,
		.nd.type = ICMPV6_NA,
		/* router, solicited, override */
		.nd.flags = htonl(0xE0000000),
		.link.type = ND_OPT_TARGET_LINK,
		.link.len = 1,
	};
	memcpy(eth.dst, ep->mac, 6);
	memcpy(eth.src, ep->host_mac, 6);
	memcpy(reply.ip.src, target.w, 16);
	memcpy(reply.ip.dst, p->src.w, 16);
	memcpy(reply.nd.target, target.w, 16);
	memcpy(reply.link.mac, ep->host_mac, 6);

	/* The pseudo-header: two addresses, the length and the protocol; then the message. */
	__u32 rest[2] = {htonl(sizeof(reply.nd) + sizeof(reply.link)), htonl(PROTO_ICMPV6)};
	__s64 sum = bpf_csum_diff(NULL, 0, reply.ip.src, sizeof(reply.ip.src) + sizeof(reply.ip.dst), 0);
	sum = bpf_csum_diff(NULL, 0, rest, sizeof(rest), sum);
	sum = bpf_csum_diff(NULL, 0, (__u32 *)&reply.nd, sizeof(reply.nd) + sizeof(reply.link), sum);
	reply.nd.check = ~fold((__u32)sum);

	if (ctx->len != ETH_LEN + sizeof(reply) &&
	    bpf_skb_change_tail(ctx, ETH_LEN + sizeof(reply), 0))
		return -DROP_ENCAP_FAILED;
	if (bpf_skb_store_bytes(ctx, 0, &eth, sizeof(eth), 0) ||
	    bpf_skb_store_bytes(ctx, ETH_LEN, &reply, sizeof(reply), 0))
		return -DROP_ENCAP_FAILED;
	return answer(ctx, report);
}
