/* Which libcupti is used: one that the program has loaded, then one that lies beside its runtime,
 * then one that the system knows; always of the major version that the program uses. */
#define _GNU_SOURCE
#include "collector.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <string.h>

#define OLDEST_VERSION 17 /* CUDA 11.6: the first with a clock of one's own */
#define NEWEST_MAJOR 13

static int fail(struct ring_header *ring, enum ring_site site, int error) {
    atomic_store(&ring->site, (uint32_t)site);
    atomic_store(&ring->error, (uint32_t)error);
    return -1;
}

/* CUDA's major version that a version of CUPTI belongs to. */
static int major_of(uint32_t version) {
    if (version >= 10000) return (int)(version / 10000);
    return version >= 19 ? 12 : 11;
}

static void *loaded(const char *name, int major) {
    char soname[64];
    snprintf(soname, sizeof soname, "%s.so.%d", name, major);
    return dlopen(soname, RTLD_NOW | RTLD_NOLOAD);
}

/* The major version of the runtime that the program has loaded as a library; 0 without one. */
static int runtime_major(void) {
    for (int major = NEWEST_MAJOR; major >= 12; major--) {
        void *runtime = loaded("libcudart", major);
        if (runtime != NULL) {
            dlclose(runtime);
            return major;
        }
    }
    return 0;
}

static int driver_major(void) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    int (*version)(int *) = driver == NULL ? NULL : dlsym(driver, "cuDriverGetVersion");
    int value = 0;
    if (version != NULL && version(&value) != 0) value = 0;
    if (driver != NULL) dlclose(driver);
    return value / 1000;
}

static void *beside_runtime(int major) {
    static const char *const places[] = {"", "/../../cuda_cupti/lib",
                                         "/../extras/CUPTI/lib64", "/../../extras/CUPTI/lib64"};
    void *runtime = loaded("libcudart", major), *found = NULL;
    struct link_map *map = NULL;
    char folder[PATH_BYTES], path[PATH_BYTES + 64], *slash;
    if (runtime == NULL) return NULL;
    if (dlinfo(runtime, RTLD_DI_LINKMAP, &map) == 0 && map != NULL &&
        strlen(map->l_name) < sizeof folder) {
        strcpy(folder, map->l_name);
        slash = strrchr(folder, '/');
        if (slash != NULL) *slash = 0;
        for (size_t i = 0; slash != NULL && i < sizeof places / sizeof places[0]; i++) {
            snprintf(path, sizeof path, "%s%s/libcupti.so.%d", folder, places[i], major);
            if ((found = dlopen(path, RTLD_NOW | RTLD_LOCAL)) != NULL) break;
        }
    }
    dlclose(runtime);
    return found;
}

static void *of_system(int major) {
    static const char *const forms[] = {"libcupti.so.%d", "/usr/local/cuda/lib64/libcupti.so.%d",
                                        "/usr/local/cuda/extras/CUPTI/lib64/libcupti.so.%d"};
    char path[128];
    for (size_t i = 0; i < sizeof forms / sizeof forms[0]; i++) {
        void *found;
        snprintf(path, sizeof path, forms[i], major);
        if ((found = dlopen(path, RTLD_NOW | RTLD_LOCAL)) != NULL) return found;
    }
    return NULL;
}

static void *of_major(int major) {
    void *found = loaded("libcupti", major);
    if (found == NULL) found = beside_runtime(major);
    if (found == NULL) found = of_system(major);
    return found;
}

static void *search(const struct control *control, int wanted, int newest) {
    char given[PATH_BYTES];
    void *found = NULL;
    memcpy(given, control->library, sizeof given);
    given[sizeof given - 1] = 0;
    if (given[0] != 0) return dlopen(given, RTLD_NOW | RTLD_LOCAL);
    if (wanted != 0) found = of_major(wanted);
    for (int major = newest; found == NULL && major >= 12; major--) {
        if (major != wanted) found = of_major(major);
    }
    return found;
}

/* Fills in the functions; 0, or -1 with the ring saying why. */
int library_find(struct cupti *cupti, const struct control *control, struct ring_header *ring) {
    int runtime = runtime_major(), driver = driver_major(), major;
    int newest = driver == 0 || driver > NEWEST_MAJOR ? NEWEST_MAJOR : driver;
    void *library = search(control, runtime, newest);
    struct link_map *map = NULL;
    uint32_t version = 0;
    int rc;
    if (library == NULL) return fail(ring, SITE_LIBRARY, 0);
    if (dlinfo(library, RTLD_DI_LINKMAP, &map) == 0 && map != NULL) {
        snprintf(ring->library, sizeof ring->library, "%s", map->l_name);
    }
#define FIND(NAME, PARAMETERS) *(void **)&cupti->NAME = dlsym(library, #NAME);
    CUPTI_REQUIRED(FIND)
    CUPTI_OPTIONAL(FIND)
#undef FIND
#define CHECK(NAME, PARAMETERS) \
    if (cupti->NAME == NULL) return fail(ring, SITE_SYMBOLS, 0);
    CUPTI_REQUIRED(CHECK)
#undef CHECK
    rc = cupti->cuptiGetVersion(&version);
    if (rc != CUPTI_OK) return fail(ring, SITE_LIBRARY, rc);
    atomic_store(&ring->cupti_version, version);
    major = major_of(version);
    if (version < OLDEST_VERSION || (runtime != 0 && major != runtime) ||
        (driver != 0 && major > driver)) {
        return fail(ring, SITE_VERSION, 0);
    }
    return 0;
}
