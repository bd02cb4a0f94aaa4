/* The C interface of tracer/simulated/device.py. */
#ifndef TRACER_SIM_CONTROL_H
#define TRACER_SIM_CONTROL_H

#include "sim.h"

struct sim_totals {
    uint64_t now_ns, created_ns, busy_ns, sm_ns, memory_ns, tensor_ns;
    uint64_t rx_bytes, tx_bytes, switches, recoveries;
};

struct sim_client_info {
    int32_t pid;
    uint32_t mps;
    uint64_t launches;
    uint64_t memory_bytes[SIM_DEVICES];
    uint32_t contexts[SIM_DEVICES];
};

SIM_API int sim_set(struct sim_handle *h, int device, const char *name, double value);
SIM_API int sim_get(struct sim_handle *h, int device, const char *name, double *value);
SIM_API void sim_set_fault_function(struct sim_handle *h, const char *prefix);
SIM_API void sim_set_mps_pipe(struct sim_handle *h, const char *directory);
SIM_API int sim_set_mps(struct sim_handle *h, int pid, int on);
SIM_API uint32_t sim_read_truth(struct sim_handle *h, uint64_t *cursor, struct sim_truth *out,
                                uint32_t max, uint64_t *lost);
SIM_API const char *sim_kernel_name(struct sim_handle *h, uint32_t kernel);
SIM_API int sim_read_totals(struct sim_handle *h, uint32_t device, struct sim_totals *out);
SIM_API uint32_t sim_read_clients(struct sim_handle *h, struct sim_client_info *out, uint32_t max);

#endif
