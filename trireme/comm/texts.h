// Texts from every rank.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "trireme/comm/group.h"

namespace trireme::comm {

/// Each rank's text, by rank, on every rank. Two all-gathers. Every rank of the group must call it.
std::vector<std::string> all_gather_texts(std::string_view text, const Group& group,
                                          std::string_view purpose);

}  // namespace trireme::comm
