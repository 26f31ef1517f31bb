/* floor - how long one who waits for a confirm would wait if the nodes had no work but the system calls.
 *
 * A client sends to a leader, which sends to two followers and then writes and syncs itself; the followers write, sync
 * and answer; at the first answer the leader answers the client. All block, each in a process of its own, so there is
 * nothing to look up, to decode or to decide: two hops there and two back, and one fdatasync behind another.
 *
 * Build:  cc -O2 -Wall -Wextra -o floor floor.c
 * Usage:  floor DIRECTORY MESSAGES       (the directory is on the disk that counts)
 * Prints: p50 and p99 in microseconds, first with fdatasync, then without. Exit 1: something failed.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { FOLLOWERS = 2, PUBLISH = 60, APPEND = 200, ANSWER = 30, WARM_UP = 200 };

static char data[4096];

static void must(int is_fine, const char *what) {
    if (!is_fine) {
        perror(what);
        exit(1);
    }
}

static double now_us(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1e6 + t.tv_nsec / 1e3;
}

static void connected(int ends[2]) {
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    must(bind(listener, (void *)&at, size) == 0 && listen(listener, 1) == 0, "listen");
    getsockname(listener, (void *)&at, &size);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    must(connect(ends[0], (void *)&at, size) == 0, "connect");
    must((ends[1] = accept(listener, 0, 0)) >= 0, "accept");
    for (int i = 0; i < 2; i++)
        setsockopt(ends[i], IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    close(listener);
}

static int opened(const char *directory, int node) {
    char path[4096];
    snprintf(path, sizeof path, "%s/floor%d", directory, node);
    int file = open(path, O_CREAT | O_TRUNC | O_WRONLY, 0600);
    must(file >= 0, path);
    unlink(path);
    return file;
}

static void store(int file, int syncs) {
    must(write(file, data, APPEND) == APPEND && (!syncs || fdatasync(file) == 0), "write");
}

static void send_all(int to, int size) { must(write(to, data, size) == size, "send"); }

/* Runs until it is killed, as `lead` does: some of the sockets of all are open in each process. */
static void follow(int leader, int file, int syncs) {
    while (read(leader, data, sizeof data) > 0) {
        store(file, syncs);
        send_all(leader, ANSWER);
    }
    exit(1);
}

static void lead(int client, const int *followers, int file, int syncs) {
    struct pollfd polled[FOLLOWERS];
    int owed[FOLLOWERS] = {0};
    for (int i = 0; i < FOLLOWERS; i++)
        polled[i] = (struct pollfd){followers[i], POLLIN, 0};
    while (read(client, data, sizeof data) > 0) {
        for (int i = 0; i < FOLLOWERS; i++, owed[i - 1]++)
            send_all(followers[i], APPEND);
        store(file, syncs);
        for (int is_stored = 0; !is_stored;) {
            must(poll(polled, FOLLOWERS, -1) > 0, "poll");
            for (int i = 0; i < FOLLOWERS; i++)
                if (polled[i].revents) {
                    owed[i] -= (int)read(followers[i], data, sizeof data) / ANSWER;
                    is_stored |= owed[i] == 0;
                }
        }
        send_all(client, ANSWER);
    }
    exit(1);
}

static int ascending(const void *a, const void *b) {
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static void measure(const char *directory, int messages, int syncs) {
    int client[2], followers[FOLLOWERS][2], at_leader[FOLLOWERS];
    pid_t nodes[FOLLOWERS + 1];
    double *took_us = malloc(messages * sizeof *took_us);
    connected(client);
    for (int i = 0; i < FOLLOWERS; i++) {
        connected(followers[i]);
        at_leader[i] = followers[i][0];
        if (!(nodes[i] = fork()))
            follow(followers[i][1], opened(directory, i), syncs);
    }
    if (!(nodes[FOLLOWERS] = fork()))
        lead(client[1], at_leader, opened(directory, FOLLOWERS), syncs);
    for (int i = -WARM_UP; i < messages; i++) {
        double sent_us = now_us();
        send_all(client[0], PUBLISH);
        must(read(client[0], data, sizeof data) > 0, "the leader has ended");
        if (i >= 0)
            took_us[i] = now_us() - sent_us;
    }
    for (int i = 0; i <= FOLLOWERS; i++)
        kill(nodes[i], SIGKILL);
    while (wait(0) > 0)
        ;
    qsort(took_us, messages, sizeof *took_us, ascending);
    printf("%.0f %.0f\n", took_us[messages / 2], took_us[messages * 99 / 100]);
    free(took_us);
}

int main(int count, char **arguments) {
    int messages = count == 3 ? atoi(arguments[2]) : 0;
    if (messages < 1) {
        fprintf(stderr, "usage: floor DIRECTORY MESSAGES\n");
        return 2;
    }
    measure(arguments[1], messages, 1);
    measure(arguments[1], messages, 0);
    return 0;
}
