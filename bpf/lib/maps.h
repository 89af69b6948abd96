/* Every map, its key and its value. User space writes endpoints, addresses, rule sets, policy and
 * ipcache; the programs write conntrack, fragments, metrics and events. Sizes are defaults that the
 * loader overrides. All structs are free of implicit padding. */
#pragma once
#include "addr.h"
#include "reason.h"

enum {
	ENDPOINT_LOCKED = 1 << 0,
	/* Audit mode: packets that its policy denies are reported and pass. */
	ENDPOINT_AUDIT = 1 << 1,
};

/* A local endpoint. The same value is stored under the interface index and under each address, so
 * that either way one lookup gives everything. */
struct endpoint {
	struct addr ip4; /* zero: family absent */
	struct addr ip6;
	__u32 ifindex;
	__u32 identity;
	__u32 rule_set;
	__u32 generation;
	__u32 incarnation; /* whose the flows are: never another endpoint's, and never 0 */
	__u16 id;
	__u8 flags;
	__u8 pad;
	__u8 mac[6];
	__u8 host_mac[6];
	__u8 pad2[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct endpoint);
} endpoints SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 8192);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, struct endpoint);
} addresses SEC(".maps");

enum {
	INGRESS = 0,
	EGRESS = 1,
};

/* Bits of rule_set.key_classes: bit n (0 to 16) is set if some entry has a protocol and 16-n port
 * bits, bit 17 if some entry has no protocol. So the lowest bit set is the most specific. */
enum { KEY_CLASS_ANY_PORT = 16, KEY_CLASS_ANY_PROTO = 17, KEY_CLASSES_WITH_RANGE = 0xFFFE };

/* Second index of rule_set.key_classes: how an entry matches the peer. */
enum {
	PEER_ONE = 0, /* one identity */
	PEER_ANY = 1,
	PEER_BLOCK = 2, /* a block of addresses: an identity of a scope of its own */
	PEER_KINDS = 3,
};

/* What a rule set contains, so that a lookup probes only for what may be there. Indexed by
 * direction, then kind of peer. */
struct rule_set {
	__u8 enforced[2];
	__u8 pad[2];
	__u32 key_classes[2][PEER_KINDS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 4096);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct rule_set);
} rule_sets SEC(".maps");

struct policy_key {
	__u32 rule_set;
	__u32 identity;
	__u16 port; /* host byte order, bits beyond port_bits are 0 */
	__u8 port_bits;
	__u8 proto;
	__u8 direction;
	__u8 pad[3];
};

/* The verdict of ordinary policies in an entry. */
enum ordinary {
	ORDINARY_ALLOW = 0,
	ORDINARY_DENY,
	ORDINARY_SILENT,
};

struct policy_value {
	__u8 ordinary;
	__u8 pad;
	/* The first rule of the tier before ordinary policies, and of that after them: its place,
	 * then two bits of what it does (enum action). 0: none. */
	__u16 admin;
	__u16 baseline;
	__u8 pad2[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct policy_key);
	__type(value, struct policy_value);
} policy SEC(".maps");

/* The family stands in front, so that ::/0 does not match IPv4 in its mapped form. */
struct prefix {
	__u32 bits; /* 32 more than the prefix has */
	__u32 family; /* 4 or 6 */
	__u32 addr[4]; /* IPv4: the first word */
};

/* Makes the prefix that is one address, given as the two halves of a struct addr. */
static __always_inline void prefix_set(struct prefix *key, __u64 address0, __u64 address1, bool v6)
{
	if (v6) {
		key->bits = 32 + 128;
		key->family = 6;
		key->addr[0] = address0;
		key->addr[1] = address0 >> 32;
		key->addr[2] = address1;
		key->addr[3] = address1 >> 32;
		return;
	}
	key->bits = 32 + 32;
	key->family = 4;
	key->addr[0] = address1 >> 32;
	key->addr[1] = 0;
	key->addr[2] = 0;
	key->addr[3] = 0;
}

enum {
	IPCACHE_TUNNEL4 = 1 << 0,
	IPCACHE_TUNNEL6 = 1 << 1,
};

struct ipcache_value {
	struct addr tunnel;
	__u32 identity;
	__u32 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 524288);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, struct ipcache_value);
} ipcache SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, struct ipcache_value);
} ipcache_prefix SEC(".maps");

/* The other nodes, by the addresses that they have outside of the tunnel: who may send through it,
 * and at whose ports services are found. */
