/* Tells the simulated CUPTI of calls, of the work they give and of waits. */
#include "activity.h"

#include "../core/control.h"

#include <string.h>

static __thread struct call *innermost;

void call_enter(struct call *c, uint32_t cbid) {
    memset(c, 0, sizeof *c);
    c->hooks = sim_hooks();
    c->outer = innermost;
    c->cbid = cbid;
    innermost = c;
    if (c->hooks == NULL) return;
    c->correlation = c->hooks->enter(cbid);
    c->entry_ns = sim_clock_ns();
}

CUresult call_leave(struct call *c, CUresult rc) {
    innermost = c->outer;
    if (c->hooks != NULL) c->hooks->leave(c->cbid, c->correlation, c->entry_ns, (uint32_t)rc);
    return rc;
}

void call_submits(const struct stream *s, struct sim_op *op) {
    struct call *c = innermost;
    op->tag = 0;
    if (c == NULL || c->hooks == NULL || op->kind == SIM_RECORD || op->kind == SIM_WAIT) return;
    op->tag = c->hooks->tag();
    if (op->tag == 0) return;
    c->about.tag = op->tag;
    c->about.correlation = c->correlation;
    c->about.device = (uint32_t)s->ctx->device;
    c->about.stream = s->id;
    c->about.bytes = op->bytes;
    c->about.kind = op->kind;
    c->about.name = op->kernel == SIM_NONE ? NULL : sim_kernel_name(sim, op->kernel);
    c->hooks->submit(&c->about);
    c->about.part++;
}

void call_waited(enum sim_wait_type type, const struct context *ctx, const struct stream *s,
                 uint64_t begin_ns) {
    const struct sim_hooks *hooks = sim_hooks();
    if (hooks == NULL) return;
    hooks->wait(type, (uint32_t)ctx->device, s == NULL ? 0 : s->id, begin_ns, sim_clock_ns());
}
