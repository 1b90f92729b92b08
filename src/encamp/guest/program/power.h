/* The machine's end. */
#ifndef ENCAMP_POWER_H
#define ENCAMP_POWER_H

/* The writable layer, to be closed cleanly; -1 when it is only memory. */
extern int writable_layer;

void power_off(void);

#endif
