/* Plays CUPTI for the collector's own code: fills its buffers with kernel records.
 *
 * producer DIRECTORY RECORDS RATE [pairs]   (0 as fast as it goes; pairs: each kernel after its call)
 * Prints one line: made, pushed, lost, refused buffers, peak memory in KB, ns of CPU per record. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "collector.h"

#define RECORD_BYTES 208 /* a kernel's of CUDA 12 */

static int next_record(uint8_t *buffer, size_t valid, struct activity **record) {
    uint8_t *next = *record == NULL ? buffer : (uint8_t *)*record + RECORD_BYTES;
    if (next + RECORD_BYTES > buffer + valid) return CUPTI_MAX_LIMIT_REACHED;
    *record = (struct activity *)next;
    return CUPTI_OK;
}

static uint64_t cpu_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
    return (uint64_t)ts.tv_sec * 1000000000ULL + (uint64_t)ts.tv_nsec;
}

/* Of this program alone: what getrusage tells begins with the parent's. */
static long peak_kb(void) {
    char line[256];
    long value = 0;
    FILE *file = fopen("/proc/self/status", "r");
    while (file != NULL && fgets(line, sizeof line, file) != NULL) {
        if (sscanf(line, "VmHWM: %ld", &value) == 1) break;
    }
    if (file != NULL) fclose(file);
    return value;
}

int main(int argc, char **argv) {
    static const char *const names[] = {"_Z4axpyPfS_i", "gemm_f16_128x64", "softmax"};
    const struct cupti cupti = {.cuptiActivityGetNextRecord = next_record};
    uint64_t wanted = strtoull(argv[2], NULL, 10), rate = strtoull(argv[3], NULL, 10), made = 0;
    uint64_t refused = 0, begin, spent = 0;
    struct control *control = control_open(argv[1]);
    struct ring_header *ring = control == NULL ? NULL : ring_create(argv[1], control);
    int is_paired = argc == 5 && strcmp(argv[4], "pairs") == 0;
    if (argc < 4 || ring == NULL || pool_open() != 0) return 1;
    atomic_store(&ring->on_ns, monotonic_ns());
    atomic_store(&ring->state, RING_ON);
    begin = monotonic_ns();
    while (made < wanted) {
        uint8_t *buffer;
        size_t size, most, used = 0;
        uint64_t cpu;
        pool_request(&buffer, &size, &most);
        if (buffer == NULL) {
            refused++;
            pool_drain(&cupti, ring);
            continue;
        }
        for (; used + RECORD_BYTES <= size && made < wanted; used += RECORD_BYTES, made++) {
            struct activity_kernel *k = (struct activity_kernel *)(buffer + used);
            struct activity_api *call = (struct activity_api *)k;
            uint64_t at = monotonic_ns();
            memset(k, 0, RECORD_BYTES);
            while (rate != 0 && monotonic_ns() - begin < made * 1000000000ULL / rate) {
            }
            if (is_paired && made % 2 == 0) {
                *call = (struct activity_api){.kind = ACTIVITY_DRIVER, .start = at - 2000,
                                              .end = at - 1000, .thread = 1,
                                              .correlation = (uint32_t)made + 2};
                continue;
            }
            k->kind = ACTIVITY_CONCURRENT_KERNEL;
            k->start = at - 900;
            k->end = at;
            k->stream = 7;
            k->correlation = (uint32_t)made + 1;
            k->name = names[made % 3];
            for (int i = 0; i < 3; i++) k->grid[i] = k->block[i] = 1;
        }
        pool_complete(NULL, 0, buffer, size, used);
        cpu = cpu_ns();
        pool_drain(&cupti, ring);
        spent += cpu_ns() - cpu;
    }
    atomic_store(&ring->off_ns, monotonic_ns());
    atomic_store(&ring->state, RING_ENDED);
    printf("made=%llu pushed=%llu lost=%llu refused=%llu peak_kb=%ld drain_ns=%.1f wall_ms=%llu\n",
           (unsigned long long)made, (unsigned long long)atomic_load(&ring->head),
           (unsigned long long)atomic_load(&ring->lost_ring), (unsigned long long)refused,
           peak_kb(), (double)spent / (double)made,
           (unsigned long long)(monotonic_ns() - begin) / 1000000);
    return 0;
}
