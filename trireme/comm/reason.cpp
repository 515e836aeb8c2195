#include "trireme/comm/reason.h"

#include <c10/util/Exception.h>

namespace trireme::comm {

std::string reason_of(const std::exception& error) {
  const auto* torch_error = dynamic_cast<const c10::Error*>(&error);
  std::string text = torch_error ? torch_error->what_without_backtrace() : error.what();
  text = text.substr(0, text.find('\n'));
  // "[/path/of/gloo/pair.cc:123] what happened"
  if (const auto end = text.find(".cc:"); text.starts_with('[') && end != text.npos)
    if (const auto bracket = text.find("] ", end); bracket != text.npos) text = text.substr(bracket + 2);
  for (const char* advice : {". This may indicate", ". This is typically", " GLHF"})
    if (const auto end = text.find(advice); end != text.npos) text = text.substr(0, end);
  if (text == "Application timeout caused pair closure") return "another collective of the group timed out";
  return text;
}

}  // namespace trireme::comm
