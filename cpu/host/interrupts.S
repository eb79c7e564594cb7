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
        push $vector
        jmp error_code_entry
        .else
        push $0
        push $vector
        .if vector == 2
        jmp nmi_entry
        .elseif vector < 32
        jmp exception_entry
        .else
        jmp interrupt_entry
        .endif
        .endif
vector = vector + 1
        .endr

// A device may use any vector; an 8259 as firmware leaves it sends 8 to 15. Nothing in the windows can
// fault, so a vector below 32 that interrupts one of them is an interrupt. It pushed no error code.
error_code_entry:
        cmpq $host_interrupt_window, 8(%rsp)
        jb fault_entry
        cmpq $host_windows_end, 8(%rsp)
        jae fault_entry
        push (%rsp)
        jmp interrupt_entry

exception_entry:
        cmpq $host_interrupt_window, 16(%rsp)
        jb fault_entry
        cmpq $host_windows_end, 16(%rsp)
        jae fault_entry

// Frame: vector, error code, RIP, CS, RFLAGS, RSP, SS.
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

fault_entry:
        mov (%rsp), %rdi
        mov 8(%rsp), %rsi
        mov 16(%rsp), %rdx
        mov %cr2, %rcx
        mov 40(%rsp), %r8
        and $-16, %rsp
        call host_exception
        ud2

// L0 runs with GIF = 0 and IF = 1: while a guest runs with V_INTR_MASKING, it is the host's IF at VMRUN that
// lets physical interrupts end it (APM vol. 2, 15.21.1). GIF alone holds them off here.

// void host_interrupt_window(): takes one interrupt, and NMIs.
        .global host_interrupt_window
host_interrupt_window:
        cli
        stgi
        sti
        nop
        nop
        clgi
        sti
        ret

// void host_nmi_window(): takes a pending NMI only.
        .global host_nmi_window
host_nmi_window:
        cli
        stgi
        nop
        nop
        clgi
        sti
        ret

// void host_halt_window(): halts until an interrupt or an NMI has been taken.
        .global host_halt_window
host_halt_window:
        cli
        stgi
halt_window_begin:
        sti
        hlt
halt_window_end:
        clgi
        sti
        ret
host_windows_end:

        .section .note.GNU-stack, "", @progbits
