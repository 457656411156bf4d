// SPDX-License-Identifier: Apache-2.0
#include "control/protocol.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <set>

#include "wire/gg_wire.h"

namespace gradgate::control {

namespace {

std::string shown(const Json& value) {
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > 60) text = text.substr(0, 57) + "...";
  return text;
}

bool is_number(const Json& value, uint64_t min, uint64_t max) {
  if (!value.is_number_integer() || (!value.is_number_unsigned() && value.get<int64_t>() < 0)) return false;
  return value.get<uint64_t>() >= min && value.get<uint64_t>() <= max;
}

bool is_name(std::string_view text) {
  constexpr std::string_view kAlphabet = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.:-";
  return !text.empty() && text.size() <= 64 && text.find_first_not_of(kAlphabet) == std::string_view::npos;
}

}  // namespace

Reply to_reply(const Refusal& refusal) {
  return {refusal.status, {{"error", refusal.text}, {"code", refusal.code}}};
}

Json parse_json(std::string_view text) {
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error while parsing …"
    std::string what = error.what();
    if (const size_t end = what.find("] "); end != std::string::npos) what.erase(0, end + 2);
    throw BadMessage("not JSON: " + what);
  }
}

Fields::Fields(const Json& value, std::string where) : value_(value), where_(std::move(where)) {
  if (!value.is_object()) {
    const std::string name = where_.empty() ? "the message" : '"' + where_.substr(0, where_.size() - 1) + '"';
    throw BadMessage(name + " must be a JSON object, not " + shown(value));
  }
}

bool Fields::has(const char* key) const {
  return value_.contains(key);
}

const Json& Fields::at(const char* key) const {
  const auto found = value_.find(key);
  if (found == value_.end()) throw BadMessage(fmt::format("\"{}\" is missing", where(key)));
  return *found;
}

uint64_t Fields::number(const char* key, uint64_t min, uint64_t max) const {
  const Json& value = at(key);
  if (!is_number(value, min, max))
    throw BadMessage(
        fmt::format("\"{}\" must be a whole number from {} to {}, not {}", where(key), min, max, shown(value)));
  return value.get<uint64_t>();
}

std::string Fields::text(const char* key, size_t max_bytes) const {
  const Json& value = at(key);
  if (!value.is_string() || value.get_ref<const std::string&>().size() > max_bytes)
    throw BadMessage(fmt::format("\"{}\" must be a string of at most {} bytes", where(key), max_bytes));
  return value.get<std::string>();
}

std::string Fields::name(const char* key) const {
  const Json& value = at(key);
  if (!value.is_string() || !is_name(value.get_ref<const std::string&>()))
    throw BadMessage(fmt::format("\"{}\" must be 1 to 64 of A-Z a-z 0-9 _ . : -, not {}", where(key), shown(value)));
  return value.get<std::string>();
}

std::string Fields::id(const char* key) const {
  const Json& value = at(key);
  if (value.is_string()) {
    const std::string& text = value.get_ref<const std::string&>();
    if (text.size() == 16 && text.find_first_not_of("0123456789abcdef") == std::string::npos) return text;
  }
  throw BadMessage(fmt::format("\"{}\" must be 16 hexadecimal digits, not {}", where(key), shown(value)));
}

const Json& Fields::object(const char* key) const {
  const Json& value = at(key);
  if (!value.is_object()) throw BadMessage(fmt::format("\"{}\" must be an object, not {}", where(key), shown(value)));
  return value;
}

const Json& Fields::array(const char* key, size_t max_count) const {
  const Json& value = at(key);
  if (!value.is_array() || value.size() > max_count)
    throw BadMessage(fmt::format("\"{}\" must be a list of at most {} elements", where(key), max_count));
  return value;
}

std::vector<uint32_t> Fields::numbers(const char* key, size_t max_count, uint64_t max) const {
  std::vector<uint32_t> out;
  for (const Json& value : array(key, max_count)) {
    if (!is_number(value, 0, max))
      throw BadMessage(
          fmt::format("\"{}\" must hold whole numbers from 0 to {}, not {}", where(key), max, shown(value)));
    out.push_back(value.get<uint32_t>());
  }
  return out;
}

const PlanSite* Plan::site(uint16_t id) const {
  const auto found = std::find_if(sites.begin(), sites.end(), [id](const PlanSite& s) { return s.id == id; });
  return found == sites.end() ? nullptr : &*found;
}

const PlanSite* Plan::site_of_rank(uint16_t rank) const {
  for (const PlanSite& candidate : sites)
    if (std::binary_search(candidate.ranks.begin(), candidate.ranks.end(), rank)) return &candidate;
  return nullptr;
}

