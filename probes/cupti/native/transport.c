/* The files in the shared directory, and putting records into the ring. */
#define _GNU_SOURCE
#include "collector.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define MAX_RECORDS (1u << 20)
#define MAX_NAMES (64u << 20)
#define NAME_SLOTS 16384
#define MAX_NAME 4096

uint64_t monotonic_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

/* The recorder's file, or NULL where there is none of this version. */
struct control *control_open(const char *directory) {
    char path[PATH_BYTES + 16];
    struct control *c;
    struct stat st;
    int fd;
    snprintf(path, sizeof path, "%s/control", directory);
    fd = open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0) return NULL;
    if (fstat(fd, &st) != 0 || st.st_size < CONTROL_BYTES) {
        close(fd);
        return NULL;
    }
    c = mmap(NULL, CONTROL_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (c == MAP_FAILED) return NULL;
    if (c->magic == CONTROL_MAGIC && c->n_records > 0 && c->n_records <= MAX_RECORDS &&
        (c->n_records & (c->n_records - 1)) == 0 && c->names_bytes <= MAX_NAMES) {
        return c;
    }
    munmap(c, CONTROL_BYTES);
    return NULL;
}

static uint64_t start_ticks(void) {
    char text[1024], *at;
    uint64_t ticks = 0;
    ssize_t n;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    n = read(fd, text, sizeof text - 1);
    close(fd);
    if (n <= 0) return 0;
    text[n] = 0;
    at = strrchr(text, ')'); /* the name may hold anything */
    for (int field = 2; at != NULL && field < 22; field++) at = strchr(at + 1, ' ');
    if (at != NULL) ticks = strtoull(at + 1, NULL, 10);
    return ticks;
}

/* A new ring of this process, its pages taken up front; NULL where that fails. It appears under its
 * name only when it is whole. */
struct ring_header *ring_create(const char *directory, const struct control *control) {
    size_t size = HEADER_BYTES + control->names_bytes +
                  (size_t)control->n_records * sizeof(struct record);
    char path[PATH_BYTES + 96], hidden[PATH_BYTES + 96];
    struct ring_header *ring = MAP_FAILED;
    uint64_t now = monotonic_ns();
    int fd;
    snprintf(hidden, sizeof hidden, "%s/.new-%d-%llx", directory, (int)getpid(),
             (unsigned long long)now);
    snprintf(path, sizeof path, "%s/ring-%d-%llx", directory, (int)getpid(),
             (unsigned long long)now);
    fd = open(hidden, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0) return NULL;
    /* Without the pages a full file system would end the program with SIGBUS later. */
    if (posix_fallocate(fd, 0, (off_t)size) == 0) {
        ring = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    }
    close(fd);
    if (ring == MAP_FAILED) {
        unlink(hidden);
        return NULL;
    }
    ring->record_bytes = sizeof(struct record);
    ring->n_records = control->n_records;
    ring->names_bytes = control->names_bytes;
    ring->pid = getpid();
    ring->start_ticks = start_ticks();
    ring->attached_ns = now;
    atomic_store(&ring->names_used, 8);
    atomic_thread_fence(memory_order_release);
    ring->magic = RING_MAGIC;
    if (rename(hidden, path) != 0) {
        unlink(hidden);
        munmap(ring, size);
        return NULL;
    }
    return ring;
}

/* All of them, which the reader then sees at once, or none. */
void ring_push(struct ring_header *ring, const struct record *from, uint32_t n) {
    uint64_t head = atomic_load_explicit(&ring->head, memory_order_relaxed);
    uint64_t tail = atomic_load_explicit(&ring->tail, memory_order_acquire);
    struct record *records =
        (struct record *)((char *)ring + HEADER_BYTES + ring->names_bytes);
    if (head - tail + n > ring->n_records) {
        atomic_fetch_add_explicit(&ring->lost_ring, 1, memory_order_relaxed);
        return;
    }
    for (uint32_t i = 0; i < n; i++) records[(head + i) & (ring->n_records - 1)] = from[i];
    atomic_store_explicit(&ring->head, head + n, memory_order_release);
}

/* The offset of a name in the ring's names, where it is put at its first use. */
uint32_t ring_name(struct ring_header *ring, const char *name) {
    static uint32_t slots[NAME_SLOTS];
    char *names = (char *)ring + HEADER_BYTES;
    uint64_t used = atomic_load_explicit(&ring->names_used, memory_order_relaxed);
    uint64_t hash = 1469598103934665603ULL;
    size_t n;
    if (name == NULL || name[0] == 0) return 0;
    n = strnlen(name, MAX_NAME - 1);
    for (size_t i = 0; i < n; i++) hash = (hash ^ (uint8_t)name[i]) * 1099511628211ULL;
    hash ^= hash >> 32;
    for (uint32_t i = 0; i < NAME_SLOTS; i++) {
        uint32_t *slot = &slots[(hash + i) % NAME_SLOTS];
        if (*slot == 0) {
            if (used + n + 1 > ring->names_bytes) break;
            memcpy(names + used, name, n);
            names[used + n] = 0;
            *slot = (uint32_t)used;
            atomic_store_explicit(&ring->names_used, used + n + 1, memory_order_release);
            return *slot;
        }
        if (strncmp(names + *slot, name, n) == 0 && names[*slot + n] == 0) return *slot;
    }
    atomic_fetch_add_explicit(&ring->lost_names, 1, memory_order_relaxed);
    return 0;
}
