/* Mapped files, and copies out of them that survive what a mapping may meet.
 *
 * A copy out of a mapping needs no system call, which is most of what reading a small object costs. Two
 * things go wrong in a mapping only. A file that was cut short, or a sector that cannot be read, raises
 * SIGBUS: while a thread copies, a handler takes it back to the start of its copies; any other SIGBUS goes
 * to the handler that was there before. And a page that is not in the page cache is read alone, while the
 * thread sleeps: the kernel counts such faults for each thread. In both cases the caller reads the rest in
 * the ordinary way, with its errors and its queue, so a mapping never decides how a read ends.
 *
 * Include after defining _GNU_SOURCE.
 */
#ifndef AIS_LOADER_MAPPED_READ_H
#define AIS_LOADER_MAPPED_READ_H

#include <setjmp.h>
#include <signal.h>
#include <stddef.h>
#include <string.h>
#include <sys/resource.h>

static __thread sigjmp_buf *volatile copying; /* where this thread goes on after a fault; NULL: it copies nothing */
static struct sigaction former_action;
static __thread volatile sig_atomic_t passed_on; /* this thread is in the former handler */

static void on_bus_error(int number, siginfo_t *info, void *context)
{
    sigjmp_buf *const start = copying;
    struct sigaction former = former_action;
    if (start && info->si_code > 0) /* from the kernel, not from kill() */
        siglongjmp(*start, 1);
    if (passed_on && info->si_code <= 0) /* the former handler was set over this one, and passes the signal back */
        former = (struct sigaction){.sa_handler = SIG_DFL};
    passed_on = 1;
    if (former.sa_flags & SA_SIGINFO) {
        former.sa_sigaction(number, info, context);
    } else if (former.sa_handler != SIG_DFL && former.sa_handler != SIG_IGN) {
        former.sa_handler(number);
    } else if (former.sa_handler == SIG_DFL || info->si_code > 0) {
        signal(number, SIG_DFL); /* a fault occurs again on return, and ends the process as it would have */
        if (info->si_code <= 0)
            raise(number);
    }
    passed_on = 0;
}

/* Make sure that the handler is in place: another library may have set its own since. Call it with the GIL, or
 * TABLES_LOCK. */
static int faults_are_caught(void)
{
    struct sigaction current, ours = {.sa_flags = SA_SIGINFO | SA_NODEFER | SA_ONSTACK};
    if (sigaction(SIGBUS, NULL, &current) < 0)
        return 0;
    if (current.sa_flags & SA_SIGINFO && current.sa_sigaction == on_bus_error)
        return 1;
    former_action = current;
    ours.sa_sigaction = on_bus_error;
    sigemptyset(&ours.sa_mask);
    return sigaction(SIGBUS, &ours, NULL) == 0;
}

static long major_faults(void)
{
    struct rusage usage;
#ifdef RUSAGE_THREAD
    return getrusage(RUSAGE_THREAD, &usage) < 0 ? 0 : usage.ru_majflt;
#else
    return getrusage(RUSAGE_SELF, &usage) < 0 ? 0 : usage.ru_majflt;
#endif
}

#endif
