package bpf_test

//go:generate go tool bpf2go -cc clang-19 -target bpfel -output-suffix _test -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types policyTest policy_test.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -output-suffix _test -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types encapTest encap_test.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -output-suffix _test -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" overlayTest overlay_test.c
//go:generate go tool bpf2go -cc clang-19 -target bpfel -output-suffix _test -cflags "-O2 -mcpu=v3 -g -Wall -Wextra -Werror -nostdinc" -no-global-types netdevTest netdev_test.c
