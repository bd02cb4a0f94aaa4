/* Switching collection on and off in CUPTI. */
#define _GNU_SOURCE
#include "collector.h"

#include <dlfcn.h>
#include <string.h>
#include <time.h>

#include "calls.h"

#define FINALIZE_VERSION 24 /* CUDA 12.6: before, finalising could crash after graphs */
#define FINALIZE_WAIT_MS 500

/* The first ones are what it is all about; without the others some rows are missing. */
#define REQUIRED_KINDS 2
static const uint32_t common_kinds[] = {ACTIVITY_CONCURRENT_KERNEL, ACTIVITY_MEMCPY,
                                        ACTIVITY_MEMCPY2,           ACTIVITY_MEMSET,
                                        ACTIVITY_SYNCHRONIZATION,   ACTIVITY_OVERHEAD,
                                        ACTIVITY_MEMORY2,           ACTIVITY_EXTERNAL_CORRELATION};
/* Most buffers in device memory per context, 3 MB each: CUPTI's own limit is 250. */
#define DEVICE_BUFFERS 16

static struct cupti cupti;
static int is_found;
static void *subscriber;
static int has_graph_trace, has_call_kinds;
enum { FINALIZE_NO = 0, FINALIZE_ASKED = 1, FINALIZE_RUNS = 2, FINALIZE_DONE = 3 };
static _Atomic int finalize;

static void nap_ms(long ms) {
    struct timespec ts = {.tv_sec = 0, .tv_nsec = ms * 1000000};
    nanosleep(&ts, NULL);
}

/* CUPTI may be detached at the return of an API call: the first thread that comes by does it. */
static void at_call(void *user, uint32_t domain, uint32_t id, const void *data) {
    int expected = FINALIZE_ASKED;
    (void)user, (void)domain, (void)id;
    if (((const struct callback_data *)data)->site != SITE_EXIT) return;
    if (atomic_compare_exchange_strong(&finalize, &expected, FINALIZE_RUNS)) {
        cupti.cuptiFinalize();
        atomic_store(&finalize, FINALIZE_DONE);
    }
}

static int fail(struct ring_header *ring, enum ring_site site, int error) {
    atomic_store(&ring->site, (uint32_t)site);
    atomic_store(&ring->error, (uint32_t)error);
    return -1;
}

static void for_calls(int is_on, int (*function)(uint32_t, uint8_t),
                      const struct call_range *ranges, size_t n) {
    for (size_t i = 0; i < n; i++) {
        for (uint32_t id = ranges[i].first; id <= ranges[i].last; id++) {
            function(id, (uint8_t)is_on); /* a number this release lacks is refused */
        }
    }
}

/* The calls that give work, alone where the release can tell them apart. */
static int set_calls(int is_on) {
    int rc;
    if (cupti.cuptiActivityEnableDriverApi != NULL && cupti.cuptiActivityEnableRuntimeApi != NULL) {
        for_calls(is_on, cupti.cuptiActivityEnableDriverApi, driver_calls,
                  sizeof driver_calls / sizeof driver_calls[0]);
        for_calls(is_on, cupti.cuptiActivityEnableRuntimeApi, runtime_calls,
                  sizeof runtime_calls / sizeof runtime_calls[0]);
        return CUPTI_OK;
    }
    if (!is_on) {
        if (has_call_kinds) {
            cupti.cuptiActivityDisable(ACTIVITY_DRIVER);
            cupti.cuptiActivityDisable(ACTIVITY_RUNTIME);
        }
        has_call_kinds = 0;
        return CUPTI_OK;
    }
    has_call_kinds = 1;
    rc = cupti.cuptiActivityEnable(ACTIVITY_DRIVER);
    return rc != CUPTI_OK ? rc : cupti.cuptiActivityEnable(ACTIVITY_RUNTIME);
}

static void disable_kinds(void) {
    set_calls(0);
    for (size_t i = 0; i < sizeof common_kinds / sizeof common_kinds[0]; i++) {
        cupti.cuptiActivityDisable(common_kinds[i]);
    }
    if (has_graph_trace) cupti.cuptiActivityDisable(ACTIVITY_GRAPH_TRACE);
    has_graph_trace = 0;
}

static int enable_kinds(int graph_nodes) {
    int rc = CUPTI_OK;
    for (size_t i = 0; i < sizeof common_kinds / sizeof common_kinds[0] && rc == CUPTI_OK; i++) {
        rc = cupti.cuptiActivityEnable(common_kinds[i]);
        if (i >= REQUIRED_KINDS) rc = CUPTI_OK;
    }
    if (rc == CUPTI_OK && !graph_nodes) {
        /* Without this kind (before CUDA 11.7) graphs come node by node. */
        has_graph_trace = cupti.cuptiActivityEnable(ACTIVITY_GRAPH_TRACE) == CUPTI_OK;
    }
    return rc != CUPTI_OK ? rc : set_calls(1);
}

/* Bounds what CUPTI takes of the device's memory, and spares the program's threads the clearing of
 * buffers. Releases that refuse either do without. */
static void set_attributes(void) {
    size_t limit = DEVICE_BUFFERS, limit_size = sizeof limit;
    uint8_t is_zeroed = 1;
    size_t zeroed_size = sizeof is_zeroed;
    if (cupti.cuptiActivitySetAttribute == NULL) return;
    cupti.cuptiActivitySetAttribute(ATTRIBUTE_POOL_LIMIT, &limit_size, &limit);
    cupti.cuptiActivitySetAttribute(ATTRIBUTE_ZEROED_BUFFERS, &zeroed_size, &is_zeroed);
}