struct tunnel_peer {
	__u32 node; /* the same for all addresses of a node */
	/* The identities that a node may send besides the reserved ones. */
	__u32 first;
	__u32 last;
	/* The node is of this cluster: it may also send reserved identities that have one meaning
	 * in the cluster. */
	__u32 same_cluster;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct addr);
	__type(value, struct tunnel_peer);
} tunnel_peers SEC(".maps");

/* The interfaces besides the native device that connect the nodes, by index: those of a cloud. Each
 * has its programs before it has an entry. */
struct interface {
	__u8 mac[6];
	__u8 pad[2];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 128);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, __u32);
	__type(value, struct interface);
} interfaces SEC(".maps");

/* Blocks of addresses that rules name, and the identities that stand for them in rule sets. They
 * are no address's own: it keeps its identity beside that of the block. */
struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct prefix);
	__type(value, __u32);
} blocks SEC(".maps");

/* Which identities of pods policy does not know, a bit for each: see policy_verdict. The first bit
 * is set if the map has been written. */
enum { UNKNOWN_PER_WORD = 64, UNKNOWN_WORDS = (1 << 24) / UNKNOWN_PER_WORD };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, UNKNOWN_WORDS);
	__type(key, __u32);
	__type(value, __u64);
} unknown_identities SEC(".maps");

/* A flow, whichever way its packets go: a is the lower (address, port). */
struct ct_key {
	struct addr a;
	struct addr b;
	__u16 port_a; /* network byte order */
	__u16 port_b;
	__u8 proto;
	__u8 collision; /* of a CT_SERVICE: another flow has this tuple, see lb.h */
	__u8 pad[2];
};

enum {
	CT_OPENED_BY_B = 1 << 0,
	CT_SEEN_REPLY = 1 << 1,
	CT_FIN_FORWARD = 1 << 2,
	CT_FIN_REVERSE = 1 << 3,
	CT_RST = 1 << 4,
	/* The policy of the local source, or destination, has allowed the flow. */
	CT_SRC_CHECKED = 1 << 5,
	CT_DST_CHECKED = 1 << 6,
	/* Not a flow, but the backend of one that is addressed to a service: see lb.h. */
	CT_SERVICE = 1 << 7,
	/* The flow was addressed to a service: its replies come from there. */
	CT_TRANSLATED = 1 << 8,
	/* A pod talks to itself through a service: its own address is replaced by the loopback
	 * address. */
	CT_HAIRPIN = 1 << 9,
	/* DSR: the client addressed another node than the backend's, and the backend's node
	 * replies directly: see dsr.h. */
	CT_DSR = 1 << 11,
	/* Made on behalf of an endpoint beyond its share: may be displaced by others that are. */
	CT_EXCESS = 1 << 12,
	/* From here on, eight bits each: the TCP flags seen in each direction, of those that are
	 * reported. */
	CT_TCP_FLAGS_FORWARD = 16,
	CT_TCP_FLAGS_REVERSE = 24,
};

struct ct_value {
	/* Approximate when two processors count at once, and of four billion packets the rest. */
	__u32 forward_packets;
	__u32 reverse_packets;
	__u32 src_identity; /* src is the side that opened the flow */
	__u32 dst_identity;
	__u32 src_generation;
	__u32 dst_generation; /* CT_SERVICE: the incarnation of the backend */
	/* The incarnations of the endpoints of this node that the flow belongs to, 0 where there is
	 * none. */
	__u32 src_owner;
	__u32 dst_owner;
	__u32 expires; /* tick */
	__u32 flags;
	struct addr nat; /* CT_SERVICE: the backend; CT_TRANSLATED: the service */
	__u16 nat_port; /* likewise, network byte order */
	/* CT_SERVICE: the port to send from instead of the client's own; CT_TRANSLATED: the
	 * client's own. 0 if the port stays as it is. */
	__u16 client_port;
	__u16 masquerade_port; /* the source port after SNAT, 0 without */
	__u16 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 262144);
	__type(key, struct ct_key);
	__type(value, struct ct_value);
} ct SEC(".maps");

/* How many conntrack entries an endpoint has, by its ID; 0 is the node itself and clients
 * outside. */
