/* Costs of kernels: by name for the process, or once for the next launch of a thread. */
#include "cost.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#define TABLE 4096

static __thread struct sim_cost next_cost;
static __thread int next_set;

struct sim_entry {
    char *name;
    _Atomic int set;
    struct sim_cost cost;
};

static struct sim_entry table[TABLE];
static pthread_mutex_t table_lock = PTHREAD_MUTEX_INITIALIZER;

static struct sim_cost plain(uint64_t compute_ns, uint64_t memory_ns) {
    /* A kernel limited by memory draws less than one limited by the units. */
    return (struct sim_cost){.compute_ns = compute_ns, .memory_ns = memory_ns, .share = 1000,
                             .power = compute_ns >= memory_ns ? 1000 : 650,
                             .tensor = compute_ns >= memory_ns ? 60 : 10};
}

static struct sim_cost *pending(void) {
    if (!next_set) next_cost = plain(0, 0);
    next_set = 1;
    return &next_cost;
}

void tracer_sim_next(uint64_t compute_ns, uint64_t memory_ns) {
    next_cost = plain(compute_ns, memory_ns);
    next_set = 1;
}

void tracer_sim_next_share(double share) { pending()->share = (uint32_t)(share * 1000); }

void tracer_sim_next_power(double power) { pending()->power = (uint32_t)(power * 1000); }

void tracer_sim_next_tensor(double share) { pending()->tensor = (uint32_t)(share * 100); }

void tracer_sim_next_hang(void) {
    struct sim_cost *c = pending();
    c->flags |= SIM_HANG;
    c->power = 250; /* a loop that spins uses little of the device */
    c->tensor = 0;
}

void tracer_sim_next_collective(uint64_t key, uint32_t ranks) {
    struct sim_cost *c = pending();
    c->key = key;
    c->ranks = ranks;
    c->share = 100;
    c->power = 2500; /* of its share: spinning draws a quarter of the range */
    c->tensor = 0;
}

static uint32_t hash(const char *name) {
    uint32_t h = 2166136261u;
    for (; *name != 0; name++) h = (h ^ (unsigned char)*name) * 16777619u;
    return h;
}

/* The entry of a name, made if it is new; NULL when the table is full. Entries never move. */
const struct sim_entry *tracer_sim_entry(const char *name) {
    struct sim_entry *found = NULL;
    pthread_mutex_lock(&table_lock);
    for (uint32_t i = hash(name), k = 0; k < TABLE && found == NULL; k++, i++) {
        struct sim_entry *e = &table[i % TABLE];
        if (e->name == NULL) e->name = strdup(name);
        if (e->name != NULL && strcmp(e->name, name) == 0) found = e;
    }
    pthread_mutex_unlock(&table_lock);
    return found;
}

static void put(const char *name, struct sim_cost cost) {
    struct sim_entry *e = (struct sim_entry *)tracer_sim_entry(name);
    if (e == NULL) return;
    e->cost = cost;
    atomic_store_explicit(&e->set, 1, memory_order_release);
}

void tracer_sim_kernel(const char *name, uint64_t compute_ns, uint64_t memory_ns, double share,
                       double power, double tensor) {
    struct sim_cost c = plain(compute_ns, memory_ns);
    c.share = (uint32_t)(share * 1000);
    c.power = (uint32_t)(power * 1000);
    c.tensor = (uint32_t)(tensor * 100);
    put(name, c);
}

void tracer_sim_kernel_work(const char *name, double flops, double bytes, double tensor) {
    struct sim_handle *h = sim_from_environment();
    struct sim_cost c;
    if (h == NULL) return;
    c = plain((uint64_t)(flops / h->state->device[0].config.peak_flops * 1e9),
              (uint64_t)(bytes / h->state->device[0].config.memory_bandwidth * 1e9));
    c.tensor = (uint32_t)(tensor * 100);
    put(name, c);
}

/* The cost set for the next launch of this thread, once; 0 if none is. */
int tracer_sim_take_next(struct sim_cost *out) {
    if (!next_set) return 0;
    *out = next_cost;
    next_set = 0;
    return 1;
}

/* The cost of one launch: the thread's next, else the kernel's, else the default. */
void tracer_sim_take(struct sim_handle *h, const struct sim_entry *entry, struct sim_cost *out) {
    if (tracer_sim_take_next(out)) return;
    if (entry != NULL && atomic_load_explicit(&entry->set, memory_order_acquire)) {
        *out = entry->cost;
    } else {
        *out = plain((uint64_t)h->state->global.default_kernel_ns, 0);
    }
}
