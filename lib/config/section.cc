// SPDX-License-Identifier: Apache-2.0
#include "config/section.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

#include "config/quote.h"

namespace gradgate::config {
namespace {

std::string describe(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::table:
      return "a table";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::string:
      return "the string " + in_quotes(node.as_string()->get());
    case toml::node_type::integer:
      return fmt::format("the integer {}", node.as_integer()->get());
    case toml::node_type::floating_point:
      return fmt::format("the number {}", node.as_floating_point()->get());
    case toml::node_type::boolean:
      return node.as_boolean()->get() ? "the boolean true" : "the boolean false";
    default:
      return "a date or time";
  }
}

// Levenshtein distance; `limit + 1` stands for anything above the limit.
std::size_t edit_distance(std::string_view a, std::string_view b, std::size_t limit) {
  if (std::max(a.size(), b.size()) - std::min(a.size(), b.size()) > limit) return limit + 1;
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), std::size_t{0});
  for (std::size_t i = 0; i < a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i + 1;
    for (std::size_t j = 0; j < b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i] == b[j] ? 0 : 1);
      diagonal = row[j + 1];
      row[j + 1] = std::min({replaced, diagonal + 1, row[j] + 1});
    }
  }
  return std::min(row[b.size()], limit + 1);
}

std::string join_choices(std::initializer_list<std::string_view> choices) {
  std::string joined;
  std::size_t left = choices.size();
  for (const std::string_view choice : choices) {
    --left;
    joined += in_quotes(choice);
    if (left == 1) joined += " or ";
    if (left > 1) joined += ", ";
  }
  return joined;
}

}  // namespace

Place place_of(const toml::node& node) {
  const toml::source_position& begin = node.source().begin;
  // The top level of an empty file has no position.
  return {std::max<unsigned>(begin.line, 1), std::max<unsigned>(begin.column, 1)};
}

void Report::fault(Place place, std::string where, std::string what, std::string remedy) {
  faults.push_back({place.line, place.column, std::move(where), std::move(what), std::move(remedy)});
}

void Report::warn(Place place, std::string where, std::string what, std::string remedy) {
  warnings.push_back({place.line, place.column, std::move(where), std::move(what), std::move(remedy)});
}

const toml::node* Section::find(std::string_view key) {
  known_.emplace_back(key);
  return table_.get(key);
}

void Section::refuse_in_this_version(std::string_view key, std::string what, std::string remedy) {
  refused_.emplace_back(key);
  if (table_.contains(key)) fault(key, std::move(what), std::move(remedy));
}

std::string Section::where(std::string_view key) const {
  return path_.empty() ? std::string(key) : fmt::format("{}.{}", path_, key);
}

Place Section::place(std::string_view key) const {
  const toml::node* node = table_.get(key);
  return node != nullptr ? place_of(*node) : place_;
}

void Section::fault(std::string_view key, std::string what, std::string remedy) {
  report_.fault(place(key), where(key), std::move(what), std::move(remedy));
}

void Section::warn(std::string_view key, std::string what, std::string remedy) {
  report_.warn(place(key), where(key), std::move(what), std::move(remedy));
}

void Section::wrong_type(std::string_view key, const toml::node& node, std::string_view expected,
                         std::string_view example) {
  fault(key, fmt::format("found {}, expected {}", describe(node), expected),
        fmt::format("write for example {} = {}", key, example));
}

std::optional<std::string> Section::text(std::string_view key, std::string_view example, Need need) {
  const toml::node* node = find(key);
  if (node == nullptr) {
    if (need == Need::kRequired) fault(key, "is missing", fmt::format("add for example {} = {}", key, example));
    return std::nullopt;
  }
  if (!node->is_string()) {
    wrong_type(key, *node, "a string", example);
    return std::nullopt;
  }
  return node->as_string()->get();
}

std::optional<std::int64_t> Section::integer(std::string_view key, std::string_view example, std::int64_t min,
                                             std::int64_t max, Need need) {
  const toml::node* node = find(key);
  if (node == nullptr) {
    if (need == Need::kRequired) fault(key, "is missing", fmt::format("add for example {} = {}", key, example));
    return std::nullopt;
  }
  if (!node->is_integer()) {
    wrong_type(key, *node, "an integer", example);
    return std::nullopt;
  }
  const std::int64_t value = node->as_integer()->get();
  if (value < min || value > max) {
    fault(key, fmt::format("{} is out of range", value), fmt::format("use a value from {} to {}", min, max));
    return std::nullopt;
  }
  return value;
}

std::optional<bool> Section::boolean(std::string_view key) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_boolean()) {
    wrong_type(key, *node, "a boolean", "true");
    return std::nullopt;
  }
  return node->as_boolean()->get();
}

std::optional<std::size_t> Section::choice(std::string_view key, std::initializer_list<std::string_view> choices) {
  const toml::node* node = find(key);
  if (node == nullptr) return std::nullopt;
  if (!node->is_string()) {
    wrong_type(key, *node, "a string", in_quotes(*choices.begin()));
    return std::nullopt;
  }
  const std::string& found = node->as_string()->get();
  const auto at = std::find(choices.begin(), choices.end(), found);
  if (at == choices.end()) {
    fault(key, fmt::format("{} is none of its values", in_quotes(found)), fmt::format("use {}", join_choices(choices)));
    return std::nullopt;
  }
  return static_cast<std::size_t>(at - choices.begin());
}

