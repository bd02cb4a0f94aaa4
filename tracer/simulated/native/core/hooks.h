/* What the simulated libcupti learns of the simulated libcuda's calls in its process. */
#ifndef TRACER_SIM_HOOKS_H
#define TRACER_SIM_HOOKS_H

#include "sim.h"

/* One operation that a call gives to a stream. `tag` names it at its end (struct sim_done). */
struct sim_submission {
    uint32_t tag;
    uint32_t correlation;
    uint32_t device;
    unsigned long long stream;
    const char *name; /* of a kernel, or NULL */
    uint64_t bytes;
    uint32_t grid[3], block[3];
    uint32_t graph, part, n_parts; /* of a graph's launch */
    uint8_t kind;                  /* enum sim_kind */
    uint8_t is_host_pageable;
    uint8_t is_host_only;
};

/* Memory that a call took or gave back. */
enum sim_memory_kind { SIM_MEMORY_PINNED = 2, SIM_MEMORY_DEVICE = 3, SIM_MEMORY_MANAGED = 5 };

struct sim_memory {
    uint8_t is_release, is_async;
    uint8_t kind; /* enum sim_memory_kind */
    uint32_t device;
    unsigned long long stream; /* of an asynchronous one */
    uint64_t address, bytes;
    uint64_t pool_used; /* of an asynchronous one */
};

enum sim_wait_type { SIM_WAIT_EVENT = 1, SIM_WAIT_STREAM = 3, SIM_WAIT_CONTEXT = 4 };

struct sim_hooks {
    uint32_t (*enter)(uint32_t cbid); /* the correlation of the call */
    void (*leave)(uint32_t cbid, uint32_t correlation, uint64_t entry_ns, uint32_t rc);
    uint32_t (*tag)(void);            /* of the next operation; 0 for none */
    void (*submit)(const struct sim_submission *submission);
    void (*wait)(enum sim_wait_type type, uint32_t device, unsigned long long stream,
                 uint64_t begin_ns, uint64_t end_ns);
    void (*queue_full)(uint64_t begin_ns, uint64_t end_ns);
    void (*memory)(const struct sim_memory *memory);
};

/* NULL takes them away. They have to stay valid: a call may be inside. */
SIM_API void sim_hooks_set(const struct sim_hooks *hooks);
SIM_API const struct sim_hooks *sim_hooks(void);

#endif
