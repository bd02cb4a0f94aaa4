/* Where an address lies. */
#ifndef TRACER_DRIVER_MEMORY_H
#define TRACER_DRIVER_MEMORY_H

#include "driver.h"

enum place { PAGEABLE, PINNED, REGISTERED, DEVICE, MANAGED };

enum place place_of(uintptr_t address, uintptr_t *base, size_t *size, int *device);

#endif
