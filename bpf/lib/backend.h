/* The choice of a backend among those of a frontend, for whoever asks: a pod's packet or a process of the
 * node. */
#pragma once
#include "config.h"
#include "maps.h"

/* Where the packets of a flow go instead. */
struct lb_target {
	struct addr addr;
	__u16 port;
	__u16 client_port; /* 0: the client's own */
	__u32 flags; /* CT_HAIRPIN */
};

/* The backend that a client has had, if it still is one of the service's. */
static __always_inline bool lb_last(const struct lb_service *service, const struct lb_client *who,
				    __u32 now, struct lb_target *to)
{
	struct lb_choice *last = bpf_map_lookup_elem(&lb_affinity, who);

	if (!last || (__s32)(last->expires - now) <= 0)
		return false;
	struct lb_member member = {.backend = last->backend, .set = service->set};
	if (!bpf_map_lookup_elem(&lb_members, &member))
		return false;
	to->addr = member.backend.addr;
	to->port = member.backend.port;
	last->expires = now + service->affinity;
	return true;
}

static __always_inline bool lb_any(const struct lb_service *service, struct lb_target *to)
{
	struct lb_slot slot = {
		.set = service->set,
		.slot = bpf_get_prandom_u32() % service->count,
	};
	struct lb_backend *backend = bpf_map_lookup_elem(&lb_slots, &slot);

	if (!backend)
		return false;
	to->addr = backend->addr;
	to->port = backend->port;
	return true;
}

enum { LB_NONE = 0, LB_CHOSEN = 1 };

/* Chooses a backend for a packet to a frontend: the one that the client has had, if the service wants
 * that, or any. Returns LB_NONE if the packet is for no service, LB_CHOSEN, or a drop reason negated.
 * client is zero if it is the node itself. */
__noinline int lb_choose(const struct lb_key *key, const struct addr *client, __u32 now,
			 struct lb_target *to)
{
	if (!key || !client || !to)
		return LB_NONE;
	/* Between reading the frontend and the slot, both may be replaced: then look once more. */
	for (int i = 0; i < 2; i++) {
		struct lb_service *found = bpf_map_lookup_elem(&lb_services, key);

		if (!found)
			return LB_NONE;
		struct lb_service service = *found;

		if (!service.count)
			return -DROP_NO_BACKEND;
		if (!service.affinity) {
			if (lb_any(&service, to))
				return LB_CHOSEN;
			continue;
		}
		struct lb_client who = {.addr = *client, .id = service.id};
		if (lb_last(&service, &who, now, to))
			return LB_CHOSEN;
		if (!lb_any(&service, to))
			continue;
		struct lb_choice choice = {
			.backend = {.addr = to->addr, .port = to->port},
			.expires = now + service.affinity,
		};
		bpf_map_update_elem(&lb_affinity, &who, &choice, BPF_ANY);
		return LB_CHOSEN;
	}
	return -DROP_NO_BACKEND;
}
