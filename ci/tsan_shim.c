/*
 * Tells the thread sanitizer of synchronization that it does not see on stable Rust. Without it,
 * correct code is reported, and suppressions would have to hide real races with the wrong ones.
 * The linker passes calls of the functions below through here (`--wrap`).
 *
 * Acquire fences. The sanitizer does not model fences. `Arc` and `Weak` count down by an atomic
 * subtraction with release ordering; whoever reaches zero executes an acquire fence, and then drops
 * the value or frees the memory. Here, a fence acquires what was released at the location of the
 * last subtraction of its thread, exactly as if `Arc` loaded the count with acquire ordering, as it
 * does where `std` is built for the sanitizer. A subtraction without a fence acquires nothing.
 *
 * Locks of `std`. `std` is not instrumented. What it inlines into its callers is, which is all of a
 * lock that is free. Where threads contend, functions of `std` itself take and release the lock.
 * Their names come from the build (`-D`), because they differ between versions of Rust.
 *
 * `Once`, and with it `OnceLock` and `LazyLock`. A function of `std` runs the closure and then
 * stores that it has run. A closure of ours, around the first one, releases what that has written.
 *
 * Copies. The runtime of GCC, which programs in C are linked with, lacks three functions that Rust
 * calls; it checks what `memcpy` and the like do.
 */

#include <string.h>

typedef unsigned long long a64;

/* The location of a lock is what the inlined code releases when it unlocks. */
void __tsan_acquire(void *location);
void __tsan_release(void *location);

/* The sanitizer's number of `memory_order_release`. A fence has this ordering or a stronger one. */
enum { RELEASE = 3 };

static __thread void *last;

a64 __real___tsan_atomic64_fetch_sub(volatile a64 *location, a64 value, int order);

a64 __wrap___tsan_atomic64_fetch_sub(volatile a64 *location, a64 value, int order)
{
    last = (void *)location;
    return __real___tsan_atomic64_fetch_sub(location, value, order);
}

void __real___tsan_atomic_thread_fence(int order);

void __wrap___tsan_atomic_thread_fence(int order)
{
    if (order != RELEASE && last)
        __tsan_acquire(last);
    __real___tsan_atomic_thread_fence(order);
}

#define JOIN(a, b) a##b
#define NAME(prefix, function) JOIN(prefix, function)
#define REAL(function) NAME(__real_, function)
#define WRAP(function) NAME(__wrap_, function)

/* Weak, because a program in C that loads Fuseline as a shared library has no `std`. */
#define LOCK(function)                                  \
    __attribute__((weak)) void REAL(function)(void *lock); \
    void WRAP(function)(void *lock)                     \
    {                                                   \
        REAL(function)(lock);                           \
        __tsan_acquire(lock);                           \
    }

LOCK(MUTEX_LOCK)
LOCK(RWLOCK_READ)
LOCK(RWLOCK_WRITE)

__attribute__((weak)) void REAL(CONDVAR_WAIT)(void *condvar, void *mutex);

void WRAP(CONDVAR_WAIT)(void *condvar, void *mutex)
{
    __tsan_release(mutex);
    REAL(CONDVAR_WAIT)(condvar, mutex);
    __tsan_acquire(mutex);
}

__attribute__((weak)) _Bool REAL(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, a64 seconds,
                                                       unsigned nanoseconds);

_Bool WRAP(CONDVAR_WAIT_TIMEOUT)(void *condvar, void *mutex, a64 seconds, unsigned nanoseconds)
{
    _Bool woken;
    __tsan_release(mutex);
    woken = REAL(CONDVAR_WAIT_TIMEOUT)(condvar, mutex, seconds, nanoseconds);
    __tsan_acquire(mutex);
    return woken;
}

/* The layout of the table of a `dyn FnMut(&OnceState)`. */
struct fn_mut_table {
    void (*drop)(void *closure);
    size_t size, alignment;
    void (*call_once)(void *closure, const void *state);
    void (*call_mut)(void *closure, const void *state);
};

struct once_closure {
    void *once, *closure;
    const struct fn_mut_table *table;
};

/* Runs in place of the closure. */
static void run_once(void *data, const void *state)
{
    struct once_closure *own = data;
    own->table->call_mut(own->closure, state);
    __tsan_release(own->once);
}

__attribute__((weak)) void REAL(ONCE_CALL)(void *once, _Bool ignores_poison, void *closure,
                                           const struct fn_mut_table *table);

void WRAP(ONCE_CALL)(void *once, _Bool ignores_poison, void *closure,
                     const struct fn_mut_table *table)
{
    struct once_closure own = { once, closure, table };
    const struct fn_mut_table own_table = { NULL, sizeof own, _Alignof(struct once_closure),
                                            run_once, run_once };
    REAL(ONCE_CALL)(once, ignores_poison, &own, &own_table);
    __tsan_acquire(once);
}

__attribute__((weak)) void *__tsan_memcpy(void *to, const void *from, size_t size)
{
    return memcpy(to, from, size);
}

__attribute__((weak)) void *__tsan_memmove(void *to, const void *from, size_t size)
{
    return memmove(to, from, size);
}

__attribute__((weak)) void *__tsan_memset(void *to, int byte, size_t size)
{
    return memset(to, byte, size);
}
