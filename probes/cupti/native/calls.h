/* Numbers of the API functions that give work to a device, from CUPTI's public lists. */
#ifndef TRACER_CUPTI_CALLS_H
#define TRACER_CUPTI_CALLS_H

#include <stdint.h>

struct call_range {
    uint16_t first, last;
};

static const struct call_range driver_calls[] = {
    {43, 43},   {45, 45},   {47, 47},   {49, 49},   {51, 51},   {53, 58},   {60, 60},  {62, 62},
    {64, 64},   {66, 69},   {71, 71},   {73, 73},   {75, 75},   {77, 77},   {79, 79},  {81, 81},
    {115, 117}, {216, 216}, {218, 218}, {220, 220}, {222, 222}, {224, 224}, {226, 226},
    {248, 254}, {276, 293}, {305, 307}, {318, 321}, {397, 416}, {418, 433}, {442, 442},
    {477, 478}, {480, 480}, {514, 515}, {652, 653}, {776, 779}, {796, 799}, {837, 840},
};

static const struct call_range runtime_calls[] = {
    {13, 13},   {31, 52},   {142, 145}, {160, 163}, {211, 211}, {213, 236}, {243, 246},
    {249, 250}, {269, 270}, {272, 272}, {311, 312}, {430, 431}, {482, 485}, {509, 512},
    {554, 557},
};

#endif