Json to_json(const Plan& plan) {
  Json sites = Json::array();
  for (const PlanSite& site : plan.sites)
    sites.push_back({{"id", site.id}, {"name", site.name}, {"weight", site.weight}, {"ranks", site.ranks}});
  return {{"group_id", plan.group_id},
          {"generation", plan.generation},
          {"tenant", plan.tenant},
          {"job", plan.job},
          {"group", plan.group},
          {"size", plan.size},
          {"chunk_bytes", plan.chunk_bytes},
          {"lanes", plan.lanes},
          {"window", plan.window},
          {"exchange_limit_bytes", plan.exchange_limit_bytes},
          {"start", plan.start},
          {"sites", sites}};
}

namespace {

uint32_t power_of_two(const Fields& fields, const char* key, uint64_t min, uint64_t max) {
  const uint64_t value = fields.number(key, min, max);
  if (!std::has_single_bit(value))
    throw BadMessage(fmt::format("\"{}\" must be a power of two, not {}", fields.where(key), value));
  return static_cast<uint32_t>(value);
}

PlanSite plan_site(const Json& value, const std::string& where, uint16_t size) {
  const Fields fields(value, where);
  PlanSite site;
  site.id = static_cast<uint16_t>(fields.number("id", 1, GG_MAX_SITE));
  site.name = fields.name("name");
  site.weight = static_cast<uint32_t>(fields.number("weight", 1, 65535));
  for (uint32_t rank : fields.numbers("ranks", size, size - 1u)) {
    if (!site.ranks.empty() && site.ranks.back() >= rank)
      throw BadMessage(fmt::format("\"{}\" must ascend", fields.where("ranks")));
    site.ranks.push_back(static_cast<uint16_t>(rank));
  }
  if (site.ranks.empty()) throw BadMessage(fmt::format("\"{}\" is empty", fields.where("ranks")));
  return site;
}

}  // namespace

Plan plan_from_json(const Json& value, const std::string& where) {
  const Fields fields(value, where);
  Plan plan;
  plan.group_id = fields.id("group_id");
  plan.generation = static_cast<uint32_t>(fields.number("generation", 0, ~uint32_t{0}));
  plan.tenant = fields.name("tenant");
  plan.job = fields.name("job");
  plan.group = fields.name("group");
  plan.size = static_cast<uint16_t>(fields.number("size", 1, kMaxGroupSize));
  plan.chunk_bytes = power_of_two(fields, "chunk_bytes", 16, 8192);
  plan.lanes = static_cast<uint8_t>(power_of_two(fields, "lanes", 1, GG_MAX_LANES));
  plan.window = power_of_two(fields, "window", 1, kMaxWindow);
  plan.exchange_limit_bytes = static_cast<uint32_t>(fields.number("exchange_limit_bytes", 0, ~uint32_t{0}));
  plan.start = fields.numbers("start", GG_MAX_LANES, ~uint32_t{0});
  if (plan.start.size() != plan.lanes)
    throw BadMessage(fmt::format("\"{}\" must have one per lane", fields.where("start")));
  for (size_t lane = 0; lane < plan.start.size(); ++lane)
    if (plan.start[lane] % plan.lanes != lane)
      throw BadMessage(fmt::format("\"{}\"[{}] is no index of lane {}", fields.where("start"), lane, lane));
  std::set<uint16_t> ranks;
  size_t total = 0;
  for (const Json& element : fields.array("sites", GG_MAX_SITE)) {
    PlanSite site = plan_site(element, where + "sites.", plan.size);
    if (!plan.sites.empty() && plan.sites.back().id >= site.id)
      throw BadMessage(fmt::format("\"{}\" must ascend by id", fields.where("sites")));
    ranks.insert(site.ranks.begin(), site.ranks.end());
    total += site.ranks.size();
    plan.sites.push_back(std::move(site));
  }
  if (total != plan.size || ranks.size() != plan.size)
    throw BadMessage(fmt::format("\"{}\" must place each of the {} ranks once", fields.where("sites"), plan.size));
  return plan;
}

std::string ranks_text(const std::vector<uint16_t>& ranks) {
  constexpr size_t kNamed = 10;
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  const size_t named = std::min(ranks.size(), kNamed);
  for (size_t i = 0; i < named; ++i) {
    if (i > 0) out += i + 1 == ranks.size() ? " and " : ", ";
    out += std::to_string(ranks[i]);
  }
  if (ranks.size() > named) out += fmt::format(" and {} more", ranks.size() - named);
  return out;
}

}  // namespace gradgate::control
