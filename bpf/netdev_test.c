//go:build ignore

/* to_netdev with the answer of routed_here made up: a test packet has no route, so the mark says
 * that it is to be as one that this node's stack has not routed. */
#include "lib/origin.h"

static __always_inline bool routed_unless_marked(struct __sk_buff *ctx)
{
	return !ctx->mark;
}

#define routed_here routed_unless_marked
#include "to_netdev.c"
