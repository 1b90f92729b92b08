/* The machine's end. */
#ifndef ENCAMP_POWER_H
#define ENCAMP_POWER_H

/* The directory that holds the writable layer; -1 in a machine that has none. */
extern int writable_layer;

void power_off(void);

#endif
