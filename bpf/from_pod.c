//go:build ignore

/* Packets that a pod sends: ingress of the host side of its veth pair.
 *
 * The interface alone identifies the sender, so the packet's source is checked against the
 * endpoint's entry first. A packet for a service is translated to a backend. For another pod of
 * this node, both policies are enforced here and the packet goes straight to that pod; for a pod of
 * another node it is encapsulated; the rest goes to the stack. */
#include "lib/forward.h"
#include "lib/lb.h"
#include "lib/neighbour.h"
#include "lib/nodeport.h"
#include "lib/offload.h"
#include "lib/reject.h"

/* What is known of a destination that is not a local pod. */
static __always_inline __u32 destination(const struct packet *p, struct ipcache_value **entry)
{
	if (is_host(&p->dst, p->v6))
		return ID_HOST;
	*entry = ipcache_lookup(&p->dst, p->v6);
	return *entry ? (*entry)->identity : world_identity(p->v6);
}

static __always_inline int from_pod_packet(struct __sk_buff *ctx, struct report *report)
{
	__u32 ifindex = ctx->ifindex;
	struct endpoint *ep = bpf_map_lookup_elem(&endpoints, &ifindex);
	struct packet p;
	int reason;
	__u16 type;
	bool group;

	if (!ep)
		return -DROP_NO_ENDPOINT;
	report->endpoint = ep->id;
	report->src_identity = ep->identity;
	{ /* a scope of its own: its stack space is reused afterwards */
		struct eth_header eth;

		if (READ(ctx, 0, &eth))
			return -DROP_MALFORMED;
		/* A tag taken off the frame would hide what else it carries. */
		if (ctx->vlan_present)
			return -DROP_UNKNOWN_L3;
		type = eth.type;
		group = eth.dst[0] & 1;
		if (type != htons(ETH_P_ARP) && !mac_equal(eth.src, ep->mac))
			return -DROP_INVALID_SOURCE_MAC;
	}
	if (type == htons(ETH_P_ARP))
		return answer_arp(ctx, ep, report);

	reason = parse_network(ctx, &p, type);
	if (reason)
		return -reason;
	if (p.v6 && p.proto == PROTO_ICMPV6 && !p.fragment) {
		reason = parse_transport(ctx, &p, 0);
		if (reason)
			return -reason;
		if (p.kind == KIND_NEIGHBOUR)
			return answer_solicitation(ctx, ep, &p, report);
	}
	if (addr_is_multicast(&p.dst, p.v6) || group)
		return -DROP_MULTICAST;
	/* The unspecified address would equal that of a family the endpoint lacks. */
	if (!addr_equal(&p.src, p.v6 ? &ep->ip6 : &ep->ip4) || addr_is_zero(&p.src))
		return -DROP_INVALID_SOURCE_IP;
	reason = endpoint_ready(ep);
	if (reason)
		return -reason;
	if (unlikely(p.proto == PROTO_GRE))
		return -DROP_TUNNEL_NOT_FROM_NODE;
	/* Only now that the source is known to be the pod's own: fragments are stored from here
	 * on. */
	if (!p.kind) {
		reason = parse_transport(ctx, &p, frag_owner_of(ep, EGRESS));
		if (reason)
			return -reason;
	}
	if (misplaces_checksum(ctx, &p))
		return -DROP_MALFORMED;

	struct found found = {};
	struct sides *sides = &found.c.sides;
	side_src(sides, ep);
	reason = find(ctx, &p, report, &found);
	if (!reason)
		reason = translate(ctx, &p, &found, LB_SCOPE_INTERNAL);
	/* Enforced here and not in netfilter, whose tables others flush. After translation, so that
	 * a Service cannot be used to reach a forbidden backend. */
	if (!reason && unlikely(is_not_for_pods(&p.dst)))
		reason = DROP_NOT_FOR_PODS;
	/* A reply from the backend's address would not match the client's socket. */
	if (unlikely(reason == DROP_NO_BACKEND || (reason == DROP_NOT_FOR_PODS && !found.c.nat.on))) {
		reason = reject(ctx, &p, report, reason);
		if (!reason)
			return answer(ctx, report);
	}
	if (reason)
		return -reason;

	struct endpoint *local;
	struct ipcache_value *remote = NULL;
	if (unlikely(is_hairpin(&found))) {
		/* Policy never denies a pod's traffic to itself. */
		local = ep;
		*sides = (struct sides){.src_identity = ep->identity, .dst_identity = ep->identity,
				       .src_owner = ep->incarnation, .dst_owner = ep->incarnation,
				       .src_endpoint = ep->id};
	} else {
		local = endpoint_at(&p.dst);
		if (local) {
			reason = endpoint_ready(local);
			if (reason) {
				report->dst_identity = local->identity;
				report->direction = INGRESS;
				report->endpoint = local->id;
				return -reason;
			}
			side_dst(sides, local);
		} else {
			if (is_loopback(&p.dst, p.v6))
				return -DROP_NO_ENDPOINT;
			sides->dst_identity = destination(&p, &remote);
			/* After translation, so that a Service cannot be used to reach a forbidden
			 * backend. */
			if (unlikely(misuses_tunnel(&p, remote)))
				return -DROP_TUNNEL_NOT_FROM_NODE;
			if (unlikely(is_node(sides->dst_identity) || sides->dst_identity == ID_HOST))
				sides->dst_identity = reply_identity(&found, sides->dst_identity);
		}
	}
	reason = ct_check_found(ctx, &p, report, &found);
	if (reason)
		return -reason;
	if (local) {
		count(ctx, FORWARDED, EGRESS);
		return deliver(ctx, &p, local, report);
	}
	/* A reply to a client outside, with a service's address. */
	if (cfg.node_port && unlikely(!addr_equal(&p.src, p.v6 ? &ep->ip6 : &ep->ip4))) {
		int action = send_out(ctx, &p, report);

		if (likely(action < TOO_BIG))
			return action;
		reason = restore_reply(ctx, &p, &found.c);
		if (reason)
			return -reason;
		report_answered(ctx, report, DROP_MTU_EXCEEDED);
		reason = answer_too_big(ctx, &p, action - TOO_BIG);
		return reason ? -reason : answer(ctx, report);
	}
	if (cfg.tunnel && has_tunnel(remote))
		return encapsulate(ctx, remote, ep->identity, report);
	/* tc stores it in tc_index when it passes the packet on. */
	ctx->tc_classid = SENT_BY_POD;
	report->outcome = OUTCOME_STACK;
	return TC_ACT_OK;
}

SEC("tc")
int from_pod(struct __sk_buff *ctx)
{
	struct report report = {.program = PROGRAM_FROM_POD, .direction = EGRESS};

	return finish(ctx, &report, from_pod_packet(ctx, &report));
}

/* Dual-licensed, see LICENSE.GPL-2.0: the kernel has bpf_fib_lookup for GPL programs only. */
char license_name[] SEC("license") = "GPL";
