# attnd_test(<name> SOURCES <files> [LIBRARIES <targets>] [LABELS <labels>] [TIMEOUT <seconds>] [PREFIX <of the test names>] [ONLY_ON_GPU])
# One GoogleTest executable; each TEST is one CTest entry. Labels: pure, component, kernel, e2e, concurrency, parse, slow, gpu, alone.
# Tests labelled `alone` measure wall time and run by themselves. Sanitizer builds are slower, so their timeouts are five times longer.
#
# attnd_tests_<label> builds every test executable that carries the label: a tree that runs only some tests builds only those.
# attnd_gpu_test(<name>)
# The tests of attnd_test(<name>) once more, with servers on the first GPU: one CTest entry, gpu.<name>, skipped where there is none.
# The program is also installed, for scripts/gpu_test.sh on another machine. ONLY_ON_GPU: attnd_test makes this entry and no other.
include(GoogleTest)

foreach(label pure component kernel e2e concurrency parse slow gpu alone)
  add_custom_target(attnd_tests_${label})
endforeach()

# Writes the labels where CTest reads them: gtest_discover_tests() keeps only the first element of a list-valued property.
function(attnd_label_tests name labels)
  set(file ${CMAKE_CURRENT_BINARY_DIR}/${name}_labels.cmake)
  file(WRITE ${file} "foreach(test IN LISTS ${name}_TESTS)\n  set_tests_properties(\"\${test}\" PROPERTIES LABELS \"${labels}\")\nendforeach()\n")
  set_property(DIRECTORY APPEND PROPERTY TEST_INCLUDE_FILES ${file})
  foreach(label IN LISTS labels)
    if(NOT TARGET attnd_tests_${label})
      message(FATAL_ERROR "${name} has the unknown label '${label}'")
    endif()
    add_dependencies(attnd_tests_${label} ${name})
  endforeach()
endfunction()

function(attnd_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "ONLY_ON_GPU" "TIMEOUT;PREFIX" "SOURCES;LIBRARIES;LABELS")
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE attnd_options ${arg_LIBRARIES} GTest::gtest GTest::gmock GTest::gtest_main)
  # The tests' own code needs no more optimisation, and compiles in two thirds of the time.
  target_compile_options(${name} PRIVATE $<$<CONFIG:Release>:-O1>)
  if(NOT arg_TIMEOUT)
    set(arg_TIMEOUT 120)
  endif()
  if(ATTND_SANITIZER)
    target_sources(${name} PRIVATE ${PROJECT_SOURCE_DIR}/tests/support/sanitizer_defaults.cc)
    math(EXPR arg_TIMEOUT "5 * ${arg_TIMEOUT}")
  endif()
  if(arg_ONLY_ON_GPU)
    attnd_gpu_test(${name})
    return()
  endif()
  set(properties TIMEOUT ${arg_TIMEOUT})
  if("alone" IN_LIST arg_LABELS)
    list(APPEND properties RUN_SERIAL ON)
  endif()
  gtest_discover_tests(${name} TEST_PREFIX "${arg_PREFIX}" DISCOVERY_MODE PRE_TEST DISCOVERY_TIMEOUT 60 PROPERTIES ${properties})
  attnd_label_tests(${name} "${arg_LABELS}")
endfunction()

function(attnd_gpu_test name)
  add_test(NAME gpu.${name} COMMAND ${name})
  set_tests_properties(gpu.${name} PROPERTIES
    ENVIRONMENT ATTND_TEST_DEVICE=cuda:0 LABELS gpu RESOURCE_LOCK gpu TIMEOUT 900 SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\] all tests")
  add_dependencies(attnd_tests_gpu ${name})
  attnd_install_program(${name} share/attnd/tests gpu_tests)
endfunction()
