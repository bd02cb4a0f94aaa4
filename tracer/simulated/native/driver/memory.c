/* Device and pinned memory. Device memory has an address but no contents. */
#define _GNU_SOURCE
#include "../core/hooks.h"
#include "memory.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#define PAGE 4096UL

struct block {
    uintptr_t base;
    size_t size;
    enum place place;
    int device;
};

static struct block *blocks; /* sorted by base */
static size_t n_blocks, room;
static pthread_mutex_t blocks_lock = PTHREAD_MUTEX_INITIALIZER;

static size_t position(uintptr_t address) { /* the first block that begins after it */
    size_t low = 0, high = n_blocks;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (blocks[middle].base <= address) low = middle + 1;
        else high = middle;
    }
    return low;
}

static int add(uintptr_t base, size_t size, enum place place, int device) {
    size_t at;
    int rc = 0;
    pthread_mutex_lock(&blocks_lock);
    if (n_blocks == room) {
        size_t wanted = room == 0 ? 256 : room * 2;
        struct block *grown = realloc(blocks, wanted * sizeof *blocks);
        if (grown != NULL) {
            blocks = grown;
            room = wanted;
        }
    }
    if (n_blocks < room) {
        at = position(base);
        memmove(&blocks[at + 1], &blocks[at], (n_blocks - at) * sizeof *blocks);
        blocks[at] = (struct block){base, size, place, device};
        n_blocks++;
    } else {
        rc = -1;
    }
    pthread_mutex_unlock(&blocks_lock);
    return rc;
}

static int take(uintptr_t base, struct block *out) {
    size_t at;
    int rc = -1;
    pthread_mutex_lock(&blocks_lock);
    at = position(base);
    if (at > 0 && blocks[at - 1].base == base) {
        *out = blocks[at - 1];
        memmove(&blocks[at - 1], &blocks[at], (n_blocks - at) * sizeof *blocks);
        n_blocks--;
        rc = 0;
    }
    pthread_mutex_unlock(&blocks_lock);
    return rc;
}

/* Where an address lies; `base`, `size` and `device` of its block may be NULL. */
enum place place_of(uintptr_t address, uintptr_t *base, size_t *size, int *device) {
    enum place place = PAGEABLE;
    size_t at;
    pthread_mutex_lock(&blocks_lock);
    at = position(address);
    if (at > 0 && address < blocks[at - 1].base + blocks[at - 1].size) {
        const struct block *b = &blocks[at - 1];
        place = b->place;
        if (base != NULL) *base = b->base;
        if (size != NULL) *size = b->size;
        if (device != NULL) *device = b->device;
    }
    pthread_mutex_unlock(&blocks_lock);
    return place;
}

static uint64_t in_use(int device) {
    uint64_t sum = 0;
    for (uint32_t i = 0; i < SIM_CLIENTS; i++) {
        struct sim_client *c = &sim->state->client[i];
        if (atomic_load(&c->used) != 0) sum += atomic_load(&c->memory_bytes[device]);
    }
    return sum;
}

static _Atomic uint64_t pooled; /* bytes that the default pool has given out */

/* Tells CUPTI of memory that was taken or given back; `stream` is NULL where it waits for none. */
static void tell(const struct block *b, int is_release, const struct stream *stream) {
    const struct sim_hooks *hooks = sim_hooks();
    struct sim_memory memory = {.is_release = is_release != 0, .is_async = stream != NULL,
                                .kind = b->place == PINNED    ? SIM_MEMORY_PINNED
                                        : b->place == MANAGED ? SIM_MEMORY_MANAGED
                                                              : SIM_MEMORY_DEVICE,
                                .device = b->device < 0 ? 0 : (uint32_t)b->device,
                                .address = b->base, .bytes = b->size};
    if (stream != NULL) {
        memory.stream = stream->id;
        memory.pool_used = atomic_fetch_add(&pooled, is_release ? -b->size : b->size);
        memory.pool_used += is_release ? -b->size : b->size;
    }
    if (hooks == NULL) return;
    hooks->memory(&memory);
}

