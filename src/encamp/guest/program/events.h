/* What the loop waits for, and how an event names who it is for. */
#ifndef ENCAMP_EVENTS_H
#define ENCAMP_EVENTS_H

#include <stdint.h>

enum event_kind { EVENT_CHILD = 1, EVENT_SESSION, EVENT_STREAM /* + channel */,
                  EVENT_LISTENER = EVENT_STREAM + 3, EVENT_CALLER };

static inline uint64_t event_tag(unsigned kind, uint32_t index)
{
    return (uint64_t)kind << 32 | index;
}

#endif
