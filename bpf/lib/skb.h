/* The kernel's own structure of a packet, which shows what the context does not. Reading it is what
 * kfuncs have been for since Linux 6.2. Only the fields that are read are declared, and the loader
 * finds them by name in the running kernel's types. */
#pragma once
#include "bpf.h"

/* Offsets are from the head of the packet's buffer, but csum_offset, which is from csum_start. */
struct sk_buff {
	unsigned long _skb_refdst;
	__u16 mac_header;
	__u16 csum_start;
	__u16 csum_offset;
	__u8 ip_summed : 2;
} __kernel;

extern void *bpf_cast_to_kern_ctx(void *ctx) __ksym;

/* What the loader can say of a field. */
enum { FIELD_OFFSET = 0, FIELD_SHIFT_LEFT = 4, FIELD_SHIFT_RIGHT = 5 };

/* Reads a field of bits within one byte: shifts a word up to its highest bit, and down again. */
#define READ_BITS(object, field)                                                                   \
	((__u64)((__u8 *)(object))[__builtin_preserve_field_info((object)->field, FIELD_OFFSET)]           \
		 << __builtin_preserve_field_info((object)->field, FIELD_SHIFT_LEFT) >>                    \
	 __builtin_preserve_field_info((object)->field, FIELD_SHIFT_RIGHT))
