/* What the parts of the simulated libnvidia-ml share. */
#ifndef TRACER_NVML_H
#define TRACER_NVML_H

#include "../core/sim.h"

#define API __attribute__((visibility("default")))

typedef int nvmlReturn_t;
typedef struct device_handle *nvmlDevice_t;

enum {
    OK = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
};

extern struct sim_handle *machine;

/* OK when the library is initialised and no fault strikes the function; blocks when one says so. */
nvmlReturn_t allowed(const char *function);
/* The same for a function of a device, whose number it gives. */
nvmlReturn_t device_of(const char *function, nvmlDevice_t handle, uint32_t *device);
void carry_forward(void);
/* The last complete window of utilisation of a device. */
void window(uint32_t device, uint64_t *t0, uint64_t *t1);
/* CLOCK_REALTIME in microseconds at a time of CLOCK_MONOTONIC. */
uint64_t real_us(uint64_t monotonic_ns);
uint64_t memory_used(uint32_t device);
double power_watts(uint32_t device, uint64_t span_ns);

/* Begins a function of a device: `d` is its number, `c` its configuration. */
#define DEVICE(HANDLE)                                                                           \
    uint32_t d = 0;                                                                              \
    const struct sim_config *c;                                                                  \
    nvmlReturn_t rc = device_of(__func__, HANDLE, &d);                                           \
    if (rc != OK) return rc;                                                                     \
    c = &machine->state->device[d].config;                                                       \
    (void)c

#endif
