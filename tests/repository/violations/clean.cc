// The counterpart of canary.cc: names and forms as they should be, so that the linters stay quiet.
#include <string>
#include <vector>

namespace attnd {

constexpr int kLimit = 4;

enum class Color { kRed };

class Counter {
 public:
  explicit Counter(int start) : count_(start) {}
  int count() const { return count_; }
  int CountUpTo(int limit) const { return count_ < limit ? count_ + 1 : limit; }

 private:
  int count_;
};

inline int Sum(const std::vector<std::string>& names) {
  if (names.empty()) return kLimit;
  return Counter(static_cast<int>(names[0].size())).CountUpTo(kLimit);
}

}  // namespace attnd
