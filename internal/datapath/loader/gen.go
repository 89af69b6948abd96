package loader

// The programs, one object for each attach point, and one for the hooks of a cgroup. All share the
// settings, described once.
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" fromPod ../../../bpf/from_pod.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types toPod ../../../bpf/to_pod.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types fromOverlay ../../../bpf/from_overlay.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types fromHost ../../../bpf/from_host.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types fromNetdev ../../../bpf/from_netdev.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types sock ../../../bpf/sock.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types toNetdev ../../../bpf/to_netdev.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types fromDevice ../../../bpf/from_device.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types toDevice ../../../bpf/to_device.c
