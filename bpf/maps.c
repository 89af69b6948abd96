//go:build ignore

/* All maps in one object without programs: the template from which user space makes and pins them,
 * and the source of its Go types. The program objects refer to the same maps by name. */
#include "lib/maps.h"

/* Not the value of any map, but user space decodes it: keep it in BTF. */
const struct event *event_layout __attribute__((unused));
