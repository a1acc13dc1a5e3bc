// SPDX-License-Identifier: Apache-2.0
// Which lock guards what, in words that clang checks (-Wthread-safety:
// https://clang.llvm.org/docs/ThreadSafetyAnalysis.html). With gcc the macros are empty.
#pragma once

#if defined(__clang__)
#define DEFT_THREAD_ANNOTATION(x) __attribute__((x))
#else
#define DEFT_THREAD_ANNOTATION(x)
#endif

// A class whose objects are locks; `name` is what the compiler calls them.
#define DEFT_CAPABILITY(name) DEFT_THREAD_ANNOTATION(capability(name))
// A class whose objects hold a lock from their construction to their destruction.
#define DEFT_SCOPED_CAPABILITY DEFT_THREAD_ANNOTATION(scoped_lockable)

// Data: only for who holds the lock. DEFT_PT_GUARDED_BY: what the pointer points to.
#define DEFT_GUARDED_BY(lock) DEFT_THREAD_ANNOTATION(guarded_by(lock))
#define DEFT_PT_GUARDED_BY(lock) DEFT_THREAD_ANNOTATION(pt_guarded_by(lock))

// Functions: the caller holds these locks, or holds none of them.
#define DEFT_REQUIRES(...) DEFT_THREAD_ANNOTATION(requires_capability(__VA_ARGS__))
#define DEFT_EXCLUDES(...) DEFT_THREAD_ANNOTATION(locks_excluded(__VA_ARGS__))

// Functions that take a lock, give it back, or take it if they return the value named first.
// Without a name the lock is the object itself.
#define DEFT_ACQUIRE(...) DEFT_THREAD_ANNOTATION(acquire_capability(__VA_ARGS__))
#define DEFT_RELEASE(...) DEFT_THREAD_ANNOTATION(release_capability(__VA_ARGS__))
#define DEFT_TRY_ACQUIRE(...) DEFT_THREAD_ANNOTATION(try_acquire_capability(__VA_ARGS__))
// A function that does nothing, called where the caller holds the lock under another name.
#define DEFT_ASSERT_CAPABILITY(lock) DEFT_THREAD_ANNOTATION(assert_capability(lock))

// A function that the analysis cannot follow. A comment next to each use says why it is right.
#define DEFT_NO_THREAD_SAFETY_ANALYSIS DEFT_THREAD_ANNOTATION(no_thread_safety_analysis)
