// From a multiboot 1 loader (32-bit protected mode, paging off) to 64-bit C++ at its linked address.
// Multiboot specification 0.6.96, 3.1 and 3.2.

#define VIRTUAL_BASE 0xffffffff80000000
#define PHYS(symbol) ((symbol) - VIRTUAL_BASE)

        .section .multiboot, "a"
        .balign 4
multiboot_header:
        .long 0x1badb002
        .long 0x00000003                // page-aligned modules, memory information
        .long -(0x1badb002 + 0x00000003)

        .section .boot, "ax"
        .code32
        .global boot_entry
boot_entry:
        cli
        cld
        mov $PHYS(boot_stack_top), %esp
        mov %eax, PHYS(multiboot_magic)
        mov %ebx, PHYS(multiboot_information)

        // Identity map and physical window: 1 GiB pages; both share one table of 512 GiB.
        mov $PHYS(boot_pdpt), %edi
        xor %ecx, %ecx
1:      mov %ecx, %eax
        shl $30, %eax                   // bits 31:0 of index << 30
        or $0x83, %eax                  // present, writable, page size
        mov %eax, (%edi,%ecx,8)
        mov %ecx, %eax
        shr $2, %eax
        mov %eax, 4(%edi,%ecx,8)
        inc %ecx
        cmp $512, %ecx
        jb 1b
        // The image at its linked address: 2 MiB pages over the first GiB of physical memory.
        mov $PHYS(boot_pd), %edi
        xor %ecx, %ecx
2:      mov %ecx, %eax
        shl $21, %eax
        or $0x83, %eax
        mov %eax, (%edi,%ecx,8)
        inc %ecx
        cmp $512, %ecx
        jb 2b
        movl $PHYS(boot_pd) + 3, PHYS(boot_pdpt_high) + 510 * 8
        movl $PHYS(boot_pdpt) + 3, PHYS(boot_pml4)
        movl $PHYS(boot_pdpt) + 3, PHYS(boot_pml4) + 256 * 8
        movl $PHYS(boot_pdpt_high) + 3, PHYS(boot_pml4) + 511 * 8

        mov $PHYS(boot_pml4), %eax
        call enter_long_mode
        ljmp $0x08, $PHYS(boot_64)

// EAX: CR3. Returns in 32-bit compatibility mode with the flat GDT loaded. Clobbers EAX, ECX, EDX.
enter_long_mode:
        mov %eax, %cr3
        mov $0x20, %eax                 // PAE
        mov %eax, %cr4
        mov $0xc0000080, %ecx           // EFER: LME, NXE
        rdmsr
        or $0x900, %eax
        wrmsr
        mov $0x80010021, %eax           // PG, WP, NE, PE
        mov %eax, %cr0
        lgdt PHYS(boot_gdt_pointer)
        ret

        .code64
boot_64:
        mov $0x10, %eax
        mov %eax, %ds
        mov %eax, %es
        mov %eax, %ss
        movabs $boot_64_high, %rax
        jmp *%rax
boot_64_high:
        lgdt boot_gdt_pointer_high(%rip)
        mov $boot_stack_top, %rsp
        xor %ebp, %ebp
        mov multiboot_magic(%rip), %edi
        mov multiboot_information(%rip), %esi
        call aerie_boot
        ud2

// relocate(rdi: destination, rsi: source, rdx: bytes, rcx: new CR3): copies the running image, stack
// included, and continues in the copy. Nothing may be written between the copy and the switch, hence
// registers only.
        .text
        .global relocate
relocate:
        mov %rcx, %rax
        mov %rdx, %rcx
        shr $3, %rcx
        rep movsq
        mov %rax, %cr3
        ret

        .section .rodata
        .balign 8
boot_gdt:
        .quad 0
        .quad 0x00af9b000000ffff        // 0x08: 64-bit code
        .quad 0x00cf93000000ffff        // 0x10: data
boot_gdt_end:
boot_gdt_pointer:
        .word boot_gdt_end - boot_gdt - 1
        .quad PHYS(boot_gdt)
        .global boot_gdt_pointer_high
boot_gdt_pointer_high:
        .word boot_gdt_end - boot_gdt - 1
        .quad boot_gdt

        .bss
        .balign 4096
boot_pml4:      .skip 4096
boot_pdpt:      .skip 4096
boot_pdpt_high: .skip 4096
boot_pd:        .skip 4096
        // Aligned as every processor's stack is: cpu/host/per_cpu.h finds per-CPU data from RSP.
        .balign 32768
        .global boot_stack
boot_stack:     .skip 32768              // of the boot processor; kMaxCpus in all
boot_stack_top: .skip 32768 * 7
multiboot_magic:       .long 0
multiboot_information: .long 0

        .section .note.GNU-stack, "", @progbits
