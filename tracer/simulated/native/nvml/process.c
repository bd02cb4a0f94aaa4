/* Who is on a device, in MPS or out of it, and how much of it each uses. */
#include "nvml.h"

struct process {
    unsigned int pid;
    unsigned long long memory;
    unsigned int gpu_instance, compute_instance;
};

static nvmlReturn_t list(uint32_t device, int only_mps, unsigned int *n, struct process *out) {
    unsigned int room, found = 0;
    if (n == NULL) return INVALID_ARGUMENT;
    room = out == NULL ? 0 : *n;
    if (sim_lock(machine) == 0) {
        sim_advance(machine, sim_clock_ns());
        sim_reap(machine, sim_clock_ns(), 1);
        sim_unlock(machine);
    }
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &machine->state->client[i];
        if (atomic_load(&c->used) == 0 || atomic_load(&c->contexts[device]) == 0) continue;
        if (only_mps && !c->mps) continue;
        if (found < room) {
            out[found] = (struct process){(unsigned int)c->pid,
                                          atomic_load(&c->memory_bytes[device]), 0xffffffffu,
                                          0xffffffffu};
        }
        found++;
    }
    *n = found;
    return found > room ? INSUFFICIENT_SIZE : OK;
}

#define LIST(NAME, MPS)                                                                          \
    API nvmlReturn_t NAME(nvmlDevice_t h, unsigned int *n, struct process *out) {                \
        DEVICE(h);                                                                               \
        return list(d, MPS, n, out);                                                             \
    }

LIST(nvmlDeviceGetComputeRunningProcesses_v2, 0)
LIST(nvmlDeviceGetComputeRunningProcesses_v3, 0)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v2, 1)
LIST(nvmlDeviceGetMPSComputeRunningProcesses_v3, 1)

static nvmlReturn_t nobody(nvmlDevice_t h, const char *function, unsigned int *n) {
    uint32_t d;
    nvmlReturn_t rc = device_of(function, h, &d);
    if (rc == OK) *n = 0;
    return rc;
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v2(nvmlDevice_t h, unsigned int *n,
                                                          struct process *out) {
    (void)out;
    return nobody(h, __func__, n);
}

API nvmlReturn_t nvmlDeviceGetGraphicsRunningProcesses_v3(nvmlDevice_t h, unsigned int *n,
                                                          struct process *out) {
    (void)out;
    return nobody(h, __func__, n);
}

struct utilization {
    unsigned int pid;
    unsigned long long time_us;
    unsigned int sm, memory, encoder, decoder;
};

API nvmlReturn_t nvmlDeviceGetProcessUtilization(nvmlDevice_t h, struct utilization *out,
                                                 unsigned int *n, unsigned long long after_us) {
    uint64_t t0, t1;
    unsigned int room, found = 0;
    DEVICE(h);
    if (n == NULL) return INVALID_ARGUMENT;
    room = out == NULL ? 0 : *n;
    carry_forward();
    window(d, &t0, &t1);
    if (real_us(t1) <= after_us) {
        *n = 0;
        return NOT_FOUND;
    }
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *client = &machine->state->client[i];
        double busy, memory;
        if (atomic_load(&client->used) == 0) continue;
        sim_client_usage(client, d, t0, t1, &busy, &memory);
        if (busy == 0) continue;
        if (found < room) {
            out[found] = (struct utilization){(unsigned int)client->pid, real_us(t1),
                                              (unsigned int)(busy * 100 + 0.5),
                                              (unsigned int)(memory * 100 + 0.5), 0, 0};
        }
        found++;
    }
    *n = found;
    if (found == 0) return NOT_FOUND;
    return found > room ? INSUFFICIENT_SIZE : OK;
}
