// What an error says.
#pragma once

#include <string>

#include "trireme/core/check.h"

namespace trireme::testing {

/// The text of the `Error` that `function` throws, or `otherwise`. Other exceptions pass.
template <class Error, class Function>
std::string text_of(Function&& function, const char* otherwise) {
  try {
    function();
  } catch (const Error& error) {
    return error.what();
  }
  return otherwise;
}

template <class Function>
std::string value_error(Function&& function) {
  return text_of<core::ValueError>(function, "no ValueError was thrown");
}

template <class Function>
std::string file_error(Function&& function) {
  return text_of<core::FileError>(function, "no FileError was thrown");
}

}  // namespace trireme::testing
