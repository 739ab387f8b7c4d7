# One interface target carries warnings and sanitizers; every target of the project links it.
add_library(attnd_options INTERFACE)
target_include_directories(attnd_options INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_options(attnd_options INTERFACE -Wall -Wextra -Wshadow -Wnon-virtual-dtor -Wno-missing-field-initializers)
if(ATTND_WERROR)
  target_compile_options(attnd_options INTERFACE -Werror)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # False ones of GCC 12 at -O3: the unused inline storage of an empty absl::InlinedVector that is moved,
  # and the insertion of one std::vector into another.
  target_compile_options(attnd_options INTERFACE -Wno-maybe-uninitialized -Wno-stringop-overflow)
endif()
if(CMAKE_CXX_COMPILER_ID MATCHES "Clang")
  target_compile_options(attnd_options INTERFACE -Wthread-safety)
endif()
if(ATTND_SANITIZER STREQUAL "address+undefined")
  target_compile_options(attnd_options INTERFACE -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer)
  # The sanitizer's dlopen calls the loader in the program's place: only DT_RPATH still holds for libraries loaded by name.
  target_link_options(attnd_options INTERFACE -fsanitize=address,undefined -Wl,--disable-new-dtags)
elseif(ATTND_SANITIZER STREQUAL "thread")
  target_compile_options(attnd_options INTERFACE -fsanitize=thread -fno-omit-frame-pointer)
  target_link_options(attnd_options INTERFACE -fsanitize=thread -Wl,--disable-new-dtags)
elseif(NOT ATTND_SANITIZER STREQUAL "")
  message(FATAL_ERROR "ATTND_SANITIZER is '${ATTND_SANITIZER}'; it must be empty, address+undefined or thread")
endif()

# Paths are hashed relative to the source tree, so that another clone of the same commit hits the cache.
find_program(CCACHE_PROGRAM ccache)
if(CCACHE_PROGRAM)
  set(launcher ${CMAKE_COMMAND} -E env CCACHE_BASEDIR=${PROJECT_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE_PROGRAM})
  set(CMAKE_C_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${launcher})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${launcher})
endif()
