/* One API call that gives work, as CUPTI sees it. */
#ifndef TRACER_DRIVER_ACTIVITY_H
#define TRACER_DRIVER_ACTIVITY_H

#include "../core/hooks.h"
#include "driver.h"

struct call {
    const struct sim_hooks *hooks; /* NULL while nobody looks */
    struct call *outer;
    uint32_t cbid, correlation;
    uint64_t entry_ns;
    struct sim_submission about; /* what the call knows of its operations */
};

void call_enter(struct call *c, uint32_t cbid);
CUresult call_leave(struct call *c, CUresult rc);
/* Tags an operation that the innermost call of this thread submits. */
void call_submits(const struct stream *s, struct sim_op *op);
void call_waited(enum sim_wait_type type, const struct context *ctx, const struct stream *s,
                 uint64_t begin_ns);

#endif
