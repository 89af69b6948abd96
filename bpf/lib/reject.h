/* Rejects packets for a service without backends, or for an address that is not for pods, as a host
 * does whose port is closed: a reset for TCP, "port unreachable" for the rest. So clients fail at
 * once instead of timing out. */
#pragma once
#include "clock.h"
#include "config.h"
#include "events.h"
#include "packet.h"
#include "rewrite.h"

enum {
	/* Rejects that a processor sends to one sender in a tick; more would serve those who flood
	 * others with spoofed source addresses. */
	REJECTS_PER_TICK = 1000,
	ANSWER_TTL = 64,
	/* Of the packet that an ICMP error is about, eight bytes of its transport are promised. */
	QUOTED_L4 = 8,
	/* Of one that is too big, a TCP header. */
	TOO_BIG_L4 = 20,
};

/* Reports whether the sender of a packet may get one more answer. A sender is an interface and an
 * identity: that one floods must not cost others theirs. */
static __always_inline bool may_reject(const struct __sk_buff *ctx, const struct report *report, bool too_big)
{
	__u32 sender = (ctx->ifindex * 31 + report->src_identity) * 0x9E3779B1u >> 24;
	__u32 cell = sender + too_big * REJECT_SENDERS, now = ct_now();
	struct lb_reject_count *r = bpf_map_lookup_elem(&lb_rejects, &cell);

	if (!r)
		return false;
	if (r->tick != now) {
		r->tick = now;
		r->count = 0;
	}
	return r->count++ < REJECTS_PER_TICK;
}

/* The checksum of the reply's pseudo-header, from the addresses of the packet that it replies to:
 * the order does not matter in a sum. */
static __always_inline __u64 pseudo_sum(const struct packet *p, __u32 len, __u8 proto)
{
	const struct addr *a = &p->src, *b = &p->dst;
	__u64 sum = (__u64)htonl(len) + htonl(proto);

	if (!p->v6)
		return sum + a->w[3] + b->w[3];
	return sum + a->w[0] + a->w[1] + a->w[2] + a->w[3] + b->w[0] + b->w[1] + b->w[2] + b->w[3];
}

/* Reports whether the kernel has left the transport's checksum to a device: then it, or the device,
 * will sum up what follows the network header, and write the result at the offset where the
 * original packet has its checksum, whatever is there by then. SCTP's, a CRC, is where the kernel's
 * helpers do not look: any other field shows it as well. Returns 1, 0 or negative on failure. */
static __always_inline int checksum_is_left(struct __sk_buff *ctx, const struct packet *p)
{
	__u16 kept, before = 0x1234, after;
	__u32 off = p->l4 + checksum_offset(p->proto);

	/* A change of the payload shows in a checksum that is complete, and in no other. */
	if (bpf_skb_load_bytes(ctx, off, &kept, sizeof(kept)) ||
	    bpf_skb_store_bytes(ctx, off, &before, sizeof(before), BPF_F_RECOMPUTE_CSUM) ||
	    bpf_l4_csum_replace(ctx, off, 0, 1, sizeof(before)) ||
	    bpf_skb_load_bytes(ctx, off, &after, sizeof(after)) ||
	    bpf_skb_store_bytes(ctx, off, &kept, sizeof(kept), BPF_F_RECOMPUTE_CSUM))
		return -1;
	return before == after;
}

/* Writes the network header of a reply whose transport header has been written. */
static __noinline __maybe_unused int answer_network(struct __sk_buff *ctx, const struct packet *p, __u8 proto, __u32 len)
{
	__u8 macs[12];

	if (bpf_skb_load_bytes(ctx, 0, macs + 6, 6) || bpf_skb_load_bytes(ctx, 6, macs, 6) ||
	    bpf_skb_store_bytes(ctx, 0, macs, sizeof(macs), 0))
		return DROP_ENCAP_FAILED;
	if (p->v6) {
		struct ipv6_header ip = {
			.version_class = 6 << 4, .payload_len = htons(len), .next = proto, .hop_limit = ANSWER_TTL,
		};

		memcpy(ip.src, p->dst.w, sizeof(ip.src));
		memcpy(ip.dst, p->src.w, sizeof(ip.dst));
		return bpf_skb_store_bytes(ctx, ETH_LEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM) ? DROP_ENCAP_FAILED : 0;
	}
	struct ipv4_header ip = {
		.version_ihl = 4 << 4 | 5, .total_len = htons(sizeof(ip) + len), .frag = htons(IPV4_DONT_FRAGMENT), .ttl = ANSWER_TTL,
		.proto = proto, .src = p->dst.w[3], .dst = p->src.w[3],
	};
	ip.check = ~fold((__u32)bpf_csum_diff(NULL, 0, (__u32 *)&ip, sizeof(ip), 0));
	return bpf_skb_store_bytes(ctx, ETH_LEN, &ip, sizeof(ip), BPF_F_RECOMPUTE_CSUM) ? DROP_ENCAP_FAILED : 0;
}

