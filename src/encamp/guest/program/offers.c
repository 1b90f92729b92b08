#define _GNU_SOURCE
#include "offers.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/un.h>
#include <unistd.h>

#include "console.h"
#include "events.h"
#include "files.h"

enum { BACKLOG = 128, NAME_LIMIT = 64 };

struct permit {
    struct session *session; /* NULL: none */
    uid_t uid;
};

static const char profiles[] = "/etc/profile.d";
static const char profile[] = "/etc/profile.d/encamp.sh";
static const char adding[] = "case \":$PATH:\" in\n"
                             "*:" OFFERS_PLACE ":*) ;;\n"
                             "*) [ ! -d " OFFERS_PLACE " ] || export PATH=\"$PATH:" OFFERS_PLACE
                             "\" ;;\n"
                             "esac\n";

static struct permit permits[SESSION_LIMIT];
static int watcher = -1;
static int listener = -1;
static char place[PATH_MAX]; /* where the socket and the names are */

void offers_start(int epoll)
{
    watcher = epoll;
}

static void in_place(char to[PATH_MAX], const char *name)
{
    snprintf(to, PATH_MAX, "%.*s/%s", PATH_MAX - NAME_LIMIT - 2, place, name);
}

/* The image does not have this program. */
static int copy_program(void)
{
    char path[PATH_MAX], fresh[PATH_MAX], bytes[32768];
    ssize_t count = 0;

    in_place(path, OFFERS_PROGRAM);
    in_place(fresh, OFFERS_PROGRAM ".new");
    int from = open("/proc/self/exe", O_RDONLY | O_CLOEXEC);
    int to = open(fresh, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0755);
    int error = from < 0 || to < 0 ? errno : 0;
    while (error == 0 && (count = read(from, bytes, sizeof bytes)) > 0) {
        if (write(to, bytes, (size_t)count) != count)
            error = errno != 0 ? errno : ENOSPC;
    }
    if (error == 0 && (count < 0 || fchmod(to, 0755) < 0))
        error = errno;
    if (from >= 0)
        close(from);
    if (to >= 0)
        close(to);
    if (error == 0 && rename(fresh, path) < 0)
        error = errno;
    return error;
}

static int link_name(const struct field *field)
{
    char name[NAME_LIMIT + 1], path[PATH_MAX];

    if (field->length == 0 || field->length > NAME_LIMIT || field->bytes[0] == '.' ||
        memchr(field->bytes, '/', field->length) != NULL ||
        memchr(field->bytes, 0, field->length) != NULL)
        return EINVAL;
    memcpy(name, field->bytes, field->length);
    name[field->length] = 0;
    in_place(path, name);
    return symlink(OFFERS_PROGRAM, path) < 0 && errno != EEXIST ? errno : 0;
}

static int listen_there(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct epoll_event event = {.events = EPOLLIN | EPOLLET,
                                .data.u64 = event_tag(EVENT_LISTENER, 0)};
    char path[PATH_MAX];

    in_place(path, OFFERS_SOCKET);
    if (strlen(path) >= sizeof address.sun_path)
        return ENAMETOOLONG;
    strcpy(address.sun_path, path);
    unlink(path);
    listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (listener < 0)
        return errno;
    /* anybody may knock: who it is tells the kernel */
    if (bind(listener, (struct sockaddr *)&address, sizeof address) < 0 || chmod(path, 0666) < 0 ||
        listen(listener, BACKLOG) < 0 || epoll_ctl(watcher, EPOLL_CTL_ADD, listener, &event) < 0) {
        int error = errno;

        close(listener);
        listener = -1;
        return error;
    }
    return 0;
}

static struct permit *permit_of(const struct session *session)
{
    for (struct permit *permit = permits; permit < permits + SESSION_LIMIT; permit++) {
        if (permit->session == session)
            return permit;
    }
    return NULL;
}

static bool is_there(const char *name)
{
    char path[PATH_MAX];
    struct stat found;

    in_place(path, name);
    return lstat(path, &found) == 0;
}

/* An init of the image's may have hidden what was there. */
int offers_prepare(const char *path)
{
    if (strlen(path) >= sizeof place - NAME_LIMIT - 2)
        return ENAMETOOLONG;
    if (strcmp(place, path) == 0 && listener >= 0 && is_there(OFFERS_PROGRAM) &&
        is_there(OFFERS_SOCKET))
        return 0;
    if (listener >= 0)
        close(listener);
    listener = -1;
    strcpy(place, path);
    struct statvfs found;
    int error = directory_make(place, 0755);
    if (error == 0 && statvfs(place, &found) == 0 && (found.f_flag & ST_NOEXEC) != 0)
        error = EACCES; /* names that cannot be run are worse than none */
    if (error == 0)
        error = copy_program();
    return error != 0 ? error : listen_there();
}

/* Login shells set PATH anew, and read this then. Without it the names are there nevertheless; one
   that is there was put there before, or by the image. */
static void tell_login_shells(void)
{
    if (in_machine && strcmp(place, OFFERS_PLACE) == 0 && directory_make(profiles, 0755) == 0)
        file_create(profile, adding, sizeof adding - 1, 0644);
}

int offers_make(struct session *session, const uint8_t *payload, size_t length, char *text,
                size_t size)
{
    struct field_cursor cursor = {payload, length};
    struct field field;
    char path[PATH_MAX];
    uint32_t uid;

    if (!field_text(payload, length, KEY_PATH, path, sizeof path) || !path_plain(path) ||
        !field_u32(payload, length, KEY_UID, &uid)) {
        snprintf(text, size, "commands of the host's need a place and a user");
        return EINVAL;
    }
    int error = offers_prepare(path);
    while (error == 0 && field_next(&cursor, &field) > 0) {
        if (field.key == KEY_NAME)
            error = link_name(&field);
    }
    struct permit *permit = permit_of(session);
    if (permit == NULL)
        permit = permit_of(NULL);
    if (error == 0 && permit != NULL)
        *permit = (struct permit){session, uid};
    if (error == 0)
        tell_login_shells();
    else
        snprintf(text, size, "commands of the host's could not be put into %.300s: %s", path,
                 strerror(error));
    return error;
}

void offers_withdraw(struct session *session)
{
    struct permit *permit = permit_of(session);

    if (permit != NULL)
        permit->session = NULL;
}

bool offers_allow(struct session *session, uid_t uid)
{
    struct permit *permit = session == NULL ? NULL : permit_of(session);

    return permit != NULL && permit->uid == uid;
}

struct session *offers_to(uid_t uid)
{
    for (struct permit *permit = permits; permit < permits + SESSION_LIMIT; permit++) {
        if (permit->session != NULL && permit->uid == uid)
            return permit->session;
    }
    return NULL;
}

bool offers_any(void)
{
    for (struct permit *permit = permits; permit < permits + SESSION_LIMIT; permit++) {
        if (permit->session != NULL)
            return true;
    }
    return false;
}

int offers_accept(void)
{
    if (listener < 0) {
        errno = EAGAIN;
        return -1;
    }
    return accept4(listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
}
