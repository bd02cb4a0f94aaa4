/* What is measured, with the windows of the real one: utilisation over the last complete window,
 * power over one second, PCIe over 20 ms, clocks and memory at once. */
#include "nvml.h"

#include <string.h>

#define SECOND 1000000000ULL

static unsigned int percent(double share) {
    return share <= 0 ? 0 : share >= 1 ? 100 : (unsigned int)(share * 100 + 0.5);
}

uint64_t memory_used(uint32_t device) {
    uint64_t sum = 600ULL << 20; /* what the driver itself reserves */
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &machine->state->client[i];
        if (atomic_load(&c->used) != 0) sum += atomic_load(&c->memory_bytes[device]);
    }
    return sum;
}

double power_watts(uint32_t device, uint64_t span_ns) {
    struct sim_usage u;
    uint64_t now;
    carry_forward();
    now = sim_clock_ns() / SIM_BUCKET_NS * SIM_BUCKET_NS;
    sim_usage(machine->state, device, now - span_ns, now, &u);
    return u.watts;
}

API nvmlReturn_t nvmlDeviceGetUtilizationRates(nvmlDevice_t h, unsigned int out[2]) {
    struct sim_usage u;
    uint64_t t0, t1;
    DEVICE(h);
    carry_forward();
    window(d, &t0, &t1);
    sim_usage(machine->state, d, t0, t1, &u);
    out[0] = percent(u.busy);
    out[1] = percent(u.memory);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetEncoderUtilization(nvmlDevice_t h, unsigned int *util,
                                                 unsigned int *period_us) {
    DEVICE(h);
    *util = 0;
    *period_us = (unsigned int)(c->util_window_ns / 1000);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetDecoderUtilization(nvmlDevice_t h, unsigned int *util,
                                                 unsigned int *period_us) {
    DEVICE(h);
    *util = 0;
    *period_us = (unsigned int)(c->util_window_ns / 1000);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetPowerUsage(nvmlDevice_t h, unsigned int *mw) {
    DEVICE(h);
    *mw = (unsigned int)(power_watts(d, SECOND) * 1000);
    return OK;
}

static uint64_t energy_mj(uint32_t d) {
    struct sim_state *s = machine->state;
    double idle;
    carry_forward();
    idle = s->device[d].config.idle_watts * (double)(s->now_ns - s->created_ns);
    return (uint64_t)((idle + (double)s->device[d].energy_nj) / 1e6);
}

API nvmlReturn_t nvmlDeviceGetTotalEnergyConsumption(nvmlDevice_t h, unsigned long long *mj) {
    DEVICE(h);
    *mj = energy_mj(d);
    return OK;
}

#define LIMIT(NAME, WATTS)                                                                       \
    API nvmlReturn_t NAME(nvmlDevice_t h, unsigned int *mw) {                                    \
        DEVICE(h);                                                                               \
        *mw = (unsigned int)((WATTS) * 1000);                                                    \
        return OK;                                                                               \
    }

LIMIT(nvmlDeviceGetEnforcedPowerLimit, c->limit_watts)
LIMIT(nvmlDeviceGetPowerManagementLimit, c->limit_watts)
LIMIT(nvmlDeviceGetPowerManagementDefaultLimit, 700)

API nvmlReturn_t nvmlDeviceGetPowerManagementMode(nvmlDevice_t h, unsigned int *mode) {
    DEVICE(h);
    *mode = 1;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetPowerManagementLimitConstraints(nvmlDevice_t h, unsigned int *least,
                                                              unsigned int *most) {
    DEVICE(h);
    *least = 200000;
    *most = 700000;
    return OK;
}

static int is_idle(uint32_t d) {
    carry_forward();
    return sim_clock_ns() - machine->state->device[d].last_busy_ns > SECOND;
}

/* Types are those of nvmlClockType_t: 0 graphics, 1 SM, 2 memory, 3 video. */
static unsigned int clock_mhz(uint32_t d, unsigned int type) {
    const struct sim_config *c = &machine->state->device[d].config;
    if (type == 2) return (unsigned int)c->memory_clock_mhz;
    if (is_idle(d)) return (unsigned int)c->idle_clock_mhz;
    return (unsigned int)(c->clock_mhz * c->clock_factor);
}

API nvmlReturn_t nvmlDeviceGetClockInfo(nvmlDevice_t h, unsigned int type, unsigned int *mhz) {
    DEVICE(h);
    if (type > 3) return INVALID_ARGUMENT;
    *mhz = clock_mhz(d, type);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetClock(nvmlDevice_t h, unsigned int type, unsigned int id,
                                    unsigned int *mhz) {
    DEVICE(h);
    if (type > 3) return INVALID_ARGUMENT;
    *mhz = id == 0 ? clock_mhz(d, type)
                   : (unsigned int)(type == 2 ? c->memory_clock_mhz : c->clock_mhz);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMaxClockInfo(nvmlDevice_t h, unsigned int type, unsigned int *mhz) {
    DEVICE(h);
    if (type > 3) return INVALID_ARGUMENT;
    *mhz = (unsigned int)(type == 2 ? c->memory_clock_mhz : c->clock_mhz);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetApplicationsClock(nvmlDevice_t h, unsigned int type,
                                                unsigned int *mhz) {
    DEVICE(h);
    *mhz = (unsigned int)(type == 2 ? c->memory_clock_mhz : c->clock_mhz);
    return OK;
}

#define REASONS(NAME)                                                                            \
    API nvmlReturn_t NAME(nvmlDevice_t h, unsigned long long *out) {                             \
        DEVICE(h);                                                                               \
        *out = (unsigned long long)c->clock_reasons | (is_idle(d) ? 1 : 0);                      \
        return OK;                                                                               \
    }

REASONS(nvmlDeviceGetCurrentClocksEventReasons)
REASONS(nvmlDeviceGetCurrentClocksThrottleReasons)

#define SUPPORTED(NAME)                                                                          \
    API nvmlReturn_t NAME(nvmlDevice_t h, unsigned long long *out) {                             \
        DEVICE(h);                                                                               \
        *out = 0x1ff;                                                                            \
        return OK;                                                                               \
    }

SUPPORTED(nvmlDeviceGetSupportedClocksEventReasons)
SUPPORTED(nvmlDeviceGetSupportedClocksThrottleReasons)

API nvmlReturn_t nvmlDeviceGetPerformanceState(nvmlDevice_t h, int *state) {
    DEVICE(h);
    *state = is_idle(d) ? 8 : 0;
    return OK;
}

static unsigned int degrees(uint32_t d) {
    const struct sim_config *c = &machine->state->device[d].config;
    double span = c->max_watts - c->idle_watts;
    double load = (power_watts(d, 5 * SECOND) - c->idle_watts) / (span > 0 ? span : 1);
    return (unsigned int)(34 + 40 * load);
}

API nvmlReturn_t nvmlDeviceGetTemperature(nvmlDevice_t h, unsigned int sensor, unsigned int *out) {
    DEVICE(h);
    if (sensor != 0) return INVALID_ARGUMENT;
    *out = degrees(d);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetTemperatureThreshold(nvmlDevice_t h, unsigned int type,
                                                   unsigned int *out) {
    DEVICE(h);
    *out = type == 0 ? 92 : 87;
    return OK;
}

API nvmlReturn_t nvmlDeviceGetMemoryInfo(nvmlDevice_t h, unsigned long long out[3]) {
    DEVICE(h);
    out[0] = (unsigned long long)c->memory_bytes;
    out[2] = memory_used(d);
    out[1] = out[0] > out[2] ? out[0] - out[2] : 0;
    return OK;
}

struct memory_v2 {
    unsigned int version;
    unsigned long long total, reserved, free, used;
};

API nvmlReturn_t nvmlDeviceGetMemoryInfo_v2(nvmlDevice_t h, struct memory_v2 *out) {
    DEVICE(h);
    out->total = (unsigned long long)c->memory_bytes;
    out->reserved = 600ULL << 20;
    out->used = memory_used(d) - out->reserved;
    out->free = out->total > out->used + out->reserved ? out->total - out->used - out->reserved : 0;
    return OK;
}

/* Counters are those of nvmlPcieUtilCounter_t: 0 sent by the device, 1 received; KB/s. */
API nvmlReturn_t nvmlDeviceGetPcieThroughput(nvmlDevice_t h, unsigned int counter,
                                             unsigned int *out) {
    struct sim_usage u;
    uint64_t now;
    DEVICE(h);
    if (counter > 1) return INVALID_ARGUMENT;
    carry_forward();
    now = sim_clock_ns() / SIM_BUCKET_NS * SIM_BUCKET_NS;
    sim_usage(machine->state, d, now - 2 * SIM_BUCKET_NS, now, &u);
    *out = (unsigned int)((counter == 0 ? u.tx_bytes : u.rx_bytes) * 50 / 1000);
    return OK;
}

API nvmlReturn_t nvmlDeviceGetPcieReplayCounter(nvmlDevice_t h, unsigned int *out) {
    DEVICE(h);
    *out = 0;
    return OK;
}

union value {
    double dbl;
    unsigned int uint;
    unsigned long long ull;
};

struct sample {
    unsigned long long time_us;
    union value value;
};

/* The complete windows after `after_us`, oldest first; types are those of nvmlSamplingType_t. */
API nvmlReturn_t nvmlDeviceGetSamples(nvmlDevice_t h, unsigned int type, unsigned long long after_us,
                                      unsigned int *value_type, unsigned int *n,
                                      struct sample *out) {
    uint64_t t0, t1, span;
    unsigned int filled = 0, windows;
    DEVICE(h);
    if (type > 2) return NOT_SUPPORTED;
    carry_forward();
    window(d, &t0, &t1);
    span = t1 - t0;
    windows = (unsigned int)(SIM_BUCKETS * SIM_BUCKET_NS / span) - 1;
    if (windows > 100) windows = 100;
    *value_type = 1;
    if (out == NULL) {
        *n = windows;
        return OK;
    }
    for (unsigned int i = windows; i > 0 && filled < *n; i--) {
        uint64_t end = t1 - (i - 1) * span;
        struct sim_usage u;
        if (real_us(end) <= after_us || end < machine->state->created_ns) continue;
        sim_usage(machine->state, d, end - span, end, &u);
        out[filled].time_us = real_us(end);
        out[filled].value.ull = 0;
        out[filled].value.uint = type == 0   ? (unsigned int)(u.watts * 1000)
                                 : type == 1 ? percent(u.busy)
                                             : percent(u.memory);
        filled++;
    }
    *n = filled;
    return filled > 0 ? OK : NOT_FOUND;
}

struct field {
    unsigned int id, scope;
    long long time_us, latency_us;
    unsigned int type;
    nvmlReturn_t rc;
    union value value;
};

static void read_field(uint32_t d, struct field *f) {
    const struct sim_config *c = &machine->state->device[d].config;
    f->time_us = (long long)real_us(sim_clock_ns());
    f->latency_us = 0;
    f->type = 1;
    f->rc = OK;
    f->value.ull = 0;
    switch (f->id) {
    case 82: f->value.uint = degrees(d) + 4; break;
    case 83: f->type = 3; f->value.ull = energy_mj(d); break;
    case 94: f->value.uint = 0; break;
    case 142: case 143: case 144: case 145: f->value.uint = 0; break;
    case 185: f->value.uint = (unsigned int)(power_watts(d, SECOND) * 1000); break;
    case 186: f->value.uint = (unsigned int)(power_watts(d, 2 * SIM_BUCKET_NS) * 1000); break;
    case 187: f->value.uint = 200000; break;
    case 188: case 189: f->value.uint = 700000; break;
    case 190: case 192: f->value.uint = (unsigned int)(c->limit_watts * 1000); break;
    default: f->rc = NOT_SUPPORTED;
    }
}

API nvmlReturn_t nvmlDeviceGetFieldValues(nvmlDevice_t h, int n, struct field *fields) {
    DEVICE(h);
    if (n < 0 || fields == NULL) return INVALID_ARGUMENT;
    for (int i = 0; i < n; i++) read_field(d, &fields[i]);
    return OK;
}
