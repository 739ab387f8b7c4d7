#include "kernels/cpu/naive_products.h"

#include <cblas.h>

#include <oneapi/dnnl/dnnl.hpp>
#include <string_view>

#include "kernels/attention_kernels.h"

// oneDNN's threads are OpenMP's. Declared here because the compilers' own omp.h need not be the one
// of the runtime that oneDNN links.
extern "C" {
void omp_set_num_threads(int num_threads);  // NOLINT(readability-identifier-naming)
int omp_get_max_threads(void);              // NOLINT(readability-identifier-naming)
}

namespace attnd::kernels {
namespace {

// OpenMP's thread count is a setting of the calling thread: one while we are inside oneDNN, for the
// executor's threads are the parallelism; put back after.
class SingleOpenMpThread {
 public:
  SingleOpenMpThread() : before_(omp_get_max_threads()) { omp_set_num_threads(1); }
  ~SingleOpenMpThread() { omp_set_num_threads(before_); }
  SingleOpenMpThread(const SingleOpenMpThread&) = delete;
  SingleOpenMpThread& operator=(const SingleOpenMpThread&) = delete;

 private:
  int before_;
};

// OpenBLAS runs on SSE what it does not know: a processor newer than the library. Naive would be
// several times slower than it need be, so that oneDNN multiplies FP32 there too.
bool OpenBlasKnowsProcessor() {
  if (!CpuTargetSupported(CpuTarget::kAvx2)) return true;
  const std::string_view core = openblas_get_corename();
  return core == "Haswell" || core == "Zen" || core == "Excavator" || core == "SkylakeX" ||
         core == "Cooperlake" || core == "SapphireRapids";
}

bool RunOneDnn(const GemmProblem& problem) {
  using dnnl::memory;
  const SingleOpenMpThread single;
  try {
    static const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    thread_local dnnl::stream stream(engine);
    const auto type = problem.bf16 ? memory::data_type::bf16 : memory::data_type::f32;
    const memory::desc a({problem.m, problem.k}, type, {problem.lda, 1});
    const memory::desc b(
        {problem.k, problem.n}, type,
        problem.transpose_b ? memory::dims{1, problem.ldb} : memory::dims{problem.ldb, 1});
    const memory::desc c({problem.m, problem.n}, memory::data_type::f32, {problem.ldc, 1});
#if DNNL_VERSION_MAJOR >= 3
    const dnnl::matmul::primitive_desc description(engine, a, b, c);
#else
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, b, c), engine);
#endif
    // oneDNN keeps compiled primitives by shape: this one is compiled once.
    const dnnl::matmul primitive(description);
    primitive.execute(stream, {{DNNL_ARG_SRC, memory(a, engine, const_cast<void*>(problem.a))},
                               {DNNL_ARG_WEIGHTS, memory(b, engine, const_cast<void*>(problem.b))},
                               {DNNL_ARG_DST, memory(c, engine, problem.c)}});
    stream.wait();
  } catch (const dnnl::error&) {
    return false;
  }
  return true;
}

void RunOpenBlas(const GemmProblem& problem) {
  const auto m = static_cast<blasint>(problem.m);
  const auto n = static_cast<blasint>(problem.n);
  const auto k = static_cast<blasint>(problem.k);
  const auto lda = static_cast<blasint>(problem.lda);
  const auto ldb = static_cast<blasint>(problem.ldb);
  const auto* a = static_cast<const float*>(problem.a);
  const auto* b = static_cast<const float*>(problem.b);
  if (m == 1) {  // a matrix product would copy all of b first
    cblas_sgemv(CblasRowMajor, problem.transpose_b ? CblasNoTrans : CblasTrans,
                problem.transpose_b ? n : k, problem.transpose_b ? k : n, 1.0F, b, ldb, a, 1, 0.0F,
                problem.c, 1);
    return;
  }
  cblas_sgemm(CblasRowMajor, CblasNoTrans, problem.transpose_b ? CblasTrans : CblasNoTrans, m, n, k,
              1.0F, a, lda, b, ldb, 0.0F, problem.c, static_cast<blasint>(problem.ldc));
}

bool Run(const GemmProblem& problem) {
  static const bool openblas = OpenBlasKnowsProcessor();
  if (problem.bf16 || !openblas) return RunOneDnn(problem);
  RunOpenBlas(problem);
  return true;
}

void UseOneThread() {
  if (openblas_get_num_threads() != 1) openblas_set_num_threads(1);
}

constexpr NaiveProducts kProducts = {&Run, &UseOneThread};

}  // namespace
}  // namespace attnd::kernels

// NOLINTNEXTLINE(readability-identifier-naming)
const attnd::kernels::NaiveProducts* attnd_naive_products_v1() {
  return &attnd::kernels::kProducts;
}
