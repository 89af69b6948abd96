/* From bytes to a struct packet: addresses, ports and what kind of packet it is, the same for both
 * families and every protocol. Nothing beyond the IP packet's own length is ever read, and what
 * cannot be parsed is dropped, not guessed. */
#pragma once
#include "maps.h"
#include "net.h"

enum kind {
	KIND_FLOW = 1,	 /* TCP, UDP, SCTP */
	KIND_ECHO,	 /* ICMP echo request: sport is that of the id, dport 0 */
	KIND_ECHO_REPLY, /* sport 0, dport that of the id */
	KIND_ERROR,	 /* ICMP error about another packet */
	KIND_ICMP,	 /* any other ICMP message: checked packet by packet, never tracked */
	KIND_NEIGHBOUR,	 /* IPv6 neighbour and router discovery, ICMP redirects */
};

enum fragment {
	FRAGMENT_NONE = 0,
	FRAGMENT_FIRST,
	FRAGMENT_LATER,
};

struct packet {
	struct addr src;
	struct addr dst;
	__u32 fragment_id;
	__u16 sport; /* network byte order */
	__u16 dport;
	__u32 l4; /* offset of the transport header, or of the first header that is not known */
	__u32 end; /* offset of the first byte after the IP packet */
	__u8 proto;
	__u8 kind;
	__u8 tcp_flags;
	__u8 icmp_type;
	bool v6;
	__u8 fragment;
	__u8 ttl;
	bool opens; /* a connection: TCP's SYN, SCTP's INIT */
};

/* No legitimate packet has its transport header at a higher offset. */
#define L4_OFFSET_MAX 512
#define MAX_EXTENSIONS 6

/* Copies a header at an offset into *to: straight from the linear part if it lies there, by a
 * helper if not. Evaluates to 0, or negative if the packet is too short. */
#define READ(ctx, off, to)                                                                         \
	({                                                                                         \
		__typeof__(*(to)) *from = (void *)(long)(ctx)->data + (off);                       \
		long err = 0;                                                                      \
		if (likely((void *)(from + 1) <= (void *)(long)(ctx)->data_end))                   \
			*(to) = *from;                                                             \
		else                                                                               \
			err = bpf_skb_load_bytes(ctx, off, to, sizeof(*(to)));                     \
		err;                                                                               \
	})

/* As READ, for a header that must also lie within the IP packet, and not absurdly far in: the
 * verifier wants a bound on what is added to a pointer. */
#define READ_L4(ctx, p, off, to)                                                                   \
	((off) > 2 * L4_OFFSET_MAX || (off) + sizeof(*(to)) > (p)->end ? -1 : READ(ctx, off, to))

/* Reports whether a priority tag (VLAN 0) within a frame of a type hides its packet. The kernel
 * takes one off before the programs, and any number after them. */
static __always_inline bool is_hidden(struct __sk_buff *ctx, __u16 type)
{
	__u16 tag;

	return unlikely(type == htons(ETH_P_8021Q) || type == htons(ETH_P_8021AD)) &&
	       !bpf_skb_load_bytes(ctx, ETH_LEN, &tag, sizeof(tag)) && !(tag & htons(VLAN_ID_MASK));
}

/* Reads what a frame carries. Returns 0, or negative if it is too short. Its stack space is reused
 * afterwards. */
static __always_inline int frame_type(struct __sk_buff *ctx, __u16 *type)
{
	struct eth_header eth;

	if (READ(ctx, 0, &eth))
		return -1;
	*type = eth.type;
	return 0;
}

/* The port of an echo's id. It is never 0, the port of the other side: else a ping without an id
 * and one the other way would be one flow. */
static __always_inline __u16 echo_port(__u16 id)
{
	return id ? id : 0xFFFF;
}

