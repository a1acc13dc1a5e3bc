/* SPDX-License-Identifier: Apache-2.0 */
/* What libnccl-net-deft.so offers to the few programs that look at it directly. Jobs need nothing
 * of this. Without the preload the symbols are absent: look them up with dlsym(RTLD_DEFAULT, ...),
 * as tools/python/deft.py does. None of them waits for other ranks, or for a device, but
 * deft_wait_sum() where that is asked for. In a child that the job has forked they answer as where
 * no plan is in force, and change nothing. */
#ifndef DEFT_DEFT_H
#define DEFT_DEFT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "0.1.0+9e0a02f8d1c3": the version of the library and the commit that it was built from; "-dirty"
 * at the end where sources had been changed since. "0.1.0" where git did not tell. A string that is
 * never freed. Any thread, at any time. */
const char* deft_version(void);

/* The next two concern the communicators on the current CUDA device of the calling thread, so that
 * several ranks in one process do not answer for each other; all of the process's where the thread
 * has no current device, or no communicator on it. */

/* 1 if the gradients that the iteration just reduced are to be used, 0 if all of them are zeros
 * that stand for "no update": a job that can skip its optimizer then gets DeFT's semantics exactly
 * (no momentum or weight decay on empty updates). Call it once per iteration, after the last
 * gradient call and before the optimizer, from the thread that makes the calls. The answer is the
 * same on all ranks; 1 where no plan was in force since it was last asked, and where a sum of
 * several numbers, but less than 1 KiB, has passed behind a gradient: that may be one too, and
 * plans leave those alone. */
int deft_should_step(void);

/* Ends what is in force: from the next gradient call on everything is synchronous, until the plan
 * is agreed on again some iterations later. Sums that are on their way are dropped; their number of
 * generations is returned. To be called between two iterations, on all ranks alike (before a
 * checkpoint, at the end of training): deft takes the next call for the first of an iteration from
 * then on. -1 in the middle of one by what deft_should_step() or the last flush told: nothing is
 * done. */
int deft_flush(void);

/* Names the job's optimizer, in the form of DEFT_OPTIMIZER ("sgd:momentum=0.9,lr=0.1", "adamw",
 * "unknown"); DEFT_OPTIMIZER, where set, wins. A plan in force that was made for another kind ends,
 * and one is made anew. The leader's word counts for all ranks. 0, or -1 if the text is not
 * understood: then nothing changes. Any thread. */
int deft_set_optimizer(const char* optimizer);

/* The same for who watches the job from outside, as the module does that `deft run` adds to PyTorch
 * jobs: what the job says itself with deft_set_optimizer() wins. */
int deft_observe_optimizer(const char* optimizer);

/* Not 0: the job multiplies its loss by a factor that changes (loss scaling, GradScaler), so that
 * a gradient that comes an iteration late would carry another factor than that it is divided by.
 * Then nothing is delayed or merged, and modes deft and covap do no more than exact, unless
 * DEFT_PLAN asks for it. `deft run` does it for PyTorch's GradScaler. The leader's word counts for
 * all ranks. Any thread. */
void deft_set_gradient_scaling(int scaled);

/* Not 0: the job clips its gradients, by their norm or by value. What that does to late or merged
 * ones was not measured: mode deft neither delays nor merges then, unless the caps DEFT_MAX_DELAY
 * and DEFT_MAX_MERGE are set. `deft run` does it for PyTorch's clip_grad_norm_ and
 * clip_grad_value_. The leader's word counts for all ranks. Any thread. */
void deft_set_gradient_clipping(int clipped);

/* What follows is for the companion, the package that watches a job inside PyTorch (companion/).
 * It proves what NCCL's calls do not show: which sums are gradients. Without DEFT_GRADIENTS=trust,
 * modes deft and covap delay, merge or filter only what every rank's companion has proven. */

/* Of the functions below and what they mean. A companion of the interface before is heard too: it
 * lacks what is new, deft_note_steps(), deft_watch_training() and deft_note_training(). */
#define DEFT_COMPANION_INTERFACE 4
#define DEFT_COMPANION_INTERFACE_BEFORE 3

/* What the library wants of a companion. */
#define DEFT_COMPANION_UNWANTED 0  /* nothing: no gradient may come late */
#define DEFT_COMPANION_OPTIMIZER 1 /* the optimizer, clipping, scaling (DEFT_GRADIENTS=trust) */
#define DEFT_COMPANION_PROOF 2     /* the same, and proof */
#define DEFT_COMPANION_LAYERS 3    /* proof, and that layers wait for their gradients; no more */

/* The companion has begun. `who` ("0.1.0") has to be equal on all ranks. One of
 * DEFT_COMPANION_..., or -1 if the library does not know the interface; then a companion that can
 * do without what is new asks again with the interface before. Any thread. */
int deft_companion_begin(uint32_t interface, const char* who);

/* The companion proves nothing any more, and why; what it has proven does not hold from here on.
 * Any thread. */
void deft_companion_end(const char* why);

/* What a sum is. */
#define DEFT_SUM_BUCKET                                                                      \
    0                         /* gradients of a module's parameters: a bucket of DDP, or one \
                               * parameter's */
