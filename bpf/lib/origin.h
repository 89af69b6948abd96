/* Where a packet that leaves has been routed or made: in this node's network namespace, or in
 * another that has a device on this node's. What else the context shows goes along from one
 * namespace to the next when a packet crosses by a macvlan, an ipvlan or a VLAN, where anyone with
 * CAP_NET_ADMIN chooses all of it: tc_index, the hardware address, and the number of the interface
 * that the packet came in by. The kernel's own structures show it. */
#pragma once
#include "config.h"
#include "skb.h"

struct net {
	__u64 net_cookie;
} __kernel;

typedef struct {
	struct net *net;
} possible_net_t;

struct net_device {
	int ifindex;
	possible_net_t nd_net;
} __kernel;

struct dst_entry {
	struct net_device *dev;
} __kernel;

extern void *bpf_rdonly_cast(const void *object, __u32 type) __ksym;

/* The lowest bit of a packet's route says that the packet holds no reference to it. */
enum { DST_NOREF = 1 };

/* Reports whether this node's stack has routed a packet. What goes past the stack, through packet
 * sockets and by redirects without a neighbour, has no route. A device in ipvlan's mode l3 has this
 * node route what others send. */
static __always_inline bool routed_here(struct __sk_buff *ctx)
{
	struct sk_buff *skb = bpf_cast_to_kern_ctx(ctx);
	struct dst_entry *dst = (void *)(skb->_skb_refdst & ~(unsigned long)DST_NOREF);

	if (!dst)
		return false;
	dst = bpf_rdonly_cast(dst, __builtin_btf_type_id(*(struct dst_entry *)0, 1));
	/* A route that was deleted meanwhile points to the blackhole device: it has no index and is
	 * in the initial namespace, whatever namespace the route was in. */
	return dst->dev->ifindex && dst->dev->nd_net.net->net_cookie == cfg.netns_cookie;
}
