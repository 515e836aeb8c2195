// What an error says.
#pragma once

#include <string>

#include "trireme/core/check.h"

namespace trireme::testing {

/// The text of the `ValueError` that `function` throws; says so where it throws none. Other exceptions pass.
template <class Function>
std::string value_error(Function&& function) {
  try {
    function();
  } catch (const core::ValueError& error) {
    return error.what();
  }
  return "no ValueError was thrown";
}

}  // namespace trireme::testing
