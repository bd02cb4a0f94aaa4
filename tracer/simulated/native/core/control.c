/* What the controller and the workloads call by name: fields, faults, truth, costs of kernels. */
#include "control.h"

#include <stddef.h>
#include <string.h>

struct field {
    const char *name;
    size_t offset;
};

#define DEVICE(n) {#n, offsetof(struct sim_config, n)}
static const struct field device_fields[] = {
    DEVICE(peak_flops), DEVICE(memory_bandwidth), DEVICE(link_bandwidth), DEVICE(memory_bytes),
    DEVICE(context_bytes), DEVICE(clock_factor), DEVICE(memory_factor), DEVICE(clock_mhz),
    DEVICE(idle_clock_mhz), DEVICE(memory_clock_mhz), DEVICE(idle_watts), DEVICE(max_watts),
    DEVICE(limit_watts), DEVICE(clock_reasons), DEVICE(launch_latency_ns), DEVICE(timeslice_ns),
    DEVICE(switch_ns), DEVICE(queue_depth), DEVICE(util_window_ns), DEVICE(link_generation),
    DEVICE(link_max_generation), DEVICE(link_width), DEVICE(sm_count), DEVICE(hang_release),
    DEVICE(lost), {NULL, 0},
};

#define GLOBAL(n) {#n, offsetof(struct sim_global, n)}
static const struct field global_fields[] = {
    GLOBAL(default_wait), GLOBAL(module_load_ns), GLOBAL(function_load_ns), GLOBAL(launch_cpu_ns),
    GLOBAL(default_kernel_ns), GLOBAL(mps), GLOBAL(driver_version), GLOBAL(nvml_fault), {NULL, 0},
};

static double *locate(void *base, const struct field *fields, const char *name) {
    for (; fields->name != NULL; fields++) {
        if (strcmp(fields->name, name) == 0) return (double *)((char *)base + fields->offset);
    }
    return NULL;
}

static double *slot(struct sim_handle *h, int device, const char *name) {
    if (device < 0) return locate(&h->state->global, global_fields, name);
    if ((uint32_t)device >= h->state->devices) return NULL;
    return locate(&h->state->device[device].config, device_fields, name);
}

/* Sets a field of a device, or of the machine for device -1; -1 if there is none of that name.
 * Takes effect at this moment of the device's time. */
int sim_set(struct sim_handle *h, int device, const char *name, double value) {
    double *p = slot(h, device, name);
    int locked;
    if (p == NULL) return -1;
    locked = sim_lock(h) == 0;
    if (locked) sim_advance(h, sim_clock_ns());
    *p = value;
    if (locked) sim_unlock(h);
    return 0;
}

int sim_get(struct sim_handle *h, int device, const char *name, double *value) {
    double *p = slot(h, device, name);
    if (p == NULL) return -1;
    *value = *p;
    return 0;
}

/* Which NVML functions the fault of `nvml_fault` strikes: names that begin so; empty for all. */
void sim_set_fault_function(struct sim_handle *h, const char *prefix) {
    strncpy(h->state->nvml_fault_function, prefix, sizeof h->state->nvml_fault_function - 1);
}

void sim_set_mps_pipe(struct sim_handle *h, const char *directory) {
    strncpy(h->state->mps_pipe, directory, sizeof h->state->mps_pipe - 1);
}

/* Moves a live process into MPS or out of it; -1 if it has no context. */
int sim_set_mps(struct sim_handle *h, int pid, int on) {
    int rc = -1;
    if (sim_lock(h) != 0) return -1;
    sim_advance(h, sim_clock_ns());
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &h->state->client[i];
        if (atomic_load(&c->used) == 0 || c->pid != pid) continue;
        c->mps = (uint32_t)(on != 0);
        rc = 0;
    }
    sim_unlock(h);
    return rc;
}

/* Copies the true activities from number `*cursor` on, at most `max`; how many. `*cursor` becomes
 * the number after the last; `*lost` how many were overwritten before they were read. */
uint32_t sim_read_truth(struct sim_handle *h, uint64_t *cursor, struct sim_truth *out,
                        uint32_t max, uint64_t *lost) {
    struct sim_state *s = h->state;
    uint64_t head, from = *cursor;
    uint32_t n = 0;
    *lost = 0;
    if (s->truth_capacity == 0 || sim_lock(h) != 0) return 0;
    sim_advance(h, sim_clock_ns());
    head = atomic_load(&s->truth_head);
    if (head - from > s->truth_capacity) {
        *lost = head - from - s->truth_capacity;
        from = head - s->truth_capacity;
    }
    for (; from < head && n < max; from++, n++) out[n] = s->truth[from & (s->truth_capacity - 1)];
    sim_unlock(h);
    *cursor = from;
    return n;
}

const char *sim_kernel_name(struct sim_handle *h, uint32_t kernel) {
    return kernel < h->state->kernel_count ? h->state->kernels[kernel] : "";
}

/* The totals of a device since it was made, in the order of `struct sim_totals`. */
int sim_read_totals(struct sim_handle *h, uint32_t device, struct sim_totals *out) {
    struct sim_device *d = &h->state->device[device];
    if (device >= h->state->devices || sim_lock(h) != 0) return -1;
    sim_advance(h, sim_clock_ns());
    *out = (struct sim_totals){
        .now_ns = h->state->now_ns, .created_ns = h->state->created_ns, .busy_ns = d->busy_ns,
        .sm_ns = d->sm_ns, .memory_ns = d->memory_ns, .tensor_ns = d->tensor_ns,
        .rx_bytes = d->rx_bytes, .tx_bytes = d->tx_bytes, .switches = d->switches,
        .recoveries = h->state->recoveries,
    };
    sim_unlock(h);
    return 0;
}

/* The live clients, at most `max`; how many. */
uint32_t sim_read_clients(struct sim_handle *h, struct sim_client_info *out, uint32_t max) {
    uint32_t n = 0;
    if (sim_lock(h) != 0) return 0;
    sim_advance(h, sim_clock_ns());
    sim_reap(h, sim_clock_ns(), 1);
    for (uint32_t i = 0; i < SIM_CLIENTS && n < max; i++) {
        struct sim_client *c = &h->state->client[i];
        if (atomic_load(&c->used) == 0) continue;
        out[n] = (struct sim_client_info){.pid = c->pid, .mps = c->mps,
                                          .launches = atomic_load(&c->launches)};
        for (uint32_t d = 0; d < SIM_DEVICES; d++) {
            out[n].memory_bytes[d] = atomic_load(&c->memory_bytes[d]);
            out[n].contexts[d] = atomic_load(&c->contexts[d]);
        }
        n++;
    }
    sim_unlock(h);
    return n;
}