struct ct_account {
	__u32 entries; /* what was there when the agent counted last, and what has been made since */
	__u32 share; /* what it may hold, 0: anything */
	__u32 counted; /* tick at which the agent counted: an old count limits nothing */
	__u32 excess; /* entries made beyond the share */
	__u32 slots; /* how many ct_excess has */
};

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 65536);
	__type(key, __u32);
	__type(value, struct ct_account);
} ct_accounts SEC(".maps");

/* The entries beyond shares. A new one takes a random slot and evicts the entry that had it. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 32768);
	__type(key, __u32);
	__type(value, struct ct_key);
} ct_excess SEC(".maps");

/* SNAT bindings: the client behind a port of the node, towards one port of a backend. A binding in
 * use must never be evicted, so this is no LRU map. */
struct masquerade_key {
	struct addr node;
	struct addr backend;
	__u16 port; /* network byte order, as all here */
	__u16 backend_port;
	__u8 proto;
	__u8 pad[3];
};

struct masquerade_value {
	struct addr client;
	__u32 expires; /* tick: that of the flow */
	__u16 client_port; /* as the flow has it */
	__u8 closed; /* the flow's connection: see nodeport.h */
	__u8 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct masquerade_key);
	__type(value, struct masquerade_value);
} masquerade SEC(".maps");

/* How many entries of masquerade there are for clients whose addresses have one hash: see
 * nodeport.h. */
enum { MASQUERADE_ACCOUNTS = 256 };

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, MASQUERADE_ACCOUNTS);
	__type(key, __u32);
	__type(value, __u32);
} masquerade_accounts SEC(".maps");

/* A slot for the first fragment of a datagram: an endpoint's, or the node's own, see fragment.h. */
struct frag_key {
	__u32 owner; /* the incarnation of the endpoint, 0 for the node */
	__u16 slot;
	__u8 direction;
	__u8 pad;
};

struct frag_value {
	struct addr src;
	struct addr dst;
	__u32 id;
	__u32 seen; /* tick */
	__u16 sport;
	__u16 dport;
	__u8 proto;
	__u8 kind;
	__u8 icmp_type;
	__u8 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 131072);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct frag_key);
	__type(value, struct frag_value);
} fragments SEC(".maps");

/* The clients that a frontend is for. A service may treat clients outside of the cluster
 * differently, and a loopback address (127.0.0.1) is for the node's own processes only. A NodePort
 * that a pod addresses at a remote node is load-balanced here: its address in the key is 0. */
enum {
	LB_SCOPE_INTERNAL = 0,
	LB_SCOPE_EXTERNAL = 1,
	LB_SCOPE_NODE = 2,
	LB_SCOPE_REMOTE_NODE = 3,
};

struct lb_key {
	struct addr addr;
	__u16 port; /* network byte order */
	__u8 proto;
	__u8 scope;
	__u8 pad[4];
};

enum {
	/* No backend here, but some on other nodes that this frontend may not use. Packets are
	 * dropped without a reply, as another node would serve the client. */
	LB_REMOTE_ONLY = 1 << 0,
	/* Only clients within lb_ranges are served. */
	LB_SOURCE_RANGES = 1 << 1,
	/* The set has a Maglev table: a flow gets the same backend on every node. */
	LB_MAGLEV = 1 << 2,
	/* A backend on another node replies to the client directly. */
	LB_DSR = 1 << 3,
};

/* A frontend. Its backends are slots 0 to count-1 of a set. A changed set is written whole under an
 * unused number before the frontend refers to it: no packet sees half of a change. */
struct lb_service {
	__u32 set;
	__u32 count;
	__u32 affinity; /* ticks for which a client keeps its backend, 0: not at all */
	__u32 id; /* of the service's port, the same for all its frontends and on all nodes */
	__u32 flags;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lb_key);
	__type(value, struct lb_service);
} lb_services SEC(".maps");

struct lb_slot {
	__u32 set;
	__u32 slot;
};

struct lb_backend {
	struct addr addr;
	__u16 port; /* network byte order */
	__u8 pad[6];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lb_slot);
	__type(value, struct lb_backend);
} lb_slots SEC(".maps");

/* The backends by address, to check whether one still belongs to a set. */
struct lb_member {
	struct lb_backend backend;
	__u32 set;
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 262144);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lb_member);
	__type(value, __u32);
} lb_members SEC(".maps");

/* The source ranges of a set (loadBalancerSourceRanges). */
struct lb_range {
	__u32 bits; /* 32 more than the prefix of addr has, whose IPv4 form has 96 of its own */
	__u32 set;
	struct addr addr;
};

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(max_entries, 65536);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lb_range);
	__type(value, __u32);
} lb_ranges SEC(".maps");

