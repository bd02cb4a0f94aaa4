/* Where the simulated libcupti hangs itself in. */
#include "hooks.h"

static _Atomic(const struct sim_hooks *) installed;

void sim_hooks_set(const struct sim_hooks *hooks) { atomic_store(&installed, hooks); }

const struct sim_hooks *sim_hooks(void) {
    return atomic_load_explicit(&installed, memory_order_acquire);
}
