#define _GNU_SOURCE
#include "probes.h"

#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "console.h"

enum { PATIENCE_MS = 2000, ADDRESS_LIMIT = 64 };

int probe_file(const char *path)
{
    struct stat found;

    if (stat(path, &found) == 0)
        return 0;
    fprintf(stderr, "file %s %s\n", path,
            errno == ENOENT || errno == ENOTDIR ? "does not exist" : strerror(errno));
    return 1;
}

static int begin(const struct sockaddr *address, socklen_t length)
{
    int fd = socket(address->sa_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);

    if (fd >= 0 && connect(fd, address, length) < 0 && errno != EINPROGRESS) {
        int error = errno;

        close(fd);
        errno = error;
        return -1;
    }
    return fd;
}

/* Begin to connect with one more address; where that is refused at once there is nothing to wait
   for. */
static void add(struct pollfd *tries, nfds_t *count, const struct sockaddr *address, uint16_t port)
{
    struct sockaddr_in6 six;
    struct sockaddr_in four;
    int fd = -1;

    if (*count == ADDRESS_LIMIT)
        return;
    if (address->sa_family == AF_INET) {
        memcpy(&four, address, sizeof four);
        four.sin_port = htons(port);
        fd = begin((struct sockaddr *)&four, sizeof four);
    } else if (address->sa_family == AF_INET6) {
        memcpy(&six, address, sizeof six);
        six.sin6_port = htons(port);
        fd = begin((struct sockaddr *)&six, sizeof six);
    }
    if (fd >= 0)
        tries[(*count)++] = (struct pollfd){.fd = fd, .events = POLLOUT};
}

/* Wait until one has connected, all have failed, or the time is over: 0, ECONNREFUSED or
   ETIMEDOUT. */
static int wait_for_one(struct pollfd *tries, nfds_t count)
{
    uint64_t end = now_ms() + PATIENCE_MS;
    nfds_t waiting = count;

    while (waiting > 0) {
        uint64_t now = now_ms();

        if (now >= end || poll(tries, count, (int)(end - now)) == 0)
            return ETIMEDOUT;
        for (nfds_t i = 0; i < count; i++) {
            int error = 0;
            socklen_t size = sizeof error;

            if (tries[i].fd < 0 || tries[i].revents == 0)
                continue;
            if (getsockopt(tries[i].fd, SOL_SOCKET, SO_ERROR, &error, &size) == 0 && error == 0)
                return 0;
            close(tries[i].fd);
            tries[i].fd = -1;
            waiting--;
        }
    }
    return ECONNREFUSED;
}

int probe_port(const char *number)
{
    static struct pollfd tries[ADDRESS_LIMIT];
    struct sockaddr_in loopback = {.sin_family = AF_INET,
                                   .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 loopback6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct ifaddrs *all = NULL;
    nfds_t count = 0;
    char *end;
    unsigned long port = strtoul(number, &end, 10);

    if (*number < '0' || *number > '9' || *end != 0 || port == 0 || port > 65535) {
        fprintf(stderr, "'%s' is not a port\n", number);
        return 64;
    }
    add(tries, &count, (struct sockaddr *)&loopback, (uint16_t)port);
    add(tries, &count, (struct sockaddr *)&loopback6, (uint16_t)port);
    if (getifaddrs(&all) == 0) {
        for (struct ifaddrs *one = all; one != NULL; one = one->ifa_next) {
            if (one->ifa_addr != NULL && !(one->ifa_flags & IFF_LOOPBACK))
                add(tries, &count, one->ifa_addr, (uint16_t)port);
        }
        freeifaddrs(all);
    }
    int error = wait_for_one(tries, count);
    if (error != 0)
        fprintf(stderr, "port %lu %s\n", port,
                error == ETIMEDOUT ? "does not answer" : "refuses connections");
    return error != 0;
}
