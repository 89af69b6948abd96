/* Backend selection, for packets of pods, packets from outside and sockets of the node. */
#pragma once
#include "config.h"
#include "maps.h"

/* The translation of a flow to a backend. */
struct lb_target {
	struct addr addr;
	__u16 port;
	__u16 client_port; /* 0: the client's own */
	__u32 flags; /* CT_HAIRPIN, CT_DSR */
	__u32 owner; /* the client's incarnation, 0 if it is not of this node: set before lb_choose */
};

/* Reports whether the client is within the service's source ranges. */
static __always_inline bool lb_source_allowed(const struct lb_service *service, const struct lb_key *key,
					      const struct addr *client)
{
	struct lb_range range = {.bits = 32 + 128, .set = service->set, .addr = *client};

	if (addr_is_zero(&range.addr)) {
		bool v6 = !addr_is_mapped4(&key->addr);

		range.addr.d[0] = v6 ? cfg.node6.d[0] : cfg.node4.d[0];
		range.addr.d[1] = v6 ? cfg.node6.d[1] : cfg.node4.d[1];
	}
	return bpf_map_lookup_elem(&lb_ranges, &range);
}

/* Finds the backend that session affinity gives a client, if it still is one of the service's. */
static __always_inline bool lb_affinity_backend(const struct lb_service *service, const struct lb_affinity_key *who,
						__u32 now, struct lb_target *to)
{
	struct lb_affinity_value *last = bpf_map_lookup_elem(&lb_affinity, who);

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

/* Mixes a word into a hash so that each input bit affects every output bit (the finalizer of
 * MurmurHash3). */
static __always_inline __u64 lb_mix(__u64 hash, __u64 word)
{
	hash ^= word;
	hash ^= hash >> 33;
	hash *= 0xff51afd7ed558ccdULL;
	hash ^= hash >> 33;
	hash *= 0xc4ceb9fe1a85ec53ULL;
	hash ^= hash >> 33;
	return hash;
}

/* Finds the slot of a client's flow in the service's Maglev table. What is hashed is the same on
 * every node: the client and the service, but not the frontend's address. */
static __always_inline bool lb_maglev_slot(const struct lb_service *service, const struct addr *client,
					   __u16 port, __u32 *slot)
{
	__u64 hash = lb_mix(service->id, client->d[0]);
	struct lb_part key = {.set = service->set};

	hash = lb_mix(hash, client->d[1]);
	/* With session affinity all flows of a client go to one backend, on other nodes too. */
	if (!service->affinity)
		hash = lb_mix(hash, port);
	__u32 cell = (__u32)hash % LB_TABLE_CELLS;
	key.part = cell / LB_PART_CELLS;
	struct lb_cells *part = bpf_map_lookup_elem(&lb_tables, &key);
	if (!part)
		return false;
	cell %= LB_PART_CELLS;
	/* For the verifier; the compiler knows it. */
	asm volatile("" : "+r"(cell));
	if (cell >= LB_PART_CELLS)
		return false;
	*slot = part->slot[cell];
	return true;
}

static __always_inline bool lb_select_backend(const struct lb_service *service, const struct addr *client,
					      __u16 port, struct lb_target *to)
{
	struct lb_slot slot = {.set = service->set};

	if (!(service->flags & LB_MAGLEV))
		slot.slot = bpf_get_prandom_u32() % service->count;
	else if (!lb_maglev_slot(service, client, port, &slot.slot))
		return false;
	struct lb_backend *backend = bpf_map_lookup_elem(&lb_slots, &slot);

	if (!backend)
		return false;
	to->addr = backend->addr;
	to->port = backend->port;
	return true;
}

enum { LB_NONE = 0, LB_CHOSEN = 1 };

/* Chooses a backend for a packet to a frontend: the one of session affinity, if the service has it,
 * or any. Returns LB_NONE if the packet is for no service, LB_CHOSEN, or a drop reason negated. The
 * client is zero if it is the node itself; its port is in network byte order. */
__noinline int lb_choose(const struct lb_key *key, const struct addr *client, __u16 port, __u32 now,
			 struct lb_target *to)
{
	int reason = DROP_SERVICE_CHANGING;

	if (!key || !client || !to)
		return LB_NONE;
	/* The frontend may get another set between its lookup and those of the set: then try once
	 * more. */
	for (int i = 0; i < 2; i++) {
		struct lb_service *found = bpf_map_lookup_elem(&lb_services, key);

		if (!found)
			return LB_NONE;
		struct lb_service service = *found;

		to->flags = service.flags & LB_DSR ? CT_DSR : 0;
		if (!service.count)
			return service.flags & LB_REMOTE_ONLY ? -DROP_NO_LOCAL_BACKEND : -DROP_NO_BACKEND;
		if ((service.flags & LB_SOURCE_RANGES) && !lb_source_allowed(&service, key, client)) {
			reason = DROP_SOURCE_RANGE;
			continue;
		}
		if (!service.affinity) {
			if (lb_select_backend(&service, client, port, to))
				return LB_CHOSEN;
			continue;
		}
		struct lb_affinity_key who = {.addr = *client, .id = service.id, .owner = to->owner};
		if (lb_affinity_backend(&service, &who, now, to))
			return LB_CHOSEN;
		if (!lb_select_backend(&service, client, port, to))
			continue;
		struct lb_affinity_value choice = {
			.backend = {.addr = to->addr, .port = to->port},
			.expires = now + service.affinity,
		};
		bpf_map_update_elem(&lb_affinity, &who, &choice, BPF_ANY);
		return LB_CHOSEN;
	}
	return -reason;
}
