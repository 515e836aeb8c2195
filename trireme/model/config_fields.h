// Typed access to the fields of a JSON object, with errors that name the field and the file.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace trireme::model::detail {

/// A view of one object; the object and the file's name must outlive it. All throw `ValueError` for a missing
/// field or one of another type.
class Fields {
 public:
  /// No size of a model is larger: products of two of them stay far inside an int64.
  static constexpr int64_t kLargestSize = int64_t{1} << 28;

  Fields(const nlohmann::json& object, std::string_view file_name);

  /// There, be it null.
  bool contains(const char* key) const { return object_.contains(key); }

  /// There, and not null.
  bool has(const char* key) const;

  /// An integer from 1 to `largest`.
  int64_t size(const char* key, int64_t largest = kLargestSize) const;
  int64_t integer(const char* key) const;
  double positive(const char* key) const;
  double number(const char* key) const;
  bool flag(const char* key) const;

  /// `fallback` where the field is not there.
  bool flag_or(const char* key, bool fallback) const { return contains(key) ? flag(key) : fallback; }
  const std::string& text(const char* key) const;
  const nlohmann::json& array(const char* key) const;
  const nlohmann::json& object(const char* key) const;

  /// Throws "[model] RULE; got `KEY` = VALUE in FILE".
  [[noreturn]] void refuse(const char* key, std::string_view rule) const;

  /// Throws "[model] RULE; got VALUES in FILE; ADVICE": where several fields do not fit together.
  [[noreturn]] void refuse_together(std::string_view rule, std::string_view values,
                                    std::string_view advice) const;

 private:
  const nlohmann::json& value(const char* key) const;

  const nlohmann::json& object_;
  std::string_view file_name_;
};

}  // namespace trireme::model::detail
