/* The part of the kernel's BPF interface that the programs use: scalar types, the packet context,
 * helper functions by number and the macros that describe maps. Numbers and layouts are those of
 * the kernel's include/uapi/linux/bpf.h, which are fixed for ever; having them here means that a
 * build needs clang and nothing else. */
#pragma once

typedef unsigned char __u8;
typedef unsigned short __u16;
typedef unsigned int __u32;
typedef unsigned long long __u64;
typedef int __s32;
typedef long long __s64;
typedef _Bool bool;
#define true 1
#define false 0
#define NULL ((void *)0)

#define SEC(name) __attribute__((section(name), used))
#define __always_inline inline __attribute__((always_inline))
#define __noinline __attribute__((noinline))
#define __maybe_unused __attribute__((unused))
#define __ksym __attribute__((section(".ksyms")))
#define __kernel __attribute__((preserve_access_index))
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)
#define memcpy __builtin_memcpy
#define memset __builtin_memset
#define offsetof(type, field) __builtin_offsetof(type, field)

/* Fields of a map definition are encoded in the types of a struct that is never used at run
 * time. */
#define __uint(name, val) int(*name)[val]
#define __type(name, val) __typeof__(val) *name

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define htons(x) ((__u16)__builtin_bswap16(x))
#define htonl(x) ((__u32)__builtin_bswap32(x))
#else
#define htons(x) ((__u16)(x))
#define htonl(x) ((__u32)(x))
#endif
#define ntohs(x) htons(x)
#define ntohl(x) htonl(x)

enum {
	BPF_MAP_TYPE_HASH = 1,
	BPF_MAP_TYPE_ARRAY = 2,
	BPF_MAP_TYPE_PERCPU_ARRAY = 6,
	BPF_MAP_TYPE_LRU_HASH = 9,
	BPF_MAP_TYPE_LPM_TRIE = 11,
	BPF_MAP_TYPE_RINGBUF = 27,
};

enum {
	BPF_ANY = 0,
	BPF_NOEXIST = 1,
	BPF_F_NO_PREALLOC = 1 << 0,
	/* bpf_skb_store_bytes */
	BPF_F_RECOMPUTE_CSUM = 1 << 0,
	/* bpf_l4_csum_replace; the lowest four bits are the size of the field */
	BPF_F_PSEUDO_HDR = 1 << 4,
	BPF_F_MARK_MANGLED_0 = 1 << 5,
	BPF_F_IPV6 = 1 << 7, /* Linux 6.16 */
	/* bpf_skb_set_tunnel_key, bpf_skb_get_tunnel_key */
	BPF_F_TUNINFO_IPV6 = 1 << 0,
	BPF_F_ZERO_CSUM_TX = 1 << 1,
};

/* Where bpf_skb_adjust_room makes room: between the MAC header and the network header. */
enum { BPF_ADJ_ROOM_MAC = 1 };

enum { BPF_F_INGRESS = 1 << 0 }; /* of bpf_redirect: as if the device had received it */

enum {
	TC_ACT_OK = 0,
	TC_ACT_SHOT = 2,
	TC_ACT_REDIRECT = 7,
};

/* The network namespace of the device, for lookups of sockets. */
#define BPF_F_CURRENT_NETNS (-1L)

/* The ends of a socket as packets to it have them: src is its peer. */
struct bpf_sock_tuple {
	union {
		struct {
			__u32 saddr;
			__u32 daddr;
			__u16 sport;
			__u16 dport;
		} ipv4;
		struct {
			__u32 saddr[4];
			__u32 daddr[4];
			__u16 sport;
			__u16 dport;
		} ipv6;
	};
};

struct bpf_sock;

enum {
	AF_INET = 2,
	AF_INET6 = 10,
	BPF_FIB_LOOKUP_SKIP_NEIGH = 1 << 2, /* Linux 6.3 */
	/* What bpf_fib_lookup returns; it has found a device with both of these. */
	BPF_FIB_LKUP_RET_SUCCESS = 0,
	BPF_FIB_LKUP_RET_FRAG_NEEDED = 8,
};

/* The arguments and results of bpf_fib_lookup. */
struct bpf_fib_lookup {
	__u8 family;
	__u8 l4_protocol;
	__u16 sport;
	__u16 dport;
	__u16 tot_len;
	__u32 ifindex; /* in: by which it comes, out: by which it leaves */
	__u32 flowinfo;
	__u32 src[4]; /* of IPv4 the first */
	__u32 dst[4];
	__u32 tbid;
	__u8 smac[6];
	__u8 dmac[6];
};

/* Values of __sk_buff.pkt_type (include/uapi/linux/if_packet.h). */
enum { PACKET_HOST = 0, PACKET_OTHERHOST = 3 };

struct __sk_buff {
	__u32 len;
	__u32 pkt_type;
	__u32 mark;
	__u32 queue_mapping;
	__u32 protocol;
	__u32 vlan_present;
	__u32 vlan_tci;
	__u32 vlan_proto;
	__u32 priority;
	__u32 ingress_ifindex;
	__u32 ifindex;
	__u32 tc_index;
	__u32 cb[5];
	__u32 hash;
	__u32 tc_classid;
	__u32 data;
	__u32 data_end;
	__u32 napi_id;
	__u32 family;
	__u32 remote_ip4;
	__u32 local_ip4;
	__u32 remote_ip6[4];
	__u32 local_ip6[4];
	__u32 remote_port;
	__u32 local_port;
	__u32 data_meta;
	__u64 flow_keys;
	__u64 tstamp;
	__u32 wire_len;
	__u32 gso_segs;
	__u64 sk;
	__u32 gso_size;
};

