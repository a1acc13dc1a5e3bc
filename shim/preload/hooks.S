/* SPDX-License-Identifier: Apache-2.0 */
/* The guest's exported functions. Each jumps through a slot of its own: first to first_call, which
   asks preload.c for the address, from then on to the library's hook. A jump keeps the arguments
   and the return address, so the hook sees the job's code as its caller. */

    .hidden guest_first_call

#if defined(__x86_64__)

.macro hook name
    .text
    .globl \name
    .type \name, @function
\name:
    .cfi_startproc
    endbr64
    jmp *.Lslot_\name(%rip)
.Lfirst_\name:
    endbr64
    lea .Lslot_\name(%rip), %r11
    jmp .Lfirst_call
    .cfi_endproc
    .size \name, . - \name
    .data
.Lslot_\name:
    .quad .Lfirst_\name
.endm

    .text
    .p2align 4
/* r11: the slot. All that may carry an argument is kept. */
.Lfirst_call:
    .cfi_startproc
    push %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    mov %rsp, %rbp
    .cfi_def_cfa_register %rbp
    push %rdi
    push %rsi
    push %rdx
    push %rcx
    push %r8
    push %r9
    push %r10
    push %rax
    sub $128, %rsp
    movups %xmm0, (%rsp)
    movups %xmm1, 16(%rsp)
    movups %xmm2, 32(%rsp)
    movups %xmm3, 48(%rsp)
    movups %xmm4, 64(%rsp)
    movups %xmm5, 80(%rsp)
    movups %xmm6, 96(%rsp)
    movups %xmm7, 112(%rsp)
    mov %r11, %rdi
    mov 8(%rbp), %rsi /* the job's code */
    mov %rbp, %rdx
    call guest_first_call
    mov %rax, %r11
    movups (%rsp), %xmm0
    movups 16(%rsp), %xmm1
    movups 32(%rsp), %xmm2
    movups 48(%rsp), %xmm3
    movups 64(%rsp), %xmm4
    movups 80(%rsp), %xmm5
    movups 96(%rsp), %xmm6
    movups 112(%rsp), %xmm7
    add $128, %rsp
    pop %rax
    pop %r10
    pop %r9
    pop %r8
    pop %rcx
    pop %rdx
    pop %rsi
    pop %rdi
    pop %rbp
    .cfi_def_cfa %rsp, 8
    jmp *%r11
    .cfi_endproc

#elif defined(__aarch64__)

.macro hook name
    .text
    .globl \name
    .type \name, %function
    .p2align 4
\name:
    .cfi_startproc
    hint #34 /* bti c */
    adrp x16, .Lslot_\name
    ldr x16, [x16, #:lo12:.Lslot_\name]
    br x16
.Lfirst_\name:
    hint #36 /* bti j */
    adrp x17, .Lslot_\name
    add x17, x17, #:lo12:.Lslot_\name
    b .Lfirst_call
    .cfi_endproc
    .size \name, . - \name
    .data
.Lslot_\name:
    .quad .Lfirst_\name
.endm

    .text
    .p2align 4
/* x17: the slot. All that may carry an argument is kept. */
.Lfirst_call:
    .cfi_startproc
    stp x29, x30, [sp, #-224]!
    .cfi_def_cfa_offset 224
    .cfi_offset x29, -224
    .cfi_offset x30, -216
    mov x29, sp
    stp x0, x1, [sp, #16]
    stp x2, x3, [sp, #32]
    stp x4, x5, [sp, #48]
    stp x6, x7, [sp, #64]
    str x8, [sp, #80]
    stp q0, q1, [sp, #96]
    stp q2, q3, [sp, #128]
    stp q4, q5, [sp, #160]
    stp q6, q7, [sp, #192]
    mov x0, x17
    mov x1, x30 /* the job's code */
    mov x2, x29
    bl guest_first_call
    mov x16, x0
    ldp q6, q7, [sp, #192]
    ldp q4, q5, [sp, #160]
    ldp q2, q3, [sp, #128]
    ldp q0, q1, [sp, #96]
    ldr x8, [sp, #80]
    ldp x6, x7, [sp, #64]
    ldp x4, x5, [sp, #48]
    ldp x2, x3, [sp, #32]
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #224
    .cfi_restore x29
    .cfi_restore x30
    .cfi_def_cfa_offset 0
    br x16
    .cfi_endproc

#else
#error "the guest has no code for this machine"
#endif

    .data
    .p2align 3
    .globl guest_slots
    .hidden guest_slots
guest_slots:

/* In the order of guest_names in preload.c. */
#define DEFT_NCCL_FUNCTION(name, result, parameters, since) hook nccl##name
#define DEFT_NCCL_QUERY(name, result, parameters, since)
#include "shim/nccl/nccl_functions.def"
#undef DEFT_NCCL_FUNCTION
#define DEFT_API_FUNCTION(name, without) hook deft_##name
#include "shim/preload/api_functions.def"
#undef DEFT_API_FUNCTION

    .section .note.GNU-stack, "", %progbits