/* A set's Maglev table (see internal/service/maglev.go): the slot of each cell. It is split into
 * parts below a kilobyte, a size that the kernel's allocator caches. */
enum {
	LB_TABLE_CELLS = 16381,
	LB_PART_CELLS = 480,
};

struct lb_part {
	__u32 set;
	__u32 part;
};

struct lb_cells {
	__u16 slot[LB_PART_CELLS];
};

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(max_entries, 35840);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__type(key, struct lb_part);
	__type(value, struct lb_cells);
} lb_tables SEC(".maps");

/* Limits the rejects that a processor sends to one sender in a tick, and, apart from them, what it
 * says of packets that are too big. */
enum { REJECT_SENDERS = 256 };

struct lb_reject_count {
	__u32 tick;
	__u32 count;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, 2 * REJECT_SENDERS);
	__type(key, __u32);
	__type(value, struct lb_reject_count);
} lb_rejects SEC(".maps");

struct lb_affinity_key {
	struct addr addr; /* zero: the node itself */
	__u32 id; /* of the service's port */
	__u32 owner; /* the incarnation of the endpoint that has the address, 0 if it is not of this node */
};

struct lb_affinity_value {
	struct lb_backend backend;
	__u32 expires; /* tick */
	__u32 pad;
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct lb_affinity_key);
	__type(value, struct lb_affinity_value);
} lb_affinity SEC(".maps");

/* The translations of a socket of the node itself: frontend to backend for what it sends, and
 * backend to frontend for what it receives. */
enum {
	SOCKET_BACKEND = 0,
	SOCKET_FRONTEND = 1,
};

struct lb_socket {
	__u64 cookie;
	struct addr addr;
	__u16 port; /* network byte order */
	__u8 proto;
	__u8 direction; /* SOCKET_BACKEND, SOCKET_FRONTEND */
	__u8 pad[4];
};

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, 65536);
	__type(key, struct lb_socket);
	__type(value, struct lb_backend);
} lb_sockets SEC(".maps");

struct metric {
	__u64 packets;
	__u64 bytes;
};

/* Index: reason * 2 + direction. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, REASON_MAX * 2);
	__type(key, __u32);
	__type(value, struct metric);
} metrics SEC(".maps");

enum {
	MONITOR_DROPS = 1 << 0,
	MONITOR_VERDICTS = 1 << 1,
	MONITOR_TRACES = 1 << 2, /* of every packet */
	MONITOR_FLOW_UPDATES = 1 << 3, /* of those that change the state of their flow, and samples */
	MONITOR_BITS = 4,
	MONITOR_ALL = (1 << MONITOR_BITS) - 1,
};

/* One cell: the kinds of event requested, and above them the tick at which the request expires,
 * without its upper bits. The agent renews it: that of a killed agent expires. */
struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, __u32);
} monitor SEC(".maps");

#define EVENT_CAPTURE 128

struct event {
	__u64 time; /* monotonic, ns */
	__u8 type;
	__u8 reason;
	__u8 direction;
	__u8 ct_state;
	__u8 program;
	__u8 outcome;
	__u16 endpoint;
	__u32 src_identity;
	__u32 dst_identity;
	__u32 ifindex;
	__u32 length;
	__u16 captured;
	__u8 flow_update;
	__u8 match;
	__u8 pad[4];
	__u8 packet[EVENT_CAPTURE];
};

/* A buffer for each kind of event, so that a flood of one does not displace the others. */
struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events_drop SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events_verdict SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, 1 << 20);
} events_trace SEC(".maps");

enum { EVENT_KINDS = 3 };

/* Events lost because their buffer was full, per processor and kind, in the order of enum
 * event_type. */
struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENT_KINDS);
	__type(key, __u32);
	__type(value, __u64);
} events_lost SEC(".maps");

/* How many events each sender has written within a tick to a buffer that is more than half full.
 * Senders are hashed to cells. */
enum { EVENT_SENDERS = 1024 };

struct event_share {
	__u32 tick;
	__u32 events;
};

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_ARRAY);
	__uint(max_entries, EVENT_KINDS * EVENT_SENDERS);
	__type(key, __u32);
	__type(value, struct event_share);
} event_shares SEC(".maps");
