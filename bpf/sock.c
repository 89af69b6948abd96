//go:build ignore

/* Services for the node's own processes: cgroup socket hooks. A frontend is replaced by a backend
 * before the kernel looks up a route, so packets need no NAT; where the kernel returns an address
 * to the process, the frontend is put back.
 *
 * The cgroup may hold pods too. Their packets are translated at their interface, where policy sees
 * the backend; so only sockets of the node's own network namespace are touched here. */
#include "lib/backend.h"
#include "lib/clock.h"
#include "lib/net.h"

enum {
	SOCK_STREAM = 1,
	PASS = 1,
	REJECT = 0,
	EPERM = 1,
	ECONNREFUSED = 111,
	EHOSTUNREACH = 113,
};

/* The address that a process asks for, of either family: IPv4 through an IPv6 socket is IPv4. */
struct named {
	struct addr addr;
	__u16 port;
	__u8 proto;
};

static __always_inline bool is_ours(struct bpf_sock_addr *ctx)
{
	return bpf_get_netns_cookie(ctx) == cfg.netns_cookie;
}

static __always_inline void get_name(struct bpf_sock_addr *ctx, struct named *n, bool v6)
{
	if (v6) {
		n->addr.w[0] = ctx->user_ip6[0];
		n->addr.w[1] = ctx->user_ip6[1];
		n->addr.w[2] = ctx->user_ip6[2];
		n->addr.w[3] = ctx->user_ip6[3];
	} else {
		addr_set4(&n->addr, ctx->user_ip4);
	}
	n->port = ctx->user_port;
	/* Other stream protocols than TCP exist (MPTCP). */
	n->proto = ctx->protocol;
	if (ctx->type == SOCK_STREAM && ctx->protocol != PROTO_SCTP)
		n->proto = PROTO_TCP;
}

static __always_inline void set_name(struct bpf_sock_addr *ctx, const struct addr *a, __u16 port, bool v6)
{
	if (v6) {
		ctx->user_ip6[0] = a->w[0];
		ctx->user_ip6[1] = a->w[1];
		ctx->user_ip6[2] = a->w[2];
		ctx->user_ip6[3] = a->w[3];
	} else {
		ctx->user_ip4 = a->w[3];
	}
	ctx->user_port = port;
}

static __always_inline void socket_key(struct lb_socket *key, struct bpf_sock_addr *ctx,
				       const struct named *n, __u8 direction)
{
	memset(key, 0, sizeof(*key));
	key->cookie = bpf_get_socket_cookie(ctx);
	key->addr = n->addr;
	key->port = n->port;
	key->proto = n->proto;
	key->direction = direction;
}

/* The backend to which a socket has sent before, if it still is one: all datagrams of a socket go
 * to one backend. */
static __always_inline bool same_backend(struct bpf_sock_addr *ctx, const struct lb_key *frontend,
					 const struct named *n, struct lb_target *to)
{
	struct lb_socket key;

	socket_key(&key, ctx, n, SOCKET_BACKEND);
	struct lb_backend *found = bpf_map_lookup_elem(&lb_sockets, &key);
	struct lb_service *service = bpf_map_lookup_elem(&lb_services, frontend);
	if (!found || !service)
		return false;
	struct lb_member member = {.backend = *found, .set = service->set};
	if (!bpf_map_lookup_elem(&lb_members, &member))
		return false;
	to->addr = member.backend.addr;
	to->port = member.backend.port;
	return true;
}

/* Stores the socket's backend, and the frontend that the backend stands for. */
static __always_inline void store_socket(struct bpf_sock_addr *ctx, const struct named *n,
					 const struct lb_target *to)
{
	struct named answer = {.addr = to->addr, .port = to->port, .proto = n->proto};
	struct lb_backend value = {.addr = to->addr, .port = to->port};
	struct lb_socket key;

	socket_key(&key, ctx, n, SOCKET_BACKEND);
	bpf_map_update_elem(&lb_sockets, &key, &value, BPF_ANY);
	value.addr = n->addr;
	value.port = n->port;
	socket_key(&key, ctx, &answer, SOCKET_FRONTEND);
	bpf_map_update_elem(&lb_sockets, &key, &value, BPF_ANY);
}

