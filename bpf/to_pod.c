//go:build ignore

/* Packets that the host's network stack sends to a pod: egress of the host side of its veth pair.
 * They come from the host itself, from outside the cluster, and with native routing from other nodes;
 * what comes from local pods or the overlay is put into the pod without passing here. */
#include "lib/forward.h"

/* Finds out who is behind a source address. Returns 0 or a drop reason. */
static __always_inline int source(const struct packet *p, struct sides *s)
{
	if (is_host(&p->src, p->v6)) {
		s->src_identity = ID_HOST;
		return 0;
	}
	struct endpoint *local = endpoint_at(&p->src);
	if (local) {
		s->src_identity = local->identity;
		s->src_owner = local->incarnation;
		return 0;
	}
	struct ipcache_value *entry = ipcache_lookup(&p->src, p->v6);
	/* Pods of other nodes are heard through the overlay or not at all: anyone on the underlay
	 * could claim to be one. */
	if (cfg.tunnel && has_tunnel(entry))
		return DROP_INVALID_SOURCE_IP;
	s->src_identity = entry ? entry->identity : world_identity(p->v6);
	return 0;
}

static __always_inline int to_pod_packet(struct __sk_buff *ctx, struct report *report)
{
	__u32 ifindex = ctx->ifindex;
	struct endpoint *ep = bpf_map_lookup_elem(&endpoints, &ifindex);
	struct sides sides = {};
	struct eth_header eth;
	struct packet p;
	int reason;

	if (!ep)
		return -DROP_NO_ENDPOINT;
	report->endpoint = ep->id;
	report->dst_identity = ep->identity;
	if (READ(ctx, 0, &eth))
		return -DROP_MALFORMED;
	/* The host's own questions; a pod cannot cause them, and they carry nothing else. */
	if (eth.type == htons(ETH_P_ARP)) {
		report->outcome = OUTCOME_ENDPOINT;
		return TC_ACT_OK;
	}
	reason = parse_network(ctx, &p, eth.type);
	if (reason)
		return -reason;
	if (addr_is_multicast(&p.dst, p.v6))
		return -DROP_MULTICAST;
	if (!addr_equal(&p.dst, p.v6 ? &ep->ip6 : &ep->ip4))
		return -DROP_NO_ENDPOINT;
	reason = endpoint_ready(ep);
	if (reason)
		return -reason;
	reason = parse_transport(ctx, &p);
	if (reason)
		return -reason;
	reason = source(&p, &sides);
	if (reason)
		return -reason;
	side_dst(&sides, ep);
	reason = judge(ctx, &p, &sides, report);
	if (reason)
		return -reason;
	report->outcome = OUTCOME_ENDPOINT;
	return TC_ACT_OK;
}

SEC("tc")
int to_pod(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_TO_POD, .direction = INGRESS};

	return finish(ctx, &report, to_pod_packet(ctx, &report));
}

char license_name[] SEC("license") = "Apache-2.0";
