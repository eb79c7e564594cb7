// L0's interrupt entry points. Interrupts and NMIs are only ever taken in the windows of
// host_window.h, on the current stack; a vector is recorded and nothing else is done here.
// Exceptions are Aerie's own faults and end in host_exception.

        .text
        .balign 16
        .global interrupt_stubs
interrupt_stubs:
vector = 0
        .rept 256
        .balign 16
        .if vector == 8 || (vector >= 10 && vector <= 14) || vector == 17 || vector == 21
        nop
        .else
        push $0
        .endif
        push $vector
        .if vector == 2
        jmp nmi_entry
        .elseif vector < 32
        jmp exception_entry
        .else
        jmp interrupt_entry
        .endif
vector = vector + 1
        .endr

// Frame: vector, error code, RIP, CS, RFLAGS, RSP, SS. A vector below 32 that a device sent arrives as
// an exception would, and cannot be told apart; vmm keeps such vectors masked at their sources.
interrupt_entry:
        push %rax
        push %rcx
        mov %rsp, %rax
        and $-32768, %rax
        mov 16(%rsp), %ecx
        inc %ecx
        mov %ecx, 16(%rax)              // PerCpu::interrupt_taken
        andq $~0x200, 48(%rsp)          // exactly one interrupt a window: return with IF = 0
        pop %rcx
        pop %rax
        add $16, %rsp
        iretq

// An NMI between the last check for work and HLT must not let the processor halt: it returns behind
// the HLT.
nmi_entry:
        push %rax
        push %rcx
        mov %rsp, %rax
        and $-32768, %rax
        incl 20(%rax)                   // PerCpu::nmis_taken
        mov 32(%rsp), %rax              // RIP
        mov $halt_window_begin, %rcx
        cmp %rcx, %rax
        jb 1f
        mov $halt_window_end, %rcx
        cmp %rcx, %rax
        jae 1f
        mov %rcx, 32(%rsp)
1:      pop %rcx
        pop %rax
        add $16, %rsp
        iretq

exception_entry:
        mov (%rsp), %rdi
        mov 8(%rsp), %rsi
        mov 16(%rsp), %rdx
        mov %cr2, %rcx
        mov 40(%rsp), %r8
        and $-16, %rsp
        call host_exception
        ud2

// void host_interrupt_window(): GIF and IF on for a moment; takes what is pending.
        .global host_interrupt_window
host_interrupt_window:
        stgi
        sti
        nop
        nop
        cli
        clgi
        ret

// void host_nmi_window(): GIF on, IF off: takes a pending NMI only.
        .global host_nmi_window
host_nmi_window:
        stgi
        nop
        nop
        clgi
        ret

// void host_halt_window(): halts until an interrupt or an NMI has been taken.
        .global host_halt_window
host_halt_window:
        stgi
halt_window_begin:
        sti
        hlt
halt_window_end:
        cli
        clgi
        ret

        .section .note.GNU-stack, "", @progbits
