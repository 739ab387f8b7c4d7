# CUDA rows: one object library per architecture folder. Included by kernels/CMakeLists.txt where a CUDA
# compiler was found (cmake/cuda.cmake). The driver chooses code per .cu file and no file serves two
# folders, so CUDA_SEPARABLE_COMPILATION stays off.

function(attnd_arch_kernels name architectures)
  add_library(${name} OBJECT ${ARGN})
  set_target_properties(${name} PROPERTIES CUDA_ARCHITECTURES "${architectures}" CUDA_STANDARD 20)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR})
  target_compile_options(${name} PRIVATE --compress-mode=size --Werror=all-warnings -objtemp)
  if(ATTND_CUDA_LINEINFO)
    target_compile_options(${name} PRIVATE -lineinfo)
  endif()
  # The same source gives the same object, wherever and whenever it is compiled (tests/repository/nvcc_reproducible_test.py). By itself
  # nvcc puts into it a random number and its process id (names of what an unnamed namespace holds, temporary files) and absolute paths.
  foreach(source IN LISTS ARGN)
    set(id kernels/${source})
    set_property(SOURCE ${source} APPEND PROPERTY COMPILE_OPTIONS
      -frandom-seed=${id} -Xcudafe=--orig_src_path_name=${id} -Xfatbin=--ident=${id})
  endforeach()
endfunction()

set(prefill_sm80 "")
set(decode_sm80 "")
set(prefill_sm75 "")
set(decode_sm75 "")
set(simt "")
set(decode_dot "")
foreach(head_dim 64 128 256)
  foreach(type fp16 bf16)
    list(APPEND prefill_sm80 sm80/prefill_${type}_d${head_dim}.cu sm80/prefill_${type}_d${head_dim}_all.cu)
    list(APPEND decode_sm80 sm80/decode_mma_${type}_d${head_dim}.cu)
  endforeach()
  foreach(type fp32 fp16 bf16)
    list(APPEND simt any/prefill_simt_${type}_d${head_dim}.cu)
  endforeach()
  foreach(type fp32 bf16)
    list(APPEND decode_dot any/decode_dot_${type}_d${head_dim}.cu)
  endforeach()
  list(APPEND prefill_sm75 sm75/prefill_fp16_d${head_dim}.cu sm75/prefill_fp16_d${head_dim}_all.cu)
  list(APPEND decode_sm75 sm75/decode_mma_fp16_d${head_dim}.cu)
endforeach()
# Machine code and PTX, so that the rows also run on newer cards.
attnd_arch_kernels(kernels_sm75 75 sm75/ceilings.cu ${prefill_sm75} ${decode_sm75})
# Registers, shared memory and spills of the T4 rows are held against a budget (docs/kernels/sm75.md).
target_compile_options(kernels_sm75 PRIVATE -Xptxas=-v)
set_target_properties(kernels_sm75 PROPERTIES
  RULE_LAUNCH_COMPILE "${PROJECT_SOURCE_DIR}/cmake/keep_ptxas_report.sh <OBJECT>")
attnd_arch_kernels(kernels_sm80 80 sm80/ceilings.cu ${prefill_sm80} ${decode_sm80})
attnd_arch_kernels(kernels_any "75-real;80-real;90"
  any/append.cu any/ceilings.cu any/combine_splits.cu any/convert.cu any/merge_states.cu
  naive/gather.cu naive/softmax_fp32.cu naive/softmax_fp16.cu naive/softmax_bf16.cu ${simt} ${decode_dot})

# A batch may take one or another instantiation of a decode kernel; the compiler must not round a row's sums
# differently in them. What is to be fused is written fmaf.
foreach(target kernels_sm75 kernels_sm80 kernels_any)
  get_target_property(sources ${target} SOURCES)
  list(FILTER sources INCLUDE REGEX "/decode_|/combine_splits")
  set_property(SOURCE ${sources} APPEND PROPERTY COMPILE_OPTIONS --fmad=false)
endforeach()

target_sources(attnd_kernels PRIVATE
  cuda/ceilings.cc
  cuda/cuda_copies.cc
  cuda/cuda_kernel_table.cc
  cuda/cuda_launch.cc
  cuda/cuda_plan.cc
  cuda/cuda_upkeep.cc
  cuda/decode_plan.cc
  cuda/page_pool.cc
  cuda/prefill_plan.cc
  cuda/prefill_traffic.cc
  cuda/prepare_kernel.cc
  naive/cublas_library.cc
  naive/naive.cc
  naive/naive_plan.cc
  $<TARGET_OBJECTS:kernels_sm75>
  $<TARGET_OBJECTS:kernels_sm80>
  $<TARGET_OBJECTS:kernels_any>)
# cuBLAS gives its header only; the library is looked for when a naive row is prepared.
target_link_libraries(attnd_kernels PRIVATE CUDA::cudart_static ${CMAKE_DL_LIBS})

# The rows on PyTorch tensors, for kernels/bench/peers.
add_library(attnd_cuda_bench SHARED bench/cuda_bench_library.cc)
target_link_libraries(attnd_cuda_bench PRIVATE attnd_options attnd_kernels CUDA::cudart_static)