std::optional<std::uint64_t> Section::quantity(std::string_view key, std::string_view example,
                                               Quantity (*parse)(std::string_view),
                                               std::string (*format)(std::uint64_t), std::uint64_t min,
                                               std::uint64_t max, Need need) {
  const toml::node* node = find(key);
  if (node != nullptr && node->is_number()) {
    // 30, or 2.5: the commonest mistake gets the list of units.
    const std::string number = node->is_integer() ? fmt::format("{}", node->as_integer()->get())
                                                  : fmt::format("{}", node->as_floating_point()->get());
    fault(key, fmt::format("the number {} has no unit", number), parse("").remedy);
    return std::nullopt;
  }
  const std::optional<std::string> found = text(key, example, need);
  if (!found) return std::nullopt;
  Quantity quantity = parse(*found);
  if (!quantity.value) {
    fault(key, std::move(quantity.what), std::move(quantity.remedy));
    return std::nullopt;
  }
  if (*quantity.value < min || *quantity.value > max) {
    fault(key, fmt::format("{} is out of range", in_quotes(*found)),
          fmt::format("use a value from \"{}\" to \"{}\"", format(min), format(max)));
    return std::nullopt;
  }
  return quantity.value;
}

template <typename T>
std::vector<Item<T>> Section::list(std::string_view key, std::string_view example, std::string_view expected,
                                   std::size_t max_count) {
  std::vector<Item<T>> items;
  const toml::node* node = find(key);
  if (node == nullptr) return items;
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    wrong_type(key, *node, "a list", example);
    return items;
  }
  if (array->size() > max_count) {
    fault(key, fmt::format("has {} elements", array->size()), fmt::format("use {} at most", max_count));
    return items;
  }
  for (std::size_t i = 0; i < array->size(); ++i) {
    const toml::node& element = (*array)[i];
    std::string path = fmt::format("{}[{}]", where(key), i);
    if (const toml::value<T>* value = element.as<T>()) {
      items.push_back({value->get(), place_of(element), std::move(path)});
    } else {
      report_.fault(place_of(element), std::move(path),
                    fmt::format("found {}, expected {}", describe(element), expected),
                    fmt::format("write for example {} = {}", key, example));
    }
  }
  return items;
}

std::vector<Item<std::string>> Section::texts(std::string_view key, std::string_view example, std::size_t max_count) {
  return list<std::string>(key, example, "a string", max_count);
}

std::vector<Item<std::int64_t>> Section::integers(std::string_view key, std::string_view example,
                                                  std::size_t max_count) {
  return list<std::int64_t>(key, example, "an integer", max_count);
}

std::optional<Section> Section::table(std::string_view key, Need need, std::string_view example) {
  const toml::node* node = find(key);
  if (node == nullptr) {
    if (need == Need::kRequired) {
      fault(key, fmt::format("the table [{}] is missing", key), fmt::format("add [{}] with {}", key, example));
    }
    return std::nullopt;
  }
  const toml::table* table = node->as_table();
  if (table == nullptr) {
    fault(key, fmt::format("found {}, expected a table", describe(*node)), fmt::format("write [{}], once", key));
    return std::nullopt;
  }
  return Section(*table, where(key), place_of(*table), report_);
}

std::vector<Section> Section::tables(std::string_view key, std::size_t max_count) {
  std::vector<Section> sections;
  const toml::node* node = find(key);
  if (node == nullptr) return sections;
  const toml::array* array = node->as_array();
  if (array == nullptr) {
    fault(key, fmt::format("found {}, expected a list of tables", describe(*node)),
          fmt::format("write [[{}]] with double brackets", key));
    return sections;
  }
  if (array->size() > max_count) {
    fault(key, fmt::format("there are {} of [[{}]]", array->size(), key), fmt::format("use {} at most", max_count));
  }
  for (std::size_t i = 0; i < std::min(array->size(), max_count); ++i) {
    const toml::node& element = (*array)[i];
    std::string path = fmt::format("{}[{}]", where(key), i);
    if (const toml::table* table = element.as_table()) {
      sections.emplace_back(*table, std::move(path), place_of(element), report_);
    } else {
      report_.fault(place_of(element), std::move(path), fmt::format("found {}, expected a table", describe(element)),
                    fmt::format("write [[{}]] above its keys", key));
    }
  }
  return sections;
}

void Section::refuse_unknown() {
  constexpr std::size_t kNear = 2;
  for (auto&& [key, node] : table_) {
    const std::string_view name = key.str();
    if (std::find(known_.begin(), known_.end(), name) != known_.end()) continue;
    if (std::find(refused_.begin(), refused_.end(), name) != refused_.end()) continue;
    const std::string* nearest = nullptr;
    std::size_t nearest_distance = kNear + 1;
    for (const std::string& known : known_) {
      // A key of two letters is two edits from any other: not more than half of it may differ.
      const std::size_t distance = edit_distance(name, known, kNear);
      if (distance < nearest_distance && 2 * distance <= known.size()) {
        nearest = &known;
        nearest_distance = distance;
      }
    }
    const toml::source_position& begin = key.source().begin;
    report_.fault({begin.line, begin.column}, where(name), "unknown key",
                  nearest != nullptr ? fmt::format("did you mean {}?", *nearest)
                                     : fmt::format("remove it, or use one of {}", join(known_)));
  }
}

}  // namespace gradgate::config
