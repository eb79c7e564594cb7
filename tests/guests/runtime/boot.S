// Entry of a guest: multiboot 1 (32-bit protected mode, no paging) to long mode on the boot
// processor, and real mode to long mode on the others. Both end in C++ (start.cc).
// Multiboot specification 0.6.96; SDM vol. 3, 10.8.5 (initializing IA-32e mode).

#define MULTIBOOT_MAGIC 0x1badb002
#define MULTIBOOT_FLAGS 3                 /* modules page aligned, memory information */

#define SELECTOR_CODE64 0x08
#define SELECTOR_DATA 0x10
#define SELECTOR_CODE32 0x18

#define CR0_BOOT 0x80010033               /* PG WP NE ET MP PE */
#define CR4_BOOT 0x20                     /* PAE */
#define EFER_BOOT 0x900                   /* NXE LME */
#define MSR_EFER 0xc0000080

#define STACK_SHIFT 14                    /* kCpuStackSize in cpus.h */

        .section .multiboot, "a"
        .balign 4
        .long MULTIBOOT_MAGIC
        .long MULTIBOOT_FLAGS
        .long -(MULTIBOOT_MAGIC + MULTIBOOT_FLAGS)

        .section .text.boot, "ax"
        .code32
        .globl guest_entry
guest_entry:
        cli
        cld
        mov %eax, %ebp                    // multiboot magic
        mov %ebx, %esi                    // multiboot information
        mov $cpu_stacks + (1 << STACK_SHIFT), %esp

        // Identity map of 4 GiB in 2 MiB pages; the last 32 MiB (APICs) uncached.
        mov $boot_pml4, %edi
        movl $boot_pdpt + 7, (%edi)
        mov $boot_pdpt, %edi
        mov $boot_pds + 7, %eax
        mov $4, %ecx
1:      mov %eax, (%edi)
        add $8, %edi
        add $0x1000, %eax
        loop 1b
        mov $boot_pds, %edi
        mov $0x83, %eax                   // PS, writable, present
        mov $2048, %ecx
2:      mov %eax, %edx
        cmp $0xfe000000, %edx
        jb 3f
        or $0x18, %edx                    // PCD PWT
3:      mov %edx, (%edi)
        add $8, %edi
        add $0x200000, %eax
        loop 2b

        lgdtl gdt_pointer
        call enter_long_mode
        ljmpl $SELECTOR_CODE64, $4f

        // Paging and long mode on; EAX, ECX and EDX are used. The caller then jumps to 64-bit code.
enter_long_mode:
        mov $CR4_BOOT, %eax
        mov %eax, %cr4
        mov $boot_pml4, %eax
        mov %eax, %cr3
        mov $MSR_EFER, %ecx
        xor %edx, %edx
        mov $EFER_BOOT, %eax
        wrmsr
        mov $CR0_BOOT, %eax
        mov %eax, %cr0
        ret

        .code64
4:      call load_data_segments
        mov %ebp, %edi
        mov %esi, %esi
        xor %ebp, %ebp
        call guest_start
        ud2

load_data_segments:
        mov $SELECTOR_DATA, %eax
        mov %eax, %ds
        mov %eax, %es
        mov %eax, %ss
        xor %eax, %eax
        mov %eax, %fs
        mov %eax, %gs
        ret

        // Copied to kTrampoline; a SIPI starts there in real mode with IP 0.
        .code16
        .globl ap_trampoline, ap_trampoline_end
ap_trampoline:
        // What INIT and SIPI left, for the cases that check it: ApStartState in cpus.h.
        mov %cs, %cs:0xf0c
        mov %edx, %cs:0xf04
        mov %cr0, %eax
        mov %eax, %cs:0xf00
        mov $0, %eax                      // flags as they were
        mov %ax, %ds
        mov %ax, %ss
        mov $0x8ff0, %sp
        pushfl
        popl %cs:0xf08
        cli
        lgdtl 0x8000 + (ap_gdt_pointer - ap_trampoline)
        mov %cr0, %eax
        or $1, %eax
        and $~0x60000000, %eax            // CD NW
        mov %eax, %cr0
        ljmpl $SELECTOR_CODE32, $ap_start32
        .balign 4
ap_gdt_pointer:
        .word gdt_end - gdt - 1
        .long gdt
ap_trampoline_end:

        .code32
ap_start32:
        mov $SELECTOR_DATA, %eax
        mov %eax, %ds
        mov %eax, %es
        mov %eax, %ss
        // The stack of the processor with this initial APIC ID.
        mov $1, %eax
        cpuid
        shr $24, %ebx
        movzbl cpu_of_apic_id(%ebx), %esi
        lea 1(%esi), %esp
        shl $STACK_SHIFT, %esp
        add $cpu_stacks, %esp
        call enter_long_mode
        ljmpl $SELECTOR_CODE64, $5f
        .code64
5:      call load_data_segments
        mov %esi, %edi
        xor %ebp, %ebp
        call guest_ap_start
        ud2

        .section .data
        .balign 8
        .globl gdt, gdt_end, gdt_pointer
gdt:    .quad 0
        .quad 0x00af9b000000ffff          // 0x08 64-bit code
        .quad 0x00cf93000000ffff          // 0x10 data
        .quad 0x00cf9b000000ffff          // 0x18 32-bit code
        .quad 0x00009b000000ffff          // 0x20 16-bit code
        .quad 0x000093000000ffff          // 0x28 16-bit data
        .quad 0x00cff3000000ffff          // 0x30 data, DPL 3
        .quad 0x00affb000000ffff          // 0x38 64-bit code, DPL 3
        .fill 8 * 2, 8, 0                 // 0x40 one 64-bit TSS for each processor
        .fill 2, 8, 0                     // 0xc0 for cases
gdt_end:
        .word 0
gdt_pointer:
        .word gdt_end - gdt - 1
        .quad gdt

        .section .bss
        .balign 4096
        .globl boot_pml4, boot_pdpt, boot_pds, cpu_stacks
boot_pml4: .skip 4096
boot_pdpt: .skip 4096
boot_pds:  .skip 4 * 4096
cpu_stacks: .skip 8 << STACK_SHIFT

        .section .note.GNU-stack, "", @progbits
