// The commit that attnbench was built from.
#pragma once

namespace attnd::kernels::bench {

const char* BuildCommit();

}  // namespace attnd::kernels::bench