static __always_inline int parse_icmp4(struct packet *p, const struct icmp_header *icmp)
{
	switch (icmp->type) {
	case ICMP_ECHO:
		p->kind = KIND_ECHO;
		p->sport = echo_port(icmp->id);
		return 0;
	case ICMP_ECHO_REPLY:
		p->kind = KIND_ECHO_REPLY;
		p->dport = echo_port(icmp->id);
		return 0;
	case ICMP_UNREACHABLE:
	case ICMP_TIME_EXCEEDED:
	case ICMP_PARAMETER:
		p->kind = KIND_ERROR;
		return 0;
	case ICMP_REDIRECT:
		p->kind = KIND_NEIGHBOUR;
		return 0;
	}
	p->kind = KIND_ICMP;
	return 0;
}

static __always_inline int parse_icmp6(struct packet *p, const struct icmp_header *icmp)
{
	if (icmp->type == ICMPV6_ECHO) {
		p->kind = KIND_ECHO;
		p->sport = echo_port(icmp->id);
	} else if (icmp->type == ICMPV6_ECHO_REPLY) {
		p->kind = KIND_ECHO_REPLY;
		p->dport = echo_port(icmp->id);
	} else if (icmp->type >= ICMPV6_UNREACHABLE && icmp->type <= ICMPV6_PARAMETER) {
		p->kind = KIND_ERROR;
	} else if (icmp->type >= ICMPV6_RS && icmp->type <= ICMPV6_REDIRECT) {
		p->kind = KIND_NEIGHBOUR;
	} else {
		p->kind = KIND_ICMP;
	}
	return 0;
}

static __always_inline int parse_l4(struct __sk_buff *ctx, struct packet *p)
{
	if (p->proto == PROTO_TCP) {
		struct tcp_header tcp;

		if (READ_L4(ctx, p, p->l4, &tcp) || (tcp.offset >> 4) < 5)
			return DROP_MALFORMED;
		p->kind = KIND_FLOW;
		p->sport = tcp.src;
		p->dport = tcp.dst;
		p->tcp_flags = tcp.flags;
		p->opens = (tcp.flags & (TCP_SYN | TCP_ACK | TCP_RST)) == TCP_SYN;
		return 0;
	}
	if (p->proto == PROTO_UDP || p->proto == PROTO_SCTP) {
		/* 8 bytes are a UDP header; of SCTP's 12 only the ports matter, but a packet that
		 * lacks the rest is none. */
		struct {
			struct ports ports;
			__u32 rest;
		} l4;

		if (READ_L4(ctx, p, p->l4, &l4))
			return DROP_MALFORMED;
		if (p->proto == PROTO_SCTP) {
			__u8 chunk = 0;

			if (p->l4 + SCTP_LEN > p->end)
				return DROP_MALFORMED;
			/* An INIT is alone in its packet (RFC 9260 4.3). */
			p->opens = !READ_L4(ctx, p, p->l4 + SCTP_LEN, &chunk) && chunk == SCTP_INIT;
		}
		p->kind = KIND_FLOW;
		p->sport = l4.ports.src;
		p->dport = l4.ports.dst;
		return 0;
	}
	if (p->proto == (p->v6 ? PROTO_ICMPV6 : PROTO_ICMP)) {
		struct icmp_header icmp;

		if (READ_L4(ctx, p, p->l4, &icmp))
			return DROP_MALFORMED;
		p->icmp_type = icmp.type;
		return p->v6 ? parse_icmp6(p, &icmp) : parse_icmp4(p, &icmp);
	}
	return DROP_UNKNOWN_L4;
}

/* Looks at the option of an IPv4 header at an offset. Returns the offset of the next one, 0 if
 * there is none, or a drop reason negated: for a source route, whose destination is not the one
 * that policy would check. A node whose kernel follows such routes (accept_source_route) forwards
 * the packet there, so it is dropped, as with IPv6's routing header. */
__noinline int next_option(struct __sk_buff *ctx, __u32 at)
{
	__u8 kind, len;

	if (bpf_skb_load_bytes(ctx, at, &kind, sizeof(kind)))
		return -DROP_MALFORMED;
	if (kind == IPV4_OPTION_END)
		return 0;
	if (kind == IPV4_OPTION_LOOSE_ROUTE || kind == IPV4_OPTION_STRICT_ROUTE)
		return -DROP_SOURCE_ROUTE;
	if (kind == IPV4_OPTION_NOP)
		return at + 1;
	if (bpf_skb_load_bytes(ctx, at + 1, &len, sizeof(len)) || len < 2)
		return -DROP_MALFORMED;
	return at + len;
}