/* A socket and the address that it names, as the hooks of a cgroup see it. */
struct bpf_sock_addr {
	__u32 user_family;
	__u32 user_ip4; /* network byte order, as all here but families and protocols */
	__u32 user_ip6[4];
	__u32 user_port; /* 16 bits */
	__u32 family;
	__u32 type;
	__u32 protocol;
	__u32 msg_src_ip4;
	__u32 msg_src_ip6[4];
	__u64 sk;
};

/* The kernel requires whole-field writes to a context, which the compiler would otherwise split. */
static __always_inline void set_priority(struct __sk_buff *ctx, __u32 priority)
{
	*(volatile __u32 *)&ctx->priority = priority;
}

struct bpf_tunnel_key {
	__u32 tunnel_id;
	union {
		__u32 remote_ipv4; /* host byte order */
		__u32 remote_ipv6[4];
	};
	__u8 tunnel_tos;
	__u8 tunnel_ttl;
	__u16 tunnel_ext;
	__u32 tunnel_label;
	union {
		__u32 local_ipv4;
		__u32 local_ipv6[4];
	};
};

static void *(*const bpf_map_lookup_elem)(void *map, const void *key) = (void *)1;
static long (*const bpf_map_update_elem)(void *map, const void *key, const void *value,
					 __u64 flags) = (void *)2;
static long (*const bpf_map_delete_elem)(void *map, const void *key) = (void *)3;
static __u64 (*const bpf_ktime_get_ns)(void) = (void *)5;
static long (*const bpf_skb_store_bytes)(struct __sk_buff *skb, __u32 offset, const void *from,
					 __u32 len, __u64 flags) = (void *)9;
static __u32 (*const bpf_get_prandom_u32)(void) = (void *)7;
static long (*const bpf_l3_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to,
					 __u64 size) = (void *)10;
static long (*const bpf_l4_csum_replace)(struct __sk_buff *skb, __u32 offset, __u64 from, __u64 to,
					 __u64 flags) = (void *)11;
static long (*const bpf_skb_get_tunnel_key)(struct __sk_buff *skb, struct bpf_tunnel_key *key,
					    __u32 size, __u64 flags) = (void *)20;
static long (*const bpf_skb_set_tunnel_key)(struct __sk_buff *skb, struct bpf_tunnel_key *key,
					    __u32 size, __u64 flags) = (void *)21;
static long (*const bpf_redirect)(__u32 ifindex, __u64 flags) = (void *)23;
static long (*const bpf_skb_load_bytes)(const void *skb, __u32 offset, void *to,
					__u32 len) = (void *)26;
static __s64 (*const bpf_csum_diff)(__u32 *from, __u32 from_size, __u32 *to, __u32 to_size,
				    __u32 seed) = (void *)28;
static long (*const bpf_skb_change_type)(struct __sk_buff *skb, __u32 type) = (void *)32;
static long (*const bpf_skb_change_tail)(struct __sk_buff *skb, __u32 len,
					 __u64 flags) = (void *)38;
static long (*const bpf_skb_pull_data)(struct __sk_buff *skb, __u32 len) = (void *)39;
static __u64 (*const bpf_get_socket_cookie)(void *ctx) = (void *)46;
static long (*const bpf_skb_adjust_room)(struct __sk_buff *skb, __s32 len_diff, __u32 mode,
					 __u64 flags) = (void *)50;
static long (*const bpf_fib_lookup)(void *ctx, struct bpf_fib_lookup *params, __s32 size, __u32 flags) = (void *)69;
static struct bpf_sock *(*const bpf_sk_lookup_udp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 size,
						   __u64 netns, __u64 flags) = (void *)85;
static long (*const bpf_sk_release)(void *sock) = (void *)86;
static struct bpf_sock *(*const bpf_skc_lookup_tcp)(void *ctx, struct bpf_sock_tuple *tuple, __u32 size,
						    __u64 netns, __u64 flags) = (void *)99;
static __u64 (*const bpf_get_netns_cookie)(void *ctx) = (void *)122;
static void *(*const bpf_ringbuf_reserve)(void *ringbuf, __u64 size, __u64 flags) = (void *)131;
enum { BPF_RB_AVAIL_DATA = 0, BPF_RB_RING_SIZE = 1 }; /* of bpf_ringbuf_query */
static __u64 (*const bpf_ringbuf_query)(void *ringbuf, __u64 flags) = (void *)134;
static void (*const bpf_ringbuf_submit)(void *data, __u64 flags) = (void *)132;
static long (*const bpf_redirect_neigh)(__u32 ifindex, void *params, __u32 params_len,
					__u64 flags) = (void *)152;
static long (*const bpf_redirect_peer)(__u32 ifindex, __u64 flags) = (void *)155;
static __u64 (*const bpf_ktime_get_coarse_ns)(void) = (void *)160;
enum { BPF_MTU_CHK_SEGS = 1 }; /* of bpf_check_mtu: the segments of a large packet, too */
static long (*const bpf_check_mtu)(struct __sk_buff *ctx, __u32 ifindex, __u32 *mtu_len, __s32 len_diff,
				   __u64 flags) = (void *)163;
static long (*const bpf_set_retval)(int retval) = (void *)187;
