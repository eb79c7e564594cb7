// One line per instruction that only L0 executes; the rest of the code has no assembly of its own.
// Bare machine only, but for pause() and compiler barriers.
#pragma once

#include "base/address.h"
#include "base/types.h"

namespace aerie::cpu {

struct CpuidResult {
  u32 eax, ebx, ecx, edx;
};

inline CpuidResult cpuid(u32 leaf, u32 subleaf = 0) {
  CpuidResult r;
  asm volatile("cpuid"
               : "=a"(r.eax), "=b"(r.ebx), "=c"(r.ecx), "=d"(r.edx)
               : "a"(leaf), "c"(subleaf));
  return r;
}
inline u64 rdtsc() {
  u32 low, high;
  asm volatile("rdtsc" : "=a"(low), "=d"(high));
  return (u64{high} << 32) | low;
}
inline u64 rdmsr(u32 index) {
  u32 low, high;
  asm volatile("rdmsr" : "=a"(low), "=d"(high) : "c"(index) : "memory");
  return (u64{high} << 32) | low;
}
inline void wrmsr(u32 index, u64 value) {
  asm volatile("wrmsr" ::"c"(index), "a"(static_cast<u32>(value)),
               "d"(static_cast<u32>(value >> 32))
               : "memory");
}
inline u64 xgetbv(u32 index) {
  u32 low, high;
  asm volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(index));
  return (u64{high} << 32) | low;
}
inline void xsetbv(u32 index, u64 value) {
  asm volatile("xsetbv" ::"c"(index), "a"(static_cast<u32>(value)),
               "d"(static_cast<u32>(value >> 32)));
}

inline u64 read_cr0() {
  u64 v;
  asm volatile("mov %%cr0, %0" : "=r"(v));
  return v;
}
inline u64 read_cr2() {
  u64 v;
  asm volatile("mov %%cr2, %0" : "=r"(v));
  return v;
}
inline u64 read_cr3() {
  u64 v;
  asm volatile("mov %%cr3, %0" : "=r"(v));
  return v;
}
inline u64 read_cr4() {
  u64 v;
  asm volatile("mov %%cr4, %0" : "=r"(v));
  return v;
}
inline void write_cr0(u64 v) { asm volatile("mov %0, %%cr0" ::"r"(v) : "memory"); }
inline void write_cr2(u64 v) { asm volatile("mov %0, %%cr2" ::"r"(v) : "memory"); }
inline void write_cr3(u64 v) { asm volatile("mov %0, %%cr3" ::"r"(v) : "memory"); }
inline void write_cr4(u64 v) { asm volatile("mov %0, %%cr4" ::"r"(v) : "memory"); }

template <unsigned N>
u64 read_dr() {
  u64 v;
  if constexpr (N == 0)
    asm volatile("mov %%dr0, %0" : "=r"(v));
  else if constexpr (N == 1)
    asm volatile("mov %%dr1, %0" : "=r"(v));
  else if constexpr (N == 2)
    asm volatile("mov %%dr2, %0" : "=r"(v));
  else if constexpr (N == 3)
    asm volatile("mov %%dr3, %0" : "=r"(v));
  else if constexpr (N == 6)
    asm volatile("mov %%dr6, %0" : "=r"(v));
  else
    asm volatile("mov %%dr7, %0" : "=r"(v));
  return v;
}
template <unsigned N>
void write_dr(u64 v) {
  if constexpr (N == 0)
    asm volatile("mov %0, %%dr0" ::"r"(v));
  else if constexpr (N == 1)
    asm volatile("mov %0, %%dr1" ::"r"(v));
  else if constexpr (N == 2)
    asm volatile("mov %0, %%dr2" ::"r"(v));
  else if constexpr (N == 3)
    asm volatile("mov %0, %%dr3" ::"r"(v));
  else if constexpr (N == 6)
    asm volatile("mov %0, %%dr6" ::"r"(v));
  else
    asm volatile("mov %0, %%dr7" ::"r"(v));
}

inline u8 inb(u16 port) {
  u8 v;
  asm volatile("inb %1, %0" : "=a"(v) : "Nd"(port));
  return v;
}
inline u16 inw(u16 port) {
  u16 v;
  asm volatile("inw %1, %0" : "=a"(v) : "Nd"(port));
  return v;
}
inline u32 inl(u16 port) {
  u32 v;
  asm volatile("inl %1, %0" : "=a"(v) : "Nd"(port));
  return v;
}
inline void outb(u16 port, u8 v) { asm volatile("outb %0, %1" ::"a"(v), "Nd"(port)); }
inline void outw(u16 port, u16 v) { asm volatile("outw %0, %1" ::"a"(v), "Nd"(port)); }
inline void outl(u16 port, u32 v) { asm volatile("outl %0, %1" ::"a"(v), "Nd"(port)); }

inline void invlpg(u64 address) { asm volatile("invlpg (%0)" ::"r"(address) : "memory"); }
inline void invlpga(u64 address, u32 tag) {
  asm volatile("invlpga %%rax, %%ecx" ::"a"(address), "c"(tag) : "memory");
}
// CR4.PKE must be set.
inline u32 rdpkru() {
  u32 v;
  asm volatile("rdpkru" : "=a"(v) : "c"(0) : "edx");
  return v;
}
inline void wbinvd() { asm volatile("wbinvd" ::: "memory"); }
inline void pause() { asm volatile("pause"); }
inline void hlt() { asm volatile("hlt"); }
inline void cli() { asm volatile("cli" ::: "memory"); }
inline void sti() { asm volatile("sti" ::: "memory"); }

// SVM (APM vol. 3). VMRUN itself is in cpu/svm/run.S.
inline void stgi() { asm volatile("stgi" ::: "memory"); }
inline void clgi() { asm volatile("clgi" ::: "memory"); }
inline void vmload(Hpa vmcb) { asm volatile("vmload" ::"a"(vmcb.value()) : "memory"); }
inline void vmsave(Hpa vmcb) { asm volatile("vmsave" ::"a"(vmcb.value()) : "memory"); }

}  // namespace aerie::cpu
