#define _GNU_SOURCE
#include "CLinux.h"

#include <elf.h>
#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <linux/capability.h>
#include <netdb.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/auxv.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

const uint32_t CLINUX_IN = EPOLLIN, CLINUX_OUT = EPOLLOUT, CLINUX_RDHUP = EPOLLRDHUP, CLINUX_HUP = EPOLLHUP,
               CLINUX_ERR = EPOLLERR, CLINUX_ET = EPOLLET, CLINUX_ONESHOT = EPOLLONESHOT;

int clinux_pipe(int ends[2]) { return pipe2(ends, O_CLOEXEC); }

int clinux_epoll_create(void) { return epoll_create1(EPOLL_CLOEXEC); }

int clinux_epoll_set(int epoll, int descriptor, uint32_t events, uint64_t tag) {
    struct epoll_event event = {.events = events, .data.u64 = tag};
    // A wait for one event comes again and again for the same descriptor; any other registration is its first.
    bool again = events & EPOLLONESHOT;
    int result = epoll_ctl(epoll, again ? EPOLL_CTL_MOD : EPOLL_CTL_ADD, descriptor, &event);
    if (result == -1 && errno == (again ? ENOENT : EEXIST))
        result = epoll_ctl(epoll, again ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, descriptor, &event);
    return result;
}

int clinux_replace_descriptor(int descriptor, int other) { return dup3(descriptor, other, O_CLOEXEC); }

int clinux_epoll_remove(int epoll, int descriptor) { return epoll_ctl(epoll, EPOLL_CTL_DEL, descriptor, NULL); }

int clinux_epoll_wait(int epoll, struct clinux_event *events, int capacity, int timeout_ms) {
    struct epoll_event buffer[256];
    if (capacity > 256) capacity = 256;
    int count = epoll_wait(epoll, buffer, capacity, timeout_ms);
    for (int i = 0; i < count; i++) {
        events[i].tag = buffer[i].data.u64;
        events[i].events = buffer[i].events;
    }
    return count;
}

int clinux_wait_for_semaphore(void *semaphore, int64_t nanoseconds) {
    struct timespec due;
    clock_gettime(CLOCK_MONOTONIC, &due);
    due.tv_sec += nanoseconds / 1000000000;
    due.tv_nsec += nanoseconds % 1000000000;
    if (due.tv_nsec >= 1000000000) {
        due.tv_sec += 1;
        due.tv_nsec -= 1000000000;
    }
    int result;
    do result = sem_clockwait(semaphore, CLOCK_MONOTONIC, &due);
    while (result == -1 && errno == EINTR);
    return result;
}

int clinux_eventfd(void) { return eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK); }

int clinux_accept(int listener, void *address, unsigned int *length) {
    return accept4(listener, address, length, SOCK_NONBLOCK | SOCK_CLOEXEC);
}

long clinux_receive(int descriptor, void *buffer, long capacity) {
    return syscall(SYS_recvfrom, descriptor, buffer, capacity, 0, NULL, NULL);
}

long clinux_send(int descriptor, const void *bytes, long count) {
    return syscall(SYS_sendto, descriptor, bytes, count, MSG_NOSIGNAL, NULL, 0);
}

int clinux_forbid_core_dumps(void) {
    // Handlers of Swift's runtime print memory of a process that crashes. Without leave to trace it, they also may not return.
    static const int crashes[] = {SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGQUIT, SIGSEGV, SIGTRAP};
    for (unsigned long i = 0; i < sizeof crashes / sizeof *crashes; i++) {
        if (signal(crashes[i], SIG_DFL) == SIG_ERR) return -1;
    }
    // The hard limit stays for a program that takes this one's place.
    struct rlimit none;
    if (getrlimit(RLIMIT_CORE, &none) == -1) return -1;
    none.rlim_cur = 0;
    if (setrlimit(RLIMIT_CORE, &none) == -1) return -1;
    return prctl(PR_SET_DUMPABLE, 0, 0, 0, 0);
}

int clinux_lock_memory(void) {
    struct rlimit limit;
    struct __user_cap_header_struct header = {.version = _LINUX_CAPABILITY_VERSION_3};
    struct __user_cap_data_struct capabilities[_LINUX_CAPABILITY_U32S_3] = {{0}};
    if (getrlimit(RLIMIT_MEMLOCK, &limit) == -1 || syscall(SYS_capget, &header, capabilities) == -1) return -1;
    bool is_free = capabilities[0].effective & 1U << CAP_IPC_LOCK;
    // Within a limit, memory that is asked for later would be refused.
    if (limit.rlim_cur != RLIM_INFINITY && !is_free) {
        errno = EPERM;
        return -1;
    }
    return mlockall(MCL_CURRENT | MCL_FUTURE | MCL_ONFAULT);
}

int clinux_reserve_room(int descriptor, long count) { return fallocate(descriptor, FALLOC_FL_KEEP_SIZE, 0, count); }

int clinux_synchronize_file_system(int descriptor) { return syncfs(descriptor); }

int clinux_set_thread_name(unsigned long thread, const char *name) { return pthread_setname_np(thread, name); }

char **clinux_environment(void) { return environ; }

static int has_text_relocations(const struct dl_phdr_info *object, const ElfW(Phdr) * header) {
    const ElfW(Dyn) *entry = (const ElfW(Dyn) *)(object->dlpi_addr + header->p_vaddr);
    for (; entry->d_tag != DT_NULL; entry++) {
        if (entry->d_tag == DT_TEXTREL || (entry->d_tag == DT_FLAGS && entry->d_un.d_val & DF_TEXTREL)) return 1;
    }
    return 0;
}

static int drop_unwritten(struct dl_phdr_info *object, size_t size, void *count) {
    (void)size;
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), kernel = getauxval(AT_SYSINFO_EHDR);
    // The kernel's own object is no file. An object with text relocations was written to where its headers do not say so.
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        if (header->p_type == PT_LOAD && header->p_offset == 0 && object->dlpi_addr + header->p_vaddr == kernel) return 0;
        if (header->p_type == PT_DYNAMIC && has_text_relocations(object, header)) return 0;
    }
    for (int i = 0; i < object->dlpi_phnum; i++) {
        const ElfW(Phdr) *header = &object->dlpi_phdr[i];
        if (header->p_type != PT_LOAD || header->p_flags & PF_W) continue;
        uintptr_t start = (object->dlpi_addr + header->p_vaddr) & ~(page - 1);
        uintptr_t end = object->dlpi_addr + header->p_vaddr + header->p_memsz;
        // Refused where the pages are locked, which is as well.
        if (madvise((void *)start, end - start, MADV_DONTNEED) == 0) ++*(int *)count;
    }
    return 0;
}

int clinux_drop_unwritten_pages(void) {
    int count = 0;
    dl_iterate_phdr(drop_unwritten, &count);
    return count;
}

const int CLINUX_EAI_NODATA = EAI_NODATA;

long clinux_raise_descriptor_limit(void) {
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == -1) return -1;
    limit.rlim_cur = limit.rlim_max;
    if (setrlimit(RLIMIT_NOFILE, &limit) == -1 || getrlimit(RLIMIT_NOFILE, &limit) == -1) return -1;
    return limit.rlim_cur > 0x7fffffff ? 0x7fffffff : (long)limit.rlim_cur;
}

void clinux_reserve_descriptors(int count) {
    int descriptor = clinux_eventfd();
    if (descriptor == -1) return;
    int last = fcntl(descriptor, F_DUPFD_CLOEXEC, count - 1);
    if (last != -1) close(last);
    close(descriptor);
}