/* Turns a TCP segment into the reset in reply to it (RFC 9293 3.10.7.1). */
static __noinline __maybe_unused int answer_reset(struct __sk_buff *ctx, const struct packet *p)
{
	struct tcp_header in, out = {.src = p->dport, .dst = p->sport, .offset = 5 << 4};

	if (READ_L4(ctx, p, p->l4, &in))
		return DROP_MALFORMED;
	if (in.flags & TCP_ACK) {
		out.seq = in.ack;
		out.flags = TCP_RST;
	} else {
		__u32 used = p->end - p->l4 - (in.offset >> 4) * 4;

		used += !!(in.flags & TCP_SYN) + !!(in.flags & TCP_FIN);
		out.ack = htonl(ntohl(in.seq) + used);
		out.flags = TCP_RST | TCP_ACK;
	}
	int left = checksum_is_left(ctx, p);
	if (left < 0 || bpf_skb_change_tail(ctx, p->l4 + sizeof(out), 0))
		return DROP_ENCAP_FAILED;
	__u64 sum = pseudo_sum(p, sizeof(out), PROTO_TCP);
	/* What is left to a device is the sum of all but the pseudo-header. */
	if (!left)
		sum = (__u16)~fold(sum + (__u32)bpf_csum_diff(NULL, 0, (__u32 *)&out, sizeof(out), 0));
	out.check = left ? fold(sum) : sum;
	if (bpf_skb_store_bytes(ctx, p->l4, &out, sizeof(out), BPF_F_RECOMPUTE_CSUM))
		return DROP_ENCAP_FAILED;
	return answer_network(ctx, p, PROTO_TCP, sizeof(out));
}

/* Turns a datagram into the ICMP error "port unreachable" about it. */
static __noinline __maybe_unused int answer_unreachable(struct __sk_buff *ctx, const struct packet *p)
{
	struct {
		struct icmp_header icmp;
		__u8 quoted[sizeof(struct ipv6_header) + QUOTED_L4];
	} out = {.icmp.type = ICMP_UNREACHABLE, .icmp.code = 3};
	__u32 header = sizeof(struct ipv4_header), len = sizeof(out.icmp) + header + QUOTED_L4;
	__u8 proto = PROTO_ICMP;
	__u64 sum = 0;

	if (p->v6) {
		header = sizeof(struct ipv6_header);
		len = sizeof(out);
		proto = PROTO_ICMPV6;
		out.icmp.type = ICMPV6_UNREACHABLE;
		out.icmp.code = 4;
		sum = pseudo_sum(p, len, proto);
	}
	/* Read before anything is changed. */
	if (p->v6 ? bpf_skb_load_bytes(ctx, ETH_LEN, out.quoted, sizeof(struct ipv6_header) + QUOTED_L4) :
		    bpf_skb_load_bytes(ctx, ETH_LEN, out.quoted, sizeof(struct ipv4_header) + QUOTED_L4))
		return DROP_MALFORMED;
	/* Of SCTP's packets, reject lets pass those that are complete. */
	int left = p->proto == PROTO_UDP ? checksum_is_left(ctx, p) : 0;
	if (left < 0)
		return DROP_ENCAP_FAILED;
	/* A sum that is left overwrites the second half of a field that is never read. If the
	 * message's sum is as if that half were the pseudo-header's, then whatever is written there
	 * completes it. */
	if (left)
		out.icmp.seq = fold(sum);
	else
		out.icmp.check = ~fold(sum + (__u32)bpf_csum_diff(NULL, 0, (__u32 *)&out, sizeof(out), 0));
	if (bpf_skb_change_tail(ctx, ETH_LEN + header + len, 0))
		return DROP_ENCAP_FAILED;
	if (p->v6 ? bpf_skb_store_bytes(ctx, ETH_LEN + sizeof(struct ipv6_header), &out, sizeof(out), BPF_F_RECOMPUTE_CSUM) :
		    bpf_skb_store_bytes(ctx, ETH_LEN + sizeof(struct ipv4_header), &out,
					sizeof(out.icmp) + sizeof(struct ipv4_header) + QUOTED_L4, BPF_F_RECOMPUTE_CSUM))
		return DROP_ENCAP_FAILED;
	return answer_network(ctx, p, proto, len);
}

/* The length of the ICMP error that a packet is too big. */
static __always_inline __u32 too_big_len(const struct packet *p)
{
	return sizeof(struct icmp_header) + p->l4 - ETH_LEN + TOO_BIG_L4;
}