static void read_uuids(struct ring_header *ring) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*count)(int *) = driver == NULL ? NULL : dlsym(driver, "cuDeviceGetCount");
    int (*uuid)(void *, int) = driver == NULL ? NULL : dlsym(driver, "cuDeviceGetUuid_v2");
    int n = 0;
    if (uuid == NULL && driver != NULL) uuid = dlsym(driver, "cuDeviceGetUuid");
    if (count == NULL || uuid == NULL || count(&n) != 0) n = 0;
    if (n > DEVICES) n = DEVICES;
    for (int i = 0; i < n; i++) {
        if (uuid(ring->uuid[i], i) != 0) memset(ring->uuid[i], 0, 16);
    }
    atomic_store_explicit(&ring->n_devices, (uint32_t)n, memory_order_release);
    if (driver != NULL) dlclose(driver);
}

/* Begins to collect; 0, or -1 with the ring saying why. The clock comes before any kind. */
int collect_begin(struct ring_header *ring, const struct control *control) {
    int nodes = (atomic_load(&control->mode) & MODE_GRAPH_NODES) != 0;
    int rc, stage = atomic_load(&finalize);
    if (stage == FINALIZE_ASKED || stage == FINALIZE_RUNS) {
        int expected = FINALIZE_ASKED;
        /* No call came by to detach it: it is still attached and can be used again. */
        if (!atomic_compare_exchange_strong(&finalize, &expected, FINALIZE_NO)) {
            while (atomic_load(&finalize) == FINALIZE_RUNS) nap_ms(1);
        } else {
            cupti.cuptiUnsubscribe(subscriber);
        }
    }
    atomic_store(&finalize, FINALIZE_NO);
    if (!is_found && library_find(&cupti, control, ring) != 0) return -1;
    is_found = 1;
    if (pool_open() != 0) return fail(ring, SITE_MEMORY, 0);
    rc = cupti.cuptiSubscribe(&subscriber, at_call, NULL);
    if (rc != CUPTI_OK) return fail(ring, SITE_SUBSCRIBE, rc);
    rc = cupti.cuptiActivityRegisterTimestampCallback(monotonic_ns);
    if (rc != CUPTI_OK) {
        cupti.cuptiUnsubscribe(subscriber);
        return fail(ring, SITE_TIMESTAMP, rc);
    }
    rc = cupti.cuptiActivityRegisterCallbacks(pool_request, pool_complete);
    if (rc != CUPTI_OK) {
        cupti.cuptiUnsubscribe(subscriber);
        return fail(ring, SITE_BUFFERS, rc);
    }
    cupti.cuptiSetThreadIdType(THREAD_ID_SYSTEM);
    set_attributes();
    atomic_store(&ring->off_ns, 0);
    rc = enable_kinds(nodes);
    if (rc != CUPTI_OK) {
        disable_kinds();
        cupti.cuptiUnsubscribe(subscriber);
        return fail(ring, SITE_ENABLE, rc);
    }
    atomic_store(&ring->on_ns, monotonic_ns());
    ranges_drain(NULL); /* what came after the end of the last window */
    ranges_switch(1);
    return 0;
}

void collect_step(struct ring_header *ring, int flush) {
    size_t dropped = 0;
    if (flush) {
        if (atomic_load(&ring->n_devices) == 0) read_uuids(ring); /* cuInit must be over */
        cupti.cuptiActivityFlushAll(0);
        if (cupti.cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped) == CUPTI_OK) {
            atomic_fetch_add(&ring->lost_cupti, dropped);
        }
    }
    pool_drain(&cupti, ring);
    ranges_drain(ring);
}

/* Ends collection and hands over what is left. At the end of the process CUPTI is left attached. */
void collect_end(struct ring_header *ring, int is_exit) {
    uint64_t now;
    size_t dropped = 0;
    ranges_switch(0);
    disable_kinds();
    now = monotonic_ns();
    cupti.cuptiActivityFlushAll(FLUSH_FORCED);
    pool_drain(&cupti, ring);
    ranges_drain(ring);
    if (cupti.cuptiActivityGetNumDroppedRecords(NULL, 0, &dropped) == CUPTI_OK) {
        atomic_fetch_add(&ring->lost_cupti, dropped);
    }
    if (!is_exit && atomic_load(&ring->cupti_version) >= FINALIZE_VERSION) {
        atomic_store(&finalize, FINALIZE_ASKED);
        for (size_t i = 0; i < sizeof driver_calls / sizeof driver_calls[0]; i++) {
            for (uint32_t id = driver_calls[i].first; id <= driver_calls[i].last; id++) {
                cupti.cuptiEnableCallback(1, subscriber, DOMAIN_DRIVER, id);
            }
        }
        for (int ms = 0; ms < FINALIZE_WAIT_MS && atomic_load(&finalize) < FINALIZE_DONE; ms++) {
            nap_ms(1);
        }
    } else {
        cupti.cuptiUnsubscribe(subscriber);
    }
    pool_close();
    atomic_store_explicit(&ring->off_ns, now, memory_order_release);
}
