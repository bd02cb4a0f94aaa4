/* GPM: metrics between two samples of the counters. */
#include "nvml.h"

#include <stdlib.h>

struct gpm_sample {
    uint32_t device;
    uint64_t time_ns, busy_ns, sm_ns, memory_ns, tensor_ns, rx_bytes, tx_bytes;
};

struct metric {
    unsigned int id;
    nvmlReturn_t rc;
    double value;
    const char *info[3];
};

struct metrics_get {
    unsigned int version, n;
    struct gpm_sample *first, *second;
    struct metric metrics[];
};

API nvmlReturn_t nvmlGpmQueryDeviceSupport(nvmlDevice_t h, unsigned int out[2]) {
    DEVICE(h);
    out[1] = 1;
    return OK;
}

API nvmlReturn_t nvmlGpmSampleAlloc(struct gpm_sample **out) {
    nvmlReturn_t rc = allowed(__func__);
    if (rc != OK) return rc;
    *out = calloc(1, sizeof **out);
    return *out == NULL ? 20 : OK;
}

API nvmlReturn_t nvmlGpmSampleFree(struct gpm_sample *sample) {
    free(sample);
    return allowed(__func__);
}

API nvmlReturn_t nvmlGpmSampleGet(nvmlDevice_t h, struct gpm_sample *out) {
    const struct sim_device *dev;
    DEVICE(h);
    if (out == NULL) return INVALID_ARGUMENT;
    carry_forward();
    dev = &machine->state->device[d];
    *out = (struct gpm_sample){d, machine->state->now_ns, dev->busy_ns, dev->sm_ns,
                               dev->memory_ns, dev->tensor_ns, dev->rx_bytes, dev->tx_bytes};
    return OK;
}

API nvmlReturn_t nvmlGpmMetricsGet(struct metrics_get *get) {
    nvmlReturn_t rc = allowed(__func__);
    double span, mib;
    if (rc != OK) return rc;
    if (get == NULL || get->first == NULL || get->second == NULL) return INVALID_ARGUMENT;
    span = (double)(get->second->time_ns - get->first->time_ns);
    if (span <= 0) return INVALID_ARGUMENT;
    mib = 1e9 / span / (1 << 20);
#define DIFFERENCE(FIELD) (double)(get->second->FIELD - get->first->FIELD)
    for (unsigned int i = 0; i < get->n; i++) {
        struct metric *m = &get->metrics[i];
        m->rc = OK;
        switch (m->id) {
        case 1: m->value = 100 * DIFFERENCE(busy_ns) / span; break;
        case 2: m->value = 100 * DIFFERENCE(sm_ns) / span; break;
        case 3: m->value = 50 * DIFFERENCE(sm_ns) / span; break;
        case 5: case 7: m->value = 100 * DIFFERENCE(tensor_ns) / span; break;
        case 10: m->value = 100 * DIFFERENCE(memory_ns) / span; break;
        case 20: m->value = DIFFERENCE(tx_bytes) * mib; break;
        case 21: m->value = DIFFERENCE(rx_bytes) * mib; break;
        case 60: case 61: m->value = 0; break;
        default: m->rc = NOT_SUPPORTED;
        }
    }
    return OK;
}
