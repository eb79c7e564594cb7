# How the core (base, cpu, mmu, nested, vmm) is compiled, in the two ways DESIGN asks for.
#
#   aerie_core_library(NAME SOURCES...)
#     release: an object library aerie_NAME with the bare machine's flags
#     hosted:  a static library aerie_NAME with ASan and UBSan

set(AERIE_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Werror
    -Wno-pedantic)

# No FPU, SSE or AVX (guest vector state never leaves the registers), no red zone (L0 takes NMIs on
# the current stack), linked in the topmost 2 GiB of the address space. -ffreestanding alone would make
# a call of every memcpy, also of eight bytes; -fbuiltin after it lets the compiler know what memcpy is.
set(AERIE_KERNEL_FLAGS
    -ffreestanding -fbuiltin -fno-exceptions -fno-rtti -fno-stack-protector -fno-threadsafe-statics
    -fno-pic -fno-pie -fno-asynchronous-unwind-tables -fno-strict-aliasing
    -mcmodel=kernel -mgeneral-regs-only -mno-red-zone -O2 -g
    -ffunction-sections -fdata-sections)
set(AERIE_HOSTED_FLAGS -O1 -g -fno-omit-frame-pointer -fsanitize=address,undefined
    -fno-sanitize-recover=all -fno-strict-aliasing)

function(aerie_core_options target)
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR})
  target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:${AERIE_WARNINGS}>)
  if(AERIE_HOSTED)
    target_compile_definitions(${target} PUBLIC AERIE_HOSTED=1)
    target_compile_options(${target} PUBLIC ${AERIE_HOSTED_FLAGS})
    target_link_options(${target} PUBLIC -fsanitize=address,undefined)
  else()
    target_compile_definitions(${target} PUBLIC AERIE_HOSTED=0)
    target_compile_options(${target} PRIVATE ${AERIE_KERNEL_FLAGS})
  endif()
endfunction()

function(aerie_core_library name)
  if(AERIE_HOSTED)
    add_library(aerie_${name} STATIC ${ARGN})
  else()
    add_library(aerie_${name} OBJECT ${ARGN})
  endif()
  aerie_core_options(aerie_${name})
endfunction()
