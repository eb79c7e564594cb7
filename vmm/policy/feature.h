// What L1 may be shown of a processor, by name: one table for CPUID policy, for `--hide`, for CR4
// and MSR policy, for what nested/ advertises, and for the documentation that is printed from it.
// Names are the ones QEMU uses. Header only, no freestanding dependency: the host tool checks its
// options with it.
#pragma once

#include <array>
#include <string_view>

#include "base/bits.h"
#include "base/types.h"

namespace aerie::vmm::policy {

// The processor L1 is shown.
enum class Vendor : u8 { intel, amd };

// Which of the two a table row speaks of.
enum class Vendors : u8 { intel = 1, amd = 2, both = 3 };
constexpr bool includes(Vendors set, Vendor vendor) {
  return ((static_cast<unsigned>(set) >> static_cast<unsigned>(vendor)) & 1) != 0;
}

enum class CpuidRegister : u8 { eax, ebx, ecx, edx };

// When L1 is shown a feature (unless it is hidden by name).
enum class Show : u8 {
  host,     // where the processor underneath has it: L1 uses it directly
  always,   // Aerie provides it, or every processor it runs on has it
  dynamic,  // Aerie provides it; the bit itself follows L1's state (CR4, APIC base) when CPUID
            // executes
  engine,   // where nested/ implements it on this host
  immune,   // where the host has it, or is an emulator, which has no such fault to protect against
  never,
};

// A bit of a CPUID leaf, or none (leaf kNoLeaf).
struct CpuidBit {
  u32 leaf;
  u32 subleaf;
  CpuidRegister reg;
  u8 position;
};
inline constexpr u32 kNoLeaf = ~u32{0};
inline constexpr CpuidBit kNoBit{kNoLeaf, 0, CpuidRegister::eax, 0};

struct FeatureRow {
  std::string_view name;
  CpuidBit bit;
  Show show;
  Vendors who = Vendors::both;
  std::string_view why = {};  // where `show` doesn't say it all
  CpuidBit host_alternative =
      kNoBit;  // another bit by which a host of the other vendor tells the same
};

namespace feature_table {

using enum CpuidRegister;
using enum Show;
inline constexpr Vendors kIntel = Vendors::intel, kAmd = Vendors::amd, kBoth = Vendors::both;

constexpr CpuidBit c1(u8 n) { return {1, 0, ecx, n}; }
constexpr CpuidBit d1(u8 n) { return {1, 0, edx, n}; }
constexpr CpuidBit b7(u8 n) { return {7, 0, ebx, n}; }
constexpr CpuidBit c7(u8 n) { return {7, 0, ecx, n}; }
constexpr CpuidBit d7(u8 n) { return {7, 0, edx, n}; }
constexpr CpuidBit a71(u8 n) { return {7, 1, eax, n}; }
constexpr CpuidBit ad1(u8 n) { return {0xd, 1, eax, n}; }
constexpr CpuidBit cx1(u8 n) { return {0x80000001, 0, ecx, n}; }
constexpr CpuidBit dx1(u8 n) { return {0x80000001, 0, edx, n}; }
constexpr CpuidBit bx8(u8 n) { return {0x80000008, 0, ebx, n}; }
constexpr CpuidBit dxa(u8 n) { return {0x8000000a, 0, edx, n}; }
constexpr CpuidBit ax21(u8 n) { return {0x80000021, 0, eax, n}; }

// SDM vol. 2A, CPUID; APM vol. 3, appendix E.
inline constexpr FeatureRow kRows[] = {
    // Leaf 1, ECX
    {"sse3", c1(0), host},
    {"pclmulqdq", c1(1), host},
    {"dtes64", c1(2), never, kBoth, "no debug store"},
    {"monitor", c1(3), never, kBoth,
     "L1's idle is HLT: MWAIT is intercepted and would cost an exit more"},
    {"ds-cpl", c1(4), never, kBoth, "no debug store"},
    {"vmx", c1(5), engine, kIntel},
    {"smx", c1(6), never, kBoth, "no measured launch"},
    {"est", c1(7), never, kBoth, "clock and voltage are not L1's"},
    {"tm2", c1(8), never, kBoth, "no thermal monitor"},
    {"ssse3", c1(9), host},
    {"cid", c1(10), never, kBoth, "no L1 context ID"},
    {"sdbg", c1(11), never, kBoth, "no silicon debug"},
    {"fma", c1(12), host},
    {"cx16", c1(13), host},
    {"xtpr", c1(14), never, kBoth, "no xTPR messages to disable"},
    {"pdcm", c1(15), never, kBoth, "no performance monitoring"},
    {"pcid", c1(17), host},
    {"dca", c1(18), never, kBoth, "no direct cache access"},
    {"sse4.1", c1(19), host},
    {"sse4.2", c1(20), host},
    {"x2apic", c1(21), always, kBoth, "the local APIC is Aerie's"},
    {"movbe", c1(22), host},
    {"popcnt", c1(23), host},
    {"tsc-deadline", c1(24), always, kBoth, "the local APIC is Aerie's"},
    {"aes", c1(25), host},
    {"xsave", c1(26), host},
    {"osxsave", c1(27), dynamic, kBoth, "CR4.OSXSAVE"},
    {"avx", c1(28), host},
    {"f16c", c1(29), host},
    {"rdrand", c1(30), host},
    {"hypervisor", c1(31), always},
    // Leaf 1, EDX
    {"fpu", d1(0), host},
    {"vme", d1(1), host},
    {"de", d1(2), host},
    {"pse", d1(3), host},
    {"tsc", d1(4), host},
    {"msr", d1(5), host},
    {"pae", d1(6), host},
    {"mce", d1(7), host},
    {"cx8", d1(8), host},
    {"apic", d1(9), dynamic, kBoth, "IA32_APIC_BASE.EN"},
    {"sep", d1(11), host},
    {"mtrr", d1(12), host},
    {"pge", d1(13), host},
    {"mca", d1(14), host},
    {"cmov", d1(15), host},
    {"pat", d1(16), host},
    {"pse36", d1(17), host},
    {"pn", d1(18), never, kBoth, "no serial number"},
    {"clflush", d1(19), host},
    {"ds", d1(21), never, kBoth, "no debug store"},
    {"acpi", d1(22), never, kBoth, "no clock modulation MSRs"},
    {"mmx", d1(23), host},
    {"fxsr", d1(24), host},
    {"sse", d1(25), host},
    {"sse2", d1(26), host},
    {"ss", d1(27), host},
    {"ht", d1(28), dynamic, kBoth, "more than one logical processor"},
    {"tm", d1(29), never, kBoth, "no thermal monitor"},
    {"pbe", d1(31), never, kBoth, "no FERR# signalling"},
    // Leaf 6, EAX
    {"arat", {6, 0, eax, 2}, always, kBoth, "Aerie's APIC timer runs whatever the processor does"},
    // Leaf 7.0, EBX
    {"fsgsbase", b7(0), host},
    {"tsc-adjust", b7(1), always, kBoth, "L1's TSC offset is Aerie's"},
    {"sgx", b7(2), never, kBoth, "enclave memory is not virtualized"},
    {"bmi1", b7(3), host},
    {"hle", b7(4), never, kBoth, "no transactional memory: an exit would abort it"},
    {"avx2", b7(5), host},
    {"fdp-excptn-only", b7(6), host},
    {"smep", b7(7), host},
    {"bmi2", b7(8), host},
    {"erms", b7(9), host},
    {"invpcid", b7(10), host},
    {"rtm", b7(11), never, kBoth, "no transactional memory: an exit would abort it"},
    {"cqm", b7(12), never, kBoth, "resource monitoring is not virtualized"},
    {"zero-fcs-fds", b7(13), host},
    {"mpx", b7(14), never, kBoth, "withdrawn by Intel; its state would need switching"},
    {"rdt-a", b7(15), never, kBoth, "resource allocation is not virtualized"},
    {"avx512f", b7(16), host},
    {"avx512dq", b7(17), host},
    {"rdseed", b7(18), host},
    {"adx", b7(19), host},
    {"smap", b7(20), host},
    {"avx512ifma", b7(21), host},
    {"clflushopt", b7(23), host},
    {"clwb", b7(24), host},
    {"intel-pt", b7(25), never, kBoth, "no processor trace"},
    {"avx512cd", b7(28), host},
    {"sha-ni", b7(29), host},
    {"avx512bw", b7(30), host},
    {"avx512vl", b7(31), host},
    // Leaf 7.0, ECX
    {"avx512vbmi", c7(1), host},
    {"umip", c7(2), host},
    {"pku", c7(3), host},
    {"ospke", c7(4), dynamic, kBoth, "CR4.PKE"},
    {"waitpkg", c7(5), never, kBoth, "UMWAIT's control MSR is not virtualized"},
    {"avx512vbmi2", c7(6), host},
    {"shstk", c7(7), never, kBoth, "shadow stacks' MSRs are not switched"},
    {"gfni", c7(8), host},
    {"vaes", c7(9), host},
    {"vpclmulqdq", c7(10), host},
    {"avx512vnni", c7(11), host},
    {"avx512bitalg", c7(12), host},
    {"avx512-vpopcntdq", c7(14), host},
    {"la57", c7(16), host},
    {"rdpid", c7(22), host},
    {"kl", c7(23), never, kBoth, "key locker's state is not switched"},
    {"bus-lock-detect", c7(24), never, kBoth, "bus lock traps are not virtualized"},
    {"cldemote", c7(25), host},
    {"movdiri", c7(27), host},
    {"movdir64b", c7(28), host},
    {"enqcmd", c7(29), never, kBoth, "PASIDs are not virtualized"},
    {"sgxlc", c7(30), never, kBoth, "no SGX"},
    {"pks", c7(31), host, kIntel, "AMD has none"},
    // Leaf 7.0, EDX
    {"fsrm", d7(4), host},
    {"avx512-vp2intersect", d7(8), host},
    {"md-clear", d7(10), host, kIntel},
    {"serialize", d7(14), host},
    {"arch-lbr", d7(19), never, kBoth, "no last-branch records"},
    {"ibt", d7(20), never, kBoth, "indirect-branch tracking's MSRs are not switched"},
    {"amx-bf16", d7(22), never, kBoth, "no AMX: XFD is not virtualized"},
    {"avx512-fp16", d7(23), host},
    {"amx-tile", d7(24), never, kBoth, "no AMX: XFD is not virtualized"},
    {"amx-int8", d7(25), never, kBoth, "no AMX: XFD is not virtualized"},
    {"spec-ctrl", d7(26), host, kIntel, {}, bx8(14)},
    {"stibp", d7(27), host, kIntel, {}, bx8(15)},
    {"flush-l1d", d7(28), host, kIntel},
    {"arch-capabilities", d7(29), always, kIntel, "says which faults this machine lacks"},
    {"core-capability", d7(30), never, kBoth, "no split-lock exception"},
    {"ssbd", d7(31), host, kIntel, {}, bx8(24)},
    // Leaf 7.1, EAX
    {"avx-vnni", a71(4), host},
    {"avx512-bf16", a71(5), host},
    {"fzrm", a71(10), host},
    {"fsrs", a71(11), host},
    {"fsrc", a71(12), host},
    // Leaf 0xD.1, EAX
    {"xsaveopt", ad1(0), host},
    {"xsavec", ad1(1), host},
    {"xgetbv1", ad1(2), host},
    {"xsaves", ad1(3), host},
    {"xfd", ad1(4), never, kBoth, "no AMX"},
    // Leaf 0x80000001, ECX
    {"lahf-lm", cx1(0), host},
    {"cmp-legacy", cx1(1), dynamic, kAmd, "more than one logical processor"},
    {"svm", cx1(2), engine, kAmd},
    {"extapic", cx1(3), never, kAmd, "no extended APIC registers"},
    {"cr8legacy", cx1(4), host, kAmd},
    {"abm", cx1(5), host},
    {"sse4a", cx1(6), host, kAmd},
    {"misalignsse", cx1(7), host, kAmd},
    {"3dnowprefetch", cx1(8), host},
    {"osvw", cx1(9), never, kAmd, "no errata to work round"},
    {"ibs", cx1(10), never, kAmd, "no performance monitoring"},
    {"xop", cx1(11), host, kAmd},
    {"skinit", cx1(12), never, kAmd, "no measured launch"},
    {"wdt", cx1(13), never, kAmd, "no watchdog MSR"},
    {"lwp", cx1(15), never, kAmd, "no lightweight profiling"},
    {"fma4", cx1(16), host, kAmd},
    {"tce", cx1(17), never, kAmd, "L1's translations are not tagged that way"},
    {"tbm", cx1(21), host, kAmd},
    {"topoext", cx1(22), always, kAmd},
    {"perfctr-core", cx1(23), never, kAmd, "no performance monitoring"},
    {"mwaitx", cx1(29), never, kAmd, "as monitor"},
    // Leaf 0x80000001, EDX (AMD repeats 17 bits of leaf 1 here: see CpuidPolicy)
    {"syscall", dx1(11), host},
    {"nx", dx1(20), host},
    {"mmxext", dx1(22), host, kAmd},
    {"fxsr-opt", dx1(25), host, kAmd},
    {"pdpe1gb", dx1(26), host},
    {"rdtscp", dx1(27), host},
    {"lm", dx1(29), host},
    {"3dnowext", dx1(30), host, kAmd},
    {"3dnow", dx1(31), host, kAmd},
    // Leaf 0x80000007, EDX
    {"invtsc",
     {0x80000007, 0, edx, 8},
     always,
     kBoth,
     "one time base for all processors, HLT included"},
    // Leaf 0x80000008, EBX
    {"clzero", bx8(0), host, kAmd},
    {"xsaveerptr", bx8(2), host, kAmd},
    {"rdpru", bx8(4), never, kAmd, "no APERF and MPERF"},
    {"wbnoinvd", bx8(9), host},
    {"ibpb", bx8(12), host, kAmd, {}, d7(26)},
    {"ibrs", bx8(14), host, kAmd, {}, d7(26)},
    {"amd-stibp", bx8(15), host, kAmd, {}, d7(27)},
    {"amd-ssbd", bx8(24), host, kAmd, {}, d7(31)},
    {"virt-ssbd", bx8(25), never, kAmd, "SPEC_CTRL serves"},
    {"amd-no-ssb", bx8(26), immune, kAmd},
    {"btc-no", bx8(29), immune, kAmd},
    // Leaf 0x80000021, EAX
    {"no-nested-data-bp", ax21(0), host, kAmd},
    {"lfence-always-serializing", ax21(2), immune, kAmd},
    {"null-sel-clr-base", ax21(6), host, kAmd},
    {"auto-ibrs", ax21(8), never, kAmd, "its EFER bit is not virtualized"},
    {"srso-no", ax21(29), immune, kAmd},
    {"tsa-sq-no", {0x80000021, 0, ecx, 1}, immune, kAmd},
    {"tsa-l1-no", {0x80000021, 0, ecx, 2}, immune, kAmd},
    // Leaf 0x8000000A, EDX
    {"npt", dxa(0), engine, kAmd},
    {"lbrv", dxa(1), engine, kAmd},
    {"svm-lock", dxa(2), engine, kAmd},
    {"nrip-save", dxa(3), engine, kAmd},
    {"tsc-scale", dxa(4), engine, kAmd},
    {"vmcb-clean", dxa(5), engine, kAmd},
    {"flushbyasid", dxa(6), engine, kAmd},
    {"decodeassists", dxa(7), engine, kAmd},
    {"pause-filter", dxa(10), engine, kAmd},
    {"pfthreshold", dxa(12), engine, kAmd},
    {"avic", dxa(13), engine, kAmd},
    {"v-vmsave-vmload", dxa(15), engine, kAmd},
    {"vgif", dxa(16), engine, kAmd},
    {"vnmi", dxa(25), engine, kAmd},
    {"svme-addr-chk", dxa(28), engine, kAmd},
    // VMX: told by the capability MSRs; nested/vmx/capabilities.cc has the same names
    {"secondary-controls", kNoBit, engine, kIntel},
    {"virtual-nmis", kNoBit, engine, kIntel},
    {"monitor-trap", kNoBit, engine, kIntel},
    {"preemption-timer", kNoBit, engine, kIntel},
    {"tpr-shadow", kNoBit, engine, kIntel},
    {"virtualize-apic", kNoBit, engine, kIntel},
    {"virtualize-x2apic", kNoBit, engine, kIntel},
    {"apic-register", kNoBit, engine, kIntel},
    {"virtual-interrupts", kNoBit, engine, kIntel},
    {"posted-interrupts", kNoBit, engine, kIntel},
    {"ept", kNoBit, engine, kIntel},
    {"ept-ad", kNoBit, engine, kIntel},
    {"ept-execute-only", kNoBit, engine, kIntel},
    {"ept-1g", kNoBit, engine, kIntel},
    {"ept-2m", kNoBit, engine, kIntel},
    {"ept-5-levels", kNoBit, engine, kIntel},
    {"mode-based-execute", kNoBit, engine, kIntel},
    {"pml", kNoBit, engine, kIntel},
    {"ept-ve", kNoBit, engine, kIntel},
    {"vpid", kNoBit, engine, kIntel},
    {"unrestricted-guest", kNoBit, engine, kIntel},
    {"descriptor-table-exiting", kNoBit, engine, kIntel},
    {"wbinvd-exiting", kNoBit, engine, kIntel},
    {"pause-loop-exiting", kNoBit, engine, kIntel},
    {"vmfunc", kNoBit, engine, kIntel},
    {"vmcs-shadowing", kNoBit, engine, kIntel},
    {"tsc-scaling", kNoBit, engine, kIntel},
};
inline constexpr usize kCount = std::size(kRows);

// Other spellings that users and test configurations know.
struct Alias {
  std::string_view alias;
  std::string_view name;
};
inline constexpr Alias kAliases[] = {
    {"pni", "sse3"},
    {"sse4_1", "sse4.1"},
    {"sse4_2", "sse4.2"},
    {"clfsh", "clflush"},
    {"htt", "ht"},
    {"tsc_adjust", "tsc-adjust"},
    {"tsc_deadline", "tsc-deadline"},
    {"lzcnt", "abm"},
    {"lahf_lm", "lahf-lm"},
    {"1gb-pages", "pdpe1gb"},
    {"1g-pages", "pdpe1gb"},
    {"gbpages", "pdpe1gb"},
    {"ffxsr", "fxsr-opt"},
    {"invariant-tsc", "invtsc"},
    {"l1d-flush", "flush-l1d"},
    {"nrips", "nrip-save"},
    {"amd-ibpb", "ibpb"},
    {"amd-ibrs", "ibrs"},
    {"vmx-secondary-ctls", "secondary-controls"},
    {"vmx-vnmi", "virtual-nmis"},
    {"vmx-mtf", "monitor-trap"},
    {"vmx-preemption-timer", "preemption-timer"},
    {"vmx-flexpriority", "tpr-shadow"},
    {"vmx-apicv-xapic", "virtualize-apic"},
    {"vmx-apicv-x2apic", "virtualize-x2apic"},
    {"vmx-apicv-register", "apic-register"},
    {"vmx-apicv-vid", "virtual-interrupts"},
    {"vmx-posted-intr", "posted-interrupts"},
    {"vmx-ept", "ept"},
    {"vmx-eptad", "ept-ad"},
    {"vmx-ept-execonly", "ept-execute-only"},
    {"vmx-ept-1gb", "ept-1g"},
    {"vmx-ept-2mb", "ept-2m"},
    {"vmx-page-walk-5", "ept-5-levels"},
    {"vmx-mbec", "mode-based-execute"},
    {"vmx-pml", "pml"},
    {"vmx-ept-violation-ve", "ept-ve"},
    {"vmx-vpid", "vpid"},
    {"vmx-unrestricted-guest", "unrestricted-guest"},
    {"vmx-desc-exit", "descriptor-table-exiting"},
    {"vmx-wbinvd-exit", "wbinvd-exiting"},
    {"vmx-ple", "pause-loop-exiting"},
    {"vmx-vmfunc", "vmfunc"},
    {"vmx-shadow-vmcs", "vmcs-shadowing"},
    {"vmx-tsc-scaling", "tsc-scaling"},
    {"vmx-eptp-switching", "vmfunc"},
    {"ept-1gb", "ept-1g"},
    {"ept-2mb", "ept-2m"},
    {"flexpriority", "tpr-shadow"},
    {"apicv", "virtual-interrupts"},
    {"mtf", "monitor-trap"},
    {"mbec", "mode-based-execute"},
    {"shadow-vmcs", "vmcs-shadowing"},
};

// What a feature cannot be without: hiding the second hides the first.
struct Dependency {
  std::string_view feature;
  std::string_view needs;
};
inline constexpr Dependency kDependencies[] = {
    {"avx", "xsave"},
    {"xsaveopt", "xsave"},
    {"xsavec", "xsave"},
    {"xgetbv1", "xsave"},
    {"xsaves", "xsavec"},
    {"pku", "xsave"},
    {"osxsave", "xsave"},
    {"ospke", "pku"},
    {"fma", "avx"},
    {"f16c", "avx"},
    {"avx2", "avx"},
    {"xop", "avx"},
    {"fma4", "avx"},
    {"vaes", "avx"},
    {"vpclmulqdq", "avx"},
    {"avx-vnni", "avx2"},
    {"avx512f", "avx2"},
    {"avx512dq", "avx512f"},
    {"avx512ifma", "avx512f"},
    {"avx512cd", "avx512f"},
    {"avx512bw", "avx512f"},
    {"avx512vl", "avx512f"},
    {"avx512vbmi", "avx512f"},
    {"avx512vbmi2", "avx512f"},
    {"avx512vnni", "avx512f"},
    {"avx512bitalg", "avx512f"},
    {"avx512-vpopcntdq", "avx512f"},
    {"avx512-vp2intersect", "avx512f"},
    {"avx512-bf16", "avx512f"},
    {"avx512-fp16", "avx512bw"},
    {"sse2", "sse"},
    {"sse3", "sse2"},
    {"ssse3", "sse3"},
    {"sse4.1", "ssse3"},
    {"sse4.2", "sse4.1"},
    {"pclmulqdq", "sse2"},
    {"aes", "sse2"},
    {"sha-ni", "sse2"},
    {"gfni", "sse2"},
    {"sse4a", "sse3"},
    {"3dnowext", "3dnow"},
    {"mmxext", "mmx"},
    {"x2apic", "apic"},
    {"tsc-deadline", "apic"},
    {"arat", "apic"},
    {"tsc-adjust", "tsc"},
    {"invtsc", "tsc"},
    {"pdpe1gb", "lm"},
    {"la57", "lm"},
    {"pcid", "lm"},
    {"npt", "svm"},
    {"lbrv", "svm"},
    {"svm-lock", "svm"},
    {"nrip-save", "svm"},
    {"tsc-scale", "svm"},
    {"vmcb-clean", "svm"},
    {"flushbyasid", "svm"},
    {"decodeassists", "svm"},
    {"pause-filter", "svm"},
    {"pfthreshold", "pause-filter"},
    {"avic", "npt"},
    {"v-vmsave-vmload", "svm"},
    {"vgif", "svm"},
    {"vnmi", "svm"},
    {"svme-addr-chk", "svm"},
    {"secondary-controls", "vmx"},
    {"virtual-nmis", "vmx"},
    {"monitor-trap", "vmx"},
    {"preemption-timer", "vmx"},
    {"tpr-shadow", "vmx"},
    {"virtualize-apic", "secondary-controls"},
    {"virtualize-x2apic", "tpr-shadow"},
    {"apic-register", "tpr-shadow"},
    {"virtual-interrupts", "tpr-shadow"},
    {"posted-interrupts", "virtual-interrupts"},
    {"ept", "secondary-controls"},
    {"ept-ad", "ept"},
    {"ept-execute-only", "ept"},
    {"ept-2m", "ept"},
    {"ept-1g", "ept-2m"},
    {"ept-5-levels", "ept"},
    {"mode-based-execute", "ept"},
    {"pml", "ept-ad"},
    {"ept-ve", "ept"},
    {"vpid", "secondary-controls"},
    {"unrestricted-guest", "ept"},
    {"descriptor-table-exiting", "secondary-controls"},
    {"wbinvd-exiting", "secondary-controls"},
    {"pause-loop-exiting", "secondary-controls"},
    {"vmfunc", "ept"},
    {"vmcs-shadowing", "secondary-controls"},
    {"tsc-scaling", "secondary-controls"},
};

}  // namespace feature_table

// A row of the table.
enum class Feature : u8 {};
inline constexpr usize kFeatures = feature_table::kCount;
inline constexpr Feature kNoFeature{0xff};
static_assert(kFeatures < 0xff);

constexpr const FeatureRow& row_of(Feature f) { return feature_table::kRows[static_cast<u8>(f)]; }

// By name or alias; kNoFeature where there is none.
constexpr Feature find_feature(std::string_view name) {
  for (const auto& a : feature_table::kAliases) {
    if (a.alias == name) {
      name = a.name;
      break;
    }
  }
  for (usize i = 0; i < kFeatures; ++i) {
    if (feature_table::kRows[i].name == name) {
      return static_cast<Feature>(i);
    }
  }
  return kNoFeature;
}

// For code: does not compile for a name that is not in the table.
void no_such_feature();
consteval Feature feature(std::string_view name) {
  const Feature f = find_feature(name);
  if (f == kNoFeature) {
    no_such_feature();  // not constexpr: ends the compilation
  }
  return f;
}

namespace feature_table {

struct DependencyPair {
  Feature feature;
  Feature needs;
};
inline constexpr auto kDependencyPairs = [] {
  std::array<DependencyPair, std::size(kDependencies)> pairs{};
  for (usize i = 0; i < pairs.size(); ++i) {
    pairs[i] = {find_feature(kDependencies[i].feature), find_feature(kDependencies[i].needs)};
  }
  return pairs;
}();

}  // namespace feature_table

class FeatureSet {
 public:
  constexpr bool has(Feature f) const {
    return ((words_[static_cast<u8>(f) / 64] >> (static_cast<u8>(f) % 64)) & 1) != 0;
  }
  constexpr FeatureSet& add(Feature f) {
    words_[static_cast<u8>(f) / 64] |= bit(static_cast<u8>(f) % 64);
    return *this;
  }
  constexpr FeatureSet& remove(Feature f) {
    words_[static_cast<u8>(f) / 64] &= ~bit(static_cast<u8>(f) % 64);
    return *this;
  }
  // Takes away what lacks something it depends on.
  constexpr FeatureSet& drop_orphans() {
    for (bool again = true; again;) {
      again = false;
      for (const auto& d : feature_table::kDependencyPairs) {
        if (has(d.feature) && !has(d.needs)) {
          remove(d.feature);
          again = true;
        }
      }
    }
    return *this;
  }
  constexpr bool operator==(const FeatureSet&) const = default;

