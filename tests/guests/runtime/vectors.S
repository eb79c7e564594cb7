// Interrupt and exception entry, and the far side of catch_fault().

        .text
        .code64

        // 256 stubs, 16 bytes each: error code (or 0), vector, then the common part.
        .balign 16
        .globl vector_stubs
vector_stubs:
        .set vector, 0
        .rept 256
        .balign 16
        .if vector != 8 && (vector < 10 || vector > 14) && vector != 17 && vector != 21
        pushq $0
        .endif
        pushq $vector
        jmp common
        .set vector, vector + 1
        .endr

        // Frame of exceptions.h.
common: push %rax
        push %rcx
        push %rdx
        push %rbx
        push %rbp
        push %rsi
        push %rdi
        push %r8
        push %r9
        push %r10
        push %r11
        push %r12
        push %r13
        push %r14
        push %r15
        cld
        mov %rsp, %rdi
        mov %rsp, %rbp
        and $-16, %rsp
        call guest_vector
        mov %rbp, %rsp
        pop %r15
        pop %r14
        pop %r13
        pop %r12
        pop %r11
        pop %r10
        pop %r9
        pop %r8
        pop %rdi
        pop %rsi
        pop %rbp
        pop %rbx
        pop %rdx
        pop %rcx
        pop %rax
        add $16, %rsp
        iretq

        // u64 guest_catch(void (*body)(void*), void* argument, u64* slot)
        // Calls body(argument). *slot tells guest_vector where to resume after an exception, by
        // loading RSP from it and going to guest_catch_resume with RAX = 1; 0 is returned if body
        // returns.
        .globl guest_catch, guest_catch_resume
guest_catch:
        push %rbx
        push %rbp
        push %r12
        push %r13
        push %r14
        push %r15
        pushfq
        push %rdx
        push (%rdx)
        mov %rsp, (%rdx)
        mov %rdi, %rax
        mov %rsi, %rdi
        mov %rsp, %rbp
        and $-16, %rsp
        call *%rax
        mov %rbp, %rsp
        xor %eax, %eax
guest_catch_resume:
        cld
        pop %rcx
        pop %rdx
        mov %rcx, (%rdx)
        popfq
        pop %r15
        pop %r14
        pop %r13
        pop %r12
        pop %rbp
        pop %rbx
        ret

        .section .note.GNU-stack, "", @progbits