/* Walks the options of an IPv4 header that ends at an offset. Returns 0 or a drop reason. */
static __always_inline int check_options(struct __sk_buff *ctx, __u32 end)
{
	__u32 at = ETH_LEN + sizeof(struct ipv4_header);

	for (int i = 0; i < IPV4_HEADER_MAX - (int)sizeof(struct ipv4_header) && at < end; i++) {
		int next = next_option(ctx, at);

		if (next <= 0)
			return -next;
		at = next;
	}
	return 0;
}

static __always_inline int parse4(struct __sk_buff *ctx, struct packet *p)
{
	struct ipv4_header ip;

	if (READ(ctx, ETH_LEN, &ip))
		return DROP_MALFORMED;
	__u32 header = (ip.version_ihl & 0xF) * 4;
	__u32 total = ntohs(ip.total_len);

	/* A segmentation-offload packet beyond 64 KiB has no room for its length. */
	if (total == 0 && ctx->len > ETH_LEN + 0xFFFF)
		total = ctx->len - ETH_LEN;
	if (ip.version_ihl >> 4 != 4 || header < sizeof(ip) || total < header ||
	    ETH_LEN + total > ctx->len)
		return DROP_MALFORMED;

	p->v6 = false;
	p->proto = ip.proto;
	p->ttl = ip.ttl;
	p->l4 = ETH_LEN + header;
	p->end = ETH_LEN + total;
	addr_set4(&p->src, ip.src);
	addr_set4(&p->dst, ip.dst);

	__u16 frag = ntohs(ip.frag);
	if (unlikely(frag & (IPV4_MORE_FRAGMENTS | IPV4_OFFSET_MASK))) {
		p->fragment = frag & IPV4_OFFSET_MASK ? FRAGMENT_LATER : FRAGMENT_FIRST;
		p->fragment_id = ip.id;
	}
	return likely(header == sizeof(ip)) ? 0 : check_options(ctx, ETH_LEN + header);
}

static __always_inline bool is_extension(__u8 next)
{
	return next == PROTO_HOPOPTS || next == PROTO_ROUTING || next == PROTO_DSTOPTS ||
	       next == PROTO_FRAGMENT;
}

/* Walks the extension headers. A routing header with segments left has a destination other than the
 * one that policy would check, so it is dropped (RFC 5095 for type 0). */
static __always_inline int parse_extensions(struct __sk_buff *ctx, struct packet *p, __u8 next)
{
	__u32 off = p->l4;

	for (int i = 0; i < MAX_EXTENSIONS && is_extension(next); i++) {
		struct ipv6_ext ext;

		if (off > L4_OFFSET_MAX)
			return DROP_UNKNOWN_L4;
		if (READ_L4(ctx, p, off, &ext))
			return DROP_MALFORMED;
		if (next == PROTO_HOPOPTS && i > 0)
			return DROP_MALFORMED;
		if (next == PROTO_ROUTING && (ntohs(ext.frag) & 0xFF))
			return DROP_UNKNOWN_L4;
		if (next == PROTO_FRAGMENT) {
			__u16 frag = ntohs(ext.frag);

			if (p->fragment)
				return DROP_MALFORMED;
			if (frag & IPV6_OFFSET_MASK)
				p->fragment = FRAGMENT_LATER;
			else if (frag & IPV6_MORE_FRAGMENTS)
				p->fragment = FRAGMENT_FIRST;
			p->fragment_id = ext.id;
			off += sizeof(ext);
			next = ext.next;
			/* What follows in a later fragment is payload, not headers. */
			if (p->fragment == FRAGMENT_LATER)
				break;
			continue;
		}
		off += ((__u32)ext.len + 1) * 8;
		next = ext.next;
	}
	if (off > L4_OFFSET_MAX || (is_extension(next) && p->fragment != FRAGMENT_LATER))
		return DROP_UNKNOWN_L4;
	p->l4 = off;
	p->proto = next;
	return 0;
}

