/* An IP address of either family. IPv4 is held in the mapped form ::ffff:a.b.c.d, so that one key,
 * one comparison and one map serve both. */
#pragma once
#include "bpf.h"

/* Comparisons have no branches: each would double what the verifier has to look at. */
struct addr {
	union {
		__u8 b[16];
		__u16 h[8];
		__u32 w[4];
		__u64 d[2];
	};
};

static __always_inline void addr_set4(struct addr *a, __u32 v4)
{
	a->w[0] = 0;
	a->w[1] = 0;
	a->w[2] = htonl(0xFFFF);
	a->w[3] = v4;
}

static __always_inline void addr_set6(struct addr *a, const __u32 *v6)
{
	a->w[0] = v6[0];
	a->w[1] = v6[1];
	a->w[2] = v6[2];
	a->w[3] = v6[3];
}

static __always_inline bool addr_equal(const struct addr *a, const struct addr *b)
{
	return ((a->d[0] ^ b->d[0]) | (a->d[1] ^ b->d[1])) == 0;
}

static __always_inline bool addr_is_zero(const struct addr *a)
{
	return (a->d[0] | a->d[1]) == 0;
}

static __always_inline bool addr_is_mapped4(const struct addr *a)
{
	return (a->d[0] | (a->w[2] ^ htonl(0xFFFF))) == 0;
}

/* Multicast of either family, and IPv4 broadcast. */
static __always_inline bool addr_is_multicast(const struct addr *a, bool v6)
{
	if (v6)
		return a->b[0] == 0xFF;
	/* What is between the two is unicast to Linux, and some networks use it. */
	return a->b[12] >= 224 && (a->b[12] < 240 || a->w[3] == 0xFFFFFFFF);
}

/* Addresses that no packet on a network has as its source, but for neighbour discovery:
 * unspecified, loopback, multicast. */
static __always_inline bool addr_is_martian(const struct addr *a, bool v6)
{
	if (addr_is_multicast(a, v6))
		return true;
	if (v6)
		return (a->d[0] | a->w[2] | (a->w[3] & ~htonl(1))) == 0;
	return a->b[12] == 0 || a->b[12] == 127;
}

/* fe80::/10: an address of this very link, so of the host when a pod sends to it. */
static __always_inline bool addr_is_link_local6(const struct addr *a)
{
	return (a->h[0] & htons(0xFFC0)) == htons(0xFE80);
}

static __always_inline bool mac_equal(const __u8 *a, const __u8 *b)
{
	return ((a[0] ^ b[0]) | (a[1] ^ b[1]) | (a[2] ^ b[2]) | (a[3] ^ b[3]) | (a[4] ^ b[4]) |
		(a[5] ^ b[5])) == 0;
}

/* The lower bits tell addresses apart as well as the upper ones. */
static __always_inline __u32 addr_hash(const struct addr *a)
{
	const __u64 golden = 0x9E3779B97F4A7C15ULL;
	__u64 hash = a->d[0] * golden ^ a->d[1];

	return (hash ^ hash >> 32) * golden >> 32;
}
