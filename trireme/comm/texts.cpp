#include "trireme/comm/texts.h"

#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

namespace trireme::comm {

std::vector<std::string> all_gather_texts(std::string_view text, const Group& group,
                                          std::string_view purpose) {
  const at::Tensor lengths =
      group.all_gather(at::scalar_tensor(int64_t(text.size()), at::kLong), purpose).view({-1});
  const auto* length = lengths.const_data_ptr<int64_t>();
  const int64_t longest = *std::max_element(length, length + group.size());
  at::Tensor padded = at::zeros({longest}, at::kByte);
  std::memcpy(padded.mutable_data_ptr(), text.data(), text.size());
  const at::Tensor all = group.all_gather(padded, purpose);
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < group.size(); ++rank)
    texts.emplace_back(static_cast<const char*>(all.const_data_ptr()) + rank * longest, size_t(length[rank]));
  return texts;
}

}  // namespace trireme::comm
