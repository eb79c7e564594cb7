# Zydis, the decoder behind cpu/decode, built from Debian's source package: Debian ships no static
# library of it, and the hypervisor needs it freestanding.
#
# The source is fetched once into <source>/build/zydis, which both presets share, by
# `apt-get source --download-only` with a deb-src list of its own in a temporary directory (a stock
# Debian has deb lists only; nothing of the system's apt configuration is changed). Version and hash
# are pinned.
#
#   aerie_zydis   the library, with its headers' include path
#
# A machine without network: put the package's zydis_4.0.0.orig.tar.gz into <source>/build/zydis, or
# name it with -DAERIE_ZYDIS_TARBALL=FILE.

set(AERIE_ZYDIS_VERSION 4.0.0-1)
set(AERIE_ZYDIS_SHA256 e990107f80c62afc1deb51de230023a1098db801b8ea6bf483e296d45459e234)
set(AERIE_ZYDIS_TARBALL "" CACHE FILEPATH "zydis_4.0.0.orig.tar.gz, where apt cannot fetch it")
set(AERIE_DEBIAN_MIRROR "" CACHE STRING "Debian mirror for Zydis' source package; empty: the one apt uses")

# The mirror that apt gets Debian 12's packages from.
function(aerie_find_mirror result)
  execute_process(COMMAND apt-get indextargets --format "$(REPO_URI)" "Created-By: Packages"
                          "Codename: bookworm" "Component: main"
                  OUTPUT_VARIABLE uris ERROR_QUIET OUTPUT_STRIP_TRAILING_WHITESPACE)
  string(REGEX REPLACE "\n.*" "" first "${uris}")
  set(${result} "${first}" PARENT_SCOPE)
endfunction()

function(aerie_fetch_zydis tarball)
  if(NOT AERIE_DEBIAN_MIRROR)
    aerie_find_mirror(AERIE_DEBIAN_MIRROR)
  endif()
  cmake_path(GET tarball PARENT_PATH directory)
  set(apt ${directory}/apt)
  file(REMOVE_RECURSE ${apt})
  file(MAKE_DIRECTORY ${apt}/lists/partial ${apt}/cache/archives/partial ${apt}/download)
  file(WRITE ${apt}/sources.list "deb-src ${AERIE_DEBIAN_MIRROR} bookworm main\n")
  # Sandbox::User: as root, apt would download as _apt, who may not enter the source tree.
  set(options -o Dir::Etc::sourcelist=${apt}/sources.list -o Dir::Etc::sourceparts=-
      -o Dir::State::lists=${apt}/lists -o Dir::Cache=${apt}/cache -o APT::Sandbox::User=
      -o Acquire::Languages=none -o Acquire::Retries=3 -o Acquire::http::Timeout=60)
  message(STATUS "Fetching the source of zydis ${AERIE_ZYDIS_VERSION} from ${AERIE_DEBIAN_MIRROR}")
  execute_process(COMMAND apt-get ${options} -q update
                  RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  if(result EQUAL 0)
    execute_process(COMMAND apt-get ${options} -q source --download-only zydis=${AERIE_ZYDIS_VERSION}
                    WORKING_DIRECTORY ${apt}/download
                    RESULT_VARIABLE result OUTPUT_VARIABLE output ERROR_VARIABLE output)
  endif()
  set(fetched ${apt}/download/zydis_4.0.0.orig.tar.gz)
  if(NOT result EQUAL 0 OR NOT EXISTS ${fetched})
    message(FATAL_ERROR
      "The source package zydis ${AERIE_ZYDIS_VERSION} (Debian 12), which Aerie's decoder is built from, "
      "could not be fetched with apt-get from ${AERIE_DEBIAN_MIRROR}:\n${output}\n"
      "Get zydis_4.0.0.orig.tar.gz by other means and put it into ${directory}, or name it with "
      "-DAERIE_ZYDIS_TARBALL=FILE; another mirror: -DAERIE_DEBIAN_MIRROR=URL.")
  endif()
  file(RENAME ${fetched} ${tarball})
  file(REMOVE_RECURSE ${apt})
endfunction()

function(aerie_unpack_zydis directory source)
  file(MAKE_DIRECTORY ${directory})
  # Two presets may be configured at the same time.
  file(LOCK ${directory} DIRECTORY GUARD FUNCTION TIMEOUT 900)
  if(EXISTS ${source}/src/Decoder.c AND EXISTS ${directory}/unpacked)
    return()
  endif()
  set(tarball ${directory}/zydis_4.0.0.orig.tar.gz)
  if(AERIE_ZYDIS_TARBALL)
    set(tarball ${AERIE_ZYDIS_TARBALL})
  elseif(NOT EXISTS ${tarball})
    aerie_fetch_zydis(${tarball})
  endif()
  if(NOT EXISTS ${tarball})
    message(FATAL_ERROR "AERIE_ZYDIS_TARBALL names ${tarball}, which does not exist.")
  endif()
  file(SHA256 ${tarball} found)
  if(NOT found STREQUAL AERIE_ZYDIS_SHA256)
    message(FATAL_ERROR "${tarball} is not the zydis source that Aerie is built with: "
                        "sha256 ${found}, expected ${AERIE_ZYDIS_SHA256}.")
  endif()
  file(REMOVE_RECURSE ${source} ${directory}/unpack)
  file(ARCHIVE_EXTRACT INPUT ${tarball} DESTINATION ${directory}/unpack PATTERNS "*/src/*" "*/include/*")
  file(GLOB top LIST_DIRECTORIES true ${directory}/unpack/*)
  file(RENAME ${top} ${source})
  file(REMOVE_RECURSE ${directory}/unpack)
  file(TOUCH ${directory}/unpacked)
endfunction()

set(zydis_directory ${PROJECT_SOURCE_DIR}/build/zydis)
set(zydis_source ${zydis_directory}/zydis-4.0.0)
aerie_unpack_zydis(${zydis_directory} ${zydis_source})

find_path(AERIE_ZYCORE_INCLUDE Zycore/Types.h)
if(NOT AERIE_ZYCORE_INCLUDE)
  message(FATAL_ERROR "Zycore's headers are missing (Debian package libzycore-dev).")
endif()

# What the decoder needs and no more: no formatter, no encoder, no libc.
add_library(aerie_zydis STATIC
  ${zydis_source}/src/Decoder.c ${zydis_source}/src/DecoderData.c
  ${zydis_source}/src/SharedData.c ${zydis_source}/src/Register.c)
target_include_directories(aerie_zydis SYSTEM PUBLIC ${zydis_source}/include ${AERIE_ZYCORE_INCLUDE})
target_include_directories(aerie_zydis PRIVATE ${zydis_source}/src)
target_compile_definitions(aerie_zydis PUBLIC
  ZYAN_NO_LIBC ZYCORE_STATIC_BUILD ZYDIS_STATIC_BUILD ZYDIS_DISABLE_FORMATTER ZYDIS_DISABLE_ENCODER)
target_compile_definitions(aerie_zydis PRIVATE NDEBUG)  # its assertions want libc
target_compile_options(aerie_zydis PRIVATE -include ${PROJECT_SOURCE_DIR}/cpu/decode/zycore_libc.h)
if(AERIE_HOSTED)
  target_compile_options(aerie_zydis PRIVATE -w ${AERIE_HOSTED_FLAGS})
else()
  set(zydis_flags ${AERIE_KERNEL_FLAGS})
  list(REMOVE_ITEM zydis_flags -fno-rtti -fno-threadsafe-statics)  # of C++ only
  target_compile_options(aerie_zydis PRIVATE -w ${zydis_flags})
endif()
