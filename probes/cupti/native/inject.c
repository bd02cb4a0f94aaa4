/* The library that the CUDA driver loads at cuInit (CUDA_INJECTION64_PATH).
 *
 * It starts one thread, which sleeps on a futex until the recorder switches collection on. No other
 * thread of the program is ever held: nothing here raises, exits or waits in one, except up to
 * EXIT_WAIT_MS at the end of a process that is being collected from. */
#define _GNU_SOURCE
#include "collector.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DIRECTORY_VARIABLE "TRACER_CUPTI"
#define STEP_MS 20
#define IDLE_MS 1000
#define HELPER_NICE 5
#define EXIT_WAIT_MS 400
#define READER_TIMEOUT_NS 5000000000ULL
#define STACK_BYTES (1u << 20)

static char directory[PATH_BYTES];
static struct control *control;
static struct ring_header *ring;
static _Atomic int is_forked, is_ending, is_ended, is_busy;
static int is_on, has_failed; /* of the helper thread, and of cuInit before it */
static uint32_t failed_at;

/* CUDA does not work in it: nothing is collected there, and the parent's ring tells of it. */
static void in_child(void) {
    struct ring_header *of_parent = ring;
    ranges_switch(0);
    if (!atomic_exchange(&is_forked, 1) && of_parent != NULL) {
        atomic_fetch_add(&of_parent->n_forked, 1);
    }
}

static int is_wanted(void) {
    uint64_t now = monotonic_ns(), beat = atomic_load(&control->beat_ns);
    if ((atomic_load(&control->mode) & MODE_ON) == 0 || atomic_load(&is_ending)) return 0;
    return now < beat || now - beat < READER_TIMEOUT_NS;
}

static void wait_for_change(uint32_t seen, long ms) {
    struct timespec ts = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};
    syscall(SYS_futex, &control->changes, FUTEX_WAIT, seen, &ts, NULL, 0);
}

static void note_cost(void) {
    struct timespec ts;
    if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &ts) != 0) return;
    atomic_store(&ring->helper_ns, (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec);
}

/* Begins, or says in the ring why not; then it is tried again at the next change only. */
static void begin(int is_early) {
    uint32_t seen = atomic_load(&control->changes);
    int rc = -1;
    atomic_store(&is_busy, 1);
    if (ring == NULL) ring = ring_create(directory, control);
    if (ring != NULL) {
        atomic_store(&ring->site, SITE_NONE);
        atomic_store(&ring->error, 0);
        rc = collect_begin(ring, control);
        if (rc == 0) ring->is_early = (uint32_t)is_early;
        atomic_store_explicit(&ring->state, rc == 0 ? RING_ON : RING_FAILED,
                              memory_order_release);
    }
    is_on = rc == 0;
    has_failed = rc != 0;
    failed_at = seen;
    if (!is_on) atomic_store(&is_busy, 0);
}

static void end(int is_exit) {
    collect_end(ring, is_exit);
    note_cost();
    is_on = 0;
    atomic_store_explicit(&ring->state, is_exit ? RING_ENDED : RING_OFF, memory_order_release);
    atomic_store(&is_busy, 0);
}

static void *help(void *unused) {
    cpu_set_t anywhere;
    uint64_t flushed = 0;
    (void)unused;
    prctl(PR_SET_NAME, "tracer-cupti");
    /* It takes no CPU from a thread that runs, and shares none that the launching thread is bound
     * to where the cgroup allows another. */
    memset(&anywhere, 0xff, sizeof anywhere);
    sched_setaffinity(0, sizeof anywhere, &anywhere);
    sched_setscheduler(0, SCHED_BATCH, &(struct sched_param){0});
    setpriority(PRIO_PROCESS, (id_t)syscall(SYS_gettid), HELPER_NICE);
    while (!atomic_load(&is_ending)) {
        uint32_t seen = atomic_load(&control->changes);
        if (!is_on && is_wanted() && !(has_failed && failed_at == seen)) begin(0);
        if (is_on && !is_wanted() && !atomic_load(&is_ending)) end(0);
        if (is_on) {
            uint64_t now = monotonic_ns();
            int is_due = now - flushed >= (uint64_t)control->flush_ms * 1000000ULL;
            if (is_due) flushed = now;
            collect_step(ring, is_due);
            note_cost();
        }
        wait_for_change(seen, is_on ? STEP_MS : IDLE_MS);
    }
    if (is_on) end(1);
    atomic_store(&is_ended, 1);
    return NULL;
}

/* The program ends by itself: what CUPTI holds is handed over, if that is quick. */
static void at_exit(void) {
    if (atomic_load(&is_forked)) return;
    atomic_store(&is_ending, 1);
    if (!atomic_load(&is_busy)) return;
    for (int ms = 0; ms < EXIT_WAIT_MS && !atomic_load(&is_ended); ms++) {
        struct timespec ts = {.tv_sec = 0, .tv_nsec = 1000000};
        nanosleep(&ts, NULL);
    }
}

static void start(void) {
    sigset_t all, before;
    pthread_attr_t attributes;
    pthread_t thread;
    if (pthread_attr_init(&attributes) != 0) return;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    sigfillset(&all);
    if (pthread_sigmask(SIG_SETMASK, &all, &before) == 0) {
        if (pthread_create(&thread, &attributes, help, NULL) == 0) atexit(at_exit);
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    pthread_attr_destroy(&attributes);
}

/* Called by the driver in cuInit; always says that all is well. Where collection is wanted already
 * it begins here, before the program can give any work. */
__attribute__((visibility("default"))) int InitializeInjection(void) {
    static _Atomic int is_started;
    const char *named = getenv(DIRECTORY_VARIABLE);
    if (atomic_exchange(&is_started, 1) != 0) return 1;
    if (named == NULL || strlen(named) >= sizeof directory - 64) return 1;
    strcpy(directory, named);
    control = control_open(directory);
    if (control == NULL || pthread_atfork(NULL, NULL, in_child) != 0) return 1;
    if (is_wanted()) begin(1);
    start();
    return 1;
}
