package maps

// The template of the maps and the Go form of their keys and values come from bpf/maps.c.
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -type endpoint -type rule_set -type policy_key -type policy_value -type ipcache_value -type prefix -type tunnel_peer -type interface -type ct_key -type ct_value -type ct_account -type masquerade_key -type masquerade_value -type lb_key -type lb_service -type lb_slot -type lb_backend -type lb_member -type lb_affinity_key -type lb_affinity_value -type lb_range -type lb_part -type lb_cells -type lb_socket -type frag_key -type frag_value -type metric -type event kernel ../../../bpf/maps.c
