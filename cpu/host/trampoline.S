// Where application processors start: copied to a page below 1 MiB for the time of bring-up.
// Parameters stand at the end; each processor takes a number by an atomic increment and finds its
// stack by it.

#define OFFSET(symbol) ((symbol) - trampoline_begin)

        .section .rodata
        .balign 16
        .global trampoline_begin
        .global trampoline_end
        .global trampoline_parameters
        .code16
trampoline_begin:
        cli
        cld
        mov %cs, %ax
        mov %ax, %ds
        xor %ebx, %ebx
        mov %ax, %bx
        shl $4, %ebx                    // linear address of this page
        lea OFFSET(trampoline_gdt)(%ebx), %eax
        mov %eax, OFFSET(trampoline_gdt_pointer) + 2
        lea OFFSET(trampoline_32)(%ebx), %eax
        mov %eax, OFFSET(trampoline_far_32)
        lea OFFSET(trampoline_64)(%ebx), %eax
        mov %eax, OFFSET(trampoline_far_64)
        lgdtl OFFSET(trampoline_gdt_pointer)
        mov %cr0, %eax
        or $1, %al
        mov %eax, %cr0
        ljmpl *OFFSET(trampoline_far_32)

        .code32
trampoline_32:
        mov $0x10, %eax
        mov %eax, %ds
        mov %eax, %ss
        mov $0x20, %eax                 // PAE
        mov %eax, %cr4
        mov OFFSET(trampoline_cr3)(%ebx), %eax
        mov %eax, %cr3
        mov $0xc0000080, %ecx           // EFER: LME, NXE
        rdmsr
        or $0x900, %eax
        wrmsr
        mov $0x80010021, %eax           // PG, WP, NE, PE
        mov %eax, %cr0
        ljmp *OFFSET(trampoline_far_64)(%ebx)

        .code64
trampoline_64:
        mov $1, %eax
        lock xadd %eax, OFFSET(trampoline_next)(%rbx)
        cmp OFFSET(trampoline_limit)(%rbx), %eax
        jae 2f
        mov %eax, %edi                  // processor number
        mov OFFSET(trampoline_stacks)(%rbx), %rcx
        inc %rax
        imul $32768, %rax, %rax         // kStackSize; the stack grows down from its end
        lea (%rcx,%rax), %rsp
        xor %ebp, %ebp
        mov OFFSET(trampoline_entry)(%rbx), %rax
        call *%rax
2:      hlt
        jmp 2b

        .balign 8
trampoline_gdt:
        .quad 0
        .quad 0x00cf9b000000ffff        // 0x08: 32-bit code
        .quad 0x00cf93000000ffff        // 0x10: data
        .quad 0x00af9b000000ffff        // 0x18: 64-bit code
trampoline_gdt_pointer:
        .word 31
        .long 0
trampoline_far_32:
        .long 0
        .word 0x08
trampoline_far_64:
        .long 0
        .word 0x18
        .balign 8
trampoline_parameters:
trampoline_cr3:    .quad 0
trampoline_stacks: .quad 0              // of processor 0; one a number
trampoline_entry:  .quad 0              // void (*)(u32 number)
trampoline_next:   .long 0              // number the next processor takes
trampoline_limit:  .long 0              // processors beyond this stay halted
trampoline_end:

        .section .note.GNU-stack, "", @progbits
