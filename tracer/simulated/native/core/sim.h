/* The device core: what libcuda, libnvidia-ml and the controller call. */
#ifndef TRACER_SIM_H
#define TRACER_SIM_H

#include "state.h"

#define SIM_API __attribute__((visibility("default")))

/* One process's view of one state file. */
struct sim_handle {
    struct sim_state *state;
    int lock_fd;
    char path[512];
};

extern int sim_is_client; /* this process holds the lock of a client */
SIM_API uint64_t sim_clock_ns(void);
SIM_API void sim_burn_ns(uint64_t ns);

/* attach.c */
SIM_API struct sim_handle *sim_create(const char *path, uint32_t devices, uint32_t truth_capacity);
SIM_API struct sim_handle *sim_open(const char *path);
SIM_API struct sim_handle *sim_from_environment(void);
SIM_API void sim_close(struct sim_handle *h);
SIM_API int sim_lock(struct sim_handle *h);
SIM_API int sim_trylock(struct sim_handle *h);
SIM_API void sim_unlock(struct sim_handle *h);

/* client.c */
SIM_API uint32_t sim_client_open(struct sim_handle *h);
SIM_API void sim_client_close(struct sim_handle *h, uint32_t client);
SIM_API void sim_reap(struct sim_handle *h, uint64_t now, int force);
SIM_API uint32_t sim_stream_open(struct sim_handle *h, uint32_t client, uint32_t device);
SIM_API void sim_stream_close(struct sim_handle *h, uint32_t stream);
SIM_API uint32_t sim_event_open(struct sim_handle *h, uint32_t client);
SIM_API void sim_event_close(struct sim_handle *h, uint32_t event);
SIM_API uint32_t sim_kernel_id(struct sim_handle *h, const char *name);

/* engine.c, with the lock held */
double sim_need_ns(const struct sim_config *c, const struct sim_op *op);
SIM_API void sim_advance(struct sim_handle *h, uint64_t now);
void sim_drop_stream(struct sim_state *s, struct sim_stream *st, uint64_t now);
void sim_truth_write(struct sim_state *s, const struct sim_stream *st, const struct sim_op *op,
                     uint64_t end_ns, uint8_t flags);

/* account.c, with the lock held */
void sim_account(struct sim_state *s, uint32_t device, uint64_t t0, uint64_t t1, int busy,
                 double sm, double memory, double tensor, double power, double rx, double tx);
void sim_account_client(struct sim_client *c, uint32_t device, uint64_t t0, uint64_t t1,
                        double memory);
struct sim_usage {
    double busy, sm, memory, tensor; /* shares of the window, 0..1 */
    double watts;
    double rx_bytes, tx_bytes;
};
SIM_API void sim_usage(struct sim_state *s, uint32_t device, uint64_t t0, uint64_t t1,
                       struct sim_usage *out);
SIM_API void sim_client_usage(struct sim_client *c, uint32_t device, uint64_t t0, uint64_t t1,
                              double *busy, double *memory);

/* submit.c, without the lock; the caller serialises the producers of one stream */
SIM_API uint64_t sim_submit(struct sim_handle *h, uint32_t stream, const struct sim_op *op,
                            int wait_mode);
SIM_API int sim_is_full(struct sim_handle *h, uint32_t stream);
SIM_API int sim_done(struct sim_handle *h, uint32_t stream, uint64_t seq);
SIM_API void sim_wait(struct sim_handle *h, uint32_t stream, uint64_t seq, int wait_mode);

#endif
