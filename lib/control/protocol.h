// SPDX-License-Identifier: Apache-2.0
// The JSON of PROTOCOL.md: checked access to members of untrusted objects, and the plan that all sites of a group
// share.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace gradgate::control {

using Json = nlohmann::json;

constexpr uint16_t kMaxGroupSize = 8192;  ///< so that a plan with all ranks fits the body limit
constexpr uint32_t kMaxWindow = 1 << 20;  ///< slots per lane

/// A refusal as PROTOCOL.md lists them.
struct Refusal {
  int status = 400;  ///< HTTP
  std::string code = "bad_request";
  std::string text;
};

/// An HTTP answer.
struct Reply {
  int status = 200;
  Json body = Json::object();
};

Reply to_reply(const Refusal& refusal);

/// A message from outside that is not as PROTOCOL.md says; what() names the member and what would be right.
class BadMessage : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// Parses text from outside. Throws BadMessage with line and column.
Json parse_json(std::string_view text);

/// Members of an untrusted object; every method throws BadMessage.
class Fields {
 public:
  /// `value` must be an object and outlive this; `where` goes in front of names, for example "restore.plan.".
  explicit Fields(const Json& value, std::string where = "");

  bool has(const char* key) const;
  uint64_t number(const char* key, uint64_t min, uint64_t max) const;
  std::string text(const char* key, size_t max_bytes) const;
  /// 1 to 64 of A-Z a-z 0-9 _ . : -
  std::string name(const char* key) const;
  /// 16 lower-case hexadecimal digits.
  std::string id(const char* key) const;
  std::vector<uint32_t> numbers(const char* key, size_t max_count, uint64_t max) const;
  const Json& object(const char* key) const;
  const Json& array(const char* key, size_t max_count) const;
  std::string where(const char* key) const { return where_ + key; }

 private:
  const Json& at(const char* key) const;

  const Json& value_;
  std::string where_;
};

struct PlanSite {
  uint16_t id = 0;
  std::string name;
  uint32_t weight = 1;
  std::vector<uint16_t> ranks;  ///< ascending
  bool operator==(const PlanSite&) const = default;
};

/// What the sites of a group agreed on when it formed.
struct Plan {
  std::string group_id;
  uint32_t generation = 1;
  std::string tenant, job, group;
  uint16_t size = 0;
  uint32_t chunk_bytes = 0;
  uint8_t lanes = 0;
  uint32_t window = 0;  ///< slots per lane
  uint32_t exchange_limit_bytes = 0;
  std::vector<uint32_t> start;
  std::vector<PlanSite> sites;  ///< ascending by id

  bool operator==(const Plan&) const = default;
  std::string name() const { return job + "/" + group; }
  const PlanSite* site(uint16_t id) const;
  const PlanSite* site_of_rank(uint16_t rank) const;
};

Json to_json(const Plan& plan);
/// Throws BadMessage unless the plan is consistent in itself: powers of two, every rank at exactly one site, start
/// indices of their lanes.
Plan plan_from_json(const Json& value, const std::string& where);

/// "rank 3", "ranks 1, 2 and 5"; at most ten are named.
std::string ranks_text(const std::vector<uint16_t>& ranks);

}  // namespace gradgate::control
