/* Who this machine is: taken on with each HELLO, because a clone wakes up as its template. */
#ifndef ENCAMP_IDENTITY_H
#define ENCAMP_IDENTITY_H

#include <stddef.h>
#include <stdint.h>

void identity_hello(const uint8_t *payload, size_t length);
const uint8_t *identity_machine(void);

#endif