/* Sums up what of a packet is between two offsets, a multiple of four bytes, as checksums do.
 * Returns negative if the packet is shorter. */
__noinline __s64 sum_between(struct __sk_buff *ctx, __u32 from, __u32 to)
{
	__u64 sum = 0;
	__u32 word;

	for (int i = 0; i < (L4_OFFSET_MAX + TOO_BIG_L4) / (int)sizeof(word) && from < to; i++) {
		if (bpf_skb_load_bytes(ctx, from, &word, sizeof(word)))
			return -1;
		sum += word;
		from += sizeof(word);
	}
	return sum;
}

/* Writes the error of answer_too_big but for its network header. Returns 0 or a drop reason. Not
 * inlined: its variables need a stack of their own. */
static __noinline __maybe_unused int write_too_big(struct __sk_buff *ctx, const struct packet *p, __u32 mtu)
{
	struct icmp_header icmp = {.type = ICMP_UNREACHABLE, .code = 4, .seq = htons(mtu)};
	__u32 header = sizeof(struct ipv4_header), end = p->l4 + TOO_BIG_L4;
	__u16 check = 0;
	__u64 sum = 0;
	int left = 0;

	if (end > p->end)
		return DROP_MTU_EXCEEDED;
	if (p->v6) {
		header = sizeof(struct ipv6_header);
		icmp.type = ICMPV6_TOO_BIG;
		icmp.code = 0;
		sum = pseudo_sum(p, too_big_len(p), PROTO_ICMPV6);
	}
	if (!p->fragment && checksum_offset(p->proto)) {
		left = checksum_is_left(ctx, p);
		if (left < 0 || bpf_skb_load_bytes(ctx, p->l4 + checksum_offset(p->proto), &check, sizeof(check)))
			return DROP_ENCAP_FAILED;
	}
	__s64 quoted = sum_between(ctx, ETH_LEN, left ? p->l4 : end);
	if (quoted < 0)
		return DROP_MTU_EXCEEDED;
	sum += quoted;
	/* A sum that is left to a device is completed in the quoted transport, whose sum it turns
	 * into the complement of what was there before. */
	if (left)
		sum += (__u16)~check;
	icmp.check = ~fold(sum + (__u32)bpf_csum_diff(NULL, 0, (__u32 *)&icmp, sizeof(icmp), 0));
	if (bpf_skb_change_tail(ctx, end, 0) || bpf_skb_adjust_room(ctx, header + sizeof(icmp), BPF_ADJ_ROOM_MAC, 0) ||
	    bpf_skb_store_bytes(ctx, ETH_LEN + header, &icmp, sizeof(icmp), BPF_F_RECOMPUTE_CSUM))
		return DROP_ENCAP_FAILED;
	return 0;
}

/* Turns a packet, which may be a fragment, into the ICMP error that it is too big for an MTU. It is
 * quoted as it is, with all that precedes its transport and as much of that as a socket is found
 * by. Returns 0 or a drop reason. */
static __always_inline int answer_too_big(struct __sk_buff *ctx, const struct packet *p, __u32 mtu)
{
	int reason = write_too_big(ctx, p, mtu);

	return reason ? reason : answer_network(ctx, p, p->v6 ? PROTO_ICMPV6 : PROTO_ICMP, too_big_len(p));
}

/* Counts and reports a packet that is dropped for a reason, before it is answered. */
static __always_inline void report_answered(struct __sk_buff *ctx, struct report *report, int reason)
{
	report->reason = reason;
	count(ctx, reason, report->direction);
	if (unlikely(monitor_flags() & MONITOR_DROPS)) {
		report->type = EVENT_DROP;
		emit(ctx, report);
	}
}

/* Counts and reports a packet as dropped for a reason, and turns it into the reply that rejects it,
 * with the hardware addresses swapped. Returns 0 if there is a reply to send, or the reason to drop
 * the packet without. There is no reply to resets, to fragments, whose rest would be rejected
 * again, to packets with options, which no client of a service sends, and to those of SCTP of which
 * a device is to make the CRC: it would write that into the reply. */
static __noinline __maybe_unused int reject(struct __sk_buff *ctx, const struct packet *p, struct report *report, int reason)
{
	__u32 plain = ETH_LEN + (p->v6 ? sizeof(struct ipv6_header) : sizeof(struct ipv4_header));

	if (p->fragment || p->l4 != plain || p->kind != KIND_FLOW || (p->tcp_flags & TCP_RST) || !may_reject(ctx, report, false))
		return reason;
	if (p->proto == PROTO_SCTP && checksum_is_left(ctx, p))
		return reason;
	report_answered(ctx, report, reason);
	if (p->proto == PROTO_TCP)
		return answer_reset(ctx, p);
	return answer_unreachable(ctx, p);
}