static __always_inline int parse6(struct __sk_buff *ctx, struct packet *p)
{
	struct ipv6_header ip;

	if (READ(ctx, ETH_LEN, &ip))
		return DROP_MALFORMED;
	__u32 payload = ntohs(ip.payload_len);

	/* As in parse4: the length stands in a hop-by-hop option, or nowhere. */
	if (payload == 0 && ctx->len > ETH_LEN + sizeof(ip) + 0xFFFF)
		payload = ctx->len - ETH_LEN - sizeof(ip);
	if (ip.version_class >> 4 != 6 || ETH_LEN + sizeof(ip) + payload > ctx->len)
		return DROP_MALFORMED;

	p->v6 = true;
	p->proto = ip.next;
	p->ttl = ip.hop_limit;
	p->l4 = ETH_LEN + sizeof(ip);
	p->end = p->l4 + payload;
	addr_set6(&p->src, ip.src);
	addr_set6(&p->dst, ip.dst);
	/* On the wire a mapped address means nothing; here it would mean an IPv4 endpoint. */
	if (addr_is_mapped4(&p->src) || addr_is_mapped4(&p->dst) || addr_is_zero(&p->dst))
		return DROP_MALFORMED;
	if (likely(!is_extension(ip.next)))
		return 0;
	return parse_extensions(ctx, p, ip.next);
}

/* Finds the transport header in the IPv6 packet that an ICMP error is about. Returns its offset,
 * with its protocol in the bits above the lower 16, or a drop reason negated: for a later fragment,
 * which has none, and for what parse_extensions would not have let out either. */
__noinline int quoted_transport6(struct __sk_buff *ctx, const struct packet *p)
{
	struct ipv6_ext ext;
	__u32 off;
	__u8 next;

	if (!p)
		return -DROP_MALFORMED;
	off = p->l4 + sizeof(struct icmp_header);
	if (bpf_skb_load_bytes(ctx, off + offsetof(struct ipv6_header, next), &next, sizeof(next)))
		return -DROP_MALFORMED;
	off += sizeof(struct ipv6_header);
	for (int i = 0; i < MAX_EXTENSIONS && is_extension(next); i++) {
		/* Not READ_L4: it costs the verifier more than it saves here. */
		if (off + sizeof(ext) > p->end || bpf_skb_load_bytes(ctx, off, &ext, sizeof(ext)) ||
		    (next == PROTO_HOPOPTS && i > 0))
			return -DROP_MALFORMED;
		if (next == PROTO_ROUTING && (ntohs(ext.frag) & 0xFF))
			return -DROP_UNKNOWN_RELATED;
		if (next == PROTO_FRAGMENT && (ntohs(ext.frag) & IPV6_OFFSET_MASK))
			return -DROP_UNKNOWN_RELATED;
		off += next == PROTO_FRAGMENT ? sizeof(ext) : ((__u32)ext.len + 1) * 8;
		next = ext.next;
	}
	if (is_extension(next))
		return -DROP_UNKNOWN_RELATED;
	return (__u32)next << 16 | off;
}

/* Reads the network header of an IPv4 or IPv6 packet into p. Returns 0 or a drop reason.
 *
 * This function and parse_transport are global: the verifier checks each on its own, and continues
 * after the call with one state instead of one for each path through the headers. */
__noinline int parse_network(struct __sk_buff *ctx, struct packet *p, __u16 ethertype)
{
	if (!p)
		return DROP_MALFORMED;
	memset(p, 0, sizeof(*p));
	p->l4 = ETH_LEN;
	if (ethertype == htons(ETH_P_IP))
		return parse4(ctx, p);
	if (ethertype == htons(ETH_P_IPV6))
		return parse6(ctx, p);
	return DROP_UNKNOWN_L3;
}
