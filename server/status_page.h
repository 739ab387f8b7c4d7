// The page /statusz: the text of statusz.html, put into the program when it is built.
#pragma once

#include <string_view>

namespace attnd {

std::string_view StatusPage();

}  // namespace attnd
