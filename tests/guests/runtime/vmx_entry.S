// u64 guest_vmx_enter(GuestRegisters* registers, bool launch)
// VMLAUNCH or VMRESUME with the guest's general registers (RSP is in the VMCS); 0 after a VM exit, its
// registers stored back; RFLAGS' CF and ZF (and bit 1) after VMfail.

#define HOST_RSP 0x6c14
#define HOST_RIP 0x6c16

        .text
        .code64
        .globl guest_vmx_enter
guest_vmx_enter:
        push %rbx
        push %rbp
        push %r12
        push %r13
        push %r14
        push %r15
        push %rdi
        mov $HOST_RSP, %eax
        vmwrite %rsp, %rax
        mov $HOST_RIP, %eax
        lea vm_exit(%rip), %rdx
        vmwrite %rdx, %rax
        cmp $0, %esi
        mov 0x00(%rdi), %rax
        mov 0x08(%rdi), %rcx
        mov 0x10(%rdi), %rdx
        mov 0x18(%rdi), %rbx
        mov 0x28(%rdi), %rbp
        mov 0x30(%rdi), %rsi
        mov 0x40(%rdi), %r8
        mov 0x48(%rdi), %r9
        mov 0x50(%rdi), %r10
        mov 0x58(%rdi), %r11
        mov 0x60(%rdi), %r12
        mov 0x68(%rdi), %r13
        mov 0x70(%rdi), %r14
        mov 0x78(%rdi), %r15
        mov 0x38(%rdi), %rdi
        jne 1f
        vmresume
        jmp 2f
1:      vmlaunch
2:      pushfq
        pop %rax
        and $0x41, %eax
        or $2, %eax
        pop %rdi
        jmp 3f

vm_exit:
        push %rdi
        mov 8(%rsp), %rdi
        mov %rax, 0x00(%rdi)
        mov %rcx, 0x08(%rdi)
        mov %rdx, 0x10(%rdi)
        mov %rbx, 0x18(%rdi)
        mov %rbp, 0x28(%rdi)
        mov %rsi, 0x30(%rdi)
        mov %r8, 0x40(%rdi)
        mov %r9, 0x48(%rdi)
        mov %r10, 0x50(%rdi)
        mov %r11, 0x58(%rdi)
        mov %r12, 0x60(%rdi)
        mov %r13, 0x68(%rdi)
        mov %r14, 0x70(%rdi)
        mov %r15, 0x78(%rdi)
        pop %rax
        mov %rax, 0x38(%rdi)
        pop %rdi
        xor %eax, %eax
3:      pop %r15
        pop %r14
        pop %r13
        pop %r12
        pop %rbp
        pop %rbx
        ret

        // An L2 function's return address.
        .globl guest_l2_return
guest_l2_return:
        mov $0x600d, %eax                 // L2::kReturned
        vmcall
        ud2

        .section .note.GNU-stack, "", @progbits