static CUresult allocate(CUdeviceptr *out, size_t size, enum place place, struct stream *s) {
    struct context *ctx = current();
    size_t whole = (size + PAGE - 1) & ~(PAGE - 1);
    int protection = place == MANAGED ? PROT_READ | PROT_WRITE : PROT_NONE;
    _Atomic uint64_t *used;
    void *p;
    if (ready() != OK) return NOT_INITIALIZED;
    if (ctx == NULL) return INVALID_CONTEXT;
    if (out == NULL || size == 0) return INVALID_VALUE;
    used = &sim->state->client[client].memory_bytes[ctx->device];
    if ((double)(in_use(ctx->device) + whole) > sim->state->device[ctx->device].config.memory_bytes) {
        return OUT_OF_MEMORY;
    }
    p = mmap(NULL, whole, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED) return OUT_OF_MEMORY;
    if (add((uintptr_t)p, whole, place, ctx->device) != 0) {
        munmap(p, whole);
        return OUT_OF_MEMORY;
    }
    atomic_fetch_add(used, whole);
    tell(&(struct block){(uintptr_t)p, whole, place, ctx->device}, 0, s);
    *out = (CUdeviceptr)(uintptr_t)p;
    return OK;
}

static CUresult release(CUdeviceptr pointer, struct stream *s) {
    struct block b;
    if (ready() != OK) return NOT_INITIALIZED;
    if (pointer == 0) return OK;
    if (take((uintptr_t)pointer, &b) != 0) return INVALID_VALUE;
    if (b.place == PINNED || b.place == REGISTERED) return INVALID_VALUE;
    munmap((void *)b.base, b.size);
    atomic_fetch_sub(&sim->state->client[client].memory_bytes[b.device], b.size);
    tell(&b, 1, s);
    return OK;
}

API CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t size) {
    return allocate(out, size, DEVICE, NULL);
}

API CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height,
                                unsigned int element) {
    (void)element;
    *pitch = (width + 511) & ~(size_t)511;
    return allocate(out, *pitch * height, DEVICE, NULL);
}

API CUresult cuMemAllocManaged(CUdeviceptr *out, size_t size, unsigned int flags) {
    (void)flags;
    return allocate(out, size, MANAGED, NULL);
}

/* Freeing waits for the device, as the real one does. */
API CUresult cuMemFree_v2(CUdeviceptr pointer) {
    struct context *ctx = current();
    if (ready() == OK && ctx != NULL && pointer != 0) wait_context(ctx);
    return release(pointer, NULL);
}

static CUresult allocate_async(CUdeviceptr *out, size_t size, struct stream *s) {
    return s == NULL ? INVALID_CONTEXT : allocate(out, size, DEVICE, s);
}

API CUresult cuMemAllocAsync(CUdeviceptr *out, size_t size, CUstream s) {
    return allocate_async(out, size, resolve(s, 0));
}

API CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t size, CUstream s) {
    return allocate_async(out, size, resolve(s, 1));
}

API CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t size, CUmemoryPool pool, CUstream s) {
    (void)pool;
    return allocate_async(out, size, resolve(s, 0));
}

API CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t size, CUmemoryPool pool,
                                          CUstream s) {
    (void)pool;
    return allocate_async(out, size, resolve(s, 1));
}

API CUresult cuMemFreeAsync(CUdeviceptr pointer, CUstream s) {
    return release(pointer, resolve(s, 0));
}

API CUresult cuMemFreeAsync_ptsz(CUdeviceptr pointer, CUstream s) {
    return release(pointer, resolve(s, 1));
}

static CUresult allocate_host(void **out, size_t size) {
    void *p;
    if (ready() != OK) return NOT_INITIALIZED;
    if (out == NULL || size == 0) return INVALID_VALUE;
    size = (size + PAGE - 1) & ~(PAGE - 1);
    p = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) return OUT_OF_MEMORY;
    if (add((uintptr_t)p, size, PINNED, -1) != 0) {
        munmap(p, size);
        return OUT_OF_MEMORY;
    }
    tell(&(struct block){(uintptr_t)p, size, PINNED, -1}, 0, NULL);
    *out = p;
    return OK;
}

