/* Which commands of the host's can be called here, by whom, and where callers come to. */
#ifndef ENCAMP_OFFERS_H
#define ENCAMP_OFFERS_H

#include <sys/types.h>

#include "session.h"

#define OFFERS_PLACE "/run/encamp/bin"
#define OFFERS_SOCKET ".calls"
#define OFFERS_PROGRAM ".program" /* names are links to it */

void offers_start(int epoll);
/* What takes long: at the start, so that it is there already in what is cloned from here. 0 or an
   errno. */
int offers_prepare(const char *path);
/* Have these names, for a user; 0 or an errno and a sentence. */
int offers_make(struct session *session, const uint8_t *payload, size_t length, char *text,
                size_t size);
void offers_withdraw(struct session *session);
bool offers_allow(struct session *session, uid_t uid);
struct session *offers_to(uid_t uid); /* NULL: none */
bool offers_any(void);
int offers_accept(void); /* a caller's socket, or -1 with errno */

#endif
