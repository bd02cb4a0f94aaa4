/* What the kernels of this process cost: the interface for workloads. */
#ifndef TRACER_SIM_COST_H
#define TRACER_SIM_COST_H

#include "sim.h"

struct sim_cost {
    uint64_t compute_ns; /* at the full clock */
    uint64_t memory_ns;  /* at the full bandwidth */
    uint32_t share;      /* part of the device it can fill, in 1/1000 */
    uint32_t power;      /* 1/1000 of the dynamic power */
    uint32_t tensor;     /* percent of its time on the matrix units */
    uint32_t flags;      /* SIM_HANG */
    uint64_t key;        /* of a collective */
    uint32_t ranks;      /* 0 for a kernel of its own */
};

/* The cost of the next launch (or graph, or copy) of this thread, whatever it is. */
SIM_API void tracer_sim_next(uint64_t compute_ns, uint64_t memory_ns);
SIM_API void tracer_sim_next_share(double share);
SIM_API void tracer_sim_next_power(double power);
SIM_API void tracer_sim_next_tensor(double share);
SIM_API void tracer_sim_next_hang(void);
SIM_API void tracer_sim_next_collective(uint64_t key, uint32_t ranks);
/* The cost of every launch of the kernel of this name in this process. */
SIM_API void tracer_sim_kernel(const char *name, uint64_t compute_ns, uint64_t memory_ns,
                               double share, double power, double tensor);
/* The same from work: seconds follow from the device's rates. */
SIM_API void tracer_sim_kernel_work(const char *name, double flops, double bytes, double tensor);

/* For libcuda: a kernel's place in the table, and the cost of one launch. */
struct sim_entry;
SIM_API const struct sim_entry *tracer_sim_entry(const char *name);
SIM_API void tracer_sim_take(struct sim_handle *h, const struct sim_entry *entry,
                             struct sim_cost *out);
SIM_API int tracer_sim_take_next(struct sim_cost *out);

#endif
