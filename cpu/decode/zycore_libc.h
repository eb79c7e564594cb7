/* The libc functions that Zydis' decoder uses (ZYAN_CUSTOM_LIBC), in place of Zycore's fallbacks,
 * which clear and copy a byte at a time: half the cost of a decode. Included before everything else
 * when Zydis is compiled (cmake/zydis.cmake); C.
 */
#pragma once

#define ZYAN_CUSTOM_LIBC
#define ZYAN_MEMSET __builtin_memset
#define ZYAN_MEMCPY __builtin_memcpy
