/* Counters and events. Counting is unconditional; an event is written only if its kind is
 * requested, and counted as lost if the buffer is full. */
#pragma once
#include "clock.h"
#include "maps.h"

enum event_type {
	EVENT_DROP = 1,
	EVENT_VERDICT = 2,
	EVENT_TRACE = 3,
};

enum program {
	PROGRAM_FROM_POD = 1,
	PROGRAM_TO_POD,
	PROGRAM_FROM_OVERLAY,
	PROGRAM_FROM_HOST,
	PROGRAM_FROM_NETDEV,
	PROGRAM_TO_NETDEV,
};

enum outcome {
	OUTCOME_NONE = 0,
	OUTCOME_ENDPOINT, /* delivered to a local pod */
	OUTCOME_OVERLAY,  /* encapsulated towards another node */
	OUTCOME_STACK,	  /* handed to the host's network stack */
	OUTCOME_ANSWERED, /* answered in place (ARP, neighbour discovery) */
	OUTCOME_DEVICE,	  /* sent out through the node's device */
	OUTCOME_AUDITED,  /* of a verdict: denied, and passed in audit mode */
};

enum ct_state {
	CT_STATE_NONE = 0,
	CT_STATE_NEW,
	CT_STATE_ESTABLISHED,
	CT_STATE_REPLY,
	CT_STATE_RELATED,
	CT_STATE_RECHECKED,
};

/* What is known of a packet while it is processed. */
struct report {
	__u32 src_identity;
	__u32 dst_identity;
	__u16 endpoint;
	__u8 program;
	__u8 direction;
	__u8 ct_state : 4;
	__u8 match : 3; /* what of the packet a rule has matched, in a verdict */
	__u8 flow_update : 1; /* the packet changes the state of its flow, or is a sample of it */
	__u8 outcome;
	__u8 type;
	__u8 reason;
};

/* The kinds of event that are still requested. Not inlined, as there hardly ever is one: its
 * callers have no stack to spare. */
__noinline __u32 monitor_active(__u32 request)
{
	/* The difference of two ticks, signed, with the bits that a request has for a tick. */
	__s32 left = (request & ~MONITOR_ALL) - (ct_now() << MONITOR_BITS);

	return left > 0 ? request & MONITOR_ALL : 0;
}

static __always_inline __u32 monitor_flags(void)
{
	__u32 zero = 0;
	__u32 *request = bpf_map_lookup_elem(&monitor, &zero);

	return request && unlikely(*request) ? monitor_active(*request) : 0;
}

static __always_inline void count(struct __sk_buff *ctx, __u32 reason, __u32 direction)
{
	__u32 index = reason * 2 + direction;
	struct metric *metric = bpf_map_lookup_elem(&metrics, &index);

	if (metric) {
		metric->packets++;
		metric->bytes += ctx->len;
	}
}

/* How many events within a tick and on a processor a sender may put into a buffer that is half
 * full. */
enum { EVENT_SHARE = 64 };

/* Reports whether the sender of a packet is within its share of a buffer that is half full: a
 * sender that floods leaves the rest to others. Senders are told apart by interface and identity,
 * of which a pod of this node can choose neither. */
static __always_inline bool within_share(const struct __sk_buff *ctx, const struct report *report, __u32 kind)
{
	__u32 sender = (ctx->ifindex * 31 + report->src_identity) * 0x9E3779B1u >> 22;
	__u32 cell = kind * EVENT_SENDERS + sender, now = ct_now();
	struct event_share *share = bpf_map_lookup_elem(&event_shares, &cell);

	if (!share)
		return false;
	if (share->tick != now) {
		share->tick = now;
		share->events = 0;
	}
	return share->events++ < EVENT_SHARE;
}

/* Finds room for an event in the buffer of its kind. Returns NULL if there is none. */
static __always_inline struct event *event_room(void *buffer, const struct __sk_buff *ctx,
						const struct report *report, __u32 kind)
{
	if (bpf_ringbuf_query(buffer, BPF_RB_AVAIL_DATA) > bpf_ringbuf_query(buffer, BPF_RB_RING_SIZE) / 2 &&
	    !within_share(ctx, report, kind))
		return NULL;
	return bpf_ringbuf_reserve(buffer, sizeof(struct event), 0);
}

__noinline int emit(struct __sk_buff *ctx, const struct report *report)
{
	struct event *event;
	__u32 kind;

	if (!report)
		return 0;
	switch (report->type) {
	case EVENT_DROP:
		kind = EVENT_DROP - 1;
		event = event_room(&events_drop, ctx, report, kind);
		break;
	case EVENT_VERDICT:
		kind = EVENT_VERDICT - 1;
		event = event_room(&events_verdict, ctx, report, kind);
		break;
	default:
		kind = EVENT_TRACE - 1;
		event = event_room(&events_trace, ctx, report, kind);
	}
	if (!event) {
		__u64 *lost = bpf_map_lookup_elem(&events_lost, &kind);

		if (lost)
			(*lost)++;
		return 0;
	}
	event->time = bpf_ktime_get_ns();
	event->type = report->type;
	event->reason = report->reason;
	event->direction = report->direction;
	event->ct_state = report->ct_state;
	event->program = report->program;
	event->outcome = report->outcome;
	event->endpoint = report->endpoint;
	event->src_identity = report->src_identity;
	event->dst_identity = report->dst_identity;
	event->ifindex = ctx->ifindex;
	event->length = ctx->len;
	event->flow_update = report->flow_update;
	event->match = report->match;
	memset(event->pad, 0, sizeof(event->pad));
	memset(event->packet, 0, sizeof(event->packet));

	__u32 captured = ctx->len;
	if (captured > EVENT_CAPTURE)
		captured = EVENT_CAPTURE;
	if (captured == 0 || bpf_skb_load_bytes(ctx, 0, event->packet, captured))
		captured = 0;
	event->captured = captured;
	bpf_ringbuf_submit(event, 0);
	return 0;
}

/* The action for a dropped packet. One whose TTL has run out, but which both policies let pass, is
 * left to the stack where that is about to route it: the stack does not forward it but sends a
 * rate-limited ICMP error, so that a traceroute shows this node. */
static __always_inline int dropped_action(struct __sk_buff *ctx, const struct report *report)
{
	bool routed = report->program == PROGRAM_FROM_POD || report->program == PROGRAM_FROM_OVERLAY ||
		      report->program == PROGRAM_FROM_NETDEV;

	if (report->reason != DROP_TTL_EXCEEDED || !routed)
		return TC_ACT_SHOT;
	if (ctx->pkt_type != PACKET_HOST)
		bpf_skb_change_type(ctx, PACKET_HOST);
	return TC_ACT_OK;
}

/* Counts and reports a packet, and returns its tc action: result is that, or a drop reason
 * negated. */
static __always_inline int finish(struct __sk_buff *ctx, struct report *report, int result)
{
	bool dropped = result < 0;

	report->reason = dropped ? -result : FORWARDED;
	count(ctx, report->reason, report->direction);
	__u32 request = monitor_flags();
	if (unlikely(request)) {
		__u32 kinds = dropped ? MONITOR_DROPS : MONITOR_TRACES | (report->flow_update ? MONITOR_FLOW_UPDATES : 0);

		report->type = dropped ? EVENT_DROP : EVENT_TRACE;
		if (request & kinds)
			emit(ctx, report);
	}
	return unlikely(dropped) ? dropped_action(ctx, report) : result;
}
