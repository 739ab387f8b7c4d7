# Installs the shared libraries that `programs` and the libraries in `modules` need, into lib/ below the prefix. glibc stays the
# system's: its parts must match the system's loader. The GPU driver's libraries too: they belong to the kernel module.
file(GET_RUNTIME_DEPENDENCIES
  EXECUTABLES ${programs}
  MODULES ${modules}
  RESOLVED_DEPENDENCIES_VAR libraries
  UNRESOLVED_DEPENDENCIES_VAR missing
  PRE_EXCLUDE_REGEXES "^lib(c|m|dl|rt|pthread|resolv|util|anl|mvec|nsl|nss_.*)\\.so" "^ld-linux" "^lib(cuda|nvidia-ml)\\.so")
if(missing)
  message(FATAL_ERROR "not found: ${missing}")
endif()
foreach(library IN LISTS libraries)
  # Under the name that programs ask for, as one file.
  get_filename_component(name ${library} NAME)
  file(REAL_PATH ${library} real)
  file(INSTALL DESTINATION "${CMAKE_INSTALL_PREFIX}/lib" TYPE FILE RENAME ${name} FILES ${real})
endforeach()
