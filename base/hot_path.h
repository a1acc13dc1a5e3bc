// SPDX-License-Identifier: Apache-2.0
// Marks a function that runs in each NCCL call of the job and has no array: nothing in it can be
// overrun. Without the mark -fstack-protector-strong guards it all the same, as it guards whatever
// takes the address of a local object, and a call of a hook takes 8 % more instructions. Compilers
// that do not know the mark (GCC before 11) guard it.
#pragma once

#if __has_attribute(no_stack_protector)
#define DEFT_NO_ARRAYS __attribute__((no_stack_protector))
#else
#define DEFT_NO_ARRAYS
#endif
