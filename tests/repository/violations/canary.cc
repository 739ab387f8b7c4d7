// Deliberate violations, never built: canary_test.py checks that the linters still find every one.
#include <string>
#include <vector>

namespace attnd {

class bad_class_name {                                   // naming: type
 public:
  int BadVariable(int BadParameter) { return BadParameter+counter; }   // naming: parameter; format: spaces
 private:
  int counter = 0;                                       // naming: private member
};

enum class Color { red };                                // naming: enumerator

inline int Sum(const std::vector<std::string>& names) {
  const char* nothing = 0;                               // modernize: nullptr
  if (names.size() == 0) return nothing == nullptr ? 0 : 1;   // readability: empty()
  int length = 0;
  for (const std::string name : names) length += static_cast<int>(name.size());   // performance: copy of each element
  return length + static_cast<int>(sizeof(sizeof(nothing)));   // bugprone: sizeof(sizeof)
}

}  // namespace attnd