API CUresult cuMemAllocHost_v2(void **out, size_t size) { return allocate_host(out, size); }

API CUresult cuMemHostAlloc(void **out, size_t size, unsigned int flags) {
    (void)flags;
    return allocate_host(out, size);
}

API CUresult cuMemFreeHost(void *pointer) {
    struct block b;
    if (pointer == NULL) return OK;
    if (place_of((uintptr_t)pointer, NULL, NULL, NULL) != PINNED) return INVALID_VALUE;
    if (take((uintptr_t)pointer, &b) != 0) return INVALID_VALUE;
    munmap((void *)b.base, b.size);
    tell(&b, 1, NULL);
    return OK;
}

API CUresult cuMemHostRegister_v2(void *pointer, size_t size, unsigned int flags) {
    (void)flags;
    if (pointer == NULL || size == 0) return INVALID_VALUE;
    return add((uintptr_t)pointer, size, REGISTERED, -1) == 0 ? OK : OUT_OF_MEMORY;
}

API CUresult cuMemHostUnregister(void *pointer) {
    struct block b;
    if (place_of((uintptr_t)pointer, NULL, NULL, NULL) != REGISTERED) return INVALID_VALUE;
    return take((uintptr_t)pointer, &b) == 0 ? OK : INVALID_VALUE;
}

API CUresult cuMemHostGetDevicePointer_v2(CUdeviceptr *out, void *pointer, unsigned int flags) {
    (void)flags;
    *out = (CUdeviceptr)(uintptr_t)pointer;
    return OK;
}

API CUresult cuMemHostGetFlags(unsigned int *flags, void *pointer) {
    (void)pointer;
    *flags = 0;
    return OK;
}

API CUresult cuMemGetInfo_v2(size_t *available, size_t *total) {
    struct context *ctx = current();
    uint64_t used;
    if (ready() != OK) return NOT_INITIALIZED;
    if (ctx == NULL) return INVALID_CONTEXT;
    used = in_use(ctx->device);
    *total = (size_t)sim->state->device[ctx->device].config.memory_bytes;
    *available = used < *total ? *total - used : 0;
    return OK;
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *base, size_t *size, CUdeviceptr pointer) {
    uintptr_t b = 0;
    size_t n = 0;
    if (place_of((uintptr_t)pointer, &b, &n, NULL) == PAGEABLE) return NOT_FOUND;
    if (base != NULL) *base = b;
    if (size != NULL) *size = n;
    return OK;
}

/* Numbers are those of CUpointer_attribute. */
API CUresult cuPointerGetAttribute(void *out, int attribute, CUdeviceptr pointer) {
    uintptr_t base = 0;
    size_t size = 0;
    int device = 0;
    enum place place = place_of((uintptr_t)pointer, &base, &size, &device);
    int on_device = place == DEVICE || place == MANAGED;
    if (out == NULL || place == PAGEABLE) return INVALID_VALUE;
    switch (attribute) {
    case 1: *(CUcontext *)out = current(); return OK;
    case 2: *(unsigned int *)out = on_device ? 2 : 1; return OK;
    case 3: *(CUdeviceptr *)out = pointer; return OK;
    case 4: *(void **)out = (void *)(uintptr_t)pointer; return place == DEVICE ? INVALID_VALUE : OK;
    case 7: *(unsigned long long *)out = (unsigned long long)base; return OK;
    case 8: *(unsigned int *)out = place == MANAGED; return OK;
    case 9: *(int *)out = on_device ? device : 0; return OK;
    case 11: *(CUdeviceptr *)out = base; return OK;
    case 12: *(size_t *)out = size; return OK;
    default: return NOT_SUPPORTED;
    }
}

static int default_pool;

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
    (void)device;
    *out = &default_pool;
    return OK;
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
    (void)device;
    *out = &default_pool;
    return OK;
}

API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    (void)pool, (void)attribute;
    return value == NULL ? INVALID_VALUE : OK;
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    (void)pool, (void)attribute;
    if (value == NULL) return INVALID_VALUE;
    *(uint64_t *)value = 0;
    return OK;
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t keep) {
    (void)pool, (void)keep;
    return OK;
}