/* The error that a process gets if it is given no backend. */
static __always_inline int lb_errno(int reason)
{
	if (reason == DROP_SOURCE_RANGE)
		return -EPERM;
	/* Packets of others would be dropped without a reply; a local process need not wait for the
	 * timeout. */
	return reason == DROP_NO_LOCAL_BACKEND ? -EHOSTUNREACH : -ECONNREFUSED;
}

/* 127.0.0.0/8 and ::1. */
static __always_inline bool is_localhost(const struct addr *a, bool v6)
{
	if (v6 && !addr_is_mapped4(a))
		return a->d[0] == 0 && a->w[2] == 0 && a->w[3] == htonl(1);
	return a->b[12] == 127;
}

/* Finds the frontend that a process asks for. A node's ports are served at any of its addresses for
 * itself, of which one stands for all. */
static __always_inline bool find_frontend(struct lb_key *key, const struct named *n, bool v6)
{
	memset(key, 0, sizeof(*key));
	key->addr = n->addr;
	key->port = n->port;
	key->proto = n->proto;
	key->scope = LB_SCOPE_INTERNAL;
	if (likely(!is_localhost(&n->addr, v6)))
		return bpf_map_lookup_elem(&lb_services, key);
	key->scope = LB_SCOPE_NODE;
	if (bpf_map_lookup_elem(&lb_services, key))
		return true;
	if (v6 && !addr_is_mapped4(&n->addr))
		return false;
	key->addr.w[3] = htonl(0x7F000001);
	return bpf_map_lookup_elem(&lb_services, key);
}

/* Replaces the frontend that a process asks for by a backend. */
static __always_inline int forward(struct bpf_sock_addr *ctx, bool v6, bool keep)
{
	const struct addr node = {};
	struct lb_target to = {};
	struct named n;

	if (!is_ours(ctx))
		return PASS;
	get_name(ctx, &n, v6);
	struct lb_key key;
	if (!find_frontend(&key, &n, v6))
		return PASS;
	if (!keep || !same_backend(ctx, &key, &n, &to)) {
		int err = lb_choose(&key, &node, 0, ct_now(), &to);

		if (err == LB_NONE)
			return PASS;
		if (err < 0) {
			bpf_set_retval(lb_errno(-err));
			return REJECT;
		}
		store_socket(ctx, &n, &to);
	}
	set_name(ctx, &to.addr, to.port, v6);
	return PASS;
}

/* Returns to a process the frontend that it asked for instead of the backend that replies. */
static __always_inline int reverse(struct bpf_sock_addr *ctx, bool v6)
{
	struct lb_socket key;
	struct named n;

	if (!is_ours(ctx))
		return PASS;
	get_name(ctx, &n, v6);
	socket_key(&key, ctx, &n, SOCKET_FRONTEND);
	struct lb_backend *frontend = bpf_map_lookup_elem(&lb_sockets, &key);
	if (frontend) {
		struct lb_backend seen = *frontend;

		set_name(ctx, &seen.addr, seen.port, v6);
	}
	return PASS;
}

SEC("cgroup/connect4")
int sock_connect4(struct bpf_sock_addr *ctx)
{
	return forward(ctx, false, false);
}

SEC("cgroup/connect6")
int sock_connect6(struct bpf_sock_addr *ctx)
{
	return forward(ctx, true, false);
}

SEC("cgroup/sendmsg4")
int sock_sendmsg4(struct bpf_sock_addr *ctx)
{
	return forward(ctx, false, true);
}

SEC("cgroup/sendmsg6")
int sock_sendmsg6(struct bpf_sock_addr *ctx)
{
	return forward(ctx, true, true);
}

SEC("cgroup/recvmsg4")
int sock_recvmsg4(struct bpf_sock_addr *ctx)
{
	return reverse(ctx, false);
}

SEC("cgroup/recvmsg6")
int sock_recvmsg6(struct bpf_sock_addr *ctx)
{
	return reverse(ctx, true);
}

SEC("cgroup/getpeername4")
int sock_getpeername4(struct bpf_sock_addr *ctx)
{
	return reverse(ctx, false);
}

SEC("cgroup/getpeername6")
int sock_getpeername6(struct bpf_sock_addr *ctx)
{
	return reverse(ctx, true);
}

char license_name[] SEC("license") = "Apache-2.0";
