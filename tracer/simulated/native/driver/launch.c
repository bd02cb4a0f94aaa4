/* Launching kernels. */
#include "activity.h"

static void fill(struct sim_op *op, const struct sim_cost *cost) {
    op->compute_ns = cost->compute_ns;
    op->memory_ns = cost->memory_ns;
    op->share = (uint16_t)(cost->share == 0 ? 1 : cost->share);
    op->power = (uint16_t)cost->power;
    op->tensor = (uint8_t)cost->tensor;
    op->flags = (uint8_t)cost->flags;
    if (cost->ranks != 0) {
        op->kind = SIM_COLLECTIVE;
        op->arg = cost->key;
        op->arg2 = cost->ranks;
    }
}

static CUresult give(struct call *call, struct function *f, unsigned int gx, unsigned int gy,
                     unsigned int gz,
                     unsigned int bx, unsigned int by, unsigned int bz, struct stream *s) {
    struct sim_op op = {.kind = SIM_KERNEL, .count = 1};
    struct sim_cost cost;
    CUresult rc;
    if (ready() != OK) return NOT_INITIALIZED;
    if (f == NULL) return INVALID_HANDLE;
    if (s == NULL) return INVALID_CONTEXT;
    if (gx == 0 || gy == 0 || gz == 0 || bx == 0 || by == 0 || bz == 0) return INVALID_VALUE;
    if ((uint64_t)bx * by * bz > 1024) return INVALID_VALUE;
    call->about.grid[0] = gx, call->about.grid[1] = gy, call->about.grid[2] = gz;
    call->about.block[0] = bx, call->about.block[1] = by, call->about.block[2] = bz;
    tracer_sim_take(sim, f->entry, &cost);
    fill(&op, &cost);
    op.kernel = f->kernel;
    sim_burn_ns((uint64_t)sim->state->global.launch_cpu_ns);
    rc = submit(s, &op);
    if (rc == OK && !is_capturing(s)) {
        atomic_fetch_add_explicit(&sim->state->client[client].launches, 1, memory_order_relaxed);
    }
    return rc;
}

static CUresult launch(uint32_t cbid, struct function *f, unsigned int gx, unsigned int gy,
                       unsigned int gz, unsigned int bx, unsigned int by, unsigned int bz,
                       struct stream *s) {
    struct call call;
    call_enter(&call, cbid);
    return call_leave(&call, give(&call, f, gx, gy, gz, bx, by, bz, s));
}

/* The first numbers are those of CUpti_driver_api_trace_cbid. */
#define LAUNCH(CBID, NAME, PT)                                                                   \
    API CUresult NAME(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,           \
                      unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,    \
                      CUstream s, void **params, void **extra) {                                 \
        (void)shared, (void)params, (void)extra;                                                 \
        return launch(CBID, f, gx, gy, gz, bx, by, bz, resolve(s, PT));                          \
    }

LAUNCH(307, cuLaunchKernel, 0)
LAUNCH(442, cuLaunchKernel_ptsz, 1)

#define LAUNCH_COOPERATIVE(CBID, NAME, PT)                                                       \
    API CUresult NAME(CUfunction f, unsigned int gx, unsigned int gy, unsigned int gz,           \
                      unsigned int bx, unsigned int by, unsigned int bz, unsigned int shared,    \
                      CUstream s, void **params) {                                               \
        (void)shared, (void)params;                                                              \
        return launch(CBID, f, gx, gy, gz, bx, by, bz, resolve(s, PT));                          \
    }

LAUNCH_COOPERATIVE(477, cuLaunchCooperativeKernel, 0)
LAUNCH_COOPERATIVE(478, cuLaunchCooperativeKernel_ptsz, 1)

#define LAUNCH_EX(CBID, NAME, PT)                                                                \
    API CUresult NAME(const CUlaunchConfig *c, CUfunction f, void **params, void **extra) {      \
        (void)params, (void)extra;                                                               \
        if (c == NULL) return INVALID_VALUE;                                                     \
        return launch(CBID, f, c->gridDimX, c->gridDimY, c->gridDimZ, c->blockDimX, c->blockDimY,\
                      c->blockDimZ, resolve(c->hStream, PT));                                    \
    }

LAUNCH_EX(652, cuLaunchKernelEx, 0)
LAUNCH_EX(653, cuLaunchKernelEx_ptsz, 1)