#define DEFT_SUM_FORWARD 1    /* the rest is none: a sum made outside of backward, */
#define DEFT_SUM_BACKWARD 2   /* one made in backward, */
#define DEFT_SUM_PARAMETERS 3 /* one of parameters, */
#define DEFT_SUM_HELD_BACK 4  /* one between backward and the optimizer, */
#define DEFT_SUM_COMPRESSED 5 /* one of a communication hook of the job's own */

/* The very next all-reduce of this thread sums `bytes` at `buffer` in place, and is of this kind.
 * It holds for that call alone, and for none if that call is another one. Of a bucket: which of
 * the companion's modules it is of (from 1), its place among that module's sums of one iteration
 * (from 0), and whether it is the last of them; else they are 0. */
void deft_mark_sum(const void* buffer, uint64_t bytes, uint32_t kind, uint32_t module,
                   uint32_t place, int last);

/* The module's optimizer has made one step after one whole set of its sums, and nothing else has
 * looked at gradients or parameters in between, as far as was looked. 0: all is proven, and nothing
 * will come of it (no cap allows that gradients are late or merged), so the companion need not look
 * at this module any more; it goes on with its marks. Else 1. Any thread. */
int deft_prove_iteration(uint32_t module);

/* What the module's steps are at its optimizer's present learning rate, as measured. Where that is
 * told, no plan comes into force whose late or merged gradients leave its margin, and one in force
 * ends where the rate leaves it. Told again where the rate changes. The leader's word counts for
 * all ranks. Any thread.
 * `rate_curvature`: the learning rate times the curvature of the loss along the steps, without
 * dimension; rate (1 - beta1) times the preconditioned curvature for Adam and its family
 * (planner/stability.h). Below 0: it is being measured, and nothing comes late before it is told;
 * NaN: it will not be.
 * `noise_scale`: the variance of one iteration's gradient over the square of its mean; below 0: not
 * known.
 * Returns 1 where plans are priced. Else 0, and nothing need be measured: no cap is named, so
 * nothing comes late, or the operator has named the plan. */
int deft_note_steps(uint32_t module, double rate_curvature, double noise_scale);

/* The module is proven, and its layers wait for their own gradients: whoever marks its sums takes
 * with deft_take_sum() what each of them has left, and waits for that, for as long as the process
 * lives. Where all ranks say so, sums are sent in the order in which layers need them. Any thread.
 */
void deft_layers_wait(uint32_t module);

/* A sum that is not waited for by the stream of its call, because a plan for such layers sends it
 * when it is its turn. The buffer must stay as it is until it has been waited for. */
typedef struct deft_sum deft_sum_t;

/* That of the latest all-reduce of this thread, which was marked; the caller's until it is waited
 * for. Null: the stream of the call waits for its sum, as always. */
deft_sum_t* deft_take_sum(void);

/* The stream (CUstream) waits for the sum; or, where `host` is not 0, this thread does, until the
 * sum is there or its communicator is aborted. 0, or what is not waited for: 1: later sums of the
 * iteration are sent before it, and have not been called for (an iteration that was broken off):
 * its buffer must stay for good, because the plan's end sends it; -1: it will not come, because its
 * plan has failed or its communicator has ended. The sum is the library's again. Any thread. */
int deft_wait_sum(deft_sum_t* sum, void* stream, int host);

/* Nothing of the module is proven from here on, and why, for people: "a gradient is read between
 * backward and step (train.py:31)". Any thread. */
void deft_refuse_proof(uint32_t module, const char* why);

/* What the accuracy guard wants to know of an iteration. */
#define DEFT_TRAINING_LOSS 1 /* its loss, and its learning rate */
#define DEFT_TRAINING_NORM 2 /* the norm of the gradients that its update gets */
#define DEFT_TRAINING_LATE 4 /* not a wish: a plan that delays or merges is in force */

/* What is wanted of the next iteration of the module: DEFT_TRAINING_... in one word. Asked before
 * its backward, by the thread that runs it. */
int deft_watch_training(uint32_t module);

/* What came of that, now or some iterations later. `iteration`: which of the module's, from 0, the
 * same on all ranks. `asked`: what deft_watch_training() answered. `loss`: the scalar that backward
 * began at, the sum over the iteration's backward passes. `norm`: Euclidean, of all gradients
 * before any clipping. NaN: not known. Any thread. */
void deft_note_training(uint32_t module, uint64_t iteration, int asked, double loss, double norm,
                        double rate);

/* Counters since the process began, over all its communicators. `size` is set by the caller to
 * sizeof(deft_stats_t); fields beyond it are not written. */
typedef struct {
    size_t size;
    uint64_t in_force;        /* communicators with a plan in force now */
    uint64_t switched;        /* plans that came into force */
    uint64_t ended;           /* of them by a change of the job's iteration */
    uint64_t iterations;      /* under a plan */
    uint64_t executed_calls;  /* gradient calls that were carried out by a plan */
    uint64_t forwarded_calls; /* that a plan left to NCCL */
    uint64_t launched_bytes;  /* reduced on lanes */
    uint64_t delivered;       /* bucket generations handed to the job */
    uint64_t zeroed_calls;    /* calls that received zeros */
    uint64_t dropped;         /* generations that were not delivered */
    uint64_t guard_decisions; /* on the leader's rank */
} deft_stats_t;

/* 0, or -1 if stats is null or its size is too small to hold anything. Any thread. While a plan is
 * being looked at it waits for that a few milliseconds at most, and tells what was known before. */
int deft_stats(deft_stats_t* stats);

#ifdef __cplusplus
}
#endif

#endif
