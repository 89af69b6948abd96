/* Gives a packet another source or destination, checksums included.
 *
 * A checksum is never computed anew but follows what changes. The kernel knows whether the
 * transport's is complete or left to a device; the helpers do what is right for either. */
#pragma once
#include "packet.h"

/* Adds the carries of a ones' complement sum. */
static __always_inline __u16 fold(__u64 sum)
{
	sum = (sum & 0xFFFFFFFF) + (sum >> 32);
	sum = (sum & 0xFFFF) + (sum >> 16);
	sum = (sum & 0xFFFF) + (sum >> 16);
	return (sum & 0xFFFF) + (sum >> 16);
}

/* Where the transport's checksum is, from the start of its header; 0 if there is none to follow. */
static __always_inline __u32 checksum_offset(__u8 proto)
{
	if (proto == PROTO_TCP)
		return offsetof(struct tcp_header, check);
	if (proto == PROTO_UDP)
		return 6;
	/* Of ICMP's two, the one that covers the addresses. */
	if (proto == PROTO_ICMPV6)
		return offsetof(struct icmp_header, check);
	return 0;
}

/* Replaces the destination, or the source, of a packet in the packet and in p. Port is in network
 * byte order; that of a packet that is not of KIND_FLOW must stay as it is in p. A later fragment
 * has no transport header: its address alone is replaced. SCTP's checksum (CRC32c, RFC 9260) does
 * not cover addresses, but all of the packet from its ports on, which may be more than a program
 * can read: its ports stay. Returns 0 or a drop reason. */
__noinline int rewrite_end(struct __sk_buff *ctx, struct packet *p, const struct addr *to, __u16 port,
			   bool dst)
{
	struct addr *old;
	struct addr new;
	__u16 old_port;

	if (!p || !to)
		return DROP_MALFORMED;
	old = dst ? &p->dst : &p->src;
	old_port = dst ? p->dport : p->sport;
	new = *to; /* may be shared with other processors: one look */
	if (unlikely(p->proto == PROTO_SCTP && port != old_port))
		return DROP_SCTP_PORT;

	/* Of the mapped form all but the last word are the same, so one difference does for
	 * both. */
	__u64 diff = bpf_csum_diff(old->w, sizeof(*old), new.w, sizeof(new), 0);
	__u64 pseudo = BPF_F_PSEUDO_HDR;
	long err;

	if (p->v6) {
		err = bpf_skb_store_bytes(ctx, ETH_LEN + (dst ? offsetof(struct ipv6_header, dst) :
								offsetof(struct ipv6_header, src)),
					  new.w, sizeof(new), 0);
		pseudo |= BPF_F_IPV6;
	} else {
		err = bpf_l3_csum_replace(ctx, ETH_LEN + offsetof(struct ipv4_header, check), old->w[3],
					  new.w[3], sizeof(new.w[3]));
		if (!err)
			err = bpf_skb_store_bytes(ctx,
						  ETH_LEN + (dst ? offsetof(struct ipv4_header, dst) :
								   offsetof(struct ipv4_header, src)),
						  &new.w[3], sizeof(new.w[3]), 0);
	}
	if (err)
		return DROP_ENCAP_FAILED;
	if (dst) {
		p->dst = new;
		p->dport = port;
	} else {
		p->src = new;
		p->sport = port;
	}
	if (p->fragment == FRAGMENT_LATER)
		return 0;

	__u32 check = checksum_offset(p->proto);
	__u64 flags = p->proto == PROTO_UDP ? BPF_F_MARK_MANGLED_0 : 0;
	if (check) {
		err = bpf_l4_csum_replace(ctx, p->l4 + check, 0, diff, pseudo | flags);
		/* A kernel that does not know the flag does not need it either. */
		if (err && p->v6)
			err = bpf_l4_csum_replace(ctx, p->l4 + check, 0, diff, BPF_F_PSEUDO_HDR | flags);
		if (err)
			return DROP_ENCAP_FAILED;
	}
	if (port == old_port)
		return 0;
	if (check && bpf_l4_csum_replace(ctx, p->l4 + check, old_port, port, sizeof(port) | flags))
		return DROP_ENCAP_FAILED;
	if (bpf_skb_store_bytes(ctx, p->l4 + (dst ? offsetof(struct ports, dst) : offsetof(struct ports, src)),
				&port, sizeof(port), 0))
		return DROP_ENCAP_FAILED;
	return 0;
}

/* Replaces the destination, or the source, of the packet that an ICMP error is about, which
 * related_key has read before. The transport's checksum in it may be missing and is not checked: it
 * stays. What *to holds must not change meanwhile. Returns 0 or a drop reason. */
__noinline int rewrite_quoted(struct __sk_buff *ctx, const struct packet *p, const struct addr *to, __u16 port,
			      bool dst)
{
	struct addr old;
	__u16 old_port;

	if (!p || !to)
		return DROP_MALFORMED;
	__u32 ip = p->l4 + sizeof(struct icmp_header), check = p->l4 + offsetof(struct icmp_header, check);
	__u32 ports = dst ? offsetof(struct ports, dst) : offsetof(struct ports, src);
	long err;

	if (p->v6) {
		__u32 at = ip + (dst ? offsetof(struct ipv6_header, dst) : offsetof(struct ipv6_header, src));
		int transport = quoted_transport6(ctx, p);

		if (transport < 0)
			return -transport;
		ports += transport & 0xFFFF;
		err = bpf_skb_load_bytes(ctx, at, &old, sizeof(old));
		if (!err)
			err = bpf_skb_store_bytes(ctx, at, to, sizeof(*to), 0);
		if (!err)
			err = bpf_l4_csum_replace(ctx, check, 0, bpf_csum_diff(old.w, sizeof(old), (__u32 *)to->w, sizeof(*to), 0), 0);
	} else {
		__u32 at = ip + (dst ? offsetof(struct ipv4_header, dst) : offsetof(struct ipv4_header, src));
		__u8 version_ihl = 0;

		/* The header's own checksum makes up for what changes in it. */
		err = bpf_skb_load_bytes(ctx, at, &old.w[3], sizeof(old.w[3]));
		if (!err)
			err = bpf_l3_csum_replace(ctx, ip + offsetof(struct ipv4_header, check), old.w[3], to->w[3], sizeof(to->w[3]));
		if (!err)
			err = bpf_skb_store_bytes(ctx, at, &to->w[3], sizeof(to->w[3]), 0);
		if (!err)
			err = bpf_skb_load_bytes(ctx, ip, &version_ihl, sizeof(version_ihl));
		ports += ip + (version_ihl & 0xF) * 4;
	}
	if (err || bpf_skb_load_bytes(ctx, ports, &old_port, sizeof(old_port)))
		return DROP_ENCAP_FAILED;
	if (port == old_port)
		return 0;
	if (bpf_l4_csum_replace(ctx, check, old_port, port, sizeof(port)) || bpf_skb_store_bytes(ctx, ports, &port, sizeof(port), 0))
		return DROP_ENCAP_FAILED;
	return 0;
}
