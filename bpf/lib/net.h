/* Packet headers and protocol numbers, as the RFCs have them. Multi-byte fields are in network
 * byte order. None needs padding: the network header starts at an even offset and the kernel aligns
 * it, so natural alignment holds inside a packet. */
#pragma once
#include "bpf.h"

enum {
	ETH_P_IP = 0x0800,
	ETH_P_ARP = 0x0806,
	ETH_P_8021Q = 0x8100,
	ETH_P_IPV6 = 0x86DD,
	ETH_P_8021AD = 0x88A8,
};

enum { VLAN_ID_MASK = 0x0FFF };

/* Reports whether the frame has a VLAN tag, and so belongs to another device than the one it
 * passes. VLAN 0 is a priority tag only. */
static __always_inline bool is_tagged(const struct __sk_buff *ctx)
{
	return ctx->vlan_present && (ctx->vlan_tci & VLAN_ID_MASK);
}

enum {
	PROTO_HOPOPTS = 0,
	PROTO_ICMP = 1,
	PROTO_TCP = 6,
	PROTO_UDP = 17,
	PROTO_ROUTING = 43,
	PROTO_FRAGMENT = 44,
	PROTO_GRE = 47,
	PROTO_ICMPV6 = 58,
	PROTO_DSTOPTS = 60,
	PROTO_SCTP = 132,
};

struct eth_header {
	__u8 dst[6];
	__u8 src[6];
	__u16 type;
};

#define ETH_LEN ((__u32)sizeof(struct eth_header))

struct ipv4_header {
	__u8 version_ihl;
	__u8 tos;
	__u16 total_len;
	__u16 id;
	__u16 frag;
	__u8 ttl;
	__u8 proto;
	__u16 check;
	__u32 src;
	__u32 dst;
};

enum {
	IPV4_DONT_FRAGMENT = 0x4000,
	IPV4_MORE_FRAGMENTS = 0x2000,
	IPV4_OFFSET_MASK = 0x1FFF,
	IPV4_HEADER_MAX = 60,
	IPV4_OPTION_END = 0,
	IPV4_OPTION_NOP = 1,
	IPV4_OPTION_LOOSE_ROUTE = 131,
	IPV4_OPTION_STRICT_ROUTE = 137,
};

struct ipv6_header {
	__u8 version_class;
	__u8 class_flow[3];
	__u16 payload_len;
	__u8 next;
	__u8 hop_limit;
	__u32 src[4];
	__u32 dst[4];
};

/* Eight bytes that start every extension header, seen as a fragment header where it is one. */
struct ipv6_ext {
	__u8 next;
	__u8 len; /* in units of 8 bytes, not counting the first 8; reserved in a fragment header */
	__u16 frag; /* routing header: type and segments left */
	__u32 id;
};

enum {
	IPV6_MORE_FRAGMENTS = 0x0001,
	IPV6_OFFSET_MASK = 0xFFF8,
};

struct ports {
	__u16 src;
	__u16 dst;
};

struct tcp_header {
	__u16 src;
	__u16 dst;
	__u32 seq;
	__u32 ack;
	__u8 offset;
	__u8 flags;
	__u16 window;
	__u16 check;
	__u16 urgent;
};

enum {
	TCP_FIN = 0x01,
	TCP_SYN = 0x02,
	TCP_RST = 0x04,
	TCP_ACK = 0x10,
};

enum {
	UDP_LEN = 8,
	SCTP_LEN = 12,
	SCTP_CHECKSUM = 8, /* its offset */
	SCTP_INIT = 1,
};

struct icmp_header {
	__u8 type;
	__u8 code;
	__u16 check;
	__u16 id;
	__u16 seq;
};

enum {
	ICMP_ECHO_REPLY = 0,
	ICMP_UNREACHABLE = 3,
	ICMP_REDIRECT = 5,
	ICMP_ECHO = 8,
	ICMP_TIME_EXCEEDED = 11,
	ICMP_PARAMETER = 12,
	ICMPV6_UNREACHABLE = 1,
	ICMPV6_TOO_BIG = 2,
	ICMPV6_PARAMETER = 4,
	ICMPV6_ECHO = 128,
	ICMPV6_ECHO_REPLY = 129,
	ICMPV6_MLD_QUERY = 130,
	ICMPV6_MLD_DONE = 132,
	ICMPV6_RS = 133,
	ICMPV6_NS = 135,
	ICMPV6_NA = 136,
	ICMPV6_REDIRECT = 137,
	ICMPV6_MLDV2 = 143,
};

/* GRE with a key and nothing else that is optional (RFC 2784, RFC 2890). */
struct gre_header {
	__u16 flags;
	__u16 proto;
	__u16 key[2];
};

enum { GRE_KEY = 0x2000 };

struct arp_header {
	__u16 hw_type;
	__u16 proto_type;
	__u8 hw_len;
	__u8 proto_len;
	__u16 op;
	__u8 sender_mac[6];
	__u16 sender_ip[2];
	__u8 target_mac[6];
	__u16 target_ip[2];
};

enum {
	ARP_ETHER = 1,
	ARP_REQUEST = 1,
	ARP_REPLY = 2,
};

/* A neighbour solicitation, or an advertisement with the target's hardware address (RFC 4861). */
struct nd_message {
	__u8 type;
	__u8 code;
	__u16 check;
	__u32 flags;
	__u32 target[4];
};

struct nd_link_option {
	__u8 type;
	__u8 len; /* in units of 8 bytes */
	__u8 mac[6];
};

enum {
	ND_OPT_TARGET_LINK = 2,
	ND_HOP_LIMIT = 255,
};
