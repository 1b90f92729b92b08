/* From the initramfs to the image's root: only for PID 1. */
#ifndef ENCAMP_BOOT_H
#define ENCAMP_BOOT_H

/* Does not return if it fails. In service mode it returns in a child, and PID 1 is the image's. */
void boot(void);

#endif
