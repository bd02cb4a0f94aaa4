/* What the parts of the injection library share. */
#ifndef TRACER_CUPTI_COLLECTOR_H
#define TRACER_CUPTI_COLLECTOR_H

#include "abi.h"
#include "shared.h"

/* transport.c: one producer, the helper thread */
struct control *control_open(const char *directory);
struct ring_header *ring_create(const char *directory, const struct control *control);
void ring_push(struct ring_header *ring, const struct record *records, uint32_t n);
uint32_t ring_name(struct ring_header *ring, const char *name);
uint64_t monotonic_ns(void);

/* buffers.c: what CUPTI fills */
int pool_open(void);
void pool_close(void);
void pool_request(uint8_t **buffer, size_t *size, size_t *max_records);
void pool_complete(void *context, uint32_t stream, uint8_t *buffer, size_t size, size_t valid);
void pool_drain(const struct cupti *cupti, struct ring_header *ring);

/* ranges.c */
void ranges_switch(int on);
void ranges_drain(struct ring_header *ring);

/* library.c */
int library_find(struct cupti *cupti, const struct control *control, struct ring_header *ring);

/* collect.c: by the helper thread only, except the end of the process */
int collect_begin(struct ring_header *ring, const struct control *control);
void collect_step(struct ring_header *ring, int flush);
void collect_end(struct ring_header *ring, int is_exit);

#endif
