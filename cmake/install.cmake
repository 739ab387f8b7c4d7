# Relocatable installation: `cmake --install build/<preset> --prefix DIR --component attnd` makes one folder that runs from
# anywhere on a system with glibc 2.36 or newer.
#
#   bin/          attnd attnctl attnload attnbench
#   lib/          every shared library that they need, but glibc's
#   share/attnd/  licence, change log, configuration
#   share/attnd/tests/   component gpu_tests: test programs for a machine with a GPU
#
# Component naive adds to lib/ what ALGORITHM_NAIVE needs on the CPU: libattnd_naive.so, OpenBLAS, oneDNN (79 MB).
#
# The programs name lib/ by $ORIGIN as DT_RPATH, which, unlike DT_RUNPATH, also holds for the libraries that those libraries need:
# none of them has to be patched.
include(GNUInstallDirs)

# attnd_install_program(<target> <destination> <component>)
function(attnd_install_program target destination component)
  file(RELATIVE_PATH to_lib /${destination} /lib)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN/${to_lib}")
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS ${target} RUNTIME DESTINATION ${destination} COMPONENT ${component})
  set_property(GLOBAL APPEND PROPERTY ATTND_INSTALLED_${component} "$<TARGET_FILE:${target}>")
endfunction()

# attnd_install_module(<target> <component>): a library that programs load by name at run time.
function(attnd_install_module target component)
  set_target_properties(${target} PROPERTIES INSTALL_RPATH "$ORIGIN")
  target_link_options(${target} PRIVATE -Wl,--disable-new-dtags)
  install(TARGETS ${target} LIBRARY DESTINATION lib COMPONENT ${component})
  set_property(GLOBAL APPEND PROPERTY ATTND_INSTALLED_MODULES_${component} "$<TARGET_FILE:${target}>")
endfunction()

# Copies what the component's programs and modules need. Run after all of them are declared.
function(attnd_install_libraries component)
  get_property(programs GLOBAL PROPERTY ATTND_INSTALLED_${component})
  get_property(modules GLOBAL PROPERTY ATTND_INSTALLED_MODULES_${component})
  if(NOT programs AND NOT modules)
    return()
  endif()
  set(script ${CMAKE_BINARY_DIR}/install_libraries_${component}.cmake)
  file(GENERATE OUTPUT ${script} CONTENT "set(programs \"${programs}\")\nset(modules \"${modules}\")\ninclude(\"${PROJECT_SOURCE_DIR}/cmake/copy_libraries.cmake\")\n")
  install(SCRIPT ${script} COMPONENT ${component})
endfunction()

# Called at the end, when every program has been declared.
function(attnd_install_all)
  foreach(program attnd attnctl attnload attnbench)
    attnd_install_program(${program} bin attnd)
  endforeach()
  install(FILES LICENSE CHANGELOG.md README.md docs/configuration.md docs/metrics.md DESTINATION share/attnd COMPONENT attnd)
  install(PROGRAMS scripts/gpu_serve_bench.sh DESTINATION share/attnd COMPONENT attnd)
  install(FILES loadtest/scenarios/gpu.yaml loadtest/scenarios/gpu_grid.yaml DESTINATION share/attnd/scenarios COMPONENT attnd)
  install(PROGRAMS scripts/gpu_test.sh scripts/gpu_report.sh DESTINATION share/attnd COMPONENT gpu_tests)
  install(FILES docs/t4.md docs/kernels/sm75.md DESTINATION share/attnd COMPONENT gpu_tests)
  attnd_install_module(attnd_naive naive)
  attnd_install_libraries(attnd)
  attnd_install_libraries(naive)
  attnd_install_libraries(gpu_tests)
endfunction()
