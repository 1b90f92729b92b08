#define _GNU_SOURCE
#include "network.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <net/if.h>
#include <net/if_arp.h>
#include <net/route.h>
#include <netinet/in.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "console.h"
#include "files.h"
#include "frames.h"
#include "hosts.h"

enum { MAC_SIZE = 6, NAME_LIMIT = 64, HOSTS_MAX = 32768 };

static void put_address(struct sockaddr *to, struct in_addr address)
{
    struct sockaddr_in internet = {.sin_family = AF_INET, .sin_addr = address};

    memcpy(to, &internet, sizeof internet);
}

static bool first_interface(char name[IFNAMSIZ])
{
    DIR *all = opendir("/sys/class/net");
    struct dirent *entry;
    bool found = false;

    while (all != NULL && (entry = readdir(all)) != NULL) {
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "lo") == 0 ||
            strlen(entry->d_name) >= IFNAMSIZ)
            continue;
        if (!found || strcmp(entry->d_name, name) < 0)
            strcpy(name, entry->d_name);
        found = true;
    }
    if (all != NULL)
        closedir(all);
    return found;
}

static int bring_up(int control, struct ifreq *request)
{
    if (ioctl(control, SIOCGIFFLAGS, request) < 0)
        return -1;
    request->ifr_flags |= IFF_UP | IFF_RUNNING;
    return ioctl(control, SIOCSIFFLAGS, request);
}

void network_loopback(void)
{
    struct ifreq request = {.ifr_name = "lo"};
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (control < 0)
        return;
    if (bring_up(control, &request) < 0)
        say("the loopback interface was not brought up: %s", strerror(errno));
    close(control);
}

/* A clone wakes up with its template's address on the wire. */
static int take_mac(const char *name, const uint8_t *mac)
{
    struct ifreq request = {.ifr_hwaddr = {.sa_family = ARPHRD_ETHER}};
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    int error = 0;

    if (control < 0)
        return errno;
    strcpy(request.ifr_name, name);
    memcpy(request.ifr_hwaddr.sa_data, mac, MAC_SIZE);
    if (ioctl(control, SIOCSIFHWADDR, &request) < 0)
        error = errno;
    close(control);
    return error;
}

static int configure(const char *name, struct in_addr address, uint32_t prefix,
                     const struct in_addr *gateway)
{
    struct ifreq request = {.ifr_name = ""};
    struct in_addr mask = {.s_addr = prefix == 0 ? 0 : htonl(~0U << (32 - prefix))};
    int error = 0;
    int control = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);

    if (control < 0)
        return errno;
    strcpy(request.ifr_name, name);
    put_address(&request.ifr_addr, address);
    if (ioctl(control, SIOCSIFADDR, &request) < 0)
        error = errno;
    put_address(&request.ifr_netmask, mask);
    if (error == 0 && ioctl(control, SIOCSIFNETMASK, &request) < 0)
        error = errno;
    if (error == 0 && bring_up(control, &request) < 0)
        error = errno;
    if (error == 0 && gateway != NULL) {
        struct rtentry route = {.rt_flags = RTF_UP | RTF_GATEWAY};

        put_address(&route.rt_gateway, *gateway);
        put_address(&route.rt_dst, (struct in_addr){0});
        put_address(&route.rt_genmask, (struct in_addr){0});
        if (ioctl(control, SIOCADDRT, &route) < 0 && errno != EEXIST)
            error = errno;
    }
    close(control);
    return error;
}

/* The machine's name is that of its address, and it knows some others. */
static int take_names(const uint8_t *payload, size_t length)
{
    static char hosts[HOSTS_MAX];
    char address[INET_ADDRSTRLEN], name[NAME_LIMIT + 1];

    if (!field_text(payload, length, KEY_NAME, name, sizeof name))
        return 0;
    if (!field_text(payload, length, KEY_HOSTS, hosts, sizeof hosts))
        hosts[0] = 0;
    field_text(payload, length, KEY_ADDRESS, address, sizeof address);
    return hosts_write(address, name, hosts);
}

int network_set(const uint8_t *payload, size_t length, char *text, size_t size)
{
    char word[INET_ADDRSTRLEN], name[IFNAMSIZ], line[64];
    struct in_addr address, gateway, dns;
    struct field field;
    uint32_t prefix;
    bool has_gateway = field_find(payload, length, KEY_GATEWAY, &field);
    bool has_dns = field_find(payload, length, KEY_DNS, &field);

    if (!field_text(payload, length, KEY_ADDRESS, word, sizeof word) ||
        inet_pton(AF_INET, word, &address) != 1 ||
        !field_u32(payload, length, KEY_PREFIX, &prefix) || prefix > 32 ||
        (has_gateway && (!field_text(payload, length, KEY_GATEWAY, word, sizeof word) ||
                         inet_pton(AF_INET, word, &gateway) != 1)) ||
        (has_dns && (!field_text(payload, length, KEY_DNS, word, sizeof word) ||
                     inet_pton(AF_INET, word, &dns) != 1))) {
        snprintf(text, size, "a network needs an address and a prefix length");
        return EINVAL;
    }
    if (!in_machine)
        return 0;
    if (!first_interface(name)) {
        snprintf(text, size, "the machine has no network interface");
        return ENODEV;
    }
    int error = 0;
    if (field_find(payload, length, KEY_MAC, &field))
        error = field.length == MAC_SIZE ? take_mac(name, field.bytes) : EINVAL;
    if (error == 0)
        error = configure(name, address, prefix, has_gateway ? &gateway : NULL);
    if (error == 0 && has_dns) {
        int used = snprintf(line, sizeof line, "nameserver %s\n", word);

        error = file_replace("/etc/resolv.conf", line, (size_t)used, 0644);
    }
    if (error == 0)
        error = take_names(payload, length);
    if (error != 0)
        snprintf(text, size, "network interface %s could not be set up: %s", name,
                 strerror(error));
    return error;
}
