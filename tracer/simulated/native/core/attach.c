/* Creating, mapping and locking the shared state. */
#define _GNU_SOURCE
#include "sim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

int sim_is_client;

uint64_t sim_clock_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

/* Uses `ns` of this thread's CPU time. */
void sim_burn_ns(uint64_t ns) {
    struct timespec ts;
    uint64_t begin, now;
    if (ns == 0) return;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
    begin = now = (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
    while (now - begin < ns) {
        for (volatile int i = 0; i < 200; i++) {
        }
        clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts);
        now = (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
    }
}

static void defaults(struct sim_state *s) {
    s->global = (struct sim_global){
        .module_load_ns = 1e6, .function_load_ns = 2e5, .default_kernel_ns = 5000,
        .driver_version = 13000,
    };
    for (uint32_t d = 0; d < SIM_DEVICES; d++) {
        s->device[d].config = (struct sim_config){
            .peak_flops = 900e12, .memory_bandwidth = 3.3e12, .link_bandwidth = 50e9,
            .memory_bytes = 80e9, .context_bytes = 400e6, .clock_factor = 1, .memory_factor = 1,
            .clock_mhz = 1980, .idle_clock_mhz = 345, .memory_clock_mhz = 2619, .idle_watts = 70,
            .max_watts = 650, .limit_watts = 700, .launch_latency_ns = 2500, .timeslice_ns = 2e6,
            .switch_ns = 5e4, .queue_depth = SIM_RING, .util_window_ns = 2e8, .link_generation = 5,
            .link_max_generation = 5, .link_width = 16, .sm_count = 132,
        };
        s->device[d].group = SIM_NONE;
        snprintf(s->device[d].uuid, sizeof s->device[d].uuid,
                 "GPU-51000000-0000-4000-8000-%012x", d);
    }
}

static struct sim_handle *map(const char *path, int fd, uint64_t size) {
    struct sim_handle *h = calloc(1, sizeof *h);
    char lock_path[544];
    if (h == NULL) return NULL;
    h->state = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (h->state == MAP_FAILED) {
        free(h);
        return NULL;
    }
    snprintf(h->path, sizeof h->path, "%s", path);
    /* Held for the life of the process: its byte locks say which clients are alive. */
    snprintf(lock_path, sizeof lock_path, "%s.clients", path);
    h->lock_fd = open(lock_path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    return h;
}

/* Makes a new state file at `path`, which must not exist. NULL with errno on failure. */
struct sim_handle *sim_create(const char *path, uint32_t devices, uint32_t truth_capacity) {
    uint64_t size = sizeof(struct sim_state) + (uint64_t)truth_capacity * sizeof(struct sim_truth);
    pthread_mutexattr_t attr;
    struct sim_handle *h;
    int fd;
    if (devices == 0 || devices > SIM_DEVICES || (truth_capacity & (truth_capacity - 1)) != 0) {
        errno = EINVAL;
        return NULL;
    }
    fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0) return NULL;
    if (ftruncate(fd, (off_t)size) != 0 || (h = map(path, fd, size)) == NULL) {
        close(fd);
        return NULL;
    }
    close(fd);
    h->state->size = size;
    h->state->devices = devices;
    h->state->truth_capacity = truth_capacity;
    h->state->created_ns = h->state->now_ns = sim_clock_ns();
    pthread_mutexattr_init(&attr);
    pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&h->state->lock, &attr);
    pthread_mutexattr_destroy(&attr);
    defaults(h->state);
    for (uint32_t d = 0; d < SIM_DEVICES; d++) {
        h->state->device[d].accounted_ns = h->state->now_ns;
    }
    atomic_thread_fence(memory_order_release);
    h->state->magic = SIM_MAGIC;
    return h;
}

/* Maps the state at `path`. NULL if there is none or it was made by another build. */
struct sim_handle *sim_open(const char *path) {
    struct stat st;
    struct sim_handle *h = NULL;
    int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    if (fstat(fd, &st) == 0 && (uint64_t)st.st_size >= sizeof(struct sim_state)) {
        h = map(path, fd, (uint64_t)st.st_size);
        if (h != NULL && (h->state->magic != SIM_MAGIC || h->state->size != (uint64_t)st.st_size)) {
            sim_close(h);
            h = NULL;
        }
    }
    close(fd);
    return h;
}

/* The state named by TRACER_SIM_STATE, mapped once in a process; NULL without one. */
struct sim_handle *sim_from_environment(void) {
    static pthread_mutex_t once = PTHREAD_MUTEX_INITIALIZER;
    static struct sim_handle *handle;
    pthread_mutex_lock(&once);
    if (handle == NULL) {
        const char *path = getenv("TRACER_SIM_STATE");
        static int said;
        handle = path == NULL ? NULL : sim_open(path);
        if (handle == NULL && !said) {
            said = 1;
            fprintf(stderr, "tracer: no simulated device: TRACER_SIM_STATE is %s. "
                            "Start the program with the environment of SimulatedDevice.env().\n",
                    path == NULL ? "not set" : path);
        }
    }
    pthread_mutex_unlock(&once);
    return handle;
}

void sim_close(struct sim_handle *h) {
    munmap(h->state, h->state->size);
    /* Closing any descriptor of the clients' file would drop this process's own lock on it. */
    if (h->lock_fd >= 0 && !sim_is_client) close(h->lock_fd);
    free(h);
}

/* A holder that died left whole operations or a half-finished step behind: the step is at most
 * counted twice or not at all, which the next one continues from. */
static int taken(struct sim_handle *h, int rc) {
    if (rc == EOWNERDEAD) {
        pthread_mutex_consistent(&h->state->lock);
        h->state->recoveries++;
        return 0;
    }
    return rc;
}

/* Takes the lock; gives up after 200 ms, which only a stopped holder causes. 0 when taken. */
int sim_lock(struct sim_handle *h) {
    struct timespec ts;
    int rc = pthread_mutex_trylock(&h->state->lock);
    if (rc != EBUSY) return taken(h, rc);
    clock_gettime(CLOCK_REALTIME, &ts);
    ts.tv_nsec += 200000000;
    if (ts.tv_nsec >= 1000000000) {
        ts.tv_nsec -= 1000000000;
        ts.tv_sec++;
    }
    return taken(h, pthread_mutex_timedlock(&h->state->lock, &ts));
}

int sim_trylock(struct sim_handle *h) { return taken(h, pthread_mutex_trylock(&h->state->lock)); }

void sim_unlock(struct sim_handle *h) { pthread_mutex_unlock(&h->state->lock); }
