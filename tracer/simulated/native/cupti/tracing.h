/* What is switched on. */
#ifndef TRACER_SIM_CUPTI_TRACING_H
#define TRACER_SIM_CUPTI_TRACING_H

#include <stdint.h>

#define API __attribute__((visibility("default")))

struct tracing {
    int is_late_clock; /* a kind was enabled before the clock was given */
    int is_system_thread;
    uint8_t kinds[64];
    uint8_t calls[1024], callbacks[1024];
    void (*callback)(void *user, uint32_t domain, uint32_t id, const void *data);
    void *user;
};

extern struct tracing tracing;
void tracing_lock(void);
void tracing_unlock(void);
/* Follows what is switched on: with nothing, the driver is left alone. */
void tracing_update(void);
/* Numbers that a thread's calls belong to, innermost last; 0 without room, or without any. */
enum { EXTERNAL_KINDS = 6 };
int external_push(uint32_t kind, uint64_t id);
int external_pop(uint32_t kind, uint64_t *last);
/* The error that TRACER_SIM_CUPTI_FAIL (function=code,...) asks for, or 0. */
int planned_failure(const char *function);

#endif
