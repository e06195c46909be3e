/* A message through a broker as system calls and nothing else: what the kernel takes by itself.

   `message_floor DIRECTORY MESSAGES IS_SYNCED`: a producer sends 1,000 messages a second, the server
   writes each to a file, acknowledges it, and sends it to a consumer, which asks again. With
   IS_SYNCED, a thread syncs the file first, and wakes the server by an eventfd. Prints the server's
   CPU time in microseconds a message. There is no protocol, no check, and no error handling. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { MESSAGE = 250, FETCH = 120, ACK = 60, HEAD = 90, EVENTS = 8 };
#define CHECK(condition) do { if (!(condition)) { perror(#condition); exit(1); } } while (0)

static int file, jobs, results;

static int64_t now_ns(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return now.tv_sec * 1000000000LL + now.tv_nsec;
}

static void *sync_all(void *unused)
{
    uint64_t count, one = 1;
    while (read(jobs, &count, 8) == 8) {
        CHECK(fdatasync(file) == 0);
        CHECK(write(results, &one, 8) == 8);
    }
    return unused;
}

static void *consume(void *peer)
{
    char bytes[65536] = {0};
    do
        CHECK(write(*(int *)peer, bytes, FETCH) == FETCH);
    while (read(*(int *)peer, bytes, sizeof bytes) > 0);
    return NULL;
}

static void *read_acks(void *peer)
{
    char bytes[65536];
    while (read(*(int *)peer, bytes, sizeof bytes) > 0);
    return NULL;
}

static int connected(int port)
{
    struct sockaddr_in where = {.sin_family = AF_INET, .sin_port = htons(port)};
    int peer = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(connect(peer, (struct sockaddr *)&where, sizeof where) == 0);
    setsockopt(peer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    return peer;
}

static void run_clients(int port, int messages)
{
    int producer = connected(port), consumer = connected(port);
    char message[MESSAGE] = {0};
    pthread_t thread;
    pthread_create(&thread, NULL, consume, &consumer);
    pthread_create(&thread, NULL, read_acks, &producer);
    sleep(1);
    for (int64_t due_ns = now_ns(CLOCK_MONOTONIC); messages > 0; messages--) {
        CHECK(write(producer, message, MESSAGE) == MESSAGE);
        due_ns += 1000000;
        struct timespec due = {due_ns / 1000000000, due_ns % 1000000000};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &due, NULL);
    }
    sleep(1);
    _exit(0);
}

static void watch(int loop, int descriptor)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    CHECK(epoll_ctl(loop, EPOLL_CTL_ADD, descriptor, &event) == 0);
}

static void serve(int producer, int consumer, int messages, int is_synced)
{
    int loop = epoll_create1(0);
    int64_t before_ns = 0;
    off_t written = 0, sent = 0;
    uint64_t done, one = 1;
    char bytes[65536];
    watch(loop, producer);
    watch(loop, consumer);
    watch(loop, results);
    while (sent < (off_t)messages * MESSAGE) {
        struct epoll_event events[EVENTS];
        int count = epoll_wait(loop, events, EVENTS, -1), is_due = 0;
        for (int each = 0; each < count; each++) {
            int ready = events[each].data.fd;
            if (ready == consumer) {
                CHECK(recv(consumer, bytes, sizeof bytes, 0) > 0);
            } else if (ready == results) {
                CHECK(read(results, &done, 8) == 8);
                is_due = 1;
            } else {
                int got = recv(producer, bytes, sizeof bytes, 0);
                CHECK(got > 0 && pwrite(file, bytes, got, written) == got);
                if (!written)
                    before_ns = now_ns(CLOCK_PROCESS_CPUTIME_ID);
                written += got;
                if (is_synced)
                    CHECK(write(jobs, &one, 8) == 8);
                else
                    is_due = 1;
            }
        }
        if (!is_due || sent == written)
            continue;
        for (off_t next = sent + MESSAGE; next <= written; next += MESSAGE)
            CHECK(send(producer, bytes, ACK, 0) == ACK);
        CHECK(send(consumer, bytes, HEAD, MSG_MORE) == HEAD);
        while (sent < written)
            CHECK(sendfile(consumer, file, &sent, written - sent) > 0);
    }
    printf("%.2f\n", (now_ns(CLOCK_PROCESS_CPUTIME_ID) - before_ns) / 1e3 / messages);
}

int main(int count, char **arguments)
{
    CHECK(count == 4 && chdir(arguments[1]) == 0);
    int messages = atoi(arguments[2]), is_synced = atoi(arguments[3]), on = 1;
    struct sockaddr_in where = {.sin_family = AF_INET};
    socklen_t size = sizeof where;
    int listener = socket(AF_INET, SOCK_STREAM, 0);
    where.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    CHECK(bind(listener, (struct sockaddr *)&where, size) == 0 && listen(listener, 2) == 0);
    getsockname(listener, (struct sockaddr *)&where, &size);
    if (fork() == 0)
        run_clients(ntohs(where.sin_port), messages);
    int producer = accept(listener, NULL, NULL), consumer = accept(listener, NULL, NULL);
    setsockopt(producer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(consumer, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    CHECK((file = open("messages", O_RDWR | O_CREAT | O_TRUNC, 0600)) >= 0);
    jobs = eventfd(0, 0);
    results = eventfd(0, EFD_NONBLOCK);
    pthread_t thread;
    pthread_create(&thread, NULL, sync_all, NULL);
    serve(producer, consumer, messages, is_synced);
    exit(0);
}
