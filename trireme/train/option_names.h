// The names that options have in JSON, for reading and for writing.
#pragma once

#include <string>
#include <string_view>

#include "trireme/core/async_file.h"
#include "trireme/core/residence.h"
#include "trireme/train/json_reader.h"
#include "trireme/train/options.h"

namespace trireme::train {

inline constexpr Choices<std::string_view, 2> kOptimizers{{{"AdamW", "AdamW"}, {"Adam", "Adam"}}};
inline constexpr Choices<CommunicationType, 2> kCommunicationTypes{
    {{"fp32", CommunicationType::fp32}, {"bf16", CommunicationType::bf16}}};
inline constexpr Choices<DeviceChoice, 3> kDevices{
    {{"auto", DeviceChoice::automatic}, {"cpu", DeviceChoice::cpu}, {"cuda", DeviceChoice::cuda}}};
inline constexpr Choices<core::Residence, 3> kResidences{
    {{"none", core::Residence::device}, {"cpu", core::Residence::host}, {"nvme", core::Residence::disk}}};
inline constexpr Choices<core::IoEngine, 3> kEngines{{{"auto", core::IoEngine::automatic},
                                                      {"io_uring", core::IoEngine::uring},
                                                      {"threads", core::IoEngine::threads}}};
inline constexpr Choices<WarmupType, 2> kWarmupTypes{
    {{"log", WarmupType::log}, {"linear", WarmupType::linear}}};

/// The name of `value`, which is one of `choices`.
template <class Value, size_t count>
std::string name_of(const Value& value, const Choices<Value, count>& choices) {
  for (const auto& [name, meaning] : choices)
    if (meaning == value) return std::string(name);
  core::check_internal(false, "[options] a value has no name");
  return {};
}

}  // namespace trireme::train