 private:
  std::array<u64, 4> words_{};
};

// Adds the features of a list like "ept,vpid,la57" to `set`. Returns the first name that is not in
// the table, or an empty view where all are.
constexpr std::string_view parse_feature_list(std::string_view list, FeatureSet& set) {
  while (!list.empty()) {
    const usize comma = list.find(',');
    const std::string_view name = list.substr(0, comma);
    list.remove_prefix(comma == list.npos ? list.size() : comma + 1);
    if (name.empty()) {
      continue;
    }
    const Feature f = find_feature(name);
    if (f == kNoFeature) {
      return name;
    }
    set.add(f);
  }
  return {};
}

namespace feature_table {

consteval bool consistent() {
  for (usize i = 0; i < kCount; ++i) {
    for (usize j = i + 1; j < kCount; ++j) {
      const CpuidBit& a = kRows[i].bit;
      const CpuidBit& b = kRows[j].bit;
      if (kRows[i].name == kRows[j].name ||
          (a.leaf != kNoLeaf && a.leaf == b.leaf && a.subleaf == b.subleaf && a.reg == b.reg &&
           a.position == b.position)) {
        return false;
      }
    }
  }
  for (const auto& a : kAliases) {
    if (find_feature(a.name) == kNoFeature) {
      return false;
    }
  }
  for (const auto& d : kDependencies) {
    if (find_feature(d.feature) == kNoFeature || find_feature(d.needs) == kNoFeature) {
      return false;
    }
  }
  return true;
}
static_assert(consistent());

}  // namespace feature_table

}  // namespace aerie::vmm::policy
