/* What was busy when: counters since the start, and ten seconds in buckets of 10 ms. */
#include "sim.h"

#include <string.h>

static struct sim_bucket *bucket_at(struct sim_device *d, uint64_t index) {
    struct sim_bucket *b = &d->buckets[index % SIM_BUCKETS];
    if (b->index != index) {
        memset(b, 0, sizeof *b);
        b->index = index;
    }
    return b;
}

/* Adds the interval [t0, t1) to a device. `sm`, `memory`, `tensor` and `power` are shares, `rx` and
 * `tx` bytes per nanosecond. */
void sim_account(struct sim_state *s, uint32_t device, uint64_t t0, uint64_t t1, int busy,
                 double sm, double memory, double tensor, double power, double rx, double tx) {
    struct sim_device *d = &s->device[device];
    double watts = power * (d->config.max_watts - d->config.idle_watts);
    double dt = (double)(t1 - t0);
    d->accounted_ns = t1;
    d->busy_ns += busy ? t1 - t0 : 0;
    d->sm_ns += (uint64_t)(sm * dt);
    d->memory_ns += (uint64_t)(memory * dt);
    d->tensor_ns += (uint64_t)(tensor * dt);
    d->rx_bytes += (uint64_t)(rx * dt);
    d->tx_bytes += (uint64_t)(tx * dt);
    d->energy_nj += (uint64_t)(watts * dt);
    if (busy) d->last_busy_ns = t1;
    if (t1 - t0 > SIM_BUCKETS * SIM_BUCKET_NS) t0 = t1 - SIM_BUCKETS * SIM_BUCKET_NS;
    while (t0 < t1) {
        uint64_t index = t0 / SIM_BUCKET_NS;
        uint64_t end = (index + 1) * SIM_BUCKET_NS;
        struct sim_bucket *b = bucket_at(d, index);
        if (end > t1) end = t1;
        dt = (double)(end - t0);
        b->busy_ns += busy ? (uint32_t)(end - t0) : 0;
        b->sm_ns += (uint32_t)(sm * dt);
        b->memory_ns += (uint32_t)(memory * dt);
        b->tensor_ns += (uint32_t)(tensor * dt);
        b->energy_nj += (uint64_t)(watts * dt);
        b->rx_bytes += (uint64_t)(rx * dt);
        b->tx_bytes += (uint64_t)(tx * dt);
        t0 = end;
    }
}

/* Adds [t0, t1), in which a kernel of the client ran, to its share of the device. */
void sim_account_client(struct sim_client *c, uint32_t device, uint64_t t0, uint64_t t1,
                        double memory) {
    if (t1 - t0 > SIM_CLIENT_BUCKETS * SIM_BUCKET_NS) {
        t0 = t1 - SIM_CLIENT_BUCKETS * SIM_BUCKET_NS;
    }
    while (t0 < t1) {
        uint64_t index = t0 / SIM_BUCKET_NS;
        uint64_t end = (index + 1) * SIM_BUCKET_NS;
        struct sim_client_bucket *b = &c->buckets[index % SIM_CLIENT_BUCKETS];
        if (end > t1) end = t1;
        if (b->index != index) {
            memset(b, 0, sizeof *b);
            b->index = index;
        }
        b->busy_ns[device] += (uint32_t)(end - t0);
        b->memory_ns[device] += (uint32_t)(memory * (double)(end - t0));
        t0 = end;
    }
}

/* The means over [t0, t1), rounded outward to whole buckets. */
void sim_usage(struct sim_state *s, uint32_t device, uint64_t t0, uint64_t t1,
               struct sim_usage *out) {
    struct sim_device *d = &s->device[device];
    uint64_t first = t0 / SIM_BUCKET_NS, last = (t1 + SIM_BUCKET_NS - 1) / SIM_BUCKET_NS;
    double span = (double)(last - first) * (double)SIM_BUCKET_NS, energy = 0;
    memset(out, 0, sizeof *out);
    for (uint64_t i = first; i < last; i++) {
        const struct sim_bucket *b = &d->buckets[i % SIM_BUCKETS];
        if (b->index != i) continue;
        out->busy += b->busy_ns;
        out->sm += b->sm_ns;
        out->memory += b->memory_ns;
        out->tensor += b->tensor_ns;
        out->rx_bytes += (double)b->rx_bytes;
        out->tx_bytes += (double)b->tx_bytes;
        energy += (double)b->energy_nj;
    }
    out->busy /= span;
    out->sm /= span;
    out->memory /= span;
    out->tensor /= span;
    out->watts = d->config.idle_watts + energy / span;
}

/* The shares of [t0, t1) in which a client's kernels ran and used the memory. */
void sim_client_usage(struct sim_client *c, uint32_t device, uint64_t t0, uint64_t t1,
                      double *busy, double *memory) {
    uint64_t first = t0 / SIM_BUCKET_NS, last = (t1 + SIM_BUCKET_NS - 1) / SIM_BUCKET_NS;
    double span = (double)(last - first) * (double)SIM_BUCKET_NS;
    *busy = *memory = 0;
    for (uint64_t i = first; i < last; i++) {
        const struct sim_client_bucket *b = &c->buckets[i % SIM_CLIENT_BUCKETS];
        if (b->index != i) continue;
        *busy += b->busy_ns[device];
        *memory += b->memory_ns[device];
    }
    *busy /= span;
    *memory /= span;
}
